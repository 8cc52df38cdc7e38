"""Channels of members in this process: time-outs, bounds, what becomes of items that nobody can take, and hostile words."""

from __future__ import annotations

import asyncio
import errno
import queue
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
import torch

from ftlib import Channel, Collective, CollectiveTimeout, GroupClosed, LinkBroken, Refused
from ftlib.collective import works
from ftlib.collective.channel import Verb
from ftlib.collective.frames import Sort
from ftlib.collective.values import Message
from ftlib.links.ring import SIZE as RING
from tests.consensus.group import agree, members
from tests.harness.basics import eventually

from .test_groups import LIMIT, collectives

Pair = tuple[Any, Any]
NOTHING = Message(b"", [], [])


def opened(made: list[Collective], **options: Any) -> Pair:
    """The channel at its server, and a client's."""
    return Channel(made[0], "q", **options), Channel(made[1], "q", at=made[0].here)


def server(made: list[Collective]) -> Any:
    return made[0].services._served["q"].handler.__self__  # type: ignore[attr-defined]


def test_full_and_empty_are_pythons_own() -> None:
    with collectives(2) as (made, _):
        for channel in opened(made, maxsize=1):
            with pytest.raises(queue.Empty):
                channel.get_nowait()
            with pytest.raises(queue.Empty):
                channel.get(timeout=0.02)
            with pytest.raises(queue.Empty):
                channel.get_batch(2, timeout=0.02)
            channel.put_nowait("first")
            with pytest.raises(queue.Full):
                channel.put_nowait("second")
            with pytest.raises(queue.Full):
                channel.put("second", timeout=0.02)
            assert channel.full() and not channel.full("other") and channel.peek_all() == ["first"]
            waiting = channel.put("third", async_op=True)
            assert channel.get_nowait() == "first"
            waiting.wait(LIMIT)
            assert channel.get(timeout=LIMIT) == "third" and channel.empty()


@pytest.mark.parametrize("maxsize", [0, -1, -(1 << 70), sys.maxsize])
def test_any_bound_is_told_to_who_asks_from_elsewhere(maxsize: int) -> None:
    """As in Python's own queues, 0 or less is none."""
    with collectives(2) as (made, _):
        for channel in opened(made, maxsize=maxsize):
            channel.put("item", timeout=LIMIT)
            assert channel.full() is False
        assert channel.qsize() == 2


def test_a_second_close_ends_no_newer_channel_of_that_name() -> None:
    with collectives(2) as (made, _):
        older = opened(made)
        for channel in older:
            channel.close()
        newer = opened(made)
        for channel in older:
            channel.close()
        newer[1].put("there", timeout=LIMIT)
        assert newer[0].get(timeout=LIMIT) == "there"


def test_what_was_looked_at_stays_as_it_is() -> None:
    with collectives(2) as (made, _):
        for channel in opened(made):
            channel.put(torch.ones(3), timeout=LIMIT)
            channel.peek_all()[0].zero_()
            assert channel.get(timeout=LIMIT).sum() == 3


