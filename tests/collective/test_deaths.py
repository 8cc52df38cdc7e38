"""Members in processes of their own that are killed, stopped and replaced: what the others' works say, and what goes on."""

from __future__ import annotations

import signal
import time
from itertools import pairwise

import pytest

from ftlib import CollectiveError
from tests.harness.basics import TIMEOUT, eventually
from tests.harness.nursery import Nursery

from . import parts
from .workers import company, replaced

pytestmark = pytest.mark.process
SLACK = 80.0
"""Seconds from a death to its error, on a machine as busy as can be: less than the works wait. The benchmark has the bar."""


def test_every_pending_work_hears_of_a_death_in_mid_message(nursery: Nursery) -> None:
    with company(nursery, "a", "b", "c") as workers:
        found = workers["a"].call(parts.pending, ["a", "b"], 5, 256)
        eventually(lambda: workers["a"].do(parts.is_pending), "works are pending")
        # The peer takes 64 MB before it asks for a message: the send of 256 MB stays half done.
        time.sleep(0.1)
        killed = workers["b"].kill()
        for kind, text, when in found.result(TIMEOUT):
            assert kind == "PeerLost", text
            assert "b " in text and "in group 'a+b'" in text
            assert when - killed < SLACK


def test_a_stopped_peer_is_lost_once_it_is_excluded(nursery: Nursery) -> None:
    with company(nursery, "a", "b", "c", exclude_after=6.0) as workers:
        found = workers["a"].call(parts.pending, ["a", "b"], 2, 256)
        eventually(lambda: workers["a"].do(parts.is_pending), "works are pending")
        time.sleep(0.1)
        stopped = workers["b"].signal(signal.SIGSTOP)
        for kind, text, when in found.result(TIMEOUT):
            assert kind == "PeerLost", text
            assert when - stopped < 6.0 + SLACK


def test_two_go_on_while_a_third_dies_and_comes_back_as_another(nursery: Nursery) -> None:
    """The stream of two runs on through two view changes; the one that comes back under its name is a new peer."""
    with company(nursery, "a", "b", "c") as workers:
        assert workers["a"].call(parts.send, ["a", "c"], 1) and workers["c"].do(parts.recv, ["a", "c"]) == [1]
        ends = [workers[name].call(parts.stream, ["a", "b"], name == "a") for name in "ab"]
        eventually(lambda: workers["a"].do(parts.streamed) > 5, "words are exchanged")
        workers["c"].kill()
        old = workers["c"].member.id
        eventually(lambda: workers["a"].do(parts.attempt, ["a", old], 0) != "sent", "its death is known")
        replaced(workers, "c", "a", nursery)
        assert workers["c"].call(parts.send, ["a", "c"], "new") is not None
        eventually(lambda: workers["a"].do(parts.knows, workers["c"].member.id), "the new one is admitted")
        assert workers["a"].do(parts.recv, ["a", "c"]) == ["new"]
        said = workers["a"].do(parts.streamed)
        eventually(lambda: workers["a"].do(parts.streamed) > said + 5, "and still are")
        workers["a"].do(parts.enough)
        (_, gap), _ = (end.result(TIMEOUT) for end in ends)
        assert gap < SLACK


def test_a_view_change_in_the_middle_of_a_transfer(nursery: Nursery) -> None:
    """160 MB, of which the receiver takes the second half in the new view: until then the sender is in the middle of one."""
    with company(nursery, "a", "b", "c") as workers:
        gone = workers["c"].member.id
        sent = workers["a"].call(parts.tensors, ["a", "b"], 40, 1 << 20, True)
        got = workers["b"].call(parts.tensors, ["a", "b"], 40, 1 << 20, False, gone)
        eventually(lambda: workers["b"].do(parts.is_pending), "half of it is there")
        workers["c"].kill()
        assert got.result(TIMEOUT) == [float(number) for number in range(40)]
        sent.result(TIMEOUT)
        assert not workers["a"].do(parts.knows, gone)


