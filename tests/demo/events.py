"""A made-up run: four workers, one killed at t = 2, replaced at t = 4, one added at t = 5; 0.1 s a step."""

from __future__ import annotations

from typing import Any

from ftlib.cli.demo.reference import Reference
from ftlib.cli.demo.timeline import Deed, Fault, Timeline

START = 1000.0
VICTIM, AGAIN, ADDED = 12, 22, 30
STEPS = 60


def note(event: str, t: float, pid: int, **facts: Any) -> dict[str, Any]:
    return {"event": event, "t": START + t, "pid": pid, **facts}


def step(t: float, pid: int, number: int, epoch: int, rank: int, size: int, digest: str = "") -> dict[str, Any]:
    facts = {"step": number, "epoch": epoch, "rank": rank, "size": size, "loss": 2.0 / number, "hash": digest or f"h{number}"}
    return note("step", t, pid, **facts)


def lines() -> list[dict[str, Any]]:
    """What the workers would have noted."""
    found = [note("born", -2.0, pid, worker=pid - 10) for pid in (10, 11, VICTIM, 13)]
    found += [note("born", 3.0, AGAIN, worker=2), note("met", 3.5, AGAIN), note("born", 4.5, ADDED, worker=4)]
    views = {1: (10, 11, VICTIM, 13), 2: (10, 11, 13), 3: (10, 11, 13, AGAIN), 4: (10, 11, 13, AGAIN, ADDED)}
    for number in range(1, STEPS + 1):
        t = number * 0.1
        epoch = 1 if t < 2.05 else 2 if t < 4.05 else 3 if t < 5.05 else 4
        late = 0.03 if number == 21 else 0.0  # the first step without the victim
        for rank, pid in enumerate(views[epoch]):
            found.append(note("view", t + late, pid, epoch=epoch, pids=list(views[epoch])))
            found.append(step(t + late + rank * 0.001, pid, number, epoch, rank, len(views[epoch])))
    found += [note("done", 6.5, pid, step=STEPS, correct=350) for pid in views[4]]
    return sorted(found, key=lambda line: float(line["t"]))


def ended() -> list[dict[str, Any]]:
    """What the launcher and the demo would have noted at the end."""
    gone = [note("ended", 7.0, pid, worker=0, code=0) for pid in (10, 11, 13, AGAIN)]
    return [*gone, note("over", 7.1, 0, code=0, seconds=9.0)]


def timeline(*, noted: list[dict[str, Any]] | None = None, closed: bool = True) -> Timeline:
    """All of it, put together as the demo would."""
    made = Timeline(START - 2.5)
    notes = lines() if noted is None else noted
    made.noted([line for line in notes if line["t"] <= START + 2.03])
    made.done(Deed(Fault.KILL, START + 2.03, VICTIM, 2, 2))
    made.launched([note("ended", 2.04, VICTIM, worker=2, code=-9), note("started", 3.0, AGAIN, worker=2, start=2)])
    made.noted([line for line in notes if START + 2.03 < line["t"] <= START + 4.5])
    made.done(Deed(Fault.ADD, START + 4.5, ADDED, 4, -1))
    made.noted([line for line in notes if line["t"] > START + 4.5])
    if closed:
        made.launched(ended())
        made.ended(START + 7.0, ADDED, 0)
    return made


REFERENCE = Reference((351,), tuple(2.1 / number for number in range(1, STEPS + 1)))
