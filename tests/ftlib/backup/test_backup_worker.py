"""A worker that is late: its backup worker takes part in the others' calls, and it ends up with what they have, bit for bit."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from ftlib import Status
from ftlib.checkpoints.checkpoint import newest
from ftlib.core.backup.pattern import WINDOW
from tests.ftlib.crews.latecomers import DEADLINE, Latecomer, arrive, awaiting, in_step, late, punctual, steps
from tests.ftlib.crews.trainees import exclude
from tests.ftlib.recovery.pupils import assert_equal
from tests.harness.basics import TIMEOUT, eventually
from tests.harness.company import at_once, company, in_thread


@pytest.mark.parametrize(("also", "backend"), [("", "memory"), ("LBLL", "memory"), ("", "gloo"), ("BL", "gloo")])
def test_the_others_go_on_and_it_ends_up_with_what_they_have(also: str, backend: str) -> None:
    """Whatever else a step calls: what the late worker is told of those calls is what the others were told."""
    with late(backend=backend, made={"also": also}) as made:
        first, _, last = made.pupils
        missed: set[int] = set()
        for _ in range(2):
            last.stay_away()
            steps(first, 5)
            assert last.ft.step in last.hashes, "it knows of no step that is not in its state"
            assert last.ft.step < first.ft.step
            missed.update(range(last.ft.step + 1, first.ft.step))  # the last one that it misses becomes its own
            entry = first.ft.metrics()["peers"][last.ft._plane.member_id]
            assert entry["late"] and not entry["following"]
            last.come()
            assert last.ft.metrics()["stood_in"] > 3
        made.end()
    assert assert_equal(*made.pupils) > WINDOW // 4
    assert missed
    assert missed.isdisjoint(last.hashes), "it has no part in what it missed"


def test_a_call_that_belongs_to_no_step() -> None:
    """As an evaluation: the backup worker takes part in it, and leaves further calls to its program, which makes it as well."""
    with late() as made:
        first, second, last = made.pupils
        made.halt()
        for pupil in made.pupils:
            pupil.special = first.ft.step + 10
        for pupil in (first, second):
            pupil.gate.set()
        eventually(lambda: last.ft._lives.life.backup_worker._retired, "the others do something else")  # type: ignore[union-attr]
        eventually(lambda: first.ft.step == first.special, "they have made that step")
        last.come()
        assert first.special in first.hashes
        made.end()
    assert assert_equal(*made.pupils) > WINDOW


def test_what_it_computed_counts_nowhere() -> None:
    """Its gradients are of weights that the others have left behind."""
    with company(2, straggler_deadline=DEADLINE) as crew:
        weights = [nn.Parameter(torch.zeros(4)) for _ in crew.members]
        pairs = list(zip(crew.members, weights, strict=True))
        optimizers = [torch.optim.SGD([weight], lr=1.0) for weight in weights]
        at_once(
            *[
                lambda ft=ft, w=w, o=o: ft.register_state(model=Holder(w), optimizer=o)
                for (ft, w), o in zip(pairs, optimizers, strict=True)
            ]
        )

        def step(index: int, gradient: float) -> Status:
            ft, weight = pairs[index]
            weight.grad = torch.full((4,), gradient)
            status = ft.allreduce_average(weight)
            if status:
                optimizers[index].step()
            return status

        punctual(crew.members[0])
        for _ in range(WINDOW):
            at_once(lambda: step(0, 1.0), lambda: step(1, 3.0))
        assert all(bool((weight == -2.0 * WINDOW).all()) for weight in weights)
        for _ in range(3):
            assert step(0, 1.0) is Status.SUCCESS, "its gradient alone"
        assert bool((weights[0] == -2.0 * WINDOW - 3).all())
        assert pairs[1][0].step == WINDOW
        awaiting(crew.members[1], crew.members[0])
        thread, told = arrive(crew.members[1], lambda: step(1, 1000.0))
        assert step(0, 1.0) is Status.SUCCESS
        thread.join(TIMEOUT)
        assert told == [Status.SUCCESS]
        assert bool((weights[1] == weights[0]).all()), "down to the bit"
        assert bool((weights[1] == -2.0 * WINDOW - 4).all())
        assert pairs[1][0].step == WINDOW + 4


class Holder(nn.Module):
    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight


def test_all_are_late_and_nobody_begins_a_call_that_nobody_has_entered() -> None:
    with late() as made:
        made.halt()
        life = made.pupils[0].ft._lives.life
        eventually(lambda: life.plane.current is not None, "backup workers meet")
        finished = {pupil.ft._plane.finished for pupil in made.pupils}
        epochs = {pupil.ft.epoch for pupil in made.pupils}
        time.sleep(4 * DEADLINE)  # nothing happens, and nothing tells of that
        assert {pupil.ft._plane.finished for pupil in made.pupils} == finished
        assert not any(pupil.backlog for pupil in made.pupils)
        assert {pupil.ft.epoch for pupil in made.pupils} == epochs, "and nothing fails"
        made.pupils[1].gate.set()
        steps(made.pupils[1], 5)
        for pupil in (made.pupils[0], made.pupils[2]):
            pupil.come()
        made.end()
    assert assert_equal(*made.pupils) > WINDOW


def test_all_who_are_left_are_late_and_have_the_state_all_the_same() -> None:
    """Whoever was not late dies: what they missed is what they have. Then a joiner gets it from them, once they have it."""
    with late() as made:
        first, second, third = made.pupils
        third.stay_away()
        second.stay_away()
        first.crash()
        made.pupils.remove(first)
        eventually(lambda: second.ft.size == third.ft.size == 2, "the others know")
        assert second.backlog and third.backlog
        joiner = made.enrol(99)
        eventually(lambda: second.ft.size == 3, "it is admitted")
        assert not joiner.hashes
        second.gate.set()
        third.come()
        in_step(4, second, third, joiner)
        made.end()
        assert not joiner.error
    assert assert_equal(first, second, third) > WINDOW // 2
    assert assert_equal(second, third, joiner) >= 4


def test_a_joiner_gets_the_state_from_those_who_are_not_late() -> None:
    """Nobody waits for who is late meanwhile."""
    with late() as made:
        first, second, last = made.pupils
        last.stay_away()
        joiner = made.enrol(99)
        in_step(4, first, second, joiner)
        assert last.backlog > 5, "it was late all the time"
        last.come()
        made.end()
    assert assert_equal(first, second, joiner) >= 4
    assert assert_equal(first, second, last) > WINDOW


def test_a_holder_that_a_joiner_may_ask_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in the plan of the view: its program has to be in the calls, or all would wait for each other."""
    with late(2) as made:
        first, second = made.pupils
        joiner = made.enrol(99, recovery_bandwidth=20_000)
        eventually(lambda: joiner.ft.metrics()["state_bytes"] > 0, "the joiner gets the state")
        second.gate.clear()
        assert second.outside.wait(TIMEOUT)
        assert not joiner.ft.metrics()["recoveries"]
        time.sleep(4 * DEADLINE)  # it is late, and nothing happens
        assert not second.backlog
        second.gate.set()
        in_step(4, first, second, joiner)
        made.end()
    assert assert_equal(first, second, joiner) >= 4


