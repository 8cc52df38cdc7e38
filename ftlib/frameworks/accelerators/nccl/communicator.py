"""One communicator of NCCL's, non-blocking, from its start to its release.

    STARTING ──> READY ──> STOPPED ──free──> (nothing is left)
        └──> TROUBLED ──────┘

A function of NCCL's returns before it has done what it was asked for, and the communicator says IN_PROGRESS until it has. So
every call here is made by a thread that holds the communicator's lock, is followed by questions until it is no longer in
progress, and has a deadline. Only ``ncclCommRevoke`` and ``ncclCommAbort`` may hang: whoever calls them takes the communicator
out of the others' reach first.
"""

from __future__ import annotations

import enum
import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import torch

from ftlib.common.devices import Event, SideStream
from ftlib.errors import ConfigError, GroupError
from ftlib.frameworks.background import start_task
from ftlib.frameworks.base import GroupSpec, Operation, OperationKind

from ..base import Communicator, Ticket
from .gpus import Gpu
from .library import Library
from .results import Result
from .structures import REDUCTIONS, TYPES

WARMING = (4 << 10, 25 << 20)
"""Bytes of the first operations, few and many (a bucket): NCCL connects ranks only as an operation needs it, in other ways."""
_START_LOOK = 0.002
"""Seconds between two questions whether the communicator is built."""
_SPIN = 50e-6
"""Seconds for which a thread that launches operations asks without a pause whether they are launched."""
_LAUNCH_LOOK = 20e-6
"""Seconds between two such questions after that."""
_EVENT_LOOK = 0.0005
"""Seconds between two looks whether the stream has come to its end."""
_TURN = 5.0
"""Seconds to wait until no other thread is within NCCL: all that is done under the lock returns at once."""
_STOP = 30.0
"""Seconds for a stop to be done; whoever waits for it has given up long before."""


class _State(enum.Enum):
    STARTING = "starting"
    READY = "ready"
    TROUBLED = "in trouble"
    STOPPED = "stopped"


class _NcclTicket(Ticket):
    """An event recorded after NCCL has launched the operations; none if it failed to, and some may run all the same."""

    def __init__(self, event: Event | None, communicator: NcclCommunicator) -> None:
        self._event, self._communicator = event, communicator

    def query(self) -> bool:
        """See ``Ticket``. Raises the device's error, if it has one."""
        return self._communicator.idle if self._event is None else self._event.query()

    def error(self) -> str:
        """See ``Ticket``."""
        return self._communicator.error


