"""Log messages about members that keep the others waiting: stragglers, and this worker if its training thread hangs.

Only the worker's own process can show where its training thread is, and end it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable

from consensus import CarefulLogger

from ...common.units import span
from ..calls.session import Session
from .plane import Plane
from .step_times import Straggler, StragglerReport

logger = CarefulLogger("ftlib")

HUNG = 75
"""Exit code of a process that ends because its program hangs (EX_TEMPFAIL: try again)."""
_LOOK = 0.2
"""Seconds between two checks whether the program is back."""


def stack(plane: Plane) -> str:
    """The stack of the training thread, one line per frame.

    Where a backward on a device has entered the last call, that is a thread of torch's own, which is in no Python code between
    two passes. Then the program is most likely in the main thread.
    """
    frames = sys._current_frames()  # noqa: SLF001 - the only way to see another thread's stack
    frame, main = frames.get(plane.training_thread), frames.get(threading.main_thread().ident or 0)
    if frame is None and main is not None:
        said = "  nowhere: it has ended, or is one of torch's, which waits for the next backward; the main thread is at:\n"
        return said + "".join(traceback.format_stack(main))
    return "".join(traceback.format_stack(frame))


def log_stall(plane: Plane, call: int, waited: float) -> None:
    """Log the stack of the training thread, which has not entered ``call`` for ``waited`` seconds."""
    logger.error(
        "the others have waited in call %d for %.1f s, this worker has not entered it and is given up; raise stall_timeout if "
        "that was work. Its training thread is at:\n%s",
        call,
        waited,
        stack(plane),
        extra=plane.about("stalled", call=call, waited_seconds=waited),
    )


def end_hung(plane: Plane, back: Callable[[], bool], patience: float, end: Callable[[int], object] = os._exit) -> None:
    """End this process unless ``back()`` (the program has entered a call) within ``patience`` seconds. Has its own thread.

    For a worker with a launcher that restarts it: the others have given it up, and its hanging thread would see no exception.
    """
    until = time.monotonic() + patience
    while not back():
        if time.monotonic() >= until:
            logger.error(
                "this worker was given up, and has not come to a call within another %g s (stall_timeout): it ends, so that "
                "its launcher starts it anew. Its training thread is at:\n%s",
                patience,
                stack(plane),
                extra=plane.about("hung"),
            )
            end(HUNG)
            return
        time.sleep(_LOOK)


def log_stragglers(plane: Plane, session: Session, verdict: StragglerReport) -> None:
    """Log which members of ``session`` have fallen behind or keep pace again; note stragglers for the program."""
    step_times = plane.step_times
    for member_id, own, median, steps in verdict.fell:
        found = Straggler(member_id, session.name(member_id), session.ranks[member_id], own, median, steps)
        step_times.fallen.append(found)
        text = "%s is slow: %s between calls, the others %s (median), in %d steps in a row"
        fields = {"straggler": member_id, "seconds": own, "median_seconds": median, "steps": steps}
        logger.warning(text, found.name, span(own), span(median), steps, extra=plane.about("straggler", **fields))
    for member_id in verdict.recovered:
        extra = plane.about("straggler_recovered", straggler=member_id)
        logger.info("%s keeps pace with the others again", session.name(member_id), extra=extra)
