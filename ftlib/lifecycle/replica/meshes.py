"""``ft.device_mesh``: a mesh of torch over the processes of this replica, whichever view they are in."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from consensus import KeyRing, Member

from ...errors import ConfigError, JoinError, ReplicaLost
from ...frameworks.name_lookups import no_name_server
from ...frameworks.rendezvous import StoreServer, join_address, split_address
from ...settings.replicas import Part
from .introductions import introduced
from .torch_groups import TorchGroups

_STORE = "store"
_CLOSED = "device_mesh: this worker has closed"


class Meshes:
    """The meshes of one process, on groups that end with its replica."""

    def __init__(
        self,
        part: Part,
        ring: KeyRing | None,
        members: Callable[[], Sequence[Member]],
        lost: Callable[[ReplicaLost], None],
        timeout: float,
        patience: float,
    ) -> None:
        """``members``: returns those of the job, as far as they are known. ``lost``: called if an operation fails.

        ``timeout``: seconds of one operation. ``patience``: seconds until all processes of the replica have asked for a mesh.
        """
        self._part, self._ring, self._members = part, ring, members
        self._timeout, self._patience = timeout, patience
        self._groups = TorchGroups(lost)
        self._server: StoreServer | None = None
        self._host = ""
        self._begun = False
        self._closed = False
        self._lock = threading.Lock()
        """Held while a mesh is made."""
        self._bounds = threading.Lock()
        """Guards ``_begun`` and ``_closed``: closing does not wait for a mesh."""

    def bind(self, host: str) -> None:
        """Groups listen on interface address ``host``."""
        self._host = host

    def mesh(self, device_type: str, shape: Sequence[int], names: Sequence[str]) -> DeviceMesh:
        """See ``FTLib.device_mesh``."""
        part = self._part
        if device_type != "cpu":
            raise ConfigError(
                f"device_mesh: groups within a replica go by Gloo, on the CPU, not on {device_type!r}: give 'cpu'"
            )
        if math.prod(shape) != part.shards or len(shape) != len(names):
            raise ConfigError(
                f"device_mesh: shape {tuple(shape)} with names {tuple(names)} is no mesh of the {part.shards} processes of a "
                "replica: give sizes whose product that is, and a name for each"
            )
        with self._lock:
            if not self._begun:
                self._begin()
            return init_device_mesh(device_type, tuple(shape), mesh_dim_names=tuple(names))

    def abort(self, failure: ReplicaLost) -> None:
        """The replica is lost: end all operations under way. Any thread."""
        self._groups.abort(failure)

    def close(self) -> None:
        """Release everything. Idempotent. What a mesh under way has made is released by its own thread."""
        with self._bounds:
            self._closed, begun = True, self._begun
            self._begun = False
        if begun:
            self._release(self._server)

    def _begin(self) -> None:
        part = self._part
        if dist.is_initialized():
            raise ConfigError(
                "device_mesh: torch.distributed is initialized already: leave init_process_group out, as this does it with "
                "groups that end when the replica does"
            )
        server = StoreServer(self._host) if part.shard == 0 else None
        try:
            address = self._meet(None if server is None else join_address(server.address))
            patience = timedelta(seconds=self._patience)
            with no_name_server():
                store = TCPStore(*split_address(address), None, False, patience, wait_for_workers=False)
            self._groups.begin(store, address, self._host, part.shard, part.shards, self._timeout)
            with self._bounds:
                if self._closed:
                    raise JoinError(_CLOSED)
                self._server, self._begun = server, True
        except BaseException:
            self._release(server)
            raise

    def _meet(self, own: str | None) -> str:
        """Return the address of the store of shard 0; ``own``, at shard 0."""
        part = self._part
        if own is not None and part.shards == 1:
            return own
        deadline = time.monotonic() + self._patience

        def go_on() -> bool:
            return not self._closed and time.monotonic() < deadline

        mine = None if own is None else (_STORE, own)
        found = introduced(part.replica, _STORE, mine, self._members, self._ring, go_on)
        if found is None and self._closed:
            raise JoinError(_CLOSED)
        if found is None:
            raise JoinError(
                f"device_mesh: shard 0 of replica {part.replica} was not heard of within {self._patience:g} s: is it "
                "started, and does it call device_mesh, too?"
            )
        return found

    def _release(self, server: StoreServer | None) -> None:
        with contextlib.suppress(Exception):
            dist.destroy_process_group()
        self._groups.close()
        if server is not None:
            server.close()
