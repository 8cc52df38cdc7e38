"""Groups of members in this process: names, order, memory, endings. Deaths of processes: ``test_deaths``."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from consensus import Member, Stream
from ftlib import AsyncWork, Channel, Collective, CollectiveTimeout, ConfigError, GroupClosed, Mismatch, PeerLost, Refused
from ftlib.collective.frames import Sort, outgoing
from ftlib.collective.lane import Lane, Terms
from ftlib.collective.operations import Arrival, Receive
from ftlib.collective.values import Classes, encode_leaf
from tests.consensus.group import agree, members
from tests.harness.basics import eventually

LIMIT = 120.0


@contextmanager
def collectives(count: int, **options: Any) -> Iterator[tuple[list[Collective], list[str]]]:
    with members(count) as found, ExitStack() as stack:
        agree(found, count)
        made = [stack.enter_context(Collective(member, **options)) for member in found]
        yield made, [member.id for member in found]


@contextmanager
def two(**options: Any) -> Iterator[tuple[Any, Any]]:
    with collectives(2, **options) as (made, ids):
        yield made[0].create_collective_group(ids), made[1].create_collective_group(ids[::-1])


@pytest.mark.parametrize("limit", [float("inf"), 1e10, 30 * 86400])
def test_a_receive_may_wait_for_longer_than_the_system_waits_at_once(limit: float) -> None:
    with two() as (a, b):
        for said in ("before there is a stream", "and after"):
            threading.Timer(0.1, a.send, [said]).start()
            assert b.recv(timeout=limit) == said
        a.close(limit)


def test_groups_are_found_by_set_and_name() -> None:
    with collectives(3) as (made, ids):
        here = made[0]
        group = here.create_collective_group(ids[:2])
        address = "{}:{}".format(*made[1].here.address)
        assert (
            group
            is here.create_collective_group([made[1].here, made[0].here])
            is here.create_collective_group([address, ids[0]])
        )
        assert group is not here.create_collective_group(ids[:2], "other") is here.create_collective_group(ids[:2], "other")
        with pytest.raises(Refused, match="nobody is no member: there are"):
            here.create_collective_group([ids[0], "nobody"])
        with pytest.raises(Refused, match="needs this member"):
            here.create_collective_group(ids[1:])
        with pytest.raises(Refused, match=r"not begin with .channel:"):
            here.create_collective_group(ids[:2], "channel:x")
        assert [member.id for member in group.members] == ids[:2] and group.rank == 0
        with pytest.raises(Refused, match="groups of two"):
            here.create_collective_group(ids).send(1)
        group.close()
        again = here.create_collective_group(ids[:2])
        assert again is not group
        with pytest.raises(GroupClosed, match="closed here"):
            group.send(1)


@pytest.mark.parametrize("first", [0, 1])
def test_either_side_may_be_first(first: int) -> None:
    with two() as groups:
        work = groups[first].recv(async_op=True)
        time.sleep(0.1)
        groups[1 - first].send("here", timeout=LIMIT)
        assert work.wait(LIMIT) == "here"


def test_both_at_once_find_one_stream() -> None:
    for _ in range(10):
        with two() as groups:
            works = [group.send(number, async_op=True) for number, group in enumerate(groups)]
            assert [group.recv(timeout=LIMIT) for group in groups] == [1, 0]
            for work in works:
                work.wait(LIMIT)
            for group in groups:
                assert [each["sent"] for each in group.describe()["peers"].values()] != [0]


def test_a_stream_that_comes_once_its_collective_is_closed_is_dropped() -> None:
    """Neither the thread that dials nor the one that accepts raises: pytest would make a failure of it."""
    with members(2) as found:
        agree(found, 2)
        ids = [member.id for member in found]
        made = [Collective(member) for member in found]
        made[1]._leave(GroupClosed("this side does not accept"))
        assert found[1]._host is not None
        found[1]._host._acceptors._ended.clear()  # as if it never had: the stream waits there until somebody does
        work = made[0].create_collective_group(ids).recv(async_op=True)
        eventually(lambda: bool(made[0].meeting._dialling), "it dials")
        made[0].close(0.0)
        with pytest.raises(GroupClosed):
            work.wait(LIMIT)
        found[1].accept("/collective", made[1].meeting.incoming)
        eventually(lambda: not made[0].meeting._dialling, "the stream has come")
        made[1].close(0.0)
        near, _far = socket.socketpair()
        with _far:
            made[1].meeting.incoming(Stream(near, bytes(32), made[0].here, dialled=False, here=made[1].here))
            assert near.fileno() < 0, "closed"


@pytest.mark.parametrize("kept", [False, True])
def test_what_was_received_is_freed_with_its_last_name(kept: bool) -> None:
    """At once, not when circles are collected: its memory is used again for the next message."""
    with two() as (a, b):
        gc.disable()
        try:
            for _ in range(2):
                sent = a.send({"weights": [torch.zeros(1 << 18)]}, async_op=True) if kept else None
                got = b.recv(async_op=True)
                sent = sent or a.send({"weights": [torch.zeros(1 << 18)]}, async_op=True)
                value = got.wait(LIMIT)
                sent.wait(LIMIT)
                weights = weakref.ref(value["weights"][0])
                del value, got
                eventually(lambda weights=weights: weights() is None, "nobody else has it")
        finally:
            gc.enable()


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("given", [1 << 10, 1 << 18])
def test_the_tensors_that_were_given_are_freed_with_their_last_name(given: int, early: bool) -> None:
    """Those of both ends, and whichever was there first: a GPU's memory would soon be used up."""
    with two() as (a, b):
        gc.disable()
        try:
            for _ in range(2):
                row, into = torch.ones(given), torch.zeros(given)
                got = b.recv_tensor(into, async_op=True) if early else None
                sent = a.send_tensor(row, async_op=True)
                got = got or b.recv_tensor(into, async_op=True)
                got.wait(LIMIT)
                sent.wait(LIMIT)
                kept = [weakref.ref(row), weakref.ref(into)]
                del row, into, got, sent
                eventually(lambda kept=kept: not any(each() is not None for each in kept), "nobody else has them")
        finally:
            gc.enable()


