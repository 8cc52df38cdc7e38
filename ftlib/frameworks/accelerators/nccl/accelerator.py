"""NCCL as the accelerator of a Gloo group: what a process needs to have it, and what the ranks of a view must agree on."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from consensus import CarefulLogger, interface_name
from ftlib.errors import ConfigError, GroupError
from ftlib.frameworks.background import start_task
from ftlib.frameworks.base import GroupSpec
from ftlib.frameworks.rendezvous import interface_address

from ..base import Accelerator, Communicator
from .communicator import WARMING, NcclCommunicator
from .gpus import Gpu, Gpus
from .library import Library, Unavailable, load, version_text
from .results import Result
from .structures import TYPES

_log = CarefulLogger(__name__)

_ID, _GPU, _HOST, _VERSION = "id", "gpu", "host", "version"
"""Keys of a rank's facts: where the ranks meet (of rank 0 alone), the GPU's uuid, the machine, NCCL's version."""
_BLOCKING, _INTERFACE, _MACHINE = "NCCL_COMM_BLOCKING", "NCCL_SOCKET_IFNAME", "NCCL_HOSTID"
"""Variables of NCCL's own."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_FIRST_ANSWER = 30.0
"""Seconds that NCCL may take to answer for the first time: it reads its settings, and looks at all interfaces."""
_FIRST_BUILD = 120.0
"""Seconds until the first communicator, which is used for nothing, is given up."""
_LOOK = 0.002


class NcclAccelerator(Accelerator):
    """See ``Accelerator``."""

    name = "nccl"

    def __init__(
        self, library: Callable[[], Library] = load, gpus: Gpus | None = None, warming: Sequence[int] = WARMING
    ) -> None:
        """``library``: loads NCCL, or raises Unavailable. ``warming``: see ``NcclCommunicator``."""
        self._load = library
        self._gpus = Gpus() if gpus is None else gpus
        self._warming = warming
        self._library: Library | None = None
        self._gpu: Gpu | None = None
        self._elsewhere = ""
        """Why NCCL must not be used, although it works: the program's tensors are on another device than it was started on."""
        self._first: _FirstUse | None = None

    def start(self, host: str) -> None:
        """Load NCCL and use it for the first time, which takes seconds, on a thread that nobody waits for.

        ConfigError if NCCL's own settings make it block; Unavailable if it cannot be used here.
        """
        check_environment(os.environ)
        if self._library is not None:
            return
        gpu = self._gpus.current()
        library = self._load()
        if _INTERFACE not in os.environ and (name := interface_name(interface_address(host))):
            os.environ[_INTERFACE] = f"={name}"  # an equals sign: this one alone, not all whose names begin so
        first = _FirstUse(library, gpu)
        start_task("nccl-first", first.run)
        if not first.answered.wait(_FIRST_ANSWER):
            raise Unavailable(f"NCCL has not answered within {_FIRST_ANSWER:g} s")
        if first.error:
            raise Unavailable(first.error)
        self._library, self._gpu, self._first = library, gpu, first

    def facts(self, spec: GroupSpec) -> Mapping[str, str]:
        """See ``Accelerator``. Only rank 0's id is used, and NCCL waits at each id for ever: so nobody else makes one."""
        library, gpu = self._started()
        if reason := self._elsewhere or (self._first.error if self._first else ""):
            raise Unavailable(reason)
        facts = {_GPU: gpu.uuid, _HOST: _machine(), _VERSION: version_text(library.version)}
        return {_ID: library.unique_id().hex(), **facts} if spec.rank == 0 else facts

    def begin(self, spec: GroupSpec, facts: Sequence[Mapping[str, str]], decided: Callable[[], None]) -> Communicator:
        """See ``Accelerator``. Unavailable, naming ranks, if these cannot be in one communicator."""
        library, gpu = self._started()
        check_ranks(facts)
        identity = bytes.fromhex(facts[0][_ID])
        communicator = NcclCommunicator(spec, identity, library, gpu, lambda: self._elsewhere, self._warming)
        communicator.begin(decided)
        return communicator

    def place(self, tensor: torch.Tensor) -> str:
        """See ``Accelerator``. Notes it if NCCL was started on another device."""
        place = self._gpus.place(tensor)
        gpu = self._gpu
        if place and gpu is not None and place != gpu.place and not self._elsewhere:
            text = f"there are tensors on {place}, but NCCL was started on {gpu.place}, the current device at that time"
            self._elsewhere = f"{text}: call torch.cuda.set_device before FTLib.init, and use one device in a process"
            _log.warning("NCCL is not used: %s; everything goes by Gloo", self._elsewhere)
        return place

    def takes(self, tensor: torch.Tensor) -> bool:
        """Contiguous tensors on a GPU, of the dtypes that NCCL and torch have in common. Alike at all members."""
        return self._gpus.holds(tensor) and tensor.dtype in TYPES and tensor.is_contiguous()

    def close(self) -> None:
        """NCCL itself stays loaded."""

    def _started(self) -> tuple[Library, Gpu]:
        if self._library is None or self._gpu is None:
            raise Unavailable("NCCL was not started")
        return self._library, self._gpu


