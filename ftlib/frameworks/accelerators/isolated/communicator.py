"""A communicator that lives in a child, as the training process sees it.

No event of a device crosses the border: the training process waits for what was enqueued on the buffers before the child is
told of them, and the child waits for its own device before it says that operations have ended. So they have when a ticket
says so, and whatever the caller enqueues afterwards comes after them.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import threading
from collections.abc import Callable, Sequence

import torch

from ftlib.common.device_waits import end_unless
from ftlib.common.devices import Event, device_at
from ftlib.errors import GroupError
from ftlib.frameworks.base import GroupSpec, Operation, OperationKind
from ftlib.frameworks.isolated.records import REDUCTIONS

from ..base import Communicator, Ticket
from .memory import Memory, Span
from .process import CommunicatorProcess, parts
from .records import Facts, Piece

_REAPED = 60.0
"""Seconds that a stop waits for the end of a killed process; somebody else gives up earlier."""


class IsolatedTicket(Ticket):
    """Ends when the child has said so, or is gone; and then, if something is to be enqueued after that, with its events."""

    def __init__(
        self,
        count: int,
        finish: Callable[[], list[Event]] | None,
        ended: Callable[[str], None],
        trouble: Callable[[], str],
    ) -> None:
        """``count``: parts of the launch. ``finish``: enqueues the rest.

        ``ended``: called with the error, if any, of a part that has. ``trouble``: that of the communicator.
        """
        self._lock = threading.Lock()
        # Guarded by it:
        self._left = count
        self._finish = finish
        self._events: list[Event] = []
        self._error = ""
        self._ended, self._trouble = ended, trouble

    def query(self) -> bool:
        """See ``Ticket``. The first call after the child's word enqueues what comes after the operations."""
        with self._lock:
            if self._left:
                return False
            finish, self._finish = self._finish, None
            if finish is not None and not self.error():
                self._events = finish()
            return all(event.query() for event in self._events)

    def error(self) -> str:
        """See ``Ticket``."""
        return self._error or self._trouble()

    def end(self, error: str) -> None:
        """See ``Launched``."""
        self._ended(error)
        with self._lock:
            self._error = self._error or error
            self._left -= 1


class _State(enum.Enum):
    STARTING = "starting"
    READY = "ready"
    TROUBLED = "troubled"
    STOPPED = "stopped"


