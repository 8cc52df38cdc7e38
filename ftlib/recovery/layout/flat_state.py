"""Tensors as one flat range of bytes, which is split into shards.

The bytes are in the order of the elements (the last dimension runs fastest), whatever a tensor's strides: so they are the same
at a member whose convolutions are channels-last. Bytes are copied only on demand.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch

from ...common.device_waits import Fence
from ...common.devices import place_of
from ...common.host_copies import Bundle
from ...common.memory import bytes_of


class TensorRange(NamedTuple):
    """Bytes ``start`` to ``stop`` of tensor number ``tensor``."""

    tensor: int
    start: int
    stop: int


class FlatState:
    """One range of bytes over tensors of any device, strides and shape.

    Memory is looked up at each access: a parameter whose ``data`` was replaced is read at its new place.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], paths: Sequence[str], fence: Fence | None = None) -> None:
        """``tensors``: the live tensors, dense. ``paths``: their names in errors.

        ``fence``: of the thread that changes those on devices, after its last change; None if nothing is under way there.
        """
        if len(tensors) != len(paths):
            raise ValueError(f"{len(tensors)} tensors, but {len(paths)} paths")
        self.tensors = tuple(tensors)
        self.paths = tuple(paths)
        self._fence = fence
        self._filling = threading.Lock()
        """Held while bytes of tensors that are not contiguous are set: whole rows of these are read and written back, and
        another thread may set other bytes of the same row.
        """
        sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
        self.ends = list(accumulate(sizes))
        """Where each tensor ends."""
        self.nbytes = self.ends[-1] if self.ends else 0

    def pieces(self, start: int, stop: int) -> Iterator[TensorRange]:
        """The tensor ranges of the bytes ``start`` to ``stop``, in order. ValueError if there are no such bytes."""
        if not 0 <= start <= stop <= self.nbytes:
            raise ValueError(f"bytes {start} to {stop} of {self.nbytes}")
        index = bisect_right(self.ends, start)
        while start < stop:
            first = self.ends[index - 1] if index else 0
            end = min(stop, self.ends[index])
            if start < end:  # not an empty tensor
                yield TensorRange(index, start - first, end - first)
            start, index = end, index + 1

    def copy_out(self, start: int, stop: int, into: torch.Tensor) -> None:
        """Copy the bytes ``start`` to ``stop`` to ``into``, that many uint8 in CPU memory. Other threads may run Python
        meanwhile. Waits once for each device that holds some of them.

        One thread copies: torch would use several, which wait for each other while the training needs them.
        """
        _fits(into, stop - start)
        offset, bundle = 0, Bundle(self._fence)
        with torch.no_grad():
            for index, first, end in self.pieces(start, stop):
                tensor, target = self.tensors[index], into[offset : offset + end - first]
                if place := place_of(tensor):
                    bundle.add(place, functools.partial(_fetch, target, tensor, first, end), target)
                else:
                    np.copyto(target.numpy(), _bytes(tensor, first, end).numpy())
                offset += end - first
            bundle.run()

    def copy_in(self, start: int, data: torch.Tensor) -> None:
        """Set the bytes from ``start`` on to ``data`` (uint8 in CPU memory). Waits once for each device that holds some.

        Several threads may set different bytes at a time. Nothing else may be under way with these tensors.
        """
        _fits(data, data.numel())
        pieces = list(self.pieces(start, start + data.numel()))
        offset, bundle = 0, Bundle()
        alone = all(self.tensors[index].is_contiguous() for index, _, _ in pieces)
        with contextlib.nullcontext() if alone else self._filling, torch.no_grad():
            for index, first, end in pieces:
                tensor, piece = self.tensors[index], data[offset : offset + end - first]
                if place := place_of(tensor):
                    writes = (_bytes(tensor, first, end),) if tensor.is_contiguous() else ()
                    bundle.add(place, functools.partial(_set, tensor, first, piece), *writes)
                else:
                    _set(tensor, first, piece)
                offset += end - first
            bundle.run()

    def views(self, start: int, stop: int) -> list[memoryview] | None:
        """The memory of bytes ``start`` to ``stop``, writable, in order; None if a tensor is on a device, or not contiguous.

        Writing to it does not increase ``Tensor._version``.
        """
        views = []
        for index, first, end in self.pieces(start, stop):
            tensor = self.tensors[index]
            if place_of(tensor) or not tensor.is_contiguous():
                return None
            views.append(_bytes(tensor, first, end).numpy().data)
        return views


def _fits(data: torch.Tensor, nbytes: int) -> None:
    if data.dtype is not torch.uint8 or data.dim() != 1 or data.numel() != nbytes:
        raise ValueError(f"expected {nbytes} uint8 in one row, not {data.dtype} of shape {tuple(data.shape)}")


def _bytes(tensor: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    """A tensor's bytes, in the order of the elements: its own memory if contiguous, else a copy."""
    tensor = tensor.detach()
    if tensor.is_contiguous():
        return bytes_of(tensor)[start:stop]
    rows, skip = _rows(tensor, start, stop)
    return bytes_of(rows.contiguous())[skip : skip + stop - start]


def _fetch(target: torch.Tensor, tensor: torch.Tensor, start: int, stop: int) -> None:
    target.copy_(_bytes(tensor, start, stop), non_blocking=True)


def _set(tensor: torch.Tensor, start: int, data: torch.Tensor) -> None:
    if tensor.is_contiguous():
        _bytes(tensor, start, start + data.numel()).copy_(data, non_blocking=True)
        return
    rows, skip = _rows(tensor.detach(), start, start + data.numel())
    whole = rows.contiguous()
    bytes_of(whole)[skip : skip + data.numel()].copy_(data)
    rows.copy_(whole)


def _rows(tensor: torch.Tensor, start: int, stop: int) -> tuple[torch.Tensor, int]:
    """The rows of the first dimension that hold these bytes, and the byte in those rows at which they begin."""
    tensor = tensor.squeeze()
    row = tensor[0].numel() * tensor.element_size()
    first = start // row
    return tensor[first : -(-stop // row)], start - first * row
