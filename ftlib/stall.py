"""Says where a training thread is that the others have waited for too long: only its own process can."""

from __future__ import annotations

import logging
import sys
import traceback

from .logs import about
from .plane import Plane

__all__ = ["log_stall", "stack"]

logger = logging.getLogger("ftlib")


def stack(plane: Plane) -> str:
    """Where the training thread is, one line a frame."""
    frame = sys._current_frames().get(plane.training_thread)  # noqa: SLF001 - there is no other way to see another's stack
    return "".join(traceback.format_stack(frame)) if frame is not None else "  the thread has ended\n"


def log_stall(plane: Plane, call: int, waited: float) -> None:
    """Log the stack of the training thread, which has not entered ``call`` for ``waited`` seconds."""
    logger.error(
        "the others have waited in call %d for %.1f s, this worker has not entered it and is given up; raise stall_timeout if "
        "that was work. Its training thread is at:\n%s",
        call,
        waited,
        stack(plane),
        extra=about(plane, "stalled", call=call, waited_seconds=waited),
    )
