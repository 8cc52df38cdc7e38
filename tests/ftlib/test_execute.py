"""``execute``: a step as one unit, with faults at every point of it, over the memory framework."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ftlib import ConfigError, FTLib, FTLibError, GroupError, Status, StepMismatch
from ftlib.backup import Kept
from ftlib.call import Call
from ftlib.caller import Caller
from ftlib.execution import Executor
from ftlib.registry import Registered
from ftlib.session import Session
from ftlib.state import decode
from ftlib.unit import Stage, Unit
from tests.ftlib.real import eventually
from tests.ftlib.steps import Learner, reference
from tests.ftlib.workers import TIMEOUT, Job, Worker

STEPS = 12
EXPECTED = reference(STEPS)
OPERATIONS = 5
"""Of one step: three averages or reductions, a collective of the program's, and the commit."""
PLACES = ["begin", "backward", "between", "collective", "end"]


def once(action: Callable[[], Any], when: Callable[[], bool]) -> Callable[[], None]:
    done: list[int] = []

    def act() -> None:
        if when() and not done:
            done.append(1)
            action()

    return act


def learn(learners: dict[str, Learner], setup: Callable[[Worker, Learner], Any] = lambda *_: None) -> Callable[[Worker], Any]:
    """A worker's program."""

    def body(worker: Worker) -> dict[int, str]:
        learner = learners[worker.name] = Learner(worker.ft, seed=int(worker.name[1:]))
        setup(worker, learner)
        return learner.train(STEPS)

    return body


def the_same(history: dict[int, str]) -> None:
    """Nothing was lost, done twice, or done by halves."""
    assert history == {step: EXPECTED[step] for step in history}
    assert max(history) == STEPS


def test_without_failures_every_step_is_carried_out_once() -> None:
    learners: dict[str, Learner] = {}
    with Job(3) as job:
        for history in job.run(dict.fromkeys(("w0", "w1", "w2"), learn(learners))).values():
            the_same(history)
        assert job.cluster.epoch == 1
    assert all(learner.attempts == STEPS for learner in learners.values())


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("skip", range(2 * OPERATIONS + 6))
def test_a_failed_operation_returns_to_the_last_commit(skip: int, elsewhere: bool) -> None:
    """Each operation of two steps in turn; with ``elsewhere`` the others finish it, so that they may have committed."""
    learners: dict[str, Learner] = {}

    def setup(worker: Worker, learner: Learner) -> None:
        if worker.name == "w1":
            learner.hooks["begin"] = once(
                lambda: job.hub.fail_next(1, skip, finish_elsewhere=elsewhere), lambda: worker.ft.step == 3
            )

    with Job(3) as job:
        for history in job.run(dict.fromkeys(("w0", "w1", "w2"), learn(learners, setup))).values():
            the_same(history)
        assert job.cluster.epoch >= 2
        metrics = [worker.ft.metrics() for worker in job.workers.values()]
    assert all(metric["step"] == STEPS for metric in metrics)
    undone = sum(metric["rolled_back"] for metric in metrics)
    assert undone + sum(metric["adopted"] for metric in metrics) > 0
    assert sum(learner.attempts for learner in learners.values()) == 3 * STEPS + undone


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("place", PLACES)
def test_a_member_dies_anywhere(place: str, silent: bool) -> None:
    learners: dict[str, Learner] = {}

    def setup(worker: Worker, learner: Learner) -> None:
        if worker.name == "w1":
            learner.hooks[place] = once(lambda: job.kill("w1", silent=silent), lambda: worker.ft.step == 4)

    with Job(3) as job:
        workers = [job.start(name, learn(learners, setup)) for name in ("w0", "w1", "w2")]
        for worker in (workers[0], workers[2]):
            the_same(worker.join())
        assert job.cluster.history[-1].ids == ("w0", "w2")


def test_two_members_die_one_after_the_other_in_one_step() -> None:
    learners: dict[str, Learner] = {}

    def setup(worker: Worker, learner: Learner) -> None:
        if worker.name == "w1":
            learner.hooks["between"] = once(lambda: job.kill("w1"), lambda: worker.ft.step == 4)
        if worker.name == "w2":  # when the step is run again, in the view without w1
            learner.hooks["end"] = once(lambda: job.kill("w2"), lambda: worker.ft.step == 4 and worker.ft.size == 3)

    with Job(4) as job:
        workers = [job.start(f"w{i}", learn(learners, setup)) for i in range(4)]
        for worker in (workers[0], workers[3]):
            the_same(worker.join())
        assert job.cluster.history[-1].ids == ("w0", "w3")
    assert learners["w0"].attempts == STEPS + 2