def test_what_a_member_sent_before_it_left_is_read_on_a_machine_that_is_too_busy() -> None:
    """The thread that should have read it does not come to run: what has arrived counts all the same."""
    with collectives(2) as (made, ids):
        for each in made:
            each._loop.ring = False  # a ring is read at the end of the stream beside it
        a, b = (each.create_collective_group(ids) for each in made)
        a.send("they have met", timeout=LIMIT)
        assert b.recv(timeout=LIMIT)
        link = b.lane(ids[0]).link
        assert link is not None
        eventually(link._turn.take, "that thread reads, it is said")
        link._interest()
        pending = [b.recv(async_op=True) for _ in range(2)]
        a.send("the last word", timeout=LIMIT)
        a.close()
        made[1]._lost(a.here, "it has left")
        try:
            assert pending[0].wait(LIMIT) == "the last word"
            with pytest.raises(GroupClosed):
                pending[1].wait(LIMIT)
        finally:
            link._turn.hand_back()


def test_who_dials_a_collective_that_is_closed_is_told() -> None:
    """The member lives: whoever comes late must not wait for it, nor who came before and whose group was not made there."""
    with collectives(2) as (made, ids):
        early = made[0].create_collective_group(ids, "early")
        early.send("taken into the buffer", timeout=LIMIT)
        eventually(lambda: bool(made[1].meeting._unclaimed), "its stream waits there for the group")
        pending = early.recv(async_op=True)
        made[1].close()
        with pytest.raises(GroupClosed):
            pending.wait(LIMIT)
        with pytest.raises(GroupClosed, match="has closed its Collective"):
            made[0].create_collective_group(ids, "late").recv(timeout=LIMIT)
        with pytest.raises(GroupClosed, match="has closed its Collective"):
            Channel(made[0], "late", at=ids[1]).get(timeout=LIMIT)


