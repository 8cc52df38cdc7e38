"""A crash at an exact message: its sender dies right before, or right after, it is sent."""

from __future__ import annotations

__all__ = ["Trap", "sprung"]


class Trap:
    """Springs once, at the ``count``-th message of a type sent by ``name`` (``any``: by whoever) from now on."""

    def __init__(self, name: str, kind: str, count: int, *, before: bool) -> None:
        """``kind``: the name of a message's class, or ``any``."""
        self.name = name
        self.kind = kind
        self.before = before
        self._left = max(1, count)

    def springs(self, sender: str, kind: str) -> bool:
        """``sender`` is about to send a message of type ``kind``: whether that is the one."""
        if self._left <= 0 or self.name not in ("any", sender) or self.kind not in ("any", kind):
            return False
        self._left -= 1
        return self._left == 0


def sprung(traps: list[Trap], sender: str, kind: str) -> Trap | None:
    """The trap that a message springs, taken out of ``traps``; every one counts the message."""
    found = next((trap for trap in [each for each in traps if each.springs(sender, kind)]), None)
    if found is not None:
        traps.remove(found)
    return found