def test_the_last_one_goes_on_alone() -> None:
    learners: dict[str, Learner] = {}

    def setup(worker: Worker, learner: Learner) -> None:
        if worker.name == "w0":
            learner.hooks["collective"] = once(lambda: job.kill("w0"), lambda: worker.ft.step == 4)

    with Job(2) as job:
        workers = [job.start(name, learn(learners, setup)) for name in ("w0", "w1")]
        the_same(workers[1].join())
        assert job.cluster.history[-1].ids == ("w1",)


@pytest.mark.parametrize("alone", [True, False])
def test_joiners_come_in_at_the_border_and_compute_on_the_state_from_their_first_attempt(alone: bool) -> None:
    """They count in full at once: the program's own collective sees them."""
    learners: dict[str, Learner] = {}
    arrived, asked = threading.Event(), threading.Event()

    def founder(worker: Worker, learner: Learner) -> None:
        def wait_for_the_knock() -> None:
            asked.set()
            eventually(lambda: bool(job.cluster.waiting), "the joiner has knocked")

        learner.hooks["between"] = once(wait_for_the_knock, lambda: worker.ft.step == 3)

    def joiner(worker: Worker, learner: Learner) -> None:
        learner.hooks["begin"] = once(arrived.set, lambda: learner.digest() == EXPECTED[worker.ft.step])

    with Job(1 if alone else 2) as job:
        founders = [job.start(f"w{i}", learn(learners, founder)) for i in range(1 if alone else 2)]
        assert asked.wait(TIMEOUT)
        late = job.start("w9", learn(learners, joiner))
        for worker in [*founders, late]:
            the_same(worker.join())
        assert job.cluster.history[-1].ids == (*(worker.name for worker in founders), "w9")
        assert len(job.cluster.history) == 2, "nobody was interrupted"
    assert arrived.is_set(), "its function ran on the state"
    assert learners["w0"].attempts == STEPS
    assert learners["w9"].attempts == STEPS - 4
    assert min(learners["w9"].history) == 5


def test_a_freeze_that_finds_a_lone_worker_within_its_function_waits_for_the_border() -> None:
    """Nothing was copied that it could return to."""
    learners: dict[str, Learner] = {}

    def founder(worker: Worker, learner: Learner) -> None:
        def change() -> None:
            job.start("w9", learn(learners))
            eventually(lambda: bool(job.cluster.waiting), "the joiner has knocked")
            job.cluster.post("change")  # not after a call, but at once
            eventually(lambda: worker.ft._plane._order is not None, "the freeze has arrived")

        learner.hooks["between"] = once(change, lambda: worker.ft.step == 3)

    with Job(1) as job:
        the_same(job.start("w0", learn(learners, founder)).join())
        the_same(job.workers["w9"].join())
    assert learners["w0"].attempts == STEPS


def test_a_leave_waits_for_the_border() -> None:
    """As SIGTERM does it: the flag is raised within the function."""
    learners: dict[str, Learner] = {}

    def setup(worker: Worker, learner: Learner) -> None:
        if worker.name == "w1":

            def leave() -> None:
                worker.ft._turns.leaving = True

            learner.hooks["between"] = once(leave, lambda: worker.ft.step == 3)

    with Job(3) as job:
        workers = [job.start(f"w{i}", learn(learners, setup)) for i in range(3)]
        with pytest.raises(SystemExit) as end:
            workers[1].join()
        assert end.value.code == 0
        for worker in (workers[0], workers[2]):
            the_same(worker.join())
    assert learners["w1"].digest() == EXPECTED[4], "the step was finished before it left"
    assert all(learner.attempts == (STEPS if name != "w1" else 4) for name, learner in learners.items())


class Whim(Exception):
    """The program's own."""


