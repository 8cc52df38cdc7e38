"""A Gloo process group that can be aborted, with its operations.

Gloo itself cannot be interrupted: after a peer's death only its neighbours in the ring notice, the others wait for
their timeout. A ``GlooGroup`` holds duplicates of its own connected sockets (see ``sockets``); ``abort`` shuts these
down, and all operations under way fail within milliseconds, at the peers too.

If not all sockets were found (not Linux), ``abort`` abandons the operations instead: waiting for them fails
soon, and ``done`` stays False until Gloo's own timeout has ended them, so that nobody reuses their buffers.

Destroying a group joins Gloo's threads, which takes tens of milliseconds, so it happens on a background thread.
"""

from __future__ import annotations

import enum
import re
import select
import socket
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.distributed import ReduceOp
from torch.distributed.distributed_c10d import AllreduceOptions, BroadcastOptions

from ftlib.common.memory import bytes_of
from ftlib.errors import ConfigError, GroupError
from ftlib.frameworks import sockets
from ftlib.frameworks.background import start_task
from ftlib.frameworks.base import Group, GroupSpec, Operation, OperationKind, Work, check_parts
from ftlib.frameworks.gloo_work import (
    FOREIGN,
    SPARE_ROWS,
    ExchangeRows,
    FailedWork,
    GlooExchange,
    GlooTransfer,
    GlooWork,
    close_at_exit,
    rest_at_exit,
)
from ftlib.frameworks.sockets import Address, Link

OPERATIONS: dict[str, Any] = {
    "SUM": ReduceOp.SUM,
    "MIN": ReduceOp.MIN,
    "MAX": ReduceOp.MAX,
    "PRODUCT": ReduceOp.PRODUCT,
}
_COMBINE: dict[str, Callable[..., Any]] = {
    "SUM": np.add,
    "MIN": np.minimum,
    "MAX": np.maximum,
    "PRODUCT": np.multiply,
}
_EXCHANGED = 1 << 15
"""Bytes up to which a rank sends all others what it has to reduce, instead of a ring: so much is sent as fast as it is told."""
_EXCHANGED_DTYPES = frozenset({torch.uint8, torch.int32, torch.int64, torch.float32, torch.float64})
_PAIR = 2
"""Ranks among which a ring is as short."""
_IN_PARTS = frozenset({OperationKind.ALL_TO_ALL, OperationKind.ALL_GATHER})
_TRANSFERS = frozenset({OperationKind.SEND, OperationKind.RECV})
_SLICE = 0.02
"""Seconds between two looks at an operation of a group that is being destroyed."""
_LETS_GO = 0.005
"""The most seconds in which an abort waits until Gloo has closed its connections."""
_GLANCE = 0.0002
"""Seconds between two looks whether it has."""
_LOOKED_THROUGH = 8
"""Number of remembered operations of a kind above which ended ones are forgotten."""
_WATCHED = 8
"""Transfers that nobody else may wait for which are waited for at a time, to be forgotten: each takes a thread."""
_ADVICE = "This is typically caused by"
"""The rest of Gloo's error text, from here on, helps nobody."""
_ADDRESS_IN_TEXT = re.compile(r"\[([0-9a-fA-F:.]+)\]:(\d+)")


class _State(enum.Enum):
    OPEN = "open"
    ABORTED = "aborted"
    CLOSED = "closed"


