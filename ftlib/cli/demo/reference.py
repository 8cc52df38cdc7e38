"""The undisturbed run: one process, plain PyTorch, no ftlib; the same seed, the same global batches, as many steps."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from .digits import Digits

_TELL_EVERY = 20
_LATELY = 25
"""Steps at whose end the accuracy is looked at: early in training it moves up and down by several images within as many."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The result. ``losses``: of each step from the first on. ``lately``: right test images after each of the last steps."""

    lately: tuple[int, ...]
    losses: tuple[float, ...]

    @property
    def correct(self) -> int:
        """Right test images at the end."""
        return self.lately[-1]

    @property
    def last_loss(self) -> float | None:
        """Mean over the last 100 steps."""
        return statistics.fmean(self.losses[-100:]) if self.losses else None


def undisturbed(digits: Digits, seed: int, steps: int, tell: Callable[[int], None]) -> Reference:
    """Do ``steps`` steps; call ``tell(step)`` every few steps."""
    import torch  # noqa: PLC0415 - takes a second, in which the workers could already run
    from torch.nn.functional import cross_entropy  # noqa: PLC0415

    from . import task  # noqa: PLC0415

    torch.set_num_threads(1)  # the net is too small to gain from more
    model = task.network(seed)
    optimizer = task.optimizer_for(model)
    losses, lately = [], [task.correct(model, digits)]
    for step in range(steps):
        images, labels = task.global_batch(digits, seed, step)
        loss = cross_entropy(model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        task.set_rate(optimizer, step + 1)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if step >= steps - _LATELY:
            lately.append(task.correct(model, digits))
        if step % _TELL_EVERY == 0:
            tell(step)
    return Reference(tuple(lately[-_LATELY:]), tuple(losses))
