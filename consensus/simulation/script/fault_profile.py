"""Which faults a random history may contain, and how often each: a weight for every row of ``faults``, and one line of text.

``FaultProfile.parse("crash,halves=3,-pause")`` and ``str(profile)`` are inverse to each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .faults import FAULTS, Part

NAMES: tuple[str, ...] = tuple(fault.name for fault in FAULTS)
_USUAL: Mapping[str, float] = {fault.name: fault.weight for fault in FAULTS}


@dataclass(frozen=True)
class FaultProfile:
    """A weight for every fault, in the order of the table (0: never drawn); without arguments, the usual ones."""

    weights: Mapping[str, float] = field(default_factory=lambda: _USUAL)

    @classmethod
    def of(cls, weights: Mapping[str, float]) -> FaultProfile:
        """Exactly these faults; ValueError for a name that there is not, or a negative weight."""
        for name, weight in weights.items():
            _check(name)
            if not 0.0 <= weight < float("inf"):
                raise ValueError(f"{name}={weight:g}: a weight is a number of at least 0")
        return cls({name: float(weights.get(name, 0.0)) for name in NAMES})

    @classmethod
    def parse(cls, text: str) -> FaultProfile:
        """``all``, ``none``, or names separated by commas: ``crash``, ``loss=3`` (a weight), ``-pause`` (not that).

        Starts from nothing, unless the first word is ``all`` or takes something away.
        """
        words = [word.strip() for word in text.split(",") if word.strip()]
        weights = dict(_USUAL) if words and words[0].startswith("-") else {}
        for word in words:
            name, _, number = word.removeprefix("-").partition("=")
            name = name.strip().replace("-", "_")
            if name in ("all", "none"):
                weights = dict(_USUAL) if name == "all" else {}
            elif word.startswith("-"):
                _check(name)
                weights[name] = 0.0
            else:
                try:
                    weights[name] = float(number) if number else _USUAL.get(name, 1.0)
                except ValueError:
                    raise ValueError(f"{word!r} is no weight: write {name}=2") from None
        return cls.of(weights)

    def without(self, *names: str) -> FaultProfile:
        """The same without some faults."""
        return FaultProfile.of({name: 0.0 if name in names else weight for name, weight in self.weights.items()})

    def with_usual(self, part: Part) -> FaultProfile:
        """The same with the usual weights of all faults of ``part``."""
        return FaultProfile.of({**self.weights, **{fault.name: fault.weight for fault in FAULTS if fault.part is part}})

    def __str__(self) -> str:
        if self.weights == _USUAL:
            return "all"
        found = {name: weight for name, weight in self.weights.items() if weight}
        return ",".join(name if found[name] == _USUAL[name] else f"{name}={found[name]:g}" for name in found) or "none"


def _check(name: str) -> None:
    if name not in NAMES:
        raise ValueError(f"no fault is called {name!r}: choose from all, none, {', '.join(NAMES)}")


ALL = FaultProfile()
NONE = FaultProfile.of({})
