"""Values as a tree of bytes and the tensors beside it, and back; pure, and nothing is unpickled unless both sides said so.

None, bool, int, float, str, bytes, lists and dicts are msgpack as it is; the other kinds are extensions of it, one code each.
A tensor or array is a *leaf*: the tree has its number, and ``Message.shapes`` says what it is, so that a receiver can make room
for all leaves before it looks at the tree. A dataclass is rebuilt field by field, of a class that this process has imported.
"""

from __future__ import annotations

import dataclasses
import math
import pickle
import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, TypeVar

import msgpack
import numpy as np
import torch

from ..common.devices import HOST, Event, device_at, place_of
from ..common.memory import Pages, bytes_of
from ..links.errors import Mismatch, Refused
from .devices.carriers import await_event, to_host

Leaf = Any
"""A torch.Tensor or a numpy.ndarray."""
Shape = list[Any]
"""Of a leaf: 0 for a tensor or 1 for an array, name of its dtype, where it was (0: on the host, 1: on a GPU, ``CARRIED``: on a
GPU, and it comes beside the message), then its dimensions.
"""
CARRIED = 2
_SHORT = 30 << 10
_PAGES = Pages(least=1 << 18, kept=64 << 20)
"""Memory of tensors that have arrived and were freed, used again: the first touch of fresh pages costs more than the copy."""
DEPTH = 64
"""Levels of nested tuples, keys and dataclasses."""
_DTYPES = {str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
_DTYPES = {name: dtype for name, dtype in _DTYPES.items() if not re.match(r"q|bits|u?int[1-7]$|float4", name)}
_PLAIN = {torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_ARRAY = re.compile(r"[<>|=][biufcSUmMV]\d{1,9}(\[[\da-zA-Z]+\])?")
_T = TypeVar("_T")


class Kind(IntEnum):
    """Codes of msgpack's extensions."""

    LEAF = 1
    TUPLE = 2
    COMPLEX = 3
    INTEGER = 4
    SCALAR = 5
    DATACLASS = 6
    PICKLE = 7
    ORDERED = 8


@dataclass(slots=True)
class Message:
    """One value on its way; nobody changes it.

    ``leaves``: tensors and arrays of ``shapes``, in order; the memory of the program's own.
    """

    tree: bytes
    shapes: list[Shape]
    leaves: list[Leaf]
    pickled: bool = False
    after: list[Event] = field(default_factory=list)
    """What the devices must have come to before the leaves on them are what was meant; empty if none is on one."""

    @property
    def nbytes(self) -> int:
        """Bytes of all of it."""
        return len(self.tree) + sum(int(leaf.nbytes) for leaf in self.leaves)

    @property
    def fits_header(self) -> bool:
        """Whether tree and shapes are short, by far."""
        return len(self.tree) + sum(16 + 8 * len(shape) for shape in self.shapes) < _SHORT

    def split(self, takes: Callable[[Leaf], bool]) -> tuple[Message, list[Leaf]]:
        """The same with the leaves on devices marked that ``takes`` takes, and those leaves."""
        chosen = [
            bool(shape[2]) and leaf.nbytes > 0 and takes(leaf) for leaf, shape in zip(self.leaves, self.shapes, strict=True)
        ]
        shapes = [[*s[:2], CARRIED, *s[3:]] if yes else s for s, yes in zip(self.shapes, chosen, strict=True)]
        cargo = [leaf for leaf, yes in zip(self.leaves, chosen, strict=True) if yes]
        return Message(self.tree, shapes, self.leaves, self.pickled, self.after), cargo


class Classes:
    """What one side may send and build beyond plain values: registered dataclasses, and pickles if it allows them."""

    def __init__(self, *, allow_pickle: bool = False) -> None:
        self.allow_pickle = allow_pickle
        self._by_name: dict[str, type] = {}
        self._names: dict[type, str] = {}

    def register(self, cls: type[_T], name: str | None = None) -> type[_T]:
        """Accept the dataclass ``cls`` under ``name`` (default: its module and name). Both sides need it under one name."""
        if not dataclasses.is_dataclass(cls):
            raise Refused(f"{cls!r} is no dataclass: only those can be registered")
        known = name or f"{cls.__module__}:{cls.__qualname__}"
        self._by_name[known], self._names[cls] = cls, known
        return cls

    def name_of(self, cls: type) -> str:
        """The name that ``cls`` travels under."""
        return self._names.get(cls) or f"{cls.__module__}:{cls.__qualname__}"

    def find(self, name: str) -> type:
        """The dataclass of that name. Imports nothing; Mismatch if this process has none."""
        found: Any = self._by_name.get(name)
        if found is None:
            module, _, path = name.partition(":")
            found = sys.modules.get(module)
            for part in path.split("."):
                found = getattr(found, part, None) if isinstance(found, type) or found is sys.modules.get(module) else None
        if not isinstance(found, type) or not dataclasses.is_dataclass(found):
            raise Mismatch(f"no dataclass {name!r} here: import its module at this member, or register() it at both")
        return found


def encode(value: object, classes: Classes) -> Message:
    """``value`` as a message that uses its tensors' own memory. Refused names the path of what cannot be sent."""
    encoder = _Encoder(classes)
    try:
        tree = encoder.pack(value)
    except Refused as error:
        raise Refused(f"{_path_to(value, encoder.refused) or 'the value'}: {error}") from None
    except (ValueError, OverflowError, RecursionError) as error:
        raise Refused(f"the value cannot be sent ({error}): it may contain itself, or be nested too deeply") from None
    after = marks(encoder.leaves) if any(shape[2] for shape in encoder.shapes) else []
    return Message(tree, encoder.shapes, encoder.leaves, encoder.pickled, after)


def encode_leaf(leaf: Leaf) -> Message:
    """One tensor or array without a tree. Refused if it cannot be sent."""
    shape = shape_of(leaf)
    return Message(b"", [shape], [plain(leaf)], after=marks([leaf]) if shape[2] else [])


def decode(tree: bytes, leaves: Sequence[Leaf], classes: Classes) -> Any:
    """The value of a message whose ``leaves`` have arrived. Mismatch if ``tree`` is none, or may not be built here."""
    try:
        return _Decoder(leaves, classes).unpack(tree)
    except Mismatch:
        raise
    except Exception as error:  # whatever a pickle or a hostile tree raises
        raise Mismatch(f"what arrived cannot be read here: {type(error).__name__}: {error}") from error


class _Decoder:
    """Builds one value. Closures that refer to each other would be a circle, which keeps the leaves until it is collected."""

    def __init__(self, leaves: Sequence[Leaf], classes: Classes) -> None:
        self._leaves = leaves
        self._classes = classes

    def unpack(self, data: bytes) -> Any:
        """The value that is packed in ``data``."""
        return msgpack.unpackb(data, ext_hook=self._build, strict_map_key=False, unicode_errors="surrogatepass")

    def _build(self, code: int, data: bytes) -> Any:  # noqa: PLR0911 - one line a kind
        """What msgpack has no kind for."""
        match code:
            case Kind.LEAF:
                return self._leaves[int.from_bytes(data, "little")]
            case Kind.TUPLE:
                return tuple(self.unpack(data))
            case Kind.ORDERED:
                return OrderedDict(self.unpack(data))
            case Kind.COMPLEX:
                return complex(*self.unpack(data))
            case Kind.INTEGER:
                return int.from_bytes(data, "little", signed=True)
            case Kind.SCALAR:
                dtype, raw = self.unpack(data)
                return np.ndarray((1,), _array_dtype(dtype), raw)[0]
            case Kind.DATACLASS:
                return _built(self._classes, *self.unpack(data))
            case Kind.PICKLE if self._classes.allow_pickle:
                return pickle.loads(data)  # noqa: S301 - both sides have asked for it
        raise Mismatch("the peer sent a pickle, which allow_pickle=False refuses" if code == Kind.PICKLE else f"code {code}")


def room_for(shapes: Any, limit: int, place: str = HOST) -> list[Leaf]:
    """New leaves for ``shapes``: on the host, but on the device ``place`` where they are carried.

    Mismatch if these are none, or need more than ``limit`` bytes: checked before.
    """
    try:
        wanted = [(*checked(shape), shape[2] == CARRIED) for shape in shapes]
        need = sum(dtype.itemsize * math.prod(dims) for dtype, dims, _ in wanted)
        if need > limit or len(wanted) > limit:
            raise Mismatch(f"a message of {need} bytes in tensors; at most {limit} are accepted here (max_bytes)")
        return [_made(dtype, dims, place if carried else HOST, carried=carried) for dtype, dims, carried in wanted]
    except (TypeError, ValueError, RuntimeError, OverflowError, LookupError) as error:
        raise error if isinstance(error, Mismatch) else Mismatch(f"shapes that are none: {error}") from None


def _made(dtype: Any, dims: list[int], place: str, *, carried: bool) -> Leaf:
    if not isinstance(dtype, torch.dtype):
        return np.empty(dims, dtype)
    if not carried:
        return _PAGES.row(math.prod(dims), dtype).reshape(dims)
    if place == HOST:
        raise Mismatch("tensors come from GPU to GPU, as was not agreed")
    return device_at(place).empty(math.prod(dims), dtype).reshape(dims)


def shape_of(leaf: Leaf) -> Shape:
    """What a receiver must know of ``leaf`` beforehand. Refused if it cannot be sent."""
    if isinstance(leaf, torch.Tensor):
        if leaf.dtype not in _NAMES or leaf.layout is not torch.strided or not (leaf.is_cpu or leaf.is_cuda):
            raise Refused(
                f"a tensor of {leaf.dtype}, {leaf.layout}, on {leaf.device} cannot be sent: make it dense, on CPU or CUDA"
            )
        if not leaf.is_contiguous():
            raise Refused("the tensor is not contiguous: pass tensor.contiguous()")
        return [0, _NAMES[leaf.dtype], int(place_of(leaf) != HOST), *leaf.shape]
    if not isinstance(leaf, np.ndarray):
        raise Refused(f"a {type(leaf).__name__} is given: pass a tensor or a numpy array, or use send and recv")
    if isinstance(leaf, np.ma.MaskedArray):
        raise Refused("a masked array cannot be sent: its mask would be lost; send its data and its mask")
    if not _ARRAY.fullmatch(leaf.dtype.str) or leaf.dtype.names is not None:
        raise Refused(f"an array of {leaf.dtype} cannot be sent: convert its dtype")
    if not leaf.flags.c_contiguous:
        raise Refused("the array is not contiguous: pass numpy.ascontiguousarray(array)")
    return [1, leaf.dtype.str, 0, *leaf.shape]


def plain(leaf: Leaf) -> Leaf:
    """``leaf`` without gradient or pending negation, where it is."""
    if isinstance(leaf, torch.Tensor) and (leaf.requires_grad or leaf.is_neg() or (leaf.is_complex() and leaf.is_conj())):
        return leaf.detach().resolve_conj().resolve_neg()
    return leaf


def marks(leaves: Iterable[Leaf]) -> list[Event]:
    """Where the devices of ``leaves`` are now, on the streams that are current in this thread; empty if all are on the host."""
    places = {place_of(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)} - {HOST}
    return [device_at(place).waited() for place in sorted(places)]


def hosted(message: Message) -> Message:
    """The same with the leaves in host memory that were on devices, but those that are carried; blocks until they are there."""
    if not message.after:
        return message
    for event in message.after:
        await_event(event, "what was launched before the send")
    leaves = [to_host(leaf) if shape[2] == 1 else leaf for leaf, shape in zip(message.leaves, message.shapes, strict=True)]
    return Message(message.tree, message.shapes, leaves, message.pickled)


def copied(message: Message) -> Message:
    """The same in memory of its own."""
    leaves = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf.copy() for leaf in message.leaves]
    return Message(message.tree, message.shapes, leaves, message.pickled)


def memory(leaf: Leaf) -> memoryview:
    """The bytes of a contiguous leaf on the host, as they lie there."""
    if isinstance(leaf, torch.Tensor):
        if leaf.dtype in _PLAIN and leaf.dim() and not leaf.requires_grad:  # the short way
            return leaf.numpy().data.cast("B")
        leaf = bytes_of(leaf.detach()).numpy()
    flat: np.ndarray[Any, Any] = np.asarray(leaf).reshape(-1).view(np.uint8)  # a matrix is never flat
    return flat.data


def memories(leaves: Iterable[Leaf], shapes: Iterable[Shape]) -> list[memoryview]:
    """The bytes of all that are not empty and do not come beside the message."""
    return [memory(leaf) for leaf, shape in zip(leaves, shapes, strict=True) if shape[2] != CARRIED and leaf.nbytes]


def place_for(leaf: Leaf, shape: Shape) -> list[memoryview]:
    """The bytes of a leaf on the host that are to be filled. Refused if they cannot be."""
    try:
        views = memories([leaf], [shape])
    except RuntimeError as error:  # a conjugate has no memory of its own values
        raise Refused(f"nothing can be received into this tensor: {error}") from None
    if any(view.readonly for view in views):
        raise Refused("the array is read-only: pass one that can be written")
    return views


def placed(leaf: Leaf, shape: Shape) -> Leaf:
    """A leaf that has arrived, on this process's current GPU if it was on one at the sender, and there is one here."""
    return leaf.cuda() if shape[2] == 1 and torch.cuda.is_available() else leaf


class _Encoder:
    """Packs one value; ``leaves`` and ``shapes`` are what it met."""

    def __init__(self, classes: Classes) -> None:
        self.leaves: list[Leaf] = []
        self.shapes: list[Shape] = []
        self.pickled = False
        self.refused: object = None
        self._classes = classes
        self._depth = 0

    def pack(self, value: object) -> bytes:
        """``value`` as msgpack."""
        if self._depth > DEPTH:
            raise Refused(f"nested deeper than {DEPTH} levels")
        self._depth += 1
        packed: bytes = msgpack.packb(value, default=self._other, strict_types=True, unicode_errors="surrogatepass")
        self._depth -= 1
        return packed

    def _other(self, value: Any) -> msgpack.ExtType:  # noqa: PLR0911 - one line a kind
        """What msgpack has no kind for."""
        kind = type(value)
        try:
            if isinstance(value, (torch.Tensor, np.ndarray)):
                self.shapes.append(shape_of(value))
                self.leaves.append(plain(value))
                return msgpack.ExtType(Kind.LEAF, (len(self.leaves) - 1).to_bytes(4, "little"))
            if kind is tuple or kind is torch.Size:
                return msgpack.ExtType(Kind.TUPLE, self.pack(list(value)))
            if kind is OrderedDict:  # the state_dict of a module is one
                return msgpack.ExtType(Kind.ORDERED, self.pack(dict(value)))
            if kind is complex:
                return msgpack.ExtType(Kind.COMPLEX, self.pack([value.real, value.imag]))
            if kind is int:
                return msgpack.ExtType(Kind.INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))
            if isinstance(value, np.generic) and _ARRAY.fullmatch(value.dtype.str) and value.dtype.names is None:
                return msgpack.ExtType(Kind.SCALAR, self.pack([value.dtype.str, value.tobytes()]))
            if dataclasses.is_dataclass(kind) and not issubclass(kind, (dict, list, tuple, BaseException)):
                fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(kind)}
                return msgpack.ExtType(Kind.DATACLASS, self.pack([self._classes.name_of(kind), fields]))
            if not self._classes.allow_pickle:
                raise Refused(
                    f"a {kind.__module__}.{kind.__qualname__} is sent by pickle only: allow_pickle=True at both sides"
                )
            self.pickled = True
            return msgpack.ExtType(Kind.PICKLE, _pickled(value))
        except Refused:
            self.refused = value if self.refused is None else self.refused
            raise


