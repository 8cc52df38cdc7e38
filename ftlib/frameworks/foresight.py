"""Whether an operation is the one that all ranks expect next, told without a message.

Gloo terminates the process that receives more bytes than it asked for, so ranks that enter operations of different sizes must not
exchange any data. Asking each other before every operation would cost latency, but training repeats itself. All ranks of a group
have had the same operations so far, hence a deterministic guess at the next one is the same at all of them, and of two ranks that
now enter *different* operations at most one finds its own guessed. So: who enters what was guessed goes ahead at once, who does
not asks the others first, by a collective that matches nothing but itself. Ranks that agree lose one tiny exchange when something
new begins; ranks that disagree wait or learn so, and nobody dies.

The guess: find the place in the history that looks most like the present, and expect what came after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

__all__ = ["Foresight"]

_KEPT = 4096
"""Operations remembered; a longer period than half of this is not recognised."""
_COMPARED = 256
"""Operations by which two places of the history are compared."""
_CANDIDATES = 256
"""Places of the history looked at after a wrong guess."""


class Foresight:
    """The history of one group's operations and the guess at the next. Equal histories give equal guesses."""

    def __init__(self) -> None:
        self._history: list[Hashable] = []
        self._guess = 0

    def __len__(self) -> int:
        """Operations remembered."""
        return len(self._history)

    def foresaw(self, operation: Hashable) -> bool:
        """Record the next operation and tell whether it was the one expected."""
        history, guess = self._history, self._guess
        right = guess < len(history) and history[guess] == operation
        history.append(operation)
        self._guess = guess + 1 if right else self._search()
        if len(history) > _KEPT:
            self._forget()
        return right

    def _search(self) -> int:
        """Index of what is expected next; the history's length (nothing) if the last operation is new."""
        history = self._history
        last = len(history) - 1
        best, longest, looked_at = len(history), 0, 0
        for place in range(last - 1, -1, -1):
            if history[place] != history[last]:
                continue
            looked_at += 1
            length = self._alike(place, last)
            if length >= longest:  # of equals the earliest: what is surprising mostly happens where a period begins
                best, longest = place + 1, length
            if length >= _COMPARED or looked_at >= _CANDIDATES:
                break
        return best

    def _alike(self, place: int, last: int) -> int:
        """How many operations up to ``place`` equal those up to ``last``."""
        history = self._history
        length = 0
        while length < _COMPARED and length <= place and history[place - length] == history[last - length]:
            length += 1
        return length

    def _forget(self) -> None:
        half = _KEPT // 2
        del self._history[:half]
        self._guess -= half
        if self._guess < 0:
            self._guess = self._search()
