"""Invariant 13: a fenced writer never replaces a newer checkpoint. A model: nothing in this library writes checkpoints yet.

What is checked here is what a writer of checkpoints will have to tell the checker (``begin``, ``complete``, ``read``), and that
the rules of membership suffice: a plain file cannot refuse a writer that was paused, so names carry epoch and step, a step is
written once a later call has finished, and readers take the highest complete name. Tests drive it with writers that are paused
between any two operations; once checkpoints exist, their simulated plane calls it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ...view import View
from .invariant import Invariant

if TYPE_CHECKING:
    from ..host import Host
    from .jury import Jury

__all__ = ["Checkpoints", "Name"]


class Name(NamedTuple):
    """Of one checkpoint; the highest is the newest."""

    epoch: int
    step: int


class Checkpoints(Invariant):
    """* A name carries the epoch in which its writer acted when it began, and a step that a later call had followed by then.
    * One name, one content, whoever writes it.
    * What a reader takes never gets older, whatever a fenced writer still completes; and no older epoch has a higher step than
      a newer one: going on in a new epoch never goes back behind a step that was fit to be written.
    """

    number = 13
    title = "a fenced writer replaces nothing newer"

    def __init__(self, jury: Jury) -> None:
        super().__init__(jury)
        self._epochs: dict[str, int] = {}
        self._begun: dict[str, tuple[Name, str]] = {}
        self._complete: dict[Name, str] = {}
        self._read: Name | None = None

    def activated(self, host: Host, view: View) -> None:
        """See ``Witness``."""
        self._epochs[host.id] = view.epoch

    @property
    def newest(self) -> Name | None:
        """What a reader must take now."""
        return max(self._complete, default=None)

    def begin(self, host: Host, name: Name, content: str, finished: int) -> None:
        """``host`` begins to write; it has finished call ``finished`` by now."""
        who = self.jury.story.name(host.id)
        acts = self._epochs.get(host.id, 0)
        if name.epoch != acts:
            self.fail(f"{who} acts in epoch {acts} and writes {name}")
        if finished <= name.step:
            self.fail(f"{who} writes {name} though no later call than {finished} has finished: others may still undo that step")
        self._begun[host.id] = (name, content)

    def complete(self, host: Host) -> None:
        """What ``host`` began is complete: readers see it."""
        name, content = self._begun.pop(host.id)
        who = self.jury.story.name(host.id)
        known = self._complete.setdefault(name, content)
        if known != content:
            self.fail(f"{who} replaces {name} by another content")
        for other in self._complete:
            low, high = sorted((name, other))
            if low.epoch < high.epoch and low.step > high.step:
                self.fail(f"{who} completes {name}, and there is {other}: the newer epoch has gone back")

    def read(self, name: Name | None) -> None:
        """Somebody takes ``name`` for the newest."""
        if name != self.newest:
            self.fail(f"a reader takes {name}, the newest complete one is {self.newest}")
        if self._read is not None and (name is None or name < self._read):
            self.fail(f"a reader takes {name} after one took {self._read}")
        self._read = name
