"""The program's newest average, kept for a call of its own that has no tensors: one that it declines.

Where the others have made averages without the program (see ``backlog``), they are written to the tensors that it passes to its
next call. Who declines passes none. Then they go where the program's newest average went: to the gradients of the same
parameters. They are looked up anew each time, as a program may drop its gradients and get others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from ...state.registry import Registered
from ...state.replay import replay
from ..calls.call import Call, Kind, Results
from ..calls.follow import Declined
from ..tensors.device_copies import assign, duplicate
from ..tensors.layout import Layout
from ..tensors.targets import targets_of


class NotHere(Exception):
    """The others have a result that this worker cannot get in a call that it declines."""


class OwnAverage:
    """Used in the program's turn only."""

    def __init__(self, registered: Callable[[], Registered | None]) -> None:
        """``registered``: returns what the program has registered so far."""
        self._registered = registered
        self._layout: Layout | None = None
        self._owners: Sequence[torch.Tensor] = ()

    def note(self, call: Call) -> None:
        """The program has finished ``call``."""
        if call.kind is not Kind.AVERAGE or isinstance(call, Declined):
            return
        lasting = bool(call.owners) and isinstance(call.owners[0], torch.nn.Parameter)  # else these are the gradients
        self._layout, self._owners = call.layout, call.owners if lasting else ()

    def apply(self, results: Results) -> None:
        """Do what the program does with an average. ``NotHere`` if that is not known."""
        registered = self._registered()
        if registered is None:
            raise NotHere("no state is registered")
        with self.untouched(self.like(results)) as call:
            apply(call, results, registered)

    def like(self, results: Results) -> Call:
        """An average as the program would make it now, for ``results``. ``NotHere`` if they are of something else."""
        layout, owners = self._layout, list(self._owners)
        if layout is None or layout.signature != results.layout.signature:
            raise NotHere(f"what they have done is no average like this worker's newest ({results.layout.text})")
        if not owners or not all(isinstance(owner, torch.nn.Parameter) for owner in owners):
            raise NotHere("this worker averages tensors, and not the gradients of parameters, so those of now are not known")
        targets = targets_of(owners)
        if len(targets.sources) != len(owners):
            raise NotHere("some of the parameters that this worker averages were frozen since")
        return Call(Kind.AVERAGE, layout, targets.sources, owners=owners, weight=0.0, divide=True)

    @staticmethod
    @contextmanager
    def untouched(call: Call) -> Iterator[Call]:
        """In the end the tensors of ``call`` are as before, as a call without a result leaves them."""
        own = [None if source is None else duplicate(source) for source in call.sources]
        yield call
        for index, source in enumerate(own):
            target = call.sources[index]
            if source is not None and target is not None:
                assign(target, source)
            elif target is not None:
                call.sources[index] = None
                owner = call.owners[index]
                if isinstance(owner, torch.nn.Parameter):
                    owner.grad = None
        call.reattach()


def apply(call: Call, results: Results, registered: Registered) -> None:
    """Write an average to the tensors of ``call``, and do with it what the program would have done."""
    call.reattach()
    call.reloaded()
    call.deliver(results)
    with torch.enable_grad():
        replay(registered)
