"""Why nothing survives the launcher: two processes that outlive each other.

The process that the user starts is only the *guard*. It forks the supervisor, passes signals on, and ends with its exit
code. If one of the two is killed, the other finds every descendant (both adopt orphans, see ``process``) and kills it: data
loaders, daemons, sessions of their own. Only if both are killed in the same instant, nothing remains but the kernel's
own "workers die with their parent".
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable

from ...common.processes import describe_exit
from ...lifecycle.drain import TWIN
from .process import adopt_orphans, kill_descendants, shell_code

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that end a run: of a terminal, of a system that ends the launcher, of a batch system ahead of the end."""
_BLOCKED = {*PASSED_ON, signal.SIGCHLD}
_SWEEP = 5.0


def guarded(main: Callable[[int], int], at_guard: Callable[[], None] = lambda: None) -> int:
    """Run ``main(guard_pid)`` in a forked supervisor; returns its result. Call on the main thread of a process without others.

    ``at_guard`` is called at once in this process, which only guards. ``main`` starts with signals blocked: it calls
    ``release_signals`` once its handlers are set, so that no signal is lost.
    """
    adopt_orphans()
    sys.stdout.flush()
    sys.stderr.flush()
    guard = os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    supervisor = os.fork()
    if supervisor == 0:
        _supervise(main, guard)
    try:
        at_guard()
        return _wait(supervisor)
    finally:
        kill_descendants(_SWEEP)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED)


class Twins:
    """Tells one signal that came twice within ``TWIN`` seconds from two.

    Slurm and others signal every process of a job: the supervisor gets the signal from them and, passed on, from the guard.
    """

    def __init__(self) -> None:
        self._number, self._at = 0, float("-inf")

    def again(self, number: int) -> bool:
        """Whether this is the last signal once more."""
        now = time.monotonic()
        if number == self._number and now - self._at < TWIN:
            return True
        self._number, self._at = number, now
        return False


def release_signals() -> None:
    """Let the signals through that ``guarded`` held back."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED)


def on_death_of(pid: int, loop: asyncio.AbstractEventLoop, then: Callable[[], None]) -> Callable[[], None]:
    """Have ``loop`` call ``then`` once when ``pid``, this process's parent, ends. Returns a function that stops watching."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        loop.call_soon(then)
        return lambda: None

    def stop() -> None:
        nonlocal fd
        if fd >= 0:
            loop.remove_reader(fd)
            os.close(fd)
            fd = -1

    def ended() -> None:
        stop()
        then()

    loop.add_reader(fd, ended)
    if os.getppid() != pid:  # the parent had ended, and the pid may be another process's by now
        loop.call_soon(ended)
    return stop


def _supervise(main: Callable[[int], int], guard: int) -> None:
    """The forked child's whole life."""
    code = 1
    try:
        os.setsid()  # the terminal's Ctrl-C goes to the guard alone, which passes it on: once
        adopt_orphans()
        code = main(guard)
    except BaseException:  # noqa: BLE001 - nothing may get past this frame, which is a copy of the parent's
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        os._exit(code)


def _wait(supervisor: int) -> int:
    """Wait for the end of the supervisor, which has deadlines of its own for everything but the workers' work."""
    twins = Twins()
    while True:
        number = signal.sigwait(_BLOCKED)
        if number in PASSED_ON:
            if not twins.again(number):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(supervisor, number)
            continue
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return 1
            if pid == 0:
                break
            if pid == supervisor:
                code = os.waitstatus_to_exitcode(status)
                if code < 0:
                    sys.stderr.write(f"ftlib: error: the supervisor was {describe_exit(code)}; its workers are killed too\n")
                return shell_code(code)
