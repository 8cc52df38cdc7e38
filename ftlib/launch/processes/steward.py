"""Owns one host's workers: all children of this process, until each is reaped. It decides nothing: it reports every end.

An end with 0 is reported after all ends that came before it, and after those of workers that are dying by then. A killed worker
may take seconds to free its memory, and what is left of it to end: a run in which others outlived it is no failure. One that
does not end within ``REAP_TIMEOUT`` of that is reported as killed: it is stuck in the kernel. If it ends after all, nobody
hears of it.

The owner tells it what was started; SIGCHLD tells it what ended. Nobody else in this process may reap.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import time
from collections.abc import Callable, Iterator

from .process import Fate, kill_descendants
from .remains import Remains
from .worker import REAP_TIMEOUT, Worker

STACKS = 0.15
"""Seconds that a hung worker has to write its stacks before it is killed; it needs some milliseconds."""


class Steward:
    """The workers that are not reaped yet. Use on the loop of the main thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ended: Callable[[Worker, int], None]) -> None:
        """``ended``: called with each worker and its return code, once it was reaped and nothing holds its port any more, or
        once it is ``stuck``.
        """
        self._loop = loop
        self._ended = ended
        self._workers: dict[int, Worker] = {}  # by pid
        self._unreported: dict[Worker, int | None] = {}  # of ends, in their order: its code, or None while something is left
        self._past: dict[int, float] = {}  # by pid of an earlier worker that no present one has: when it was gone
        loop.add_signal_handler(signal.SIGCHLD, self._reap)

    def __iter__(self) -> Iterator[Worker]:
        """Those not reaped yet, in the order of their starts."""
        return iter(list(self._workers.values()))

    def take(self, worker: Worker) -> None:
        """Own a worker that was just started."""
        self._workers[worker.pid] = worker
        self._past.pop(worker.pid, None)
        worker.stuck.add_done_callback(lambda _: self._report(worker, -signal.SIGKILL))

    def of_pid(self, pid: int) -> Worker | None:
        """The worker with this pid, unless it was reaped."""
        return self._workers.get(pid)

    def fate_of(self, pid: int) -> tuple[Fate, float]:
        """What became of a pid that no worker has now, and for how many seconds it has been gone."""
        gone_at = self._past.get(pid)
        return (Fate.UNKNOWN, 0.0) if gone_at is None else (Fate.GONE, time.monotonic() - gone_at)

    async def fate_within(self, worker: Worker, seconds: float = REAP_TIMEOUT) -> tuple[Fate, float]:
        """Wait until a killed worker was reaped, within a deadline."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(worker.gone), seconds)
        return (Fate.REAPED, time.monotonic() - worker.gone_at) if worker.gone.done() else (Fate.STUCK, 0.0)

    async def end_hung(self, worker: Worker, cause: str) -> tuple[Fate, float]:
        """Kill a worker that does not answer, and wait until it was reaped; first it writes its stacks to its stderr.

        One that is stopped could write none, and is killed at once.
        """
        if not worker.ended and not worker.stopped and worker.cause in ("", cause):
            if not worker.cause:
                worker.abort(cause)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(worker.gone), STACKS)
        if not worker.gone.done():
            worker.kill("" if worker.ended else cause)
        return await self.fate_within(worker)

    def kill_all(self, cause: str = "") -> None:
        """SIGKILL all workers and their groups."""
        for worker in self:
            worker.kill(cause)

    def give_up(self) -> None:
        """All were killed long ago: take those that are left for stuck in the kernel."""
        for worker in self:
            worker.give_up()

    def close(self, *, sweep: bool) -> set[int]:
        """Kill all workers and stop reaping. With ``sweep`` also end every descendant; returns those stuck in the kernel."""
        self.kill_all()
        for worker in self:
            worker.forget()
        self._loop.remove_signal_handler(signal.SIGCHLD)  # from here on kill_descendants reaps
        return kill_descendants(REAP_TIMEOUT) if sweep else set()

    def _reap(self) -> None:
        """SIGCHLD: one signal may stand for many exits, of workers and of orphans that this process adopted."""
        while True:
            try:
                zombie = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if zombie is None:
                return
            worker = self._workers.pop(zombie.si_pid, None)
            if worker is None:
                os.waitpid(zombie.si_pid, 0)
                continue
            code = worker.reap()
            self._past[worker.pid] = worker.gone_at
            if worker.stuck.done():
                continue  # its end was reported
            if code == 0:
                self._await_dying()
            self._unreported.setdefault(worker)
            Remains(self._loop, worker.pid, functools.partial(self._report, worker, code), REAP_TIMEOUT)

    def _await_dying(self) -> None:
        """Those that are dying now were outlived: their ends come first, if they come before long."""
        for other in self:
            if other.dying and not other.stuck.done():
                self._unreported[other] = None
                other.expect_end(REAP_TIMEOUT)

    def _report(self, worker: Worker, code: int) -> None:
        """Nothing is left of a worker, or it is stuck: report its end, and those that waited for that."""
        self._unreported[worker] = code
        whole = True
        for each, its in list(self._unreported.items()):
            if its is None:
                whole = False
            elif its or whole:
                del self._unreported[each]
                self._ended(each, its)
