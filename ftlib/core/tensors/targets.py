"""From a program's argument (a module, parameters, tensors, arrays) to the tensors of a call."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from ...common.devices import device_at
from ...common.local_parts import gradient_of, is_sharded, local_part
from ...errors import ConfigError
from ...frameworks.base import Framework
from .compression.compression import Compression
from .dtypes import reason_against, wire_dtype
from .layout import Layout, lay_out, lay_out_in_order

_LAYOUTS_KEPT = 64
_PLAIN = nn.Parameter
"""The type of parameters that are no DTensors: exactly this one, and models have thousands of them."""


@dataclass(slots=True)
class Targets:
    """Tensors to reduce, in order. ``owners``: for a source of None, the parameter whose gradient will be created."""

    sources: list[torch.Tensor | None]
    owners: list[torch.Tensor]
    module: nn.Module | None = None
    """The module that owns the parameters, if one was passed."""
    places: Sequence[int] | None = None
    """Each tensor's index in the list that was passed, if not in order."""
    label: str = "tensor"

    def name(self, index: int) -> str:
        """A tensor's name for people: the parameter's name if a module was passed, else its place."""
        if self.module is not None:
            names = [name for name, parameter in self.module.named_parameters() if parameter.requires_grad]
            if index < len(names):
                return names[index]
        place = index if self.places is None else self.places[index]
        return f"{'parameter' if isinstance(self.owners[index], nn.Parameter) else self.label} {place}"

    def remark(self) -> str:
        """The most frequent reason why a worker's module differs from the others': parameters that are frozen here."""
        if self.module is None:
            return ""
        frozen = [name for name, parameter in self.module.named_parameters() if not parameter.requires_grad]
        shown = ", ".join(frozen[:8]) + (f" and {len(frozen) - 8} more" if len(frozen) > 8 else "")
        return f"; frozen parameters here: {shown or 'none'}"


def targets_of(target: Any) -> Targets:
    """Gradients of a module or of parameters, else the tensors or arrays themselves. ConfigError for anything else.

    Frozen parameters are left out, whichever way they are passed.
    """
    if isinstance(target, torch.Tensor):
        given = [target]
    elif isinstance(target, nn.Module):
        owners = [parameter for parameter in target.parameters() if parameter.requires_grad]
        if not owners:
            raise ConfigError(f"nothing to average: no parameter of this {type(target).__name__} has requires_grad=True")
        return Targets([each.grad if type(each) is _PLAIN else _gradient(each) for each in owners], list(owners), module=target)
    elif isinstance(target, np.ndarray):
        given = [_of_array(target, "the array")]
    elif isinstance(target, Mapping):
        raise ConfigError(f"a {type(target).__name__} was passed: pass list(it.values()), in the same order at all workers")
    elif isinstance(target, Iterable) and not isinstance(target, (str, bytes)):
        given = [_single(item, index) for index, item in enumerate(target)]
        if not given and not isinstance(target, Sequence):
            raise ConfigError("nothing to average: an iterator serves one call; pass the model or a list of its parameters")
    else:
        raise ConfigError(f"expected a module, parameters, tensors or numpy arrays, not {type(target).__name__}")
    places = [index for index, item in enumerate(given) if item.requires_grad or not isinstance(item, nn.Parameter)]
    if given and not places:
        raise ConfigError("nothing to average: every parameter is frozen; pass parameter.data for the weights themselves")
    found = [given[place] for place in places]
    sources = [_gradient(item) if isinstance(item, nn.Parameter) else local_part(item.detach()) for item in found]
    return Targets(sources, found, places=places)


def _gradient(parameter: torch.Tensor) -> torch.Tensor | None:
    """The gradient, None if there is none; of a DTensor its local part."""
    if not is_sharded(parameter):
        return parameter.grad
    gradient = gradient_of(parameter)
    if gradient is None:
        return None
    parameter.grad = gradient
    return local_part(gradient)


def _single(item: Any, index: int) -> torch.Tensor:
    if isinstance(item, torch.Tensor):
        return item
    if isinstance(item, np.ndarray):
        return _of_array(item, f"array {index}")
    if isinstance(item, tuple) and len(item) == 2 and isinstance(item[1], torch.Tensor):
        raise ConfigError("expected parameters, not pairs of name and parameter: pass model.parameters()")
    if isinstance(item, (np.generic, float, int, complex)):
        raise ConfigError(f"item {index} is a {type(item).__name__}, which cannot be changed in place: pass np.array(value)")
    raise ConfigError(f"expected parameters, tensors or numpy arrays, found {type(item).__name__}")


def _of_array(array: np.ndarray[Any, Any], name: str) -> torch.Tensor:
    if not array.flags.writeable:
        raise ConfigError(f"{name} is read-only: pass a writable one, e.g. a copy(); it is averaged in place")
    if not array.dtype.isnative:
        native = f"astype({array.dtype.newbyteorder('=').name!r})"
        raise ConfigError(f"{name} is {array.dtype.str}, not in this machine's byte order: pass array.{native}")
    if any(stride < 0 for stride in array.strides):
        raise ConfigError(f"{name} runs backwards (a negative stride): pass array.copy()")
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name} of {array.dtype} cannot be averaged: {error}") from None


