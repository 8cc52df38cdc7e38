"""The threads of a simulated process: greenlets that switch only where a real thread could wait, in virtual time.

A seed decides how long each switch takes, and now and then lets a thread be held up before it takes a lock: so the orders in
which the threads of one process reach its state are searched like those of messages.
"""

from __future__ import annotations

import math
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any, Self, cast

import torch
from greenlet import GreenletExit, getcurrent, greenlet

from consensus.simulation import Host
from ftlib.common.threads import Threads

SWITCH = 2e-5
"""Seconds that it takes at most until a woken thread runs."""

HELD = 0.05
"""How often a thread is held up before it takes a lock."""

HELD_LONG = 0.02
"""How often that takes long, as on a busy machine."""


_here = threading.local()
"""In ``process``: whose code this thread of the operating system runs now."""


def here() -> SimulatedThreads | None:
    """The threads of the simulated process whose code is running; None outside of any."""
    return getattr(_here, "process", None)


class Fibre:
    """One thread."""

    def __init__(self, threads: SimulatedThreads, target: Callable[[], None], name: str) -> None:
        self.name = name
        self.ident: int | None = None
        self.turn = 0
        """Counts its runs: what was meant to wake it earlier is void."""
        self.woken = False
        self.run = greenlet(target)
        self._threads = threads
        self._grad = True

    def __repr__(self) -> str:
        return f"<thread {self.name}{' (ended)' if self.run.dead else ''}>"

    def start(self) -> None:
        """See ``Thread``."""
        self.ident = id(self)
        self._threads.wake(self)

    def join(self, timeout: float | None = None) -> None:
        """See ``Thread``; a simulated process ends as a whole."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Until the end of the block it runs: with a grad mode of its own, as torch has one for each thread."""
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(self._grad)
        try:
            yield
        finally:
            self._grad = torch.is_grad_enabled()
            torch.set_grad_enabled(before)


