"""The pattern of a program's calls: which calls make up one of its steps, found from its latest calls.

A late program goes on after whole steps of the others, so the backup worker has to know what a step is. The program does not
say, so the shortest pattern that the last ``WINDOW`` calls repeat at least three times counts as a step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from ..calls.call import Call, Kind
from ..tensors.layout import Layout

LONGEST = 8
"""Number of calls that a step may have."""
WINDOW = 3 * LONGEST
"""Number of latest calls that must show the pattern."""


@dataclass(frozen=True, slots=True)
class Made:
    """A call that the program has made."""

    layout: Layout
    owners: int = 0
    """See ``owners_of``."""

    @property
    def kind(self) -> str:
        """What is done, without its purpose."""
        return self.layout.kind.partition(" ")[0]


class CallPattern:
    """The pattern of one program's calls. Used in the program's turn only."""

    def __init__(self) -> None:
        """Nothing was called yet."""
        self._latest: deque[Made] = deque(maxlen=WINDOW)

    def note(self, layout: Layout, owners: int | None = 0) -> None:
        """The program finished a call with this layout. ``owners``: see ``owners_of``."""
        if owners is None:
            alike = (made.owners for made in reversed(self._latest) if made.layout.signature == layout.signature)
            owners = next(alike, 0)
        self._latest.append(Made(layout, owners))

    def step(self) -> tuple[Made, ...]:
        """The calls of a step, beginning with the next call; empty if there is no pattern."""
        calls = [(made.layout.signature, made.owners) for made in self._latest]
        if len(calls) < WINDOW:
            return ()
        for length in range(1, LONGEST + 1):
            if calls[length:] == calls[:-length]:
                return tuple(self._latest)[-length:]
        return ()


def owners_of(call: Call) -> int | None:
    """Tells parameters of equal shapes apart: a number for those whose gradients ``call`` averages.

    0: there are none. None: the program declined the call; its part in the step is taken for that of the newest call like it.
    """
    if call.declines:
        return None
    lasting = call.kind is Kind.AVERAGE and bool(call.owners) and isinstance(call.owners[0], nn.Parameter)
    return hash(tuple(map(id, call.owners))) if lasting else 0


def why_not(step: Sequence[Made]) -> str:
    """Why a backup worker cannot stand in for a program that is about to begin such a step; empty if it can."""
    if not step:
        return f"the last {WINDOW} calls of this worker do not repeat a step of at most {LONGEST} calls"
    if step[0].layout.kind != Kind.AVERAGE.value:
        return "the step that this worker is late with does not begin with an average"
    known = (Kind.AVERAGE.value, Kind.ALLREDUCE.value, Kind.BARRIER.value, Kind.VOTE.value)
    other = next((made.layout.text for made in step if made.kind not in known), "")
    if other:
        return f"a step has a call that needs this worker itself ({other})"
    if len({(made.layout.signature, made.owners) for made in step if made.kind == Kind.AVERAGE.value}) > 1:
        return "a step has averages of different tensors, and apply= cannot tell them apart"
    return ""
