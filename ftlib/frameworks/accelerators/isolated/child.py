"""The process that has a communicator: builds it, and launches operations on memory that it shares with the training process.

Its main thread reads records and never waits for the accelerator, so that it always answers. Launches are made by one thread,
in their order; another one looks for their ends.
"""

from __future__ import annotations

import functools
import math
import queue
import socket
import threading
from collections.abc import Callable
from pkgutil import resolve_name

import torch

from ftlib.common.device_waits import wait_for
from ftlib.errors import ConfigError
from ftlib.frameworks.background import start_task
from ftlib.frameworks.base import GroupSpec, Operation
from ftlib.frameworks.isolated.child import Child, Kind
from ftlib.frameworks.isolated.records import Ended, Packed

from ..base import Accelerator, Communicator, Ticket
from . import cudart
from .arena import Lent, wrap
from .records import (
    Ask,
    Begin,
    Block,
    ChildFacts,
    Decided,
    Facts,
    Launch,
    Record,
    Start,
    Started,
    Told,
    Trouble,
    unpack,
)


class CommunicatorChild(Child):
    """See ``Child``."""

    PROCESS = "ftlib-accel"

    def __init__(self, make: Callable[[], Accelerator], sock: socket.socket) -> None:
        """``make``: the accelerator, which nobody has used in this process yet."""
        super().__init__(sock)
        self._accelerator = make()
        self._device: int | None = None
        """The number of the GPU that it works on; None where it works on none."""
        self._facts: list[Facts] = []
        self._communicator: Communicator | None = None
        self._decided = threading.Event()
        self._launches: queue.SimpleQueue[Launch | Block] = queue.SimpleQueue()
        self._ends: queue.SimpleQueue[tuple[int, Ticket, list[torch.Tensor]]] = queue.SimpleQueue()
        """With the memory of each, although the training process holds it, too."""
        self._cudart: cudart.Cudart | None = None

    def unpack(self, data: bytes) -> Record:
        """See ``Child``."""
        return unpack(data)

    def carry_out(self, record: Packed) -> None:
        """See ``Child``."""
        match record:
            case Start(host, place):
                kind, _, index = place.partition(":")
                self._device = int(index or 0) if kind == "cuda" else None
                start_task("start", functools.partial(self._start, host))
            case Ask(spec):
                self.tell(self._answer(spec))
            case Told(facts):
                self._facts += facts
            case Begin(spec):
                self._begin(spec)
            case Launch() | Block():
                self._launches.put(record)
            case _:
                raise ValueError(f"{record} is no order")

    def _use_device(self) -> None:
        """Make it this thread's current one."""
        if self._device is not None:
            torch.cuda.set_device(self._device)

    def _start(self, host: str) -> None:
        outcome = Started()
        try:
            self._use_device()
            self._accelerator.start(host)
        except Exception as error:  # noqa: BLE001 - whatever it is: there is no accelerator
            outcome = Started(str(error) or repr(error), isinstance(error, ConfigError))
        self.tell(outcome)

    def _answer(self, spec: GroupSpec) -> ChildFacts:
        try:
            self._use_device()
            return ChildFacts(self._accelerator.facts(spec))
        except Exception as error:  # noqa: BLE001 - the same
            return ChildFacts({}, str(error) or repr(error))

    def _begin(self, spec: GroupSpec) -> None:
        if self._communicator is not None or len(self._facts) != spec.size:
            raise ValueError(f"a second communicator, or {len(self._facts)} ranks instead of {spec.size}")
        try:
            self._communicator = self._accelerator.begin(spec, self._facts, self._decided.set)
        except Exception as error:  # noqa: BLE001 - the same
            self.tell(Decided(str(error) or repr(error)))
            return
        start_task("decided", functools.partial(self._decide, self._communicator))
        start_task("launch", functools.partial(self._launch_all, self._communicator))
        start_task("watch", self._watch)

    def _decide(self, communicator: Communicator) -> None:
        self._decided.wait()
        self.tell(Decided("" if communicator.ready else communicator.trouble or "it is not ready"))

    # --- the thread that launches --------------------------------------------------------------------------------------

    def _launch_all(self, communicator: Communicator) -> None:
        self._use_device()
        while True:
            order = self._launches.get()
            try:
                if isinstance(order, Block):
                    self._open(order)
                else:
                    self._launch(communicator, order)
            except Exception as error:  # noqa: BLE001 - whatever it is: perhaps something was launched, so nothing has ended
                self.tell(Trouble(str(error) or repr(error)))

    def _open(self, block: Block) -> None:
        if self._cudart is None:
            self._cudart = cudart.load()
        address = self._cudart.open(block.device, block.handle)
        self.share(block.number, wrap(Lent(address, block.nbytes), block.device))

    def _launch(self, communicator: Communicator, launch: Launch) -> None:
        tensors = [self.row(piece.segment, piece.offset, piece.count, piece.dtype) for piece in launch.pieces]
        operations = [
            Operation(piece.kind, tensor, piece.reduction, piece.peer)
            for piece, tensor in zip(launch.pieces, tensors, strict=True)
        ]
        self._ends.put((launch.number, communicator.launch(operations), tensors))

    # --- the thread that looks for ends --------------------------------------------------------------------------------

    def _watch(self) -> None:
        self._use_device()
        while True:
            number, ticket, tensors = self._ends.get()
            try:
                self.tell(Ended(number, self._await_end(ticket)))
            except Exception as error:  # noqa: BLE001 - the device's own error: whether they have ended is not known
                self.tell(Trouble(str(error) or repr(error)))
            del ticket, tensors

    def _await_end(self, ticket: Ticket) -> str:
        """Wait until the operations have ended; their error. One that is known before is told at once."""
        told = ""

        def look() -> bool:
            nonlocal told
            if not told and (told := ticket.error()):
                self.tell(Trouble(told))
            return False

        wait_for(ticket, math.inf, look)
        return ticket.error()


def prepare(accelerator: str) -> Kind:
    """What the nursery forks. ``accelerator``: ``module:callable`` that makes one."""
    return functools.partial(CommunicatorChild, resolve_name(accelerator))
