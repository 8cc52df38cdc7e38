"""A libnccl of Python functions, called through C: it reduces between real processes, and behaves as badly as it is told to.

The ranks of a communicator meet in a private Gloo group, at a store whose address is the unique id. ``Faults`` of the rehearsal
become NCCL's: an asynchronous system error, remote error or unhandled CUDA error, a start that is in progress for ever, a
revoke or an abort that does not return. What NCCL would crash on ends the process.
"""
# ruff: noqa: N802 - NCCL's names

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from ftlib.errors import GroupError
from ftlib.frameworks.accelerators.framework import HybridFramework
from ftlib.frameworks.accelerators.managed import Deadlines
from ftlib.frameworks.accelerators.nccl.accelerator import NcclAccelerator
from ftlib.frameworks.accelerators.nccl.library import Library
from ftlib.frameworks.accelerators.nccl.results import Result
from ftlib.frameworks.accelerators.nccl.structures import ID_BYTES, Config, UniqueId
from ftlib.frameworks.accelerators.rehearsal.communicator import RehearsedCommunicator
from ftlib.frameworks.accelerators.rehearsal.faults import Faults, Way
from ftlib.frameworks.accelerators.rehearsal.memory import SharedMemory
from ftlib.frameworks.accelerators.rehearsal.stream import Stream
from ftlib.frameworks.background import start_task
from ftlib.frameworks.base import GroupSpec, Operation, OperationKind
from ftlib.frameworks.gloo_build import GlooBuild
from ftlib.frameworks.rendezvous import StoreServer, join_address, split_address
from tests.frameworks.nccl.device import DEVICE, RehearsedGpus, place

HOST = "127.0.0.1"
WARMING = (4096, 65536)
"""Bytes of the first operations."""
TYPES = {
    0: torch.int8,
    1: torch.uint8,
    2: torch.int32,
    4: torch.int64,
    6: torch.float16,
    7: torch.float32,
    8: torch.float64,
    9: torch.bfloat16,
}
OPS = {0: "SUM", 1: "PRODUCT", 2: "MAX", 3: "MIN"}
TEXTS = [
    b"no error",
    b"unhandled cuda error",
    b"unhandled system error",
    b"internal error",
    b"invalid argument",
    b"invalid usage",
    b"remote process exited or there was a network error",
    b"NCCL operation in progress",
    b"operation timed out",
]
_TIMEOUT = 60.0
_LOOK = 0.001
_I, _S, _P = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p
PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "ncclGetVersion": (_I, ctypes.POINTER(_I)),
    "ncclGetErrorString": (_P, _I),
    "ncclGetLastError": (_P, _P),
    "ncclGetUniqueId": (_I, ctypes.POINTER(UniqueId)),
    "ncclCommInitRankConfig": (_I, ctypes.POINTER(_P), _I, UniqueId, _I, ctypes.POINTER(Config)),
    "ncclCommGetAsyncError": (_I, _P, ctypes.POINTER(_I)),
    "ncclAllReduce": (_I, _P, _P, _S, _I, _I, _P, _P),
    "ncclBroadcast": (_I, _P, _P, _S, _I, _I, _P, _P),
    "ncclGroupStart": (_I,),
    "ncclGroupEnd": (_I,),
    "ncclCommRevoke": (_I, _P, _I),
    "ncclCommAbort": (_I, _P),
}
"""As in nccl.h, written down a second time."""


class Functions:
    """Function pointers of C, by NCCL's names, to the methods of ``target`` that have these names."""

    def __init__(self, target: object) -> None:
        for name, (result, *arguments) in PROTOTYPES.items():
            if hasattr(target, name):
                setattr(self, name, ctypes.CFUNCTYPE(result, *arguments)(getattr(target, name)))


def crash(text: str) -> NoReturn:
    print(f"NCCL has crashed: {text}", file=sys.stderr, flush=True)
    os._exit(99)


