"""Drawn steps of replicas of which one may be killed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from tests.ftlib.crews.workers import TIMEOUT, Job, Worker

Found = list[tuple[int, list[float]]]
"""What each step returned, with the tensors where it was committed."""


class Plan(Protocol):
    """What the replicas of one job do."""

    size: int
    victim: int | None
    """The replica that is killed, if one is."""
    killed_after: float
    """Seconds after they have met."""
    met: threading.Event


P = TypeVar("P", bound=Plan)


def survivors(plan: P, program: Callable[[Worker, int, P], Found]) -> Found:
    """What all that lived on have found, which is the same."""
    victim = None if plan.victim is None else f"w{plan.victim}"
    with Job(plan.size, min_size=1, nonfinite="pass") as job:
        for number in range(plan.size):
            job.start(f"w{number}", lambda worker, number=number: program(worker, number, plan))
        if victim is not None:
            assert plan.met.wait(TIMEOUT)
            time.sleep(plan.killed_after)  # the death falls anywhere
            job.kill(victim)
        found: list[Any] = [job.workers[name].join() for name in list(job.workers) if name != victim]
    assert all(each == found[0] for each in found)
    return list(found[0])
