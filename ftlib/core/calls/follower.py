"""What a joiner does instead of waiting: it follows the others until its state is theirs, and its own call is the next one.

Its program is inside its first call all the while. ``Recovery`` brings the state; the caller takes part in the calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..tensors.layout import Layout
from ..tensors.staging import Slot
from .call import Call, Results
from .session import Session

_KEPT = 3
"""What usually is enough."""


class NoFollowing(Exception):
    """This member cannot go on like this: it loads the state before its next call instead, and the others wait."""


def kept(layout: Layout, held: int) -> int:
    """For how many averages of that layout a follower has buffers from the beginning, where it may hold ``held`` bytes.

    One always fits; 0 where there is nothing to hold.
    """
    return min(_KEPT, max(1, held // max(1, layout.nbytes))) if held else 0


class Recovery(Protocol):
    """How the state gets here beside the training (see ``recovery.catchup``). Used on the training thread."""

    def wanted(self, own: Call, session: Session) -> bool:
        """Whether this member lacks the state in ``session``, and can follow until it has it."""

    def enter(self, session: Session, number: int) -> bool:
        """Before taking part in call ``number``; may wait for donors to be inside it. False: ``session`` has ended.

        Raises NoFollowing, or ConfigError where the state does not fit this program.
        """

    def finished(self, results: Results) -> bool:
        """A call was followed. Whether it can be the program's own: the state is here as it was on entry to it.

        Raises NoFollowing where it turns out not to be.
        """

    def kept(self, results: Results) -> Sequence[Slot] | None:
        """Buffers of earlier results that are not needed any more, where those of ``results`` are kept; else None."""

    def layout(self, session: Session, start: bytes) -> Layout:
        """The layout whose signature starts so, from a member of ``session``. GroupError where nobody tells."""

    def end(self) -> None:
        """Nothing more is wanted. Idempotent."""
