"""The pattern of a program's calls: which calls make up one of its steps, found from its latest calls.

A late program goes on after whole steps of the others, so the deputy has to know what a step is. The program does not say, so
the shortest pattern that the last ``WINDOW`` calls repeat at least three times counts as a step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ..calls.call import Kind
from ..tensors.layout import Layout

LONGEST = 8
"""Number of calls that a step may have."""
WINDOW = 3 * LONGEST
"""Number of latest calls that must show the pattern."""


class CallPattern:
    """The pattern of one program's calls. Used in the program's turn only."""

    def __init__(self) -> None:
        """Nothing was called yet."""
        self._latest: deque[Layout] = deque(maxlen=WINDOW)

    def note(self, layout: Layout) -> None:
        """The program finished a call with this layout."""
        self._latest.append(layout)

    def step(self) -> tuple[Layout, ...]:
        """The calls of a step, beginning with the next call; empty if there is no pattern."""
        calls = [layout.signature for layout in self._latest]
        if len(calls) < WINDOW:
            return ()
        for length in range(1, LONGEST + 1):
            if calls[length:] == calls[:-length]:
                return tuple(self._latest)[-length:]
        return ()


def why_not(step: Sequence[Layout]) -> str:
    """Why a deputy cannot stand in for a program that is about to begin such a step; empty if it can."""
    if not step:
        return f"the last {WINDOW} calls of this worker do not repeat a step of at most {LONGEST} calls"
    if step[0].kind != Kind.AVERAGE.value:
        return "the step that this worker is late with does not begin with an average"
    known = (Kind.AVERAGE.value, Kind.ALLREDUCE.value, Kind.BARRIER.value, Kind.VOTE.value)
    other = next((layout.text for layout in step if layout.kind.partition(" ")[0] not in known), "")
    if other:
        return f"a step has a call that needs this worker itself ({other})"
    if len({layout.signature for layout in step if layout.kind == Kind.AVERAGE.value}) > 1:
        return "a step has averages of different tensors, and apply= cannot tell them apart"
    return ""
