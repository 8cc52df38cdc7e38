"""Process groups of simulated processes: operations that end at each member at another time, or fail, or hang.

What is promised (see ``frameworks.base``) is kept, and nothing else: nobody completes an operation that somebody has not
entered; after that each member completes it when it likes, or not at all, if anybody dies or gives up first. Only neighbours
are sure to notice a death. What is given up may write into its buffer until it ends, and some never end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random

import torch

from consensus.simulation import Host
from ftlib.errors import GroupError
from ftlib.frameworks.base import Group, GroupSpec, Operation, OperationKind, Work

from ..machine.links import connected
from ..machine.threads import Fibre, SimulatedThreads
from .pace import Pace

GARBAGE = 0.625
"""What an operation that fails leaves in its buffer; no sum of contributions has such a fraction."""

AGAIN, AGAIN_AT_MOST = 0.05, 1.6
"""Seconds after which bytes that did not get through are sent again; twice as long each time, as TCP does."""

Tell = Callable[[Host, str], None]
"""Takes the moments of an operation's life: see ``Rooms``."""


class Rooms:
    """Where the members of each view meet. ``tell`` is told of moments: "entered", "reduced", "completed" operations."""

    def __init__(
        self,
        rng: Random,
        pace: Pace | None = None,
        tell: Tell = lambda _host, _moment: None,
        differ: Tell = lambda _host, _text: None,
    ) -> None:
        """``differ``: told if members begin an operation with different sizes."""
        self.rng = rng
        self.pace = pace or Pace()
        self.tell = tell
        self.differ = differ
        self.late: dict[str, float] = {}
        """Members (ids) whose results come so many seconds later."""
        self._rooms: dict[str, _Room] = {}

    def room(self, spec: GroupSpec) -> _Room:
        """The room of a view, made by the first who asks."""
        room = self._rooms.get(spec.view_id)
        if room is None:
            room = self._rooms[spec.view_id] = _Room(self, spec.size)
        assert room.size == spec.size, "one view, two sizes"
        return room

    def lose(self, host: Host) -> None:
        """A process is gone: its connections close."""
        for view_id, room in list(self._rooms.items()):
            room.lose(host)
            if room.forsaken:
                del self._rooms[view_id]


class _Work(Work):
    """One operation at one member."""

    def __init__(self, group: SimulatedGroup, tensor: torch.Tensor, *, writes: bool = True) -> None:
        self._group = group
        self._writes = writes
        self.tensor = tensor
        self.error: GroupError | None = None
        self.ended = False
        self.endless = False
        self._waiting: Fibre | None = None

    def wait(self, timeout: float) -> bool:
        threads = self._group.threads
        if not self.ended:
            self._waiting = threads.current()
            threads.park(timeout)
            self._waiting = None
        if self.error is not None and self.ended:
            raise GroupError(str(self.error), self.error.peers)
        return self.ended

    def done(self) -> bool:
        return self.ended

    def complete(self, value: torch.Tensor | None) -> None:
        if not self.ended and not self.endless:
            if value is not None:
                self.tensor.copy_(value)
            self._end(None)

    def fail(self, error: GroupError) -> None:
        if not self.ended:
            self.spoil()
            if not self.endless:
                self._end(error)

    def spoil(self) -> None:
        """What an operation that does not complete does to its buffer, half of them at least."""
        if self._writes and self._group.rng.random() < 0.5:
            self.tensor.copy_((self.tensor.to(torch.float64) * 3 + GARBAGE).to(self.tensor.dtype))

    def _end(self, error: GroupError | None) -> None:
        self.ended, self.error = True, error
        if self._waiting is not None:
            self._group.threads.wake(self._waiting)


@dataclass(slots=True)
class _Operation:
    """One collective: who has entered it, and how."""

    works: dict[int, _Work] = field(default_factory=dict)
    kinds: set[OperationKind] = field(default_factory=set)
    values: dict[int, torch.Tensor] = field(default_factory=dict)
    """What each rank gets."""


_COLLECTIVES = (OperationKind.ALLREDUCE, OperationKind.ALL_TO_ALL, OperationKind.ALL_GATHER)


