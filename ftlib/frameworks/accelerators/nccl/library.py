"""NCCL's functions, typed: the twelve of libnccl that are used here, and where the library is found.

NCCL is called directly, not through torch's ``ProcessGroupNCCL``: docs/architecture.md says why. Nothing here waits, locks or
knows of streams: ``communicator`` does.
"""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from ftlib.errors import GroupError

from .results import Result
from .structures import ID_BYTES, Config, UniqueId, config

OLDEST = 22807
"""NCCL 2.28.7: the first one with ``ncclCommRevoke``."""
_NAME = "libnccl.so.2"

_POINTER, _INT, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
_FIRST: dict[str, tuple[Any, ...]] = {
    "ncclGetErrorString": (ctypes.c_char_p, _INT),
    "ncclGetLastError": (ctypes.c_char_p, _POINTER),
    "ncclGetVersion": (_INT, ctypes.POINTER(_INT)),
}
"""Result and arguments of the functions that every version has."""
_THEN: dict[str, tuple[Any, ...]] = {
    "ncclGetUniqueId": (_INT, ctypes.POINTER(UniqueId)),
    "ncclCommInitRankConfig": (_INT, ctypes.POINTER(_POINTER), _INT, UniqueId, _INT, ctypes.POINTER(Config)),
    "ncclCommGetAsyncError": (_INT, _POINTER, ctypes.POINTER(_INT)),
    # source, target, count, type, reduction or root, communicator, stream
    "ncclAllReduce": (_INT, _POINTER, _POINTER, _SIZE, _INT, _INT, _POINTER, _POINTER),
    "ncclBroadcast": (_INT, _POINTER, _POINTER, _SIZE, _INT, _INT, _POINTER, _POINTER),
    "ncclGroupStart": (_INT,),
    "ncclGroupEnd": (_INT,),
    "ncclCommRevoke": (_INT, _POINTER, _INT),
    "ncclCommAbort": (_INT, _POINTER),
}
"""Those of the others."""


class Unavailable(Exception):
    """NCCL cannot be used in this process; the text says why."""


def version_text(code: int) -> str:
    """``2.28.9`` for 22809: ``NCCL_VERSION`` of nccl.h, for 2.9 and later."""
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}"


