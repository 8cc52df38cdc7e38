"""Each rule of open calls is broken on purpose; the promises must notice within so many histories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from ftlib.core.calls import call as calls
from ftlib.core.calls.attempt import Attempt
from ftlib.core.calls.call import Call, Results
from ftlib.core.calls.open_attempt import OpenAttempt
from ftlib.core.engine import open_calls
from ftlib.core.engine.open_calls import Move, OpenCalls, OpenFacts, next_move
from ftlib.core.plane.failures import Failures
from ftlib.core.tensors.staging import Slot, Staging
from tests.harness.basics import around
from tests.simulation.training import first_violation, opened

Patch = pytest.MonkeyPatch


def data_before_the_head(patch: Patch) -> None:
    """All buckets begin at once: the others may still need the results that these overwrite."""
    patch.setattr(OpenAttempt, "room", property(lambda _self: True))


def last_bucket_at_once(patch: Patch) -> None:
    """The last bucket begins as soon as it is complete: the others finish the call while backward goes on here."""

    def move(facts: OpenFacts) -> Move:
        return next_move(replace(facts, count=facts.count + 1))

    patch.setattr(open_calls, "next_move", move)


def begins_without_a_prelude(patch: Patch) -> None:
    """A session's first call that is entered early begins with the head, though others first agree on the call."""

    @around(patch, OpenAttempt, "__init__")
    def made(honest: Any, self: OpenAttempt, *arguments: Any) -> None:
        honest(self, *arguments)
        self._asked = True


def gives_what_was_changed(patch: Patch) -> None:
    """A donor gives its result although its program has clipped it in place."""
    patch.setattr(Results, "changed", property(lambda _self: False))


def looks_before_it_copies(patch: Patch) -> None:
    """A change after the report is not looked for."""

    @around(patch, Results, "__init__")
    def init(honest: Any, self: Results, *given: Any, **more: Any) -> None:
        honest(self, *given, **{**more, "views": False})


def keeps_what_was_void(patch: Patch) -> None:
    """An incomplete gradient was sent, and that counts."""
    patch.setattr(OpenCalls, "restart", lambda _self: None)


def divides_by_its_own(patch: Patch) -> None:
    """A redo divides by what an earlier session's average had, which the others may not have."""

    first: WeakKeyDictionary[Call, float] = WeakKeyDictionary()

    @around(patch, Call, "fill")
    def fill(honest: Any, self: Call, slot: Slot, assumed: float = 1.0, **more: Any) -> None:
        honest(self, slot, first.setdefault(self, assumed), **more)

    @around(patch, Attempt, "_ended")
    def ended(honest: Any, self: Any, slots: Sequence[Slot]) -> Any:
        self._assumed = first.get(self._call, self._assumed)
        return honest(self, slots)


def slots_alternate(patch: Patch) -> None:
    """Each call turns to the other slots, even after one that was given up: those hold the results."""

    def turn(self: Staging, needed: Sequence[Slot]) -> Staging:
        del needed
        self._turn ^= 1
        return self

    patch.setattr(Staging, "turn", turn)


def stages_onto_gradients(patch: Patch) -> None:
    """An input that lies in the slot itself is scaled and summed there: nothing can be redone from it."""
    patch.setattr(Slot, "in_use", property(lambda _self: False))
    patch.setattr(calls.Call, "check_untouched", lambda _self: None)


def reports_at_the_end(patch: Patch) -> None:
    """A failure that shows in backward is kept for its end: meanwhile the others wait for a view without the dead."""
    patch.setattr(OpenCalls, "_fail", lambda _self, attempt, error: attempt.fail(error))


def raises_in_silence(patch: Patch) -> None:
    """Backward raises, and the others learn of it when somebody misses this member."""
    patch.setattr(Failures, "abandon", lambda self: self._plane.abandon())


@dataclass(frozen=True)
class Bug:
    """``plant`` breaks a rule; ``known``: the first seed that showed it when that was looked at last, which is tried first."""

    plant: Callable[[Patch], None]
    known: int = 0
    seeds: int = 60


BUGS = [
    Bug(data_before_the_head),
    Bug(last_bucket_at_once, known=84, seeds=150),
    Bug(begins_without_a_prelude),
    Bug(gives_what_was_changed, known=2),
    Bug(looks_before_it_copies, known=105, seeds=200),
    Bug(keeps_what_was_void, known=8),
    Bug(divides_by_its_own, known=1),
    Bug(slots_alternate, known=60),
    Bug(stages_onto_gradients),
    Bug(reports_at_the_end, known=1),
    Bug(raises_in_silence),
]


@pytest.mark.parametrize("bug", BUGS, ids=[bug.plant.__name__ for bug in BUGS])
def test_a_planted_bug_is_found(bug: Bug, monkeypatch: Patch) -> None:
    bug.plant(monkeypatch)
    found = first_violation(opened, (bug.known, *range(bug.seeds)))
    print(bug.plant.__name__, found and (found[0], found[1].split("\n")[0]))
    assert found is not None, f"{bug.plant.__doc__} Nobody noticed within {bug.seeds} histories."
    monkeypatch.undo()
    opened(found[0])


def test_the_same_histories_are_clean_without_bugs() -> None:
    jobs = [opened(seed) for seed in range(6)]
    assert sum(job.trainers.promises.counts["opened"] for job in jobs) > 50
