"""A Gloo process group that can be aborted, with its operations.

Gloo itself cannot be interrupted: after a peer's death only its neighbours in the ring notice, the others wait for
their timeout. A ``GlooGroup`` holds duplicates of its own connected sockets (see ``sockets``); ``abort`` shuts these
down, and all operations under way fail within milliseconds, at the peers too.

Where not all sockets could be found (not Linux), ``abort`` abandons the operations instead: waiting for them fails
soon, and ``done`` stays False until Gloo's own timeout has ended them, so that nobody reuses their buffers.

Destroying a group joins Gloo's threads, which takes tens of milliseconds, so that happens on a thread of its own.
"""

from __future__ import annotations

import enum
import re
import socket
import threading
import time
import zlib
from collections import deque
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import ReduceOp
from torch.distributed.distributed_c10d import AllreduceOptions, BroadcastOptions

from ftlib.errors import ConfigError, GroupError
from ftlib.frameworks.base import Group, GroupSpec, Work
from ftlib.frameworks.errands import errand
from ftlib.frameworks.gloo_work import FOREIGN, FailedWork, GlooTransfer, GlooWork

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ftlib.frameworks.sockets import Address, Link

__all__ = ["OPERATIONS", "GlooGroup"]

OPERATIONS: dict[str, Any] = {
    "SUM": ReduceOp.SUM,
    "MIN": ReduceOp.MIN,
    "MAX": ReduceOp.MAX,
    "PRODUCT": ReduceOp.PRODUCT,
}
_SLICE = 0.02
"""Seconds between two looks at an operation of a group that is being destroyed."""
_ADVICE = "This is typically caused by"
"""What follows in Gloo's texts helps nobody."""
_ADDRESS_IN_TEXT = re.compile(r"\[([0-9a-fA-F:.]+)\]:(\d+)")


class _State(enum.Enum):
    OPEN = "open"
    ABORTED = "aborted"
    CLOSED = "closed"


