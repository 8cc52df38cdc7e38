"""libcudart as ``ftlib`` calls it, on CPU memory: it checks arguments, counts, and fails on purpose."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from ftlib.frameworks.accelerators.isolated.arena import Ended, Lent, Mark
from ftlib.frameworks.accelerators.isolated.cudart import Handle

TEXTS = {2: b"out of memory", 201: b"invalid device context", 400: b"invalid resource handle", 801: b"operation not supported"}


class _Function:
    """As ctypes' are: it has types, and arguments must fit them."""

    def __init__(self, name: str, library: FakeCudart, do: Callable[..., int]) -> None:
        self.name, self.library, self.do = name, library, do
        self.argtypes: list[Any] | None = None
        self.restype: Any = None

    def __call__(self, *arguments: Any) -> Any:
        assert self.argtypes is not None and len(arguments) == len(self.argtypes), f"{self.name}: {len(arguments)} arguments"
        for kind, argument in zip(self.argtypes, arguments, strict=True):
            kind.from_param(argument)  # raises as ctypes does
        self.library.calls.append(self.name)
        if self.name in self.library.failing:
            self.library.last_error = self.library.failing[self.name]
            return self.library.last_error
        return self.do(*arguments)


class FakeCudart:
    def __init__(self, total: int = 1 << 40) -> None:
        self.total = total
        """Bytes of each device."""
        self.device = 0
        self.blocks: dict[int, tuple[int, Any, int]] = {}
        """By address: device, the memory, bytes."""
        self.opened: list[int] = []
        self.failing: dict[str, int] = {}
        """Functions that fail, and with which code."""
        self.last_error = 0
        self.calls: list[str] = []
        for name in ("GetDevice", "SetDevice", "Malloc", "Free", "IpcGetMemHandle", "IpcOpenMemHandle", "GetLastError"):
            setattr(self, f"cuda{name}", _Function(f"cuda{name}", self, getattr(self, f"_{name.lower()}")))
        self.cudaGetErrorString = _Function("cudaGetErrorString", self, TEXTS.get)  # type: ignore[arg-type]

    def _getdevice(self, found: Any) -> int:
        found._obj.value = self.device
        return 0

    def _setdevice(self, number: int) -> int:
        self.device = number
        return 0

    def _malloc(self, found: Any, nbytes: int) -> int:
        if nbytes + sum(size for device, _, size in self.blocks.values() if device == self.device) > self.total:
            self.last_error = 2
            return 2
        memory = torch.empty(nbytes + (2 << 20), dtype=torch.uint8)  # untouched pages cost nothing
        address = -(-memory.data_ptr() // (2 << 20)) * (2 << 20)
        self.blocks[address] = self.device, memory, nbytes
        found._obj.value = address
        return 0

    def _free(self, address: int) -> int:
        device, _, _ = self.blocks.pop(address)
        assert device == self.device
        return 0

    def _ipcgetmemhandle(self, handle: Any, address: int) -> int:
        assert self.blocks[address][0] == self.device
        assert ctypes.sizeof(handle._obj) == 64
        ctypes.memmove(ctypes.addressof(handle._obj), address.to_bytes(8, "little") + b"\0" * 20 + b"\7" * 36, 64)
        return 0

    def _ipcopenmemhandle(self, found: Any, handle: Handle, flags: int) -> int:
        data = bytes(handle)
        assert flags == 1 and data[8:] == b"\0" * 20 + b"\7" * 36, "all 64 bytes have come"
        found._obj.value = int.from_bytes(data[:8], "little")
        self.opened.append(found._obj.value)
        return 0

    def _getlasterror(self) -> int:
        code, self.last_error = self.last_error, 0
        return code


class FakeStream:
    """What is enqueued, until ``reach`` says that it has ended."""

    def __init__(self) -> None:
        self.marked = self.reached = 0
        self.broken = False

    def marking(self, _device: int) -> Mark:
        def mark() -> Ended:
            if self.broken:
                raise RuntimeError("an illegal memory access was encountered")
            self.marked += 1
            place = self.marked
            return lambda: self.reached >= place

        return mark

    def reach(self) -> None:
        self.reached = self.marked


def on_cpu(lent: Lent, _device: int) -> torch.Tensor:
    """What ``arena.wrap`` does on a GPU."""
    memory = (ctypes.c_uint8 * lent.nbytes).from_address(lent.address)
    memory.lent = lent  # type: ignore[attr-defined]
    return torch.frombuffer(memory, dtype=torch.uint8)