class _FirstUse:
    """A communicator of one rank, which is freed as soon as it is built: the first one of a process loads all kernels."""

    def __init__(self, library: Library, gpu: Gpu) -> None:
        self._library, self._gpu = library, gpu
        self.answered = threading.Event()
        """Set once NCCL has given an id: from then on another one takes milliseconds."""
        self.error = ""

    def run(self) -> None:
        """Build it and free it."""
        try:
            self._gpu.device.use()
            identity = self._library.unique_id()
            self.answered.set()
            self._build(identity)
        except Exception as error:  # noqa: BLE001 - whatever it is: there is no NCCL then
            self.error = f"the first use of NCCL has failed: {error}"
        finally:
            self.answered.set()

    def _build(self, identity: bytes) -> None:
        comm, _ = self._library.init_rank(identity, 1, 0)
        until = time.monotonic() + _FIRST_BUILD
        while (result := self._library.async_error(comm)) is Result.IN_PROGRESS:
            if time.monotonic() > until:
                raise GroupError(f"a communicator of one rank was still in progress after {_FIRST_BUILD:g} s")
            time.sleep(_LOOK)
        said = self._library.describe(result, comm) if result.bad else ""
        self._library.abort(comm)
        if said:
            raise GroupError(said)


def check_environment(environment: Mapping[str, str]) -> None:
    """ConfigError if a setting of NCCL's own keeps it from being used."""
    if environment.get(_BLOCKING, "") not in ("", "0"):
        text = f"{_BLOCKING}={environment[_BLOCKING]} makes NCCL's calls block, and where a peer dies they would block for ever"
        raise ConfigError(f"{text}: unset {_BLOCKING}, or set it to 0")


def check_ranks(facts: Sequence[Mapping[str, str]]) -> None:
    """Unavailable if NCCL cannot connect these ranks."""
    versions: dict[str, list[int]] = defaultdict(list)
    users: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank, told in enumerate(facts):
        versions[told[_VERSION]].append(rank)
        users[told[_HOST], told[_GPU]].append(rank)
    if len(versions) > 1:
        found = " and ".join(f"{version} ({_ranks(ranks)})" for version, ranks in versions.items())
        raise Unavailable(f"the members have different versions of NCCL: {found}; install the same one everywhere")
    for (_, uuid), ranks in users.items():
        if len(ranks) > 1:
            text = f"{_ranks(ranks)} use the same GPU, {uuid}, and NCCL takes one process for each"
            raise Unavailable(f"{text}: give each process a GPU of its own (CUDA_VISIBLE_DEVICES, torch.cuda.set_device)")


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _machine() -> str:
    """What NCCL tells machines apart by: processes of one machine and one GPU cannot be in a communicator."""
    return os.environ.get(_MACHINE) or (_BOOT.read_text(encoding="ascii").strip() if _BOOT.exists() else os.uname().nodename)