class FakeComm(RehearsedCommunicator):
    """A communicator: the rehearsal's, with streams that are not its own."""

    def __init__(self, spec: GroupSpec, build: GlooBuild | None, faults: Faults, free: Callable[[], None]) -> None:
        super().__init__(spec, build, faults, free)  # type: ignore[arg-type]
        self.streams: list[Stream] = []
        self.failed = ""
        self.built = spec.size == 1
        self.told = False
        """True once it has said that it is built: before that nobody can have launched anything."""
        self.revoked = False
        self.quiet = False
        """True once a revoke has ended."""
        self.gone = False
        self.entered = threading.Lock()

    def begin_init(self) -> None:
        if not self.built:
            start_task("fake-nccl-init", self._init)

    def _init(self) -> None:
        faults = self._faults
        self._stopped.wait(faults.start_seconds)
        if faults.start is Way.FAILS:
            self.failed = "the start failed on purpose"
        elif faults.start is Way.HANGS:
            self._stopped.wait()
        if self.failed or self._stopped.is_set():
            return
        try:
            self._build.start()
            self._group = self._build.wait()
            self.built = True
        except GroupError as error:
            self.failed = str(error)

    def run(self, stream: Stream, operations: list[Operation]) -> None:
        self.streams = [*{*self.streams, stream}]
        self._launches += 1
        erring = self._launches - len(WARMING) == self._faults.error_at > 0
        kernel = functools.partial(self._run, operations, erring) if self._spec.size > 1 else lambda: None
        stream.enqueue(kernel, self._faults.launch_seconds)

    @property
    def idle(self) -> bool:
        return all(stream.idle for stream in self.streams)

    def state(self) -> Result:
        if self.revoked:
            return Result.SUCCESS if self.quiet else Result.IN_PROGRESS
        if self.failed:
            return Result.SYSTEM_ERROR
        if self._error:
            return Result.REMOTE_ERROR if "remote" in self._error else Result.UNHANDLED_CUDA_ERROR
        if not self.built or any(stream.launching for stream in self.streams):
            return Result.IN_PROGRESS
        self.told = True
        return Result.SUCCESS

    @property
    def last(self) -> str:
        return self.failed or self._error

    def end(self) -> None:
        """Have the kernels end; they do unless they are stuck."""
        self._stopped.set()
        for stream in self.streams:
            stream.hasten()
        if self._build is not None:
            self._build.give_up("stopped")
        if self._group is not None:
            self._group.abort()
        while not self.idle:
            time.sleep(_LOOK)
        self.quiet = True

    def freed_by_peer(self) -> None:
        if not self._stopped.is_set() and not self.idle:
            self._error = "an illegal memory access was encountered: a peer has freed its memory"


