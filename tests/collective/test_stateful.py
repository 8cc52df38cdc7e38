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

from ftlib import AsyncWork, Collective, CollectiveGroup, CollectiveTimeout, GroupClosed, Mismatch
from tests.consensus.group import agree, members

from .kinds import same, values

LIMIT = 60.0
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
        self.name = f"group {next(NUMBERS)}"  # one that no group had before
        self.groups = [self.made(side) for side in (0, 1)]

    def made(self, side: int) -> CollectiveGroup:
        return self.collectives[side].create_collective_group(self.ids, self.name)

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

    @rule(side=SIDES, at_once=st.booleans(), value=st.none() | values)
    def close(self, side: int, at_once: bool, value: Any) -> None:
        """A group is closed at one side, maybe before it has a stream, and made again by its name, there first or not.

        What that side had sent is received, all that is pending ends at both, and nothing of it reaches the next group.
        """
        other = 1 - side
        while self.sent[other]:  # it would be lost
            self.receive(side, self.sent[other][0][0], 1)
        self.groups[side].close(LIMIT)
        old = self.groups[other]
        if at_once:
            self.groups[side] = self.made(side)
            early = None if value is None else self.groups[side].send(value, async_op=True)
        while self.sent[side]:
            self.receive(other, self.sent[side][0][0], 1)
        for each in (0, 1):
            for _, _, work in self.asked[each]:
                with pytest.raises(GroupClosed):
                    work.wait(LIMIT)
            self.asked[each].clear()
        old.close(LIMIT)
        self.groups = [self.made(0), self.made(1)]
        if at_once and early is not None:
            self.sends.append(early)
            self.sent[side].append(("send", value))

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


def play(examples: int, steps: int, *, drawn: bool = False, **options: Any) -> None:
    """``drawn``: others in each run; else the same ones."""
    with members(2) as found:
        agree(found, 2)
        with Collective(found[0], **options) as one, Collective(found[1], **options) as other:
            first, second = (each.create_collective_group([member.id for member in found]) for each in (one, other))
            sent = first.send("they have met", async_op=True)
            assert second.recv(timeout=LIMIT) and sent.wait(LIMIT) is None

            class Played(Model):
                collectives = [one, other]
                ids = [member.id for member in found]

            chosen = settings(
                max_examples=examples,
                stateful_step_count=steps,
                suppress_health_check=list(HealthCheck),
                deadline=None,  # also where no conftest says so: a busy machine is not a failure
                derandomize=not drawn,
                print_blob=drawn,
            )
            run_state_machine_as_test(Played, settings=chosen)


def test_random_operations() -> None:
    play(12, 40)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seal", ["headers", "all"])
def test_a_hundred_thousand_random_operations(seal: str) -> None:
    play(500, 100, drawn=True, seal=seal)
