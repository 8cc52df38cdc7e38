"""One communicator from its start to its release, with a deadline for each thing that may hang.

    STARTED ──stop──> STOPPED ──free──> FREEING ──> FREED, or LEAKED after ``Deadlines.free``

What hangs does so on a background task, which is left alone: the communicator is leaked, which is counted and logged. Only
operations that do not end on the device are fatal for the process, since nothing says what they will write to.
"""

from __future__ import annotations

import contextlib
import enum
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from consensus import CarefulLogger
from ftlib.errors import GroupError
from ftlib.frameworks.background import start_task
from ftlib.frameworks.base import GroupSpec, Operation

from .base import Communicator, Ticket
from .figures import Figures

_log = CarefulLogger(__name__)

_LOOK = 0.0002
"""Seconds between two looks whether the operations of a stopped communicator have ended."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds until what hangs is given up."""

    start: float = 120.0
    """For a communicator to become ready. It costs nobody time meanwhile."""
    stop: float = 0.1
    """For ``stop`` to wait until operations have ended."""
    stuck: float = 1.0
    """From a stop on, for operations to end on the device; then this process cannot go on."""
    free: float = 5.0
    """For a communicator to be freed; then it is leaked."""


class _State(enum.Enum):
    STARTED = "started"
    STOPPED = "stopped"
    FREEING = "freeing"
    FREED = "freed"
    LEAKED = "leaked"


