"""Functions, arguments, results and exceptions as bytes, and back.

A pickle runs code when it is read, so who reads what is a question of trust. Workers read the caller's function: the caller has
an account on their host anyway. With ``results="pickle"`` the caller reads what its own workers wrote; with ``"data"`` it reads
plain values, numpy arrays and tensors alone, and exceptions are text.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import pickle
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import msgpack

from ..common.processes import working_directory
from ..errors import ConfigError

_ARRAY, _TENSOR, _TUPLE, _INTEGER, _COMPLEX, _SET = 1, 2, 3, 4, 5, 6
_HEAD = 8
"""Bytes in front of an outcome: its size, written last, so that what a killed worker left half done counts as nothing."""
_lock = threading.Lock()  # cloudpickle's list of modules is the process's


@dataclass(frozen=True, slots=True)
class Raised:
    """What a worker raised. ``error``: the exception itself, if it could travel."""

    kind: str
    """The class, with its module."""
    text: str
    trace: str
    error: BaseException | None = None


# The function, at the caller.


def pack_function(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """The call as bytes. ConfigError names what cannot be pickled.

    Modules of the caller's own that are not installed travel with the function: the hosts need not have them.
    """
    call = (function, tuple(args), dict(kwargs))
    try:
        with _by_value(_own_modules(function)):
            return _dumps(call)
    except Exception:  # noqa: BLE001 - what a module holds may be unpicklable in any way; its name may do
        with contextlib.suppress(Exception):
            return _dumps(call)
    named = [("the function", function)]
    named += [(f"argument {number}", value) for number, value in enumerate(args, 1)]
    named += [(f"argument {name!r}", value) for name, value in kwargs.items()]
    for what, value in named:
        try:
            _dumps(value)
        except Exception as error:
            which = f"{what} ({type(value).__name__})"
            raise ConfigError(f"{which} cannot be sent to the workers: {_one_line(error)}; make it in the function") from error
    raise ConfigError("the function and its arguments cannot be sent to the workers together, though each can alone")


def _dumps(value: Any) -> bytes:
    import cloudpickle  # noqa: PLC0415 - a script needs none

    return bytes(cloudpickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))


def _own_modules(function: Callable[..., Any]) -> list[ModuleType]:
    """Modules with a file below the caller's directories that is not installed anywhere."""
    installed = {Path(path).resolve() for path in sysconfig.get_paths().values()}
    starts = {working_directory().resolve(), Path(sys.path[0] or ".").resolve()}
    origin = sys.modules.get(getattr(function, "__module__", None) or "")
    if file := getattr(origin, "__file__", None):
        starts.add(Path(file).resolve().parent)
    found = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name in ("__main__", "__mp_main__") or name.partition(".")[0] in ("ftlib", "consensus") or not file:
            continue
        path = Path(file).resolve() if isinstance(file, str) else None
        if path is None or path.suffix != ".py" or installed.intersection(path.parents):
            continue
        if starts.intersection(path.parents):
            found.append(module)
    return found


@contextlib.contextmanager
def _by_value(modules: Sequence[ModuleType]) -> Iterator[None]:
    import cloudpickle  # noqa: PLC0415

    with _lock:
        there = set(cloudpickle.list_registry_pickle_by_value())
        mine = [module for module in modules if module.__name__ not in there]
        for module in mine:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in mine:
                cloudpickle.unregister_pickle_by_value(module)


# The outcome, at the worker.


def write_result(file: IO[bytes], value: Any, results: str) -> None:
    """Write what a worker returned. Raises whatever its pickling raises."""
    file.seek(_HEAD)
    if results == "data":
        file.write(b"D" + msgpack.packb(value, default=_pack_data, strict_types=True))
    else:
        import cloudpickle  # noqa: PLC0415

        file.write(b"R")
        cloudpickle.dump(value, file, protocol=pickle.HIGHEST_PROTOCOL)
    _seal(file)


