"""Spares, above ``max_size``: they have the members' state while they wait, and count from their second call on."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from consensus import Member
from ftlib import ConfigError, FTLib
from ftlib.core.plane.phase import Phase
from ftlib.recovery import warm_standby
from ftlib.recovery.donor import replication_sender as sender
from ftlib.recovery.donor.donor import Donor
from ftlib.recovery.layout import shards
from ftlib.recovery.warm_standby import WarmStandby
from tests.ftlib.recovery.pupils import Pupil, School, assert_equal
from tests.harness.basics import TIMEOUT, around, eventually
from tests.harness.company import Company, at_once, company, in_thread

BACKENDS = pytest.mark.parametrize("backend", ["memory", "gloo"])


class Spare(Pupil):
    """One that notes what it has after every average that is applied, be it replayed or its own."""

    def __init__(self, ft: FTLib, seed: int, **more: Any) -> None:
        self.trail: dict[int, str] = {}
        """By the optimizer's own count of steps."""
        super().__init__(ft, seed, apply=self.apply, **more)

    def apply(self) -> None:
        super().apply()
        first = next(iter(self.model.parameters()))
        self.trail[int(self.optimizer.state[first]["step"])] = self.digest()

    def level_since(self, member: Pupil) -> list[int]:
        """The steps after which it had what ``member`` had."""
        return [step for step, found in self.trail.copy().items() if member.hashes.get(step) == found]