@pytest.mark.parametrize("place", PLACES)
def test_an_exception_of_the_programs_passes_through_and_it_may_come_back(place: str) -> None:
    learners: dict[str, Learner] = {}
    whim = Whim("no")

    def body(worker: Worker) -> dict[int, str]:
        learner = learners[worker.name] = Learner(worker.ft, seed=int(worker.name[1:]))

        def throw() -> None:
            raise whim

        if worker.name == "w1":
            learner.hooks[place] = once(throw, lambda: worker.ft.step == 3)
            while worker.ft.step < 3:
                learner.step()
            with pytest.raises(Whim) as caught:
                learner.step()
            assert caught.value is whim
            assert learner.digest() == EXPECTED[3]
            assert worker.ft.step == 3
        return learner.train(STEPS)

    with Job(3) as job:
        for history in job.run(dict.fromkeys(("w0", "w1", "w2"), body)).values():
            the_same(history)
        assert job.cluster.history[-1].ids == ("w0", "w1", "w2")


def test_an_exception_of_the_programs_ends_it_and_the_others_go_on_without() -> None:
    learners: dict[str, Learner] = {}

    def body(worker: Worker) -> dict[int, str]:
        learner = learners[worker.name] = Learner(worker.ft, seed=int(worker.name[1:]))

        def throw() -> None:
            raise Whim

        if worker.name == "w1":
            learner.hooks["between"] = once(throw, lambda: worker.ft.step == 3)
        try:
            return learner.train(STEPS)
        except Whim:
            job.kill("w1")
            return {}

    with Job(3) as job:
        for name, history in job.run(dict.fromkeys(("w0", "w1", "w2"), body)).items():
            if name != "w1":
                the_same(history)
        assert job.cluster.history[-1].ids == ("w0", "w2")


def test_alone_it_just_runs_the_function() -> None:
    def body(worker: Worker) -> None:
        ft, tensor = worker.ft, torch.ones(2)

        def step(factor: float, *, more: float) -> torch.Tensor:
            assert ft.group is None
            assert torch.is_grad_enabled()
            assert ft.allreduce_average(tensor, wait=False).wait() is Status.NO_NEED
            return tensor.mul_(factor + more)

        assert ft.execute(step, 2.0, more=1.0) is tensor
        assert tensor.tolist() == [3.0, 3.0]
        assert ft.step == 1
        with torch.inference_mode():
            assert ft.execute(torch.is_inference_mode_enabled)
        with torch.no_grad():
            assert not ft.execute(torch.is_grad_enabled)
        assert ft.step == 1
        with pytest.raises(Whim):
            ft.execute(_raise, Whim())
        assert worker.ft.epoch == 1
        assert ft.metrics()["rolled_back"] == 0
        assert not ft._caller.units._backup.nbytes

    with Job(1) as job:
        job.run({"w0": body})


def _raise(error: BaseException) -> None:
    raise error


def test_misuse_is_refused() -> None:
    def body(worker: Worker) -> None:
        ft = worker.ft
        with pytest.raises(ConfigError, match="wait=False"):
            ft.allreduce_average(torch.ones(1), wait=False)
        if ft.size > 1:
            with pytest.raises(ConfigError, match="register_state"):
                ft.execute(int)
        ft.barrier()
        ft.register_state(state_dict=dict, load_state_dict=lambda _: None)
        handles: list[Any] = []

        def step() -> None:
            with pytest.raises(ConfigError, match="within execute"):
                ft.execute(int)
            with pytest.raises(ConfigError, match="within execute"):
                ft.register_state(state_dict=dict, load_state_dict=lambda _: None)
            with pytest.raises(ConfigError, match="save was called within a call"):
                ft.save("nowhere")
            with pytest.raises(ConfigError, match="unknown operation"):
                ft.allreduce(torch.ones(1), "MAXIMUM")
            handles.append(ft.allreduce(torch.ones(1), "SUM", wait=False))

        ft.execute(step)
        assert handles[0].wait()  # it was awaited at the end
        refused: list[str] = []

        def callback(_: Any) -> None:
            try:
                ft.execute(int)
            except ConfigError as error:
                refused.append(str(error))

        ft.on_view_change(callback)
        ft._plane.due.append(ft.view)
        ft.execute(int)
        assert "callback" in refused[0]

    with Job(2) as job:
        job.run(dict.fromkeys(("w0", "w1"), body))


