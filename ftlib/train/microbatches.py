"""The batches of one step in a loop that is not the program's own: a framework computes them, and calls once for all of them.

A framework adds up the gradients of each batch, whatever it is. Some are *fillers* of an ``ElasticSampler``, which must not add
anything; they are left out here, and what counts keeps its scale.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..data.elastic import Elastic
from ..ftlib import FTLib
from ..status import Status


class Microbatches:
    """What has been computed since the last step. ``before`` and ``after`` stand around each backward pass."""

    def __init__(self, ft: FTLib, parameters: Sequence[torch.nn.Parameter], sampler: Elastic | None) -> None:
        """``parameters``: all, as frozen ones may be trained later. ``sampler``: deals the batches; None if each counts."""
        self._ft = ft
        self._parameters = list(parameters)
        self._sampler = sampler
        self._computed = 0
        self._real = 0
        self._aside: list[torch.Tensor | None] | None = None
        """The gradients so far, while a filler's are computed."""
        self._status: Status | None = None

    @property
    def status(self) -> Status | None:
        """What the last ``average`` returned, also where a callback of the program's raised instead, once the call had ended:
        the averages are there. None: the call itself raised, or there was none.
        """
        return self._status

    def before(self) -> None:
        """Backward begins: put the gradients aside if it is that of a filler."""
        counts = self._sampler is None or self._sampler.counts(self._computed) > 0
        if counts and self._computed and not self._real:
            self._reset()  # what fillers have left there
        elif not counts and self._real:
            self._aside = [parameter.grad for parameter in self._parameters]
            self._reset()
        self._computed += 1
        self._real += counts

    def after(self) -> None:
        """Backward has ended: take the gradients from before again, if it was that of a filler."""
        if self._aside is None:
            return
        for parameter, gradient in zip(self._parameters, self._aside, strict=True):
            parameter.grad = gradient
        self._aside = None

    def average(self, expected: int) -> Status:
        """Average the gradients of all batches since the last step; where ``status`` is falsy then, they are None.

        ``expected``: batches that a step has. With a sampler, an end of an epoch with fewer has nothing but fillers, and makes
        no call: FAIL.
        """
        computed, real, self._computed, self._real = self._computed, self._real, 0, 0
        self._status = None
        try:
            if self._sampler is not None and computed < expected:
                self._status = Status.FAIL
                return self._status
            if 0 < real < computed:  # the framework has divided by the number of all
                for parameter in self._parameters:
                    if parameter.requires_grad and parameter.grad is not None:
                        parameter.grad.mul_(computed / real)
            batches = computed if self._sampler is not None else 1
            average = self._ft.average_of(self._parameters, weight=None, batches=batches, norms=False)
            try:
                return average.finish()
            finally:  # also where a callback of the program's raises: the others apply what has been averaged
                self._status = average.status
        finally:
            if not self._status:
                self._reset()

    def drop(self) -> None:
        """Forget what was computed since the last step; the gradients are None."""
        if self._computed:
            self._computed = self._real = 0
            self._reset()

    def _reset(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None
