"""The dtype in which a tensor is reduced, and the conversion there and back.

Half precision is reduced in float32: n workers cost one rounding to float16 or bfloat16 instead of n, and a sum may exceed the
range of float16 although the mean does not. Minima and maxima of floats are taken over integers of the same order, so that nan
wins at every rank (a backend's treatment of nan depends on the order of the ranks) and -0.0 is below 0.0.
"""

from __future__ import annotations

import torch

_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.int16: torch.int32, torch.bool: torch.uint8}
_AS_THEY_ARE = frozenset({torch.float32, torch.float64, torch.int8, torch.uint8, torch.int32, torch.int64})
_ORDERED = {torch.float32: torch.int32, torch.float64: torch.int64}
"""Integers that hold a float's bits."""
EXTREMES = frozenset({"MIN", "MAX"})
"""Operations that nan wins."""


def wire_dtype(dtype: torch.dtype, op: str) -> torch.dtype:
    """The dtype in which tensors of ``dtype`` are reduced."""
    wide = _WIDER.get(dtype, dtype)
    return _ORDERED.get(wide, wide) if op in EXTREMES else wide


def reason_against(dtype: torch.dtype, op: str, *, mean: bool) -> str:
    """Why tensors of ``dtype`` cannot be reduced with ``op``, with the remedy; empty if they can."""
    if dtype.is_complex:
        return "complex tensors cannot be reduced; pass torch.view_as_real(tensor), which shares its memory"
    if dtype not in _WIDER and dtype not in _AS_THEY_ARE:
        names = ", ".join(sorted(str(known).removeprefix("torch.") for known in (*_WIDER, *_AS_THEY_ARE)))
        return f"convert it to one of {names}"
    if mean and not dtype.is_floating_point:
        return "only floating-point tensors can be averaged; use op='SUM' or convert it"
    if dtype is torch.bool and op == "SUM":
        return "bool tensors have no sum; use op='MAX' (any), 'MIN' (all), or convert it to torch.int64"
    return ""


def store(view: torch.Tensor, source: torch.Tensor, op: str, scale: float = 1.0) -> None:
    """Write ``scale * source`` to ``view``, of the same shape and the wire's dtype."""
    if source.is_floating_point() and not view.is_floating_point():
        view.copy_(_ordered(source, op))
    elif scale == 1.0:
        view.copy_(source)
    elif source.dtype is view.dtype:
        torch.mul(source, scale, out=view)
    else:  # not in the source's dtype: float16 would overflow and round
        view.copy_(source).mul_(scale)


def load(target: torch.Tensor, view: torch.Tensor, divisor: float = 1.0) -> None:
    """Write ``view / divisor`` to ``target``: the inverse of ``store``."""
    if target.is_floating_point() and not view.is_floating_point():
        target.copy_(_flipped(view).view(torch.float32 if view.dtype is torch.int32 else torch.float64))
    elif divisor == 1.0:
        target.copy_(view)
    else:
        torch.div(view, divisor, out=target)


def _ordered(source: torch.Tensor, op: str) -> torch.Tensor:
    wide = source.to(_WIDER.get(source.dtype, source.dtype), memory_format=torch.contiguous_format)
    keys = _flipped(wide.view(_ORDERED[wide.dtype]))
    info = torch.iinfo(keys.dtype)
    return keys.masked_fill_(wide.isnan(), info.min if op == "MIN" else info.max)


def _flipped(bits: torch.Tensor) -> torch.Tensor:
    """Sign and magnitude to two's complement, or back; both extremes come back as nan."""
    info = torch.iinfo(bits.dtype)
    return bits ^ ((bits >> (info.bits - 1)) & info.max)