def test_statuses_inside_are_those_outside() -> None:
    def body(worker: Worker) -> None:
        ft = worker.ft
        ft.register_state(state_dict=dict, load_state_dict=lambda _: None)
        rank = ft.rank

        def step() -> None:
            assert ft.allreduce_average(torch.ones(2), weight=0.0) is Status.FAIL
            spoilt = torch.tensor([float("nan") if rank else 1.0])
            assert ft.allreduce_average(spoilt) is Status.FAIL
            shared = torch.full((2, 3), float(rank)).t()
            assert ft.broadcast(shared, 1) is Status.SUCCESS
            assert shared.unique().tolist() == [1.0]
            assert ft.barrier() is Status.SUCCESS
            mine = torch.full((3,), float(rank + 1))
            assert ft.allreduce_average(mine, weight=rank + 1.0) is Status.SUCCESS
            assert mine[0].item() == pytest.approx(5 / 3)

        before = ft.step
        ft.execute(step)
        assert ft.step == before + 1
        ft.execute(lambda: ft.allreduce_average(torch.ones(2), weight=0.0))
        assert ft.step == before + 1, "nobody was granted one"
        ft.execute(lambda: [ft.allreduce_average(torch.ones(i + 1)) for i in range(3)])
        assert ft.step == before + 2, "a unit is one step"
        assert ft.metrics()["vetoed"] == 1

    with Job(2) as job:
        job.run(dict.fromkeys(("w0", "w1"), body))


@pytest.mark.parametrize("kind", ["other tensors", "other order", "one more", "one less", "no unit"])
def test_whoever_does_something_else_is_found_out(kind: str) -> None:
    """One against two, in its third step, when the others start without a prelude: before it sends anything of another size."""

    def body(worker: Worker) -> None:
        ft, odd = worker.ft, worker.name == "w1"
        ft.register_state(state_dict=dict, load_state_dict=lambda _: None)

        def step(*, wrong: bool) -> None:
            tensors = [torch.ones(5), torch.ones(70_000)]
            if wrong and kind == "other tensors":
                tensors[1] = torch.ones(80_000)
            elif wrong and kind == "other order":
                tensors.reverse()
            elif wrong and kind == "one more":
                tensors.append(torch.ones(9))
            elif wrong and kind == "one less":
                tensors.pop()
            pending = [ft.allreduce_average(tensor, wait=False) for tensor in tensors]
            assert all(handle.wait() for handle in pending)

        for number in range(6):
            wrong = odd and number == 2
            if wrong and kind == "no unit":
                assert ft.allreduce_average(torch.ones(5))
            else:
                ft.execute(step, wrong=wrong)

    with Job(3) as job:
        workers = [job.start(f"w{i}", body) for i in range(3)]
        with pytest.raises(StepMismatch, match="different tensors or operations"):
            workers[1].join()
        workers[0].join()
        workers[2].join()


def test_layouts_may_change_from_step_to_step() -> None:
    def body(worker: Worker) -> None:
        ft = worker.ft
        ft.register_state(state_dict=dict, load_state_dict=lambda _: None)

        def step(number: int) -> None:
            pending = [ft.allreduce(torch.full((number * i,), 2.0), "SUM", wait=False) for i in range(number % 4)]
            assert all(handle.wait() for handle in pending)

        for number in range(12):
            ft.execute(step, number)
            if number % 3 == 0:
                assert ft.allreduce(torch.ones(number + 1))

    with Job(2) as job:
        job.run(dict.fromkeys(("w0", "w1"), body))
        assert job.cluster.epoch == 1


def test_a_joiner_is_given_the_state_on_entry_though_the_step_has_changed_it() -> None:
    learners: dict[str, Learner] = {}
    given: list[str] = []

    def setup(worker: Worker, learner: Learner) -> None:
        def ask() -> None:
            plane = worker.ft._plane
            assert plane.current is not None
            query = {"call": str(plane.current.number), "origin": plane.origin}
            tree = decode(b"".join(worker.ft._lives.life.transfer.source(query)))
            nobody = _Nobody()
            other = Learner(nobody)  # type: ignore[arg-type]
            for parameter in other.model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            nobody.registered.load(tree)
            given.append(other.digest())
            assert learner.digest() != EXPECTED[3]

        learner.hooks["end"] = once(ask, lambda: worker.ft.step == 3)

    with Job(2) as job:
        job.run(dict.fromkeys(("w0", "w1"), learn(learners, setup)))
    assert given == [EXPECTED[3]] * 2


class _Nobody:
    """Takes what is registered."""

    def register_state(self, *, state_dict: Any, load_state_dict: Any, **roles: Any) -> None:
        self.registered = Registered(roles, state_dict, load_state_dict)


def _nothing_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Kept, "restore", lambda _: None)


