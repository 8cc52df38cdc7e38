"""The interface of a compression: how members average a bucket while they send less than its float32 values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from ftlib.frameworks.base import Operation

from .reduction import Reduction


class Compression(ABC):
    """One way to compress. Objects hold no state: one may serve several models and several members at a time."""

    feedback = False
    """Whether what a call did not send of a member's contribution is added to that member's contribution to the next call."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The compression with its arguments, as ``top-k(0.01)``. Members whose names differ do not take part in one call."""

    @property
    @abstractmethod
    def stages(self) -> int:
        """How many operations ``reduce`` yields."""

    def suits(self, shape: tuple[int, ...]) -> bool:  # noqa: ARG002
        """Whether tensors of that shape are compressed; the others go in buckets of their own, as they are.

        Asked for float32 only. A tensor larger than a bucket is split into rows, see ``Reduction.pieces``.
        """
        return True

    @abstractmethod
    def reduce(self, reduction: Reduction) -> Iterator[Operation]:
        """Replace ``reduction.data``, what this member contributes, by the sum of all members' contributions.

        Yield each operation (``reduction.allreduce`` and the like) when its tensor is ready; its result is there when
        ``reduce`` goes on. All members must yield the same operations, on tensors of equal size and dtype. The result must have
        the same bits at all of them: compute it from what operations have brought alone, and only with functions whose rounding
        does not depend on the processor (sums, products and quotients of elements, but not matrix products).

        Inf and nan in any contribution must make the result inf or nan somewhere. With ``feedback``: before the last operation
        write to ``reduction.unsent`` what will not have been sent, so that the sum of the contributions is that of the result
        and of all members' ``unsent``.
        """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Compression) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"<compression {self.name}>"
