"""The rehearsal's accelerator: takes CPU tensors for a GPU's."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence

import torch

from ftlib.common.devices import HOST
from ftlib.errors import ConfigError
from ftlib.frameworks.base import GroupSpec
from ftlib.frameworks.gloo_build import GlooBuild
from ftlib.frameworks.rendezvous import StoreServer, interface_address, join_address, split_address

from ..base import Accelerator, Communicator
from .communicator import RehearsedCommunicator
from .faults import Faults
from .memory import SharedMemory

PLACE = "rehearsal:0"
"""The rehearsed device."""
_DTYPES = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_STORE, _MEMORY = "store", "memory"
"""Keys of a rank's facts: where the private group meets, if this is rank 0; where to send word that memory was freed."""


class RehearsedAccelerator(Accelerator):
    """See ``Accelerator``."""

    name = "rehearsal"

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._host = ""
        self._server: StoreServer | None = None
        self._memory: SharedMemory | None = None
        self._communicators = 0
        self._all: weakref.WeakSet[RehearsedCommunicator] = weakref.WeakSet()

    def start(self, host: str) -> None:
        """Start what the ranks need to meet."""
        address = interface_address(host)
        if self._server is not None and address != self._host:
            self.close()
        if self._server is None:
            self._host = address
            self._server, self._memory = StoreServer(address), SharedMemory(address)

    def facts(self, spec: GroupSpec) -> Mapping[str, str]:  # noqa: ARG002
        """Two addresses."""
        assert self._server is not None
        assert self._memory is not None
        return {_STORE: join_address(self._server.address), _MEMORY: join_address(self._memory.address)}

    def begin(self, spec: GroupSpec, facts: Sequence[Mapping[str, str]], decided: Callable[[], None]) -> Communicator:
        """See ``Accelerator``. Rank 0 hosts the meeting of the private group."""
        memory = self._memory
        assert memory is not None
        self._communicators += 1
        faults = self._faults.at(spec.rank, self._communicators)
        private = GroupSpec(spec.view_id, spec.epoch, spec.rank, spec.size, {"store": facts[0][_STORE]}, spec.timeout)
        peers = [split_address(told[_MEMORY]) for rank, told in enumerate(facts) if rank != spec.rank]
        build = GlooBuild(private, self._host, self._tidy)
        communicator = RehearsedCommunicator(spec, build, faults, functools.partial(memory.free, spec.view_id, peers))
        memory.use(spec.view_id, communicator)
        self._all.add(communicator)
        communicator.begin(decided)
        return communicator

    def place(self, tensor: torch.Tensor) -> str:
        """Floating-point tensors are on the rehearsed device. ConfigError for one that is not in CPU memory."""
        if tensor.device.type != "cpu":
            text = f"framework='rehearsal' takes tensors of the CPU for a GPU's, this one is on {tensor.device}"
            raise ConfigError(f"{text}: give framework='nccl' or 'gloo' for CUDA tensors")
        return PLACE if tensor.dtype in _DTYPES else HOST

    def takes(self, tensor: torch.Tensor) -> bool:
        """Contiguous rows of floating-point numbers."""
        return tensor.device.type == "cpu" and tensor.dtype in _DTYPES and tensor.is_contiguous()

    def close(self) -> None:
        """See ``Accelerator``. What was stopped and not freed ends here; with a real device, the end of the process ends it."""
        for communicator in list(self._all):
            communicator.leave()
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def _tidy(self, spec: GroupSpec) -> None:
        """The store need not know of earlier groups than that of ``spec``."""
        server = self._server
        if server is not None and split_address(spec.store["store"]) == server.address:
            server.forget_before(spec.epoch)
