"""Program state as bytes, without pickle: a msgpack header (the tree, tensors as placeholders), then the tensors' bytes.

A tree is made of dicts with str or int keys, lists, tuples, None, bool, int, float, str, bytes and dense tensors: what
``state_dict`` of modules, optimizers and schedulers returns. A numpy scalar arrives as a plain number. Any other value is
refused with an error that names its path. A reader checks every size before it allocates, and checks the digest at the end
before it returns anything.

A tensor whose memory has no gaps arrives with its strides: its bytes are in the order in which they lie there, and unless that
is row-major its placeholder says the order of the dimensions. Slices and expanded tensors arrive contiguous.

    magic (8)  header length (u32)  header  tensor bytes ...  blake2b-128 of everything before
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgpack
import numpy as np
import torch
from torch.nn.parameter import is_lazy

from ..common.device_waits import Fence
from ..common.host_copies import on_host
from ..common.memory import bytes_of
from ..errors import ConfigError
from .strides import in_memory_order, memory_order, shaped

MAGIC = b"ftstate1"
_LENGTH = struct.Struct("<I")
_DIGEST = 16
_CHUNK = 1 << 20
HEADER_LIMIT = 256 << 20
DEPTH_LIMIT = 64
_ANY_TEXT = "surrogatepass"

DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in [
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "bool",
        "complex64",
        "complex128",
        "uint16",
        "uint32",
        "uint64",
        "float8_e4m3fn",
        "float8_e5m2",
    ]
    if hasattr(torch, name)
}
"""The dtypes that may be transferred, by name."""
_NAMES = {dtype: name for name, dtype in DTYPES.items()}

Read = Callable[[int], bytes]
"""Returns exactly that many bytes; raises EOFError if there are fewer."""


def encode(tree: object, after: Fence | None = None) -> Iterator[bytes]:
    """The bytes of ``tree`` in chunks of at most about 1 MB, each copied on demand. ConfigError names a bad value's path.

    ``after``: where tensors are on devices, the fence of the thread that changes them, if it is another one than this.
    """
    packed, tensors = flatten(tree)
    header = header_of(packed)
    digest = hashlib.blake2b(digest_size=_DIGEST)
    for chunk in (MAGIC + _LENGTH.pack(len(header)), header):
        digest.update(chunk)
        yield chunk
    for tensor in on_host(map(in_memory_order, tensors.values()), after):
        for data in raw(tensor):
            digest.update(data)
            yield data
    yield digest.digest()


def flatten(tree: object, *, strides: bool = True) -> tuple[object, dict[str, torch.Tensor]]:
    """``tree`` as plain values with placeholders for tensors; the tensors by path, in order. ConfigError names the path.

    ``strides``: False if placeholders are to be equal where dtypes and shapes are.
    """
    tensors: dict[str, torch.Tensor] = {}

    def take(tensor: torch.Tensor, path: str) -> object:
        _check_tensor(tensor, path)
        tensors[path] = tensor
        order = memory_order(tensor) if strides else ()
        return ["T", _NAMES[tensor.dtype], list(tensor.shape), *([list(order)] if order else [])]

    return _pack(tree, "state", take, 0), tensors


def header_of(packed: object) -> bytes:
    """The bytes of what ``flatten`` returned. ConfigError if a reader would refuse as many."""
    try:
        header = plain_bytes(packed)
    except ValueError:  # msgpack has no text or bytes of 4 GiB
        header = None
    if header is None or len(header) > HEADER_LIMIT:
        size = "over 4 GiB" if header is None else f"{len(header)} bytes"
        most = f"{HEADER_LIMIT} bytes can be transferred"
        raise ConfigError(f"state: what is in no tensor takes {size}, and {most}; keep large values in tensors")
    return header


def plain_bytes(values: object) -> bytes:
    """Plain values as bytes. A text may be a file's name, which need not be Unicode."""
    data: bytes = msgpack.packb(values, unicode_errors=_ANY_TEXT)
    return data