class _Destroyed:
    """In place of a backend that is destroyed, for a thread that was about to use it."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"{name}: the group is closed")


class GlooGroup(Group):
    """The group of one view. Collectives: one thread at a time, the same ones in the same order at all ranks.

    Gloo terminates a process that receives more bytes than it asked for. The calls of ``FTLib`` detect beforehand that
    members disagree (see ``attempt``). Direct users of ``ft.group`` must pass equal sizes, as with torch itself.
    """

    def __init__(
        self,
        spec: GroupSpec,
        backend: Any,
        links: Sequence[Link],
        peers: Mapping[Address, int],
        give_back: Callable[[], None],
        facts: Sequence[Mapping[str, str]] = (),
    ) -> None:
        """``links``: the group's connected sockets. ``peers``: ranks by the address at which each listens.

        ``give_back`` is called after ``backend`` has been destroyed. ``facts``: see the attribute.
        """
        self.rank, self.size = spec.rank, spec.size
        self.facts = tuple(facts)
        """What each rank has told the others as they met, in rank order."""
        self.exact = len(links) == spec.size - 1
        """True if all sockets of the group are known, so that ``abort`` interrupts operations."""
        self.timeout = spec.timeout
        """Seconds until Gloo itself gives an operation up."""
        self.backend: Any = backend
        """The object of torch, for operations that this interface does not have.

        Its destructor waits for what is under way. So the thread that destroys this group has to be the last to let go of it:
        it waits for threads that are beginning an operation, and no frame here has it as a variable: an exception, Ctrl-C say,
        keeps its frames for as long as the program likes.
        """
        self._links = tuple(links)
        self._peers = dict(peers)
        self._give_back = give_back
        self._state = _State.OPEN
        self._lock = threading.Lock()
        self._cut = False
        """True once an abort has cut the connections."""
        self._beginning: deque[None] = deque()
        """One entry for each thread that is beginning an operation, and has ``backend`` meanwhile. Not an integer: several
        threads count at the same time."""
        self._works: deque[Work] = deque()
        """Collectives, which end in their order, or nearly."""
        self._transfers: deque[GlooTransfer] = deque()
        self._watched: list[GlooTransfer] = []
        """Those of them that were asked to have a thread wait for them, so that they can be forgotten."""
        self._moving: dict[int, torch.Tensor] = {}
        """Of each thread's newest transfer: Gloo has only its address, and goes on if an exception came before its work.
        """
        self._exchanged = 0 if spec.size <= _PAIR else _EXCHANGED // (spec.size - 1)
        """Bytes of a tensor up to which its reduction is an exchange."""
        self._free: deque[ExchangeRows] = deque(maxlen=SPARE_ROWS)
        """Memory of exchanges that have ended."""
        self._reductions: dict[str, AllreduceOptions] = {}
        for name, operation in OPERATIONS.items():
            self._reductions[name] = AllreduceOptions()
            self._reductions[name].reduceOp = operation
        close_at_exit(self)

    def __repr__(self) -> str:
        return f"<GlooGroup rank {self.rank} of {self.size} {self._state.value}{'' if self.exact else ' inexact'}>"

    @property
    def abandoned(self) -> bool:
        """True if operations under way were abandoned, not interrupted."""
        return not self.exact and self._state is not _State.OPEN

    @property
    def severed(self) -> bool:
        """True if the group was aborted and Gloo has closed all its connections: it neither sends nor receives any more."""
        if not self.exact or self._state is _State.OPEN:
            return False
        mine = sum(link.handle.fileno() >= 0 for link in self._links)
        return sockets.holders({link.inode for link in self._links}) <= mine

    def submit(self, operation: Operation) -> Work:  # noqa: C901, PLR0912 - for every bucket: one function
        """Begin ``operation`` on Gloo's threads: reductions of few bytes by an exchange, larger ones by a ring. All others send
        bytes, hence any dtype.
        """
        kind = operation.kind
        if kind in _IN_PARTS:
            check_parts(operation, self.size)
        self._beginning.append(None)  # before the look at the state: who destroys the group looks in the other order
        try:
            if self._state is not _State.OPEN:
                raise GroupError(f"the group of rank {self.rank} is {self._state.value}")
            if kind is OperationKind.ALLREDUCE:
                tensor, op = operation.tensor, operation.op
                # All ranks choose alike, as their tensors are alike.
                if 0 < tensor.nbytes <= self._exchanged and tensor.dtype in _EXCHANGED_DTYPES:
                    work: Work = GlooExchange(self, tensor, _COMBINE[op], self._free)
                else:
                    work = GlooWork(self, self.backend.allreduce([tensor], self._reductions[op]))
            elif kind in _TRANSFERS:
                transfer = self._begin_transfer(operation)
                self._remember_transfer(transfer)
                return transfer
            else:
                work = self._begin_with_bytes(operation)
        except KeyError:
            raise ConfigError(f"unknown operation {operation.op!r}: choose one of {', '.join(OPERATIONS)}") from None
        except GroupError as error:
            failure = error.afresh()
        except FOREIGN as error:
            failure = self.translate(error)
        else:
            with self._lock:
                works = self._works
                works.append(work)
                if len(works) > _LOOKED_THROUGH:
                    while len(works) > 1 and works[0].done():
                        works.popleft()
            return work
        finally:
            self._beginning.pop()
        rest_at_exit()
        if kind not in _TRANSFERS:
            self.abort()  # only this rank left it out: its next collectives would meet wrong ones elsewhere
        return FailedWork(failure)

    def abort(self) -> None:
        """Cut all connections of the group. If anything is under way, Gloo first gets a moment to close them.

        If a connection is cut, and a collective begins to write to it before Gloo has noticed, Gloo never ends that collective:
        its thread, its memory and the group's connections are kept until the group's timeout. So at first only reading ends.
        """
        with self._lock:
            if self._state is _State.OPEN:
                self._state = _State.ABORTED
            busy = any(not work.done() for work in self._works) or not all(each.through for each in self._transfers)
        try:
            if busy and self.exact and not self._cut:
                self._have_gloo_close()
        finally:
            for link in self._links:
                link.cut()
            self._cut = True

    def close(self) -> None:
        """Abort, and destroy everything in the background. Where no thread can be had for that, a later call does so."""
        self.abort()
        with self._lock:
            if self._state is _State.CLOSED:
                return
            self._state = _State.CLOSED
        try:
            start_task("gloo-destroy", self._destroy)
        except RuntimeError:  # no thread can be had: the next close tries again
            with self._lock:
                self._state = _State.ABORTED

    def translate(self, error: Exception) -> GroupError:
        """Turn an exception of Gloo into a GroupError that blames the ranks whose addresses stand in its text."""
        text = str(error).partition(_ADVICE)[0].strip()
        ranks: set[int] = set()
        for host, digits in _ADDRESS_IN_TEXT.findall(text):
            port = int(digits)
            for address in ((host, port), (host, socket.ntohs(port & 0xFFFF))):  # Gloo prints ports in network order
                ranks.update(rank for peer, rank in self._peers.items() if peer == address)
        return GroupError(f"rank {self.rank} of {self.size}: {text}", tuple(sorted(ranks)))

    def broken(self) -> GroupError | None:
        """The error to report if a connection has broken, although no operation may use it; None if all seem to stand.

        A peer that leaves after its last operation closes its connections, too.
        """
        poll, links = select.poll(), {}
        for link in self._links:
            if (descriptor := link.handle.fileno()) >= 0:  # else the group is destroyed
                poll.register(descriptor, select.POLLRDHUP)
                links[descriptor] = link
        found = [links[descriptor] for descriptor, _ in poll.poll(0)]
        if not found:
            return None
        ranks = tuple(sorted({self._peers[link.remote] for link in found if link.remote in self._peers}))
        return GroupError(f"rank {self.rank} of {self.size}: the connection to {_ranks(ranks)} broke", ranks)

    def locals(self) -> dict[int, Address]:
        """The local address of every connection to a known address, by the rank at the other end."""
        return {self._peers[link.remote]: link.local for link in self._links if link.remote in self._peers}

    def name(self, peers: Mapping[Address, int]) -> None:
        """Add addresses by which error texts may identify a rank."""
        self._peers = {**self._peers, **peers}

    def _have_gloo_close(self) -> None:
        """Let Gloo read the end of all connections, and wait until it has closed them: ``_LETS_GO`` seconds at most."""
        for link in self._links:
            link.deafen()
        deadline = time.monotonic() + _LETS_GO
        while time.monotonic() < deadline:
            time.sleep(_GLANCE)
            if self.severed:
                return

    def _begin_transfer(self, operation: Operation) -> GlooTransfer:
        tensor = operation.tensor
        # The size is part of the tag: a message longer than expected would terminate the receiving process.
        tag = zlib.crc32(f"{operation.tag}/{tensor.nbytes}".encode()) & 0x7FFFFFFF
        self._moving[threading.get_ident()] = tensor
        if operation.kind is OperationKind.SEND:
            return GlooTransfer(self, self.backend.send([tensor], operation.peer, tag), tensor)
        return GlooTransfer(self, self.backend.recv([tensor], operation.peer, tag), tensor)

    def _remember_transfer(self, transfer: GlooTransfer) -> None:
        """Until it has ended, and forget others that have. A few are watched, as perhaps nobody ever waits for them."""
        with self._lock:
            transfers = self._transfers
            transfers.append(transfer)
            if len(transfers) <= _LOOKED_THROUGH:
                return
            while len(transfers) > 1 and transfers[0].through:
                transfers.popleft()
            self._watched = [each for each in self._watched if not each.through]
            if len(self._watched) < _WATCHED and transfers[0] not in self._watched:
                self._watched.append(transfers[0])
                transfers[0].done()
            transfers.rotate(-1)  # a receive that nobody answers would keep all after it

    def _begin_with_bytes(self, operation: Operation) -> GlooWork:
        """Begin what moves bytes and does not look into them. Parts without any are an empty reduction: Gloo refuses them."""
        flat = _bytes(operation.tensor)
        if operation.kind is OperationKind.BROADCAST:
            options = BroadcastOptions()
            options.rootRank = operation.peer
            return GlooWork(self, self.backend.broadcast([flat], options))
        if not flat.numel():
            return GlooWork(self, self.backend.allreduce([flat], self._reductions["SUM"]))
        if operation.kind is OperationKind.ALL_TO_ALL:  # Gloo does not do so in place
            return GlooWork(self, self.backend.alltoall_base(flat, flat.clone(), [], []))
        part = flat.numel() // self.size
        own = flat[self.rank * part : (self.rank + 1) * part]
        return GlooWork(self, self.backend._allgather_base(flat, own))  # noqa: SLF001

    def _destroy(self) -> None:
        """Drop the backend once no operation is under way: its destructor would wait for the operations."""
        deadline = time.monotonic() + 2 * self.timeout
        while self._beginning and time.monotonic() < deadline:
            time.sleep(_SLICE)
        with self._lock:
            works = [*self._works, *self._transfers]
            self._works.clear()
            self._transfers.clear()
            self._watched.clear()
        for work in works:
            while not work.done() and time.monotonic() < deadline:
                time.sleep(_SLICE)  # not in Gloo: at the interpreter's end a thread must not come back through C++
        self.backend = _Destroyed()
        self._moving.clear()
        for link in self._links:
            link.close()
        self._give_back()


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {', '.join(map(str, ranks))}" if ranks else "a peer"


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return bytes_of(tensor.detach())
