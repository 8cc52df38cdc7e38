"""A spare: a worker above ``max_size``, whose program waits in its first call until the view has room for it.

A spare waits without limit, since the job goes on without it; meanwhile it gets the state. The engine calls ``wait`` and knows
nothing else of spares.
"""

from __future__ import annotations

import math

from consensus import CarefulLogger, LeftError

from ..core.calls.call import Call
from ..core.engine.waiting import WARN_AFTER, Patience, ended
from ..core.plane.phase import Phase
from ..core.plane.plane import Plane
from ..recovery import Catchup

logger = CarefulLogger("ftlib")


class Spare:
    """One worker's wait for its first view. Used by the training thread."""

    def __init__(self, plane: Plane, catchup: Catchup) -> None:
        """``catchup``: gets the state while this worker waits, and continues in its first view."""
        self._plane = plane
        self._catchup = catchup

    def wait(self, call: Call) -> None:
        """Return once this worker is in a view; the time allowed for ``call`` begins then.

        Raises the error that ended this lifetime, LeftError if this worker has to go, and ConfigError if its state does not
        fit the job's.
        """
        self._catchup.stand_by(call)
        try:
            self._wait(call)
        except BaseException:
            self._catchup.end()
            raise
        call.restart(self._plane.threads.now())

    def _wait(self, call: Call) -> None:
        plane, now = self._plane, self._plane.threads.now
        patience = Patience(math.inf, now(), now)
        while True:
            with plane.changed:
                if plane.phase is Phase.STOPPED:
                    raise ended(plane)
                if plane.phase is not Phase.WAITING:
                    return
                if plane.leaving():
                    raise LeftError("asked to leave while it waited for a view to act in")
                if self._catchup.trouble is not None:
                    raise self._catchup.trouble
                plane.tell()
                plane.changed.wait(WARN_AFTER)
            waited = patience.due()
            if waited is not None:
                text = "%s: not admitted to a view yet (a spare, above max_size) for %.0f s; no view is active at this worker"
                logger.warning(text, call, waited, extra=plane.about("waiting", call=call.number, waited_seconds=waited))
