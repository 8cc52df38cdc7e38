"""What of the registered state is streamed, and what comes inline with the list of it.

*Streamed* is what only an optimizer's step changes, and what is big: the parameters of registered modules, and the tensors
with more than one element in registered optimizers' state. A trainable parameter that no registered optimizer steps may change
at any time, so that it is *inline*, like everything else: buffers, counters, hyperparameters, the state of all other objects.

Packed, it is the tree of ``Registered.tree`` (``state`` encodes it) with holes where streamed tensors are, and the list of
these holes. Tensors that share their memory (tied weights) are streamed once and fill several holes. The list is sorted, so
that it is the same at all members.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import msgpack
import torch
import xxhash
from torch import nn
from torch.optim import Optimizer

from ..errors import ConfigError
from ..pages import huge
from ..registry import Registered
from ..state import DTYPES, decode, snapshot
from .flat import Ground

__all__ = ["Manifest", "Streamed", "prepare", "refresh", "split", "stepping"]

_SAME = "build the same everywhere"
_ROOM = 1 << 20
"""Bytes from which on a new tensor gets huge pages."""
_NAMES = {dtype: name for name, dtype in DTYPES.items()}

Place = tuple[str, int]
"""A registered object: its role, and its index in that role."""
Keys = tuple[str | int, ...]
"""The way in that object's state: a module's is (name,), an optimizer's ("state", the parameter's number, name)."""


class Streamed(NamedTuple):
    """One streamed tensor. ``path``: its first place in the tree."""

    path: str
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """A state without its streamed tensors' data."""

    packed: bytes
    """The tree with holes, the inline tensors' data, the list of holes."""
    streamed: tuple[Streamed, ...]
    """In the order of the ground."""
    nbytes: int
    """Of all that is streamed."""
    fingerprint: str
    """Of the list of holes. Grounds of the same fingerprint have the same tensors at the same places."""


@dataclass(frozen=True, slots=True)
class _Hole:
    """Where in the tree the streamed tensor numbered ``index`` belongs."""

    place: Place
    keys: Keys
    dtype: torch.dtype
    shape: tuple[int, ...]
    index: int

    @property
    def path(self) -> str:
        return _path(self.place, *self.keys)


def split(registered: Registered, step: int) -> tuple[Manifest, Ground]:
    """The state now, and the live tensors that are streamed. ConfigError by path where it cannot travel."""
    tree = _opened(registered, step)
    holes: list[_Hole] = []
    tensors: list[torch.Tensor] = []
    known: dict[Hashable, int] = {}
    for place, keys, tensor in sorted(_streamed(registered, tree), key=_order):
        index = known.setdefault(_memory(tensor), len(tensors))
        if index == len(tensors):
            tensors.append(tensor)
        holes.append(_Hole(place, keys, tensor.dtype, tuple(tensor.shape), index))
        _put(tree, holes[-1], None)
    listed = [[*hole.place, list(hole.keys), _NAMES[hole.dtype], list(hole.shape), hole.index] for hole in holes]
    fingerprint = xxhash.xxh3_128_hexdigest(msgpack.packb(listed))
    first = _first(holes)
    ground = Ground(tensors, [hole.path for hole in first])
    streamed = tuple(Streamed(hole.path, hole.dtype, hole.shape) for hole in first)
    return Manifest(snapshot({"tree": tree, "holes": listed}), streamed, ground.nbytes, fingerprint), ground


def prepare(registered: Registered, packed: bytes) -> Ground:
    """Take over what is inline, and give the live tensors that are to be filled.

    Optimizer state that does not exist here yet begins with zeros. Other tensors keep their values until they are filled.
    ConfigError naming the first difference, before anything has changed, where another program packed it.
    """
    return _take(registered, packed, create=True)


def refresh(registered: Registered, packed: bytes) -> Ground:
    """Take over what is inline; the streamed tensors, which are returned, stay the very same.

    ConfigError where they do not exist here.
    """
    return _take(registered, packed, create=False)


def stepping(registered: Registered) -> list[Optimizer]:
    """The registered optimizers of torch that tell of their steps (``register_step_pre_hook``)."""
    return list(_optimizers(registered).values())


# --- at who has the state ----------------------------------------------------------------------------------------------


def _opened(registered: Registered, step: int) -> dict[str, Any]:
    """The tree, with containers of its own wherever there may be holes."""
    tree = registered.tree(step)
    for role, index in registered.of(nn.Module):
        if isinstance(tree[role][index], Mapping):
            tree[role][index] = dict(tree[role][index])
    for role, index in _optimizers(registered):
        state = tree[role][index]
        if isinstance(state, Mapping) and isinstance(state.get("state"), Mapping):
            inner = {key: dict(value) if isinstance(value, Mapping) else value for key, value in state["state"].items()}
            tree[role][index] = {**state, "state": inner}
    return tree


