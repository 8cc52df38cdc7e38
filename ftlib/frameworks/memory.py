"""Process groups among threads of one process: deterministic, abortable, with faults on request.

For tests and for trying out. Frameworks of one ``MemoryHub`` meet in one ``_Room`` per view. The last rank to enter an
operation carries it out, in rank order, under the room's lock; so it ends for all ranks at once unless a fault is injected.
"""

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from ftlib.errors import ConfigError, GroupError
from ftlib.frameworks.base import Framework, Group, GroupSpec, Operation, OperationKind, Work, check_parts

_ROOMS_KEPT = 64
_DTYPES = frozenset(
    {
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.int8,
        torch.uint8,
        torch.int16,
        torch.int32,
        torch.int64,
    }
)
_REDUCTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
}

_CarryOut = Callable[[Sequence[torch.Tensor]], None]


def _reduce(reduce: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
    total = tensors[0].clone()
    for other in tensors[1:]:
        total = reduce(total, other)
    for target in tensors:
        target.copy_(total)


def _spread(root: int, tensors: Sequence[torch.Tensor]) -> None:
    for target in tensors:
        if target is not tensors[root]:
            target.copy_(tensors[root])


def _exchange(tensors: Sequence[torch.Tensor]) -> None:
    sent = [tensor.view(-1).clone().view(len(tensors), -1) for tensor in tensors]
    for rank, target in enumerate(tensors):
        target.copy_(torch.stack([parts[rank] for parts in sent]).view(target.shape))


def _gather(tensors: Sequence[torch.Tensor]) -> None:
    whole = torch.stack([tensor.view(len(tensors), -1)[rank] for rank, tensor in enumerate(tensors)])
    for target in tensors:
        target.copy_(whole.view(target.shape))


_IN_PARTS: dict[OperationKind, _CarryOut] = {OperationKind.ALL_TO_ALL: _exchange, OperationKind.ALL_GATHER: _gather}


def _copy(tensors: Sequence[torch.Tensor]) -> None:
    source, target = tensors
    target.copy_(source)


@dataclass(slots=True)
class _Fault:
    rank: int
    skip: int
    finish_elsewhere: bool


class MemoryHub:
    """What the threads of one test share."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rooms: OrderedDict[str, _Room] = OrderedDict()
        self._numbers = itertools.count(1)
        self._faults: list[_Fault] = []
        self._dead: set[str] = set()

    def framework(self, member: str = "") -> MemoryFramework:
        """A framework of this hub; ``member`` is the name by which ``kill`` knows it."""
        return MemoryFramework(self, member)

    def fail_next(self, rank: int, skip: int = 0, *, finish_elsewhere: bool = False) -> None:
        """Make one collective fail: the next one that ``rank`` starts, in any group, or the one ``skip`` later.

        ``finish_elsewhere``: it fails only at that rank; the others finish it and fail in the next operation, as after a
        death late in an operation. Otherwise it fails at all ranks. In both cases the group is unusable afterwards.
        """
        with self._lock:
            self._faults.append(_Fault(rank, skip, finish_elsewhere))

    def kill(self, member: str, *, silent: bool = False) -> None:
        """Let ``member`` die: its groups fail, blaming its rank, and it can do nothing any more.

        ``silent``: its peers see no error and wait until somebody aborts, as behind a dead link.
        """
        with self._lock:
            self._dead.add(member)
            rooms = list(self._rooms.values())
        if not silent:
            for room in rooms:
                room.lose(member)

    def is_dead(self, member: str) -> bool:
        """True if ``kill`` was called for ``member``."""
        with self._lock:
            return member in self._dead

    def room(self, spec: GroupSpec) -> _Room:
        """The room of a view, made by the first request."""
        with self._lock:
            room = self._rooms.setdefault(spec.view_id, _Room(self, spec.view_id, spec.size))
            while len(self._rooms) > _ROOMS_KEPT:
                self._rooms.popitem(last=False)
            return room

    def name(self) -> str:
        """A name for a member without one."""
        return f"memory-{next(self._numbers)}"

    def fault(self, rank: int) -> _Fault | None:
        """The fault that hits the collective which ``rank`` starts now, if any."""
        with self._lock:
            hit = None
            for fault in [fault for fault in self._faults if fault.rank == rank]:
                if fault.skip > 0:
                    fault.skip -= 1
                elif hit is None:
                    hit = fault
            if hit is not None:
                self._faults.remove(hit)
            return hit


@dataclass(slots=True, eq=False)
class _Entry:
    """One rank's part in one operation. ``signature`` must be equal at all ranks."""

    rank: int
    signature: tuple[object, ...]
    tensor: torch.Tensor
    ended: bool = False
    error: GroupError | None = None
    fault: _Fault | None = None


class _MemoryWork(Work):
    def __init__(self, room: _Room, entry: _Entry) -> None:
        self._room = room
        self._entry = entry

    def wait(self, timeout: float) -> bool:
        entry = self._entry
        with self._room.changed:
            if not self._room.changed.wait_for(lambda: entry.ended, max(0.0, timeout)):
                return False
        if entry.error is not None:
            raise entry.error.afresh()
        return True

    def done(self) -> bool:
        return self._entry.ended


class _Room:
    """The group of one view as all its ranks share it. ``changed`` guards everything."""

    def __init__(self, hub: MemoryHub, view_id: str, size: int) -> None:
        self.changed = threading.Condition()
        self._hub, self._view_id, self._size = hub, view_id, size
        self._members: dict[int, str] = {}
        self._failure: GroupError | None = None
        self._under_way: set[_Entry] = set()
        self._next: dict[int, int] = {}
        self._collectives: dict[int, list[_Entry]] = {}
        self._posted: dict[tuple[int, int, int, bool], deque[_Entry]] = {}

    def __repr__(self) -> str:
        return f"<room of {self._view_id}: ranks {sorted(self._members)} of {self._size}, failure {self._failure}>"

    def enter(self, spec: GroupSpec, member: str, cancelled: Callable[[], bool]) -> None:
        """Wait until all ranks are here. GroupError on timeout, on ``cancelled()``, or if another rank gave up."""
        deadline = time.monotonic() + spec.timeout
        with self.changed:
            if spec.size != self._size or spec.rank in self._members:
                raise GroupError(f"rank {spec.rank} of {spec.size} does not fit {self!r}")
            self._members[spec.rank] = member
            self.changed.notify_all()
            self.changed.wait_for(
                lambda: len(self._members) == self._size or self._failure is not None or cancelled(),
                deadline - time.monotonic(),
            )
            missing = tuple(rank for rank in range(self._size) if rank not in self._members)
            if self._failure is None and cancelled():
                self._fail(f"rank {spec.rank} cancelled the rebuild")
            if self._failure is None and missing:
                self._fail(f"no sign of ranks {list(missing)} within {spec.timeout:g} s", missing)
            if self._failure is not None:
                raise self._failure.afresh()

    def collective(self, entry: _Entry, carry_out: _CarryOut) -> Work:
        """Enter the next collective; the last rank to enter carries it out."""
        with self.changed:
            if self._admit(entry):
                entry.fault = self._hub.fault(entry.rank)
                if entry.fault is not None and not entry.fault.finish_elsewhere:
                    self._fail(f"fault at rank {entry.rank}")
            if not entry.ended:
                number = self._next.get(entry.rank, 0)
                self._next[entry.rank] = number + 1
                entries = self._collectives.setdefault(number, [])
                entries.append(entry)
                if len(entries) == self._size:
                    del self._collectives[number]
                    self._complete(sorted(entries, key=lambda other: other.rank), carry_out)
        return _MemoryWork(self, entry)

    def transfer(self, entry: _Entry, key: tuple[int, int, int], *, sends: bool) -> Work:
        """Match a send with a receive of the same (from, to, tag), in order."""
        with self.changed:
            if self._admit(entry):
                waiting = self._posted.get((*key, not sends))
                if waiting:
                    other = waiting.popleft()
                    self._complete([entry, other] if sends else [other, entry], _copy)
                else:
                    self._posted.setdefault((*key, sends), deque()).append(entry)
        return _MemoryWork(self, entry)

    def fail(self, text: str) -> None:
        """End all operations under way with an error and refuse new ones."""
        with self.changed:
            self._fail(text)

    def lose(self, member: str) -> None:
        """Fail if ``member`` is in this room."""
        with self.changed:
            ranks = tuple(rank for rank, name in self._members.items() if name == member)
            if ranks:
                self._fail(f"connection closed by rank {ranks[0]}", ranks)

    def _admit(self, entry: _Entry) -> bool:
        """True if the operation of ``entry`` may start; otherwise end it."""
        if self._hub.is_dead(self._members[entry.rank]):
            self._end(entry, GroupError(f"rank {entry.rank} of view {self._view_id} is dead"))
        elif self._failure is not None:
            self._end(entry, self._failure)
        else:
            self._under_way.add(entry)
        return not entry.ended

    def _complete(self, entries: list[_Entry], carry_out: _CarryOut) -> None:
        if any(entry.signature != entries[0].signature for entry in entries):
            self._fail("the ranks disagree: " + "; ".join(f"rank {entry.rank}: {entry.signature}" for entry in entries))
            return
        carry_out([entry.tensor for entry in entries])
        faulty = [entry.rank for entry in entries if entry.fault is not None]
        for entry in entries:
            if entry.fault is None:
                self._end(entry, None)
        if faulty:
            self._fail(f"fault at rank {faulty[0]}")

    def _fail(self, text: str, peers: tuple[int, ...] = ()) -> None:
        if self._failure is None:
            self._failure = GroupError(f"group of view {self._view_id}: {text}", peers)
            for entry in list(self._under_way):
                self._end(entry, self._failure)
            self._collectives.clear()
            self._posted.clear()
        self.changed.notify_all()

    def _end(self, entry: _Entry, error: GroupError | None) -> None:
        self._under_way.discard(entry)
        # Each waiter gets its own error: a shared one would collect the tracebacks of all threads.
        entry.error = None if error is None else GroupError(str(error), error.peers)
        entry.ended = True
        self.changed.notify_all()


class MemoryGroup(Group):
    """One rank's handle of a room."""

    def __init__(self, room: _Room, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._room = room

    def submit(self, operation: Operation) -> Work:
        """Begin ``operation``. Reductions run in rank order; a send is done once it was received."""
        kind, tensor, op, peer, tag = operation
        if kind is OperationKind.SEND:
            return self._room.transfer(self._entry(tensor, "transfer", tag), (self.rank, peer, tag), sends=True)
        if kind is OperationKind.RECV:
            return self._room.transfer(self._entry(tensor, "transfer", tag), (peer, self.rank, tag), sends=False)
        if kind is OperationKind.BROADCAST:
            return self._room.collective(self._entry(tensor, kind.value, peer), functools.partial(_spread, peer))
        if kind in _IN_PARTS:
            check_parts(operation, self.size)
            return self._room.collective(self._entry(tensor, kind.value, None), _IN_PARTS[kind])
        reduce = _REDUCTIONS.get(op)
        if reduce is None:
            raise ConfigError(f"unknown operation {op!r}: choose one of {', '.join(_REDUCTIONS)}")
        return self._room.collective(self._entry(tensor, kind.value, op), functools.partial(_reduce, reduce))

    def abort(self) -> None:
        """Fail all operations of all ranks."""
        self._room.fail(f"aborted by rank {self.rank}")

    def close(self) -> None:
        """Fail all operations of all ranks, if any."""
        self._room.fail(f"closed by rank {self.rank}")

    def _entry(self, tensor: torch.Tensor, kind: str, detail: object) -> _Entry:
        return _Entry(self.rank, (kind, detail, tensor.dtype, tensor.numel()), tensor)


class MemoryFramework(Framework):
    """Builds ``MemoryGroup`` objects with the other frameworks of its hub."""

    name = "memory"

    def __init__(self, hub: MemoryHub | None = None, member: str = "") -> None:
        self.group: Group | None = None
        self.hub = DEFAULT_HUB if hub is None else hub
        self.member = member or self.hub.name()
        self._cancelled = threading.Event()
        self._room: _Room | None = None
        self._turn = threading.Lock()
        self._epoch = self._void_before = 0

    def start(self, host: str) -> Mapping[str, str]:
        """Start nothing."""
        self._void_before = 0
        return {"store": f"{host}:0"}

    def rebuild(self, spec: GroupSpec) -> Group:
        """Wait in the view's room for the other ranks."""
        if self.hub.is_dead(self.member):
            raise GroupError(f"member {self.member} is dead")
        with self._turn:
            if spec.epoch < self._void_before:
                raise GroupError(f"rank {spec.rank} cancelled the rebuild")
            self._cancelled = cancelled = threading.Event()
            self._epoch = spec.epoch
            self._room = room = self.hub.room(spec)
        try:
            room.enter(spec, self.member, cancelled.is_set)
        finally:
            self._room = None
        group = self.group = MemoryGroup(room, spec.rank, spec.size)
        return group  # not self.group: by now it may be that of another thread's rebuild

    def cancel(self, before: int = 0) -> None:
        """Fail a rebuild under way, for all ranks that wait in it (see ``Framework``)."""
        with self._turn:
            self._void_before = max(self._void_before, before)
            if before and self._epoch >= before:
                return
            self._cancelled.set()
            room = self._room
        if room is not None:
            with room.changed:
                room.changed.notify_all()

    def check(self, tensor: torch.Tensor) -> None:
        """ConfigError unless it is a dense CPU tensor of numbers."""
        if tensor.device.type != "cpu":
            text = f"framework='memory' is for tests, and reduces tensors on the CPU alone, this one is on {tensor.device}"
            raise ConfigError(f"{text}: give framework='gloo' for CUDA tensors")
        if tensor.layout is not torch.strided or tensor.dtype not in _DTYPES:
            raise ConfigError(
                f"the memory framework reduces dense CPU tensors of numbers, not {tensor.dtype} with layout "
                f"{tensor.layout}: convert it"
            )

    def close(self) -> None:
        """Cancel and close the newest group. Idempotent."""
        self.cancel()
        if self.group is not None:
            self.group.close()
            self.group = None


DEFAULT_HUB = MemoryHub()
"""The hub of frameworks that are made by name."""
