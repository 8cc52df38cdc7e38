"""A unit: a function of the program's that is carried out as one call, by all members or by none (``FTLib.execute``).

For the plane it is one numbered call, laid out like a barrier: its *commit*. The calls that the function makes are operations
of the unit's session, and have no numbers. A member enters the commit once all that its function began has ended there. So
whoever finishes it knows that everybody has carried out the whole function, and a survivor that adopts it needs no data.

An attempt that does not come to the commit is undone at once. One that fails in the commit is *in doubt*: the next view says
whether anybody finished it, and so whether this member keeps what it did or undoes it.
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
"""How kinds of layouts begin of calls within a unit: they agree with none outside."""


class UnitStage(Enum):
    """Where a unit is at this member."""

    READY = "ready"
    """The registered state is that on entry."""
    RUNNING = "running"
    """The function is under way."""
    PERFORMED = "performed"
    """It has ended, and so have the calls that it began: what is left is the commit."""


class Running(Protocol):
    """What the program's calls see of the attempt at a unit that they are made in (``execution.Execution``)."""

    @property
    def session(self) -> Session:
        """In which it is."""

    @property
    def group(self) -> Group | None:
        """For the program's own collectives; None where this worker is alone."""

    def start(self, call: Call) -> PendingCall:
        """Begin a call of the function's."""


class Unit(Call):
    """One ``execute``. Used by the training thread; ``kept`` is set under the plane's lock, and read by others."""

    changes_state = True

    def __init__(self, function: Callable[[], Any], layout: Layout) -> None:
        """``function``: run in the grad mode of whoever makes the unit. ``layout``: that of the commit."""
        super().__init__(Kind.UNIT, layout, ())
        self._function = function
        self._grad, self._inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        self.stage = UnitStage.READY
        self.value: Any = None
        """What the function returned."""
        self.kept: Kept | None = None
        """The registered state on entry."""
        self.execution: Running | None = None
        """While the function is under way."""
        self.granted = False
        """Whether one of them granted an optimizer step. However many there are: a unit is one step."""

    @property
    def in_doubt(self) -> bool:
        """Whether others may have finished it although it is not finished here."""
        return self.stage is UnitStage.PERFORMED

    def steps(self, results: Results) -> int:  # noqa: ARG002 - what its calls came to was seen at each of them
        """See ``Call``."""
        return int(self.granted)

    def entry(self, live: Callable[[], object]) -> Callable[[], object] | None:  # noqa: ARG002 - it changes
        """See ``Call``."""
        return None if self.kept is None else self.kept.tree

    def reloaded(self) -> None:
        """The registered state was loaded on entry, and nothing is to be undone any more. The function computes on it."""
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
        self.stage, self.value, self.granted, self.nbytes = UnitStage.RUNNING, None, False, 0
        self.batches = 0
        try:
            with torch.inference_mode(self._inference), torch.set_grad_enabled(self._grad):
                self.value = self._function()
        finally:
            self.execution = None

    def performed(self, layouts: Sequence[Layout]) -> None:
        """All that the function began has ended; ``layouts``: of the calls that it made."""
        # They have done the same, and the next unit begins each of its operations as this one did.
        self.stage, self.script = UnitStage.PERFORMED, (*layouts, self.layout)

    def left(self) -> UnitStage:
        """This attempt comes to nothing; the stage that it had reached."""
        stage, self.stage = self.stage, UnitStage.READY
        return stage

    def keep(self, kept: Kept) -> None:
        """The registered state on entry. Under the plane's lock."""
        self.kept = kept

    def used(self, batches: int) -> None:
        """A call that the function made uses up so many batches."""
        self.batches += batches

    def made(self, call: Call, *, applied: bool) -> None:
        """A call that the function made has a result."""
        self.nbytes += call.nbytes
        self.granted |= applied and call.counts_as_step
