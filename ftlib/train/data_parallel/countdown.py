"""Which buckets are complete: counts down, for each parameter, how often its gradient is still to come, then its buckets.

Plain lists that hooks hold by themselves: a hook runs for every parameter in every backward pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Countdown:
    """The counts of one model; ``number`` is a parameter's index among all parameters of the module, trained or not."""

    def __init__(self, count: int) -> None:
        """``count``: the number of parameters."""
        self.expected = [1] * count
        """How often a parameter's gradient is accumulated in one backward: more than once where parts of the graph are computed
        again within backward (re-entrant checkpoints) and share the parameter.
        """
        self.remaining = [0] * count
        """The same, as it is left in this backward; below zero if it came more often."""
        self.buckets: list[tuple[int, ...]] = [()] * count
        """The buckets that a parameter is in."""
        self.left: list[int] = []
        """By bucket, how many of its parameters are still to come."""
        self.seen: list[int] = []
        """The parameters whose gradients are complete, in that order."""
        self._start: list[int] = []

    def lay_out(self, buckets: Sequence[Iterable[int]]) -> None:
        """From now on these are the parameters of each bucket."""
        found: list[list[int]] = [[] for _ in self.buckets]
        for bucket, numbers in enumerate(buckets):
            for number in set(numbers):
                found[number].append(bucket)
        self.buckets[:] = [tuple(each) for each in found]
        self._start = [0] * len(buckets)
        self._count()

    def begin(self) -> None:
        """A backward begins."""
        self.remaining[:] = self.expected
        self.left[:] = self._start
        self.seen.clear()

    def learn(self, *, all_of: bool = False) -> None:
        """At the end of a backward: expect gradients as often as they came, if they came too often.

        ``all_of``: trust this backward for all parameters, so that nobody waits for those that were not reached.
        """
        self.expected[:] = [
            wanted - left if all_of or left < 0 else wanted for wanted, left in zip(self.expected, self.remaining, strict=True)
        ]
        self._count()

    def forget(self) -> None:
        """Expect every gradient once again."""
        self.expected[:] = [1] * len(self.expected)

    def _count(self) -> None:
        self._start[:] = [0] * len(self._start)
        for number, buckets in enumerate(self.buckets):
            if self.expected[number]:
                for bucket in buckets:
                    self._start[bucket] += 1