def _results(kind: OperationKind, given: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
    """What each rank gets for what the ranks gave."""
    ranks = range(len(given))
    if kind is OperationKind.ALLREDUCE:
        total = given[0].clone()
        for rank in ranks[1:]:
            total += given[rank]
        return dict.fromkeys(ranks, total)
    parts = [tensor.view(len(given), -1) for tensor in given]
    if kind is OperationKind.ALL_GATHER:
        return dict.fromkeys(ranks, torch.cat([parts[rank][rank] for rank in ranks]))
    return {rank: torch.cat([part[rank] for part in parts]) for rank in ranks}


class _Room:
    """The members of one view and what they have under way."""

    def __init__(self, rooms: Rooms, size: int) -> None:
        self.rooms = rooms
        self.size = size
        self.seats: dict[int, SimulatedGroup] = {}
        self.facts: dict[int, Mapping[str, str]] = {}
        """What each rank tells the others on meeting them."""
        self.lost: set[int] = set()
        """Ranks whose process has died, or whose group was given up."""
        self.operations: dict[int, _Operation] = {}
        self.letters: dict[tuple[int, int, int], _Work] = {}
        """Sends by (from, to, tag)."""
        self.awaited: dict[tuple[int, int, int], _Work] = {}

    @property
    def forsaken(self) -> bool:
        """Whether nobody can use it any more."""
        return len(self.lost) == self.size

    def lose(self, host: Host) -> None:
        for rank, group in self.seats.items():
            if group.host is host:
                self.closed(rank)

    def closed(self, rank: int) -> None:
        """The connections of ``rank`` are closed; its neighbours notice, and perhaps others."""
        if rank in self.lost:
            return
        self.lost.add(rank)
        rng, pace = self.rooms.rng, self.rooms.pace
        for other, group in self.seats.items():
            near = (other - rank) % self.size in (1, self.size - 1)
            if other not in self.lost and (near or rng.random() >= pace.deaf):
                group.host.world.after(rng.uniform(0.0, pace.notice), partial(self._notice, group, rank))

    def _notice(self, group: SimulatedGroup, rank: int, again: float = AGAIN) -> None:
        if group.aborted or not group.host.alive:
            return
        if connected(group.host, self.seats[rank].host):
            group.threads.happens(partial(group.cut, GroupError(f"connection closed by rank {rank}", (rank,))))
        else:
            group.host.world.after(again, partial(self._notice, group, rank, min(2 * again, AGAIN_AT_MOST)))

    def enter(self, number: int, rank: int, work: _Work, kind: OperationKind) -> None:
        operation = self.operations.setdefault(number, _Operation())
        operation.works[rank] = work
        operation.kinds.add(kind)
        if len(operation.works) == self.size and not self.lost:
            self.seats[rank].host.world.after(self._delay(0.2), partial(self._reduce, number))

    def _reduce(self, number: int) -> None:
        """Everybody is in it: from now on any member may complete it."""
        operation = self.operations[number]
        if self.lost or any(work.ended for work in operation.works.values()):
            return
        sizes = {rank: work.tensor.nbytes for rank, work in operation.works.items()}
        if len(set(sizes.values())) > 1:  # which would end a process with Gloo
            self.rooms.differ(self.seats[0].host, f"an operation has {sizes} bytes at ranks of one group")
            return
        if len(operation.kinds) > 1:
            self.rooms.differ(self.seats[0].host, f"an operation is {operation.kinds} at ranks of one group")
            return
        (kind,) = operation.kinds
        operation.values = _results(kind, [operation.works[rank].tensor for rank in range(self.size)])
        for rank, work in operation.works.items():
            host = self.seats[rank].host
            self.rooms.tell(host, "reduced")
            host.world.after(self._delay(1.0) + self.rooms.late.get(host.id, 0.0), partial(self._arrive, number, rank, work))

    def _arrive(self, number: int, rank: int, work: _Work, again: float = AGAIN) -> None:
        group = self.seats[rank]
        if work.ended or not group.host.alive:
            return
        if group.reached_by_all():
            group.threads.happens(partial(self._complete, number, rank, work))
        else:
            group.host.world.after(again, partial(self._arrive, number, rank, work, min(2 * again, AGAIN_AT_MOST)))

    def _complete(self, number: int, rank: int, work: _Work) -> None:
        if not work.ended:
            work.complete(self.operations[number].values[rank])
            self.rooms.tell(self.seats[rank].host, "completed")

    def post(self, key: tuple[int, int, int], work: _Work, table: dict[tuple[int, int, int], _Work]) -> None:
        table[key] = work
        if key in self.letters and key in self.awaited:
            self.seats[key[1]].host.world.after(self._delay(1.0), partial(self._hand_over, key))

    def _hand_over(self, key: tuple[int, int, int]) -> None:
        source, target = self.seats[key[0]], self.seats[key[1]]
        sent, wanted = self.letters[key], self.awaited[key]
        if sent.ended or wanted.ended or not source.host.alive:
            return
        if not connected(source.host, target.host) or source.host.paused:
            target.host.world.after(AGAIN, partial(self._hand_over, key))
            return
        value = sent.tensor.clone()
        source.threads.happens(partial(sent.complete, None))
        target.threads.happens(partial(wanted.complete, value))

    def _delay(self, share: float) -> float:
        rng, pace = self.rooms.rng, self.rooms.pace
        longest = pace.transit * share
        return rng.uniform(0.0, 10 * longest if rng.random() < pace.slow else longest)


class SimulatedGroup(Group):
    """One member's end."""

    def __init__(self, room: _Room, spec: GroupSpec, host: Host, threads: SimulatedThreads) -> None:
        self.rank, self.size = spec.rank, spec.size
        self.host = host
        self.threads = threads
        self.rng = room.rooms.rng
        self.aborted = False
        self._room = room
        self._entered = 0
        self._works: list[_Work] = []
        self._error: GroupError | None = None

    def unconnected(self) -> list[int]:
        """Ranks that have not come, or cannot be reached."""
        seats = self._room.seats
        return [rank for rank in range(self.size) if rank not in seats or not connected(self.host, seats[rank].host)]

    def reached_by_all(self) -> bool:
        """Whether everybody's part can come through now. A stopped process may or may not have sent its own."""
        for rank, group in self._room.seats.items():
            if rank != self.rank and not connected(self.host, group.host):
                return False
            if group.host.paused and self.rng.random() < 0.7:
                return False
        return True

    def submit(self, operation: Operation) -> Work:
        """See ``Group``; of the reductions sums only, as all of them are."""
        kind, tensor, op, peer, tag = operation
        room = self._room
        if kind in _COLLECTIVES:
            assert op == "SUM" or kind is not OperationKind.ALLREDUCE
            work = self._begin(tensor)
            if not work.ended:
                number, self._entered = self._entered, self._entered + 1
                room.rooms.tell(self.host, "entered")
                room.enter(number, self.rank, work, kind)
            return work
        assert kind is not OperationKind.BROADCAST, "broadcasts are sums"
        sends = kind is OperationKind.SEND
        work = self._begin(tensor, writes=not sends)
        if not work.ended:
            room.rooms.tell(self.host, "giving" if sends else "adopting")
            key = (self.rank, peer, tag) if sends else (peer, self.rank, tag)
            room.post(key, work, room.letters if sends else room.awaited)
        return work

    def abort(self) -> None:
        """See ``Group``. What is under way may still complete, fail soon, or never end."""
        if self.aborted or self.threads.over:
            return
        self.aborted = True
        error = GroupError("aborted here")
        self._error = self._error or error
        for work in self._works:
            if not work.ended:
                work.endless = self.rng.random() < self._room.rooms.pace.endless
                longest = 0.5 if work.endless else self._room.rooms.pace.linger
                delay = self.rng.uniform(0.0, longest)
                self.host.world.after(delay, partial(self.threads.happens, partial(work.fail, error)))
        self._works.clear()
        self._room.closed(self.rank)

    @property
    def facts(self) -> tuple[Mapping[str, str], ...]:
        """See ``GlooGroup``."""
        return tuple(self._room.facts[rank] for rank in range(self.size))

    def broken(self) -> GroupError | None:
        """See ``GlooGroup``."""
        return self._error

    def cut(self, error: GroupError) -> None:
        """A connection was closed by another rank: whatever is under way fails."""
        if self.threads.over:
            return
        self._error = self._error or error
        for work in self._works:
            work.fail(error)
        self._works = [work for work in self._works if not work.ended]

    def close(self) -> None:
        """See ``Group``."""
        self.abort()

    def _begin(self, tensor: torch.Tensor, *, writes: bool = True) -> _Work:
        work = _Work(self, tensor, writes=writes)
        if self._error is not None:
            work.fail(self._error)
        else:
            self._works = [known for known in self._works if not known.ended]
            self._works.append(work)
        return work
