"""Faults on purpose, from inside a program: ``FaultInjector`` (from outside: ``ftlib chaos``)."""

from __future__ import annotations

import math

from ..errors import ConfigError
from ..ftlib import FTLib
from ..lifecycle.faults import Fault


class FaultInjector:
    """Orders faults of this worker, each for one step: tests of what a program does when something breaks.

    A fault happens once, in the first call that this worker makes while ``ft.step`` is ``step``: before anything of the call is
    sent. One that is ordered for a step which is over, or which this worker takes over from others, does not happen, and a line
    in the log says so.
    """

    def __init__(self, ft: FTLib) -> None:
        """Raises ConfigError where the setting ``chaos`` is off."""
        faults = ft.faults
        if faults is None:
            raise ConfigError(
                "faults may be injected only where that is allowed: set chaos = true (FTLIB_CHAOS=1, FTLib.init(chaos=True)), "
                "and never in a job whose work counts"
            )
        self._faults = faults
        self._longest = ft.settings.step_timeout

    def fail_at(self, step: int) -> None:
        """The call raises ``InjectedFault``, as if the program had failed; the others finish the step without this worker."""
        self._faults.order(step, Fault.FAIL)

    def fail_allreduce_at(self, step: int) -> None:
        """This worker's process group breaks, so that the call's operations fail at all members; the call itself recovers.

        In a job of one there is nothing that could break: nothing happens.
        """
        self._faults.order(step, Fault.FAIL_ALLREDUCE)

    def wedge_at(self, step: int, seconds: float | None = None) -> None:
        """The thread hangs before the call, while its agent lives on, until the others have given this worker up.

        ``seconds``: hang for no longer; by default for ``step_timeout``, since nothing may hang for ever.
        """
        if seconds is not None and not 0 < seconds < math.inf:
            raise ConfigError(f"wedge_at: seconds={seconds!r} must be a positive number, or None")
        self._faults.order(step, Fault.WEDGE, self._longest if seconds is None else float(seconds))
