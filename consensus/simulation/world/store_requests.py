"""What processes ask of the shared store, played in virtual time: every executor's coroutine, and all that can happen to it.

The executors are the real ones (``consensus/storage/store_executor.py``); they await a ``StoreCall`` of ``SimulatedStore``.
Each of its steps travels to the store and is done there, whatever became of the process meanwhile; the answer travels back,
and waits outside of a process that sleeps. Who has no answer after ``Config.storage_timeout`` is told so: of a read that the
store is away, of a write that it may have been done. And so it may: what is late is done at some later time all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from enum import Enum
from typing import Any, Protocol

from ...errors import AmbiguousWriteError, StoreAwayError
from ...protocol.state.inputs import Answered, StoreChanged
from ...storage.store_executor import StoreExecutor
from ...storage.view_log import PREFIX as VIEWS
from ...storage.view_log import key_of
from ...store_requests import StoreOp, StoreReply
from .host import Host
from .in_memory_store import Change, ChangeKind, InMemoryStore
from .state import State
from .store import Character, Notice, SimulatedStore, StoreCall, garbled

LATE = 3.0
"""What comes late comes within so many timeouts."""

NOTICE = (0.0005, 0.01)
"""Seconds from a change to whoever is told of it."""

_ASKED, _DONE, _ANSWERED, _STORE_CHANGED = 2, 3, 4, 5
"""Kinds of events, for the digest."""


class Executor(Protocol):
    """Carries out what one process asks of the store."""

    async def carry_out(self, request: StoreOp) -> StoreReply:
        """Do it, whatever happens. Awaits methods of the store alone."""


MakeExecutor = Callable[[Host, SimulatedStore], Executor]


def real_executor(host: Host, store: SimulatedStore) -> Executor:
    """What a process has outside of a simulation, too."""
    return StoreExecutor(store, host.world.config, host.member, say=lambda _: None)


Task = Coroutine[Any, Any, None] | Generator[Any, Any, None]


class Fate(Enum):
    """What becomes of one step."""

    DONE = "done"
    FAILED = "not done, and said so"
    LOST = "done, and nobody is told"
    LATE = "not done yet"
    NEVER = "not done, and nobody is told"


class _Operation:
    """A ``StoreCall`` under way for a task of ``host``."""

    __slots__ = ("began", "call", "host", "over", "result", "task")

    def __init__(self, host: Host, task: Task, call: StoreCall) -> None:
        self.host = host
        self.task = task
        self.call = call
        self.began = False
        """Whether anything of it may have been done."""
        self.over = False
        """Whether its task was told what came of it."""
        self.result: tuple[Any] | None = None


class StoreRequests:
    """Of all processes of a world, and the store that they share."""

    def __init__(self, world: State, character: Character, make: MakeExecutor, *, notices: bool = True) -> None:
        """``make``: a process's executor. ``notices``: whether the store tells of changes."""
        self._world = world
        self._make = make
        self._notices = notices
        self._character = character
        self._executors: dict[str, Executor] = {}
        self._waiting: list[tuple[Host, Notice, Task]] = []
        self._by: Host | None = None
        self.contents = InMemoryStore(lambda: world.now, self._told)
        self._strange: dict[str, bytes] = {}
        """What strangers put where a record belongs that is not made yet."""
        self.operations: dict[str, SimulatedStore] = {}
        """Every process's way to the store, which counts what was asked, by member id."""

    # What processes want

    def begin(self, host: Host) -> None:
        """A process starts: it gets an executor, and somebody who listens for changes."""
        store = self.operations[host.id] = SimulatedStore(self.contents, self._character, notices=self._notices)
        self._executors[host.id] = self._make(host, store)
        self._go_on(host, self._listen(host, store))

    def ask(self, host: Host, request: StoreOp) -> None:
        """A machine's ``Ask``."""
        self._record(_ASKED, host, type(request).__name__)
        self._world.show("asked", host, request)
        self._go_on(host, self._carry_out(host, request))

    async def _carry_out(self, host: Host, request: StoreOp) -> None:
        answer = await self._executors[host.id].carry_out(request)
        if host.stopped is None:
            self._record(_ANSWERED, host, type(answer).__name__)
            self._world.show("answered", host, request, answer)
            host.machine.handle(Answered(request, answer), host.now)

    async def _listen(self, host: Host, store: SimulatedStore) -> None:
        async for _ in store.watch("views/"):
            if host.stopped is None:
                self._record(_STORE_CHANGED, host)
                host.machine.handle(StoreChanged(), host.now)

    # Coroutines

    def _go_on(self, host: Host, task: Task, value: Any = None, error: Exception | None = None) -> None:
        """Inside ``host``: let a coroutine run until it waits again."""
        try:
            wanted = task.send(value) if error is None else task.throw(error)
        except StopIteration:
            return
        if isinstance(wanted, Notice):
            self._waiting.append((host, wanted, task))
            return
        assert isinstance(wanted, StoreCall), f"an executor awaits {wanted!r}: only a Store's methods are played here"
        operation = _Operation(host, task, wanted)
        self._world.at(self._world.config.storage_timeout, self._inside, host, lambda: self._give_up(operation))
        self._send(operation)

    def _inside(self, host: Host, action: Callable[[], None]) -> None:
        """As ``World.inside``; one that has stopped finishes what it began."""
        if host.alive and host.stopped is not None:
            action()
        else:
            self._world.inside(host, action)

    # An operation's way

    def _send(self, operation: _Operation) -> None:
        """The next step sets out for the store."""
        world, host, faults = self._world, operation.host, self._world.faults.store
        if not faults.reaches(host.id) and world.rng.random() < faults.refuses:
            self._trouble(host)
            world.at(self._way(), self._inside, host, lambda: self._fail(operation, "connection refused"))
        else:
            world.at(self._way(), self._arrive, operation)

    def _way(self) -> float:
        faults, rng = self._world.faults.store, self._world.rng
        way = rng.uniform(*faults.latency)
        if faults.slow:
            way += rng.uniform(0.0, faults.slow)
            if way > self._world.config.storage_timeout / 4:
                self._trouble(None)
        return way

    def _arrive(self, operation: _Operation, late: bool = False) -> None:
        """A step reaches the store, or does not."""
        world, host = self._world, operation.host
        fate = self._fate(host, late)
        if fate is not Fate.DONE:
            self._trouble(host)
        if fate is not Fate.FAILED:
            operation.began = operation.began or operation.call.writes
        if fate in (Fate.DONE, Fate.LOST):
            self._do(operation)
        if fate is Fate.DONE:
            world.at(self._way(), self._back, operation)
        elif fate is Fate.FAILED:
            world.at(self._way(), self._inside, host, lambda: self._fail(operation, "the store failed"))
        elif fate is Fate.LATE:
            world.at(world.rng.uniform(0.0, LATE * world.config.storage_timeout), self._arrive, operation, True)

    def _fate(self, host: Host, late: bool) -> Fate:
        faults, rng = self._world.faults.store, self._world.rng
        if not faults.reaches(host.id):
            return Fate.NEVER if late or rng.random() < 0.6 else Fate.LATE
        if late:
            return Fate.DONE
        if faults.fails and rng.random() < faults.fails:
            return Fate.FAILED
        if faults.lost and rng.random() < faults.lost:
            return Fate.LOST if rng.random() < 0.5 else Fate.LATE
        return Fate.DONE

    def _do(self, operation: _Operation) -> None:
        """One step, at the store. Who asked for it may be dead by now."""
        self._record(_DONE, operation.host, operation.call.text)
        self._by = operation.host
        try:
            next(operation.call.steps)
        except StopIteration as end:
            operation.result = (end.value if operation.call.writes else self._seen(operation.host, end.value),)
        self._by = None

    def _seen(self, host: Host, found: Any) -> Any:
        """What was read, as ``host`` sees it."""
        faults, rng = self._world.faults.store, self._world.rng
        if not faults.blind:
            return found
        self._trouble(host)
        return garbled(found, lambda: rng.random() < faults.blind)

    def _back(self, operation: _Operation) -> None:
        """The answer to a step reaches the process: the operation is over, or takes its next step."""
        host = operation.host
        if operation.result is None:
            self._inside(host, lambda: self._send(operation))
        else:
            value = operation.result[0]
            self._inside(host, lambda: self._end(operation, value))

    def _end(self, operation: _Operation, value: Any = None, error: Exception | None = None) -> None:
        if not operation.over:
            operation.over = True
            self._go_on(operation.host, operation.task, value, error)

    def _fail(self, operation: _Operation, why: str) -> None:
        text = f"{operation.call.text}: {why}"
        self._end(operation, error=AmbiguousWriteError(text) if operation.began else StoreAwayError(text))

    def _give_up(self, operation: _Operation) -> None:
        if not operation.over:
            operation.began = operation.began or operation.call.writes  # it may be on its way
            self._fail(operation, f"no answer within {self._world.config.storage_timeout:g} s")

    # What the store says

    def wipe(self) -> None:
        """Somebody removes everything that is in the store."""
        self.contents.wipe()

    def strange(self, where: str) -> None:
        """Somebody who can write to the store, and has no secret, does so. ``where``: see ``commands``."""
        rng, leases = self._world.rng, self.contents.names("leases/")
        records = [key for key in self.contents.names(VIEWS) if key not in self._strange]
        newest = int(records[-1].removeprefix(VIEWS)) if records else 0
        garbage = rng.randbytes(rng.choice([0, 1, 100]))
        if where == "stray":
            self.contents.write(f"leases/{rng.getrandbits(64):016x}", garbage, None)
        elif where == "lease" and leases:
            self.contents.write(rng.choice(leases), garbage, None)
        elif where == "parent" and key_of(newest - 1) in records:
            self.contents.write(key_of(newest - 1), garbage, None)
        elif where in ("next", "beyond"):
            key = key_of(newest + (1 if where == "next" else 3))
            if self.contents.read(key) is None:
                self._strange[key] = garbage
                self.contents.write(key, garbage, None)

    def tidy(self) -> None:
        """Somebody removes what strangers put where the next records belong: until then no view changes there."""
        for key, garbage in self._strange.items():
            if self.contents.read(key) == garbage:
                self.contents.delete((key,))
        self._strange.clear()

    def _told(self, change: Change) -> None:
        self._world.hashed.update(
            b"%s|%s|%d|%s" % (change.kind.value.encode(), change.key.encode(), change.number, change.value)
        )
        self._world.show("stored", self._by, change)
        if change.kind is ChangeKind.WIPE:
            return
        still: list[tuple[Host, Notice, Task]] = []
        faults, rng = self._world.faults.store, self._world.rng
        for waiting in self._waiting:
            host, notice, task = waiting
            if not host.alive:
                continue
            told = change.key.startswith(notice.prefix) and faults.reaches(host.id)
            if told and not (faults.deaf and rng.random() < faults.deaf):
                self._world.at(rng.uniform(*NOTICE), self._inside, host, lambda host=host, task=task: self._go_on(host, task))
            else:
                still.append(waiting)
        self._waiting = still

    def _trouble(self, host: Host | None) -> None:
        self._world.show("withheld", host)

    def _record(self, kind: int, host: Host, text: str = "") -> None:
        self._world.record(kind, host, len(text), text.encode())