class Library:
    """NCCL's functions. Every one may be called by any thread, but only one at a time for each communicator."""

    def __init__(self, functions: Any) -> None:
        """``functions``: has NCCL's functions as attributes, as a ``ctypes.CDLL``. Unavailable if it is not what is needed."""
        self._functions = functions
        self._declare(_FIRST)
        self.version = self._version()
        """As NCCL_VERSION_CODE: 22809 for 2.28.9."""
        if self.version < OLDEST:
            needed = f"{version_text(OLDEST)} or newer is needed, which can stop operations without freeing their memory"
            raise Unavailable(f"this is NCCL {version_text(self.version)}: {needed}; torch 2.11 and later bring it")
        self._declare(_THEN)

    def _declare(self, signatures: dict[str, tuple[Any, ...]]) -> None:
        for name, (result, *arguments) in signatures.items():
            try:
                function = getattr(self._functions, name)
            except AttributeError:
                raise Unavailable(f"the library has no function {name}: it is not NVIDIA's NCCL") from None
            function.restype, function.argtypes = result, arguments

    def _version(self) -> int:
        code = ctypes.c_int()
        self.check("ncclGetVersion", self._functions.ncclGetVersion(ctypes.byref(code)))
        return code.value

    def check(self, function: str, code: int, comm: int | None = None) -> Result:
        """The result with that number, of a function of NCCL's. GroupError with NCCL's own words if it is an error."""
        result = Result.of(code)
        if result.bad:
            raise GroupError(f"{function}: {self.describe(code, comm)}")
        return result

    def describe(self, code: int, comm: int | None = None) -> str:
        """An error in NCCL's words: what it is, and what its last message was."""
        what = _text(self._functions.ncclGetErrorString(code)) or f"error {code}"
        last = _text(self._functions.ncclGetLastError(comm))
        return f"{what} ({last})" if last else what

    # --- NCCL's functions, in the order in which a communicator's life needs them ----------------------------------------

    def unique_id(self) -> bytes:
        """Where ranks can meet: at a thread of NCCL's in this process. GroupError if it cannot be had."""
        identity = UniqueId()
        self.check("ncclGetUniqueId", self._functions.ncclGetUniqueId(ctypes.byref(identity)))
        return bytes(identity)

    def init_rank(self, identity: bytes, size: int, rank: int) -> tuple[int, Result]:
        """Begin to build a non-blocking communicator on the current device: its handle, and SUCCESS or IN_PROGRESS.

        It is built once ``async_error`` says SUCCESS. GroupError if it cannot even be begun.
        """
        assert len(identity) == ID_BYTES
        comm, wanted = ctypes.c_void_p(), config()
        code = self._functions.ncclCommInitRankConfig(
            ctypes.byref(comm), size, UniqueId.from_buffer_copy(identity), rank, ctypes.byref(wanted)
        )
        result = self.check("ncclCommInitRankConfig", code)
        if not comm.value:
            raise GroupError("ncclCommInitRankConfig: it gave no communicator")
        return comm.value, result

    def async_error(self, comm: int) -> Result:
        """How the communicator is: IN_PROGRESS until what was asked for last is done or launched."""
        error = ctypes.c_int()
        self.check("ncclCommGetAsyncError", self._functions.ncclCommGetAsyncError(comm, ctypes.byref(error)), comm)
        return Result.of(error.value)

    def group_start(self) -> None:
        """What this thread asks for from now on is launched together, by ``group_end``."""
        self.check("ncclGroupStart", self._functions.ncclGroupStart())

    def group_end(self) -> Result:
        """SUCCESS: it has been launched. IN_PROGRESS: it is not launched before ``async_error`` says SUCCESS."""
        return self.check("ncclGroupEnd", self._functions.ncclGroupEnd())

    def all_reduce(self, address: int, count: int, kind: int, reduction: int, comm: int, stream: int) -> Result:
        """Reduce ``count`` elements of data type ``kind`` over all ranks, in place."""
        code = self._functions.ncclAllReduce(address, address, count, kind, reduction, comm, stream)
        return self.check("ncclAllReduce", code, comm)

    def broadcast(self, address: int, count: int, kind: int, root: int, comm: int, stream: int) -> Result:
        """Copy the elements of rank ``root`` to all ranks, in place."""
        code = self._functions.ncclBroadcast(address, address, count, kind, root, comm, stream)
        return self.check("ncclBroadcast", code, comm)

    def revoke(self, comm: int) -> Result:
        """End all operations, and free nothing. They have ended once ``async_error`` no longer says IN_PROGRESS. May hang.

        The result is also that of the communicator before, so an error does not say that it has failed.
        """
        return Result.of(self._functions.ncclCommRevoke(comm, 0))

    def abort(self, comm: int) -> None:
        """End all operations and free everything; the handle is void after that. GroupError if it failed. May hang."""
        code = self._functions.ncclCommAbort(comm)
        if code != Result.SUCCESS:  # what is still in progress can no longer be asked about
            raise GroupError(f"ncclCommAbort: {self.describe(code)}")


def _text(told: bytes | None) -> str:
    return " ".join((told or b"").decode(errors="replace").split())


def load() -> Library:
    """NCCL, as torch has loaded it, or as it would. Unavailable with the reason if there is none, or one that is too old."""
    failures = []
    for name in [_NAME, *_places()]:
        try:
            return Library(ctypes.CDLL(name))
        except OSError as error:
            failures.append(str(error))
        except GroupError as error:
            raise Unavailable(f"{name} does not answer: {error}") from error
    raise Unavailable(f"there is no {_NAME}: {'; '.join(failures)}")


def _places() -> list[str]:
    """Where the wheels of torch and of NVIDIA keep it, if the loader does not know."""
    folders = [Path(torch.__file__).parent / "lib"]
    spec = importlib.util.find_spec("nvidia")
    if spec is not None and spec.submodule_search_locations:
        folders += [Path(place) / "nccl" / "lib" for place in spec.submodule_search_locations]
    return [str(path) for folder in folders if (path := folder / _NAME).exists()]


def native_reconfigure() -> bool:
    """Whether torch's own process groups can be given other members (2.14 and later). Not used: see docs/architecture.md."""
    return hasattr(distributed.ProcessGroup, "reconfigure")
