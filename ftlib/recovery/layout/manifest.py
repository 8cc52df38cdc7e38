"""Which part of the registered state is streamed, and which comes inline in the manifest.

*Streamed* tensors are big, and only an optimizer's step changes them: the parameters of registered modules, and the tensors
with more than one element in registered optimizers' state. A trainable parameter that no registered optimizer steps may change
at any time, so it is *inline*, like everything else: buffers, counters, hyperparameters, the state of all other objects.

A packed manifest is the tree of ``Registered.tree`` (``state`` encodes it) with holes for the streamed tensors, and the list of
these holes. Tensors that share their memory (tied weights) are streamed once and fill several holes. The list is sorted, so
that it is the same at all members.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
import xxhash
from torch import nn
from torch.optim import Optimizer

from ...common.device_waits import Fence, settle
from ...common.devices import device_at, place_of
from ...common.memory import huge
from ...errors import ConfigError
from ...state.codec import DTYPES, decode, plain_bytes, snapshot
from ...state.live import Place, by_memory, memory, optimizers_of, plain, separable, stepping
from ...state.parts import mapping, parameters_of
from ...state.registry import Registered
from .flat_state import FlatState

_SAME = "build the same everywhere"
_ROOM = 1 << 20
"""Size in bytes from which a new tensor gets huge pages."""
_NAMES = {dtype: name for name, dtype in DTYPES.items()}

Keys = tuple[str | int, ...]
"""A path within an object's state: (name,) in a module's, ("state", the parameter's number, name) in an optimizer's."""


class Streamed(NamedTuple):
    """One streamed tensor. ``path``: the tensor's first place in the tree."""

    path: str
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """A state without its streamed tensors' data."""

    packed: bytes
    """The tree with holes, the inline tensors' data, the list of holes."""
    streamed: tuple[Streamed, ...]
    """In the order of the flat state."""
    nbytes: int
    """Bytes of all streamed tensors."""
    fingerprint: str
    """Hash of the list of holes. Flat states with equal fingerprints have the same tensors at the same places."""
    borders: tuple[int, ...]
    """Where in the flat state a parameter with its optimizer state begins; empty if a step reads several together."""


@dataclass(frozen=True, slots=True)
class _Hole:
    """A place in the tree for the streamed tensor with number ``index``."""

    place: Place
    keys: Keys
    dtype: torch.dtype
    shape: tuple[int, ...]
    index: int

    @property
    def path(self) -> str:
        return _path(self.place, *self.keys)


def split(registered: Registered, step: int, fence: Fence | None = None) -> tuple[Manifest, FlatState]:
    """The manifest of the present state, and the live streamed tensors. ConfigError names a value that cannot travel.

    ``fence``: see ``FlatState``.
    """
    tree = _opened(registered, step)
    holes: list[_Hole] = []
    tensors: list[torch.Tensor] = []
    known: dict[Hashable, int] = {}
    owners: list[Hashable] = []
    for owner, (place, keys, tensor) in _by_owner(registered, _streamed(registered, tree)):
        index = known.setdefault(memory(tensor), len(tensors))
        if index == len(tensors):
            tensors.append(tensor)
            owners.append(owner)
        holes.append(_Hole(place, keys, tensor.dtype, tuple(tensor.shape), index))
        _put(tree, holes[-1], None)
    listed = [[*hole.place, list(hole.keys), _NAMES[hole.dtype], list(hole.shape), hole.index] for hole in holes]
    fingerprint = xxhash.xxh3_128_hexdigest(plain_bytes(listed))
    first = _first(holes)
    flat = FlatState(tensors, [hole.path for hole in first], fence)
    streamed = tuple(Streamed(hole.path, hole.dtype, hole.shape) for hole in first)
    borders = _borders(flat, owners) if separable(registered) else ()
    return Manifest(snapshot({"tree": tree, "holes": listed}, fence), streamed, flat.nbytes, fingerprint, borders), flat


def prepare(registered: Registered, packed: bytes) -> FlatState:
    """Take over the inline part; returns the live tensors that are to be filled.

    Optimizer state that does not exist here yet is created with zeros. Other tensors keep their values until they are filled.
    ConfigError names the first difference, before anything has changed, if another program packed the state.
    """
    return _take(registered, packed, create=True)


def refresh(registered: Registered, packed: bytes) -> FlatState:
    """Take over the inline part; returns the streamed tensors, which are left as they are.

    ConfigError if they do not exist here.
    """
    return _take(registered, packed, create=False)


def take_over(registered: Registered, packed: bytes, parameters: Collection[int]) -> None:
    """Take over only the inline optimizer state (step counters) of ``parameters`` (given by ``id``)."""
    tree, holes = _unpacked(packed)
    streamed = {(hole.place, hole.keys) for hole in holes}
    for place, optimizer in optimizers_of(registered).items():
        owned = parameters_of(optimizer)
        for number, values in mapping(mapping(tree[place[0]][place[1]]).get("state")).items():
            if id(owned[number]) not in parameters:
                continue
            state = optimizer.state[owned[number]]
            for name, value in mapping(values).items():
                if (place, ("state", number, name)) in streamed:
                    continue
                mine = state.get(name)
                if isinstance(mine, torch.Tensor) and isinstance(value, torch.Tensor):
                    mine.copy_(value)
                else:
                    state[name] = value


def by_chunk(registered: Registered, flat: FlatState, chunks: Sequence[tuple[int, int]]) -> list[list[torch.Tensor]]:
    """The parameters that optimizers step, by their chunk of ``flat``. ConfigError if a parameter is in no chunk."""
    if len(chunks) == 1:
        return [[p for optimizer in stepping(registered) for p in parameters_of(optimizer)]]
    starts = [0, *flat.ends]
    where = {memory(tensor): start for tensor, start in zip(flat.tensors, starts, strict=False)}
    found: list[list[torch.Tensor]] = [[] for _ in chunks]
    for optimizer in stepping(registered):
        for parameter in parameters_of(optimizer):
            start = where.get(memory(parameter))
            if start is None:
                raise ConfigError(f"an optimizer here steps a parameter that the job's state lacks: {_SAME}")
            found[bisect_right([stop for _, stop in chunks], start)].append(parameter)
    return found


# --- at the donor ------------------------------------------------------------------------------------------------------


def _opened(registered: Registered, step: int) -> dict[str, Any]:
    """The tree, with new containers wherever there may be holes."""
    tree = registered.tree(step)
    for role, index in registered.of(nn.Module):
        if isinstance(tree[role][index], Mapping):
            tree[role][index] = dict(tree[role][index])
    for role, index in optimizers_of(registered):
        state = tree[role][index]
        if isinstance(state, Mapping) and isinstance(state.get("state"), Mapping):
            inner = {key: dict(value) if isinstance(value, Mapping) else value for key, value in state["state"].items()}
            tree[role][index] = {**state, "state": inner}
    return tree


def _streamed(registered: Registered, tree: Mapping[str, Any]) -> Iterator[tuple[Place, Keys, torch.Tensor]]:
    """Every place of a live tensor that is streamed."""
    optimizers = optimizers_of(registered)
    stepped = {id(p) for optimizer in optimizers.values() for p in parameters_of(optimizer)}
    found = by_memory(registered)
    parameters = {key: p for key, p in found.items() if plain(p) and (id(p) in stepped or not p.requires_grad)}
    for role, index in registered.of(nn.Module):
        for name, value in mapping(tree[role][index]).items():
            if isinstance(value, torch.Tensor) and (p := parameters.get(memory(value))) is not None:
                yield (role, index), (name,), p
    for (role, index), optimizer in optimizers.items():
        live = {id(value) for p in parameters_of(optimizer) for value in mapping(optimizer.state.get(p)).values()}
        for number, values in mapping(mapping(tree[role][index]).get("state")).items():
            for name, value in mapping(values).items():
                if id(value) in live and isinstance(value, torch.Tensor) and value.numel() > 1 and plain(value):
                    yield (role, index), ("state", number, name), value


def _by_owner(
    registered: Registered, entries: Iterable[tuple[Place, Keys, torch.Tensor]]
) -> list[tuple[Hashable, tuple[Place, Keys, torch.Tensor]]]:
    """The entries with their owners, in an order that is equal everywhere: after a parameter comes its optimizer state."""
    optimizers, ranks = optimizers_of(registered), dict[Hashable, int]()
    entries = sorted(entries, key=_order)
    owners: list[Hashable] = []
    for place, keys, tensor in entries:
        if place in optimizers:
            owners.append(memory(parameters_of(optimizers[place])[int(keys[1])]))
        else:
            owners.append(memory(tensor))
            ranks.setdefault(owners[-1], len(ranks))
    whose = list(zip(owners, entries, strict=True))
    return sorted(whose, key=lambda each: (ranks.get(each[0], len(ranks)), each[1][0] in optimizers))


def _borders(flat: FlatState, owners: Sequence[Hashable]) -> tuple[int, ...]:
    return tuple(start for start, one, other in zip(flat.ends, owners, owners[1:], strict=False) if one != other)


# --- at the joiner -----------------------------------------------------------------------------------------------------


def _take(registered: Registered, packed: bytes, *, create: bool) -> FlatState:
    tree, holes = _unpacked(packed)
    registered.check(tree)
    own = _opened(registered, 0)
    _compare(registered, own, tree, holes)
    paths = [hole.path for hole in _first(holes)]
    flat = FlatState(_live(registered, own, holes, create=create), paths)
    _check_ties(flat)
    for hole in holes:
        _put(tree, hole, flat.tensors[hole.index])  # loading a parameter from itself copies nothing
    registered.load(tree)
    optimizers = optimizers_of(registered)
    for hole in holes:
        if hole.place in optimizers:  # torch has kept the tensors themselves, perhaps except some that it has cast
            optimizer, (_, number, name) = optimizers[hole.place], hole.keys
            optimizer.state[parameters_of(optimizer)[int(number)]][name] = flat.tensors[hole.index]
    settle(registered.places())  # other threads write these tensors from now on
    return flat


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
    """ConfigError names the first difference between the registered objects here (``own``) and the job's (``tree``)."""
    streamed = {(hole.place, hole.keys): hole for hole in holes}
    modules, optimizers = registered.of(nn.Module), optimizers_of(registered)
    for place in modules:
        here, there = mapping(own[place[0]][place[1]]), mapping(tree[place[0]][place[1]])
        for name in [*there, *(name for name in here if name not in there)]:
            path = _path(place, name)
            if name not in here or name not in there:
                raise ConfigError(f"{path} exists {'here' if name in here else 'at the job'} alone: {_SAME}")
            _compare_tensors(path, here[name], streamed.get((place, (name,)), there[name]))
    for place, optimizer in optimizers.items():
        ours = [len(group["params"]) for group in optimizer.param_groups]
        groups = mapping(tree[place[0]][place[1]]).get("param_groups", ())
        theirs = [len(mapping(group).get("params", ())) for group in groups]
        if ours != theirs:
            raise ConfigError(f"{_path(place)} has parameter groups of {ours} here and of {theirs} at the job: {_SAME}")
    for hole in streamed.values():
        fits = hole.place in (modules if len(hole.keys) == 1 else optimizers)
        if not fits or (len(hole.keys) == 3 and hole.keys[1] not in range(len(parameters_of(optimizers[hole.place])))):
            raise ConfigError(f"{hole.path} is of another kind here than at the job: {_SAME}")


def _compare_tensors(path: str, here: object, there: object) -> None:
    if not isinstance(here, torch.Tensor) or not isinstance(there, (torch.Tensor, _Hole)):
        return
    if tuple(here.shape) != tuple(there.shape):
        raise ConfigError(f"{path} has shape {tuple(here.shape)} here and {tuple(there.shape)} at the job: {_SAME}")
    if here.dtype is not there.dtype:
        raise ConfigError(f"{path} is {_name(here.dtype)} here and {_name(there.dtype)} at the job: {_SAME}")


def _live(registered: Registered, own: Mapping[str, Any], holes: Iterable[_Hole], *, create: bool) -> list[torch.Tensor]:
    """This member's tensors for the holes, by index."""
    parameters, optimizers = by_memory(registered), optimizers_of(registered)
    live: dict[int, torch.Tensor] = {}
    for hole in holes:
        if hole.place in optimizers:
            if hole.index not in live:
                live[hole.index] = _state_tensor(optimizers[hole.place], hole, create=create)
            continue
        mine = own[hole.place[0]][hole.place[1]][hole.keys[0]]
        mine = parameters.get(memory(mine), mine)
        if memory(live.setdefault(hole.index, mine)) != memory(mine):
            raise ConfigError(f"{hole.path} is tied to another tensor at the job, but not here: {_SAME}")
    return [live[index] for index in range(len(live))]


def _state_tensor(optimizer: Optimizer, hole: _Hole, *, create: bool) -> torch.Tensor:
    """The existing tensor, or a new one of zeros if ``create``."""
    _, number, name = hole.keys
    parameter = parameters_of(optimizer)[int(number)]
    found = mapping(optimizer.state.get(parameter)).get(name)
    if isinstance(found, torch.Tensor) and (found.dtype, tuple(found.shape)) == (hole.dtype, hole.shape):
        return found
    if not create:
        raise ConfigError(f"{hole.path} of {_name(hole.dtype)} {hole.shape} does not exist here, but at the job")
    nbytes = torch.Size(hole.shape).numel() * hole.dtype.itemsize
    alike = tuple(parameter.shape) == hole.shape  # with the parameter's strides, as the optimizer makes it
    if place := place_of(parameter):
        like = parameter if alike else parameter.new_empty(hole.shape)
        blank = torch.empty_like(like, dtype=hole.dtype, requires_grad=False)
        device_at(place).enqueue(blank.zero_, blank)
        return blank
    if parameter.is_contiguous() and nbytes >= _ROOM:
        return huge(nbytes).view(hole.dtype).view(hole.shape)
    if alike:
        return torch.zeros_like(parameter, dtype=hole.dtype, requires_grad=False)
    return torch.zeros(hole.shape, dtype=hole.dtype, device="cpu")


def _check_ties(flat: FlatState) -> None:
    paths: dict[Hashable, str] = {}
    for tensor, path in zip(flat.tensors, flat.paths, strict=True):
        other = paths.setdefault(memory(tensor), path)
        if other is not path:
            raise ConfigError(f"{path} is tied to {other} here, but not at the job: {_SAME}")


# --- both --------------------------------------------------------------------------------------------------------------


def _first(holes: Sequence[_Hole]) -> list[_Hole]:
    """The first hole of every tensor, by index. ConfigError if the indices are not 0, 1, 2, ..."""
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
