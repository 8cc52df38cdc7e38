"""Whole members on real sockets: the agents run in this process, those to be killed in their own."""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import consensus
from consensus import (
    Config,
    ConfigError,
    ConsensusError,
    Gossip,
    Home,
    JoinError,
    KeyRing,
    LeftError,
    Mode,
    StoppedError,
    get,
)
from consensus.border import Activated, Installed, Order, Stopped
from consensus.protocol.state.member_table import NEVER
from tests.harness.basics import TIMEOUT, eventually

from .group import address, agree, begin, ids, members, peers
from .peer import ROOT
from .secret import RING, SECRET


def test_one_founds_alone() -> None:
    with members(1) as [alone]:
        view = alone.wait_view(TIMEOUT)
        assert view is not None
        assert view.members == alone.get_member_list() == (alone.member,)
        assert alone.confirm()
        assert not alone.new_member_join()
        assert alone.passive_or_active() is Mode.ACTIVE
        assert alone.member.fact("pid") == str(os.getpid())


def test_four_meet() -> None:
    with members(4) as group:
        view = agree(group, 4)
        assert view.epoch == 1
        assert {member.get_member_list() for member in group} == {view.members}
        assert all(member.wait_known(0) == view for member in group)


def test_who_waits_for_ever_is_told() -> None:
    with members(1, initial_size=2, join_timeout=TIMEOUT) as [first], ThreadPoolExecutor() as pool:
        waits = [pool.submit(wait, math.inf) for wait in (first.wait_view, first.wait_known)]
        second = begin(job="test", initial_size=2, introducers=(address(first),))
        try:
            view = agree([first, second], 2)
            assert [wait.result(TIMEOUT) for wait in waits] == [view, view]
        finally:
            second.stop()


@pytest.mark.parametrize("meta", [{"rank": 3}, {3: "rank"}, {"name": "caf\udce9"}, {"\ud800": "name"}])
def test_facts_that_could_not_be_sent_are_refused(meta: Any) -> None:
    with pytest.raises(ConfigError, match=r"^meta: .*(texts|is no text)"):
        begin(meta=meta)


def test_nobody_acts_before_all_have_met() -> None:
    with members(1, initial_size=2, join_timeout=TIMEOUT) as [first]:
        assert first.wait_view(0.5) is None
        second = begin(job="test", initial_size=2, introducers=(address(first),))
        try:
            agree([first, second], 2)
        finally:
            second.stop()


@pytest.mark.process
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_member_is_gone_from_the_next_view(victim: int) -> None:
    """``victim``: whether a junior or the most senior member (the coordinator) dies."""
    settings = {"job": "test", "initial_size": 4}
    with peers(1, **settings) as [first]:
        introducers = (first.address,)
        with peers(1, introducers=introducers, **settings) as [second]:
            group = [begin(introducers=introducers, **settings) for _ in range(2)]  # type: ignore[arg-type]
            try:
                before = agree(group, 4)
                killed = (first, second)[victim]
                killed.kill()
                eventually(lambda: all(len(ids(member.view)) == 3 for member in group), "the victim is excluded")
                after = agree(group, 3)
                assert set(before.ids) - set(after.ids) == {killed.member.id}
                assert after.parent_id == before.view_id
            finally:
                for member in group:
                    member.stop()


@pytest.mark.process
def test_down_to_one_and_back() -> None:
    settings: dict[str, Any] = {"job": "test", "exclude_after": 20.0}
    with members(1, **settings) as [last]:
        for _ in range(2):
            with peers(3, introducers=(address(last),), **settings) as others:
                agree([last], 4)
                for size, other in zip((3, 2, 1), others, strict=True):
                    other.kill()
                    agree([last], size)


@pytest.mark.process
def test_all_others_at_once() -> None:
    """The last one knows that no two of them can have gone on without it: it was in contact with all of them."""
    settings: dict[str, Any] = {"job": "test", "exclude_after": 20.0}
    with members(1, **settings) as [last], peers(3, introducers=(address(last),), **settings) as others:
        agree([last], 4)
        table = last._host.child.agent.driver.core._core.table  # type: ignore[union-attr]
        eventually(lambda: all(peer.contact != NEVER for peer in table), "it had an answer from each in this view")
        for other in others:
            other.kill()
        agree([last], 1)


def test_a_joiner_waits_until_it_is_ready() -> None:
    with members(2) as group:
        before = agree(group, 2)
        joiner = begin(job="test", introducers=(address(group[1]),))
        try:
            assert joiner.wait_known(TIMEOUT) == before
            assert joiner.view is None
            assert joiner.get_member_list() == ()
            assert not joiner.confirm()
            time.sleep(0.3)
            assert group[0].view == before
            joiner.seek_admission()
            after = agree([*group, joiner], 3)
            assert after.members == (*before.members, joiner.member)
        finally:
            joiner.stop()


