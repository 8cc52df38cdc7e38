"""One job with a combination of features, on real threads in memory: its faults follow from a seed, and its end is judged."""

from __future__ import annotations

import functools
import logging
import random
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from ftlib import ConfigError, Status
from ftlib.checkpoints.checkpoint import newest
from ftlib.core.backup.pattern import WINDOW
from tests.ftlib.combinations.student import EPOCHS, Student
from tests.ftlib.combinations.table import CELLS, REFUSED, Cell
from tests.ftlib.crews.scholars import judge
from tests.ftlib.crews.workers import TIMEOUT, Job

FOUNDERS = 3
DEADLINE = 0.05
"""Of stragglers, in seconds."""
DECLINED = 0.1
"""Of the steps of each worker: the share that it declines."""
SPARE, FOLLOW, WAIT = "spare-0003", "follow-0004", "wait-0005"
"""Ids end in hexadecimal digits, as real ones do: spares choose by them whom they ask first."""
TOO_FEW = 2.0
"""Seconds until a call is given up for which too few members are there."""
PATIENCE = TIMEOUT
"""Seconds that a whole job may take."""


class Course:
    """One job, and what happens to it."""

    def __init__(self, features: Collection[str], seed: int, folder: Path) -> None:
        self.features = set(features)
        self._rng = rng = random.Random(f"{seed} {sorted(features)}")
        self.steps = WINDOW + 6 if "backup-workers" in features else 8
        self._folder = folder
        self.students: dict[str, Student] = {}
        settings = {"straggler_deadline": DEADLINE} if "backup-workers" in features else {}
        least = "min_size" in features
        self._founders = founders = FOUNDERS + (least and "spares" in features)  # of whom two die: a spare is there for one
        places = {"max_size": founders} if "spares" in features else {}
        limits = {"min_size": founders, "step_timeout": TOO_FEW} if least else {}
        self.job = Job(founders, **settings, **places, **limits)
        self.job.cluster.max_size = places.get("max_size")
        self._late = [name for name, feature in ((FOLLOW, "follow"), (WAIT, "wait")) if feature in features]
        self._killed = "spares" in features or least or rng.random() < 0.5
        self._moment = rng.randrange(2, self.steps)
        self._lateness = 0
        if "backup-workers" in features:  # late where the first epoch ends, which a death before that would put off
            self._moment += self.steps
            self._lateness = rng.randrange(self.steps - 3, self.steps + 1)
        self._misses = rng.randrange(4, 16)
        self._notice = rng.randrange(1, 2 * self.steps - 1)
        self._spoilt = rng.randrange(1, self.steps)
        self._joins = rng.randrange(1, self.steps // 2 + 1)
        self._done: set[str] = set()
        self._begun = threading.Event()
        self._mortal = [f"w{number}" for number in range(2, founders)]
        self._lacked = 0
        """Calls that were given up before somebody came for that."""

    @property
    def _refusals(self) -> list[Cell]:
        return [found for pair, found in CELLS.items() if found.outcome is REFUSED and self.features.issuperset(pair)]

    def run(self) -> None:
        """Until all programs have ended."""
        refusals = [found for found in self._refusals if not found.begins]
        with self.job:
            for number in range(self._founders):
                self._enter(f"w{number}", self._founder(number))
            if refusals:
                self._refused(refusals[0])
                return
            if "spares" in self.features:
                assert self.job.cluster.wait(lambda: self.job.cluster.view, PATIENCE), "not founded"
                self._enter(SPARE, lambda: None)
            deadline = time.monotonic() + PATIENCE
            while self.job.workers["w0"].thread.is_alive():
                self.job.workers["w0"].thread.join(0.01)
                if self._begun.is_set():
                    for name in self._late:
                        self._enter(name, lambda: None, recovery="wait" if name == WAIT else "live")
                    self._late = []
                if "min_size" in self.features:
                    self._reinforce()
                assert time.monotonic() < deadline, f"w0 is stuck: {self._where()}"
            for name, worker in self.job.workers.items():
                if worker.ft.rank >= 0:  # else there is nobody any more to let it in
                    worker.thread.join(max(0.0, deadline - time.monotonic()))
                    assert not worker.thread.is_alive(), f"{name} is stuck: {self._where()}"
                if worker.error is not None:
                    raise worker.error
            self._judge()

    def _reinforce(self) -> None:
        """Where calls were given up since somebody came last: as many come as are missing."""
        workers, view = self.job.workers, self.job.cluster.view
        coming = [name for name in self._joiners if workers[name].ft.rank < 0 and workers[name].thread.is_alive()]
        missing = 0 if view is None else self._founders - len(view)
        lacked = sum(student.lacked for student in self.students.values())
        if missing > 0 and coming:
            self.job.cluster.admit()
        if lacked == self._lacked or view is None:
            return
        self._begun.set()
        if self._late or coming:
            return
        self._lacked = lacked
        for _ in range(missing):
            self._enter(f"more-{len(self.students):04}", lambda: None)

    def _stay(self) -> None:
        """Until all that count have come to the end: they would be too few for it."""
        until, workers = time.monotonic() + PATIENCE, self.job.workers.copy()
        while any(self.students[n].states and not self.students[n].ending and workers[n].ft.rank >= 0 for n in workers):
            assert time.monotonic() < until, "somebody does not come to its end"
            time.sleep(0.01)

    @property
    def _joiners(self) -> list[str]:
        return [name for name in self.students if "-" in name]

    def _refused(self, cell: Cell) -> None:
        """Nobody begins, and everybody is told why."""
        for name, student in self.students.items():
            self.job.workers[name].join()
            _compare(cell, student.error, student.ending)

    def _enter(self, name: str, hook: object, **settings: str) -> None:
        student = self.students[name] = Student(self.features, self.steps, self._founders, self._folder)
        student.hook = hook  # type: ignore[assignment]
        if name == "w1" and "veto" in self.features:
            student.spoils = lambda: self._once("spoil", self.job.workers["w1"].ft.step >= self._spoilt)
        if "decline" in self.features:
            student.declines = self._decliner(name)
        if "min_size" in self.features:
            student.stays = self._stay
        usual = self.job.settings
        self.job.settings = {**usual, **settings}
        self.job.start(name, student.learn)
        self.job.settings = usual

    def _decliner(self, name: str) -> Callable[[], bool]:
        """One of the founders does so in any case, in the step for which it is late if it is late for one.

        Joiners mostly do in the first one; not where a step has several calls, as they do not know which one that would be.
        """
        rng = random.Random(self._rng.random())
        first = self._lateness or rng.randrange(1, self.steps)
        joins = name in self._joiners
        at_once = joins and "evaluation" not in self.features and rng.random() < 0.6

        def declines() -> bool:
            if joins and not self.students[name].states:
                return self._once(f"decline {name}", at_once)
            step = self.job.workers[name].ft.step
            return (name == "w1" and self._once("decline", step >= first)) or rng.random() < DECLINED

        return declines

    def _once(self, what: str, now: bool) -> bool:
        if not now or what in self._done:
            return False
        self._done.add(what)
        return True

    def _founder(self, number: int) -> object:
        def hook() -> None:
            ft = self.job.workers[f"w{number}"].ft
            step = ft.step
            if number == 0:
                time.sleep(0.001)
                if step >= self._joins and "min_size" not in self.features:
                    self._begun.set()
                if self._waits_for_joiners():
                    time.sleep(0.02)
            if number == 1 and self._lateness and self._once("late", step >= self._lateness):
                until = time.monotonic() + 6 * DEADLINE
                while time.monotonic() < until and ft.metrics()["stood_in"] < self._misses:
                    time.sleep(0.005)
            if number == 1 and "drain" in self.features and self._once("drain", step >= self._notice):
                ft.drain("the test")
            if number == 2 and self._killed and self._once("kill", step >= self._moment):
                for name in self._mortal:
                    self.job.kill(name)

        return hook

    def _waits_for_joiners(self) -> bool:
        """Whether somebody is on its way: jobs as small as these would be over before it is there."""
        return any(
            name not in self.students or (name in self.job.workers and not self.students[name].states)
            for name, feature in ((FOLLOW, "follow"), (WAIT, "wait"))
            if feature in self.features and "spares" not in self.features
        )

    def _where(self) -> str:
        return ", ".join(f"{name} {self.students[name].ending!r} {worker.ft!r}" for name, worker in self.job.workers.items())

    def _judge(self) -> None:
        endings = {name: student.ending for name, student in self.students.items()}
        allowed = {name: {"done"} for name in endings}
        if "kill" in self._done:
            for name in self._mortal:
                del allowed[name]
        if "drain" in self._done:
            allowed["w1"] = {"left"}
        for name in self._joiners:
            if not self.students[name].states:
                allowed[name] |= {"left", ""} if self.job.workers[name].ft.rank < 0 else {"left"}  # the job is over
                if "min_size" in self.features:  # whose patience is short, also with a job that ends
                    allowed[name] |= {"RebuildTimeout", "StepMismatch"}
        wrong = {
            name: (ending, self.students[name].error)
            for name, ending in endings.items()
            if ending not in allowed.get(name, {ending})
        }
        assert not wrong, wrong
        if "min_size" in self.features and "kill" in self._done:
            assert self._lacked, "there were always enough"
        done = [student for student in self.students.values() if student.ending == "done"]
        first = done[0]
        for student in done:
            assert torch.equal(student.model.weight, first.model.weight), student.name
            assert student.last == first.last
            # Not below min_size: who gave a sync up does not count it, and who still waited in it as another one came does.
            if student.local is not None and first.local is not None and "min_size" not in self.features:
                assert student.local.syncs == first.local.syncs, f"{student.name}: other syncs"
        for student in self.students.values():
            # The last call of who dies may be done again by the others, without it.
            common = sorted(student.states.keys() & first.states.keys())
            for step in common if student.ending == "done" else common[:-1]:
                assert student.states[step] == first.states[step], f"{student.name} after step {step}"
        if first.samples:
            judge(done, epochs=EPOCHS, size=first.size)  # type: ignore[arg-type]
        else:
            assert first.last == first.steps
        refused = [refusal for student in self.students.values() for refusal in student.refusals]
        assert bool(refused) == bool(self._refusals), f"{self._refusals}, and refused was {refused}"
        for refusal in refused:
            named = [cell for cell in self._refusals if all(word in str(refusal) for word in cell.says)]
            assert named, f"{refusal} names none of {self._refusals}"
        if "decline" in self._done and not self._refusals:
            declined = [status for student in self.students.values() for status in student.declined]
            assert declined and set(declined) <= {Status.FAIL, Status.ABORT}, declined
        if "checkpoint" in self.features:
            self._restores(first)

    def _restores(self, first: Student) -> None:
        """The newest checkpoint holds what its step left."""
        found = newest(self._folder)
        assert found is not None and isinstance(found.tree, dict)
        weight = found.tree["model"][0]["weight"]
        if found.name.step in first.states:
            assert weight.numpy().tobytes() == first.states[found.name.step]


def _compare(cell: Cell, error: BaseException | None, ending: str = "") -> None:
    """The refusal names the combination."""
    assert isinstance(error, ConfigError), f"{cell} was not refused: {ending} {error}"
    missing = [word for word in cell.says if word not in str(error)]
    assert not missing, f"{missing} is not named by: {error}"


@functools.cache
def _prepare() -> None:
    """Import what an optimizer imports at its first step, which takes longer than some patience here."""
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.zeros(1)
    torch.optim.SGD([weight], lr=1.0).step()


@contextmanager
def _tracebacks() -> Iterator[list[str]]:
    """Errors that went into the log only: what gave up then may be missed by nobody."""
    logged: list[str] = []

    class Keeps(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info:
                logged.append(f"{record.getMessage()}: {record.exc_info[1]!r}")

    handler, logger = Keeps(), logging.getLogger("ftlib")
    logger.addHandler(handler)
    try:
        yield logged
    finally:
        logger.removeHandler(handler)


def drive(features: Collection[str], seed: int) -> None:
    """Run and judge one job; AssertionError, or what a worker raised."""
    _prepare()
    with tempfile.TemporaryDirectory() as folder, _tracebacks() as logged:
        Course(features, seed, Path(folder)).run()
    assert not logged, logged
