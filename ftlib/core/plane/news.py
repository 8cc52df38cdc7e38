"""Of which views the program is still to be told: each after the first call that was finished in it, alike everywhere."""

from __future__ import annotations

from consensus import View

__all__ = ["News"]


class News:
    """Part of the plane, and guarded by its lock. It outlives a lifetime: what was not told yet is told in the next."""

    def __init__(self) -> None:
        self.changes: list[View] = []
        """Activated since the last call that was finished here."""
        self.due: list[View] = []
        """In which a call was finished, and of which the program was not told yet."""
        self._before: int | None = None
        """So many of ``changes`` were active when the others finished the call that is to be adopted."""

    def activated(self, view: View, *, adopts: bool) -> None:
        """``adopts``: whether this member lacks a call that others finished in a view before."""
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
        """The result of a call was adopted that was finished in a view before."""
        before, self._before = self._before or 0, None
        self.due += self.changes[:before]
        del self.changes[:before]