def test_one_leaves() -> None:
    with members(3) as group:
        agree(group, 3)
        group[1].leave()
        left = agree([group[0], group[2]], 2)
        assert group[1].member.id not in left
        eventually(lambda: group[1].stopped is not None, "the leaver is told")
        assert isinstance(group[1].stopped, LeftError)
        assert not group[1].confirm()


def test_a_failed_average_is_owed_a_new_epoch() -> None:
    with members(2) as group:
        before = agree(group, 2)
        for member in group:
            member.average_failure(7, [other.member.id for other in group if other is not member])
        eventually(lambda: all(m.view is not None and m.view.epoch > before.epoch for m in group), "a new epoch")
        assert agree(group, 2).members == before.members


def test_healthy_steps_send_nothing() -> None:
    with members(2, probe_interval=60.0, exclude_after=400.0) as group:
        agree(group, 2)

        def sent() -> dict[str, Any]:
            return {member.member.id: member.status()["messages"]["sent"] for member in group}

        def quiet() -> bool:
            before = sent()
            time.sleep(0.5)
            return sent() == before

        eventually(quiet, "what founding led to has been said")
        before = sent()
        for call in range(1000):
            for member in group:
                member.average_success(call)
                assert member.confirm()
                member.get_member_list()
                member.new_member_join()
        assert sent() == before


@pytest.mark.usefixtures("patient")
def test_report_join() -> None:
    with members(1) as [first], members(1, job="foreign") as [foreign]:
        joiner = begin(job="test", introducers=("127.0.0.1:1",), join_timeout=TIMEOUT)
        try:
            began = time.monotonic()
            assert not joiner.report_join([address(foreign), address(joiner), "127.0.0.1:1"])
            assert time.monotonic() - began < TIMEOUT / 2, "not for join_timeout"
            with pytest.raises(ConfigError, match="nonsense"):
                joiner.report_join(["nonsense"])
            assert joiner.report_join([address(first), "127.0.0.1:1"])
            joiner.seek_admission()
            agree([first, joiner], 2)
        finally:
            joiner.stop()
        with pytest.raises(ConsensusError, match="stopped"):
            joiner.report_join([address(first)])


@pytest.mark.usefixtures("patient")
def test_a_joiner_that_finds_nobody_is_told_why() -> None:
    with members(1, job="foreign") as [foreign]:
        joiner = begin(job="test", introducers=(address(foreign), "127.0.0.1:1"), join_timeout=0.5)
        try:
            assert joiner.wait_view(TIMEOUT) is None  # ends with the lifetime, not with the timeout
            assert isinstance(joiner.stopped, JoinError)
            assert "job 'foreign'" in str(joiner.stopped)
            assert "nobody listens there" in str(joiner.stopped)
        finally:
            joiner.stop()


def test_other_terms_are_refused() -> None:
    with members(1) as [first]:
        agree([first], 1)
        other = begin(job="test", introducers=(address(first),), exclude_after=3.0)
        try:
            other.seek_admission()
            eventually(lambda: other.stopped is not None, "the refusal")
            assert "exclude_after" in str(other.stopped)
            assert len(ids(first.view)) == 1
        finally:
            other.stop()


@pytest.mark.parametrize(
    ("meta", "text"),
    [
        ({"name": "x" * 4097}, "the fact 'name' of a member has 4097 bytes: at most 4096"),
        ({"name": "ü" * 2100}, "has 4200 bytes"),
        ({"x" * 5000: "name"}, "has 5000 bytes"),
        ({"name": "\udc80"}, "the fact 'name' of a member is no text"),
        ({"size": 5}, "are texts, and 'size' has int"),
        ({f"fact {number}": "" for number in range(64)}, "65 facts"),
    ],
)
def test_facts_that_nobody_could_read_are_refused_at_once(meta: dict[str, Any], text: str) -> None:
    """Others would drop all packets with them, and the joiner would hear of nobody."""
    with pytest.raises(ConfigError, match=text):
        begin(meta=meta)


def test_facts_of_the_most_bytes_are_read() -> None:
    with members(1) as [founder]:
        joiner = begin(job="test", introducers=(address(founder),), meta={"name": "ü" * 2048})
        try:
            joiner.seek_admission()
            view = agree([founder, joiner], 2)
            assert [member.fact("name") for member in view.members if member.id == joiner.id] == ["ü" * 2048]
        finally:
            joiner.stop()


def test_status_over_http_and_what_is_served() -> None:
    with members(2) as group:
        agree(group, 2)
        for member in group:
            member.serve("/state", lambda query: iter([query["part"].encode()]))
        url = f"http://{address(group[1])}"
        with urllib.request.urlopen(f"{url}/state?part=7", timeout=TIMEOUT) as response:
            assert response.read() == b"7"
        with urllib.request.urlopen(f"{url}/status", timeout=TIMEOUT) as response:
            status = json.load(response)
        assert status["member"] == group[1].member.id
        assert len(status["members"]) == 2
        assert status["messages"]["received"]
        assert status["notes"]
        for path in ("/tether", "/message", "/status", "state", "/a?b"):
            with pytest.raises(ConfigError, match="cannot be served"):
                group[0].serve(path, lambda query: iter(()))


