"""The views of which the program is still to be notified."""

from __future__ import annotations

from consensus import View


class News:
    """The views of which the program is still to be notified: after the first call finished in each, at the same point at
    every member. Guarded by the plane's lock. It outlives a lifetime: the next one delivers what is still pending.
    """

    def __init__(self) -> None:
        self.changes: list[View] = []
        """Views activated since the last call that was finished here."""
        self.due: list[View] = []
        """Views in which a call was finished, and of which the program was not notified yet."""
        self._before: int | None = None
        """How many of ``changes`` were active when the others finished the call that is to be finished here, too."""

    def activated(self, view: View, *, adopts: bool) -> None:
        """``adopts``: True if this member has yet to finish a call that others finished in an earlier view."""
        if not adopts:
            self._before = None
        elif self._before is None:
            self._before = len(self.changes)
        self.changes.append(view)

    def finished(self) -> None:
        """A call was finished in the newest view."""
        self.due += self.changes
        self.changes.clear()

    def adopted(self) -> None:
        """This member finished a call that others had finished in an earlier view."""
        before, self._before = self._before or 0, None
        self.due += self.changes[:before]
        del self.changes[:before]