def test_the_next_group_does_not_overtake_the_last_word_about_the_one_before() -> None:
    """The peer has sent, closed and made the group again before its last word on the first stream is read here."""
    with collectives(2) as (made, ids):
        groups = [each.create_collective_group(ids) for each in made]
        groups[0].send("they have met", timeout=LIMIT)
        assert groups[1].recv(timeout=LIMIT)
        a, b = (each.create_collective_group(ids, "again") for each in made)
        read, held = made[1].meeting._await_last_word, list[Any]()
        made[1].meeting._await_last_word = lambda *args: held.append(args)  # type: ignore[method-assign]
        first = a.send("first", async_op=True)
        eventually(lambda: bool(held), "its stream has come")
        first.wait(LIMIT)
        a.close()
        second = made[0].create_collective_group(ids, "again").send("second", async_op=True)
        eventually(lambda: bool(made[1].meeting._unclaimed), "the stream of the next one has come")
        handled = threading.Event()
        made[1]._loop.later(0.0, handled.set)  # on the thread that reads: after what it does about that stream
        assert handled.wait(LIMIT)
        made[1].meeting._await_last_word = read  # type: ignore[method-assign]
        read(*held[0])
        assert b.recv(timeout=LIMIT) == "first"
        with pytest.raises(GroupClosed):
            b.recv(timeout=LIMIT)
        assert made[1].create_collective_group(ids, "again").recv(timeout=LIMIT) == "second"
        second.wait(LIMIT)


def test_a_second_stream_that_is_declined_does_not_end_the_first() -> None:
    """Both dial; the peer uses its own stream, sends, closes, and declines ours as closed before its last word is read here."""
    with collectives(2) as (found, ids):
        made = sorted(found, key=lambda each: each.here.id)  # the stream of the first one holds
        groups = [each.create_collective_group(ids) for each in made]
        groups[0].send("they have met", timeout=LIMIT)
        assert groups[1].recv(timeout=LIMIT)
        a, b = (each.create_collective_group(ids, "again") for each in made)
        meeting = made[1].meeting
        read, held, dial, may_dial = meeting._await_last_word, list[Any](), meeting._dial, threading.Event()
        meeting._await_last_word = lambda *args: held.append(args)  # type: ignore[method-assign]
        meeting._dial = lambda lane: dial(lane) if may_dial.wait(LIMIT) else None  # type: ignore[method-assign]
        pending = b.recv(async_op=True)
        eventually(lambda: bool(meeting._dialling), "this side dials")
        works = [a.send(number, async_op=True) for number in range(3)]
        eventually(lambda: bool(held), "the peer's stream has come")
        for work in works:
            work.wait(LIMIT)
        a.close()
        may_dial.set()
        eventually(lambda: not meeting._dialling, "ours was declined")
        meeting._await_last_word = read  # type: ignore[method-assign]
        read(*held[0])
        assert [pending.wait(LIMIT), b.recv(timeout=LIMIT), b.recv(timeout=LIMIT)] == [0, 1, 2]


def test_the_first_making_here_is_not_taken_for_the_second_there() -> None:
    """A group that was closed there is found closed, though a stream for the next one waits already."""
    with collectives(2) as (made, ids):
        groups = [each.create_collective_group(ids) for each in made]
        groups[0].send("they have met", timeout=LIMIT)
        assert groups[1].recv(timeout=LIMIT)
        made[0].create_collective_group(ids, "again").close()
        made[0].create_collective_group(ids, "again").send("of the second", timeout=LIMIT)
        eventually(lambda: made[1].meeting._unclaimed, "its stream waits")
        with pytest.raises(GroupClosed):
            made[1].create_collective_group(ids, "again").recv(timeout=LIMIT)
        assert made[1].create_collective_group(ids, "again").recv(timeout=LIMIT) == "of the second"