@pytest.mark.parametrize("home", Home)
@pytest.mark.parametrize("ring", [None, RING], ids=["open", "secret"])
def test_a_long_question_is_answered(ring: KeyRing | None, home: Home) -> None:
    with members(1, agent=home, secret=SECRET if ring else ()) as [member]:
        agree([member], 1)
        member.serve("/state", lambda query: iter([query["part"].encode()]))
        for length in (20_000, 120_000):
            part = "7" * length
            with get(member.member.address, f"/state?part={part}", ring, timeout=TIMEOUT) as answer:
                assert answer.read().decode() == part


def agents() -> set[threading.Thread]:
    """Threads that are agents here, or listen to one; such of a test before this may be about to end."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("ftlib-agent")}


class TestLifetime:
    def test_stop_is_idempotent_and_final(self) -> None:
        gossip = Gossip()
        gossip.stop()
        with pytest.raises(ConsensusError):
            gossip.start()
        before = agents()
        gossip = begin()
        assert gossip.wait_view(TIMEOUT) is not None
        with pytest.raises(ConsensusError, match="before"):
            gossip.start()
        own = agents() - before
        assert own
        threads = [threading.Thread(target=gossip.stop) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT)
        gossip.leave()  # words of the dead change nothing
        gossip.flushed(1, b"")
        assert gossip.status()["job"] == "default"
        eventually(lambda: not own & agents(), "its threads end")

    def test_before_start(self) -> None:
        gossip = Gossip()
        assert gossip.view is None
        assert gossip.get_member_list() == ()
        assert not gossip.confirm()
        assert gossip.status() == {}
        assert gossip.wait_view(0.01) is None
        for call in (gossip.leave, gossip.seek_admission):
            with pytest.raises(ConsensusError, match="start"):
                call()

    def test_what_is_wrong_with_the_settings_is_raised_by_start(self) -> None:
        with members(1) as [first]:
            before = agents()
            with pytest.raises(ConfigError, match="in use"):
                begin(bind=address(first))
            assert not agents() - before

    def test_it_can_be_stopped_from_a_callback(self) -> None:
        done = threading.Event()

        class Plane(consensus.NullPlane):
            def handle(self, order: Order) -> None:
                super().handle(order)
                if isinstance(order, Activated):
                    gossip.stop()
                    done.set()

        gossip = Gossip(Config())
        gossip.start(Plane(gossip))
        assert done.wait(TIMEOUT)
        eventually(lambda: not gossip._host.running, "the thread ends")  # type: ignore[union-attr]
        gossip.stop()

    def test_a_failing_data_plane_ends_it(self, caplog: pytest.LogCaptureFixture) -> None:
        told: list[StoppedError] = []

        class Plane(consensus.NullPlane):
            def handle(self, order: Order) -> None:
                super().handle(order)
                if isinstance(order, Installed):
                    raise ValueError("cannot build")  # noqa: TRY004
                if isinstance(order, Stopped):
                    told.append(order.error)

        gossip = Gossip(Config())
        gossip.start(Plane(gossip))
        assert gossip.wait_view(TIMEOUT) is None
        eventually(lambda: told, "the data plane is told")
        assert "cannot build" in str(gossip.stopped)
        assert gossip.status()["stopped"] == f"StoppedError: {gossip.stopped}"
        gossip.stop()
        assert "cannot build" in caplog.text


@pytest.mark.process
def test_a_stopped_process_is_excluded_by_silence_and_learns_it() -> None:
    settings = {"job": "test", "initial_size": 3, "exclude_after": 4.0}
    with members(2, **settings) as group, peers(1, introducers=(address(group[0]),), **settings) as [peer]:
        agree(group, 3)
        began = time.monotonic()
        peer.pause()
        agree(group, 2)
        assert time.monotonic() - began > 0.5, "some time after its last sign of life, which came before the pause"
        os.kill(peer.process.pid, signal.SIGCONT)

        def excluded() -> bool:
            with urllib.request.urlopen(f"http://{peer.address}/status", timeout=TIMEOUT) as response:
                return "ExcludedError" in str(json.load(response)["stopped"])

        eventually(excluded, "the continued process knows that it is out")


def test_the_door_is_complete_and_quick() -> None:
    assert all(hasattr(consensus, name) for name in consensus.__all__)
    code = "import sys, time; t = time.process_time(); import consensus; print(time.process_time() - t); \
assert not {'torch', 'ftlib', 'aiohttp'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert float(done.stdout) < 1.0  # about 0.06 s on an idle machine


def test_log_lines_of_a_change(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "ftlib.consensus"), members(2) as group:
        agree(group, 2)
        founded = len(caplog.records)
        group[1].stop()
        agree(group[:1], 1)
        told = group[1].member.id[:6]
        eventually(lambda: any(told in record.getMessage() for record in caplog.records[founded:]), "the log tells who is gone")
