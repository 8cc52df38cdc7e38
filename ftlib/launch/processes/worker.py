"""One child: its process, its two pipes, the last lines it wrote. ``spawn`` starts it; it is over when ``gone`` is set.

The child is a session of its own: Ctrl-C reaches only the launcher, which drains the workers. A dead worker's children can be
killed with it (else they would keep its sockets open, and its peers would take it for alive).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, Self

from ...common.processes import die_with_parent
from .output import LineSplitter

REAP_TIMEOUT = 5.0
"""Seconds that a SIGKILLed process may take to end: if it takes longer, it is stuck in the kernel, and not waited for."""
STUCK_TIMEOUT = 30.0
"""Seconds that one may take in whose place another one is to be started, which is given up then. Large memory takes long."""
TAIL = 40
"""How many of the last stderr lines are kept for the report."""

_CHUNK = 1 << 16
_DRAIN = 4 << 20  # a pipe holds at most 1 MiB unless someone still writes to it
_PROGRESS_EVERY = 1.0
_FLAGS, _PENDING = 5, 27
"""Fields of ``/proc/PID/stat`` behind the state (proc(5) counts the name, the state and the number before it: 9 and 31)."""
_PF_EXITING = 0x4
_SIGKILL = 1 << 8


class Sink(Protocol):
    """Takes a worker's lines."""

    @property
    def full(self) -> bool:
        """Whether reading should pause."""
        ...

    def lines(self, worker: Worker, lines: Sequence[bytes], *, error: bool) -> None:
        """Whole lines of stdout, or with ``error`` of stderr."""

    def progress(self, worker: Worker, line: bytes, *, error: bool) -> None:
        """An unfinished line of a progress bar, at most one a second."""

    def pause(self, stream: Paused) -> None:
        """``stream`` stopped reading because of ``full``: call its ``resume`` when there is room."""


class Paused(Protocol):
    """Something that stopped reading."""

    def resume(self) -> None:
        """Read again, since there is room again."""


