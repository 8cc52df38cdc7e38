"""A worker that the others went on without joins again, in the same process, in the call that would raise ``Excluded``."""

from __future__ import annotations

import functools
import logging
import socket
import threading
import time
from dataclasses import replace

import pytest

from consensus import ExcludedError, Gossip, Member, View
from consensus.border import Stopped
from ftlib import ConfigError, Excluded, StateLost, Status
from ftlib.core.calls.salvage import SalvagePlan
from ftlib.core.calls.session import Session
from ftlib.core.plane.plane import Plane
from ftlib.lifecycle import rejoin
from ftlib.lifecycle.lifetime import Lifetime
from ftlib.recovery.whole_state import Transfer
from ftlib.settings.config import resolve
from ftlib.state.registry import Registered
from tests.ftlib.crews.trainees import Trainee, exclude, training, until
from tests.ftlib.crews.workers import Worker, workers
from tests.ftlib.lifecycle.test_closing import left_behind
from tests.harness.basics import TIMEOUT, eventually, free_ports
from tests.harness.company import at_once, company, in_thread


def test_it_joins_again_with_the_state_of_the_others(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with training() as made:
        ft, views = made.last.ft, list[View]()
        ft.on_view_change(views.append)
        was, before = ft._consensus.member.id, ft.step
        exclude(ft)
        assert not ft.initialized()
        assert not ft.skip_allreduce()
        eventually(lambda: made.trainees[0].ft.step > before + 5, "the others go on")
        assert made.last.step(1000.0) is Status.SUCCESS
        assert ft._consensus.member.id != was
        assert ft.step == made.last.weight[0].item() > before + 5, "its state is theirs, and what it brought counts nothing"
        assert ft.initialized()
        assert (ft.size, ft.rank) == (3, 2)
        assert made.last.step()
        assert ft.step == made.last.weight[0].item()
        assert [len(view) for view in views] == [3]
        assert ft.metrics()["rejoins"] == 1
        [line] = [record.getMessage() for record in caplog.records if getattr(record, "ftlib_event", "") == "rejoined"]
        assert line.startswith(f"rejoined as {ft._consensus.member} (was {was[:6]}) in epoch {ft.epoch}, ")
        assert line.endswith(" s after this was learned: told to")


def test_in_the_middle_of_a_call_another_thread_waits_for_its_turn() -> None:
    with training() as made:
        ft = made.last.ft
        other: list[Status] = []
        seen = threading.Event()
        begin = Lifetime.begin

        def slow(life: Lifetime) -> None:
            thread = in_thread(lambda: other.append(made.last.step()))
            thread.join(0.01)  # some time to come, in which it must not get through
            assert thread.is_alive()
            seen.set()
            begin(life)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Lifetime, "begin", slow)
            exclude(ft)
            assert made.last.step()
        assert seen.is_set()
        eventually(lambda: other == [Status.SUCCESS], "the other thread's call is finished as well")
        assert ft.step == made.last.weight[0].item()


def test_a_call_that_is_waiting_when_it_happens_goes_on_in_the_next_lifetime() -> None:
    with company(2, rejoin=True, boundary_wait=0.05) as crew:
        first, second = at_once(*[functools.partial(Trainee, ft) for ft in crew.members])
        at_once(first.step, second.step)
        results: list[tuple[Status, bool]] = []

        def one_call() -> None:
            status = second.step(1000.0)
            results.append((status, second.ft.step == second.weight[0].item() > 1))
            second.ft.close()

        thread = in_thread(one_call)
        eventually(lambda: second.ft._plane.running is not None, "it waits for the other")
        exclude(second.ft)
        while not results:
            assert first.step()
        thread.join(TIMEOUT)
        assert results == [(Status.SUCCESS, True)]
        assert first.weight[0].item() == first.ft.step


def test_by_default_it_raises_and_so_does_every_later_call() -> None:
    with training(2, rejoin=False) as made:
        exclude(made.last.ft)
        for _ in range(2):
            with pytest.raises(Excluded, match=r"^told to; start anew$"):
                made.last.step()


def test_without_registered_state_it_raises_and_says_so() -> None:
    with company(2, rejoin=True) as crew:
        exclude(crew.members[1])
        with pytest.raises(Excluded, match=r"told to; start anew; to rejoin, this worker needs register_state\("):
            crew.members[1].barrier()


def test_the_default_follows_the_policy() -> None:
    assert not resolve({}, {}, {}).rejoin
    assert resolve({}, {}, {"FTLIB_REJOIN": "1"}).rejoin
    assert resolve({"rejoin": True}, {"rejoin": False}, {}).rejoin


def test_it_founds_nothing_though_it_may_have_founded_before() -> None:
    """Its address is the first of the introducers, and nobody else is left."""
    with company(2, rejoin=True) as crew:
        founder = next(ft for ft in crew.members if ft._consensus.config.bind == crew._first)  # type: ignore[attr-defined]
        other = next(ft for ft in crew.members if ft is not founder)
        at_once(lambda: Trainee(founder), lambda: Trainee(other))
        consensus = founder._consensus
        assert isinstance(consensus, Gossip)
        consensus._config = replace(consensus.config, join_timeout=1.0)  # of its next lifetime
        exclude(founder)
        other.close()
        with pytest.raises(
            Excluded, match=r"told to; start anew; rejoining failed: not let in by introducers .* join_timeout=1 s"
        ):
            founder.barrier()
        assert founder.epoch == 1, "what it knew last"