class FakeNccl:
    """NCCL's functions, of one process."""

    VERSION = 22809

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._server: StoreServer | None = None
        self._memory: SharedMemory | None = None
        self._ids, self._handles = itertools.count(1), itertools.count(0x7000, 16)
        self._comms: dict[int, FakeComm] = {}
        self._many = 0
        """Communicators of more than one rank so far."""
        self._here = threading.local()
        self._last = ctypes.create_string_buffer(b"", 4096)
        self._texts = [ctypes.create_string_buffer(text) for text in TEXTS]

    def ncclGetVersion(self, version: Any) -> int:
        version[0] = self.VERSION
        return Result.SUCCESS

    def ncclGetErrorString(self, result: int) -> int:
        return ctypes.addressof(self._texts[result])

    def ncclGetLastError(self, comm: int | None) -> int:
        found = self._comms.get(comm or 0)
        self._last.value = (found.last if found else "").encode()[:4000]
        return ctypes.addressof(self._last)

    def ncclGetUniqueId(self, identity: Any) -> int:
        if self._server is None:
            self._server, self._memory = StoreServer(HOST), SharedMemory(HOST)
        text = f"{join_address(self._server.address)} {next(self._ids)} {uuid.uuid4().hex}".encode()
        ctypes.memmove(identity, text.ljust(ID_BYTES, b"\0"), ID_BYTES)
        return Result.SUCCESS

    def ncclCommInitRankConfig(self, comm: Any, size: int, identity: UniqueId, rank: int, config: Any) -> int:
        told = config[0]
        if (told.size, told.magic, told.version, told.blocking) != (48, 0xCAFEBEEF, 21800, 0) or not 0 <= rank < size:
            crash("this is no configuration of a non-blocking communicator")
        address, number, view_id = bytes(identity).rstrip(b"\0").decode().split()
        spec = GroupSpec(view_id, int(number), rank, size, {"store": address}, _TIMEOUT)
        if size == 1:
            made = FakeComm(spec, None, Faults(), lambda: None)
        else:
            self._many += 1
            memory = self._memory = self._memory or SharedMemory(HOST)
            build = GlooBuild(spec, HOST, self._tidy, lambda _: {"memory": join_address(memory.address)})
            made = FakeComm(spec, build, self._faults.at(rank, self._many), functools.partial(self._free, spec, build))
            memory.use(view_id, made)
        handle = comm[0] = next(self._handles)
        self._comms[handle] = made
        made.begin_init()
        return Result.IN_PROGRESS

    def ncclCommGetAsyncError(self, comm: int, error: Any) -> int:
        with self._entered(comm) as found:
            error[0] = found.state()
        return Result.SUCCESS

    def ncclAllReduce(self, source: int, target: int, count: int, kind: int, op: int, comm: int, stream: int) -> int:
        row = _row(target, count, TYPES[kind])
        return self._add(source, target, Operation(OperationKind.ALLREDUCE, row, OPS[op]), comm, stream)

    def ncclBroadcast(self, source: int, target: int, count: int, kind: int, root: int, comm: int, stream: int) -> int:
        row = _row(target, count, TYPES[kind])
        return self._add(source, target, Operation(OperationKind.BROADCAST, row, peer=root), comm, stream)

    def ncclGroupStart(self) -> int:
        self._here.asked = []
        return Result.SUCCESS

    def ncclGroupEnd(self) -> int:
        asked, self._here.asked = self._here.asked, None
        for comm, stream in dict.fromkeys((comm, stream) for comm, stream, _ in asked):
            with self._entered(comm) as found:
                if found.state() is Result.IN_PROGRESS:
                    return Result.INVALID_ARGUMENT
                found.run(DEVICE.stream_of(stream), [each for one, _, each in asked if one == comm])
        return Result.IN_PROGRESS if asked else Result.SUCCESS

    def ncclCommRevoke(self, comm: int, flags: int) -> int:
        with self._entered(comm) as found:
            if flags or found.revoked:
                return Result.INVALID_ARGUMENT
            if not found.built:
                crash("what is not built yet was revoked")
            found.revoked = True
        start_task("fake-nccl-revoke", found.end)
        if found._faults.stop is Way.HANGS:
            _hang()
        return Result.IN_PROGRESS

    def ncclCommAbort(self, comm: int) -> int:
        with self._entered(comm) as found:
            if found.told and found._spec.size > 1 and not found.quiet:
                crash("a communicator with peers was aborted, and it was not revoked before")
            found.gone = True
        del self._comms[comm]
        if found._faults.free is Way.HANGS:
            _hang()
        if found._faults.free is Way.FAILS:
            return Result.INTERNAL_ERROR
        found.end()
        found._free()
        return Result.SUCCESS

    # --- inside --------------------------------------------------------------------------------------------------------

    def _add(self, source: int, target: int, operation: Operation, comm: int, stream: int) -> int:
        if source != target or not target:
            crash("not in place")
        with self._entered(comm):
            self._here.asked.append((comm, stream, operation))
        return Result.IN_PROGRESS

    @contextmanager
    def _entered(self, comm: int) -> Iterator[FakeComm]:
        """One thread at a time."""
        found = self._comms.get(comm)
        if found is None or found.gone:
            crash("a communicator was used after it was aborted")
        if not found.entered.acquire(blocking=False):
            crash("two threads use a communicator at once")
        try:
            yield found
        finally:
            found.entered.release()

    def _tidy(self, spec: GroupSpec) -> None:
        if self._server is not None and split_address(spec.store["store"]) == self._server.address:
            self._server.forget_before(spec.epoch)

    def _free(self, spec: GroupSpec, build: GlooBuild) -> None:
        """Tell the peers that this member's memory is gone."""
        memory = self._memory
        assert memory is not None
        try:
            facts = build.wait().facts
        except GroupError:  # there never was a group
            facts = ()
        peers = [split_address(told["memory"]) for rank, told in enumerate(facts) if rank != spec.rank]
        memory.free(spec.view_id, peers)
        build.give_up("freed")
        build.drop()


def _row(address: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    memory = (ctypes.c_byte * (count * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype)


def _hang() -> NoReturn:
    threading.Event().wait()
    raise AssertionError


class FakeNcclFramework(HybridFramework):
    """``framework="nccl"`` with this library, on CPU tensors that are taken for a GPU's."""

    def __init__(self, faults: Faults | None = None, deadlines: Deadlines | None = None) -> None:
        place()
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
        self.nccl = FakeNccl(Faults.from_environment() if faults is None else faults)
        functions = Functions(self.nccl)
        gpus = RehearsedGpus(f"GPU-{uuid.uuid4()}")
        super().__init__(NcclAccelerator(lambda: Library(functions), gpus, WARMING), deadlines)
