"""From what workers wrote down to what is compared."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from benchmarks.peers.play import Fault, Run
from benchmarks.peers.systems import RESTART

Line = dict[str, Any]


@dataclass
class Figures:
    """Of one run."""

    system: str
    start: float | None = None
    """Seconds until all workers had made three steps."""
    usual: float | None = None
    """Seconds a step."""
    pauses: dict[str, list[tuple[float, bool]]] = field(default_factory=dict)
    """By fault: the longest time that any survivor went without a step, and whether all had gone on when patience was over.
    If not, it would have been longer.
    """
    lost: int | None = None
    """Batches that were computed, at workers that went on, and in no step."""
    repeated: int | None = None
    """Steps that were made again."""
    unequal: int | None = None
    """Steps after which two workers held different parameters, of ``compared``."""
    compared: int = 0
    restarts: int | None = None
    """How often all of it had to be started again, as it did not come back by itself."""
    goodput: float | None = None
    """Batches that counted, of those that as many workers would have had in the same time if nothing had happened."""
    cpu: float | None = None
    """Processor seconds of all processes."""
    batches: int = 0
    losses: list[tuple[float, float]] = field(default_factory=list)
    """(seconds since the start, loss on the test set)"""
    apart: bool = False
    """Whether only some faults were played, apart from the others: then all but the pauses says nothing beside them."""
    failed: str = ""
    """Why it was not played to its end. What was seen until then counts."""


def figures(run: Run, cpu: float) -> Figures:
    """What this run has shown."""
    assert run.notes is not None
    found = Figures(run.system, cpu=cpu, failed=run.failed, restarts=run.restarts)
    if not run.together or not run.usual:
        return found
    lines = run.notes.lines
    found.start, found.usual = run.together - run.began, run.usual
    for fault in run.faults:
        if fault.present and fault.ended:
            found.pauses.setdefault(fault.kind, []).append(_pause(run, fault))
    found.lost, found.batches = _lost(lines), sum(line["kind"] == "batch" for line in lines)
    steps = [line for line in lines if line["kind"] == "step"]
    _compare(found, steps)
    began = run.faults[0].began if run.faults else run.together
    used = 0
    newest: dict[int, int] = {}
    for line in steps:
        again = line["step"] <= newest.get(line["slot"], -1)
        newest[line["slot"]] = max(line["step"], newest.get(line["slot"], -1))
        found.repeated = (found.repeated or 0) + again
        used += line["batches"] * (not again and began <= line["t"] <= run.ended)
    found.goodput = used / (run.pace * _worker_seconds(run, began))
    return found


def _pause(run: Run, fault: Fault) -> tuple[float, bool]:
    assert run.notes is not None
    longest = 0.0
    for slot in fault.present:
        within = [step["t"] for step in run.notes.steps(slot, fault.began) if step["t"] <= fault.ended]
        longest = max(longest, *(after - before for before, after in itertools.pairwise([fault.began, *within, fault.ended])))
    return longest, fault.over


def _worker_seconds(run: Run, began: float) -> float:
    """How long workers should have worked, all together: more where one has joined."""
    ends = [*(time for time, _ in run.sizes[1:]), run.ended]
    return sum(size * max(0.0, end - max(since, began)) for (since, size), end in zip(run.sizes, ends, strict=True))


def _lost(lines: Iterable[Line]) -> int:
    """Batches of a process up to its last step that are in none of its steps; those after it may be under way."""
    made: dict[int, int] = defaultdict(int)
    used: dict[int, int] = defaultdict(int)
    lost: dict[int, int] = {}
    for line in lines:
        pid = line["pid"]
        if line["kind"] == "batch":
            made[pid] += 1
        elif line["kind"] == "step":
            used[pid] += line["batches"]
            lost[pid] = made[pid] - used[pid]
    return sum(lost.values())


def _compare(found: Figures, steps: Iterable[Line]) -> None:
    """Fill in what the steps' parameters and losses tell."""
    began = None
    for together in sorted(_same(steps), key=lambda each: float(each[0]["t"])):
        began = together[0]["t"] if began is None else began
        found.losses += [(line["t"] - began, line["loss"]) for line in together[:1] if "loss" in line]
        if len({line["slot"] for line in together}) > 1:
            found.compared += 1
            found.unequal = (found.unequal or 0) + (len({line["weights"] for line in together}) > 1)


def _same(steps: Iterable[Line]) -> Iterator[list[Line]]:
    """Steps of one number that were made together. Nobody is back from a checkpoint as soon as ``RESTART``."""
    numbers: dict[int, list[Line]] = defaultdict(list)
    for line in steps:
        numbers[line["step"]].append(line)
    for lines in numbers.values():
        lines.sort(key=lambda line: float(line["t"]))
        together = lines[:1]
        for before, line in itertools.pairwise(lines):
            if line["t"] - before["t"] > RESTART:
                yield together
                together = []
            together.append(line)
        yield together