def test_somebody_dies_in_a_call_with_a_backup_worker() -> None:
    with late(4) as made:
        victim, first, second, last = made.pupils
        last.stay_away()
        victim.crash()
        made.pupils.remove(victim)
        before = last.backlog
        steps(first, 5)
        assert last.backlog > before, "the backup worker went on in the next view"
        last.come()
        made.end()
    assert assert_equal(first, second, last) > WINDOW


def test_a_rate_that_depends_on_the_view_is_set_for_what_was_missed_as_well() -> None:
    """The view changes while it is late: what it applies later is at the rate of the view in which it was averaged."""
    with late(4) as made:
        victim, first, second, last = made.pupils
        for pupil in made.pupils:
            optimizer = pupil.optimizer
            pupil.ft.on_view_change(lambda view, optimizer=optimizer: optimizer.param_groups[0].update(lr=0.001 * len(view)))
        last.stay_away()
        victim.crash()
        made.pupils.remove(victim)
        steps(first, 5)
        assert last.optimizer.param_groups[0]["lr"] != 0.003
        last.come()
        assert last.optimizer.param_groups[0]["lr"] == 0.003
        made.end()
    assert assert_equal(first, second, last) > WINDOW


def test_nobody_stands_in_for_who_has_the_state_in_the_first_call_of_a_view() -> None:
    """Who is late may have to ask any of them for it, and so it waits in its call until all of them are there."""
    with late(4) as made:
        victim, first, second, last = made.pupils
        last.stay_away()
        for pupil in (first, second):
            pupil.gate.clear()
        eventually(lambda: first.outside.is_set() and second.outside.is_set(), "they compute")
        victim.crash()
        made.pupils.remove(victim)
        eventually(lambda: {pupil.ft.size for pupil in made.pupils} == {3}, "the others know")
        finished = first.ft._plane.finished
        last.gate.set()
        time.sleep(8 * DEADLINE)  # it comes to its next call, or waits for its backup worker, which is in that one
        assert {pupil.ft._plane.finished for pupil in made.pupils} == {finished}
        assert not last.outside.is_set()
        for pupil in (first, second):
            pupil.gate.set()
        steps(last, 4)
        made.end()
    assert assert_equal(first, second, last) > WINDOW


def test_two_that_are_late_and_one_of_them_dies() -> None:
    with late(4) as made:
        first, second, victim, last = made.pupils
        victim.stay_away()
        last.stay_away()
        victim.crash()
        victim.gate.set()
        made.pupils.remove(victim)
        steps(first, 5)
        last.come()
        made.end()
    assert assert_equal(first, second, last) > WINDOW


def test_it_is_told_to_leave_while_it_is_late() -> None:
    """SIGTERM: its backup worker says goodbye, nobody waits for the program, and its next call is its last."""
    with late() as made:
        first, _, last = made.pupils
        last.stay_away()
        last.ft._call_lock.leave()  # what the signal handler does
        eventually(lambda: first.ft.size == 2, "the others go on without it")
        assert last.outside.is_set()
        last.gate.set()
        made.threads[2].join(TIMEOUT)
        assert not made.threads[2].is_alive()
        assert last.ft._call_lock.departed
        steps(first, 5)


