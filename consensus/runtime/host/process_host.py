"""An agent in a process of its own: it goes on answering while the training process computes, swaps or keeps the
interpreter's lock, and dies with that process.

Each learns of the other's death by the end of their socket pair; the agent learns of it sooner by a lock that the training
process holds while it lives (``life_lock``).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from ...errors import ConsensusError
from ...logs import CarefulLogger
from .host import RUN, Host
from .import_path import import_path
from .life_lock import LifeLock
from .progress_cell import ProgressCell
from .signals import held_back

_ROOT = str(Path(__file__).resolve().parents[3])
_PATH = "FTLIB_AGENT_PATH"
_COMMAND = (
    f"import os, sys; os.environ['PYTHONPATH'] = path = os.environ.pop('{_PATH}'); sys.path += path.split(os.pathsep); "
    f"import gc; gc.disable(); {RUN}"
)
"""Python's own modules come first: a file of the program's with the name of one, which the program itself does not import, must
not run in the agent. Imported objects stay: garbage collections during the imports would take a tenth of their time."""
_WITHOUT_TLS = "import sys; sys.modules['ssl'] = None; "
"""``asyncio`` and ``aiohttp`` then do without ``ssl``. It takes long to import, and with it ``aiohttp`` reads all certificates.
"""

_REAP_TIMEOUT = 1.0
"""Seconds for a killed process to end."""

_LOG = CarefulLogger()


class ProcessHost(Host):
    """See ``Host``."""

    _place = "process"

    def __init__(self, *, tls: bool = True) -> None:
        """Starts nothing. ``tls``: whether the agent may need TLS; agents use none among themselves, but stores may."""
        cell, self._cell_fd = ProgressCell.shared()
        super().__init__(cell)
        self._command = _COMMAND if tls else _WITHOUT_TLS + _COMMAND
        self._life = LifeLock()
        self._process: subprocess.Popen[bytes] | None = None

    def __del__(self) -> None:
        """Close the descriptor that only a start would have closed."""
        self._close_cell_fd()

    @property
    def pid(self) -> int:
        """The pid of the agent's process; 0 before the start."""
        return 0 if self._process is None else self._process.pid

    def _launch(self, name: str, pipe: socket.socket, handoff: socket.socket) -> None:
        """Start the process, which begins with its imports."""
        path = os.pathsep.join([_ROOT, *import_path()])
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        life = self._life.hold(f"{name}-life")
        descriptors = (pipe.fileno(), handoff.fileno(), self._cell_fd, life)
        with pipe, handoff:
            try:
                with held_back():
                    self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and code
                        [sys.executable, "-P", "-S", "-c", self._command, name, str(os.getpid()), *map(str, descriptors)],
                        env={**environment, _PATH: path},
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        pass_fds=[fd for fd in descriptors if fd >= 0],
                    )
            except OSError as error:
                raise ConsensusError(
                    f"the agent's process could not be started ({sys.executable!r}: {error.strerror}); "
                    "agent='thread' needs none"
                ) from None
            finally:
                if life >= 0:
                    os.close(life)
        self._close_cell_fd()

    def _exit(self) -> str:
        if self._process is None:
            return "never started"
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "its end of the socket is closed"
        if code < 0:
            return f"killed by {_signal_name(-code)}"
        return f"exit code {code}; its last words are on standard error"

    def _quit(self, *, now: bool) -> None:
        self._life.release()
        if self._process is not None:
            try:
                self._process.wait(0.0 if now else 1.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._reap(self._process)

    def _reap(self, process: subprocess.Popen[bytes]) -> None:
        """Wait a while for the killed process: one in a system call that cannot be interrupted ends when that does."""
        try:
            process.wait(_REAP_TIMEOUT)
        except subprocess.TimeoutExpired:
            _LOG.error("the agent's process %d was killed, and has not ended within %g s: it hangs", process.pid, _REAP_TIMEOUT)

    def _close_cell_fd(self) -> None:
        fd, self._cell_fd = self._cell_fd, -1
        if fd >= 0:
            os.close(fd)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have none
        return f"signal {number}"