def _streamed(registered: Registered, tree: Mapping[str, Any]) -> Iterator[tuple[Place, Keys, torch.Tensor]]:
    """Every place of a live tensor that is streamed."""
    optimizers = _optimizers(registered)
    stepped = {id(p) for optimizer in optimizers.values() for p in _parameters(optimizer)}
    found = _by_memory(registered)
    parameters = {key: p for key, p in found.items() if _plain(p) and (id(p) in stepped or not p.requires_grad)}
    for role, index in registered.of(nn.Module):
        for name, value in _mapping(tree[role][index]).items():
            if isinstance(value, torch.Tensor) and (p := parameters.get(_memory(value))) is not None:
                yield (role, index), (name,), p
    for (role, index), optimizer in optimizers.items():
        live = {id(value) for p in _parameters(optimizer) for value in _mapping(optimizer.state.get(p)).values()}
        for number, values in _mapping(_mapping(tree[role][index]).get("state")).items():
            for name, value in _mapping(values).items():
                if id(value) in live and isinstance(value, torch.Tensor) and value.numel() > 1 and _plain(value):
                    yield (role, index), ("state", number, name), value


def _plain(tensor: torch.Tensor) -> bool:
    """Whether its bytes are all there is to it, and its changes are counted."""
    return (
        type(tensor) in (torch.Tensor, nn.Parameter)
        and tensor.layout is torch.strided
        and tensor.dtype in _NAMES
        and tensor.numel() > 0
        and not (tensor.is_conj() or tensor.is_neg() or tensor.is_inference() or tensor.is_meta)
    )


# --- at who gets it ----------------------------------------------------------------------------------------------------


def _take(registered: Registered, packed: bytes, *, create: bool) -> Ground:
    tree, holes = _unpacked(packed)
    registered.check(tree)
    own = _opened(registered, 0)
    _compare(registered, own, tree, holes)
    ground = Ground(_live(registered, own, holes, create=create), [hole.path for hole in _first(holes)])
    _check_ties(ground)
    for hole in holes:
        _put(tree, hole, ground.tensors[hole.index])  # a parameter that is loaded from itself is not even copied
    registered.load(tree)
    optimizers = _optimizers(registered)
    for hole in holes:
        if hole.place in optimizers:  # torch has taken the tensors themselves, but for those that it casts
            optimizer, (_, number, name) = optimizers[hole.place], hole.keys
            optimizer.state[_parameters(optimizer)[int(number)]][name] = ground.tensors[hole.index]
    return ground


def _unpacked(packed: bytes) -> tuple[dict[str, Any], list[_Hole]]:
    try:
        match decode(packed):
            case {"tree": dict(tree), "holes": list(listed)}:
                return tree, [_hole(entry) for entry in listed]
        raise ValueError("it has the wrong shape")
    except (ValueError, EOFError) as error:
        raise ConfigError(f"the job's state is not readable: {error}; run one release everywhere") from None


def _hole(entry: object) -> _Hole:
    match entry:
        case [str(role), int(place), list(keys), str(dtype), list(shape), int(index)] if dtype in DTYPES and len(keys) in (
            1,
            3,
        ):
            if all(type(key) in (str, int) for key in keys) and all(type(n) is int and n >= 0 for n in shape):
                size = cast("tuple[int, ...]", tuple(shape))
                return _Hole((role, place), cast("Keys", tuple(keys)), DTYPES[dtype], size, index)
    raise ValueError("it has the wrong shape")


def _compare(registered: Registered, own: Mapping[str, Any], tree: Mapping[str, Any], holes: Iterable[_Hole]) -> None:
    """ConfigError naming the first difference between the registered objects here (``own``) and at the job (``tree``)."""
    streamed = {(hole.place, hole.keys): hole for hole in holes}
    modules, optimizers = registered.of(nn.Module), _optimizers(registered)
    for place in modules:
        here, there = _mapping(own[place[0]][place[1]]), _mapping(tree[place[0]][place[1]])
        for name in [*there, *(name for name in here if name not in there)]:
            path = _path(place, name)
            if name not in here or name not in there:
                raise ConfigError(f"{path} exists {'here' if name in here else 'at the job'} alone: {_SAME}")
            _compare_tensors(path, here[name], streamed.get((place, (name,)), there[name]))
    for place, optimizer in optimizers.items():
        ours = [len(group["params"]) for group in optimizer.param_groups]
        groups = _mapping(tree[place[0]][place[1]]).get("param_groups", ())
        theirs = [len(_mapping(group).get("params", ())) for group in groups]
        if ours != theirs:
            raise ConfigError(f"{_path(place)} has parameter groups of {ours} here and of {theirs} at the job: {_SAME}")
    for hole in streamed.values():
        fits = hole.place in (modules if len(hole.keys) == 1 else optimizers)
        if not fits or (len(hole.keys) == 3 and hole.keys[1] not in range(len(_parameters(optimizers[hole.place])))):
            raise ConfigError(f"{hole.path} is of another kind here than at the job: {_SAME}")


