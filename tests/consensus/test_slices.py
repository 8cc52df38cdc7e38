"""Threads that others wait for ask for short time slices."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from consensus import short_slices
from consensus.wire.slices import SLICE
from tests.harness.basics import TIMEOUT

SCHED = Path("/proc/thread-self/sched")


def in_a_thread(function: Callable[[], object]) -> object:
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join(TIMEOUT)
    return found[0]


def own() -> tuple[int | None, int]:
    """This thread's slice in nanoseconds, where the kernel tells, and its niceness."""
    told = {name.strip(): value for name, _, value in (line.partition(":") for line in SCHED.read_text().splitlines())}
    return int(told["se.slice"]) if "se.slice" in told else None, os.getpriority(os.PRIO_PROCESS, 0)


@pytest.mark.skipif(not SCHED.exists(), reason="this kernel tells nothing of slices")
def test_a_thread_and_those_that_it_starts_get_them_and_stay_as_nice_as_they_were() -> None:
    before = own()

    def asks() -> tuple[object, ...]:
        os.setpriority(os.PRIO_PROCESS, 0, before[1] + 1)
        return short_slices(), own(), in_a_thread(own)

    agreed, mine, inherited = in_a_thread(asks)  # type: ignore[misc]
    if not agreed or mine[0] is None:
        pytest.skip("this kernel gives all threads the same slices")
    assert mine == inherited == (SLICE, before[1] + 1)
    assert own() == before, "nobody else's"


def test_elsewhere_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "pdp11")
    assert short_slices() is False