def test_a_stream_for_a_group_that_is_closed_unused_is_told_so() -> None:
    with collectives(2) as (made, ids):
        works = [made[0].create_collective_group(ids, f"{number}").recv(async_op=True) for number in range(3)]
        eventually(lambda: len(made[1].meeting._unclaimed) == 3, "their streams wait")
        for number in range(3):
            made[1].create_collective_group(ids, f"{number}").close()
        for work in works:
            with pytest.raises(GroupClosed, match="has closed the link"):
                work.wait(LIMIT)
        assert not made[1].meeting._unclaimed


def test_messages_wait_for_a_group_that_is_made_later() -> None:
    with collectives(2) as (made, ids):
        for round_ in range(3):
            group = made[0].create_collective_group(ids)
            group.send(round_, timeout=LIMIT)
            group.close()
        for round_ in range(3):
            group = made[1].create_collective_group(ids)
            assert group.recv(timeout=LIMIT) == round_, "one group after the other"
            with pytest.raises(GroupClosed, match="has closed the link"):
                group.recv(timeout=LIMIT)


def test_tensors_arrive_in_their_memory() -> None:
    with two() as (a, b):
        for value in (torch.randn(1000), torch.tensor(3, dtype=torch.bfloat16), torch.empty(0, 3), np.arange(7, dtype="<i2")):
            into = torch.zeros_like(value) if isinstance(value, torch.Tensor) else np.zeros_like(value)
            sent = a.send_tensor(value, async_op=True)
            assert b.recv_tensor(into, timeout=LIMIT) is into
            sent.wait(LIMIT)
            assert (into == value).all()
        parameter = torch.nn.Parameter(torch.zeros(3))
        a.send_tensor(torch.ones(3), timeout=LIMIT)
        assert b.recv_tensor(parameter, timeout=LIMIT).sum() == 3


def test_what_does_not_pair_up_is_the_receivers_mismatch_alone() -> None:
    with two() as (a, b):
        a.send_tensor(torch.ones(3), async_op=True)
        a.send("second", async_op=True)
        a.send_tensor(torch.ones(2, 2), async_op=True)
        a.broadcast("fourth", a.members[0], async_op=True)
        a.send("last", timeout=LIMIT)
        with pytest.raises(Mismatch, match=r"recv in group .*the peer called send_tensor"):
            b.recv(timeout=LIMIT)
        with pytest.raises(Mismatch, match="the peer called send:"):
            b.recv_tensor(torch.empty(1), timeout=LIMIT)
        with pytest.raises(Mismatch, match="use equal dtypes and shapes"):
            b.recv_tensor(torch.empty(4), timeout=LIMIT)
        with pytest.raises(Mismatch, match="the peer called broadcast"):
            b.recv(timeout=LIMIT)
        assert b.recv(timeout=LIMIT) == "last"


def test_refusals_come_at_the_call() -> None:
    with two(max_bytes="1 MiB") as (a, b):
        a.send(1, timeout=LIMIT)
        b.recv(timeout=LIMIT)
        for call in (
            lambda: a.send({1}, async_op=True),
            lambda: a.send_tensor(torch.ones(4, 4).t(), async_op=True),
            lambda: a.send_tensor("no tensor", async_op=True),
            lambda: a.recv_tensor(torch.ones(4, 4).t(), async_op=True),
            lambda: a.recv_tensor(np.frombuffer(bytes(64)), async_op=True),
            lambda: a.recv_tensor(torch._neg_view(torch.zeros(4)), async_op=True),
            lambda: a.send(torch.zeros(1 << 19), async_op=True),
            lambda: a.broadcast(1, "somebody"),
        ):
            with pytest.raises(Refused) as refused:
                call()
            assert isinstance(refused.value, ValueError)
        a.send("fine", timeout=LIMIT)
        assert b.recv(timeout=LIMIT) == "fine"


