"""Which parameters make up which fragment of a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from torch import nn
from torch.nn.parameter import UninitializedParameter

from ...errors import ConfigError

Named = list[tuple[str, nn.Parameter]]
"""Parameters with their names in the model."""


def fragments_of(model: nn.Module, fragments: int | Sequence[nn.Module]) -> list[Named]:
    """The trained parameters of ``model`` by fragment; each parameter is in one. ConfigError names one that cannot be."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not named:
        raise ConfigError(f"nothing to average: no parameter of this {type(model).__name__} has requires_grad=True")
    for name, parameter in named:
        if isinstance(parameter, UninitializedParameter):
            raise ConfigError(f"parameter {name} has no shape yet: run a forward pass first")
    if isinstance(fragments, int):
        if isinstance(fragments, bool) or not 1 <= fragments <= len(named):
            raise ConfigError(
                f"fragments={fragments!r} must be 1 to {len(named)}, the number of the model's trained parameters"
            )
        starts = balanced([parameter.numel() for _, parameter in named], fragments)
        return [named[start:stop] for start, stop in pairwise([*starts, len(named)])]
    return _by_modules(named, list(fragments) if isinstance(fragments, Iterable) else [])


def balanced(sizes: Sequence[int], count: int) -> list[int]:
    """Cut ``sizes`` in ``count`` ranges, none empty, so that the largest sum of a range is as small as possible; returns where
    the ranges start.
    """
    low, high = max(sizes), sum(sizes)
    while low < high:
        middle = (low + high) // 2
        if len(_filled(sizes, count, middle)) <= count:
            high = middle
        else:
            low = middle + 1
    return _filled(sizes, count, low)


def _filled(sizes: Sequence[int], count: int, limit: int) -> list[int]:
    """Where ranges of at most ``limit`` start; at least ``count`` of them, as the last ones are cut earlier if need be."""
    starts, total = [0], 0
    for index, size in enumerate(sizes):
        full = total + size > limit or len(sizes) - index == count - len(starts)
        if index and full:
            starts.append(index)
            total = 0
        total += size
    return starts


def _by_modules(named: Named, modules: list[nn.Module]) -> list[Named]:
    if not modules or not all(isinstance(module, nn.Module) for module in modules):
        raise ConfigError("fragments= takes a whole number, or a list of modules of the model")
    fragments: list[Named] = [[] for _ in modules]
    inside = [frozenset(map(id, module.parameters())) for module in modules]
    for name, parameter in named:
        found = [index for index, ids in enumerate(inside) if id(parameter) in ids]
        if len(found) != 1:
            where = "in none of the fragments, so that nobody would average it" if not found else "in several fragments"
            raise ConfigError(
                f"parameter {name} is {where}: each trained parameter belongs to one of the modules in fragments="
            )
        fragments[found[0]].append((name, parameter))
    for index, fragment in enumerate(fragments):
        if not fragment:
            raise ConfigError(f"fragment {index} has no trained parameter of the model: leave that module out of fragments=")
    return fragments