class Layouts:
    """A cache of layouts: in a steady run each layout is computed and checked once."""

    def __init__(self, framework: Framework, bucket_bytes: int) -> None:
        self._framework = framework
        self._bucket_bytes = bucket_bytes
        self._known: OrderedDict[tuple[object, ...], Layout] = OrderedDict()

    def layout(
        self,
        kind: str,
        targets: Targets,
        op: str,
        *,
        mean: bool = False,
        views: bool = False,
        compression: Compression | None = None,
    ) -> Layout:
        """The layout of such a call, with which every call begins. ``views``: the tensors shall become views of the result.

        ConfigError names a tensor that cannot take part, and says why; or says that a device only records what it is told.
        """
        pairs = zip(targets.sources, targets.owners, strict=True)
        found = [local_part(owner) if source is None else source for source, owner in pairs]
        try:
            key = (kind, op, views, compression, *((t.dtype, t.shape, t.layout, t.device) for t in found))
        except RuntimeError:  # tensors without a shape
            raise ConfigError(_shapeless(targets, found)) from None
        if any(map(torch.Tensor.is_neg, found)):
            _materialize(targets)
        layout = self._known.get(key)
        if layout is None:
            for index, tensor in enumerate(found):
                reason = self._reason(tensor, op, mean=mean)
                if reason:  # the name is looked up only now: among all names of a module
                    raise ConfigError(f"{targets.name(index)} of {list(tensor.shape)}{reason}")
            places = [self._framework.place(t) for t in found]
            specs = [(t.dtype, tuple(t.shape)) for t in found]
            _check_places(places, compression)
            where, size = places if any(places) else (), self._bucket_bytes
            if views:  # a split tensor has buckets of its own
                layout = lay_out_in_order(kind, specs, range(len(specs)), size, size, where, compression)
            else:
                layout = lay_out(kind, specs, op, size, where, compression)
            self._known[key] = layout
            while len(self._known) > _LAYOUTS_KEPT:
                self._known.popitem(last=False)
        if not all(source is None or source.is_contiguous() for source in targets.sources):
            check_writable(targets)
        for place in layout.places:
            device_at(place).check_capture()
        return layout

    def in_order(
        self,
        kind: str,
        targets: Targets,
        order: Sequence[int],
        *,
        bucket_bytes: int,
        first_bytes: int,
        compression: Compression | None = None,
    ) -> Layout:
        """The layout of an average whose buckets become complete in the given order of the targets (see ``lay_out_in_order``).

        Not cached. ConfigError names a tensor that cannot take part.
        """
        for index, owner in enumerate(targets.owners):
            reason = self._reason(owner, "SUM", mean=True)
            if reason:
                raise ConfigError(f"{targets.name(index)} of {list(owner.shape)}{reason}")
        places = [self._framework.place(owner) for owner in targets.owners]
        specs = [(owner.dtype, tuple(owner.shape)) for owner in targets.owners]
        _check_places(places, compression)
        return lay_out_in_order(kind, specs, order, bucket_bytes, first_bytes, places if any(places) else (), compression)

    def _reason(self, tensor: torch.Tensor, op: str, *, mean: bool) -> str:
        """Why a tensor cannot take part, as the end of a sentence; empty if it can."""
        if tensor.layout is not torch.strided:
            return f" is {tensor.layout}: only dense tensors can be reduced; use dense gradients (sparse=False) or to_dense()"
        reason = reason_against(tensor.dtype, op, mean=mean)
        if reason:
            return f" is {tensor.dtype}: {reason}"
        try:
            self._framework.check(torch.empty(0, dtype=wire_dtype(tensor.dtype, op), device=tensor.device))
        except ConfigError as error:
            return f": {error}"
        return ""


def _check_places(places: Sequence[str], compression: Compression | None) -> None:
    if compression is not None and any(places):
        raise ConfigError(
            f"compression by {compression.name} works on tensors on the CPU, and some of these are on a device: "
            "leave compression= out"
        )


def check_writable(targets: Targets) -> None:
    """Raises ConfigError for a tensor that takes no result: with several elements at one place, as after ``expand``."""
    for index, tensor in enumerate(targets.sources):
        if tensor is not None and overlaps(tensor):
            raise ConfigError(
                f"{targets.name(index)} of {list(tensor.shape)} has several elements at one place in memory (expand, "
                "as_strided): pass tensor.clone(), or the tensor it was made from"
            )


def overlaps(tensor: torch.Tensor) -> bool:
    """True if elements share memory, or might according to shape and strides."""
    if tensor.is_contiguous():
        return False
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= reach:
            return tensor.numel() > 0
        reach += stride * (size - 1) if size > 1 else 0
    return False


def gradient_to_write(parameter: torch.Tensor) -> torch.Tensor | None:
    """Its gradient. A negated view, as a hook may have made it, becomes a tensor of its own: torch rarely writes to one."""
    gradient = parameter.grad
    if gradient is not None and gradient.is_neg():
        gradient = parameter.grad = gradient.resolve_neg()
    return gradient


def _materialize(targets: Targets) -> None:
    """Do so with gradients. ConfigError for other negated views, whose values are somewhere else."""
    for index, (source, owner) in enumerate(zip(targets.sources, targets.owners, strict=True)):
        if source is not None and source.is_neg():
            if not isinstance(owner, nn.Parameter) or source is not owner.grad:
                raise ConfigError(
                    f"{targets.name(index)} of {list(source.shape)} is a view that negates what is in memory, as "
                    "x.conj().imag: pass tensor.resolve_neg(), which is a tensor of its own, or the one it was made from"
                )
            targets.sources[index] = gradient_to_write(owner)


def _shapeless(targets: Targets, found: Sequence[torch.Tensor]) -> str:
    for index, tensor in enumerate(found):
        try:
            _ = tensor.shape
        except RuntimeError:
            if isinstance(tensor, UninitializedParameter):
                return f"{targets.name(index)} has no shape yet: run a forward pass first, lazy modules take it from there"
            return f"{targets.name(index)} is a {type(tensor).__name__} without a shape: pass plain tensors"
    return "a tensor has no shape: pass plain tensors"
