"""From what workers wrote down to what is compared."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from benchmarks.peers.play import Fault, Run
from benchmarks.peers.systems import WORKERS


@dataclass
class Figures:
    """Of one run."""

    system: str
    start: float
    """Seconds until all workers had made ten steps."""
    usual: float
    """Seconds a step."""
    pauses: dict[str, list[float]] = field(default_factory=dict)
    """By fault: the longest time that any survivor went without a step."""
    never: dict[str, int] = field(default_factory=dict)
    """By fault: how often a survivor had not gone on when patience was over."""
    lost: int = 0
    """Batches that were computed, at workers that went on, and in no step."""
    repeated: int = 0
    """Steps that were made again."""
    unequal: int = 0
    """Steps after which two workers held different parameters, of ``compared``."""
    compared: int = 0
    goodput: float = 0.0
    """Batches that counted, of those that four workers would have had in the same time if nothing had happened."""
    cpu: float = 0.0
    """Processor seconds of all processes."""
    batches: int = 0
    losses: list[tuple[float, float]] = field(default_factory=list)
    """(seconds since the start, loss on the test set)"""
    failed: str = ""


def figures(run: Run, cpu: float) -> Figures:
    """What this run has shown."""
    assert run.notes is not None
    lines = run.notes.lines
    found = Figures(run.system, run.together - run.began if run.together else 0.0, run.usual, cpu=cpu, failed=run.failed)
    if run.failed:
        return found
    for fault in run.faults:
        pause, ended = _pause(run, fault)
        found.pauses.setdefault(fault.kind, []).append(pause)
        found.never[fault.kind] = found.never.get(fault.kind, 0) + (not ended)
    found.lost = _lost(lines)
    used = _count(
        found, [line for line in lines if line["kind"] == "step"], run.faults[0].began if run.faults else run.together
    )
    began = run.faults[0].began if run.faults else run.together
    found.goodput = used / (WORKERS * (run.ended - began) / run.usual)
    return found


def _pause(run: Run, fault: Fault) -> tuple[float, bool]:
    """The longest time without a step, of any survivor, and whether all had gone on."""
    assert run.notes is not None
    longest, ended = 0.0, True
    for slot in fault.present:
        times = [step["t"] for step in run.notes.steps(slot)]
        before = max((time for time in times if time <= fault.began), default=run.began)
        within = [before, *(time for time in times if fault.began < time <= fault.ended)]
        ended = ended and len(within) > 1
        within += [fault.ended]
        longest = max(longest, *(after - max(before, fault.began) for before, after in itertools.pairwise(within)))
    return longest, ended


def _lost(lines: list[dict[str, Any]]) -> int:
    """Batches that were followed by another batch of the same process, without a step in between."""
    last: dict[int, str] = {}
    lost = 0
    for line in lines:
        if line["kind"] in {"batch", "step"}:
            lost += line["kind"] == "batch" == last.get(line["pid"])
            last[line["pid"]] = line["kind"]
    return lost


def _count(found: Figures, steps: list[dict[str, Any]], began: float) -> int:
    """Fill in what steps tell; how many count from that moment on."""
    newest: dict[int, int] = {}
    held: dict[int, dict[int, int]] = defaultdict(dict)
    used = 0
    for line in steps:
        slot, step = line["slot"], line["step"]
        again = step <= newest.get(slot, -1)
        newest[slot] = max(step, newest.get(slot, -1))
        found.repeated += again
        used += not again and line["t"] >= began
        held[step][slot] = line["weights"]
        if "loss" in line:
            found.losses.append((line["t"] - steps[0]["t"], line["loss"]))
    several = [set(weights.values()) for weights in held.values() if len(weights) > 1]
    found.compared, found.unequal = len(several), sum(len(each) > 1 for each in several)
    found.batches = len(steps)
    return used
