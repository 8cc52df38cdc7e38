"""A unit: a function of the program that is carried out as one call, by all members or by none (``FTLib.execute``).

For the plane a unit is one numbered call with a barrier's layout: its *commit*. The calls that the function makes are
operations of the unit's session, and have no numbers. A member enters the commit once all calls that its function began have
ended there. So a member that finishes the commit knows that all have run the whole function, and a survivor that adopts it
needs no data.

An attempt that does not reach the commit is undone at once. An attempt that fails in the commit is *in doubt*: the next view's
plan says whether any member finished the commit, and so whether this member keeps or undoes what the function did.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Protocol

import torch

from ...frameworks.base import Group
from ...state.snapshot import Kept
from ..calls.call import Call, Kind, Results
from ..calls.session import Session
from ..tensors.layout import Layout
from .inner import PendingCall

WITHIN = "execute "
"""Prefix of the layout kinds of calls within a unit, so that they match no call outside."""


class UnitStage(Enum):
    """The stage of a unit at this member."""

    READY = "ready"
    """The registered state is as on entry."""
    RUNNING = "running"
    """The function is under way."""
    PERFORMED = "performed"
    """The function and all calls that it began have ended: only the commit is left."""


class Running(Protocol):
    """The attempt at a unit, as the calls made within it see it (``execution.Execution``)."""

    @property
    def session(self) -> Session:
        """The session of the attempt."""

    @property
    def group(self) -> Group | None:
        """The group for the program's own collectives; None if this worker is alone."""

    def start(self, call: Call) -> PendingCall:
        """Begin a call that the function makes."""


class Unit(Call):
    """One ``execute``. Used by the training thread; ``kept`` is set under the plane's lock, and read by others."""

    changes_state = True

    def __init__(self, function: Callable[[], Any], layout: Layout) -> None:
        """``function``: run in the grad and inference modes in which the unit is made. ``layout``: that of the commit."""
        super().__init__(Kind.UNIT, layout, ())
        self._function = function
        self._grad, self._inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        self.stage = UnitStage.READY
        self.value: Any = None
        """What the function returned."""
        self.kept: Kept | None = None
        """The registered state on entry."""
        self.execution: Running | None = None
        """The attempt while the function is under way, else None."""

    @property
    def in_doubt(self) -> bool:
        """True if others may have finished the unit although it is not finished here."""
        return self.stage is UnitStage.PERFORMED

    @property
    def certain(self) -> bool:
        """See ``Call``: once the function has ended."""
        return self.in_doubt

    def entry(self, live: Callable[[], object]) -> Callable[[], object] | None:  # noqa: ARG002 - it changes
        """See ``Call``."""
        return None if self.kept is None else self.kept.tree

    def reloaded(self) -> None:
        """The registered state was loaded on entry: nothing is left to undo, and the function works on the loaded state."""
        self.kept, self.stage = None, UnitStage.READY

    def anew(self) -> None:
        """See ``Call``: the next lifetime loads the state."""
        super().anew()
        self.reloaded()

    def begin(self, execution: Running) -> None:
        """``execution`` is about to run the function."""
        self.execution = execution

    def run(self) -> None:
        """Run the function."""
        self.stage, self.value, self.counts_as_step, self.nbytes = UnitStage.RUNNING, None, False, 0
        self.batches, self.on_devices, self.accelerated = 0, False, False
        try:
            with torch.inference_mode(self._inference), torch.set_grad_enabled(self._grad):
                self.value = self._function()
        finally:
            self.execution = None

    def performed(self, layouts: Sequence[Layout]) -> None:
        """The function and all calls that it began have ended; ``layouts``: those of the calls."""
        # All members made the same calls; the next unit expects each of its calls to begin like this unit's.
        self.stage, self.script = UnitStage.PERFORMED, (*layouts, self.layout)
        self.on_devices = any(layout.places for layout in layouts)

    def left(self) -> UnitStage:
        """This attempt failed; returns the stage that it had reached."""
        stage, self.stage = self.stage, UnitStage.READY
        return stage

    def keep(self, kept: Kept) -> None:
        """Note the registered state on entry. Under the plane's lock."""
        self.kept, self.fence = kept, kept.fence

    def used(self, batches: int) -> None:
        """A call that the function made uses up ``batches`` batches."""
        self.batches += batches

    def made(self, call: Call, results: Results, *, applied: bool) -> None:
        """A call that the function made has a result."""
        self.accelerated |= results.accelerated
        self.nbytes += call.nbytes
        self.counts_as_step |= applied and call.counts_as_step  # however many of its calls grant a step, a unit is one