class SimulatedThreads(Threads):
    """Those of one process. They end with it."""

    def __init__(self, host: Host, rng: Random, broken: Callable[[], str]) -> None:
        """``broken``: the violation that was seen, "" for none. A thread may have swallowed what was raised in it."""
        self.host = host
        self._broken = broken
        self._rng = rng
        self._fibres: list[Fibre] = []
        self._running: Fibre | None = None
        self._backlog: list[Callable[[], None]] = []
        self._holds = 0
        self.locked = 0
        """How many locks the running thread holds: meanwhile no other one runs."""
        self.over = False

    # What the data plane asks for

    def now(self) -> float:
        """This process's clock."""
        return self.host.now

    def thread(self, target: Callable[[], None], name: str) -> Fibre:
        """See ``Threads``."""
        fibre = Fibre(self, target, name)
        self._fibres = [known for known in self._fibres if not known.run.dead]
        self._fibres.append(fibre)
        return fibre

    def current(self) -> Fibre:
        """See ``Threads``."""
        if self.over:
            raise GreenletExit
        assert self._running is not None
        return self._running

    def condition(self) -> threading.Condition:
        """See ``Threads``."""
        return cast("threading.Condition", _Condition(self))

    def lock(self) -> Any:
        """See ``Threads``."""
        return _Lock(self)

    def turn(self) -> Any:
        """See ``Threads``."""
        return _Turn(self)

    def queue(self) -> queue.SimpleQueue[Any]:
        """See ``Threads``."""
        return cast("queue.SimpleQueue[Any]", _Queue(self))

    def hurry(self) -> None:
        """See ``Threads``: all are at once what they are, in virtual time."""

    def sleep(self, seconds: float) -> None:
        """See ``Threads``."""
        self.park(seconds)

    # What a simulated process asks for

    def park(self, seconds: float | None) -> bool:
        """The running thread waits until it is woken (True), at most ``seconds``."""
        if self.over:
            raise GreenletExit
        fibre = self._running
        assert fibre is not None, "only a simulated thread can wait"
        assert not self.locked, "whoever waits holds no lock"
        fibre.woken = False
        if seconds is not None:
            self.host.world.after(max(0.0, seconds), partial(self._switch, fibre, fibre.turn, woken=False))
        try:
            fibre.run.parent.switch()
        except GreenletExit:
            self.over = True  # the process was killed, or the whole world is forgotten
            raise
        return fibre.woken

    def wake(self, fibre: Fibre) -> None:
        """Let a thread that waits go on soon."""
        if not self.over:
            self.host.world.after(self._rng.random() * SWITCH, partial(self._switch, fibre, fibre.turn, woken=True))

    def happens(self, action: Callable[[], None]) -> None:
        """Something happens inside this process, or will when it is resumed."""
        if self.over:
            return
        if self.host.paused or self._holds:
            self._backlog.append(action)
        else:
            action()

    def hold(self, seconds: float) -> None:
        """None of these threads runs for so long, though the agent, a process of its own, does."""
        self._holds += 1
        self.host.world.after(seconds, self._release)

    def _release(self) -> None:
        self._holds -= 1
        if not self._holds and not self.host.paused:
            self.resumed()

    def resumed(self) -> None:
        """It goes on; what it missed comes in the old order."""
        backlog, self._backlog = self._backlog, []
        delay = 0.0
        for action in backlog:
            delay += self._rng.random() * SWITCH
            self.host.world.after(delay, partial(self.happens, action))

    def held_up(self) -> None:
        """The running thread may be held up here; never while it holds a lock."""
        if self._running is None or self.locked or self.over or self._rng.random() >= HELD:
            return
        self.sleep(self._rng.uniform(0.0, 0.05) if self._rng.random() < HELD_LONG else self._rng.uniform(0.0, 0.001))

    def end(self) -> None:
        """The process is gone, in whatever its threads were doing."""
        self.over = True
        self._backlog.clear()
        with self.entered():
            for fibre in self._fibres:
                if not fibre.run.dead and fibre.run is not getcurrent():
                    fibre.run.parent = getcurrent()
                    with fibre.running():
                        fibre.run.throw(GreenletExit)
        self._fibres.clear()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Until the end of the block, it is code of this process that runs: see ``here``."""
        before, _here.process = here(), self
        try:
            yield
        finally:
            _here.process = before

    def _switch(self, fibre: Fibre, turn: int, *, woken: bool) -> None:
        if self.over or fibre.turn != turn or fibre.run.dead:
            return
        if self.host.paused or self._holds:
            self._backlog.append(partial(self._switch, fibre, turn, woken=woken))
            return
        fibre.turn += 1
        fibre.woken = woken
        fibre.run.parent = getcurrent()
        assert self._running is None
        self._running = fibre
        try:
            with self.entered(), fibre.running():
                fibre.run.switch()
        finally:
            self._running = None
        violation = self._broken()
        if violation:
            raise AssertionError(violation)


class _Condition:
    """Of ``threading.Condition`` what the data plane uses. No thread is switched while another holds it."""

    def __init__(self, threads: SimulatedThreads) -> None:
        self._threads = threads
        self._depth = 0
        self._waiting: list[Fibre] = []

    def __enter__(self) -> Self:
        if not self._depth:
            self._threads.held_up()
        self._depth += 1
        self._threads.locked += 1
        return self

    def __exit__(self, *_error: object) -> None:
        self._depth -= 1
        self._threads.locked -= 1

    def wait(self, timeout: float | None = None) -> bool:
        fibre = self._threads.current()
        depth, self._depth = self._depth, 0
        self._threads.locked -= depth
        self._waiting.append(fibre)
        try:
            return self._threads.park(timeout)
        finally:
            self._depth = depth
            self._threads.locked += depth
            if fibre in self._waiting:
                self._waiting.remove(fibre)

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        end = None if timeout is None else self._threads.now() + timeout
        while not predicate():
            left = None if end is None else end - self._threads.now()
            if left is not None and left <= 0:
                return predicate()
            self.wait(left)
        return True

    def notify_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for fibre in waiting:
            self._threads.wake(fibre)

    notify = notify_all


class _Queue:
    """Of ``queue.SimpleQueue`` the same."""

    def __init__(self, threads: SimulatedThreads) -> None:
        self._threads = threads
        self._items: deque[Any] = deque()
        self._waiting: Fibre | None = None

    def put(self, item: object) -> None:
        self._items.append(item)
        if self._waiting is not None:
            self._threads.wake(self._waiting)

    def get(self) -> object:
        while not self._items:
            self._waiting = self._threads.current()
            self._threads.park(None)
        self._waiting = None
        return self._items.popleft()


class _Lock:
    """Of ``threading.RLock`` the same. Who does not have to wait is not held up either."""

    def __init__(self, threads: SimulatedThreads) -> None:
        self._threads = threads
        self._owner: Fibre | None = None
        self._depth = 0
        self._waiting: list[Fibre] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        threads = self._threads
        fibre, end = threads.current(), math.inf if timeout < 0 else threads.now() + timeout
        while self._owner not in (None, fibre):
            left = end - threads.now()
            if not blocking or left <= 0:
                return False
            self._waiting.append(fibre)
            try:
                threads.park(None if left == math.inf else left)
            finally:
                if fibre in self._waiting:
                    self._waiting.remove(fibre)
        self._owner = fibre
        self._depth += 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if self._depth:
            return
        self._owner = None
        waiting, self._waiting = self._waiting, []
        for fibre in waiting:
            self._threads.wake(fibre)


class _Turn(_Lock):
    """Of ``threading.Lock`` the same."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._depth and self._owner is self._threads.current() and not blocking:
            return False
        assert not (self._depth and self._owner is self._threads.current()), "a thread waits for itself"
        return super().acquire(blocking, timeout)
