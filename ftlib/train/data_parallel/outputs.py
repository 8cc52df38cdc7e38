"""The tensors in what a module's ``forward`` returned, and the graph behind them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import torch

_DEEPEST = 16


def tensors_in(output: object) -> Iterator[torch.Tensor]:
    """The tensors in ``output``: a tensor, or a structure of containers, dataclasses and plain objects."""
    if isinstance(output, torch.Tensor):  # the usual case, without a set
        yield output
    else:
        yield from _within(output, set(), 0)


def _within(output: Any, known: set[int], depth: int) -> Iterator[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        yield output
        return
    plain = output is None or isinstance(output, (str, bytes, int, float, torch.nn.Module))
    if plain or depth > _DEEPEST or id(output) in known:
        return
    known.add(id(output))
    inner: Iterable[Any] = ()
    if isinstance(output, Mapping):
        inner = output.values()
    elif isinstance(output, (list, tuple, set, frozenset)):
        inner = output
    elif dataclasses.is_dataclass(output):
        inner = [getattr(output, each.name, None) for each in dataclasses.fields(output)]
    elif not isinstance(output, type):
        inner = list(getattr(output, "__dict__", {}).values())
    for each in inner:
        yield from _within(each, known, depth + 1)


def reaches(nodes: Iterable[Any], parameters: Collection[int]) -> bool:
    """True if the graph behind ``nodes`` leads to one of the parameters (given by ``id``)."""
    found = list(nodes)
    known = set(found)
    while found:
        node = found.pop()
        variable = getattr(node, "variable", None)  # where a gradient is accumulated
        if variable is not None and id(variable) in parameters:
            return True
        for following, _ in node.next_functions:
            if following is not None and following not in known:
                known.add(following)
                found.append(following)
    return False
