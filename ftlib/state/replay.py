"""Apply an average again at a joiner, as the program does: ``apply=`` of ``register_state``, or the optimizers' steps."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.optim import Optimizer

from .live import stepping
from .registry import Registered


class _Here(threading.local):
    """What is the case on a thread: each has its own."""

    replaying = False
    step: int | None = None

    @contextmanager
    def replay(self, step: int | None) -> Iterator[None]:
        """Within it averages are applied again, as in that ``step``."""
        self.replaying, self.step = True, step
        try:
            yield
        finally:
            self.replaying, self.step = False, None


_HERE = _Here()


def replaying() -> bool:
    """True on a thread that applies an average again: the gradients are averages, and no call may be made."""
    return _HERE.replaying


def replayed_step() -> int | None:
    """What ``ft.step`` was at the others as they applied the average that this thread applies again; None on other threads."""
    return _HERE.step


def replay(registered: Registered, without: Iterable[torch.Tensor] = (), *, step: int | None = None) -> None:
    """Apply the gradients in the parameters. Those in ``without`` lose their gradients, so no optimizer steps them.

    ``step``: ``ft.step`` meanwhile; None if it is that already.
    """
    for parameter in without:
        parameter.grad = None
    with _HERE.replay(step):
        if registered.apply is not None:
            registered.apply()
            return
        for optimizer in stepping(registered):
            apply = registered.applying(optimizer)
            if apply is None:
                optimizer.step()
            else:
                apply()


def why_not(registered: Registered) -> str:
    """Why averages cannot be replayed; empty if they can."""
    if registered.agreed.obstacle:
        return registered.agreed.obstacle
    if registered.apply is not None:
        return ""
    optimizers = stepping(registered)
    if not registered.of(nn.Module) or not optimizers:
        return "no model with an optimizer of torch is registered, nor apply="
    if len(optimizers) != len(registered.of(Optimizer)) or len(optimizers) != registered.count("optimizer"):
        return "not all that is registered as optimizer is an optimizer of torch: pass apply= to register_state"
    if registered.count("extra"):
        return "what is registered as extra may change how averages are applied: pass apply= to register_state"
    return ""
