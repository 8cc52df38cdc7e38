"""What torch has to know of a state beside its ``state_dict`` to load it as it was. It travels in the tree, as *notes*.

*Versions*: torch puts the version of each module's class into an attribute of the module's ``state_dict``. Without it a module
takes the state for one of its first release, and converts it once more. Modules may be anywhere in what a program registers, so
these notes are by path.

*Kept dtypes*: an optimizer of torch casts what it loads to the dtype of its parameters. So momentum that is kept in float32 for
weights in bfloat16 would be rounded, and go on in bfloat16.

*Strides* need no note: tensors travel with them. What an optimizer keeps gets those of its parameters, which may differ here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import torch
from torch.optim import Optimizer

from ..errors import ConfigError
from .codec import DEPTH_LIMIT
from .parts import Stateful, mapping, parameters_of

Path = tuple[str | int, ...]
_PLAIN = (bool, int, float, str)


def notes_of(states: Mapping[str, Any], objects: Mapping[str, Sequence[Stateful]]) -> dict[str, Any]:
    """The notes of ``states``, as plain values. ``objects``: those that have these states, by the same names, in order."""
    listed = [(name, index, item) for name, items in objects.items() for index, item in enumerate(items)]
    optimizers = [(name, index, item) for name, index, item in listed if isinstance(item, Optimizer)]
    paths: set[Path] = {(name, index) for name, index, _ in optimizers}
    versions = [
        [list(path), {prefix: _plain(values) for prefix, values in found.items() if isinstance(values, Mapping)}]
        for path, found in _labels(states, paths)
    ]
    kept = [[name, index, found] for name, index, item in optimizers if (found := _kept(item, states[name][index]))]
    return {"versions": versions, "kept": kept}


def labelled(state: Mapping[Any, Any], versions: object) -> OrderedDict[Any, Any]:
    """A copy of a module's ``state``, with ``versions`` where torch looks for them."""
    made = OrderedDict(state)
    setattr(made, "_metadata", versions)  # noqa: B010 - torch's protocol: a plain attribute would not pass the type checker
    return made


class Notes:
    """The notes of one tree, to load it with."""

    def __init__(self, versions: Mapping[Path, Mapping[str, dict[str, Any]]], kept: Mapping[Path, Mapping[str, Any]]) -> None:
        """``versions``: by path. ``kept``: by the path of an optimizer, see ``_kept``."""
        self._versions = versions
        self._kept = kept

    @classmethod
    def read(cls, notes: object) -> Self:
        """The inverse of ``notes_of``. ConfigError if it is none."""
        try:
            match notes:
                case {"versions": list(versions), "kept": list(kept)}:
                    found = {tuple(path): {prefix: dict(values) for prefix, values in each.items()} for path, each in versions}
                    return cls(found, {(name, index): mapping(each) for name, index, each in kept})
        except (TypeError, ValueError, AttributeError):
            pass
        raise ConfigError("the notes beside the state are not readable: run one release everywhere")

    def loader(self, item: Stateful, *path: str | int) -> Callable[[Any], object]:
        """What loads the state at ``path`` into ``item``."""
        kept = self._kept.get(path)
        if not isinstance(item, Optimizer):
            return item.load_state_dict

        def load(state: Any) -> None:
            item.load_state_dict(state)
            if kept:
                _put_back(item, state, kept)
            _turn(item)

        return load

    def label(self, state: Any, *path: str | int) -> Any:
        """``state``, which is at ``path``, as torch has written it: with the versions of the modules in it."""
        if not any(each[: len(path)] == path for each in self._versions):
            return state
        if isinstance(state, Mapping):
            made = {key: self.label(value, *path, key) for key, value in state.items()}
            return labelled(made, self._versions[path]) if path in self._versions else made
        if type(state) in (list, tuple):
            return type(state)(self.label(value, *path, index) for index, value in enumerate(state))
        return state