@pytest.mark.parametrize("way", ["close", "leave"])
def test_leaving_ends_it_on_its_way_in(way: str) -> None:
    with company(1):
        pass  # what the process keeps for good is there now
    before = left_behind()
    with company(2, rejoin=True) as crew:
        first, second = crew.members
        at_once(lambda: Trainee(first), lambda: Trainee(second))
        first.close()  # nobody is left to join
        exclude(second)
        results: list[Status] = []
        thread = in_thread(lambda: results.append(second.barrier()))
        eventually(lambda: second._lives._coming is not None, "it is on its way")
        began = time.monotonic()
        getattr(second, way)()
        thread.join(TIMEOUT)
        assert results == [Status.ABORT]
        assert time.monotonic() - began < TIMEOUT / 2, "not for join_timeout"
        assert second.barrier() is Status.ABORT
    eventually(lambda: all(now <= then for now, then in zip(left_behind(), before, strict=True)), "nothing is left behind")


def test_an_interrupt_ends_it_and_the_next_call_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with training() as made:
        before = threading.active_count()
        exclude(made.last.ft)

        def interrupted(gossip: Gossip, timeout: float) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Gossip, "wait_known", interrupted)
            with pytest.raises(KeyboardInterrupt):
                made.last.step()
        assert made.last.ft._lives._coming is None
        eventually(lambda: threading.active_count() < before, "neither lifetime has a thread any more")
        assert made.last.step()
        assert made.last.ft.step == made.last.weight[0].item()


def test_again_and_again_but_not_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejoin, "_MOST", 2)
    monkeypatch.setattr(rejoin, "_REST", 0.2)
    with training() as made:
        took = []
        for _ in range(2):
            exclude(made.last.ft)
            began = time.monotonic()
            assert made.last.step()
            took.append(time.monotonic() - began)
        assert took[1] > 0.2
        exclude(made.last.ft)
        with pytest.raises(Excluded, match="told to; start anew; it has rejoined 2 times in a row"):
            made.last.step()
        monkeypatch.setattr(rejoin, "_STEADY", 0.0)
        assert made.last.step(), "a lifetime that lasted long enough begins a new row"


def test_a_fixed_port_is_bound_again_once_it_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    [port] = free_ports(1)
    with company(1, rejoin=True) as crew:
        staying = Trainee(crew.members[0])
        assert staying.step()
        ft = crew.init(bind=f"127.0.0.1:{port}")
        over = threading.Event()
        thread = in_thread(lambda: until(over, staying))
        joiner = Trainee(ft)
        assert joiner.step()
        end, taken = Lifetime.end, list[socket.socket]()

        def end_and_lose_the_port(life: Lifetime) -> None:
            end(life)
            if life is ft._lives.life:
                taken.append(socket.create_server(("127.0.0.1", port)))

        exclude(ft)
        with monkeypatch.context() as patch:
            patch.setattr(Lifetime, "end", end_and_lose_the_port)
            with pytest.raises(Excluded, match=f"rejoining failed: bind=127.0.0.1:{port}: the port is in use"):
                joiner.step()
        taken[0].close()
        assert joiner.step()
        assert ft._consensus.member.port == port
        over.set()
        ft.close()
        thread.join(TIMEOUT)


@workers(1, rejoin=True)
def test_a_consensus_that_has_no_other_lifetime(worker: Worker) -> None:
    worker.ft.register_state(state_dict=dict, load_state_dict=lambda _: None)
    worker.consensus.plane.handle(Stopped(ExcludedError("told to")))  # type: ignore[union-attr]
    eventually(lambda: worker.ft._plane.phase.value == "stopped", "it knows")
    with pytest.raises(Excluded, match="told to; FakeConsensus cannot rejoin"):
        worker.ft.barrier()


def test_outdated_state_that_nobody_replaces_is_not_acted_on() -> None:
    """Where all who founded are gone, and whoever joined since has registered nothing."""
    registered = Registered({}, dict, lambda _: None)
    view = View(9, "parent", tuple(Member(name, "127.0.0.1", 7) for name in ("w0", "w1")))
    session = Session(view, SalvagePlan(5, 5), "w1", {"w0": 0, "w1": 1}, None)
    first = Transfer(Plane("w9", lambda *_, **__: None), 1.0, 1.0)
    first.register(registered)
    assert not first.load(None, session), "a joiner's own initial state is as good as any"  # type: ignore[arg-type]
    nobody = Session(view, SalvagePlan(0, 0, blank=("w0", "w1")), "w1", {"w0": 0, "w1": 1}, None)
    with pytest.raises(StateLost, match=r"all founders ended before anybody in .* had their state"):
        first.load(None, nobody)  # type: ignore[arg-type]
    second = Transfer(Plane("w1", lambda *_, **__: None), 1.0, 1.0, former=first)
    with pytest.raises(ConfigError, match=r"nobody in .* registered state, but this worker did"):
        second.load(None, session)  # type: ignore[arg-type]
