"""Meetings in a store."""

from __future__ import annotations

import contextlib
import io
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from ftlib.errors import GroupError
from ftlib.frameworks import rendezvous
from ftlib.frameworks.rendezvous import Meeting, StoreServer


class Hasty:
    """A client whose keys are deleted between two of its questions: it has seen them, and gets nothing."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """As torch's client does then."""
        return [b"" for _ in keys]


def test_a_view_that_is_forgotten_meanwhile_is_an_error_of_the_group() -> None:
    server = StoreServer("127.0.0.1")
    meeting = Meeting(server.address, 1, "v1", 0, 1, timeout=5.0)
    try:
        assert meeting.exchange("greeting", ["hello"]) == [["hello"]]
        meeting._store = Hasty(meeting._store)
        with pytest.raises(GroupError, match=r"has forgotten this view \(greeting\)"):
            meeting.exchange("greeting", ["hello"])
    finally:
        meeting.close()
        server.close()


def test_ranks_of_one_process_do_not_take_each_others_connections() -> None:
    server = StoreServer("127.0.0.1")
    with ThreadPoolExecutor(8) as pool:
        meetings = list(pool.map(lambda rank: Meeting(server.address, 1, "v1", rank, 8, timeout=20.0), range(8)))
    try:
        links = [link.inode for meeting in meetings for link in meeting._links]
        assert len(links) == len(set(links)) == 8
        meetings[0].cut()
        with ThreadPoolExecutor(8) as pool:
            told = list(pool.map(lambda meeting: meeting._store.set("still", "here"), meetings[1:]))
        assert told == [None] * 7
    finally:
        for meeting in meetings:
            meeting.close()
        server.close()


def test_who_does_not_get_through_to_a_store_gives_up_once_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long before its time is over: a dropped build leaves no thread behind."""
    monkeypatch.setattr(rendezvous, "_ATTEMPT", timedelta(seconds=0.2))
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: io.BytesIO())  # there was room for it
    asked: list[int] = []

    def wanted() -> bool:
        asked.append(1)
        return len(asked) < 3

    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            waits = stack.enter_context(socket.socket())
            waits.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waits.connect(full.getsockname())
        with pytest.raises(GroupError, match="timed out"):
            Meeting(full.getsockname(), 1, "v1", 0, 2, 600.0, wanted)
    assert len(asked) == 3


def test_a_store_that_ends_as_one_connects_is_given_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when the time is over: the end of the process waits for who is in torch's code, but not as long."""
    listener, connect = socket.create_server(("127.0.0.1", 0)), socket.create_connection
    address = listener.getsockname()

    def ends(*given: Any, **more: Any) -> socket.socket:
        with contextlib.closing(listener):
            return connect(*given, **more)

    monkeypatch.setattr(socket, "create_connection", ends)
    with pytest.raises(GroupError, match=r"does not answer: .* refused"):
        Meeting(address, 1, "v1", 0, 2, 60.0)