@pytest.mark.parametrize("way", ["close", "leave"])
def test_it_closes_while_it_is_late(way: str) -> None:
    with late() as made:
        first, _, last = made.pupils
        last.stay_away()
        thread = last.ft._lives.life.backup_worker._thread  # type: ignore[union-attr]
        getattr(last.ft, way)()
        eventually(lambda: first.ft.size == 2, "the others know")
        steps(first, 5)
        last.gate.set()
        made.threads[2].join(TIMEOUT)
        assert last.statuses[-1] is Status.ABORT
        last.ft.close()
        assert not thread.is_alive()  # type: ignore[attr-defined]


def test_it_is_excluded_while_it_is_late_and_joins_again() -> None:
    with late(rejoin=True) as made:
        first, second, last = made.pupils
        last.stay_away()
        exclude(last.ft)
        eventually(lambda: first.ft.size == 2, "the others go on")
        steps(first, 5)
        last.gate.set()
        eventually(lambda: last.ft._plane.counters.rejoins == 1 and first.ft.size == 3, "it is back")
        steps(last, 5)
        assert not last.backlog
        made.end()
    assert assert_equal(first, second, last) > WINDOW


def test_what_it_saves_is_what_it_has(tmp_path: Path) -> None:
    """The step in the name is that of the state, whatever its backup worker has finished since."""
    with late() as made:
        writer = next(pupil for pupil in made.pupils if pupil.ft.rank == 0)
        writer.stay_away()
        step, digest = writer.ft.step, writer.digest()
        assert writer.hashes[step] == digest
        assert writer.ft._plane.step > step
        writer.ft.save(tmp_path)  # the program is at its gate: nobody else uses its state
        eventually(lambda: writer.ft.metrics()["checkpoints"] == 1, "it is complete, as a later call has finished here")
        found = newest(tmp_path)
        assert found is not None and found.name.step == step
        assert isinstance(found.tree, dict) and found.tree["step"] == step
        saved = found.tree["model"][0]
        assert all(
            torch.equal(saved[name], value) for name, value in writer.model.state_dict().items() if "running" not in name
        )
        writer.come()


class Sampler:
    def state_dict(self) -> dict[str, int]:
        return {"drawn": 1}

    def load_state_dict(self, state: dict[str, int]) -> None:
        pass


def test_it_saves_nothing_where_the_samples_are_dealt_on_without_it(tmp_path: Path) -> None:
    with late(2, made={"sampler": Sampler()}) as made:
        writer = next(pupil for pupil in made.pupils if pupil.ft.rank == 0)
        writer.stay_away()
        writer.ft.save(tmp_path)  # the program is at its gate: nobody else uses its state
        assert writer.ft.metrics()["checkpoints_skipped"] == 1
        assert newest(tmp_path) is None
        writer.come()


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 43))])
def test_random_histories(seed: int) -> None:
    """Members come late, die and join in any order: all that are left have the same after every step, and nobody is stuck."""
    chance = random.Random(seed)
    with late(4, made={"also": chance.choice(["", "L"])} if seed % 2 else None) as made:
        gone: list[Latecomer] = []
        for _ in range(14):
            pupil = chance.choice(made.pupils)
            match chance.choice(["late", "late", "late", "back", "back", "die", "join"]):
                case "late":
                    pupil.gate.clear()
                case "back":
                    pupil.gate.set()
                case "die" if len(made.pupils) > 3:
                    pupil.crash()
                    pupil.gate.set()
                    made.pupils.remove(pupil)
                    gone.append(pupil)
                case "join" if len(made.pupils) < 5 and not made.pupils[0]._also:
                    made.enrol(100 + len(gone))
            time.sleep(chance.random() * 2 * DEADLINE)  # wherever that leads to
        for pupil in made.pupils:
            pupil.gate.set()
        in_step(3, *made.pupils)
        made.halt()  # or who is late just then would be many steps behind
        made.end()
    founders = [pupil for pupil in made.pupils if len(pupil.hashes) > WINDOW]
    for one in founders:
        for other in made.pupils + gone:
            assert_equal(one, other)
    assert len({pupil.ft.step for pupil in made.pupils}) <= 2
    assert assert_equal(*made.pupils) >= 3


def test_who_is_late_hands_on_nothing() -> None:
    """Spares get their averages elsewhere: what its backup worker keeps for the program nobody else may have, and use again."""

    def listen() -> None:
        with pytest.raises(LookupError, match="lacks the state itself"):
            for _ in lessons:
                pass

    with late() as made:
        first, _, last = made.pupils
        made.halt()
        asked = {"ask": "averages", "signature": last.ft._plane._last_signature.hex()}
        lessons = last.ft._lives.life.donor.source(asked)
        told = in_thread(listen)
        for pupil in made.pupils[:2]:
            pupil.gate.set()
        steps(first, 8)
        last.come()
        in_step(3, *made.pupils)
        made.end()
        told.join(TIMEOUT)
    assert assert_equal(*made.pupils) > WINDOW
