"""A learner: a joiner that follows the others' calls until it has their state and its own call is the next one.

The word is Raft's, for a member that still receives the state: there it has no vote, here it has, and its part in each
average has weight 0. The others train on. Meanwhile its program is inside its first call. ``Recovery`` gets the state; the
engine takes part in the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ..tensors.layout import Layout
from ..tensors.staging import Slot
from .call import Call, Results
from .session import Session

_KEPT = 3
"""Number of averages that usually suffices."""


class NoFollowing(Exception):
    """This member cannot follow any longer: it loads the state before its next call instead, and the others wait."""


def kept(layout: Layout, held: int) -> int:
    """Number of averages of that layout for which a learner has buffers from the start, if it may hold ``held`` bytes.

    At least 1, as one average always fits; 0 if ``held`` is 0.
    """
    return min(_KEPT, max(1, held // max(1, layout.nbytes))) if held else 0


class Recovery(Protocol):
    """Gets the state while the others train (see ``recovery.catchup``). Used on the training thread."""

    def wanted(self, own: Call, session: Session) -> bool:
        """True if this member lacks the state in ``session``, and can follow until the state is here."""

    def look_ahead(self, own: Call, note: Callable[[Layout], None]) -> None:
        """The program waits in ``own`` for its first view. ``note`` gets, on any thread, the layout that the others probably
        have: they would wait for it later.
        """

    def enter(self, session: Session, number: int) -> bool:
        """Before taking part in call ``number``; may wait for donors to be inside it. False: ``session`` has ended.

        Raises NoFollowing, or ConfigError if the state does not fit this program.
        """

    def finished(self, results: Results) -> bool:
        """A call was followed. True if it can be the program's own call: this member has the state on entry to that call.

        Raises NoFollowing if it turns out that this member cannot get the state.
        """

    def kept(self, results: Results) -> Sequence[Slot] | None:
        """If the buffers of ``results`` are kept: buffers of earlier results, not needed any more, in exchange. Else None."""

    def layout(self, session: Session, start: bytes) -> Layout:
        """The layout whose signature starts with ``start``, from a member of ``session``. GroupError if none answers."""

    def end(self) -> None:
        """End the recovery. Idempotent."""