@contextmanager
def strict_third() -> Iterator[list[Any]]:
    """Three members' part of one group; the last one takes no pickle."""
    with members(3) as found, ExitStack() as stack:
        agree(found, 3)
        made = [stack.enter_context(Collective(each, allow_pickle=each is not found[2])) for each in found]
        yield [each.create_collective_group([each.member.id for each in found]) for each in made]


def test_a_broadcast_that_one_peer_refuses_is_sent_to_none() -> None:
    with strict_third() as groups:
        source = groups[0].here
        works = [group.broadcast(None, source, async_op=True) for group in groups[1:]]
        groups[0].broadcast("all have met", source, timeout=LIMIT)
        assert [work.wait(LIMIT) for work in works] == ["all have met"] * 2
        for async_op in (False, True):
            with pytest.raises(Refused, match=r"broadcast in group .*needs pickle"):
                groups[0].broadcast({1, 2}, source, async_op=async_op, timeout=LIMIT)
        groups[0].broadcast("next", source, timeout=LIMIT)
        assert [group.broadcast(None, source, timeout=LIMIT) for group in groups[1:]] == ["next"] * 2


def test_a_broadcast_that_turns_out_to_be_refused_has_its_turn_there() -> None:
    """What the third one takes is known once its stream is there: the second one has the value by then."""
    with strict_third() as groups:
        source = groups[0].here
        first = groups[0].broadcast({1, 2}, source, async_op=True)
        assert groups[1].broadcast(None, source, timeout=LIMIT) == {1, 2}
        with pytest.raises(Mismatch, match="could not be sent here"):
            groups[2].broadcast(None, source, timeout=LIMIT)
        with pytest.raises(Refused, match="needs pickle"):
            first.wait(LIMIT)
        groups[0].broadcast("next", source, timeout=LIMIT)
        assert [group.broadcast(None, source, timeout=LIMIT) for group in groups[1:]] == ["next"] * 2


class Unreadable(torch.Tensor):
    """Found out when its bytes are taken, not when it is given."""

    def numpy(self, **_: Any) -> Any:
        raise RuntimeError("it has no memory")


@pytest.mark.parametrize("met", [False, True])
def test_what_cannot_be_read_does_not_stop_those_behind_it(met: bool) -> None:
    """Before the stream was there it kept the thread from handing over what was queued, for good."""
    with two() as (a, b):
        if met:
            a.send("they have met", timeout=LIMIT)
            assert b.recv(timeout=LIMIT)
        strange = torch.ones(3).as_subclass(Unreadable)
        if met:
            for async_op in (False, True):
                with pytest.raises(Refused, match=r"it cannot be sent: .*it has no memory"):
                    a.send(strange, async_op=async_op)
        else:
            works = [a.send(strange, async_op=True), a.broadcast(strange, a.here, async_op=True)]
            a.send("next", async_op=True)
            with pytest.raises(Mismatch, match="could not be sent here"):
                b.broadcast(None, a.here, timeout=LIMIT)
            for work in works:
                with pytest.raises(Refused, match=r"it cannot be sent: .*it has no memory"):
                    work.wait(LIMIT)
        a.send("last", timeout=LIMIT)
        assert [b.recv(timeout=LIMIT) for _ in range(2 - met)] == ["next", "last"][met:]


def test_a_first_word_that_is_too_long_ends_the_group() -> None:
    """It was raised at nobody, and the group waited for its stream."""
    with collectives(2) as (made, ids):
        with pytest.raises(Refused, match="give shorter ones"):
            made[0]._group(ids, "n" * 70_000).recv(timeout=LIMIT)
        assert not made[0].meeting._dialling


