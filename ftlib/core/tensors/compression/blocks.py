"""Averages of values of one byte: blocks of 256 values share a float32 scale, the largest absolute value of the block.

Each member owns a share of the bucket. It gets everybody's encoding of its share (all-to-all), decodes and adds them up in
float32, in the order of the ranks, and encodes the sum, which all members get (all-gather) and decode. All decode the same
bytes, so the result has the same bits everywhere.

A block with inf or nan has the scale nan, so that it is nan everywhere.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterator

import numpy as np
import torch

from ftlib.frameworks.base import Operation

from .compression import Compression
from .reduction import Reduction

BLOCK = 256
"""Values with one scale."""
_AT_A_TIME = 512
"""Blocks that are worked on together: their intermediate values fit into the second-level cache."""
_SMALLEST = 1e-34
"""A scale below is 0: products with it would be subnormal numbers, which some programs have their processors flush to 0."""


class Blocks(Compression):
    """What both kinds of codes have in common."""

    stages = 2
    largest: float
    """The code with the largest absolute value."""
    code: torch.dtype

    def __init__(self, *, feedback: bool = True) -> None:
        """``feedback``: see ``Compression``."""
        self.feedback = feedback

    @property
    def name(self) -> str:
        """See ``Compression``."""
        return f"{self.short}{'' if self.feedback else ' without feedback'}"

    @property
    @abstractmethod
    def short(self) -> str:
        """The name for users."""

    def reduce(self, reduction: Reduction) -> Iterator[Operation]:
        """See ``Compression``. The owner of a share also owes what the second encoding loses."""
        data, unsent, rank, size = reduction.data, reduction.unsent, reduction.rank, reduction.size
        coder = Coder(self, reduction.take(BLOCK * _AT_A_TIME, torch.float32), reduction.take(_AT_A_TIME, torch.float32))
        blocks = -(-data.numel() // BLOCK)
        owned = -(-blocks // size)
        """Blocks of each member's share; the last shares may have fewer, or none."""
        ends = [min(each * owned * BLOCK, data.numel()) for each in range(size + 1)]
        shares = [slice(*pair) for pair in itertools.pairwise(ends)]
        row = reduction.take(size * owned * (BLOCK + 4), torch.uint8)
        parts = row.view(size, -1)
        for part, share in zip(parts, shares, strict=True):
            coder.encode(data[share], part, None if unsent is None else unsent[share])
        yield reduction.all_to_all(row)
        own = data[shares[rank]]
        for each, part in enumerate(parts):
            coder.decode(part, own, add=each > 0)
        left = None if unsent is None else reduction.take(own.numel(), torch.float32)
        coder.encode(own, parts[rank], left)
        if unsent is not None and left is not None:
            unsent[shares[rank]].add_(left)
        yield reduction.all_gather(row)
        for part, share in zip(parts, shares, strict=True):
            coder.decode(part, data[share], add=False)

    @abstractmethod
    def to_codes(self, values: torch.Tensor, codes: torch.Tensor) -> None:
        """Round ``values``, of at most ``largest``, to ``codes`` of one byte. The values may change."""

    @abstractmethod
    def from_codes(self, codes: torch.Tensor, values: torch.Tensor) -> None:
        """What the codes mean."""


class Int8(Blocks):
    """Whole numbers from -127 to 127."""

    largest = 127.0
    code = torch.int8
    short = "int8"

    def to_codes(self, values: torch.Tensor, codes: torch.Tensor) -> None:
        """See ``Blocks``."""
        codes.copy_(values.round_())

    def from_codes(self, codes: torch.Tensor, values: torch.Tensor) -> None:
        """See ``Blocks``."""
        values.copy_(codes)


class Float8(Blocks):
    """Floating-point numbers with 4 bits of exponent and 3 of fraction (OCP E4M3): finer than ``Int8`` near zero."""

    largest = 448.0
    code = torch.float8_e4m3fn
    short = "fp8"

    def to_codes(self, values: torch.Tensor, codes: torch.Tensor) -> None:
        """See ``Blocks``."""
        codes.copy_(values)

    def from_codes(self, codes: torch.Tensor, values: torch.Tensor) -> None:
        """See ``Blocks``. A table: torch converts one value at a time, which takes four times as long."""
        np.take(_FLOAT8, codes.view(torch.uint8).numpy(), out=values.numpy(), mode="clip")


