"""An accelerator whose communicators live in children: the child in use, and a spare one that has started already."""

from __future__ import annotations

import contextlib
import functools
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pkgutil import resolve_name

import torch

from consensus import CarefulLogger
from ftlib.errors import ConfigError, GroupError
from ftlib.frameworks.base import GroupSpec
from ftlib.frameworks.isolated.nursery import Nursery
from ftlib.frameworks.isolated.spares import Spares

from ..base import Accelerator, Communicator, NotYetError
from .communicator import IsolatedCommunicator
from .memory import Memory
from .process import CommunicatorProcess

_log = CarefulLogger(__name__)

_ROLE = "ftlib.frameworks.accelerators.isolated.child:prepare"
_START = 90.0
"""Seconds for the first child: torch is imported, and the device used for the first time."""
_SOON = 1.0
"""Seconds that a view waits for a spare child, where another view has just taken the last one."""
_REST = 0.2, 2.0
"""Seconds before another child is waited for where one has ended as it started: at first, and at most."""
_END = 2.0
"""Seconds that ``close`` waits for the ends of children."""


class IsolatedAccelerator(Accelerator):
    """See ``Accelerator``. Everything of the accelerator's is done in a child, but to say which tensors it takes."""

    launches_at_once = False

    def __init__(self, name: str, made_by: str, memory: Memory, current: Callable[[], str] = lambda: "") -> None:
        """``name``: of the accelerator that is made by ``made_by``, ``module:callable``, in each child.

        ``current``: the device that a process is to use, asked for by ``start``; raises if there is none.
        """
        self.name = name
        self._made_by, self._memory, self._current = made_by, memory, current
        self._host = self._device = ""
        self._elsewhere = ""
        """Why no communicator must be used, although they work: tensors are on another device than the one of the children."""
        self._lock = threading.Lock()
        self._spares: Spares[CommunicatorProcess] | None = None
        self._replaced = 0
        """By those that were there before ``_spares``."""
        self._children: list[CommunicatorProcess] = []
        """Those that may live. Guarded by ``_lock``."""

    @property
    def replaced(self) -> int:
        """See ``Framework``."""
        spares = self._spares
        return self._replaced + (0 if spares is None else spares.replaced)

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the processes that this one has started and knows of now."""
        spares = self._spares
        with self._lock:
            return tuple({*(() if spares is None else spares.pids), *(each.pid for each in self._children if each.usable)})

    @functools.cached_property
    def _inner(self) -> Accelerator:
        """The accelerator, in this process: it is asked about tensors, and never started."""
        made = resolve_name(self._made_by)()
        assert isinstance(made, Accelerator)
        return made

    def start(self, host: str) -> None:
        """Start a child, and the accelerator there: that takes seconds. It is the first spare one."""
        device = self._current()
        self._memory.start(device)
        if (host, device) != (self._host, self._device):
            self.close()
        if self._spares is None:
            self._host, self._device = host, device
            ready = functools.partial(CommunicatorProcess.begin_start, host=host, place=device)
            self._spares = Spares(Nursery(_ROLE, self._made_by), self._adopt, ready)
        try:
            self._spare(_START)
        except (ConfigError, GroupError):
            self.close()
            raise

    def facts(self, spec: GroupSpec) -> Mapping[str, str]:
        """See ``Accelerator``. The spare child's: so it is the one that takes part in that view."""
        if self._elsewhere:
            raise GroupError(self._elsewhere)
        began = time.monotonic()
        spare = self._spare(_SOON)
        return spare.facts(spec, max(0.1, _SOON + began - time.monotonic()))

    def begin(self, spec: GroupSpec, facts: Sequence[Mapping[str, str]], decided: Callable[[], None]) -> Communicator:
        """See ``Accelerator``."""
        spares = self._spares
        spare = None if spares is None else spares.await_spare(0.0)
        if spares is None or spare is None or not spare.knows(spec) or not spares.take_this(spare):
            raise NotYetError("the accelerator's process that the other ranks were told of has ended")
        communicator = IsolatedCommunicator(spec, spare, self._memory, self.place, lambda: self._elsewhere)
        communicator.begin(facts, decided)
        return communicator

    def place(self, tensor: torch.Tensor) -> str:
        """See ``Accelerator``. Notes it if the children work on another device."""
        place = self._inner.place(tensor)
        if place and self._device and place != self._device and not self._elsewhere:
            text = f"there are tensors on {place}, but the accelerator was started on {self._device}, the current device then"
            self._elsewhere = f"{text}: call torch.cuda.set_device before FTLib.init, and use one device in a process"
            _log.warning("the %s accelerator is not used: %s; everything goes by Gloo", self.name, self._elsewhere)
        return place

    def takes(self, tensor: torch.Tensor) -> bool:
        """See ``Accelerator``."""
        return self._inner.takes(tensor)

    def allocate_at(self, place: str, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Memory that children share: operations on it copy nothing."""
        return self._memory.row(place, count, dtype)

    def close(self) -> None:
        """See ``Accelerator``. Ends all processes."""
        spares, self._spares = self._spares, None
        if spares is None:
            return
        self._replaced += spares.replaced
        spares.close()
        with self._lock:
            children, self._children = self._children, []
        until = time.monotonic() + _END
        for child in children:
            child.kill("closed")
        if all(child.gone.wait(max(0.0, until - time.monotonic())) for child in children):
            with contextlib.suppress(RuntimeError):  # a device that has failed frees nothing
                self._memory.trim()

    def _spare(self, timeout: float) -> CommunicatorProcess:
        """The spare child, which has started. GroupError or ConfigError if it cannot; NotYetError: there may be one later."""
        until = time.monotonic() + timeout
        spares = self._spares
        spare = None if spares is None else spares.await_spare(timeout)
        if spare is None:
            raise NotYetError(f"no process for the accelerator is there, nor within {timeout:g} s")
        try:
            spare.await_start(max(0.0, until - time.monotonic()))
        except (ConfigError, GroupError):
            if spare.start_failed:
                spare.kill("the accelerator could not be started there")  # perhaps it can be in the next one
            raise
        return spare

    def await_facts(self, seconds: float) -> bool:
        """See ``Accelerator``. A child that ends as it starts, or is taken for hung, is followed by another one."""
        until = time.monotonic() + seconds
        rest, longest = _REST
        while self._spares is not None and (left := until - time.monotonic()) > 0:
            try:
                return bool(self._spare(left))
            except NotYetError:
                time.sleep(min(rest, left))
                rest = min(2.0 * rest, longest)
            except (ConfigError, GroupError):
                return False
        return False

    def _adopt(self, sock: socket.socket, pid: int, pidfd: int, lost: Callable[[str], None]) -> CommunicatorProcess:
        child = CommunicatorProcess(sock, pid, pidfd, lost)
        with self._lock:
            self._children = [each for each in self._children if not each.gone.is_set()]
            self._children.append(child)
        return child