def test_groups_that_were_closed_take_no_other_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams whose group was not made here wait, so many of each peer: but not those with nothing to read."""
    monkeypatch.setattr("ftlib.collective.greeting._UNCLAIMED", 3)
    with collectives(3) as (made, ids):

        def group(name: str, value: Any = None, number: int = 1) -> Any:
            made_ = made[number].create_collective_group([ids[0], ids[number]], name)
            if value is None:
                made_.recv(async_op=True)
                eventually(lambda: made_.lane(ids[0]).link is not None, "its stream waits there")
            else:
                made_.send(value, timeout=LIMIT)
            return made_

        for number in range(3):
            group(f"empty {number}").close()
        eventually(lambda: len(made[0].meeting._unclaimed) == 3, "they wait")
        eventually(lambda: all(each.over for each in made[0].meeting._unclaimed), "their ends are there")
        for number in range(3):
            group(f"{number}", number).close()
        with pytest.raises(Refused, match=r"3 streams from here wait there for .*'0'"):
            group("one more", 3)
        group("another's", 4, 2)
        for number in range(3):
            assert made[0].create_collective_group(ids[:2], f"{number}").recv(timeout=LIMIT) == number
        assert made[0].create_collective_group([ids[0], ids[2]], "another's").recv(timeout=LIMIT) == 4
        for number in range(3):
            with pytest.raises(GroupClosed):
                made[0].create_collective_group(ids[:2], f"empty {number}").recv(timeout=LIMIT)


def test_a_receive_that_timed_out_leaves_its_message_to_the_next() -> None:
    with two() as (a, b):
        a.send(0, timeout=LIMIT)
        assert b.recv(timeout=LIMIT) == 0
        for _ in range(3):
            with pytest.raises(CollectiveTimeout, match=r"it waits for .*last heard of") as late:
                b.recv(timeout=0.02)
            assert late.value.peer == a.here and late.value.operation == "recv"
        pending = b.recv(async_op=True)
        with pytest.raises(CollectiveTimeout):
            pending.wait(0.02)
        a.send(1, timeout=LIMIT)
        a.send(2, timeout=LIMIT)
        assert [pending.wait(LIMIT), b.recv(timeout=LIMIT)] == [1, 2]


def test_the_time_of_a_receive_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that waits reads first, then sleeps: both within ``timeout``."""
    rests = []

    class Noted(AsyncWork):
        def __init__(self, *args: Any, timeout: float | None = None, **options: Any) -> None:
            rests.append(timeout)
            super().__init__(*args, timeout=timeout, **options)

    monkeypatch.setattr("ftlib.collective.group.AsyncWork", Noted)
    with two() as (a, b):
        a.send("here", timeout=LIMIT)
        assert b.recv(timeout=LIMIT) == "here"
        rests.clear()
        with pytest.raises(CollectiveTimeout):
            b.recv(timeout=0.5)
    assert rests and rests[-1] < 0.4


def test_the_state_of_a_module_is_plain_data() -> None:
    ours, theirs = torch.nn.Linear(2, 3), torch.nn.Linear(2, 3)
    with two() as (a, b):
        a.send({"step": 7, "weights": ours.state_dict()}, timeout=LIMIT)
        theirs.load_state_dict(b.recv(timeout=LIMIT)["weights"])
    assert torch.equal(ours.weight, theirs.weight)


def test_a_tensor_that_was_taken_back_while_it_came_is_whole_for_the_next_receive() -> None:
    lane = Lane("g", Member("a" * 16, "127.0.0.1", 1), Terms(allow_pickle=False, max_bytes=1 << 20), lambda _: None, seal=False)
    sent, given, next_given = torch.arange(9.0), torch.zeros(9), torch.zeros(9)
    frame = outgoing(Sort.TENSOR, [], encode_leaf(sent))
    for asked in ("send_tensor", "send"):
        first = lane.receive(Receive(lane, "recv_tensor", Sort.TENSOR, None, given))
        arrival = Arrival(lane)
        places = arrival.place(frame.header)
        assert places is not None
        lane.withdraw(first)
        sort, into = (Sort.TENSOR, next_given) if asked == "send_tensor" else (Sort.OBJECT, None)
        second = lane.receive(Receive(lane, "receive", sort, Classes(), into))
        places[0][:] = frame.payload[0]
        arrival.done(frame.header, None)
        given.fill_(-1)  # it is the program's again
        with pytest.raises(CollectiveTimeout):
            AsyncWork(first.outcome, first.finish).wait(LIMIT)
        work = AsyncWork(second.outcome, second.finish)
        if sort is Sort.TENSOR:
            assert work.wait(LIMIT) is next_given and bool((next_given == sent).all())
        else:
            with pytest.raises(Mismatch, match="the peer called send_tensor"):
                work.wait(LIMIT)


