"""What other parts of the training loop need to know of wrapped models: which there are, and how their backwards ended."""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

import torch

from ..core.tensors.norms import Norms
from ..ftlib import FTLib
from ..status import Status


class Wrapped(Protocol):
    """A wrapper of a model that averages gradients by itself."""

    def averages(self, parameter: torch.Tensor) -> bool:
        """True if the gradient of ``parameter`` is averaged here."""

    def begin_step(self, parameters: Iterable[torch.Tensor]) -> None:
        """A step of these begins: what came before does not count in their ``outcome``. Some may be of other models."""

    def outcome(self, parameters: Iterable[torch.Tensor]) -> Status | None:
        """How the averages of their step ended, taken together; None if there was none. Some may be of other models."""

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


_KEPT = 1024
"""Most statuses that are kept, for programs that never begin a step."""


class Outcomes:
    """How the averages of a model ended. A step may have several: two losses, or two backwards through one graph.

    Each parameter has its own step, as several optimizers may have a part of the model each, and begin theirs at other times.
    """

    def __init__(self) -> None:
        self.last: Status | None = None
        """Of the latest average; None before the first, and after a backward that failed."""
        self._statuses: deque[Status] = deque(maxlen=_KEPT)
        self._count = 0
        """How many averages have ended."""
        self._begun: dict[int, int] = {}
        """By the ``id`` of a parameter: how many had when its step began."""
        self._looked_at: set[int] = set()
        """Those whose step was taken or left: the next average is of another one, also where no ``begin`` says so."""

    def begin(self, parameters: Iterable[int]) -> None:
        """A step of these begins."""
        begun = dict.fromkeys(parameters, self._count)
        self._begun.update(begun)
        self._looked_at -= begun.keys()

    def ended(self, status: Status | None) -> None:
        """An average has ended; None: its backward failed, so that its gradients are not to be applied."""
        self.last = status
        self.begin(self._looked_at)
        self._statuses.append(Status.FAIL if status is None else status)
        self._count += 1

    def together(self, parameters: Collection[int]) -> Status | None:
        """The worst of the statuses in their step, which is applied as a whole or not at all; None if there was no average."""
        count = self._count - min(self._begun.get(parameter, 0) for parameter in parameters)
        if count:
            self._looked_at.update(parameters)
        return worst(itertools.islice(reversed(self._statuses), count))


def worst(statuses: Iterable[Status]) -> Status | None:
    """The worst of some statuses; None if there are none."""
    found = set(statuses)
    return next((status for status in (Status.ABORT, Status.FAIL, Status.SUCCESS, Status.NO_NEED) if status in found), None)