class ManagedCommunicator:
    """Any thread may call anything."""

    def __init__(
        self,
        spec: GroupSpec,
        begin: Callable[[Callable[[], None]], Communicator],
        figures: Figures,
        deadlines: Deadlines,
        fatal: Callable[[str], None],
        unavailable: Callable[[str, bool], None],
        rest: float = 0.0,
    ) -> None:
        """``begin``: ``Accelerator.begin``, still without its ``decided``.

        ``fatal``: called with the reason if operations never end. ``unavailable``: the same if it will never be ready;
        and whether another one may be (``Communicator.passing``).
        ``rest``: seconds from now on in which it is not used, even if it is ready.
        """
        self.epoch, self.size = spec.epoch, spec.size
        self.failed_after: float | None = None
        """Seconds from its start to the stop, if its operations had failed by then."""
        self._rest = rest
        self._spec, self._figures, self._deadlines = spec, figures, deadlines
        self._fatal, self._unavailable = fatal, unavailable
        self._lock = threading.Lock()
        self._state = _State.STARTED
        self._launching = 0
        """Threads in ``launch``: what they launch is not on the device yet. Both are guarded by ``_lock``."""
        self._kept: deque[tuple[Ticket | None, list[torch.Tensor]]] = deque()
        """What may be under way, and its memory, which must not be used for anything else until it has ended.

        Without a ticket if its launch has failed, perhaps in the middle: that is kept until the communicator is freed.
        """
        self._given_up = ""
        self._began = time.monotonic()
        self._stopped_at = 0.0
        self._noted = False
        """Whether the figures have how long the start took. Guarded by ``_lock``."""
        self._decided = threading.Event()
        self._stop_returned = threading.Event()
        self._freed = threading.Event()
        figures.count("starts")
        self._communicator = begin(self._decided.set)
        try:
            start_task("accelerator-start", self._await_start)
        except RuntimeError as error:
            self._given_up = f"nothing can wait for its start: {error}"
            figures.count("troubles")
            unavailable(self._given_up, False)

    @property
    def summary(self) -> str:
        """In one word how it is."""
        if self._state is not _State.STARTED:
            return str(self._state.value)
        return "ready" if self.usable else "in trouble" if self.trouble else "starting"

    @property
    def usable(self) -> bool:
        """True while it is ready, has not been stopped, and nothing is known against it."""
        if self._rest and time.monotonic() < self._began + self._rest:
            return False
        return self._state is _State.STARTED and self._communicator.ready and not self.trouble

    @property
    def trouble(self) -> str:
        """See ``Communicator``."""
        return self._given_up or self._communicator.trouble

    @property
    def stopped(self) -> bool:
        """True once ``stop`` was called."""
        return self._state is not _State.STARTED

    @property
    def freed(self) -> bool:
        """True once it was freed. One that is leaked must be kept: it keeps memory that may be in use."""
        return self._state is _State.FREED

    @property
    def gone(self) -> bool:
        """True once it was freed or leaked."""
        return self._state in (_State.FREED, _State.LEAKED)

    def may_start_within(self, seconds: float) -> bool:
        """True if it is starting, and will be ready so soon if this start takes as long as the last one."""
        if self._state is not _State.STARTED or self._rest or self._decided.is_set():
            return False
        return self._began + self._figures.last_start < time.monotonic() + seconds

    def await_start(self, seconds: float) -> bool:
        """Wait at most so long until it is ready, in trouble or stopped; True if it is."""
        return self._decided.wait(seconds)

    def launch(self, operations: Sequence[Operation], after: Callable[[], None] | None = None) -> Ticket:
        """See ``Communicator``. One thread at a time."""
        with self._lock:
            if self._state is not _State.STARTED:
                raise GroupError(f"the communicator of epoch {self.epoch} is {self._state.value}")
            self._launching += 1
        ticket: Ticket | None = None
        try:
            ticket = self._communicator.launch(operations, after)
        finally:
            self._kept.append((ticket, [operation.tensor for operation in operations]))
            with self._lock:
                self._launching -= 1
        while (oldest := self._kept[0][0]) is not None and oldest is not ticket and oldest.query():
            self._kept.popleft()
        return ticket

    def stop(self) -> None:
        """End what runs on the device, and wait until it has ended, ``Deadlines.stop`` seconds at most. Frees nothing."""
        with self._lock:
            first = self._state is _State.STARTED
            if first:
                self._note_start()
                self._state, self._stopped_at = _State.STOPPED, time.monotonic()
                if self._communicator.ready and self._communicator.trouble:
                    self.failed_after = self._stopped_at - self._began
        if first:
            self._figures.count("stops")
            self._decided.set()
            _start_or_run("accelerator-stop", self._stop)
        if not self._idle_within(self._deadlines.stop) and first:
            _start_or_run("accelerator-stuck", self._await_end)

    def free(self) -> None:
        """Release it in the background; only after ``stop``, once no peer can use what it holds. Idempotent.

        Where no thread can be had for that it remains as it was, for the next call.
        """
        with self._lock:
            if self._state is not _State.STOPPED:
                return
            self._state = _State.FREEING
        try:
            start_task("accelerator-leak", self._await_free)
        except RuntimeError:
            with self._lock:
                self._state = _State.STOPPED
            return
        with contextlib.suppress(RuntimeError):  # it is leaked, then
            start_task("accelerator-free", self._free)

    # --- in the background ---------------------------------------------------------------------------------------------

    def _await_start(self) -> None:
        """Note what came of the start, and give up one that hangs."""
        in_time = self._decided.wait(self._deadlines.start)
        with self._lock:
            if self._state is not _State.STARTED:
                return
            if not in_time:
                self._given_up = f"it was not ready within {self._deadlines.start:g} s"
            self._note_start()
        if trouble := self.trouble:
            self._figures.count("troubles")
            self._unavailable(trouble, self._communicator.passing)
        if not in_time:
            self.stop()

    def _note_start(self) -> None:
        """Note how long the start took, if it is ready; under the lock.

        Whoever stops it does so, too: the thread that waits for the start may run late, and the next one is measured by this.
        """
        if not self._noted and self._communicator.ready and not self.trouble:
            self._noted = True
            self._figures.ready_after(time.monotonic() - self._began)

    def _stop(self) -> None:
        try:
            self._communicator.stop()
        except Exception:  # noqa: BLE001 - whatever the library raises: it is in no state to be freed
            _log.exception("stopping the communicator of epoch %d failed", self.epoch)
            return
        self._stop_returned.set()

    def _idle_within(self, seconds: float) -> bool:
        """Wait until so long after the stop. True once nothing runs on the device."""
        while self._launching or not self._communicator.idle:
            if time.monotonic() > self._stopped_at + seconds:
                return False
            time.sleep(_LOOK)
        return True

    def _await_end(self) -> None:
        if not self._idle_within(self._deadlines.stuck):
            text = "operations of epoch %d do not end on the device, %g s after they were stopped"
            self._fatal(text % (self.epoch, self._deadlines.stuck))

    def _free(self) -> None:
        if not self._stop_returned.wait(self._deadlines.free) or not self._communicator.idle:
            return  # the library is at work in it: it is leaked
        try:
            self._communicator.free()
        except Exception:  # noqa: BLE001 - the same
            _log.exception("freeing the communicator of epoch %d failed", self.epoch)
            return
        self._kept.clear()
        self._freed.set()

    def _await_free(self) -> None:
        freed = self._freed.wait(self._deadlines.free)
        with self._lock:
            self._state = _State.FREED if freed else _State.LEAKED
        self._figures.count("frees" if freed else "leaks")
        if not freed:
            where = "freeing it" if self._stop_returned.is_set() else "stopping it"
            text = "the communicator of epoch %d is leaked: %s did not end within %g s"
            _log.warning(text, self.epoch, where, self._deadlines.free)


def _start_or_run(name: str, task: Callable[[], None]) -> None:
    """Run ``task`` in the background, or here if no thread can be had: what it ends would otherwise never end."""
    try:
        start_task(name, task)
    except RuntimeError:
        task()
