"""A member that holds state and is inside a call, with a real agent and without the rest of a job.

``python -m tests.ftlib.recovery.holders`` is one in a process of its own: told what to be in a JSON line on stdin, it says who
it is in one on stdout, and ends with its stdin. With "group" it waits for another line, about the joiner, before that.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import nn

from consensus import Config, Gossip, Home, Member, View
from ftlib.common.memory import room
from ftlib.core.calls.call import Call, Kind
from ftlib.core.calls.observer import Observers
from ftlib.core.calls.salvage import SalvagePlan
from ftlib.core.calls.session import Session
from ftlib.core.plane.plane import Plane
from ftlib.core.tensors.layout import lay_out
from ftlib.core.tensors.layout_book import LayoutBook
from ftlib.core.tensors.staging import Allocate
from ftlib.frameworks.base import Framework, Group, GroupSpec
from ftlib.frameworks.gloo import GlooFramework
from ftlib.recovery.donor.donor import Donor
from ftlib.recovery.layout.manifest import split
from ftlib.recovery.layout.shards import Shard
from ftlib.recovery.whole_state import Transfer
from ftlib.state.registry import Registered
from tests.harness.nursery import ROOT

VERSION = 5
STATE_ID = "origin"
TIMEOUT = 120.0


class Model(nn.Module):
    """So many parameters of so many elements each, of which no two are alike."""

    def __init__(self, sizes: Sequence[int], *, seed: int = 0) -> None:
        super().__init__()
        numbers = torch.Generator().manual_seed(seed)
        self.rows = nn.ParameterList([nn.Parameter(torch.randn(size, generator=numbers)) for size in sizes])
        self.register_buffer("seen", torch.tensor(float(seed)))

    @property
    def nbytes(self) -> int:
        return sum(row.numel() * row.element_size() for row in self.rows)


def optimizer_of(model: Model) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


class Holder:
    """Outside of calls until ``enter``."""

    def __init__(self, model: Model, home: Home = Home.THREAD, allocate: Allocate = room, **settings: Any) -> None:
        self.model = model
        self.consensus = Gossip(Config(**{"agent": home, "job": "recovery", "initial_size": 1, **settings}))
        self.plane = Plane(self.consensus.id)
        self.transfer = Transfer(self.plane, TIMEOUT, TIMEOUT)
        self.layouts = LayoutBook()
        self.donor = Donor(self.plane, lambda: self.transfer.registered, self.layouts, Observers(), allocate, allocate)
        self.consensus.serve(Donor.PATH, self.donor.source)
        self.consensus.start(None)
        self.optimizer = optimizer_of(model)
        self.transfer.register(Registered({"model": model, "optimizer": self.optimizer}))

    @property
    def member(self) -> Member:
        return self.consensus.member

    def meet(self, others: Sequence[Member], group: Group | None = None, *, version: int = VERSION, epoch: int = 2) -> Session:
        """Act in a view of this one and ``others``, whose next call is ``version``."""
        session = meeting([self.member, *others], self.member.id, group, version=version, epoch=epoch)
        assert self.plane.activate(session)
        self.plane.state_id = STATE_ID
        self.donor.activated(session)
        return session

    def enter(self) -> None:
        """The next call."""
        layout = lay_out("barrier", [], "SUM", 1 << 20)
        self.layouts.note(layout)
        call = Call(Kind.BARRIER, layout, ())
        self.plane.enter(call)
        self.donor.entering(call.number)

    def pin(self, joiner: str, *shards: Shard) -> None:
        """Whatever an offer would not have it pin."""
        registered = self.transfer.registered
        assert registered is not None
        self.donor._snapshots.arm(joiner, shards, split(registered, self.plane.step)[1], self.plane.finished + 1)

    def leave(self) -> None:
        """The end of the call."""
        with self.plane.changed:
            self.plane.finished += 1
            self.plane.current = None
            self.plane.changed.notify_all()

    def close(self) -> None:
        self.donor.forget()
        self.consensus.stop()


def meeting(members: Sequence[Member], own: str, group: Group | None, *, version: int = VERSION, epoch: int = 2) -> Session:
    """The session of the view in which all have the ranks of that order."""
    plan = SalvagePlan(version - 1, version - 1, current_state_id=STATE_ID, holders=(members[0].id,))
    ranks = {member.id: rank for rank, member in enumerate(members)}
    return Session(View(epoch, "parent", tuple(members)), plan, own, ranks, group)


@contextmanager
def holders(count: int, model: Callable[[], Model], joiner: Member, **settings: Any) -> Iterator[list[Holder]]:
    """Inside the call, in the joiner's view."""
    started: list[Holder] = []
    try:
        for _ in range(count):
            started.append(Holder(model(), **settings))
            started[-1].meet([joiner])
            started[-1].enter()
        yield started
    finally:
        for holder in started:
            holder.close()


def somebody(port: int = 1) -> Member:
    """A joiner; nobody asks it for anything."""
    return Member(secrets.token_hex(8), "127.0.0.1", port)


def whole(nbytes: int, donor: str, version: int = VERSION) -> Shard:
    """One shard of everything."""
    return Shard(0, 0, nbytes, version, (donor,))


class HolderProcess:
    """A ``Holder`` of its own process. ``model``: arguments of ``Model``. Use as a context manager."""

    def __init__(self, sizes: Sequence[int], joiner: Member, *, group: bool = False, **settings: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.ftlib.recovery.holders"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.tell(sizes=list(sizes), joiner=[joiner.id, joiner.host, joiner.port], group=group, settings=settings)
        found = self.hear()
        self.member = Member(found["id"], found["host"], found["port"])
        self.store: dict[str, str] = found["store"]

    def tell(self, **what: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the holder has ended"
        return dict(json.loads(line))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for end in (self.process.stdin, self.process.stdout):
            if end is not None:
                end.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def group_of(framework: Framework, rank: int, store: dict[str, str]) -> Group:
    """Of a holder (0) and a joiner (1)."""
    return framework.rebuild(GroupSpec("recovery", 2, rank, 2, store, TIMEOUT))


def main() -> None:
    told = json.loads(sys.stdin.readline())
    holder = Holder(Model(told["sizes"]), Home.PROCESS, **told["settings"])
    framework, member = GlooFramework(), holder.member
    store = framework.start("127.0.0.1") if told["group"] else {}
    print(json.dumps({"id": member.id, "host": member.host, "port": member.port, "store": dict(store)}), flush=True)
    group = group_of(framework, 0, dict(store)) if told["group"] else None
    holder.meet([Member(*told["joiner"])], group)
    holder.enter()
    print("{}", flush=True)
    sys.stdin.read()
    holder.close()
    framework.close()


if __name__ == "__main__":
    main()