_FLOAT8 = torch.arange(256, dtype=torch.uint8, device="cpu").view(torch.float8_e4m3fn).float().numpy()


class Coder:
    """Encodes and decodes rows of float32 values. An encoding: a float32 scale for each block, then the codes."""

    def __init__(self, kind: Blocks, values: torch.Tensor, inverses: torch.Tensor) -> None:
        """``values``, ``inverses``: working memory, for ``_AT_A_TIME`` blocks."""
        self._kind = kind
        self._values = values.view(-1, BLOCK)
        self._inverses = inverses

    def encode(self, data: torch.Tensor, row: torch.Tensor, lost: torch.Tensor | None) -> None:
        """Encode ``data`` to ``row``, whose blocks beyond ``data`` become zeros. ``lost``: gets what the encoding loses."""
        scales, codes = self._split(row)
        whole = data.numel() // BLOCK
        for start in range(0, whole, _AT_A_TIME):
            stop = min(start + _AT_A_TIME, whole)
            span = slice(start * BLOCK, stop * BLOCK)
            missing = None if lost is None else lost[span].view(-1, BLOCK)
            self._encode(data[span].view(-1, BLOCK), scales[start:stop], codes[start:stop], missing)
        rest = data.numel() - whole * BLOCK
        if rest:
            last, missing = torch.zeros(2, 1, BLOCK, dtype=torch.float32, device="cpu")
            last[0, :rest] = data[whole * BLOCK :]
            self._encode(last, scales[whole : whole + 1], codes[whole : whole + 1], missing)
            if lost is not None:
                lost[whole * BLOCK :] = missing[0, :rest]
        used = whole + bool(rest)
        scales[used:].zero_()
        codes[used:].view(torch.uint8).zero_()

    def decode(self, row: torch.Tensor, data: torch.Tensor, *, add: bool) -> None:
        """Write the values of ``row`` to ``data``, as many as that has room for, or add them to it."""
        scales, codes = self._split(row)
        whole = data.numel() // BLOCK
        for start in range(0, whole, _AT_A_TIME):
            stop = min(start + _AT_A_TIME, whole)
            there = data[start * BLOCK : stop * BLOCK].view(-1, BLOCK)
            values = self._values[: stop - start] if add else there
            self._decode(scales[start:stop], codes[start:stop], values)
            if add:
                there.add_(values)
        rest = data.numel() - whole * BLOCK
        if rest:
            values = self._values[:1]
            self._decode(scales[whole : whole + 1], codes[whole : whole + 1], values)
            there = data[whole * BLOCK :]
            there.copy_(there + values[0, :rest] if add else values[0, :rest])

    def _encode(self, data: torch.Tensor, scales: torch.Tensor, codes: torch.Tensor, lost: torch.Tensor | None) -> None:
        """Some blocks, without new memory for their values."""
        values, inverses = self._values[: len(data)], self._inverses[: len(data)]
        torch.abs(data, out=values)
        torch.amax(values, 1, out=scales)
        scales.mul_(1.0 / self._kind.largest)
        scales.masked_fill_(scales < _SMALLEST, 0.0)
        torch.reciprocal(scales, out=inverses)
        inverses.masked_fill_(inverses.isinf(), 0.0)
        scales.masked_fill_(scales.isinf(), torch.nan)
        torch.mul(data, inverses[:, None], out=values)
        self._kind.to_codes(values, codes)
        if lost is not None:
            self._decode(scales, codes, values)
            torch.sub(data, values, out=lost)

    def _decode(self, scales: torch.Tensor, codes: torch.Tensor, values: torch.Tensor) -> None:
        self._kind.from_codes(codes, values)
        values.mul_(scales[:, None])

    def _split(self, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        blocks = row.numel() // (BLOCK + 4)
        return row[: 4 * blocks].view(torch.float32), row[4 * blocks :].view(self._kind.code).view(-1, BLOCK)