class Scheduled(Pupil):
    """Its learning rate follows from the step that is applied."""

    def apply(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = 1e-3 * (1 + self.ft.step % 7)
        super().apply()


class ScheduledSpare(Spare, Scheduled):
    """Also while it waits."""


class Spares(School):
    """Members that train, and spares that wait."""

    def __init__(self, crew: Company, make: Any = Pupil, spare: Any = Spare) -> None:
        self.spares: list[Spare] = []
        self._spare = spare
        super().__init__(crew, make)

    def spare(self, seed: int = 99, **more: Any) -> Spare:
        """One more worker, whose program waits in its first call."""
        spare: Spare = self._spare(self.crew.init(), seed, **more)
        self.spares.append(spare)
        self.train(spare)
        return spare

    def level(self, spare: Spare, further: int = 5) -> None:
        """Wait until it has what the members have; from then on it always does."""
        member = next(pupil for pupil in self.pupils if not pupil.ft._closed)
        seen = max(spare.trail, default=0)
        eventually(lambda: len([s for s in spare.level_since(member) if s > seen]) > further, "the spare is level")
        first = min(s for s in spare.level_since(member) if s > seen)
        wrong = [s for s, found in list(spare.trail.items()) if s > first and member.hashes.get(s, found) != found]
        assert not wrong
        assert not spare.hashes and spare.ft._plane.phase is Phase.WAITING

    def counts(self, spare: Spare, size: int) -> None:
        """Wait until it is a member of a view of ``size``; it had the state at once, and nobody loaded one as a whole."""
        eventually(lambda: len(spare.hashes) > 5 and spare.ft.size == size, "the spare counts")
        assert spare.ft.metrics()["state_loads"] == 1

    def crash(self, pupil: Pupil) -> None:
        """As a process that is killed: no goodbye, and nothing answers any more."""
        self.pupils.remove(pupil)
        pupil.crash()


@contextmanager
def school(
    founders: int,
    backend: str = "memory",
    *,
    max_size: int | None = None,
    kinds: tuple[Any, Any] = (Pupil, Spare),
    **settings: Any,
) -> Iterator[Spares]:
    before = set(threading.enumerate())
    with company(founders, backend, max_size=max_size or founders, **settings) as crew:
        made = Spares(crew, *kinds)
        eventually(lambda: made.pupils[0].ft.step > 3, "they train")
        try:
            yield made
        finally:
            made.end()
    ours = ("ftlib-standby", "ftlib-recovery", "ftlib-fetch", "ftlib-release", "ftlib-serve", "ftlib-begin", "ftlib-snapshots")
    eventually(
        lambda: not [t for t in set(threading.enumerate()) - before if t.name.startswith(ours)], "nobody is left at work"
    )


def donor_of(pupil: Pupil) -> Donor:
    return pupil.ft._lives.life.donor


def test_a_spare_follows_a_schedule() -> None:
    """Within ``apply``, ``ft.step`` is the step that is applied."""
    with school(2, kinds=(Scheduled, ScheduledSpare)) as made:
        made.level(made.spare())


@BACKENDS
def test_a_spare_is_level_while_it_waits_and_counts_at_once(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is fetched any more once it is promoted: what it lacks is the others' word that its state is theirs."""
    monkeypatch.setattr(warm_standby, "PATIENCE", TIMEOUT)  # the last record may come late on a busy machine
    senders: list[str] = []

    @around(monkeypatch, WarmStandby, "_take_up")
    def _take_up(usual: Callable[..., None], standby: WarmStandby, sender: Member, *stream: Any) -> None:
        senders.append(sender.id)
        usual(standby, sender, *stream)

    with school(3, backend) as made:
        spare = made.spare()
        made.level(spare)
        eventually(lambda: not any(donor_of(pupil)._snapshots.nbytes for pupil in made.pupils), "the pins are given back")
        fetched = spare.ft.metrics()["state_bytes"]
        assert fetched > 0
        # Not the one that sends it the averages: if the next sender has gone on meanwhile, the spare gets the state anew.
        pupil = next(each for each in made.pupils[1:] if each.ft._plane.member_id != senders[-1])
        made.pupils.remove(pupil)
        leaver, spare_id = pupil.ft, spare.ft._plane.member_id
        entered: dict[FTLib, int] = {}

        def note(ft: FTLib) -> None:
            ft.on_view_change(lambda view: entered.setdefault(ft, ft.step) if spare_id in view.ids else None)

        for pupil in made.pupils:
            note(pupil.ft)
            pupil.slow_down(0.2)  # it asks for that word as of a call to come: in a call of 2 ms the question may come too late
        leaver.leave()
        made.counts(spare, 3)
        assert assert_equal(*made.pupils, spare) > 2
        assert spare.ft.metrics()["state_bytes"] == fetched
        # One of them may have finished a call that the other gets from it, and a question that comes too late is asked again,
        # one call and then two calls further ahead.
        assert min(spare.hashes) <= max(entered.values()) + 4
        assert not any(pupil.ft.metrics()["state_loads"] > 1 for pupil in made.pupils)


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_whoever_dies_the_spare_takes_its_place(victim: int) -> None:
    """Its sender among them."""
    with school(3) as made:
        spare = made.spare()
        made.level(spare)
        made.crash(made.pupils[victim])
        made.counts(spare, 3)
        assert assert_equal(*made.pupils, spare) > 2


def test_a_state_in_many_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several donors, and yet of one version."""
    monkeypatch.setattr(shards, "SMALLEST", 1 << 12)
    with school(3) as made:
        spare = made.spare()
        made.level(spare)
        made.crash(made.pupils[0])
        made.counts(spare, 3)
        assert assert_equal(*made.pupils, spare) > 2


def test_several_spares_and_one_place() -> None:
    with school(2) as made:
        spares = [made.spare(seed) for seed in (97, 98, 99)]
        for spare in spares:
            made.level(spare)
        made.crash(made.pupils[0])
        eventually(lambda: any(spare.hashes for spare in spares), "one of them is promoted")
        [promoted] = [spare for spare in spares if spare.hashes]
        made.counts(promoted, 2)
        assert_equal(*made.pupils, promoted)
        for spare in spares:
            if spare is not promoted:
                made.level(spare)


def test_a_call_that_only_the_dead_had_finished(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The other member redoes it without the dead one's gradients: what spares have applied of it is no member's state."""
    caplog.set_level("INFO", "ftlib")
    with school(2) as made:
        sender, survivor = made.pupils
        asked = WarmStandby._senders
        first = sender.ft._plane.member_id

        def the_first(self: Any) -> Any:
            """No other while it is there: on a busy machine a spare goes on to the next sender where one has refused it."""
            members = asked(self)
            return [member for member in members if member.id == first] or members

        monkeypatch.setattr(WarmStandby, "_senders", the_first)
        spares = [made.spare(seed) for seed in (98, 99)]
        for spare in spares:
            made.level(spare)
        plane = survivor.ft._plane
        finish, crashed = plane.finish, threading.Event()
        held: list[int] = []

        def finish_late(session: Any, call: Any, *more: Any) -> Any:
            if session.view.epoch == 1 and call.number > 20:
                held.append(call.number)
                assert crashed.wait(TIMEOUT)
                eventually(lambda: not plane.acting_in(session), "the crash was noticed")
            return finish(session, call, *more)

        monkeypatch.setattr(plane, "finish", finish_late)

        def ahead() -> bool:
            alone = max(sender.hashes)
            return alone > max(survivor.hashes) and all(max(spare.trail) == alone for spare in spares)

        eventually(lambda: held and ahead(), "the spares have applied what the sender alone has finished")
        made.crash(sender)
        crashed.set()
        eventually(lambda: any(spare.hashes for spare in spares), "one of them is promoted")
        [promoted] = [spare for spare in spares if spare.hashes]
        [waiting] = [spare for spare in spares if spare is not promoted]
        made.counts(promoted, 2)
        assert assert_equal(survivor, promoted) > 2
        made.level(waiting)
    assert [record for record in caplog.records if getattr(record, "ftlib_event", "") == "spare_begins"][2:]


def test_members_that_change_while_a_spare_stays_one() -> None:
    """A second spare, which came first, takes the place: the sender may be the one that left."""
    with school(3) as made:
        first = made.spare(98)
        made.level(first)
        second = made.spare(99)
        made.level(second)
        made.crash(made.pupils[0])
        eventually(lambda: first.hashes or second.hashes, "one is promoted")
        promoted, waiting = (first, second) if first.hashes else (second, first)
        made.counts(promoted, 3)
        made.level(waiting)
        made.crash(made.pupils[0])
        made.counts(waiting, 3)
        assert_equal(*made.pupils, promoted, waiting)


def test_a_lone_member_has_spares_too() -> None:
    with school(1) as made:
        spare = made.spare()
        made.level(spare)


def test_a_spare_with_another_shape_is_told_so() -> None:
    with school(2) as made:
        stranger = Pupil(made.crew.init(), 99, width=32)
        with pytest.raises(ConfigError, match=r"shape \(32, 32\) here and \(64, 64\) at the job"):
            stranger.step()
        assert made.pupils[0].ft.size == 2
        stranger.ft.close()
        eventually(
            lambda: not any(donor_of(pupil).sender._stream.has_subscribers for pupil in made.pupils), "nobody listens any more"
        )


def test_without_registered_state_spares_wait_as_ever() -> None:
    with company(2, max_size=2) as crew:
        over = threading.Event()

        def train(ft: FTLib) -> None:
            while not over.is_set() and ft.allreduce_average([torch.ones(4)]):
                time.sleep(0.002)

        threads = [in_thread(functools.partial(train, ft)) for ft in crew.members]
        spare = crew.init()
        threads.append(in_thread(functools.partial(train, spare)))
        time.sleep(0.5)
        assert spare._plane.phase is Phase.WAITING and spare._plane.recovery is None
        still_waiting = spare._plane.threads.now()
        crew.members[1].leave()
        eventually(lambda: spare.size == 2 and spare.step > 3, "it takes part")
        eventually(lambda: spare._engine._arrival._since > still_waiting, "only now its time for a call like its own begins")
        over.set()
        at_once(*[ft.close for ft in crew.members])
        for thread in threads:
            thread.join(TIMEOUT)


def test_a_spare_that_leaves_gives_everything_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "STANDBY_SILENCE", 3.0)  # should its goodbye not arrive
    with school(2) as made:
        spare = made.spare()
        made.level(spare)
        assert any(donor_of(pupil).sender._stream.has_subscribers for pupil in made.pupils)
        spare.ft.close()
        eventually(
            lambda: not any(donor_of(pupil).sender._stream.has_subscribers for pupil in made.pupils), "nobody listens any more"
        )
        eventually(lambda: not any(donor_of(pupil)._snapshots.nbytes for pupil in made.pupils), "nothing is pinned")
        assert not spare.hashes


def test_a_cold_spare_gets_the_state_when_it_is_promoted() -> None:
    with school(2, recovery="wait") as made:
        spare = made.spare()
        time.sleep(0.3)
        assert not spare.trail
        made.pupils.pop().ft.leave()
        made.counts(spare, 2)
        assert_equal(*made.pupils, spare)