class Worker:
    """One lifetime of one worker, a child of this process. Use from the loop's thread only."""

    def __init__(
        self, index: int, name: str, pid: int, out: int, err: int, sink: Sink, process: subprocess.Popen[bytes] | None = None
    ) -> None:
        """``out``, ``err``: the reading ends of its pipes, closed here. ``process``: who else believes to own the child."""
        loop = asyncio.get_running_loop()
        self.index = index
        """The slot."""
        self.name = name
        """What logs call it."""
        self.pid = pid
        self.born = time.monotonic()
        self.cause = ""
        """Why the launcher killed it, if it did."""
        self.gone_at = math.inf
        """Time (CLOCK_MONOTONIC) from which on its processes did nothing: its group was sent SIGKILL, or it was reaped."""
        self.sent_away = False
        """Whether the launcher ended the worker because the run no longer needed it: its end is then no failure."""
        self.gone: asyncio.Future[int] = loop.create_future()
        """Its return code as ``subprocess`` gives it, once it was reaped."""
        self.stuck: asyncio.Future[None] = loop.create_future()
        """Done once it is taken for stuck in the kernel: it was killed, or died, and was not reaped for too long."""
        self.tail: deque[bytes] = deque(maxlen=TAIL)
        """The last lines of its stderr."""
        self._loop = loop
        self._limit: asyncio.TimerHandle | None = None
        self._process = process
        self._streams = [Stream(self, out, loop, sink, error=False), Stream(self, err, loop, sink, error=True)]

    @classmethod
    def spawn(
        cls, index: int, name: str, command: Sequence[str], env: Mapping[str, str], sink: Sink, fds: Sequence[int] = ()
    ) -> Worker:
        """Start the child, with ``fds`` open. Call on the main thread: the kernel ties its life to the thread that forks."""
        parent = os.getpid()
        with Pipes() as pipes:
            process = subprocess.Popen(  # noqa: S603 - running the user's command is the purpose
                list(command),
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=pipes.out[1],
                stderr=pipes.err[1],
                pass_fds=fds,
                start_new_session=True,
                preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509 - two system calls, no lock
            )
            return cls(index, name, process.pid, *pipes.taken(), sink, process)

    def signal(self, number: signal.Signals) -> None:
        """Signal the worker itself, unless it has ended."""
        if not self.gone.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    @property
    def ended(self) -> bool:
        """Whether it has ended, though it may not be reaped yet."""
        return self.gone.done() or os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    @property
    def dying(self) -> bool:
        """Whether it was killed, or exits, though it may not have ended yet: the kernel frees its memory first."""
        state, *fields = self._stat()
        return state in (b"Z", b"X") or bool(int(fields[_FLAGS]) & _PF_EXITING or int(fields[_PENDING]) & _SIGKILL)

    @property
    def stopped(self) -> bool:
        """Whether it does nothing because of SIGSTOP, or a debugger."""
        return self._stat()[0] in (b"T", b"t")

    def _stat(self) -> list[bytes]:
        """Its state, and what else the kernel says of its main thread; state X and nothing else if it was reaped."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_bytes()
        except OSError:
            return [b"X"]
        return stat[stat.rindex(b")") + 2 :].split()

    def send_away(self, cause: str = "") -> None:
        """Send SIGTERM, because the run no longer needs the worker. ``cause``: for the report."""
        self.sent_away = True
        self.cause = self.cause or cause
        self.signal(signal.SIGTERM)

    def abort(self, cause: str) -> None:
        """SIGABRT: the worker ends, and faulthandler writes the stacks of its threads first."""
        self.cause = self.cause or cause
        self.signal(signal.SIGABRT)

    def dismiss(self, cause: str = "") -> None:
        """SIGKILL the worker, because the run no longer needs it."""
        self.sent_away = True
        self.kill(cause)

    def kill(self, cause: str = "") -> None:
        """SIGKILL the worker and its children. ``cause``: for the report."""
        self.cause = self.cause or cause
        if not self.gone.done():
            self._kill_group()

    def expect_end(self, within: float) -> None:
        """It was killed, or is dying: take it for stuck if it is not reaped ``within`` seconds. The earliest limit counts."""
        at = self._loop.time() + within
        if self.gone.done() or (self._limit is not None and self._limit.when() <= at):
            return
        self.forget()
        self._limit = self._loop.call_at(at, self.give_up)

    def give_up(self) -> None:
        """Take it for stuck in the kernel, unless it has ended."""
        if not (self.stuck.done() or self.ended):
            why = f"process {self.pid} is stuck in the kernel"
            self.cause = f"{self.cause}; {why}" if self.cause else why
            self._finish_streams()
            self.stuck.set_result(None)

    def forget(self) -> None:
        """Do not ask any more whether it ends."""
        if self._limit is not None:
            self._limit.cancel()

    def reap(self) -> int:
        """End the worker's children, take its status and its last output. Called once, when the process is a zombie."""
        self._kill_group()  # before the reaping: until then no other process can have this pid
        _, status = os.waitpid(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if self._process is not None:
            self._process.returncode = code  # subprocess must not wait for it again
        self.gone_at = min(self.gone_at, time.monotonic())
        self.forget()
        self._finish_streams()
        self.gone.set_result(code)
        return code

    def _finish_streams(self) -> None:
        for stream in self._streams:
            stream.finish()

    def _kill_group(self) -> None:
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except PermissionError:
            return
        except ProcessLookupError:
            pass
        self.expect_end(REAP_TIMEOUT if self.sent_away else STUCK_TIMEOUT)
        self.gone_at = min(self.gone_at, time.monotonic())

    def __repr__(self) -> str:
        state = f"gone {self.gone.result()}" if self.gone.done() else "running"
        return f"<Worker {self.index} pid {self.pid} {state}>"


class Pipes:
    """The pipes of a worker's stdout and stderr: a context that closes what it still has, as reading end and writing end."""

    def __init__(self) -> None:
        self.out = os.pipe()
        self.err = os.pipe()
        self._left = {*self.out, *self.err}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._left:
            os.close(fd)

    def taken(self) -> tuple[int, int]:
        """The reading ends, which are the caller's to close from now on."""
        self._left -= {self.out[0], self.err[0]}
        return self.out[0], self.err[0]


class Stream:
    """The reading end of one pipe, which it closes at the end."""

    def __init__(self, worker: Worker, fd: int, loop: asyncio.AbstractEventLoop, sink: Sink, *, error: bool) -> None:
        self._worker = worker
        self._fd = fd
        self._loop = loop
        self._sink = sink
        self._error = error
        self._splitter = LineSplitter()
        self._open = True
        self._progress_at = 0.0
        os.set_blocking(fd, False)
        loop.add_reader(fd, self._readable)

    def resume(self) -> None:
        """Read again, since there is room again."""
        if self._open:
            self._loop.add_reader(self._fd, self._readable)

    def finish(self) -> None:
        """Read what the dead worker left in the pipe, and no more: a daemon that it started may hold the other end."""
        taken = 0
        while self._open and taken < _DRAIN and (size := self._read()):
            taken += size
        self._end()

    def _readable(self) -> None:
        if self._sink.full:
            self._loop.remove_reader(self._fd)
            self._sink.pause(self)
        else:
            self._read()

    def _read(self) -> int:
        """Pass one chunk on; returns its size, 0 if there was none."""
        try:
            chunk = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            return 0
        if not chunk:
            self._end()
            return 0
        self._pass_on(self._splitter.feed(chunk))
        if (bar := self._splitter.progress) and time.monotonic() - self._progress_at > _PROGRESS_EVERY:
            self._progress_at = time.monotonic()
            self._sink.progress(self._worker, bar, error=self._error)
        return len(chunk)

    def _end(self) -> None:
        if self._open:
            self._open = False
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._pass_on(self._splitter.finish())

    def _pass_on(self, lines: list[bytes]) -> None:
        if lines:
            if self._error:
                self._worker.tail.extend(lines)
            self._sink.lines(self._worker, lines, error=self._error)