class GlooGroup(Group):
    """The group of one view. Collectives: one thread at a time, the same ones in the same order at all ranks.

    Gloo terminates a process that receives more bytes than it asked for. The calls of ``FTLib`` find out beforehand that
    members disagree (see ``average``); whoever uses ``ft.group`` directly must pass equal sizes, as with torch itself.
    """

    def __init__(
        self,
        spec: GroupSpec,
        backend: Any,
        links: Sequence[Link],
        peers: Mapping[Address, int],
        give_back: Callable[[], None],
    ) -> None:
        """``links``: its connected sockets. ``peers``: ranks by the address at which each listens.

        ``give_back`` is called after ``backend`` has been destroyed.
        """
        self.rank, self.size = spec.rank, spec.size
        self.exact = len(links) == spec.size - 1
        """Whether all its sockets are known, so that ``abort`` interrupts."""
        self._timeout = spec.timeout
        self._backend = backend
        self._links = tuple(links)
        self._peers = dict(peers)
        self._give_back = give_back
        self._state = _State.OPEN
        self._lock = threading.Lock()
        self._works: deque[Work] = deque()
        self._reductions: dict[str, AllreduceOptions] = {}
        for name, operation in OPERATIONS.items():
            self._reductions[name] = AllreduceOptions()
            self._reductions[name].reduceOp = operation

    def __repr__(self) -> str:
        return f"<GlooGroup rank {self.rank} of {self.size} {self._state.value}{'' if self.exact else ' inexact'}>"

    @property
    def abandoned(self) -> bool:
        """Whether operations under way were given up rather than interrupted."""
        return not self.exact and self._state is not _State.OPEN

    def allreduce(self, tensor: torch.Tensor, op: str = "SUM") -> Work:
        """Reduce over all ranks (ring above a few KB), on Gloo's threads."""
        options = self._reductions.get(op)
        if options is None:
            raise ConfigError(f"unknown operation {op!r}: choose one of {', '.join(OPERATIONS)}")
        return self._launch(lambda backend: backend.allreduce([tensor], options))

    def broadcast(self, tensor: torch.Tensor, root: int) -> Work:
        """Copy as bytes, hence any dtype."""
        options = BroadcastOptions()
        options.rootRank = root
        flat = _bytes(tensor)
        return self._launch(lambda backend: backend.broadcast([flat], options))

    def barrier(self) -> Work:
        """Allreduce one byte."""
        return self.allreduce(torch.zeros(1, dtype=torch.uint8), "MAX")

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> Work:
        """Send as bytes, hence any dtype."""
        return self._transfer("send", tensor, to, tag)

    def recv(self, tensor: torch.Tensor, source: int, tag: int) -> Work:
        """Receive as bytes, hence any dtype."""
        return self._transfer("recv", tensor, source, tag)

    def abort(self) -> None:
        """Cut all connections of the group."""
        with self._lock:
            if self._state is _State.OPEN:
                self._state = _State.ABORTED
        for link in self._links:
            link.cut()

    def close(self) -> None:
        """Abort, and destroy everything in the background."""
        self.abort()
        with self._lock:
            if self._state is _State.CLOSED:
                return
            self._state = _State.CLOSED
        errand("gloo-destroy", self._destroy)

    def translate(self, error: Exception) -> GroupError:
        """Turn an exception of Gloo into a GroupError that blames the ranks whose addresses its text has."""
        text = str(error).partition(_ADVICE)[0].strip()
        ranks: set[int] = set()
        for host, digits in _ADDRESS_IN_TEXT.findall(text):
            port = int(digits)
            for address in ((host, port), (host, socket.ntohs(port & 0xFFFF))):  # Gloo prints ports in network order
                ranks.update(rank for peer, rank in self._peers.items() if peer == address)
        return GroupError(f"rank {self.rank} of {self.size}: {text}", tuple(sorted(ranks)))

    def locals(self) -> dict[int, Address]:
        """Tell this end of every connection to a known address, by the rank at the other end."""
        return {self._peers[link.remote]: link.local for link in self._links if link.remote in self._peers}

    def name(self, peers: Mapping[Address, int]) -> None:
        """Add addresses by which errors may mean a rank."""
        self._peers = {**self._peers, **peers}

    def _launch(self, start: Callable[[Any], Any]) -> Work:
        try:
            return self._started(GlooWork(self, start(self._open())))
        except FOREIGN as error:
            self.abort()  # an operation that only this rank left out: the next ones would meet wrong ones elsewhere
            return FailedWork(self.translate(error))
        except GroupError as error:
            return FailedWork(error)

    def _transfer(self, kind: str, tensor: torch.Tensor, peer: int, tag: int) -> Work:
        flat = _bytes(tensor)
        # The size is part of the tag: a message longer than expected would terminate the receiving process.
        wire_tag = zlib.crc32(f"{tag}/{flat.numel()}".encode()) & 0x7FFFFFFF
        try:
            start = getattr(self._open(), kind)
            return self._started(GlooTransfer(self, start([flat], peer, wire_tag), flat))
        except FOREIGN as error:
            return FailedWork(self.translate(error))
        except GroupError as error:
            return FailedWork(error)

    def _open(self) -> Any:
        backend = self._backend
        if self._state is not _State.OPEN or backend is None:
            raise GroupError(f"the group of rank {self.rank} is {self._state.value}")
        return backend

    def _started(self, work: Work) -> Work:
        with self._lock:
            works = self._works
            works.append(work)
            while len(works) > 1 and works[0].done():
                works.popleft()
        return work

    def _destroy(self) -> None:
        """Drop the backend once no operation is under way: its destructor would wait for them."""
        deadline = time.monotonic() + 2 * self._timeout
        with self._lock:
            works = list(self._works)
            self._works.clear()
        for work in works:
            while not work.done() and time.monotonic() < deadline:
                time.sleep(_SLICE)  # not in Gloo: at the interpreter's end a thread must not come back through C++
        self._backend = None
        for link in self._links:
            link.close()
        self._give_back()


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().view(-1).view(torch.uint8)
