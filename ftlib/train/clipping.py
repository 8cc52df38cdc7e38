"""Clipping of gradients by their total norm, with the values that ``torch.nn.utils.clip_grad_norm_`` gives.

An averaged gradient may be a view of the memory that the average's result lies in, and a survivor of a failure may have to get
that result from here. So nothing is written there: scaled gradients lie in memory of their own, and ``.grad`` is pointed at it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ..common.devices import place_of

_EPSILON = 1e-6
"""Added to the norm by torch, which divides by it."""


class GradientCopies:
    """Memory for gradients that may be written, by a parameter's position. Kept, as new memory costs page faults each step."""

    def __init__(self) -> None:
        """Nothing is allocated yet."""
        self._kept: dict[int, torch.Tensor] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of memory in use."""
        return sum(kept.numel() * kept.element_size() for kept in self._kept.values())

    def room(self, position: int, gradient: torch.Tensor) -> torch.Tensor:
        """A tensor like ``gradient``, with any content: the one of the last time, if that had the same form."""
        kept = self._kept.get(position)
        if kept is None or _form(kept) != _form(gradient):
            kept = self._kept[position] = torch.empty_like(gradient, requires_grad=False)
        return kept.detach()  # the program may point its own tensor at other memory, which is not to be written to then

    def move(self, parameters: Sequence[torch.Tensor]) -> None:
        """Copy all gradients, and point the parameters at the copies."""
        with torch.no_grad():
            for position, parameter in enumerate(parameters):
                gradient = parameter.grad
                if gradient is None:
                    continue
                if not _plain(gradient):
                    parameter.grad = gradient.clone()
                elif (copy := self.room(position, gradient)).data_ptr() != gradient.data_ptr():
                    parameter.grad = copy.copy_(gradient)


@torch.no_grad()
def total_norm(
    gradients: Sequence[torch.Tensor],
    norm_type: float = 2.0,
    *,
    error_if_nonfinite: bool = False,
    known: Sequence[torch.Tensor | None] = (),
) -> torch.Tensor:
    """The norm of all gradients together, a 0-dimensional tensor with the bits of torch's own.

    ``known``: the norm of each gradient, of order 2, or None; only those are computed then.
    """
    if any(norm is not None for norm in known) and _alike(gradients):
        together = _together(gradients, known)
        if bool(torch.isfinite(together)):
            return together
    of_torch = getattr(torch.nn.utils, "get_total_norm", None)  # from torch 2.6 on
    if of_torch is not None:
        norm: torch.Tensor = of_torch(gradients, norm_type, error_if_nonfinite=error_if_nonfinite)
    elif not gradients:
        return torch.tensor(0.0, dtype=torch.float32, device="cpu")
    else:
        norms = [torch.linalg.vector_norm(gradient, norm_type).to(gradients[0].device) for gradient in gradients]
        norm = torch.linalg.vector_norm(torch.stack(norms), norm_type)
        if error_if_nonfinite and not bool(torch.isfinite(norm)):
            raise RuntimeError(f"the total norm of order {norm_type:g} is not finite, so the gradients cannot be clipped")
    whole = getattr(norm, "full_tensor", None)  # of DTensors: each process has a part of the sum
    return norm if whole is None else whole()


@torch.no_grad()
def clip(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    *,
    error_if_nonfinite: bool = False,
    copies: GradientCopies | None = None,
    in_place: bool = False,
    known: Sequence[torch.Tensor | None] = (),
) -> torch.Tensor:
    """Scale the gradients so that their total norm is at most ``max_norm``; returns the norm before.

    ``.grad`` is pointed at the scaled gradients, which lie in ``copies`` (None: in new memory). ``in_place``: they are written
    over the old ones instead, as nobody else needs those. On the CPU nothing is changed where the norm is small enough. On a
    device finding that out would take a wait, so gradients there are always scaled, perhaps by 1. ``known``: the norm of each
    parameter's gradient, of order 2, where it need not be computed.
    """
    owners = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    found = [(position, owner, owner.grad) for position, owner in enumerate(owners) if owner.grad is not None]
    gradients = [gradient for _, _, gradient in found]
    norms = [known[position] for position, _, _ in found] if known else ()
    norm = total_norm(gradients, norm_type, error_if_nonfinite=error_if_nonfinite, known=norms)
    factor = torch.clamp(float(max_norm) / (norm + _EPSILON), max=1.0)
    if not place_of(factor) and factor.item() == 1.0:
        return norm
    factors = {gradient.device: factor.to(gradient.device) for gradient in gradients}
    if in_place:
        for device, share in factors.items():
            torch._foreach_mul_([gradient for gradient in gradients if gradient.device == device], share)
        return norm
    for position, owner, gradient in found:
        share = factors[gradient.device]
        if copies is None or not _plain(gradient):
            owner.grad = (gradient * share).to(gradient.dtype)
        else:
            owner.grad = torch.mul(gradient, share, out=copies.room(position, gradient))
    return norm


def _alike(gradients: Sequence[torch.Tensor]) -> bool:
    """True if all are plain, of one dtype, on the CPU: else torch puts their norms together in an order of its own."""
    first = gradients[0].dtype
    return all(type(each) is torch.Tensor and each.dtype is first and each.device.type == "cpu" for each in gradients)


def _together(gradients: Sequence[torch.Tensor], known: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """The norm of all, from those of each that are known."""
    unknown = [gradient for gradient, norm in zip(gradients, known, strict=True) if norm is None]
    left = iter(torch._foreach_norm(unknown) if unknown else ())  # noqa: SLF001 - as torch does
    norm: torch.Tensor = torch.linalg.vector_norm(torch.stack([next(left) if norm is None else norm for norm in known]))
    return norm


def _plain(gradient: torch.Tensor) -> bool:
    """True if the gradient is described by its form and its bytes."""
    return type(gradient) in (torch.Tensor, torch.nn.Parameter) and gradient.layout is torch.strided


def _form(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.device, tensor.stride()
