"""A communicator that carries out a device's operations over a Gloo group of its own, and behaves as badly as NCCL's.

* ``launch`` returns long before the operations have begun.
* Where a peer dies, operations hang: nothing fails by itself.
* A stop makes operations end as if they had succeeded, with garbage in their buffers.
* To free it while a peer's operations still run breaks the peer's device.
* What ``Faults`` say, besides.
"""

from __future__ import annotations

import enum
import functools
import threading
import time
from collections.abc import Callable, Sequence

import torch

from ftlib.errors import GroupError
from ftlib.frameworks.background import start_task
from ftlib.frameworks.base import Group, GroupSpec, Operation, OperationKind, Work
from ftlib.frameworks.gloo_build import GlooBuild

from ..base import Communicator, Ticket
from .faults import Faults, Way
from .stream import Event, Stream

GARBAGE = 777.0
"""What a stop leaves in the buffers: finite, so that no check for inf and nan finds it."""
_POLL = 20e-6
"""Seconds between two looks whether operations are launched."""
_LOOK = 0.005
"""Seconds between two looks for the end of an operation."""
_WARM = 1024
"""Elements of the first operation."""


class _State(enum.Enum):
    STARTING = "starting"
    READY = "ready"
    TROUBLED = "troubled"
    STOPPED = "stopped"


class RehearsedTicket(Ticket):
    """An event recorded after a launch."""

    def __init__(self, event: Event, communicator: RehearsedCommunicator) -> None:
        self._event, self._communicator = event, communicator

    def query(self) -> bool:
        """See ``Ticket``."""
        return self._event.query()

    def error(self) -> str:
        """See ``Ticket``."""
        return self._communicator.error


