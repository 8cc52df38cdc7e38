"""Sessions of three members, and their calls, for tests of a data plane by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from consensus import Member, View
from ftlib.common.threads import Threads
from ftlib.core.calls.call import Call, Kind
from ftlib.core.calls.salvage import SalvagePlan
from ftlib.core.calls.session import Session
from ftlib.core.tensors.layout import lay_out

MEMBERS = tuple(Member(name, "127.0.0.1", 1000 + number) for number, name in enumerate("abc"))
LAYOUT = lay_out("average", [(torch.float32, (3,))], "SUM", 1 << 20)
GROUP: Any = SimpleNamespace()
AFTER_SEVEN = SalvagePlan(7, 7, current_state_id="a", holders=("a",))
"""Of a session whose first call is the eighth, at members that have all finished the seventh."""


def session(epoch: int, plan: SalvagePlan, me: str, *, group: Any = GROUP, keeps: bool = False) -> Session:
    view = View(epoch, "parent" if epoch > 1 else "", MEMBERS)
    return Session(view, plan, me, {"a": 0, "b": 1, "c": 2}, group, keeps=keeps)


def average() -> Call:
    return Call(Kind.AVERAGE, LAYOUT, [torch.ones(3)], weight=1.0, divide=True)


class Clock(Threads):
    """Goes on by hand."""

    def __init__(self) -> None:
        self.at = 100.0

    def now(self) -> float:
        return self.at


class Meanwhile(Threads):
    """While a thread waits for something by a condition, that happens; in the same thread, so no test depends on time."""

    def __init__(self) -> None:
        self.happens: list[Callable[[], object]] = []

    def condition(self) -> threading.Condition:
        happens = self.happens

        class Condition(threading.Condition):
            def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
                assert predicate() or timeout != 0.0
                while happens and not predicate():
                    happens.pop()()
                assert predicate() or timeout is not None, "it would wait for ever"
                return predicate()

        return Condition()
