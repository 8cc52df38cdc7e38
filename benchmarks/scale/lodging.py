"""A process in which many members live, on one event loop, each with sockets and an agent of its own; nobody trains.

    python -m benchmarks lodging                # orders are JSON lines on stdin, news are JSON lines on stdout

Orders: ``{"number", "start": {settings of Config}}`` starts one more member (``"consensus"`` among them: its backend), and
``"look"`` tells all members' lists and traffic.
News: ``{"address"}`` of the member started, ``{"member", "t", "epoch", "size"}`` whenever a member's active view is another one
(``t``: CLOCK_MONOTONIC), and ``{"lists", "sent", "stored"}`` (operations of the store).
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

from consensus import Config, Consensus, Gossip, Member, Membership, SharedStorage, format_address
from consensus.border import Boundary, Built, Flushed, Order, SeekAdmission
from consensus.interface import NullPlane
from consensus.runtime.agent.agent import Agent, Outside
from consensus.runtime.agent.snapshot import Snapshot
from consensus.runtime.host.child import make_agent
from consensus.runtime.host.exchange import Setup
from consensus.runtime.host.progress_cell import ProgressCell
from consensus.runtime.net.names import lookup
from consensus.runtime.net.sockets import open_pair

_BACKENDS: Mapping[str, type[Membership]] = {"gossip": Gossip, "shared_storage": SharedStorage}


class Lodger:
    """One member: what its ``NullPlane`` asks of a ``Consensus``, around an agent on this loop."""

    def __init__(self, number: int, config: Config) -> None:
        """Binds."""
        self._number, self._epoch = number, 0
        introducers = lookup(config.introducers)
        sockets = open_pair(config, introducers.addresses)
        host, port = sockets.advertised
        self.member = Member(secrets.token_hex(8), host, port)
        self.snapshot = Snapshot()
        self._plane = NullPlane(cast("Consensus", self))
        setup = Setup(config, self.member, introducers, sockets.advertised, frozenset(), logging.INFO)
        outside = Outside(
            self._hear,
            progress=ProgressCell().read,
            facts=self._facts,
            served=frozenset,
            hand_over=lambda connection, _request: connection.close(),
            signal=lambda _number: None,
        )
        self.agent: Agent = make_agent(setup, sockets, outside)

    async def start(self) -> None:
        """Listen, and look for the cluster."""
        await self.agent.start()
        self.agent.driver.handle(SeekAdmission())

    def flushed(self, epoch: int, report: bytes) -> None:
        """See ``Consensus``."""
        self.agent.driver.handle(Flushed(epoch, report))

    def ready(self, view_id: str) -> None:
        """See ``Consensus``."""
        self.agent.driver.handle(Built(view_id))

    def boundary(self, call: int, leavers: Sequence[str] = ()) -> None:
        """See ``Consensus``."""
        self.agent.driver.handle(Boundary(call, tuple(leavers)))

    async def _facts(self) -> Mapping[str, Any]:
        return {}

    def _hear(self, orders: list[Snapshot | Order]) -> None:
        for order in orders:
            if isinstance(order, Snapshot):
                self._publish(order)
            else:
                self._plane.handle(order)

    def _publish(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        view = snapshot.active
        if view is not None and view.epoch != self._epoch:
            self._epoch = view.epoch
            _tell(member=self._number, t=time.monotonic(), epoch=view.epoch, size=len(view))


def _tell(**news: Any) -> None:
    sys.stdout.write(json.dumps(news) + "\n")
    sys.stdout.flush()


def _list(lodger: Lodger) -> list[str]:
    view = lodger.snapshot.active
    return [] if view is None else [format_address(member.address) for member in view.members]


def _sent(lodger: Lodger) -> dict[str, int]:
    sent = lodger.agent.status()["messages"]["sent"]
    return {kind: count["bytes"] for kind, count in sent.items()}


def _stored(lodger: Lodger) -> int:
    status = lodger.agent.status()
    return int(status["store"]["operations"]) if "store" in status else 0


def _config(consensus: str = "gossip", **settings: Any) -> Config:
    return _BACKENDS[consensus].settled(Config(**settings))


async def _serve() -> None:
    loop, lodgers = asyncio.get_running_loop(), list[Lodger]()
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    while line := await orders.readline():
        order = json.loads(line)
        if order == "look":
            _tell(lists=list(map(_list, lodgers)), sent=list(map(_sent, lodgers)), stored=list(map(_stored, lodgers)))
            continue
        lodger = Lodger(order["number"], _config(**order["start"]))
        lodgers.append(lodger)
        await lodger.start()
        _tell(address=format_address(lodger.member.address))


def main() -> int:
    """Until stdin closes."""
    logging.basicConfig(level=logging.WARNING)
    gc.freeze()
    _tell(ready=True)
    asyncio.run(_serve())
    return 0
