"""Reminders of what a program with several workers seems to have forgotten, and would notice late; logged once, at WARNING."""

from __future__ import annotations

from consensus import CarefulLogger

from ...data.unregistered import READ
from ..plane.plane import Plane

logger = CarefulLogger("ftlib")


class Reminders:
    """The reminders of one process. Used in the program's turn, after the first finished call in a view of several members."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def look(self, plane: Plane, *, trains: bool) -> None:
        """Log the reminders that are due. ``trains``: True if the program has averaged gradients."""
        if trains and not plane.has_state:
            self._tell(
                plane,
                "no state is registered: every worker keeps the weights that it began with, and one that joins gets none of "
                "the others'; call register_state(model=..., optimizer=...) at every worker",
            )
        if plane.data.sampler is None and READ:
            self._tell(
                plane,
                "an ElasticSampler is read here that is not registered: it deals the whole dataset to every worker; pass it as "
                "sampler= to register_state",
            )

    def _tell(self, plane: Plane, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            logger.warning("%s", text, extra=plane.about("unregistered"))
