"""A compression for simulated members: it sends one half of what it has to send, exactly, and owes the other half.

So each contribution comes in halves, quarters and so on in the calls after it, and what a member owes shows in every result.
"""

from __future__ import annotations

from collections.abc import Iterator

from ftlib import Compression
from ftlib.core.tensors.compression.reduction import Reduction
from ftlib.frameworks.base import Operation

SENT = 0.5
"""The share of what a member has to send that it sends."""


class Halving(Compression):
    """Adds the members' rows up as the codes of blocks are: each member sums its share of the row, and all get the sums."""

    name = "halving"
    stages = 2
    feedback = True

    def reduce(self, reduction: Reduction) -> Iterator[Operation]:
        """See ``Compression``."""
        data, size, rank = reduction.data, reduction.size, reduction.rank
        assert reduction.unsent is not None or not data.any(), "who contributes owes"
        if reduction.unsent is not None:
            reduction.unsent.copy_(data).mul_(1.0 - SENT)
        count = -(-data.numel() // size)
        row = reduction.take(count * size, data.dtype)
        row[data.numel() :].zero_()
        row[: data.numel()].copy_(data).mul_(SENT)
        yield reduction.all_to_all(row)
        parts = row.view(size, count)
        total = parts[0].clone()
        for part in parts[1:]:
            total.add_(part)
        parts[rank].copy_(total)
        yield reduction.all_gather(row)
        data.copy_(row[: data.numel()])