def _compare_tensors(path: str, here: object, there: object) -> None:
    if not isinstance(here, torch.Tensor) or not isinstance(there, (torch.Tensor, _Hole)):
        return
    if tuple(here.shape) != tuple(there.shape):
        raise ConfigError(f"{path} has shape {tuple(here.shape)} here and {tuple(there.shape)} at the job: {_SAME}")
    if here.dtype is not there.dtype:
        raise ConfigError(f"{path} is {_name(here.dtype)} here and {_name(there.dtype)} at the job: {_SAME}")


def _live(registered: Registered, own: Mapping[str, Any], holes: Iterable[_Hole], *, create: bool) -> list[torch.Tensor]:
    """The tensors here that belong into the holes, by index."""
    parameters, optimizers = _by_memory(registered), _optimizers(registered)
    live: dict[int, torch.Tensor] = {}
    for hole in holes:
        if hole.place in optimizers:
            if hole.index not in live:
                live[hole.index] = _state_tensor(optimizers[hole.place], hole, create=create)
            continue
        mine = own[hole.place[0]][hole.place[1]][hole.keys[0]]
        mine = parameters.get(_memory(mine), mine)
        if _memory(live.setdefault(hole.index, mine)) != _memory(mine):
            raise ConfigError(f"{hole.path} is tied to another tensor at the job, but not here: {_SAME}")
    return [live[index] for index in range(len(live))]


def _state_tensor(optimizer: Optimizer, hole: _Hole, *, create: bool) -> torch.Tensor:
    """The one that exists, or a new one of zeros."""
    _, number, name = hole.keys
    parameter = _parameters(optimizer)[int(number)]
    found = _mapping(optimizer.state.get(parameter)).get(name)
    if isinstance(found, torch.Tensor) and (found.dtype, tuple(found.shape)) == (hole.dtype, hole.shape):
        return found
    if not create:
        raise ConfigError(f"{hole.path} of {_name(hole.dtype)} {hole.shape} does not exist here, but at the job")
    nbytes = torch.Size(hole.shape).numel() * hole.dtype.itemsize
    if parameter.device.type == "cpu" and parameter.is_contiguous() and nbytes >= _ROOM:
        return huge(nbytes).view(hole.dtype).view(hole.shape)
    if tuple(parameter.shape) == hole.shape:  # with its strides, as the optimizer itself makes them
        return torch.zeros_like(parameter, dtype=hole.dtype, requires_grad=False)
    return torch.zeros(hole.shape, dtype=hole.dtype, device=parameter.device)


def _check_ties(ground: Ground) -> None:
    paths: dict[Hashable, str] = {}
    for tensor, path in zip(ground.tensors, ground.paths, strict=True):
        other = paths.setdefault(_memory(tensor), path)
        if other is not path:
            raise ConfigError(f"{path} is tied to {other} here, but not at the job: {_SAME}")


# --- both --------------------------------------------------------------------------------------------------------------


def _optimizers(registered: Registered) -> dict[Place, Optimizer]:
    # torch's constructor marks the method; a class that does not call it runs no hooks
    return {place: item for place, item in registered.of(Optimizer).items() if getattr(type(item).step, "hooked", False)}


def _by_memory(registered: Registered) -> dict[Hashable, nn.Parameter]:
    """The registered modules' parameters. ``state_dict`` gives other tensors that share their memory."""
    return {_memory(p): p for module in registered.of(nn.Module).values() for p in module.parameters() if _dense(p)}


def _dense(tensor: torch.Tensor) -> bool:
    return type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout is torch.strided and tensor.numel() > 0


def _memory(tensor: torch.Tensor) -> Hashable:
    if not _dense(tensor) or tensor.is_meta:
        return id(tensor)
    return tensor.device, tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def _parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    """In the order in which ``state_dict`` numbers them."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def _mapping(value: object) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _first(holes: Sequence[_Hole]) -> list[_Hole]:
    """The first hole of every tensor, by index. ConfigError where the numbers are none."""
    first: dict[int, _Hole] = {}
    for hole in holes:
        first.setdefault(hole.index, hole)
    if sorted(first) != list(range(len(first))):
        raise ConfigError("the job's state is not readable: its tensors are not numbered; run one release everywhere")
    return [first[index] for index in range(len(first))]


def _put(tree: Any, hole: _Hole, value: object) -> None:
    *way, last = hole.place[0], hole.place[1], *hole.keys
    for key in way:
        tree = tree[key]
    tree[last] = value


def _order(entry: tuple[Place, Keys, torch.Tensor]) -> list[tuple[bool, str | int]]:
    return [(isinstance(key, str), key) for key in (*entry[0], *entry[1])]


def _path(place: Place, *keys: str | int) -> str:
    return f"{place[0]}[{place[1]}]" + "".join(f"[{key!r}]" for key in keys)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
