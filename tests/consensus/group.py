"""Members of one job: agents in this process, and peers in processes of their own, which can be killed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from consensus import Config, Gossip, Home, View, format_address
from tests.harness.basics import PATIENT, eventually

from .peer import Peer, spawn


@contextmanager
def members(count: int, **settings: Any) -> Iterator[list[Gossip]]:
    """Founding members of one job that have met."""
    started: list[Gossip] = []
    settings = {"job": "test", "initial_size": count, **settings}
    try:
        started.append(begin(**settings))
        for _ in range(count - 1):
            started.append(begin(introducers=(address(started[0]),), **settings))
        yield started
    finally:
        for member in started:
            member.stop()


def begin(plane: Any = None, meta: Mapping[str, Any] | None = None, **settings: Any) -> Gossip:
    """An agent on a thread is quicker to start; those of ``peers`` are processes, and ``test_agent_process`` is about them."""
    gossip = Gossip(Config(**{"agent": Home.THREAD, "exclude_after": PATIENT["exclude_after"], **settings}))
    gossip.start(plane, meta=meta)
    return gossip


def address(member: Gossip) -> str:
    return format_address(member.member.address)


@contextmanager
def peers(count: int, **settings: Any) -> Iterator[list[Peer]]:
    started: list[Peer] = []
    try:
        started += [spawn(**settings) for _ in range(count)]
        yield started
    finally:
        for peer in started:
            peer.close()


def ids(view: View | None) -> tuple[str, ...]:
    return () if view is None else view.ids


def agree(group: list[Gossip], size: int) -> View:
    """Wait until all of ``group`` act in one confirmed view of ``size`` members, and return it."""

    def agreed() -> bool:
        views = {member.view for member in group}
        return len(views) == 1 and all(len(ids(view)) == size for view in views) and all(m.confirm() for m in group)

    eventually(agreed, f"{len(group)} members agree on {size}; now {[str(member.view) for member in group]}")
    view = group[0].view
    assert view is not None
    return view
