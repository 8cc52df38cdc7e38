"""What other parts of the training loop need to know of wrapped models: which there are, and how their backwards ended."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Protocol

import torch

from ..core.tensors.norms import Norms
from ..ftlib import FTLib
from ..status import Status

__all__ = ["Outcomes", "Wrapped", "note", "worst", "wrapped_in"]


class Wrapped(Protocol):
    """A wrapper of a model that averages gradients by itself."""

    def averages(self, parameter: torch.Tensor) -> bool:
        """True if the gradient of ``parameter`` is averaged here."""

    def begin_step(self) -> None:
        """A step begins: what came before does not count in ``outcome`` any more."""

    def outcome(self) -> Status | None:
        """How the averages of the step ended, taken together; None if there was none."""

    def former_gradients(self) -> Mapping[int, torch.Tensor] | None:
        """Where gradients are views of a result: those that were averaged, by the ``id`` of their parameter, as nobody needs
        their memory any more. None where gradients are copies, which may be changed in place.
        """

    def norms(self) -> Norms:
        """The norms of the gradients, as far as they are known. Asking says that the next average should have them."""


_WRAPPERS: weakref.WeakKeyDictionary[FTLib, list[weakref.ref[Wrapped]]] = weakref.WeakKeyDictionary()
"""The wrappers of each worker, in the order in which they were made."""


def note(ft: FTLib, wrapper: Wrapped) -> None:
    """Remember ``wrapper`` as one of ``ft``, as long as the program holds it."""
    known = _WRAPPERS.setdefault(ft, [])
    known[:] = [*(each for each in known if each() is not None), weakref.ref(wrapper)]


def wrapped_in(ft: FTLib) -> list[Wrapped]:
    """The wrappers of ``ft``, in the order in which they were made."""
    return [wrapper for each in _WRAPPERS.get(ft, ()) if (wrapper := each()) is not None]


class Outcomes:
    """How the averages of one step ended. A step may have several: two losses, or two backwards through one graph."""

    def __init__(self) -> None:
        self.last: Status | None = None
        """Of the latest average; None before the first, and after a backward that failed."""
        self._step: list[Status] = []
        self._looked_at = False
        """True if the step was taken or left: the next average is of another one, also where no ``begin`` says so."""

    def begin(self) -> None:
        """A step begins."""
        self._step.clear()
        self._looked_at = False

    def ended(self, status: Status | None) -> None:
        """An average has ended; None: its backward failed, so that its gradients are not to be applied."""
        self.last = status
        if self._looked_at:
            self.begin()
        self._step.append(Status.FAIL if status is None else status)
        del self._step[:-_KEPT]

    def together(self) -> Status | None:
        """The worst of the step's statuses, as a step is applied as a whole or not at all; None if there was no average."""
        self._looked_at = bool(self._step)
        return worst(self._step)


_KEPT = 1024
"""Most statuses that are kept, for programs that never begin a step."""


def worst(statuses: Iterable[Status]) -> Status | None:
    """The worst of some statuses; None if there are none."""
    found = set(statuses)
    return next((status for status in (Status.ABORT, Status.FAIL, Status.SUCCESS, Status.NO_NEED) if status in found), None)
