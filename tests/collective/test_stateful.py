"""Random operations on a group of two against a model of two queues: no hang, no reordering, nothing corrupted.

Both ends are in this process, each with its own Collective; what is sent is of all kinds. ``make test`` does some hundreds of
operations, the soak test a hundred thousand.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from ftlib import AsyncWork, Collective, CollectiveTimeout, GroupClosed, Mismatch
from tests.consensus.group import agree, members

from .kinds import same, values

LIMIT = 120.0
SIDES = st.sampled_from([0, 1])
NUMBERS = itertools.count()
SIZES = st.sampled_from([0, 1, 100, 20_000])


class Model(RuleBasedStateMachine):
    """``sent[side]``: what ``side`` has sent and was not received; ``asked[side]``: its receives without a message."""

    collectives: list[Collective]
    ids: list[str]

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[deque[tuple[str, Any]]] = [deque(), deque()]
        self.asked: list[deque[tuple[str, Any, AsyncWork]]] = [deque(), deque()]
        self.sends: list[AsyncWork] = []
        self.count = 0

    @initialize()
    def make(self) -> None:
        name = f"group {next(NUMBERS)}"  # one that no group had before
        self.groups = [each.create_collective_group(self.ids, name) for each in self.collectives]

    def send(self, side: int, kind: str, value: Any, wait: bool) -> None:
        group = self.groups[side]
        calls = {"send": group.send, "send_tensor": group.send_tensor, "broadcast": group.broadcast}
        source = [self.ids[side]] if kind == "broadcast" else []
        work = calls[kind](value, *source, async_op=True)
        self.sends.append(work)
        self.sent[side].append((kind, value))
        if wait:
            work.wait(LIMIT)
        self.match(1 - side)

    @rule(side=SIDES, value=values, wait=st.booleans())
    def send_value(self, side: int, value: Any, wait: bool) -> None:
        self.send(side, "send", value, wait)

    @rule(side=SIDES, size=SIZES, wait=st.booleans())
    def send_tensor(self, side: int, size: int, wait: bool) -> None:
        self.count += 1
        self.send(side, "send_tensor", torch.full((size,), float(self.count)), wait)

    @rule(side=SIDES, value=values)
    def broadcast(self, side: int, value: Any) -> None:
        self.send(side, "broadcast", value, wait=False)

    @rule(side=SIDES, kind=st.sampled_from(["send", "send", "send_tensor", "broadcast"]), size=SIZES)
    def receive(self, side: int, kind: str, size: int) -> None:
        group, into = self.groups[side], None
        if kind == "send_tensor":
            into = torch.empty(size)
            work = group.recv_tensor(into, async_op=True)
        elif kind == "broadcast":
            work = group.broadcast(None, self.ids[1 - side], async_op=True)
        else:
            work = group.recv(async_op=True)
        self.asked[side].append((kind, into, work))
        self.match(side)

    @precondition(lambda self: any(not self.sent[1 - side] and not self.asked[side] for side in (0, 1)))
    @rule()
    def receive_in_vain(self) -> None:
        """A receive that times out leaves the stream as it was."""
        for side in (0, 1):
            if not self.sent[1 - side] and not self.asked[side]:
                with pytest.raises(CollectiveTimeout):
                    self.groups[side].recv(timeout=0.001)

    @rule(side=SIDES)
    def close(self, side: int) -> None:
        """What was sent before is received, what is pending ends, and the group is made again."""
        for other in (0, 1):  # all that is owed
            while self.sent[1 - other]:
                self.receive(other, self.sent[1 - other][0][0], 1)
        if not any(self.asked):  # a group that ends before it has a stream may end the next one: docs/collective.md says so
            self.send(side, "send", "last", wait=True)
            self.receive(1 - side, "send", 0)
        self.groups[side].close()
        for each in (0, 1):
            for _, _, work in self.asked[each]:
                with pytest.raises(GroupClosed):
                    work.wait(LIMIT)
            self.asked[each].clear()
        self.groups[1 - side].close()
        self.make()

    def match(self, side: int) -> None:
        """Receives and messages that have found each other: each is what it must be."""
        while self.sent[1 - side] and self.asked[side]:
            (kind, value), (wanted, into, work) = self.sent[1 - side].popleft(), self.asked[side].popleft()
            if kind != wanted or (into is not None and into.shape != value.shape):
                with pytest.raises(Mismatch):
                    work.wait(LIMIT)
                continue
            found = work.wait(LIMIT)
            assert found is into or into is None
            assert same(found, value), (found, value)

    def teardown(self) -> None:
        for side in (0, 1):
            while self.sent[1 - side]:
                self.receive(side, self.sent[1 - side][0][0], 1)
        for work in self.sends:
            work.wait(LIMIT)
        for group in getattr(self, "groups", ()):
            group.close()


def play(examples: int, steps: int, **options: Any) -> None:
    with members(2) as found:
        agree(found, 2)
        with Collective(found[0], **options) as one, Collective(found[1], **options) as other:

            class Played(Model):
                collectives = [one, other]
                ids = [member.id for member in found]

            chosen = settings(max_examples=examples, stateful_step_count=steps, suppress_health_check=list(HealthCheck))
            run_state_machine_as_test(Played, settings=chosen)


@pytest.mark.soak  # it finds, now and then, what docs/collective.md says of groups that are closed while their stream is made
def test_random_operations() -> None:
    play(12, 40)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seal", ["headers", "all"])
def test_a_hundred_thousand_random_operations(seal: str) -> None:
    play(500, 100, seal=seal)
