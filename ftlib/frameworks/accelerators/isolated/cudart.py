"""The few functions of CUDA's runtime library that torch does not offer: memory that another process can open.

torch has the library loaded already, and both see the same devices, errors and addresses. Signatures, codes and sizes are those
of NVIDIA's headers cuda_runtime_api.h and driver_types.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .records import HANDLE

OUT_OF_MEMORY = 2
"""cudaErrorMemoryAllocation."""
_LAZILY = 1
"""cudaIpcMemLazyEnablePeerAccess, the only flag that there is."""


class Handle(ctypes.Structure):
    """``cudaIpcMemHandle_t``, which goes by value."""

    _fields_ = [("reserved", ctypes.c_char * HANDLE)]


class CudaError(RuntimeError):
    """A function has failed."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class Cudart:
    """Any thread. Every error is a CudaError that names the function and what it was for."""

    def __init__(self, library: Any) -> None:
        """``library``: libcudart, opened by ctypes."""
        pointer = ctypes.POINTER(ctypes.c_void_p)
        self._functions: dict[str, Any] = {}
        for name, arguments in {
            "cudaGetDevice": [ctypes.POINTER(ctypes.c_int)],
            "cudaSetDevice": [ctypes.c_int],
            "cudaMalloc": [pointer, ctypes.c_size_t],
            "cudaFree": [ctypes.c_void_p],
            "cudaIpcGetMemHandle": [ctypes.POINTER(Handle), ctypes.c_void_p],
            "cudaIpcOpenMemHandle": [pointer, Handle, ctypes.c_uint],
            "cudaGetLastError": [],
        }.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, ctypes.c_int
            self._functions[name] = function
        self._describe = library.cudaGetErrorString
        self._describe.argtypes, self._describe.restype = [ctypes.c_int], ctypes.c_char_p

    def malloc(self, device: int, nbytes: int) -> int:
        """The address of ``nbytes`` of new memory on a device."""
        found = ctypes.c_void_p()
        with self._on(device):
            self._call("cudaMalloc", f"of {nbytes} bytes on device {device}", ctypes.byref(found), nbytes)
        return found.value or 0

    def free(self, device: int, address: int) -> None:
        """Free memory that ``malloc`` has returned."""
        with self._on(device):
            self._call("cudaFree", f"on device {device}", address)

    def export(self, device: int, address: int) -> bytes:
        """The handle by which other processes open memory that ``malloc`` has returned."""
        handle = Handle()
        with self._on(device):
            self._call("cudaIpcGetMemHandle", f"of memory on device {device}", ctypes.byref(handle), address)
        return bytes(handle)

    def open(self, device: int, handle: bytes) -> int:
        """The address, in this process, of another one's memory."""
        found = ctypes.c_void_p()
        with self._on(device):
            text = f"of another process's memory on device {device}"
            self._call("cudaIpcOpenMemHandle", text, ctypes.byref(found), Handle.from_buffer_copy(handle), _LAZILY)
        return found.value or 0

    @contextmanager
    def _on(self, device: int) -> Iterator[None]:
        """Until the end of the block, that is the current device of this thread."""
        before = ctypes.c_int()
        self._call("cudaGetDevice", "", ctypes.byref(before))
        if before.value == device:
            yield
            return
        self._call("cudaSetDevice", f"to {device}", device)
        try:
            yield
        finally:
            self._call("cudaSetDevice", f"to {before.value}", before.value)

    def _call(self, name: str, text: str, *arguments: Any) -> None:
        code = self._functions[name](*arguments)
        if code:
            self._functions["cudaGetLastError"]()  # else torch takes an error that was dealt with for one of its own
            words = self._describe(code)
            said = words.decode(errors="replace") if words else "no description"
            raise CudaError(f"{name} {text} has failed: {said} (error {code})".replace("  ", " "), code)


def load() -> Cudart:
    """The library that torch uses. RuntimeError if there is none."""
    version = str(torch.version.cuda or "")
    if not version:
        raise RuntimeError("this build of torch has no CUDA")
    name = f"libcudart.so.{version.partition('.')[0]}"
    try:
        return Cudart(ctypes.CDLL(name))
    except (OSError, AttributeError) as error:
        raise RuntimeError(f"{name}, which torch is built with, cannot be used: {error}") from None