def _the_copy_is_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then an optimizer's steps change the copy."""
    monkeypatch.setattr(Kept, "restore", lambda kept: kept._registered.load(kept.tree()))


def _a_member_in_doubt_undoes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though others may have committed."""
    failed = Caller._failed

    def failing(caller: Caller, call: Call, session: Session, error: GroupError) -> None:
        failed(caller, call, session, error)
        if isinstance(call, Unit) and call.in_doubt:
            caller.units._undo(call, "planted")

    monkeypatch.setattr(Caller, "_failed", failing)


def _a_member_in_doubt_keeps_what_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though nobody may have committed."""
    undo = Executor._undo

    def keeping(executor: Executor, unit: Unit, why: str) -> None:
        if unit.in_doubt:
            unit.stage = Stage.READY
        undo(executor, unit, why)

    monkeypatch.setattr(Executor, "_undo", keeping)


@pytest.mark.parametrize(
    ("bug", "elsewhere", "times"),
    [
        (_nothing_is_restored, False, 1),
        (_the_copy_is_handed_over, False, 2),
        (_a_member_in_doubt_undoes_at_once, True, 1),
        (_a_member_in_doubt_keeps_what_it_did, False, 1),
    ],
)
def test_these_tests_find_planted_bugs(
    monkeypatch: pytest.MonkeyPatch, bug: Callable[[pytest.MonkeyPatch], None], elsewhere: bool, times: int
) -> None:
    """In one of a step's operations at least, with so many failures of it in a row.

    Where one fails in the commit, it is a matter of time whether the other one has finished it: several tries.
    """
    bug(monkeypatch)
    found = False
    for skip in [*reversed(range(OPERATIONS))] * 6:
        learners: dict[str, Learner] = {}

        def setup(worker: Worker, learner: Learner, skip: int = skip) -> None:
            left = [worker.ft.step] * times

            def fail() -> None:
                if worker.ft.step == 3 and left:
                    left.pop()
                    again = len(left) < times - 1  # then each operation has a prelude, as the view is a new one
                    worker.job.hub.fail_next(1, 2 * OPERATIONS - 2 if again else skip, finish_elsewhere=elsewhere)

            if worker.name == "w1":
                learner.hooks["begin"] = fail

        with Job(2) as job:
            histories = job.run(dict.fromkeys(("w0", "w1"), learn(learners, setup)))
        found = any(history != EXPECTED for history in histories.values())
        if found:
            break
    assert found


def test_the_programs_function_may_hide_what_failed() -> None:
    """It swallows every error, and goes on: nothing of that is committed."""
    learners: dict[str, Learner] = {}

    def body(worker: Worker) -> dict[int, str]:
        learner = learners[worker.name] = Learner(worker.ft, seed=int(worker.name[1:]))
        honest = learner._step

        def hiding(batch: int) -> float:
            try:
                return honest(batch)
            except Exception:  # noqa: BLE001 - as careless as programs are
                learner.generator.manual_seed(1)
                return 0.0

        learner._step = hiding  # type: ignore[method-assign]
        if worker.name == "w1":
            learner.hooks["between"] = once(lambda: job.hub.fail_next(1), lambda: worker.ft.step == 3)
        return learner.train(STEPS)

    with Job(3) as job:
        for history in job.run(dict.fromkeys(("w0", "w1", "w2"), body)).values():
            the_same(history)
        assert job.cluster.epoch == 2


def test_a_group_of_a_view_that_is_over_is_the_programs_error() -> None:
    def body(worker: Worker) -> None:
        ft = worker.ft
        ft.register_state(state_dict=dict, load_state_dict=lambda _: None)
        kept: list[Any] = []
        ft.execute(lambda: kept.append(ft.group))
        ft.barrier()
        if worker.name == "w1":
            job.kill("w1")
            return
        eventually(lambda: ft.size == 1 and ft.initialized(), "w0 is alone")
        with pytest.raises(GroupError):
            ft.execute(lambda: kept[0].barrier().wait(TIMEOUT))

    with Job(2) as job:
        job.run(dict.fromkeys(("w0", "w1"), body))


def test_after_leaving_it_says_so() -> None:
    def body(worker: Worker) -> FTLib:
        worker.ft.leave()
        with pytest.raises(FTLibError, match="has left"):
            worker.ft.execute(int)
        return worker.ft

    with Job(1) as job:
        job.run({"w0": body})