def _pickled(value: object) -> bytes:
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # noqa: BLE001 - whatever its own code raises
        raise Refused(f"a {type(value).__name__} that pickle refuses: {error}") from None


def _built(classes: Classes, name: str, values: Mapping[str, Any]) -> Any:
    """A dataclass without its ``__init__`` and ``__post_init__``, frozen or not, with slots or without."""
    cls = classes.find(name)
    names = [field.name for field in dataclasses.fields(cls)]
    if sorted(names) != sorted(values):
        raise Mismatch(f"{name} has fields {names} here and {list(values)} at the peer: run the same code at both")
    made: Any = object.__new__(cls)
    for known, value in values.items():
        object.__setattr__(made, known, value)
    return made


def _array_dtype(text: str) -> np.dtype[Any]:
    if not _ARRAY.fullmatch(text):
        raise ValueError(f"{text!r} is no dtype of an array")
    return np.dtype(text)


def checked(shape: Any) -> tuple[Any, list[int]]:
    """The dtype and dimensions of one shape; ValueError if it is none."""
    kind, dtype, _, *dims = shape
    if kind not in (0, 1) or not all(type(count) is int and 0 <= count < 2**48 for count in dims):
        raise ValueError(f"{shape!r:.80}")
    return (_DTYPES[dtype] if kind == 0 else _array_dtype(dtype)), dims


def _path_to(value: Any, wanted: object, path: str = "value", depth: int = 0) -> str:
    """Where in ``value`` the object ``wanted`` is; "" if it is not found."""
    if value is wanted or depth > DEPTH:
        return path if value is wanted else ""
    below: Iterable[tuple[str, Any]] = ()
    if isinstance(value, Mapping):
        below = [(f"[{key!r:.40}]", item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        below = [(f"[{index}]", item) for index, item in enumerate(value)]
    elif dataclasses.is_dataclass(value):
        below = [(f".{field.name}", getattr(value, field.name, None)) for field in dataclasses.fields(value)]
    return next((found for name, item in below if (found := _path_to(item, wanted, path + name, depth + 1))), "")
