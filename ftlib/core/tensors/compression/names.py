"""From what a program gives as ``compression=`` to a ``Compression``, and from a name that another member has sent."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch

from ftlib.errors import ConfigError
from ftlib.frameworks.base import Operation

from .blocks import Float8, Int8
from .compression import Compression
from .half_precision import HalfPrecision
from .power_sgd import PowerSGD
from .reduction import Reduction

_NAMED: dict[str, Compression] = {
    each.name: each
    for each in (
        HalfPrecision(torch.bfloat16),
        HalfPrecision(torch.float16),
        Int8(),
        Int8(feedback=False),
        Float8(),
        Float8(feedback=False),
    )
}
_CHOICES = ("bf16", "fp16", "int8", "fp8")
_POWER = re.compile(r"PowerSGD\(([1-9]\d{0,3})\)( without feedback)?")


def compression_of(given: object) -> Compression | None:
    """What ``given``, a name or an object, stands for; None for None. ConfigError for anything else."""
    if given is None or isinstance(given, Compression):
        return given
    if isinstance(given, str) and given in _CHOICES:
        return _NAMED[given]
    choices = ", ".join(map(repr, _CHOICES))
    raise ConfigError(f"compression={given!r}: choose {choices}, PowerSGD(rank=4), an ftlib.Compression of your own, or None")


def known_by_name(name: str) -> Compression:
    """The compression with that name, if it is one of ftlib's; else an ``Unknown``."""
    power = _POWER.fullmatch(name)
    return PowerSGD(int(power[1]), feedback=not power[2]) if power else _NAMED.get(name) or Unknown(name)


class Unknown(Compression):
    """A program's own compression, of which another member has sent the name alone."""

    stages = 1

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def name(self) -> str:
        """See ``Compression``."""
        return self._name

    def reduce(self, reduction: Reduction) -> Iterator[Operation]:
        """No member calls this."""
        raise NotImplementedError(f"compression {self._name} is known by name alone")
