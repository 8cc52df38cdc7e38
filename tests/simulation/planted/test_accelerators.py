"""Rules of accelerators are broken on purpose, one at a time; the promises must notice within so many interrupted histories.

No history shows that *an event alone counts as success*. The second lock: whatever stops a communicator has frozen the data
plane before, and a call whose operations end after a freeze is not finished, whatever they hold.
``tests/frameworks/accelerators/test_rehearsal.py`` shows it at once, by the group alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest

from ftlib.core.calls.device_attempt import DeviceAttempt
from ftlib.core.tensors.staging import Slot
from ftlib.frameworks.accelerators.managed import ManagedCommunicator
from ftlib.frameworks.accelerators.rehearsal.communicator import RehearsedCommunicator
from ftlib.frameworks.accelerators.rehearsal.faults import Faults
from ftlib.frameworks.base import Group
from tests.harness.basics import around
from tests.simulation.data_plane import HEALTHY, Equipment
from tests.simulation.data_plane.parts.accelerator import Draw
from tests.simulation.training import first_violation, interrupted

Patch = pytest.MonkeyPatch


def marks_before_the_launch(patch: Patch) -> None:
    """The end is marked before the operations are launched: the mark is reached at once."""
    patch.setattr(RehearsedCommunicator, "_await_launch", lambda _: None)


def frees_at_the_freeze(patch: Patch) -> None:
    """What peers may use is freed with the stop, not in the next view."""
    stop = ManagedCommunicator.stop

    def stop_and_free(self: ManagedCommunicator) -> None:
        stop(self)
        self.free()

    patch.setattr(ManagedCommunicator, "stop", stop_and_free)


def reports_before_the_end(patch: Patch) -> None:
    """A stop is not waited for: the report is given while the device still computes."""
    patch.setattr(ManagedCommunicator, "_idle_within", lambda _self, _seconds: True)


def asks_nobody_else(patch: Patch) -> None:
    """A member uses its accelerator because it works, whatever the others say of theirs."""

    @around(patch, DeviceAttempt, "_launch")
    def launch(honest: Any, self: DeviceAttempt, group: Group, *, accelerated: bool) -> dict[int, Slot]:
        found: dict[int, Slot] = honest(self, group, accelerated=group.accelerated)
        return found


def healthy(_rng: Random, _index: int) -> Equipment:
    return HEALTHY


def slow(rng: Random, _index: int) -> Equipment:
    """Everything takes a while, the end of an operation that is stopped as well."""
    faults = Faults(launch_seconds=rng.choice([0.002, 0.02]), kernel_seconds=rng.choice([0.0, 0.02]), silent=rng.random() < 0.5)
    return replace(HEALTHY, faults=faults)


def late(rng: Random, index: int) -> Equipment:
    """Some are there sooner than others."""
    return replace(HEALTHY, faults=Faults(start_seconds=rng.choice([0.0, 0.1]) if index else 0.1))


@dataclass(frozen=True)
class Bug:
    """``plant`` breaks a rule; with accelerators like ``draw`` a history shows it, and a checker says what matches ``says``."""

    plant: Callable[[Patch], None]
    draw: Draw
    says: str
    seeds: int
    known: int = 0
    """The first seed that showed it when it was planted: it is tried first."""


BUGS = [
    Bug(marks_before_the_launch, slow, "lacks|mixes|own part|of nobody", 10),
    Bug(frees_at_the_freeze, healthy, "frees memory that operations of .* use", 40, known=3),
    Bug(reports_before_the_end, slow, "reports while operations", 40),
    Bug(asks_nobody_else, late, r"not within 10\.0 s", 40, known=2),
]


@pytest.mark.parametrize("bug", BUGS, ids=[bug.plant.__name__ for bug in BUGS])
def test_a_planted_bug_is_found(bug: Bug, monkeypatch: Patch) -> None:
    bug.plant(monkeypatch)
    found = first_violation(lambda seed: interrupted(seed, bug.draw), (bug.known, *range(bug.seeds)))
    print(bug.plant.__name__, found and (found[0], found[1].split("\n")[0]))
    assert found is not None, f"{bug.plant.__doc__} Nobody noticed within {bug.seeds} histories."
    assert re.search(bug.says, found[1].split("\n")[0])
    monkeypatch.undo()
    interrupted(found[0], bug.draw)


@pytest.mark.parametrize("draw", [healthy, slow, late])
def test_the_same_histories_are_clean_without_bugs(draw: Draw) -> None:
    assert sum(interrupted(seed, draw).trainers.promises.counts["accelerated"] for seed in range(3)) > 20
