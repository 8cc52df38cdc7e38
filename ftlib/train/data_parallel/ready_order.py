"""The order in which gradients become ready, as all members have agreed on it.

Buckets follow it, so that the first ones are complete early in backward. Nobody knows it before the first backward: until then
it is the reverse of the order in which the parameters were registered, the best guess. The first average shows each member its
own order; just before the next average the members take over that of rank 0, once and for good.

What was agreed is one of the values that travel with the registered state (``state.agreed``), as are the steps towards it: so
whoever has the state acts as the others do. Without registered state nothing could tell a joiner, and the guess stays.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ...ftlib import FTLib

_DIGEST = 8


class ReadyOrder:
    """The order of one wrapper: indices into the list of its trained parameters."""

    def __init__(self, ft: FTLib) -> None:
        self._ft = ft
        self._name = ft.agreed.name()
        self._digest = b""
        self._count = 0
        self._observed: list[int] | None = None
        """The order of this member's latest backward, until one is agreed."""
        self._seen: bytes | None = None
        """The value that was agreed when somebody looked last."""
        self._found: bytes | None = None
        """What that says of the order."""
        ft.has_preface(self._preface)

    def concern(self, count: int, digest: bytes) -> None:
        """From now on the order is of so many parameters; ``digest`` (8 bytes) says which."""
        self._count, self._digest, self._observed = count, digest, None
        self._seen, self._found = None, None

    @property
    def model(self) -> str:
        """Tells the averages of several models apart, also of equal shapes; empty for the first one.

        It is equal at all members, which wrap their models in the same order.
        """
        return "" if self._name == "1" else f"of model {self._name}"

    @property
    def key(self) -> bytes:
        """Equal bytes stand for the same order."""
        return self._agreed() or b""

    def order(self) -> list[int]:
        """The order that holds for the next average."""
        agreed = self._agreed()
        if agreed:
            order: list[int] = np.frombuffer(agreed, "<u4").tolist()
            if sorted(order) == list(range(self._count)):
                return order
        return list(reversed(range(self._count)))

    @property
    def due(self) -> bool:
        """True if the order is to be agreed on before the next average."""
        return self._agreed() == b"" and self._may()

    def agree(self) -> None:
        """Before an average, outside of any call: take over the order of rank 0, if that is due."""
        if not self.due:
            return
        [order] = self._preface()
        if self._ft.preface([order]):  # else all members try again before the next average
            self._put(order.tolist())
            self._observed = None

    def _preface(self) -> list[torch.Tensor]:
        """What the members take over."""
        observed = self._observed or list(reversed(range(self._count)))
        return [torch.tensor(observed, dtype=torch.int64, device="cpu")] if self.due else []

    def finished(self, observed: Sequence[int], numbers: Sequence[int]) -> None:
        """An average has a result, at all members; here, gradients were complete in the order ``observed``.

        ``numbers``: what stands in ``observed`` for each of the trained parameters.
        """
        agreed = self._agreed()
        if agreed or not self._may():
            return
        places = {number: index for index, number in enumerate(numbers)}
        first = dict.fromkeys(places[number] for number in observed)
        self._observed = [*first, *(index for index in reversed(range(self._count)) if index not in first)]
        if agreed is None:
            self._put([])

    def _may(self) -> bool:
        return self._count > 1 and self._ft.has_state and not self._ft.in_unit

    def _agreed(self) -> bytes | None:
        """The agreed order; empty if it is to be agreed before the next average; None before the first average."""
        value = self._ft.agreed.get(self._name)
        if value is not self._seen:
            fits = value is not None and value[:_DIGEST] == self._digest
            self._seen, self._found = value, value[_DIGEST:] if value is not None and fits else None
        return self._found

    def _put(self, order: Sequence[int]) -> None:
        self._ft.agreed.put(self._name, self._digest + np.array(order, "<u4").tobytes())
