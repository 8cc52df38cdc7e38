"""Where one member is in its rounds: the inner steps that it has done, and what they weigh. A member's own, not the job's."""

from __future__ import annotations

from typing import Any

from ...errors import ConfigError
from ...ftlib import FTLib

WEIGHTS = ("steps", "samples", "equal")
"""What a member's share in an average is by."""


class Place:
    """Counts inner steps. Used by the training thread."""

    def __init__(self, fragments: int, weight: str) -> None:
        """``weight``: one of ``WEIGHTS``; else ConfigError."""
        if weight not in WEIGHTS:
            raise ConfigError(f"weight={weight!r}: choose one of {', '.join(WEIGHTS)}")
        self._weight = weight
        self.total = 0
        """Inner steps in all."""
        self.steps = 0
        """Inner steps since the last sync."""
        self._unused = 0
        """Inner steps whose batches no sync has used up. Those of an earlier loop over the samples are gone with it."""
        self._using = 0
        """Of these, those whose batches the sync uses up that has begun."""
        self._loop = 0
        """How many loops over the samples had begun by the last inner step."""
        self._behind = [0] * fragments
        """Inner steps since each fragment's last sync."""
        self._samples = [0.0] * fragments
        """Samples that syncs have used up since each fragment's last one."""
        self._interval = 0.0
        """Samples that the sync uses up which has begun."""

    def stepped(self, loop: int) -> None:
        """An inner step was done, in the ``loop``-th loop over the samples."""
        if loop != self._loop:
            self._loop, self._unused, self._using = loop, 0, 0
        self.total += 1
        self.steps += 1
        self._unused += 1
        for index in range(len(self._behind)):
            self._behind[index] += 1

    def begin(self, ft: FTLib, fragment: int) -> tuple[float, int]:
        """A sync of ``fragment`` begins: its weight, and how many of the sampler's batches it uses up."""
        registered = ft.registered
        samplers = [] if registered is None else registered.elastic()
        if self._weight == "samples" and not samplers:
            raise ConfigError('weight="samples" needs an ElasticSampler: register it with register_state(sampler=...)')
        self._using = self._unused
        self._interval = sum(sampler.weight(self._using) for sampler in samplers)
        if not self._behind[fragment]:
            weight = 0.0
        elif self._weight == "samples":
            weight = self._samples[fragment] + self._interval
        else:
            weight = float(self._behind[fragment]) if self._weight == "steps" else 1.0
        return weight, self.batches(ft)

    def batches(self, ft: FTLib) -> int:
        """How many of the sampler's batches the sync uses up that has begun. A loop that has begun since has none of them: what
        was drawn in the one before, mostly the fillers at the end of an epoch, went back when it ended.
        """
        return self._using if ft.registered is not None and ft.registered.elastic() else 1

    def used(self) -> None:
        """The sync that had begun has used up its batches."""
        self._unused -= self._using
        self._using = 0
        self._samples = [samples + self._interval for samples in self._samples]

    def ended(self, fragment: int, *, applied: bool) -> None:
        """The sync of ``fragment`` is made."""
        self.steps = 0
        if applied:
            self._behind[fragment], self._samples[fragment] = 0, 0.0

    def anew(self) -> None:
        """The local weights are the global ones: the inner steps until now weigh nothing."""
        self._behind = [0] * len(self._behind)
        self._samples = [0.0] * len(self._samples)

    def state_dict(self) -> dict[str, Any]:
        """How far the member is in its round, which is what a joiner takes over of it."""
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on at another member's place."""
        self.steps = int(state["steps"])