def test_exit_flushes_what_was_sent(nursery: Nursery) -> None:
    with company(nursery, "a", "b") as workers:
        got = workers["b"].call(parts.received, ["a", "b"], 20, 1.0)
        eventually(lambda: workers["b"].do(parts.has_made), "the group is made")
        workers["a"].do(parts.send_and_exit, ["a", "b"], 20, 1 << 18)
        workers["a"].call("exit")  # type: ignore[arg-type]
        assert got.result(TIMEOUT) == [(number, float(number)) for number in range(20)]
        assert workers["a"].code() == 0
        with pytest.raises(CollectiveError, match=r"closed the link|is no member"):
            workers["b"].do(parts.recv, ["a", "b"])


def test_pickle_on_one_side_only_is_refused_before_anything_is_sent(nursery: Nursery) -> None:
    with company(nursery, "a", "b", options={"a": {"allow_pickle": True}, "b": {"allow_pickle": False}}) as workers:
        said = workers["a"].call(parts.send_strange, ["a", "b"])
        assert (
            workers["b"]
            .do(parts.send_strange, ["a", "b"])
            .startswith("Refused: send in group 'a+b': value['set']: a builtins.set")
        )
        assert "needs pickle, and the peer has not set allow_pickle=True" in said.result(TIMEOUT)
        workers["a"].do(parts.send, ["a", "b"], "after")
        assert workers["b"].do(parts.recv, ["a", "b"]) == ["after"]


def test_what_a_dead_getter_had_not_acknowledged_is_there_again(nursery: Nursery) -> None:
    """Of 200 items each is with a living getter, or was with the dead one before it died: none is lost to the queue."""
    with company(nursery, "server", "dies", "lives") as workers:
        for name in workers:
            workers[name].do(parts.channel, "q", "server")
        taken = workers["dies"].call(parts.get, "q", 10_000)
        got = workers["lives"].call(parts.get_until, "q", 200)
        filled = workers["server"].call(parts.put, "q", *range(200))
        time.sleep(0.05)
        workers["dies"].kill()
        filled.result(TIMEOUT)
        # What it was given last goes back when its stream has ended at the server, which may be later than its death is known.
        server = workers["server"]
        eventually(
            lambda: not server.do(parts.on_the_way, "q") and not server.do(parts.left, "q"), "what went back is with the other"
        )
        server.do(parts.put, "q", 200)
        items = got.result(TIMEOUT)
        assert len(set(items)) == len(items), "none twice"
        assert sum(first > second for first, second in pairwise(items)) <= 1, "in order, but for the one that went back"
        with pytest.raises(EOFError):
            taken.result(TIMEOUT)
        assert workers["server"].do(parts.left, "q") == 0


def test_the_death_of_a_channels_server_reaches_everybody_who_waits(nursery: Nursery) -> None:
    with company(nursery, "server", "a", "b") as workers:
        for name in workers:
            workers[name].do(parts.channel, "q", "server")
        ends = [workers[name].call(parts.await_items, "q", 3) for name in "ab"]
        eventually(lambda: all(workers[name].do(parts.is_pending) for name in "ab"), "they wait")
        workers["server"].kill()
        assert [end.result(TIMEOUT) for end in ends] == ["PeerLost", "PeerLost"]


def test_broadcast_reaches_three_and_says_who_is_lost(nursery: Nursery) -> None:
    with company(nursery, "a", "b", "c", "d") as workers:
        names = list(workers)
        got = [worker.call(parts.broadcast, names, name if name == "b" else None, "b") for name, worker in workers.items()]
        assert [each.result(TIMEOUT) for each in got] == ["b"] * 4
        waits = [workers[name].call(parts.broadcast, names, None, "d") for name in "abc"]
        eventually(  # one each before, but three at "b"
            lambda: [workers[name].do(parts.facts)["a+b+c+d"]["operations"] for name in "abc"] == [2, 4, 2], "all three wait"
        )
        workers["d"].kill()
        for each in waits:
            with pytest.raises(CollectiveError, match=r"d \(.*\) is (no member any more|gone)"):
                each.result(TIMEOUT)
