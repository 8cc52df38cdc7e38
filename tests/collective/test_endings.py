"""How groups end, and what is left then: nothing here, no dead group under a name, no message lost with who was interrupted."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from ftlib import AsyncWork, Channel, CollectiveTimeout, GroupClosed, LinkBroken
from ftlib.collective import works
from ftlib.links.incoming import Incoming
from ftlib.links.outgoing import Outgoing
from tests.harness.basics import eventually
from tests.harness.late_device import LateDevice

from .test_devices import GPU
from .test_groups import LIMIT, collectives, two


def fails(group: Any) -> bool:
    """Whether a send says that the group is over."""
    try:
        group.send("word", timeout=LIMIT)
    except (LinkBroken, GroupClosed):
        return True
    return False


@pytest.mark.parametrize("broken", [True, False])
def test_who_only_sends_finds_a_new_group_after_the_end_of_the_old_one(broken: bool) -> None:
    with collectives(2) as (made, ids):
        a, b = (each.create_collective_group(ids) for each in made)
        a.send("first", timeout=LIMIT)
        assert b.recv(timeout=LIMIT) == "first"
        if broken:
            link = b.lane(ids[0]).link
            assert link is not None
            link.fail(LinkBroken("a cable was cut"))
        else:
            b.close()
        eventually(lambda: fails(a), "it hears of the end")
        again = [each.create_collective_group(ids) for each in made]
        assert again[0] is not a and a.over is not None
        again[0].send("second", timeout=LIMIT)
        assert again[1].recv(timeout=LIMIT) == "second"


def test_what_a_peer_sent_before_it_closed_keeps_the_group() -> None:
    with collectives(2) as (made, ids):
        a, b = (each.create_collective_group(ids) for each in made)
        a.send("kept", timeout=LIMIT)
        a.close()
        lane = b.lane(ids[0])
        eventually(lambda: lane.link is not None and lane.link.closed, "it has closed")
        assert made[1].create_collective_group(ids) is b and b.over is None
        assert b.recv(timeout=LIMIT) == "kept"
        assert isinstance(b.over, GroupClosed) and made[1].create_collective_group(ids) is not b


def test_who_left_leaves_no_group_behind() -> None:
    """It has closed its streams before: there is nothing to wait for, or it has been received, when the next group is made."""
    with collectives(4) as (made, ids):
        for left, kept in ((1, False), (2, True)):
            here, there = (each.create_collective_group([ids[0], ids[left]]) for each in (made[0], made[left]))
            there.send("they have met", timeout=LIMIT)
            assert here.recv(timeout=LIMIT)
            if kept:
                there.send("the last word", timeout=LIMIT)
            made[left].close()
            made[left]._x.stop()  # type: ignore[union-attr]
            eventually(lambda gone=made[left].here: gone not in made[0]._x.get_member_list(), "it is no member any more")  # type: ignore[union-attr, misc]
            if kept:
                assert here.recv(timeout=LIMIT) == "the last word"
            else:
                eventually(lambda: not made[0]._groups, "nothing is left of it")
        made[0].create_collective_group([ids[0], ids[3]])
        assert len(made[0]._groups) == 1


def test_a_close_waits_for_what_still_waits_for_the_gpu() -> None:
    """Its goodbye came first, and what was sent was lost."""
    device = LateDevice(0, lambda tensor: tensor.dtype is GPU)
    with device.placed(), two() as (a, b):
        a.send("they have met", timeout=LIMIT)
        assert b.recv(timeout=LIMIT)
        held = threading.Event()
        lane = a.lane(b.here.id)
        lane._leaving.put(lambda: held.wait(LIMIT) and None)  # the device is busy
        tensor = torch.zeros(1000, dtype=GPU)
        device.enqueue(partial(tensor.fill_, 7), tensor)
        sent = a.send_tensor(tensor, async_op=True)
        closing = threading.Thread(target=a.close, args=(LIMIT,))
        closing.start()
        eventually(lambda: len(lane._leaving._tasks) > 1 or a.over is not None, "it waits, or has ended")
        held.set()
        assert float(b.recv_tensor(torch.zeros(1000, dtype=GPU), timeout=LIMIT)[-1]) == 7
        closing.join(LIMIT)
        sent.wait(LIMIT)


def in_child(call: Callable[[], object]) -> int:
    """How a forked child ends that calls this, and then exits as programs do."""
    child = os.fork()
    if not child:
        code = 1
        try:
            call()
            code = 0
        except BaseException:  # noqa: BLE001 - the child must not go on as another pytest
            traceback.print_exc()
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("ring", [True, False], ids=["ring", "tcp"])
def test_a_forked_child_touches_no_stream(ring: bool) -> None:
    """The memory of a ring is not there: who wrote to it was killed by SIGSEGV, also one that only exits."""
    with collectives(2) as (made, ids):
        for each in made:
            each._loop.ring = ring
        a, b = (each.create_collective_group(ids) for each in made)
        served, far = Channel(made[0], "q"), Channel(made[1], "q", at=made[0].here)
        a.send("they have met", timeout=LIMIT)
        assert b.recv(timeout=LIMIT)
        far.put("an item", timeout=LIMIT)

        def used() -> None:
            for call in (
                lambda: a.send(1, timeout=LIMIT),
                lambda: a.recv(timeout=LIMIT),
                lambda: a.broadcast(1, timeout=LIMIT),
                lambda: made[0].create_collective_group(ids),
                lambda: made[0].create_collective_group(ids, "other"),
                lambda: served.get(timeout=LIMIT),
                lambda: far.get(timeout=LIMIT),
                lambda: Channel(made[0], "other"),
            ):
                with pytest.raises(GroupClosed, match="forked"):
                    call()
            link = a.lane(ids[1]).link
            assert link is not None
            if ring:
                assert link._path.write([memoryview(b"word")]) == 0, "there is no memory to write to"
            a.close()
            served.close()
            far.close()
            made[0]._at_exit()
            made[0].close()

        assert in_child(used) == 0
        a.send("it goes on", timeout=LIMIT)
        assert b.recv(timeout=LIMIT) == "it goes on" and served.get(timeout=LIMIT) == "an item"


def test_callbacks_run_in_a_forked_child() -> None:
    """It counted the parent's idle threads as its own, and a lock that one of the parent's threads held stayed held."""
    ran = threading.Event()
    works.CALLBACKS.submit(ran.set)
    assert ran.wait(LIMIT)
    eventually(lambda: works.CALLBACKS._idle, "a thread waits for the next callback")
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with works._SETTLING:
            held.set()
            release.wait(LIMIT)

    def called() -> None:
        outcome = works.Outcome()
        following = AsyncWork(outcome).then(lambda value: value + 1)
        outcome.settle(1)
        assert following.wait(5.0) == 2

    def within_a_while() -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10)  # a lock that nobody gives back has no time-out
        called()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(LIMIT)
        assert in_child(within_a_while) == 0
    finally:
        release.set()
        thread.join()
    called()


@pytest.mark.parametrize("by", ["the channel", "the collective"])
def test_who_waits_at_the_server_of_a_channel_hears_of_its_end(by: str) -> None:
    """As everybody else does: it waited for its whole time-out, and could go on putting."""
    with collectives(2) as (made, _):
        here, far = Channel(made[0], "q", maxsize=1), Channel(made[1], "q", at=made[0].here)
        here.put("the only one", key="full", timeout=LIMIT)
        waiting = [here.get(async_op=True), here.put("no room", key="full", async_op=True), far.get(async_op=True)]
        far.qsize()
        if by == "the channel":
            here.close()
        else:
            made[0].close()
        for work in waiting:
            with pytest.raises(GroupClosed):
                work.wait(LIMIT)
        for call in (partial(here.put, "lost"), here.get_nowait, here.qsize):
            with pytest.raises(GroupClosed, match="the channel 'q' was closed here"):
                call()
        if by == "the channel":
            again = Channel(made[0], "q")
            again.put("of the next one", timeout=LIMIT)
            assert again.get(timeout=LIMIT) == "of the next one"


def test_groups_of_one_name_are_counted_together() -> None:
    with collectives(3) as (made, ids):
        for other in (1, 2):
            groups = [made[each].create_collective_group([ids[0], ids[other]], "weights") for each in (0, other)]
            groups[0].send(1, timeout=LIMIT)
            assert groups[1].recv(timeout=LIMIT) == 1
        facts = made[0].facts()
        assert list(facts) == ["weights"] and (facts["weights"]["peers"], facts["weights"]["operations"]) == (2, 2)


def interrupted(owner: type, name: str, monkeypatch: pytest.MonkeyPatch, thread: int) -> None:
    """The next call of ``name`` on ``thread`` is interrupted, as by Ctrl-C."""
    real = getattr(owner, name)

    def raises(self: Any, *args: Any, **options: Any) -> Any:
        if threading.get_ident() == thread:
            monkeypatch.setattr(owner, name, real)
            raise KeyboardInterrupt
        return real(self, *args, **options)

    monkeypatch.setattr(owner, name, raises)


@pytest.mark.parametrize(("owner", "name"), [(Incoming, "_match"), (Outgoing, "_write")])
def test_ctrl_c_in_the_middle_of_a_message_breaks_the_link_and_nobody_waits_for_ever(
    owner: type, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that reads or writes had the turn for ever."""
    with two() as (a, b):
        a.send("they have met", timeout=LIMIT)
        assert b.recv(timeout=LIMIT)
        pending = [group.recv(async_op=True) for group in (a, b)]
        link = a.lane(b.here.id).link
        eventually(link._turn.take, "the loop does not read: it is this thread's turn")
        link._interest()
        try:
            if owner is Incoming:
                b.send("word", timeout=LIMIT)
            interrupted(owner, name, monkeypatch, threading.get_ident())
            with pytest.raises(KeyboardInterrupt):
                link.catch_up(LIMIT) if owner is Incoming else a.send("word", timeout=LIMIT)
        finally:
            link._turn.hand_back()
        for work in pending:
            with pytest.raises((LinkBroken, GroupClosed)):
                work.wait(LIMIT)
        eventually(lambda: fails(a) and fails(b), "both hear of it")
        assert link._in.rest(LIMIT), "nobody reads any more"


def test_ctrl_c_while_a_receive_waits_leaves_its_message_to_the_next() -> None:
    main = threading.main_thread().ident
    assert main == threading.get_ident() and sys.platform == "linux"
    with two() as (a, b):
        a.send("they have met", timeout=LIMIT)
        assert b.recv(timeout=LIMIT)
        link = b.lane(a.here.id).link
        assert link is not None

        def interrupt() -> None:
            eventually(lambda: link._turn.taken, "it waits")
            signal.pthread_kill(main, signal.SIGINT)

        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        helper = threading.Thread(target=interrupt)
        helper.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                b.recv(timeout=LIMIT)
        finally:
            helper.join(LIMIT)
            signal.signal(signal.SIGINT, before)
        a.send("next", timeout=LIMIT)
        assert b.recv(timeout=LIMIT) == "next"
        with pytest.raises(CollectiveTimeout):
            b.recv(timeout=0.01)
