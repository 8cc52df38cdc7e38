"""Faults that are ordered from outside, by ``ftlib chaos``: who has the job's secret asks this worker's agent, and the worker
does it to itself.

Served only where the setting ``chaos`` is on and the job has a secret: then the agent has checked that who asks knows it, and
asks now. The answer is sent before the fault happens, since a killed worker answers nothing.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping

from consensus import CarefulLogger, Consensus, KeyRing

from ..settings.config import Settings
from .faults import Faults
from .supervisor_client import ask_again

logger = CarefulLogger("ftlib")

PATH = "/chaos"
KINDS = ("kill", "stop", "wedge", "slow", "cut", "leave", "agent")
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

    def __init__(self, faults: Faults, leave: Callable[[str], None], settings: Settings, ring: KeyRing | None) -> None:
        """``leave``: gives this worker notice, with the reason. ``ring``: the job's secret."""
        self._faults = faults
        self._leave = leave
        self._settings = settings
        self._ring = ring

    def source(self, consensus: Consensus, query: Mapping[str, str]) -> Iterator[bytes]:
        """Answer ``GET PATH?fault=KIND&seconds=S`` with one line of JSON, then do it; without ``fault``, the line alone.

        ``consensus``: of the present lifetime. LookupError says what is wrong with the request.
        """
        kind, seconds = query.get("fault", ""), _seconds(query.get("seconds", "10"))
        agent = consensus.agent_pid
        kinds = tuple(each for each in KINDS if agent or each != "agent")
        if kind and kind not in kinds:
            raise LookupError(f"the fault {kind} is not offered here: choose {', '.join(kinds)}")
        yield json.dumps({"kinds": kinds, "pid": os.getpid()}).encode() + b"\n"
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
        elif kind == "cut":
            consensus.cut_off(seconds)
        elif kind == "agent":
            os.kill(agent, signal.SIGKILL)
        else:
            self._come_back(consensus.id)
            self._leave("told to, by ftlib chaos")

    def _come_back(self, member: str) -> None:
        """Ask the launcher, if there is one, to start this worker again after its end: else it would not, as all was well."""
        settings = self._settings
        if not settings.supervisor or self._ring is None:
            return
        if not ask_again(settings.supervisor, self._ring.first.vouch, job=settings.consensus.job, member=member):
            logger.warning("the launcher at %s will not start this worker again once it has left", settings.supervisor)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= LONGEST:
        raise LookupError(f"seconds={text!r} must be a number above 0, at most {LONGEST:g}")
    return seconds