class RehearsedCommunicator(Communicator):
    """See ``Communicator``; ``begin`` starts it."""

    def __init__(self, spec: GroupSpec, build: GlooBuild, faults: Faults, free: Callable[[], None]) -> None:
        """``build``: of the private group. ``free``: called as memory is freed that peers then must not use any more."""
        self._spec, self._build, self._faults, self._free = spec, build, faults, free
        self._stream = Stream()
        self._stopped = threading.Event()
        self._launches = 0
        self._error = ""
        """An asynchronous error, seen only by those who ask."""
        self._lock = threading.Lock()
        # Guarded by it:
        self._state = _State.STARTING
        self._why = ""
        self._group: Group | None = None

    def begin(self, decided: Callable[[], None]) -> None:
        """Start to build; return at once."""
        start_task("rehearsal-start", functools.partial(self._start, decided))

    @property
    def ready(self) -> bool:
        """See ``Communicator``."""
        return self._state is _State.READY

    @property
    def trouble(self) -> str:
        """See ``Communicator``."""
        return self._why or self.error

    @property
    def error(self) -> str:
        """The asynchronous error so far; empty after a stop, as the stop is no error."""
        return "" if self._stopped.is_set() else self._error

    @property
    def idle(self) -> bool:
        """See ``Communicator``."""
        return self._stream.idle

    def launch(self, operations: Sequence[Operation], after: Callable[[], None] | None = None) -> Ticket:
        """Hand the operations to the device, wait until they are launched, and mark their end."""
        with self._lock:
            if self._state is not _State.READY:
                raise GroupError(f"the communicator of epoch {self._spec.epoch} is {self._state.value} {self._why}")
            self._launches += 1
            erring = self._launches == self._faults.error_at
            kernel = functools.partial(self._run, list(operations), erring)
            self._stream.enqueue(kernel, self._faults.launch_seconds)
            if after is not None:
                self._stream.enqueue(after, self._faults.launch_seconds)
        self._await_launch()
        return RehearsedTicket(self._stream.record(), self)

    def stop(self) -> None:
        """See ``Communicator``."""
        with self._lock:
            self._state = _State.STOPPED
            group = self._group
        self._stopped.set()
        self._build.give_up("stopped")
        self._stream.hasten()
        if group is not None:
            group.abort()
        while not self._stream.idle:
            time.sleep(_LOOK)
        if self._faults.stop is Way.HANGS:
            _hang()

    def free(self) -> None:
        """See ``Communicator``."""
        if self._faults.free is Way.HANGS:
            _hang()
        if self._faults.free is Way.FAILS:
            raise RuntimeError("freeing failed on purpose")
        self._free()
        self.leave()

    def leave(self) -> None:
        """Give back what is this process's alone: no peer's operation notices. Only after a stop. Idempotent."""
        self._build.give_up("freed")
        self._build.drop()

    def freed_by_peer(self) -> None:
        """A peer has freed memory that operations of this member may use: they err if any is under way."""
        if not self._stopped.is_set() and not self._stream.idle:
            self._error = "an illegal memory access was encountered: a peer has freed its memory"

    # --- in the background ---------------------------------------------------------------------------------------------

    def _start(self, decided: Callable[[], None]) -> None:
        why = ""
        try:
            self._connect()
        except GroupError as error:
            why = str(error)
        except Exception as error:  # noqa: BLE001 - whatever it is: there is no communicator
            why = repr(error)
        with self._lock:
            if self._state is _State.STARTING:
                self._state, self._why = (_State.TROUBLED if why else _State.READY), why
        decided()

    def _connect(self) -> None:
        """Build the private group, and reduce something on the device."""
        faults = self._faults
        self._stopped.wait(faults.start_seconds)
        if faults.start is Way.FAILS:
            raise GroupError("its start failed on purpose")
        if faults.start is Way.HANGS:
            self._stopped.wait()
        if self._stopped.is_set():
            raise GroupError("stopped")
        self._build.start()
        group = self._build.wait()
        with self._lock:
            if self._state is not _State.STARTING:
                raise GroupError("stopped")  # ``free`` closes the group
            self._group = group
        self._stream.enqueue(functools.partial(self._run, [_warming()], erring=False), 0.0)
        event, deadline = self._stream.record(), time.monotonic() + self._spec.timeout
        while not event.query() and time.monotonic() < deadline and not self._error:
            self._stopped.wait(_LOOK)
        if not event.query() or self._error:
            raise GroupError(self._error or f"its first operation did not end within {self._spec.timeout:g} s")

    def _await_launch(self) -> None:
        """Until then an event would mark the end of earlier operations alone. A stop ends it, too."""
        while self._stream.launching:
            time.sleep(_POLL)

    # --- on the device -------------------------------------------------------------------------------------------------

    def _run(self, operations: list[Operation], erring: bool) -> None:
        """One launch: never fails, but in what it leaves in the buffers."""
        self._stopped.wait(self._faults.kernel_seconds)
        if erring:
            self._error = "unhandled device error, on purpose"
            self._spin()
        group = self._group
        assert group is not None  # else nothing is launched
        memory = [operation.tensor.clone() for operation in operations]  # of the device: what Gloo never ends writes there
        moved = zip(operations, memory, strict=True)
        works = [group.submit(operation._replace(tensor=copy)) for operation, copy in moved]
        for operation, copy, work in zip(operations, memory, works, strict=True):
            if self._succeeds(work):
                operation.tensor.copy_(copy)
            else:
                operation.tensor.fill_(GARBAGE)

    def _succeeds(self, work: Work) -> bool:
        """Wait for the end of an operation, or of the communicator."""
        try:
            while not self._stopped.is_set():
                if work.wait(_LOOK):
                    return True
        except GroupError as error:
            if not self._faults.silent and not self._stopped.is_set():
                self._error = self._error or f"remote process exited or there was a network error: {error}"
        self._spin()
        return False

    def _spin(self) -> None:
        """Until the communicator is stopped."""
        self._stopped.wait()
        if self._faults.stuck:
            _hang()


def _warming() -> Operation:
    return Operation(OperationKind.ALLREDUCE, torch.ones(_WARM, dtype=torch.float32, device="cpu"), "SUM")


def _hang() -> None:
    """As long as the process lives."""
    threading.Event().wait()