def restore(packed: object, limit: int) -> tuple[object, list[torch.Tensor]]:
    """Inverse of ``flatten``: the tree, and its new tensors in order, to be filled.

    ValueError if ``packed`` is no tree, or needs over ``limit`` bytes.
    """
    tensors: list[torch.Tensor] = []
    return _unpack(packed, tensors, [limit], 0), tensors


def fill(packed: object, tensors: Iterable[torch.Tensor]) -> object:
    """Inverse of :func:`flatten`; uses ``tensors`` themselves, in its order. ``packed`` was made here, hence is trusted."""
    return _filled(packed, iter(tensors))


def snapshot(tree: object, after: Fence | None = None) -> bytes:
    """All of :func:`encode` in one piece."""
    return b"".join(encode(tree, after))


class StateReader:
    """Reads one tree from a stream of bytes."""

    def __init__(self, read: Read) -> None:
        """``read``: see ``Read``."""
        self._read = read
        self._digest = hashlib.blake2b(digest_size=_DIGEST)
        self.nbytes = 0
        self.total = 0
        """Size of the whole stream in bytes, which ``nbytes`` reaches at the end; 0 until it is known."""

    def read(self, limit: int) -> object:
        """The tree, its tensors on the CPU. ValueError if the bytes are no state, are damaged, or exceed ``limit``."""
        start = self._take(len(MAGIC) + _LENGTH.size)
        if start[: len(MAGIC)] != MAGIC:
            raise ValueError("this is no state of this version")
        (length,) = _LENGTH.unpack(start[len(MAGIC) :])
        if length > min(limit, HEADER_LIMIT):
            raise ValueError(f"state header of {length} bytes; at most {min(limit, HEADER_LIMIT)} are accepted")
        try:
            packed = msgpack.unpackb(self._take(length), strict_map_key=False, unicode_errors=_ANY_TEXT)
        except EOFError:
            raise
        except Exception as error:
            raise ValueError(f"state header is not readable: {error}") from error
        tree, tensors = restore(packed, limit)
        self.total = self.nbytes + sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        for tensor in tensors:
            self._fill(tensor)
        if self._read(_DIGEST) != self._digest.digest():
            raise ValueError("state arrived damaged: its digest does not match")
        return tree

    def _take(self, count: int) -> bytes:
        data = self._read(count)
        self._digest.update(data)
        self.nbytes += count
        return data

    def _fill(self, tensor: torch.Tensor) -> None:
        row = in_memory_order(tensor).view(-1)
        flat = row.view(torch.uint8) if tensor.numel() else row
        for start in range(0, tensor.numel() * tensor.element_size(), _CHUNK):
            stop = min(start + _CHUNK, flat.numel())
            data = self._take(stop - start)
            flat[start:stop] = torch.frombuffer(bytearray(data), dtype=torch.uint8)


def decode(data: bytes, limit: int | None = None) -> object:
    """The inverse of :func:`snapshot`."""
    offset = 0

    def read(count: int) -> bytes:
        nonlocal offset
        if offset + count > len(data):
            raise EOFError("state is cut short")
        piece = data[offset : offset + count]
        offset += count
        return piece

    return StateReader(read).read(len(data) if limit is None else limit)


def raw(tensor: torch.Tensor) -> Iterator[bytes]:
    """The bytes of a tensor on the CPU in pieces, in row-major order."""
    whole = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if not whole.numel():
        return
    data = bytes_of(whole).numpy().data
    for start in range(0, len(data), _CHUNK):
        yield bytes(data[start : start + _CHUNK])


def _check_tensor(tensor: torch.Tensor, path: str) -> None:
    """ConfigError if it cannot be transferred."""
    if is_lazy(tensor):
        raise ConfigError(f"{path}: it has no shape yet; run a forward pass before register_state")
    if tensor.layout is not torch.strided or tensor.dtype not in _NAMES:
        raise ConfigError(
            f"{path}: a tensor of {tensor.dtype} with layout {tensor.layout} cannot be transferred; make it dense"
        )
    if tensor.is_meta or type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        kind = "a tensor of the meta device" if tensor.is_meta else f"a tensor of class {type(tensor).__name__}"
        raise ConfigError(f"{path}: {kind} cannot be transferred; use plain tensors")