class NcclCommunicator(Communicator):
    """See ``Communicator``; ``begin`` starts it."""

    def __init__(
        self,
        spec: GroupSpec,
        identity: bytes,
        library: Library,
        gpu: Gpu,
        elsewhere: Callable[[], str] = str,
        warming: Sequence[int] = WARMING,
    ) -> None:
        """``identity``: where the ranks meet, alike at all. ``elsewhere``: why it must not be used, though it works; or empty.

        ``warming``: sizes in bytes of its first operations.
        """
        self._spec, self._identity, self._library, self._gpu = spec, identity, library, gpu
        self._elsewhere, self._warming = elsewhere, warming
        self._stopped = threading.Event()
        self._stream: SideStream | None = None
        self._newest: Event | None = None
        """Ends all that was launched and marked; None if nothing was."""
        self._unmarked = False
        """True while something may have been launched that no event marks."""
        self._row: torch.Tensor | None = None
        """What is being warmed up with: it must outlive the operation, however that ends."""
        self._error = ""
        """What a launch, or the communicator, has failed with."""
        self._state = _State.STARTING
        self._why = ""
        """Why it is TROUBLED."""
        self._lock = threading.Lock()
        """Held around every call of NCCL's with this communicator, and for changes of the state."""
        self._comm: int | None = None
        """NCCL's handle, while others than the thread that stops or frees may use it. Guarded by the lock, as the next one."""
        self._built = False
        """True once NCCL has said that it is built, so that it can be stopped."""
        self._revoked = False
        self._held: int | None = None
        """The handle between stop and free."""

    def begin(self, decided: Callable[[], None]) -> None:
        """Start to build; return at once."""
        start_task("nccl-start", functools.partial(self._start, decided))

    @property
    def ready(self) -> bool:
        """See ``Communicator``."""
        return self._state is _State.READY and not self._elsewhere()

    @property
    def trouble(self) -> str:
        """See ``Communicator``."""
        return self._why or self._elsewhere() or self.error

    @property
    def error(self) -> str:
        """The asynchronous error so far; empty after a stop, as the stop is no error."""
        if self._stopped.is_set() or self._state is not _State.READY:
            return ""
        if not self._error and self._lock.acquire(blocking=False):  # else a thread launches, and finds out itself
            try:
                self._ask()
            finally:
                self._lock.release()
        return self._error

    @property
    def idle(self) -> bool:
        """See ``Communicator``. A device that has failed does nothing any more."""
        if self._unmarked:
            return False
        try:
            return self._newest is None or self._newest.query()
        except Exception:  # noqa: BLE001 - whatever the device raises
            return True

    def launch(self, operations: Sequence[Operation], after: Callable[[], None] | None = None) -> Ticket:
        """See ``Communicator``. It waits until NCCL has launched them: an event recorded before that would mark nothing.

        The first operation of a new size may wait for the peers, too, as NCCL then connects to them; see ``WARMING``.
        """
        filled = self._gpu.device.record()
        with self._calling("launch operations") as comm:
            if self._state is not _State.READY:
                raise GroupError(f"the communicator of epoch {self._spec.epoch} is {self._state.value} {self._why}")
            self._own_stream().follow(filled)
            try:
                return self._launch(comm, operations, after)
            except GroupError as error:  # some may run by now: the ticket is done when nothing runs any more
                self._error = self._error or str(error)
                return _NcclTicket(None, self)

    def stop(self) -> None:
        """``ncclCommRevoke``: it sets a flag that kernels look at, and waits for their end. Nothing that peers use is freed.

        What NCCL has not built yet runs no kernels; NCCL's own threads that build it end when it is freed. GroupError if it
        cannot be said that the operations have ended.
        """
        self._stopped.set()
        with self._turn("stop the communicator"):
            self._state, first = _State.STOPPED, self._state is not _State.STOPPED
            if first:
                self._held, self._comm = self._comm, None
        if first and self._held is not None:
            self._gpu.device.use()
            self._revoke(self._held)

    def free(self) -> None:
        """``ncclCommAbort``. GroupError if it fails."""
        with self._turn("free the communicator"):
            comm, self._held = self._held, None
        if comm is not None:
            self._gpu.device.use()
            self._revoke(comm)  # it may have been built since the stop
            self._library.abort(comm)

    # --- in the background ---------------------------------------------------------------------------------------------

    def _start(self, decided: Callable[[], None]) -> None:
        why = ""
        try:
            self._gpu.device.use()
            self._build()
            for nbytes in self._warming:
                self._warm(nbytes)
        except GroupError as error:
            why = str(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, as no memory: there is no communicator
            why = repr(error)
        with self._lock:
            if self._state is _State.STARTING:
                self._state = _State.TROUBLED if why else _State.READY
                self._why = "" if self._stopped.is_set() else why  # a stop that is about to say so is no error
        decided()

    def _build(self) -> None:
        """Connect to the other ranks."""
        with self._turn("start the communicator"):
            self._alive()
            self._comm, _ = self._library.init_rank(self._identity, self._spec.size, self._spec.rank)
        until = time.monotonic() + self._spec.timeout
        while True:
            with self._calling("start the communicator") as comm:
                result = self._library.async_error(comm)
                self._check("the start of the communicator", comm, result)
                self._built = result is Result.SUCCESS
            if self._built:
                return
            if time.monotonic() > until:
                raise GroupError(f"the start of the communicator was still in progress after {self._spec.timeout:g} s")
            self._stopped.wait(_START_LOOK)

    def _warm(self, nbytes: int) -> None:
        """Reduce so many bytes, whatever they are, and wait for the end.

        They belong to this thread's stream, which is the same one for all communicators: torch keeps memory for the stream
        that it was allocated on.
        """
        row = self._row = self._gpu.device.empty(nbytes // 4, torch.float32)
        free = self._gpu.device.record()
        with self._calling("warm up") as comm:
            self._own_stream().follow(free)
            ticket = self._launch(comm, [Operation(OperationKind.ALLREDUCE, row, "SUM")])
        until = time.monotonic() + self._spec.timeout
        while not ticket.query():
            with self._calling("warm up") as comm:
                self._check(f"the first operation of {nbytes} bytes", comm, self._library.async_error(comm))
            if time.monotonic() > until:
                raise GroupError(f"the first operation of {nbytes} bytes did not end within {self._spec.timeout:g} s")
            self._stopped.wait(_START_LOOK)
        self._row = None

    def _revoke(self, comm: int) -> None:
        """If it is built, once. It may be although the thread that starts it has not heard so.

        The device is asked whether all has ended: NCCL's answer may as well be an error from before.
        """
        if not self._built:
            with suppress(GroupError):  # an error is told by whoever needs it, and what fails to start was never used
                self._built = self._library.async_error(comm) is Result.SUCCESS
        if not self._built or self._revoked:
            return
        self._revoked = True
        until = time.monotonic() + _STOP
        result = self._library.revoke(comm)
        while result is Result.IN_PROGRESS:
            if time.monotonic() > until:
                raise GroupError(f"ncclCommRevoke was still in progress after {_STOP:g} s")
            time.sleep(_START_LOOK)
            result = self._library.async_error(comm)
        self._mark_all()
        while not self.idle:
            if time.monotonic() > until:
                raise GroupError(f"operations have not ended {_STOP:g} s after ncclCommRevoke")
            time.sleep(_EVENT_LOOK)

    def _mark_all(self) -> None:
        """What no event marks was launched by now, or never will be."""
        if self._stream is not None:
            try:
                self._newest = self._stream.record()
            except Exception:  # noqa: BLE001 - whatever the device raises: it does nothing any more
                self._newest = None
        self._unmarked = False

    # --- with the lock -------------------------------------------------------------------------------------------------

    @contextmanager
    def _turn(self, what: str) -> Iterator[None]:
        """Hold the lock."""
        if not self._lock.acquire(timeout=_TURN):
            raise GroupError(f"cannot {what}: another thread has not come back from NCCL for {_TURN:g} s")
        try:
            yield
        finally:
            self._lock.release()

    @contextmanager
    def _calling(self, what: str) -> Iterator[int]:
        """Hold the lock; the handle. GroupError once it is stopped."""
        with self._turn(what):
            self._alive()
            if self._comm is None:
                raise GroupError(f"cannot {what}: there is no communicator {self._why}")
            yield self._comm

    def _alive(self) -> None:
        if self._stopped.is_set():
            raise GroupError(f"the communicator of epoch {self._spec.epoch} is stopped")

    def _own_stream(self) -> SideStream:
        if self._stream is None:
            self._stream = self._gpu.device.side_stream()
        return self._stream

    def _launch(self, comm: int, operations: Sequence[Operation], after: Callable[[], None] | None = None) -> _NcclTicket:
        """Have the operations run on the own stream, all in one launch."""
        stream = self._own_stream()
        calls = [self._call(comm, operation, stream.handle) for operation in operations]
        self._unmarked = True
        self._library.group_start()
        try:
            for call in calls:
                call()
        except BaseException:
            self._end_group()
            raise
        self._library.group_end()
        self._await_launch(comm)
        with stream.current():
            if after is not None:
                after()
        self._newest = stream.record()
        self._unmarked = False
        return _NcclTicket(self._newest, self)

    def _end_group(self) -> None:
        """After an error in the middle: end what this thread has begun, or its next group would be part of it."""
        try:
            self._library.group_end()
        except GroupError:  # the error is told already
            return

    def _call(self, comm: int, operation: Operation, stream: int) -> Callable[[], object]:
        """The call of NCCL's that enqueues ``operation``. ConfigError if there is none."""
        tensor, kind, library = operation.tensor, operation.kind, self._library
        address = tensor.data_ptr()
        if kind is OperationKind.BROADCAST:
            numbers = tensor.nbytes, TYPES[torch.uint8], operation.peer
            return functools.partial(library.broadcast, address, *numbers, comm, stream)
        if kind is OperationKind.ALLREDUCE and tensor.dtype in TYPES and operation.op in REDUCTIONS:
            numbers = tensor.numel(), TYPES[tensor.dtype], REDUCTIONS[operation.op]
            return functools.partial(library.all_reduce, address, *numbers, comm, stream)
        raise ConfigError(f"NCCL is not used for {operation.op} {kind.value} of {tensor.dtype}: use Group.submit")

    def _await_launch(self, comm: int) -> None:
        """Until NCCL, which launches on a thread of its own, has done so."""
        began = time.monotonic()
        while (result := self._library.async_error(comm)) is Result.IN_PROGRESS:
            self._alive()
            waited = time.monotonic() - began
            if waited > self._spec.timeout:
                raise GroupError(f"a launch was still in progress after {self._spec.timeout:g} s")
            if waited > _SPIN:
                time.sleep(_LAUNCH_LOOK)
        self._check("a launch", comm, result)

    def _ask(self) -> None:
        if self._comm is None:
            return
        try:
            self._check("the communicator", self._comm, self._library.async_error(self._comm))
        except GroupError as error:
            self._error = str(error)

    def _check(self, what: str, comm: int, result: Result) -> None:
        if result.bad:
            raise GroupError(f"{what} failed: {self._library.describe(result, comm)}")