def write_error(file: IO[bytes], error: BaseException, results: str) -> None:
    """Write what a worker raised; never raises for an exception that cannot be pickled."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    trace = "".join(traceback.format_exception(error)) if error.__traceback__ is not None else ""
    pickled = b""
    if results != "data":
        with contextlib.suppress(Exception):
            pickled = _dumps(error)
            pickle.loads(pickled)  # noqa: S301 - its own; one that cannot be read again is text
    try:
        text = str(error)
    except Exception as why:  # noqa: BLE001 - a __str__ may raise anything
        text = f"(its text cannot be made: {_one_line(why)})"
    file.seek(_HEAD)
    file.truncate()
    file.write(b"E" + msgpack.packb([name, text, trace, pickled], unicode_errors="surrogatepass"))
    _seal(file)


def _seal(file: IO[bytes]) -> None:
    size = file.tell() - _HEAD
    file.flush()
    file.seek(0)
    file.write(size.to_bytes(_HEAD, "big"))
    file.flush()


def written(head: bytes) -> int:
    """The size of an outcome, from the first bytes of its file; 0: there is none."""
    return int.from_bytes(head[:_HEAD], "big") if len(head) >= _HEAD else 0


HEAD = _HEAD


# The outcome, at the caller.


def read_outcome(body: memoryview | bytes, results: str) -> Any:
    """What a worker returned, or ``Raised``. Raises ValueError for what cannot be read."""
    kind, rest = bytes(body[:1]), memoryview(body)[1:]
    try:
        match kind:
            case b"E":
                name, text, trace, pickled = msgpack.unpackb(rest, unicode_errors="surrogatepass")
                return Raised(name, text, trace, _error_of(pickled) if results != "data" else None)
            case b"R" if results != "data":
                return pickle.loads(rest)  # noqa: S301 - written by a worker of this caller's own, in this caller's stream
            case b"D":
                return msgpack.unpackb(rest, ext_hook=_unpack_data, strict_map_key=False)
    except Exception as error:
        raise ValueError(f"what it returned cannot be read here: {_one_line(error)}") from error
    raise ValueError("what it returned is of no known kind")


def _error_of(pickled: bytes) -> BaseException | None:
    with contextlib.suppress(Exception):
        error = pickle.loads(pickled)  # noqa: S301 - as above
        if isinstance(error, BaseException):
            return error
    return None


def _pack_data(value: Any) -> Any:
    if isinstance(value, tuple):
        return msgpack.ExtType(_TUPLE, _packed(list(value)))
    if isinstance(value, int) and not isinstance(value, bool):
        return msgpack.ExtType(_INTEGER, str(int(value)).encode())
    if isinstance(value, complex):
        return msgpack.ExtType(_COMPLEX, _packed([value.real, value.imag]))
    if isinstance(value, (set, frozenset)):
        return msgpack.ExtType(_SET, _packed(list(value)))
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        tensor = value.detach().cpu().contiguous()
        row = tensor.as_strided((tensor.numel(),), (1,))  # as ``memory.bytes_of``, which would import torch
        raw = row.view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        return msgpack.ExtType(_TENSOR, _packed([str(tensor.dtype).removeprefix("torch."), list(tensor.shape), raw]))
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        array = numpy.asarray(value)
        if not array.dtype.hasobject:
            buffer = io.BytesIO()
            numpy.save(buffer, array, allow_pickle=False)
            return msgpack.ExtType(_ARRAY, buffer.getvalue())
    raise TypeError(
        f'a {type(value).__name__} is no plain value: results="data" takes numbers, texts, lists, maps, arrays, tensors'
    )


def _packed(value: Any) -> bytes:
    return bytes(msgpack.packb(value, default=_pack_data, strict_types=True))


def _unpack_data(code: int, data: bytes) -> Any:
    match code:
        case 1:
            numpy: Any = importlib.import_module("numpy")
            array = numpy.load(io.BytesIO(data), allow_pickle=False)
            return array if array.ndim else array[()]
        case 2:
            return _unpack_tensor(*msgpack.unpackb(data))
        case 4:
            return int(data)
    value: Any = msgpack.unpackb(data, ext_hook=_unpack_data, strict_map_key=False)
    make: dict[int, Callable[[Any], Any]] = {3: tuple, 5: lambda parts: complex(*parts), 6: set}
    if code not in make:
        raise ValueError(f"a value of unknown kind {code}")
    return make[code](value)


def _unpack_tensor(name: str, shape: list[int], raw: bytes) -> Any:
    torch: Any = importlib.import_module("torch")
    dtype = getattr(torch, name)
    if not raw:
        return torch.empty(shape, dtype=dtype, device="cpu")
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(dtype).reshape(shape)


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
