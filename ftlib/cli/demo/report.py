"""The promises, and whether they were kept: figures from the timeline and a verdict. Pure."""

from __future__ import annotations

import dataclasses
import statistics
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from ...common.processes import describe_exit
from .digits import TEST
from .reference import Reference
from .timeline import Deed, Fault, ProcessLife, State, Timeline

TOLERANCE = 6
"""Test images by which the run may differ from those that the undisturbed one gets right after one of its last steps.

Undisturbed runs of other seeds differ by as much.
"""


@dataclass(frozen=True, slots=True)
class Consequence:
    """The consequence of one deed. Times in seconds."""

    fault: str
    worker: int
    rank: int
    at: float
    """Time of the deed, after the first average of all."""
    recovery: float | None
    """Time until the slowest survivor's first average finished in an epoch without the victim.

    For an added worker: until its own first average.
    """
    pause: float | None
    """The longest time between two averages of any other worker meanwhile."""
    back: float | None
    """Time until the first average of the worker's next lifetime (for an added worker: its own first average)."""


@dataclass(frozen=True, slots=True)
class Promise:
    """One promise and whether it was kept."""

    name: str
    kept: bool
    text: str


@dataclass(frozen=True, slots=True)
class Report:
    """All figures."""

    seconds: float
    """From the first average to the last."""
    steps: int
    step_seconds: float
    """Median time between two averages of one worker."""
    epochs: int
    processes: int
    consequences: tuple[Consequence, ...]
    steps_lost: int
    compared: int
    """Fingerprints that were compared: one for each step and process."""
    divergent: int
    """Steps after which not all fingerprints were equal."""
    correct: int | None
    reference_correct: int
    last_loss: float | None
    """Mean over the last 100 steps."""
    reference_last_loss: float | None
    promises: tuple[Promise, ...]

    @property
    def kept(self) -> bool:
        """Whether every promise was."""
        return all(promise.kept for promise in self.promises)

    def facts(self) -> dict[str, Any]:
        """For programs."""
        return {"kept": self.kept, "test_images": TEST, **dataclasses.asdict(self)}

    @classmethod
    def of(cls, timeline: Timeline, reference: Reference, *, stuck: str, left: list[int]) -> Report:
        """Compute the report. ``stuck``: what the schedule waited for in vain. ``left``: pids of processes left behind."""
        lives = [life for life in timeline.lives.values() if life.steps]
        first, losses = timeline.first or timeline.start, timeline.losses()
        gaps = [b.t - a.t for life in lives for a, b in zip(life.steps, life.steps[1:], strict=False)]
        consequences = tuple(_consequence(timeline, deed) for deed in timeline.deeds)
        lost = steps_lost(lives)
        compared, divergent = fingerprints(lives)
        finals = {life.correct for life in lives if life.correct is not None}
        correct = finals.pop() if len(finals) == 1 else None
        late = acted_after(timeline)
        steps = losses[-1].step if losses else 0
        promises = (
            _goes_on(consequences, stuck),
            _loses_nothing(lost, steps),
            _alike(divergent, steps, compared, len(lives)),
            Promise("No ghosts", not late, _ghosts(late)),
            _returns(timeline, consequences),
            _learns(correct, reference),
            _leaves_nothing(timeline, left),
        )
        return cls(
            seconds=(losses[-1].t - first) if losses else 0.0,
            steps=steps,
            step_seconds=statistics.median(gaps) if gaps else 0.0,
            epochs=max(timeline.views, default=0),
            processes=len(lives),
            consequences=consequences,
            steps_lost=lost,
            compared=compared,
            divergent=divergent,
            correct=correct,
            reference_correct=reference.correct,
            last_loss=statistics.fmean(step.loss for step in losses[-100:]) if losses else None,
            reference_last_loss=reference.last_loss,
            promises=promises,
        )


# Figures.


def steps_lost(lives: list[ProcessLife]) -> int:
    """Count numbers missing in any process's own sequence, at the start of all, or at the end of processes that saw the end."""
    if not lives:
        return 0
    lost = 0
    for life in lives:
        lost += sum(abs(b.step - a.step - 1) for a, b in zip(life.steps, life.steps[1:], strict=False))
    end = max(life.steps[-1].step for life in lives)
    lost += sum(end - life.steps[-1].step for life in lives if life.state is State.DONE)
    seen = {step.step for life in lives for step in life.steps}
    return lost + sum(number not in seen for number in range(1, end + 1))


def fingerprints(lives: list[ProcessLife]) -> tuple[int, int]:
    """Return how many fingerprints were compared, and after how many steps they were not all equal."""
    by_step: dict[int, list[str]] = defaultdict(list)
    for life in lives:
        for step in life.steps:
            by_step[step.step].append(step.hash)
    compared = sum(len(hashes) for hashes in by_step.values() if len(hashes) > 1)
    return compared, sum(len(set(hashes)) > 1 for hashes in by_step.values())