def _pack(tree: Any, path: str, take: Callable[[torch.Tensor, str], object], depth: int) -> object:
    """``take`` returns the placeholder of a tensor that is at a path."""
    if depth > DEPTH_LIMIT:
        raise ConfigError(f"{path}: nested deeper than {DEPTH_LIMIT} levels")
    if isinstance(tree, np.generic):  # e.g. the best loss so far: a number in all but its class
        tree = tree.item()
    kind = type(tree)
    if tree is None or kind in (bool, float, str, bytes):
        return tree
    if kind is int:
        return _checked(tree, path)
    if isinstance(tree, torch.Tensor):
        return take(tree, path)
    if isinstance(tree, Mapping):
        for key in tree:
            if type(key) not in (str, int):
                raise ConfigError(f"{path}: a key of type {type(key).__name__} cannot be transferred; use str or int")
            if type(key) is int:
                _checked(key, path)
        return ["D", [[key, _pack(value, f"{path}[{key!r}]", take, depth + 1)] for key, value in tree.items()]]
    if isinstance(tree, (list, tuple)):
        tag = "L" if isinstance(tree, list) else "U"
        return [tag, [_pack(value, f"{path}[{index}]", take, depth + 1) for index, value in enumerate(tree)]]
    raise ConfigError(
        f"{path}: a value of type {kind.__name__} cannot be transferred; use tensors, numbers, strings, lists, tuples and dicts"
    )


def _checked(number: int, path: str) -> int:
    if not -(2**63) <= number < 2**64:
        raise ConfigError(f"{path}: the integer {number} does not fit 64 bits")
    return number


def _filled(packed: Any, tensors: Iterator[torch.Tensor]) -> Any:
    if not isinstance(packed, list):
        return packed
    tag, *content = packed
    if tag == "T":
        return next(tensors)
    if tag == "D":
        return {key: _filled(value, tensors) for key, value in content[0]}
    items = [_filled(value, tensors) for value in content[0]]
    return tuple(items) if tag == "U" else items


def _unpack(packed: object, tensors: list[torch.Tensor], left: list[int], depth: int) -> object:
    """``left``: bytes that may still be allocated, in a list of one."""
    if depth > DEPTH_LIMIT:
        raise ValueError("state is nested too deeply")
    if packed is None or isinstance(packed, (bool, int, float, str, bytes)):
        return packed
    match packed:
        case ["T", str(name), list(shape), *rest] if name in DTYPES and all(type(n) is int and n >= 0 for n in shape):
            order = _order(rest, len(shape))
            left[0] -= math.prod(shape) * DTYPES[name].itemsize
            if left[0] < 0:
                raise ValueError("state is larger than what was announced")
            tensor = shaped(torch.empty(math.prod(shape), dtype=DTYPES[name], device="cpu"), shape, order)
            tensors.append(tensor)
            return tensor
        case ["D", list(items)] if all(isinstance(item, list) and len(item) == 2 for item in items):
            return {key: _unpack(value, tensors, left, depth + 1) for key, value in items}
        case ["L", list(items)]:
            return [_unpack(value, tensors, left, depth + 1) for value in items]
        case ["U", list(items)]:
            return tuple(_unpack(value, tensors, left, depth + 1) for value in items)
    raise ValueError("state header has the wrong shape")


def _order(rest: list[object], count: int) -> list[int]:
    """The order of ``count`` dimensions in memory, which stands at the end of a placeholder if it is not row-major."""
    match rest:
        case []:
            return []
        case [list(order)] if all(type(dim) is int for dim in order) and sorted(order) == list(range(count)):
            return order
    raise ValueError("state header has the wrong shape")