def slow(path: Any, first: int, rest: threading.Event) -> None:
    """It takes so many bytes at first, and the rest once that is set."""
    write, left = path.write, [first]

    def writes(views: list[memoryview]) -> int:
        if rest.is_set():
            return int(write(views))
        room, pieces = left[0], []
        for view in views:
            pieces.append(view[:room])
            room -= len(pieces[-1])
        count = int(write([piece for piece in pieces if piece])) if left[0] else 0
        left[0] -= count
        return count

    path.write = writes


@pytest.mark.parametrize(("ring", "seal"), [(True, "headers"), (False, "headers"), (False, "all")])
@pytest.mark.parametrize("kind", ["tensor", "array", "object"])
def test_memory_is_the_programs_again_once_its_receive_was_taken_back(ring: bool, seal: str, kind: str) -> None:
    """Half of the message was there, and the rest came into memory that was used for something else by then."""
    with collectives(2, seal=seal) as (made, ids):
        for each in made:
            each._loop.ring = ring
        a, b = (each.create_collective_group(ids) for each in made)
        a.send("they have met", timeout=LIMIT)
        assert b.recv(timeout=LIMIT)
        link = b.lane(ids[0]).link
        assert link is not None
        eventually(link._turn.take, "the loop does not read: it is this thread's turn")
        link._interest()
        sent = torch.arange(20_000_000 // 8, dtype=torch.int64)
        into: Any = torch.zeros_like(sent) if kind != "array" else np.zeros(sent.shape, np.int64)
        late = b.recv_tensor(into, async_op=True, timeout=0.001)
        sender, rest = a.lane(ids[1]).link, threading.Event()
        assert sender is not None
        out = sender._out
        slow(out._path, 1 << 20, rest)
        work = a.send_tensor(sent if kind != "array" else sent.numpy(), async_op=True)
        eventually(lambda: link._in.pump(news=True) and link._in._left > 0, "it has begun to arrive")
        before = link._in._left
        assert 0 < before <= 20_000_000
        with pytest.raises(CollectiveTimeout):
            late.wait()
        into[:] = -1
        link._turn.hand_back()
        rest.set()
        out.flush()
        sender._interest()  # as whoever writes does: the loop may have looked between two frames, when nothing was blocked
        if kind == "object":
            with pytest.raises(Mismatch, match="the peer called send_tensor"):
                b.recv(timeout=LIMIT)
        else:
            found = b.recv_tensor(torch.zeros_like(sent) if kind == "tensor" else np.zeros_like(into), timeout=LIMIT)
            assert bool((torch.as_tensor(found) == sent).all())
        assert bool((into == -1).all())
        work.wait(LIMIT)


def test_both_may_send_first_and_beyond_the_buffer_the_sender_waits() -> None:
    with two(buffer="1 MiB") as (a, b):
        for group in (a, b):
            group.send(torch.zeros(1000), timeout=LIMIT)
        works = [a.send_tensor(torch.full((1 << 20,), float(number)), async_op=True) for number in range(10)]
        with pytest.raises(CollectiveTimeout, match="it waits for"):
            works[-1].wait(0.3)
        b.recv(timeout=LIMIT)
        for number in range(10):
            assert b.recv_tensor(torch.empty(1 << 20), timeout=LIMIT)[-1] == number, "what is queued goes on"
        works[-1].wait(LIMIT)


def test_threads_keep_each_message_whole() -> None:
    with two() as (a, b):

        def send(number: int) -> None:
            for count in range(30):
                a.send((number, count, torch.full((100,), number)), timeout=LIMIT)

        threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        got = [b.recv(timeout=LIMIT) for _ in range(120)]
        for thread in threads:
            thread.join(LIMIT)
        assert all(bool((tensor == number).all()) for number, _, tensor in got)
        for number in range(4):
            assert [count for sender, count, _ in got if sender == number] == list(range(30))


def test_callbacks_may_use_the_same_group() -> None:
    with two() as (a, b):
        answered = b.recv(async_op=True).then(lambda value: b.send(value + 1))
        again = b.recv(async_op=True).then(lambda _: b.recv(timeout=LIMIT))
        a.send(1, timeout=LIMIT)
        assert a.recv(timeout=LIMIT) == 2
        answered.wait(LIMIT)
        a.send(3, timeout=LIMIT)
        a.send(4, timeout=LIMIT)
        assert again.wait(LIMIT) == 4


async def test_tasks_of_asyncio() -> None:
    with two() as (a, b):
        receives = [asyncio.ensure_future(b.recv(async_op=True).async_wait(LIMIT)) for _ in range(500)]
        for number in range(500):
            await a.send(number, async_op=True)
        assert await asyncio.gather(*receives) == list(range(500))


def test_the_end_of_a_member_ends_its_groups() -> None:
    with members(3) as found:
        agree(found, 3)
        made = [Collective(member) for member in found]
        ids = [member.id for member in found]
        pair, rest = made[0].create_collective_group(ids[:2]), made[0].create_collective_group(ids[::2])
        works = [pair.recv(async_op=True), pair.broadcast(None, ids[1], async_op=True), pair.recv(async_op=True).then(str)]
        made[1].create_collective_group(ids[:2]).send_tensor(torch.zeros(1), async_op=True)
        with pytest.raises(Mismatch):
            works[0].wait(LIMIT)
        found[1].stop()
        for work in works[1:]:
            with pytest.raises(PeerLost, match=r"is no member any more|is gone"):
                work.wait(LIMIT)
        eventually(lambda: len(found[0].get_member_list()) == 2, "the others agree")
        sent = rest.send("on", async_op=True)
        assert made[2].create_collective_group(ids[::2]).recv(timeout=LIMIT) == "on"
        sent.wait(LIMIT)
        with pytest.raises(Refused, match="is no member"):
            made[0].create_collective_group(ids[:2])
        for each in made:
            each.close()
        with pytest.raises(GroupClosed, match="collective was closed"):
            made[0].create_collective_group(ids[::2])


def test_settings_are_checked() -> None:
    with members(1) as found:
        for options in ({"seal": "none"}, {"buffer": "many"}, {"max_bytes": -1}, {"buffer": "3 parsecs"}):
            with pytest.raises(ConfigError):
                Collective(found[0], **options)
        with Collective(found[0], seal="all", buffer=1000, max_bytes="1.5 GB") as made:
            assert made.terms.max_bytes == 1_500_000_000


def test_a_channel_in_one_process() -> None:
    with collectives(2) as (made, _):
        channel = Channel(made[0], "q", maxsize=2)
        tensor = torch.ones(3)
        channel.put({"t": tensor}, weight=1)
        tensor.zero_()
        assert channel.peek_all()[0]["t"].sum() == 3, "the server has a copy"
        far = Channel(made[1], "q", at=made[0].here)
        far.put("second", weight=1)
        assert (far.qsize(), far.full(), channel.full(), far.empty("other")) == (2, True, True, True)
        first, second = far.get_batch(2, timeout=LIMIT)
        assert first["t"].sum() == 3 and second == "second"
        waiting = far.get(async_op=True)
        channel.put(3)
        assert waiting.wait(LIMIT) == 3
        with pytest.raises(ConfigError, match="serves a channel 'q' already"):
            Channel(made[0], "q")
        with pytest.raises(Refused, match="key of an item is a string"):
            far.put(1, key=3)  # type: ignore[arg-type]
        waiting = far.get(async_op=True)
        channel.close()
        with pytest.raises(GroupClosed):
            waiting.wait(LIMIT)