def acted_after(timeline: Timeline) -> list[Deed]:
    """Return the deeds whose victim finished an average after the others had gone on without it."""
    found = []
    for deed in timeline.deeds:
        seconds = timeline.recovery(deed)
        if deed.fault is not Fault.ADD and seconds is not None:
            steps = timeline.lives[deed.pid].steps
            if steps and steps[-1].t > deed.t + seconds:
                found.append(deed)
    return found


def _consequence(timeline: Timeline, deed: Deed) -> Consequence:
    recovery = timeline.recovery(deed)
    return Consequence(
        fault=deed.fault.value,
        worker=deed.worker,
        rank=deed.rank,
        at=deed.t - (timeline.first or timeline.start),
        recovery=recovery,
        pause=_pause(timeline, deed, recovery),
        back=_back(timeline, deed),
    )


def _pause(timeline: Timeline, deed: Deed, recovery: float | None) -> float | None:
    if recovery is None:
        return None
    begin, end = deed.t, deed.t + recovery
    return max(
        (
            b.t - a.t
            for life in timeline.survivors(deed)
            for a, b in zip(life.steps, life.steps[1:], strict=False)
            if b.t > begin and a.t < end
        ),
        default=None,
    )


def _back(timeline: Timeline, deed: Deed) -> float | None:
    if deed.fault is Fault.ADD:
        return timeline.recovery(deed)
    lives = timeline.lives.values()
    first = [life.steps[0].t for life in lives if life.worker == deed.worker and life.born > deed.t and life.steps]
    return min(first) - deed.t if first else None


# Verdicts.


def _goes_on(consequences: tuple[Consequence, ...], stuck: str) -> Promise:
    name = "Training goes on"
    if stuck:
        return Promise(name, False, stuck)
    faults = [found for found in consequences if found.fault != Fault.ADD.value]
    done = {found.fault for found in consequences}
    missing = [fault.value for fault in Fault if fault.value not in done]
    if missing:
        return Promise(name, False, f"the run ended before: {', '.join(missing)}")
    vain = [found.fault for found in faults if found.recovery is None]
    if vain:
        return Promise(name, False, f"no average without the victim after {', '.join(vain)}")
    return Promise(name, True, f"after each of {len(faults)} faults all survivors finished an average without the victim")


def _loses_nothing(lost: int, steps: int) -> Promise:
    name = "No step is lost"
    if lost or not steps:
        return Promise(name, False, f"{lost} of {steps} steps are missing" if steps else "there was no step")
    return Promise(name, True, f"{steps} steps, each finished by every process that was there for it")


def _alike(divergent: int, steps: int, compared: int, processes: int) -> Promise:
    name = "Bit for bit alike"
    if divergent or not compared:
        told = f"parameters of the members differed after {divergent} of {steps} steps"
        return Promise(name, False, told if divergent else "there was nothing to compare")
    return Promise(
        name, True, f"parameters of all members equal after every step ({compared} fingerprints of {processes} processes)"
    )


def _ghosts(late: list[Deed]) -> str:
    if late:
        return f"worker {late[0].worker} finished an average after the others had gone on without it"
    return "no victim finished anything after the others had gone on without it"


def _returns(timeline: Timeline, consequences: tuple[Consequence, ...]) -> Promise:
    absent = sorted({found.worker for found in consequences if found.back is None})
    if absent:
        return Promise("All come back", False, f"not back, or never in: worker {', '.join(map(str, absent))}")
    ends = [life.worker for life in timeline.lives.values() if life.state is State.DONE]
    return Promise("All come back", bool(ends), f"{len(ends)} workers saw the end; joiners got their state from the others")


def _learns(correct: int | None, reference: Reference) -> Promise:
    name = "It learns the same"
    if correct is None:
        return Promise(name, False, "the workers that saw the end do not agree on the test accuracy, or none saw it")
    least, most = min(reference.lately), max(reference.lately)
    return Promise(
        name,
        least - TOLERANCE <= correct <= most + TOLERANCE,
        f"test accuracy {correct / TEST:.1%}, undisturbed {reference.correct / TEST:.1%} ({correct} and {reference.correct} of "
        f"{TEST}; undisturbed {least} to {most} after the last steps, from which it may be {TOLERANCE} away)",
    )


def _leaves_nothing(timeline: Timeline, left: list[int]) -> Promise:
    name = "Nothing is left"
    if left:
        return Promise(name, False, f"processes still there: {', '.join(map(str, left))}")
    failed = [life.name for life in timeline.lives.values() if life.state is State.FAILED]
    if timeline.code != 0 or failed:
        how = "does not end" if timeline.code is None else f"ended: {describe_exit(timeline.code)}"
        return Promise(name, False, f"'ftlib run' {how}; failed workers: {', '.join(failed) or 'none'} (see logs/)")
    return Promise(name, True, "exit code 0, and no process remains")
