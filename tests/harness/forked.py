"""New Python interpreters become forks of the process that starts them: what they import is there already.

That saves a worker's agent 0.2 seconds of processor time, and a program that imports torch three. Everything else is what
``subprocess`` makes of it: pipes, descriptors, directory, session. Only /proc still shows the old command and environment.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import gc
import logging
import os
import runpy
import signal
import subprocess
import sys
import threading
import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ftlib.common.processes import opened_cuda

_FLAGS = {"-P", "-S", "-u"}
"""Of the interpreter; they take no value, and mean nothing here."""
_LOCKS = (type(threading.Lock()), type(threading.RLock()), threading.Condition)


def prepare() -> None:
    """From now on, in this process and in whatever it forks."""
    import consensus.runtime.host.child
    import consensus.runtime.host.process_host
    import consensus.runtime.host.thread_host

    del consensus
    subprocess.Popen = Forked  # type: ignore[misc]


class Forked(subprocess.Popen):
    """For this interpreter with ``-c``, ``-m`` or a file; whatever else is started is a program as always.

    So is all that a process starts once it uses a GPU, which its forks could not.
    """

    def __init__(
        self,
        args: Any,
        *more: Any,
        env: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
        preexec_fn: Callable[[], Any] | None = None,
        **options: Any,
    ) -> None:
        if isinstance(args, (list, tuple)) and args[0] == sys.executable and not opened_cuda():
            # What runs between fork and exec never returns: there is no exec.
            preexec_fn = functools.partial(_begin, list(args[1:]), env, pass_fds, preexec_fn)
            sys.stdout.flush()
            sys.stderr.flush()
        super().__init__(args, *more, env=env, pass_fds=pass_fds, preexec_fn=preexec_fn, **options)


def _begin(
    arguments: list[str], environment: Mapping[str, str] | None, kept: Iterable[int], first: Callable[[], Any] | None
) -> NoReturn:
    """The child's whole life."""
    try:
        if first is not None:
            first()
        _forget(kept)
        program(arguments, environment)
    finally:
        os._exit(1)


def _forget(kept: Iterable[int]) -> None:
    """What a new program would not have of its parent's: descriptors, handlers of signals and of log records."""
    # First of all, while the parent waits for the end of ``exec``, which is when the pipe to it is closed: a signal that comes
    # after that must find what a new program has.
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)) and number != signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # subprocess gave them their default back, a new interpreter ignores them
        signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    wanted = {0, 1, 2, null, *kept}
    for fd in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        # In place of a close: objects that are left here still close their numbers, which must not be another's by then.
        if fd not in wanted:
            with contextlib.suppress(OSError):
                os.dup2(null, fd, inheritable=False)
    os.close(null)
    _unlock()
    weakref.finalize._registry.clear()  # type: ignore[attr-defined] # a parent's temporary directory is not this one's to remove
    faulthandler.unregister(signal.SIGUSR1)
    for logger in (logging.root, *logging.root.manager.loggerDict.values()):
        if isinstance(logger, logging.Logger):
            logger.handlers.clear()
            logger.filters.clear()
            logger.propagate = True
            logger.setLevel(logging.WARNING if logger is logging.root else logging.NOTSET)


def _unlock() -> None:
    """Locks of modules, which a thread that is not here may have held at the fork."""
    for name in [name for name in sys.modules if name.partition(".")[0] in {"ftlib", "consensus"}]:
        for value in vars(sys.modules[name]).values():
            locks = value.values() if isinstance(value, defaultdict) else [value]
            for lock in locks:
                if isinstance(lock, _LOCKS):
                    lock._at_fork_reinit()


def program(arguments: list[str], environment: Mapping[str, str] | None = None) -> NoReturn:
    """Be the interpreter with these ``arguments``, in a process that was just forked."""
    if environment is not None:
        os.environ.clear()
        os.environ.update(environment)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    if os.environ.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    if os.environ.get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    gc.freeze()
    gc.enable()
    code = 1
    try:
        code = _guarded(functools.partial(_run, arguments))
        threading._shutdown()  # type: ignore[attr-defined] # as the interpreter's end does: executors end, other threads are joined
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        if code < 0:
            signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
    finally:
        # Not through the interpreter's end: it visits every object that was imported, and copies the pages that are shared.
        os._exit(code)


def _guarded(run: Callable[[], None]) -> int:
    """The exit code of a program, as the interpreter makes it of how ``run`` ends; negative: the signal."""
    try:
        run()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        return -signal.SIGINT
    except BaseException:  # noqa: BLE001 - shown, as always
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        return 1
    return 0


def _run(arguments: list[str]) -> None:
    while arguments[0] in _FLAGS:
        arguments = arguments[1:]
    kind, *rest = arguments
    if kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    elif kind == "-m":
        warnings.filterwarnings("ignore", "'.*' found in sys.modules")  # of course it is
        sys.path.insert(0, str(Path.cwd()))
        sys.argv = ["-m", *rest[1:]]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(kind).resolve().parent))
        sys.argv = [kind, *rest]
        runpy.run_path(kind, run_name="__main__")
