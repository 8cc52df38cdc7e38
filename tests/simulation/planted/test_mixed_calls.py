"""Rules of mixed calls, learners, backup workers and compression, broken on purpose; the promises must notice."""

from __future__ import annotations

from typing import Any

import pytest

from ftlib.core.backup.backup_worker import BackupWorker
from ftlib.core.calls.follow import Followed, FollowedAttempt
from ftlib.core.calls.open_call import OpenCall
from ftlib.core.calls.session import Session
from ftlib.core.engine.call_lock import CallLock
from ftlib.core.tensors.compression.memory import CallMemory
from tests.harness.basics import around
from tests.simulation.planted.test_open_calls import Bug, Patch
from tests.simulation.training import compressed, first_violation, mixed


def forgets_what_it_followed(patch: Patch) -> None:
    """A learner or a backup worker does not note the calls of the others: it expects something else than they do."""

    @around(patch, FollowedAttempt, "run")
    def run(honest: Any, self: FollowedAttempt, *arguments: Any) -> Any:
        session = self._session
        before = session.expected, session._newest, dict(session._after)
        result = honest(self, *arguments)
        session.expected, session._newest, session._after = before
        return result


def expects_what_was_before(patch: Patch) -> None:
    """The expectation survives into the next session, whose members may not all have been in the former one."""
    newest: dict[str, Session] = {}

    @around(patch, Session, "__init__")
    def init(honest: Any, self: Session, *arguments: Any, **more: Any) -> None:
        honest(self, *arguments, **more)
        former = newest.get(self.member_id)
        if former is not None and former.view.epoch < self.view.epoch:
            self.expected = former.expected
        newest[self.member_id] = self


def remembers_more_than_the_others(patch: Patch) -> None:
    """What came after two calls stays what it was the first time, at one of the members."""

    @around(patch, Session, "ended")
    def ended(honest: Any, self: Session, *arguments: Any) -> None:
        known = dict(self._after)
        honest(self, *arguments)
        if self.rank == 1:
            self._after |= known


def enters_though_it_missed_calls(patch: Patch) -> None:
    """A late program enters its call before it has taken over what its backup worker got."""

    @around(patch, BackupWorker, "open")
    def enter(_honest: Any, self: BackupWorker, call: OpenCall) -> bool:
        lag, self._plane.lag = self._plane.lag, type(self._plane.lag)()
        opened = self._engine.open(call)
        self._plane.lag = lag
        return opened


def stands_in_for_who_has_begun(patch: Patch) -> None:
    """A backup worker acts while its program is in an open call."""

    @around(patch, CallLock, "try_open")
    def try_open(honest: Any, self: CallLock, name: str, call: object) -> bool:
        opened: bool = honest(self, name, call)
        if opened:
            self._serial.release()
        return opened

    @around(patch, CallLock, "end_open")
    def end_open(honest: Any, self: CallLock) -> None:
        self._serial.acquire(timeout=1.0)
        honest(self)

    @around(patch, BackupWorker, "open")
    def enter(_honest: Any, self: BackupWorker, call: OpenCall) -> bool:
        return not self._backlog and self._engine.open(call)


def a_learner_counts(patch: Patch) -> None:
    """A learner has a weight, and so a part in the average."""

    @around(patch, Followed, "__init__")
    def init(honest: Any, self: Followed, *arguments: Any, **more: Any) -> None:
        honest(self, *arguments, **more)
        self.weight = 1.0


def keeps_its_own_gradients(patch: Patch) -> None:
    """What a late program computed counts in the call that the others made without it."""
    patch.setattr(BackupWorker, "_taken_over", lambda self, call: self._backlog.clear())


def owes_for_calls_that_failed(patch: Patch) -> None:
    """What an attempt did not send is owed although the call failed: its redo sends from other inputs."""

    @around(patch, CallMemory, "begin")
    def begin(honest: Any, self: CallMemory, *arguments: Any) -> None:
        if self._current is not None and self._attempt is not None:
            self._current.owed.update({number: row.clone() for number, row in self._current.unsent.items()})
        honest(self, *arguments)


def owes_with_the_state_of_others(patch: Patch) -> None:
    """Who gets the others' state sends again what is in it already."""
    patch.setattr(CallMemory, "forget", lambda _self: None)


def owes_what_was_sent(patch: Patch) -> None:
    """A finished call leaves what was owed before."""
    patch.setattr(CallMemory, "finished", lambda _self, *_place, **_more: None)


BUGS = [
    Bug(forgets_what_it_followed, known=2),
    Bug(expects_what_was_before, known=2),
    Bug(remembers_more_than_the_others, known=9),
    Bug(enters_though_it_missed_calls, known=50),
    Bug(stands_in_for_who_has_begun, known=1),
    Bug(a_learner_counts, known=2),
    Bug(keeps_its_own_gradients, known=3),
]


COMPRESSED = [
    Bug(owes_for_calls_that_failed, known=4),
    Bug(owes_with_the_state_of_others),
    Bug(owes_what_was_sent),
]


@pytest.mark.parametrize("bug", [*BUGS, *COMPRESSED], ids=[bug.plant.__name__ for bug in [*BUGS, *COMPRESSED]])
def test_a_planted_bug_is_found(bug: Bug, monkeypatch: Patch) -> None:
    bug.plant(monkeypatch)
    history = compressed if bug in COMPRESSED else mixed
    found = first_violation(history, (bug.known, *range(bug.seeds)))
    print(bug.plant.__name__, found and (found[0], found[1].split("\n")[0]))
    assert found is not None, f"{bug.plant.__doc__} Nobody noticed within {bug.seeds} histories."
    monkeypatch.undo()
    history(found[0])


def test_the_same_histories_are_clean_without_bugs() -> None:
    jobs = [mixed(seed) for seed in range(18)]
    counts = [job.trainers.promises.counts for job in jobs]
    assert sum(count["opened"] for count in counts) > 50
    assert sum(count["caught up"] for count in counts) > 2
    assert sum(count["taken over"] for count in counts) > 2