def _labels(tree: Any, without: set[Path]) -> Iterator[tuple[Path, Mapping[Any, Any]]]:
    """The versions in ``tree`` with their paths; none below the paths in ``without``.

    Ends where ``tree`` is too deep to be sent, as one that contains itself is: who sends it says so.
    """
    left: list[tuple[Path, Any]] = [((), tree)]
    while left:
        path, each = left.pop()
        if path in without:
            continue
        if len(path) > DEPTH_LIMIT:
            return
        found = getattr(each, "_metadata", None)
        if isinstance(each, Mapping) and isinstance(found, Mapping):
            yield path, found
        below = each.items() if isinstance(each, Mapping) else enumerate(each)
        left += reversed([((*path, key), value) for key, value in below if _may_have_labels(key, value)])


def _may_have_labels(key: object, value: object) -> bool:
    """Whether ``value`` can be sent by ``key``, and modules' states may be in it."""
    return type(key) in (str, int) and isinstance(value, (Mapping, list, tuple))


def _plain(values: Mapping[Any, Any]) -> dict[str, Any]:
    """Of what a module says of its state, what may travel."""
    return {name: value for name, value in values.items() if type(name) is str and (value is None or type(value) in _PLAIN)}


def _kept(optimizer: Optimizer, state: object) -> dict[str, dict[str, list[int]]]:
    """What an optimizer keeps in other dtypes than its parameters: these parameters' numbers, by their dtype and by the name of
    what is kept. Only where its ``state_dict`` says so, too: some keep less than they write.
    """
    states, found = mapping(mapping(state).get("state")), dict[str, dict[str, list[int]]]()
    for number, parameter in enumerate(parameters_of(optimizer)):
        live = mapping(optimizer.state.get(parameter))
        for name, value in mapping(states.get(number)).items():
            mine = live.get(name)
            if type(name) is not str or not isinstance(value, torch.Tensor) or not isinstance(mine, torch.Tensor):
                continue
            if value.dtype is mine.dtype and value.dtype is not parameter.dtype and parameter.is_floating_point():
                found.setdefault(str(parameter.dtype), {}).setdefault(name, []).append(number)
    return found


def _put_back(optimizer: Optimizer, state: object, kept: Mapping[str, Any]) -> None:
    """Put what torch has cast while ``optimizer`` loaded ``state`` back in its own dtype.

    Parameters of another dtype than before are left out: the program has chosen another precision since.
    """
    states, parameters = mapping(mapping(state).get("state")), parameters_of(optimizer)
    for dtype, names in kept.items():
        for name, numbers in mapping(names).items():
            for number in numbers:
                parameter = parameters[number] if number < len(parameters) else None
                if parameter is None or str(parameter.dtype) != dtype:
                    continue
                mine, value = mapping(optimizer.state.get(parameter)).get(name), mapping(states.get(number)).get(name)
                if isinstance(mine, torch.Tensor) and isinstance(value, torch.Tensor) and mine.dtype is not value.dtype:
                    optimizer.state[parameter][name] = value.to(mine.device)


def _turn(optimizer: Optimizer) -> None:
    """Give what ``optimizer`` has loaded the strides of its parameters, as it has at members that did not load it. With others
    torch's fused steps take the wrong elements, and its other ones may round some differently.
    """
    for parameter in parameters_of(optimizer):
        if type(parameter) not in (torch.Tensor, torch.nn.Parameter) or parameter.layout is not torch.strided:
            continue
        for name, value in mapping(optimizer.state.get(parameter)).items():
            if type(value) is not torch.Tensor or value.shape != parameter.shape or value.layout is not torch.strided:
                continue
            if parameter.is_contiguous() and value.is_contiguous():
                continue
            turned = torch.empty_like(parameter, dtype=value.dtype, device=value.device, requires_grad=False)
            if turned.stride() != value.stride():
                optimizer.state[parameter][name] = turned.copy_(value)
