"""Why nothing survives the launcher: three processes that outlive each other.

The process that the user starts is only the *guard*. It forks the *keeper*, and the keeper the supervisor. Both pass signals
on, and end with its exit code. Whichever of the three is killed, those that are left find every descendant (all of them adopt
orphans, see ``process``) and kill it: data loaders, daemons, sessions of their own. The keeper has a session and a name of its
own, so what ends guard and supervisor in the same instant, as ``pkill -f`` does, does not end it. Only if all three are killed
at once, nothing remains but the kernel's own "workers die with their parent".
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
from dataclasses import dataclass
from typing import NoReturn

from ...common.processes import TWIN, describe_exit, rename_process
from .process import adopt_orphans, kill_descendants, shell_code

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that end a run: of a terminal, of a system that ends the launcher, of a batch system ahead of the end."""
_SWEEP = 5.0


def obeyed_signals() -> tuple[signal.Signals, ...]:
    """Those of ``PASSED_ON`` that end this run: all, but for a hang-up that ``nohup`` has it ignore."""
    # A blocked signal is queued even if it is ignored, and a handler would replace what nohup has set.
    deaf = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return tuple(number for number in PASSED_ON if not (deaf and number == signal.SIGHUP))


def _blocked() -> set[signal.Signals]:
    return {*obeyed_signals(), signal.SIGCHLD}


@dataclass(frozen=True, slots=True)
class Guards:
    """Guard and keeper, as the supervisor knows them."""

    pidfds: tuple[int, ...]
    """They become readable when that process ends."""

    def on_death(self, loop: asyncio.AbstractEventLoop, then: Callable[[], None]) -> Callable[[], None]:
        """Have ``loop`` call ``then`` once, when one of them has ended. Returns a function that stops watching."""

        def stop() -> None:
            for fd in self.pidfds:
                loop.remove_reader(fd)

        def ended() -> None:
            stop()
            then()

        for fd in self.pidfds:
            loop.add_reader(fd, ended)
        return stop


def guarded(main: Callable[[Guards], int], at_guard: Callable[[], None] = lambda: None) -> int:
    """Run ``main`` in a forked supervisor; returns its result. Call on the main thread of a process without others.

    ``at_guard`` is called at once in the processes that only guard. ``main`` starts with signals blocked: it calls
    ``release_signals`` once its handlers are set, so that no signal is lost.
    """
    adopt_orphans()
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where whoever starts this has it ignored, no child's end is told
    signal.pthread_sigmask(signal.SIG_BLOCK, _blocked())
    guard = os.pidfd_open(os.getpid())
    keeper = os.fork()
    if keeper == 0:
        _end_after(lambda: _keep(main, at_guard, guard))
    try:
        os.close(guard)
        at_guard()
        code = _wait(keeper)
    finally:
        kill_descendants(_SWEEP)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _blocked())
    _say_if_killed("keeper", code)
    return shell_code(code)


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
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _blocked())


def _end_after(live: Callable[[], int]) -> NoReturn:
    """A forked child's whole life."""
    code = 1
    try:
        os.setsid()  # the terminal's Ctrl-C goes to the guard alone, which passes it on: once
        adopt_orphans()
        code = live()
    except BaseException:  # noqa: BLE001 - nothing may get past this frame, which is a copy of the parent's
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        os._exit(code)


def _keep(main: Callable[[Guards], int], at_guard: Callable[[], None], guard: int) -> int:
    """Be the keeper: start the supervisor, wait for its end, and end what it left."""
    keeper = os.pidfd_open(os.getpid())
    supervisor = os.fork()
    if supervisor == 0:
        _end_after(lambda: main(Guards((guard, keeper))))
    try:
        rename_process("ftlib-keeper")
        at_guard()
        code = _wait(supervisor)
    finally:
        kill_descendants(_SWEEP)
    _say_if_killed("supervisor", code)
    return shell_code(code)


def _wait(child: int) -> int:
    """Pass signals on until the child ends: it has deadlines of its own for everything but the workers' work."""
    twins, awaited = Twins(), _blocked()
    while True:
        number = signal.sigwait(awaited)
        if number != signal.SIGCHLD:
            if not twins.again(number):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, number)
            continue
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return 1
            if pid == 0:
                break
            if pid == child:
                return os.waitstatus_to_exitcode(status)


def _say_if_killed(name: str, code: int) -> None:
    """Last of all: whoever reads stderr may have gone, or read nothing any more."""
    if code < 0:
        with contextlib.suppress(OSError):
            sys.stderr.write(f"ftlib: error: the {name} was {describe_exit(code)}; its workers are killed too\n")
