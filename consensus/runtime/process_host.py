"""An agent in a process of its own: it goes on answering while the training process computes, swaps or keeps the
interpreter's lock, and dies with it.

The two share a socket pair (orders and callbacks), a second one (connections to be answered here), a few bytes of
memory (where the data plane is), and a lock that this process holds while it lives. The end of the first is how each learns of
the other's death; the agent learns of it sooner by the lock.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from ..errors import ConsensusError, StoppedError
from ..interface import Source
from ..progress import Progress
from ..slices import short_slices
from .fork import release_in_children
from .host import Descriptors, Ears, Setup
from .life_lock import LifeLock
from .pipe import Pipe
from .progress_cell import ProgressCell
from .sockets import SocketPair
from .sources import Sources

__all__ = ["ProcessHost"]

_LOG = logging.getLogger("ftlib.consensus")
_ROOT = str(Path(__file__).resolve().parents[2])
_COMMAND = "import gc; gc.disable(); from consensus.runtime.child import main; main()"
"""What is imported stays: looking through it for garbage, again and again, would take a tenth of that time."""
_WITHOUT_TLS = "import sys; sys.modules['ssl'] = None; "
"""``asyncio`` and ``aiohttp`` do without it then. It takes long to import, and ``aiohttp`` reads all certificates with it."""
_REQUEST_LIMIT = 256 * 1024
"""Bytes of a request that the agent hands over: what it takes of a request line (see ``gate``), and more."""


class ProcessHost:
    """See ``Host``."""

    def __init__(self, *, tls: bool = True) -> None:
        """Starts nothing. ``tls``: whether the agent may need it; agents speak none to each other, but stores do."""
        self._command = _COMMAND if tls else _WITHOUT_TLS + _COMMAND
        self._sources = Sources()
        self._cell, self._cell_fd = ProgressCell.shared()
        self._life = LifeLock()
        self._name = ""
        self._theirs: Descriptors | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Pipe | None = None
        self._doors: socket.socket | None = None
        self._reader: threading.Thread | None = None
        self._ears: Ears | None = None
        self._started: Future[None] = Future()
        self._numbers = itertools.count(1)
        self._asked: dict[int, Future[Any]] = {}
        self._stopping = False
        self._ending = threading.Lock()
        self._ended = False

    def __del__(self) -> None:
        """Give back what only a start would have used up."""
        self._close_cell_fd()

    @property
    def running(self) -> bool:
        """See ``Host``."""
        return self._reader is not None and self._reader.is_alive() and not self._stopping and not self._ended

    def here(self) -> bool:
        """See ``Host``."""
        return self._reader is threading.current_thread()

    @property
    def pid(self) -> int:
        """Of the agent's process; 0 before the start."""
        return 0 if self._process is None else self._process.pid

    def start(self, setup: Setup, sockets: SocketPair, ears: Ears, timeout: float) -> None:
        """See ``Host``."""
        self._ears = ears
        try:
            try:
                if self._process is None:
                    self.begin(setup.member.id)
                self._hand_over(sockets)
            finally:
                sockets.close()  # ours: "connection refused" must prove that the agent is gone
            level = min(_LOG.getEffectiveLevel(), logging.INFO)
            self._send("setup", setup, sockets.advertised, self._theirs, self._sources.paths, level)
            self._reader = threading.Thread(target=self._listen, name=self._name, daemon=True)
            self._reader.start()
            self._started.result(timeout)
        except BaseException as error:
            self._stopping = True
            self._end()
            if isinstance(error, TimeoutError):
                raise ConsensusError(f"the agent's process did not start within {timeout:g} s") from None
            raise

    def begin(self, member_id: str) -> None:
        """See ``Host``: the process has imports to do."""
        name = self._name = f"ftlib-agent-{member_id[:6]}"
        pipe, their_pipe = socket.socketpair()
        doors, their_doors = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        life = self._life.hold(f"{name}-life")
        with their_pipe, their_doors:
            self._theirs = theirs = Descriptors(their_doors.fileno(), self._cell_fd, life)
            # The child imports what this process would, wherever that came from; ``site`` has had its say on that here.
            path = os.pathsep.join([_ROOT, *(entry or os.getcwd() for entry in sys.path)])  # noqa: PTH109
            try:
                self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and code
                    [sys.executable, "-P", "-S", "-c", self._command, str(their_pipe.fileno()), str(os.getpid()), name],
                    env={**os.environ, "PYTHONPATH": path},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=(their_pipe.fileno(), *(fd for fd in theirs if fd >= 0)),
                )
            except OSError as error:
                pipe.close()
                doors.close()
                raise ConsensusError(
                    f"the agent's process could not be started ({sys.executable!r}: {error.strerror}); "
                    "agent='thread' needs none"
                ) from None
            finally:
                if life >= 0:
                    os.close(life)
        self._close_cell_fd()
        self._pipe, self._doors = Pipe(pipe), doors
        release_in_children(self, _descriptors_of(self._pipe, doors))
        threading.Thread(target=self._answer_doors, args=(doors,), name=f"{name}-serve", daemon=True).start()

    def _hand_over(self, sockets: SocketPair) -> None:
        """They wait at the other end until the process has come so far."""
        assert self._doors is not None  # begun
        with contextlib.suppress(OSError):  # it has ended: that is found at the other pair
            socket.send_fds(self._doors, [b"\0"], [sockets.udp.fileno(), sockets.tcp.fileno()])

    def perform(self, action: str, *arguments: Any) -> None:
        """See ``Host``."""
        if not self._stopping:
            self._send("perform", action, arguments)

    def ask(self, question: str, *arguments: Any, timeout: float) -> Any:
        """See ``Host``."""
        if self.here():
            raise ConsensusError("this call waits for the agent and cannot be made from one of its callbacks")
        number, answer = next(self._numbers), Future[Any]()
        self._asked[number] = answer
        try:
            if not self.running or not self._send("ask", number, question, arguments):
                raise ConsensusError("the agent has stopped")
            return answer.result(timeout)
        finally:
            self._asked.pop(number, None)

    def progress(self, progress: Progress) -> None:
        """See ``Host``."""
        self._cell.write(progress)

    def commit_to_leave(self) -> None:
        """See ``Host``."""
        self._cell.commit_to_leave()

    def serve(self, path: str, source: Source) -> None:
        """See ``Host``."""
        self._sources.serve(path, source)
        self._send("serve", path)

    def stop(self, timeout: float) -> None:
        """See ``Host``."""
        first, self._stopping = not self._stopping, True
        if first:
            self._send("stop")
        if self._reader is None:
            if self._process is not None:  # begun, and never set up: it has nothing to say to anybody
                self._process.kill()
            self._end()
        elif not self.here():
            self._reader.join(timeout)
            self._end()

    # The other process speaks

    def _listen(self) -> None:
        pipe = self._pipe
        assert pipe is not None
        short_slices()
        try:
            while True:
                kind, *values = pipe.receive()
                getattr(self, f"_on_{kind}")(*values)
        except EOFError:
            if not self._stopping:
                self._lost(f"this worker's agent process ended unexpectedly ({self._exit()})")
        except Exception as error:  # noqa: BLE001 - it ends this lifetime
            _LOG.exception("what the agent said could not be carried out")
            if not self._started.done():  # it did start; what fails is the layer above
                self._started.set_result(None)
            self._lost(f"the agent's word could not be carried out: {type(error).__name__}: {error}")
        finally:
            self._end()

    def _on_started(self) -> None:
        self._started.set_result(None)

    def _on_failed(self, error: Exception) -> None:
        if not self._started.done():
            self._started.set_exception(error)

    def _on_publish(self, snapshot: Any) -> None:
        assert self._ears is not None
        self._ears.publish(snapshot)

    def _on_plane(self, method: str, arguments: Iterable[Any]) -> None:
        assert self._ears is not None
        getattr(self._ears.plane, method)(*arguments)

    def _on_facts(self, number: int) -> None:
        assert self._ears is not None
        self._send("facts", number, dict(self._ears.plane.facts()))

    def _on_answer(self, number: int, value: Any, error: Exception | None) -> None:
        answer = self._asked.pop(number, None)
        if answer is None:
            return
        with contextlib.suppress(Exception):  # given up meanwhile
            if error is None:
                answer.set_result(value)
            else:
                answer.set_exception(error)

    def _on_log(self, record: logging.LogRecord) -> None:
        logger = logging.getLogger(record.name)
        if logger.isEnabledFor(record.levelno):
            logger.handle(record)

    def _answer_doors(self, doors: socket.socket) -> None:
        """Take the connections that the agent hands over."""
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(doors, _REQUEST_LIMIT, 1)
            except OSError:
                return
            if not data:
                return
            if fds:
                connection = socket.socket(fileno=fds[0])
                try:
                    self._sources.answer(connection, pickle.loads(data))  # noqa: S301 - from our own child
                except Exception:  # noqa: BLE001 - one request must not end the others
                    _LOG.exception("a request could not be answered")
                    connection.close()

    # The end

    def _send(self, *values: Any) -> bool:
        return self._pipe is not None and self._pipe.send(values)

    def _lost(self, text: str) -> None:
        self._stopping = True
        error = StoppedError(text)
        if not self._started.done():
            self._started.set_exception(ConsensusError(text))
        elif self._ears is not None:
            self._ears.failed(error)

    def _exit(self) -> str:
        """How the process ended, for people."""
        if self._process is None:
            return "never started"
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "its end of the socket is closed"
        if code < 0:
            return f"killed by {_signal_name(-code)}"
        return f"exit code {code}; its last words are on standard error"

    def _end(self) -> None:
        """See that nothing of the agent is left."""
        with self._ending:
            if not self._ended:
                self._ended = True
                self._clear()

    def _clear(self) -> None:
        for answer in list(self._asked.values()):
            with contextlib.suppress(Exception):
                answer.set_exception(ConsensusError("the agent has stopped"))
        self._life.release()
        self._cell = ProgressCell()  # nobody reads the other any more: its memory is given back
        if self._pipe is not None:
            self._pipe.shut()
        if self._doors is not None:
            with contextlib.suppress(OSError):
                self._doors.shutdown(socket.SHUT_RDWR)
        if self._process is not None:
            try:
                self._process.wait(1.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(1.0)
        if self._pipe is not None:
            self._pipe.close()
        if self._doors is not None:
            self._doors.close()

    def _close_cell_fd(self) -> None:
        fd, self._cell_fd = self._cell_fd, -1
        if fd >= 0:
            os.close(fd)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have none
        return f"signal {number}"


def _descriptors_of(pipe: Pipe, doors: socket.socket) -> Callable[[], Iterable[int]]:
    """What a forked child must let go of: the agent would otherwise miss this process's death."""
    return lambda: [pipe.fileno(), doors.fileno()]