class IsolatedCommunicator(Communicator):
    """See ``Communicator``; ``begin`` starts it.

    A child that dies while nothing is under way is found by the next launch, which fails: then all members get a new view, and
    this one another child. Had it said at once that it has no communicator, Gloo would carry everything until the next view.
    """

    def __init__(
        self,
        spec: GroupSpec,
        process: CommunicatorProcess,
        memory: Memory,
        place: Callable[[torch.Tensor], str],
        against: Callable[[], str],
    ) -> None:
        """``process``: a child that has nothing to do yet. ``place``: see ``Accelerator``.

        ``against``: why no communicator of this process must be used; empty if they may.
        """
        self._spec, self._process, self._memory, self._place, self._against = spec, process, memory, place, against
        self._decided: Callable[[], None] = _nothing
        self._worked = False
        """An operation has ended well: what never worked is not to be built again without a pause."""
        self._lock = threading.Lock()
        # Guarded by it:
        self._state = _State.STARTING
        self._why = ""

    def begin(self, facts: Sequence[Facts], decided: Callable[[], None]) -> None:
        """Start to build; return at once."""
        self._decided = decided
        self._process.build(self._spec, facts, self)

    @property
    def ready(self) -> bool:
        """See ``Communicator``."""
        return self._state is _State.READY

    @property
    def trouble(self) -> str:
        """See ``Communicator``."""
        return self._why or self._against()

    @property
    def passing(self) -> bool:
        """See ``Communicator``. The next child may live longer."""
        return self._state is _State.TROUBLED and self._process.gone.is_set()

    @property
    def idle(self) -> bool:
        """See ``Communicator``. Once it is stopped: whether the child is certainly gone, as it may write until then."""
        if self._state is _State.STOPPED:
            return self._process.gone.is_set()
        return not self._process.working

    def launch(self, operations: Sequence[Operation], after: Callable[[], None] | None = None) -> Ticket:
        """See ``Communicator``. Waits for what was enqueued before it."""
        if self._state is not _State.READY:
            raise GroupError(f"the communicator of epoch {self._spec.epoch} is {self._state.value} {self._why}")
        places = sorted({place for operation in operations if (place := self._place(operation.tensor))})
        here = {place: device_at(place).here() for place in places}
        pieces, rows, back = [], [], list[tuple[str, torch.Tensor, torch.Tensor]]()
        for operation in operations:
            row, span = self._shared(operation, back)
            rows.append(row)
            pieces.append((_piece(operation, row, span), span))
        for event in [device_at(place).waited() for place in places]:
            if not end_unless(self._is_stopped, event):
                raise GroupError(f"the communicator of epoch {self._spec.epoch} was stopped")
        finish = functools.partial(_finish, here, back, after) if after is not None or back else None
        ticket = IsolatedTicket(parts(len(pieces)), finish, self._ended, lambda: self._why)
        why = self._process.launch(pieces, rows, ticket)
        if why:
            text = f"{self._process.WORD} {self._process.pid}: {why}"
            self.fail(text)
            raise GroupError(text, (self._spec.rank,) if self._worked else ())
        return ticket

    def stop(self) -> None:
        """See ``Communicator``. SIGKILL, which nothing that hangs there can hold up."""
        with self._lock:
            self._state = _State.STOPPED
        self._process.kill("its communicator was stopped")
        self._process.gone.wait(_REAPED)

    def free(self) -> None:
        """See ``Communicator``. The end of the child has freed everything."""

    # --- see Builder: on the thread that listens -----------------------------------------------------------------------

    def decide(self, trouble: str) -> None:
        """See ``Builder``."""
        with self._lock:
            if self._state is _State.STARTING:
                self._state, self._why = (_State.TROUBLED if trouble else _State.READY), trouble
        self._decided()

    def fail(self, error: str) -> None:
        """See ``Builder``."""
        with self._lock:
            if self._state is not _State.STOPPED:  # a stop is no error
                self._why = self._why or error

    # --- inside --------------------------------------------------------------------------------------------------------

    def _ended(self, error: str) -> None:
        if error:
            self.fail(error)
        else:
            self._worked = True

    def _is_stopped(self) -> bool:
        return self._state is _State.STOPPED

    def _shared(self, operation: Operation, back: list[tuple[str, torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, Span]:
        """Memory that the child has, too, with the data: the operation's own, or else a copy, which goes ``back`` later."""
        tensor = operation.tensor.detach().view(-1)
        span = self._memory.find(tensor)
        if span is not None:
            return tensor, span
        place = self._place(tensor)
        row = self._memory.row(place, tensor.numel(), tensor.dtype)
        _copy(place, row, tensor)
        back.append((place, tensor, row))
        span = self._memory.find(row)
        assert span is not None
        return row, span


def _piece(operation: Operation, row: torch.Tensor, span: Span) -> Piece:
    kind = operation.kind
    if kind is OperationKind.ALLREDUCE and (not operation.op or operation.op not in REDUCTIONS):
        raise GroupError(f"{operation.op!r} is no reduction")
    return Piece(kind, operation.op, row.dtype, operation.peer, span.number, span.offset, row.numel())


def _finish(
    here: dict[str, contextlib.AbstractContextManager[object]],
    back: Sequence[tuple[str, torch.Tensor, torch.Tensor]],
    after: Callable[[], None] | None,
) -> list[Event]:
    """Enqueue, where the launch was made, what comes after the operations."""
    with contextlib.ExitStack() as stack:
        for each in here.values():
            stack.enter_context(each)
        for place, tensor, row in back:
            _copy(place, tensor, row)
        if after is not None:
            after()
        return [device_at(place).record() for place in here]


def _copy(place: str, target: torch.Tensor, source: torch.Tensor) -> None:
    if place:
        device_at(place).enqueue(functools.partial(target.copy_, source), target)
    else:
        target.copy_(source)


def _nothing() -> None:
    """Nobody waits yet."""
