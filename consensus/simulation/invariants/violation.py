"""A broken invariant."""

from __future__ import annotations

__all__ = ["Violation"]


class Violation(AssertionError):
    """``number``: of the invariant, as ``docs/protocol.md`` counts them; the text tells who, when, and what led there."""

    def __init__(self, number: int, title: str, text: str, story: str) -> None:
        """``story``: what happened lately, a line an event."""
        super().__init__(f"invariant {number} ({title}): {text}\n{story}".rstrip())
        self.number = number
        self.text = text
