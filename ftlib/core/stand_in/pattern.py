"""The pattern in which a program calls: which calls make up a step of it, as far as its latest calls tell.

A program that comes late goes on with whole steps of the others' calls, so somebody has to know what a step is. Nobody says:
the shortest pattern that the last ``WINDOW`` calls repeat at least three times is taken for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ..calls.call import Kind
from ..tensors.layout import Layout

LONGEST = 8
"""Calls that a step may have."""
WINDOW = 3 * LONGEST
"""Calls that must show it."""


class CallPattern:
    """Of one program's calls. Used in its turn only."""

    def __init__(self) -> None:
        """Nothing was called yet."""
        self._latest: deque[Layout] = deque(maxlen=WINDOW)

    def note(self, layout: Layout) -> None:
        """The program finished such a call."""
        self._latest.append(layout)

    def step(self) -> tuple[Layout, ...]:
        """The calls of a step, beginning with the one that comes next; empty where there is no pattern."""
        calls = [layout.signature for layout in self._latest]
        if len(calls) < WINDOW:
            return ()
        for length in range(1, LONGEST + 1):
            if calls[length:] == calls[:-length]:
                return tuple(self._latest)[-length:]
        return ()


def why_not(step: Sequence[Layout]) -> str:
    """Why nobody can stand in for a program that is about to begin such a step; empty where somebody can."""
    if not step:
        return f"the last {WINDOW} calls of this worker do not repeat a step of at most {LONGEST} calls"
    if step[0].kind != Kind.AVERAGE.value:
        return "the step that this worker is late with does not begin with an average"
    known = (Kind.AVERAGE.value, Kind.ALLREDUCE.value, Kind.BARRIER.value)
    other = next((layout.text for layout in step if layout.kind.partition(" ")[0] not in known), "")
    if other:
        return f"a step has a call that needs this worker itself ({other})"
    if len({layout.signature for layout in step if layout.kind == Kind.AVERAGE.value}) > 1:
        return "a step has averages of different tensors, and apply= cannot tell them apart"
    return ""
