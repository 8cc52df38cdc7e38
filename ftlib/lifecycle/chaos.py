"""Faults that are ordered from outside, by ``ftlib chaos``: who has the job's secret asks this worker's agent, and the worker
does it to itself.

Served only where the setting ``chaos`` is on and the job has a secret: then the agent has checked that who asks knows it, and
asks now. The answer is sent before the fault happens, since a killed worker answers nothing.
"""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping

from .faults import Faults

__all__ = ["KINDS", "LONGEST", "PATH", "Chaos"]

logger = logging.getLogger("ftlib")

PATH = "/chaos"
KINDS = ("kill", "stop", "wedge", "slow", "leave")
"""What a worker does to itself."""
LONGEST = 3600.0
"""Most seconds that a fault lasts."""

_STOPPER = """
import os, select, signal, sys
parent, seconds = int(sys.argv[1]), float(sys.argv[2])
fd = os.pidfd_open(parent)
if os.getppid() == parent:
    end = select.poll()
    end.register(fd, select.POLLIN)
    signal.pidfd_send_signal(fd, signal.SIGSTOP)
    end.poll(1000 * seconds)
    try:
        signal.pidfd_send_signal(fd, signal.SIGCONT)
    except ProcessLookupError:
        pass
"""
"""A process that stops its parent for a time: a stopped one could not continue itself."""


class Chaos:
    """What a worker does when it is told to. Any thread."""

    def __init__(self, faults: Faults, leave: Callable[[str], None]) -> None:
        """``leave``: gives this worker notice, with the reason."""
        self._faults = faults
        self._leave = leave

    def source(self, query: Mapping[str, str]) -> Iterator[bytes]:
        """Answer ``GET PATH?fault=KIND&seconds=S`` with one line of JSON, then do it; without ``fault``, the line alone.

        LookupError says what is wrong with the request.
        """
        kind, seconds = query.get("fault", ""), _seconds(query.get("seconds", "10"))
        if kind and kind not in KINDS:
            raise LookupError(f"the fault {kind} is not offered here: choose {', '.join(KINDS)}")
        yield json.dumps({"kinds": KINDS, "pid": os.getpid()}).encode() + b"\n"
        if not kind:
            return
        logger.warning("told to, by ftlib chaos: %s", kind, extra={"ftlib_event": "fault_injected", "fault": kind})
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif kind == "stop":
            subprocess.run([sys.executable, "-I", "-S", "-c", _STOPPER, str(os.getpid()), str(seconds)], check=False)  # noqa: S603
        elif kind == "wedge":
            self._faults.hang_next(seconds)
        elif kind == "slow":
            self._faults.slow_down(time.monotonic() + seconds)
        else:
            self._leave("told to, by ftlib chaos")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= LONGEST:
        raise LookupError(f"seconds={text!r} must be a number above 0, at most {LONGEST:g}")
    return seconds
