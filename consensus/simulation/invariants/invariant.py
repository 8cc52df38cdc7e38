"""What all checkers share: a number, a name, and how to speak."""

from __future__ import annotations

from typing import ClassVar, NoReturn

from .violation import Violation
from .witness import Witness

__all__ = ["SLACK", "Invariant"]

SLACK = 1e-6
"""Seconds by which floating point may be off."""


class Invariant(Witness):
    """A checker. A violation is raised by the hook that sees it, at the moment it happens."""

    number: ClassVar[int] = 0
    title: ClassVar[str] = ""

    def fail(self, text: str) -> NoReturn:
        """Raise: ``text`` says who broke what; the story so far is added."""
        raise Violation(self.number, self.title, f"at {self.now:.4f} s {text}", self.jury.story.told())