def test_what_is_being_looked_at_elsewhere_is_not_what_a_getter_here_writes_to() -> None:
    """The server's program gets an item, and changes it, while the bytes of a look at it are still on their way."""
    with collectives(2) as (made, _):
        channel, far = opened(made)
        channel.put(torch.ones(2 * RING, dtype=torch.uint8), timeout=LIMIT)
        assert far.qsize() == 1
        lane: Any = made[0].services.lanes()["q"][0]
        link = far._client.lane.link
        eventually(link._turn.take, "that thread reads, it is said: nobody does")
        link._interest()
        try:
            looked = far._ask([Verb.PEEK, "default", None, False], [], list, True)
            eventually(lambda: lane.link.stats.sent_bytes > RING // 2, "a part of the answer is on its way")
            assert lane.link.stats.queued_out, "and the rest waits"
            channel.get(timeout=LIMIT).zero_()
        finally:
            link._turn.hand_back()
        assert looked.wait(LIMIT)[0].all()


def test_an_item_is_acknowledged_though_the_next_request_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The acknowledgement was lost with it: the item went back when the client left, and was delivered twice."""
    monkeypatch.setattr("ftlib.collective.channel._SOON", 0.3)
    with members(2) as found, ExitStack() as stack:
        agree(found, 2)
        made = [stack.enter_context(Collective(found[0])), stack.enter_context(Collective(found[1], max_bytes="1 KiB"))]
        channel, far = opened(made)
        channel.put("an item", timeout=LIMIT)
        assert far.get(timeout=LIMIT) == "an item"
        with pytest.raises(Refused, match="max_bytes"):
            far.put(bytes(2000), timeout=LIMIT)
        eventually(lambda: not server(made)._queues._given, "the server knows that the item has arrived")
        far.close()
        assert channel.empty()


def test_clients_that_have_gone_take_nobody_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams to a channel that is not served yet wait, so many of each peer; who has closed its own does not wait."""
    monkeypatch.setattr("ftlib.collective.greeting._UNCLAIMED", 3)
    with collectives(3) as (made, _):

        def client(name: str, number: int = 1) -> Any:
            channel = Channel(made[number], name, at=made[0].here)
            work = channel.put(name, async_op=True)
            eventually(lambda: channel._client.lane.link is not None or work.done(), "its stream is there, or refused")
            return channel, work

        for _ in range(4):
            client("nobody serves this")[0].close()
        eventually(lambda: all(each.over for each in made[0].services._waiting), "they have gone")
        works = [client("q")[1] for _ in range(3)]
        refused = client("q")[1]
        with pytest.raises(Refused, match=r"3 streams from here wait there for .*'channel:q#"):
            refused.wait(LIMIT)
        works.append(client("q", 2)[1])
        channel = Channel(made[0], "q")
        for work in works:
            work.wait(LIMIT)
        assert channel.qsize() == 4


@pytest.mark.parametrize("late", ["answer", "dropped", "cancelled"])
def test_an_item_that_comes_too_late_goes_back(late: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server answers a get as nobody waits for it any more, and before it hears so: the item was lost."""
    monkeypatch.setattr(works, "_ANSWER", 0.02)
    with collectives(2) as (made, _):
        channel, far = opened(made)
        far.put("they have met", timeout=LIMIT)
        assert channel.get(timeout=LIMIT) == "they have met"
        serves, handle = server(made), type(server(made))._handle
        held = list[Any]()
        monkeypatch.setattr(serves, "_handle", lambda *order: held.append(order))
        if late == "answer":
            with pytest.raises(CollectiveTimeout, match="no answer yet"):
                far.get(timeout=0.02)
        elif late == "dropped":
            far.get(async_op=True)
        else:

            async def cancelled() -> None:
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(far.get(async_op=True).async_wait(), 0.02)

            asyncio.run(cancelled())
        eventually(lambda: len(held) > (late == "answer"), "the server has the request, and what takes it back")
        monkeypatch.setattr(serves, "_handle", lambda *order: handle(serves, *order))
        channel.put("kept", timeout=LIMIT)
        for order in held:
            handle(serves, *order)
        assert channel.get(timeout=LIMIT) == "kept"
        channel.put("next", timeout=LIMIT)
        assert far.get(timeout=LIMIT) == "next"


def test_a_row_of_dropped_gets_keeps_nobody_waiting() -> None:
    with collectives(2) as (made, _):
        for channel in opened(made):
            for _ in range(2000):
                channel.get(async_op=True)
            waiting = channel.get(async_op=True)
            channel.put("kept", timeout=LIMIT)
            assert waiting.wait(LIMIT) == "kept"
        eventually(lambda: not server(made)._queues._queues, "and nothing is left of them")


def test_a_joiner_that_only_serves_is_admitted() -> None:
    with members(2) as found, ExitStack() as stack:
        agree(found, 2)
        from tests.consensus.group import address, begin

        joiner = begin(job="test", initial_size=2, introducers=(address(found[0]),))
        try:
            channel = Channel(stack.enter_context(Collective(joiner)), "q")
            agree([*found, joiner], 3)
            far = Channel(stack.enter_context(Collective(found[1])), "q", at=joiner.member)
            far.put("an item", timeout=LIMIT)
            assert channel.get(timeout=LIMIT) == "an item"
        finally:
            stack.close()
            joiner.stop()


def test_a_pickle_is_not_lost_with_who_may_not_have_it() -> None:
    with members(3) as found, ExitStack() as stack:
        agree(found, 3)
        made = [stack.enter_context(Collective(each, allow_pickle=each is not found[2])) for each in found]
        channel, far = opened(made)
        strict = Channel(made[2], "q", at=made[0].here)
        waiting = [strict.get(async_op=True) for _ in range(3)]
        assert strict.qsize() == 0
        far.put({1, 2}, timeout=LIMIT)
        for each in waiting:
            with pytest.raises(Refused, match="needs pickle"):
                each.wait(LIMIT)
        with pytest.raises(Refused, match="needs pickle"):
            strict.peek_all()
        assert far.get(timeout=LIMIT) == {1, 2} and channel.empty()


@pytest.mark.parametrize("fields", [[float("inf")] * 5, [1, float("inf"), "k", None, True], ["x"], [], [0, 1, [], {}, 1]])
def test_a_hostile_client_ends_its_own_stream_alone(fields: list[Any]) -> None:
    with collectives(3) as (made, _):
        channel, far = opened(made)
        other = Channel(made[2], "q", at=made[0].here)
        pending = far.get(async_op=True)
        far._client.lane.send(Sort.CHANNEL, NOTHING, "channel", fields)
        with pytest.raises((LinkBroken, GroupClosed)):
            pending.wait(LIMIT)
        other.put("an item", timeout=LIMIT)
        assert channel.get(timeout=LIMIT) == "an item"


def test_two_clients_whose_streams_fail_at_once_do_not_block_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that cannot be written ends its stream, and its item goes to another getter, or back."""
    with collectives(3) as (made, _):
        channel = Channel(made[0], "q")
        clients = [Channel(each, "q", at=made[0].here) for each in made[1:]]
        for client in clients:
            client.put("they have met", timeout=LIMIT)
            channel.get(timeout=LIMIT)
        waiting = []
        for number in range(6):  # by turns
            waiting.append(clients[number % 2].get(async_op=True))
            eventually(lambda: len(server(made)._queues._queue("default").getters) == len(waiting), "it waits")
        lanes = made[0].services.lanes()["q"]
        both = threading.Barrier(2)

        def fails(views: Any, met: list[int]) -> int:
            if not met:
                met.append(both.wait(LIMIT))
            raise OSError(errno.EIO, "the path does not write")

        for lane in lanes:
            assert lane.link is not None
            monkeypatch.setattr(lane.link._out._path, "write", partial(fails, met=[]))
        puts = [threading.Thread(target=_put, args=(channel.put, number), daemon=True) for number in range(2)]
        for each in puts:
            each.start()
        for each in puts:
            each.join(LIMIT)
            assert not each.is_alive(), "they wait for each other"
        for work in waiting:
            with pytest.raises(LinkBroken):
                work.wait(LIMIT)
        assert sorted(channel.get(timeout=LIMIT) for _ in range(2)) == [0, 1], "nothing is lost"


def _put(put: Callable[..., Any], item: int) -> None:
    put(item, timeout=LIMIT)
