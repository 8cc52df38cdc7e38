"""The host of an agent, seen from the training process: a socket pair to it, in this process or another.

Both sides share that pair (values both ways), a second pair (the handoff socket, for connections to be answered here), and a
few bytes of memory (the data plane's progress). The agent is in a process of its own (``process_host``) or on a thread of this
one (``thread_host``); neither side can tell the difference.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import pickle
import socket
import sys
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ...border import Report
from ...config import Config
from ...errors import ConsensusError, StoppedError
from ...interface import DataPlane, Source, Stream
from ...logs import CarefulLogger, handle_record
from ...member import Member
from ...wire.slices import short_slices
from ..agent.snapshot import Snapshot
from ..net.acceptors import Acceptors
from ..net.fork import release_in_children
from ..net.names import Introducers
from ..net.sockets import SocketPair, receive_fds
from ..net.sources import Request, Sources
from .exchange import Asked, CutOff, FactsAsked, FactsReply, Failed, Question, Reply, Serve, Setup, Started, Stop, plain
from .pipe import Pipe
from .progress_cell import ProgressCell

_LOG = CarefulLogger()
RUN = "from consensus.runtime.host.child import main; main()"
"""What an agent's process is started with."""
_OWN = Path(__file__).resolve().parents[2]
_REQUEST_LIMIT = 256 * 1024
"""The most bytes of a request that the agent hands over: more than its limit for a request line (see ``authenticator``)."""

_SERVER_TIMEOUT = 1.0
"""Seconds for the thread that takes connections from the agent to end."""


@dataclass(frozen=True, slots=True)
class Delegate:
    """The receivers of an agent's values in the training process; called on the host's thread."""

    plane: DataPlane
    publish: Callable[[Snapshot], None]
    failed: Callable[[StoppedError], None]
    """Called if the agent ended without being asked to."""


class Host(ABC):
    """One agent's host. NEW -> RUNNING (``start``) -> ENDED (``stop``, or the agent's failure)."""

    _place: ClassVar[str]
    """Where the agent runs, for people."""

    def __init__(self, cell: ProgressCell) -> None:
        """Starts nothing. ``cell``: shared with the agent."""
        self.cell = cell
        """The data plane's progress: written by this process at every call, read by the agent before every input."""
        self._sources = Sources()
        self._acceptors = Acceptors()
        self._member: Member | None = None
        self._name = ""
        self._pipe: Pipe | None = None
        self._handoff: socket.socket | None = None
        self._server: threading.Thread | None = None
        self._reader: threading.Thread | None = None
        self._delegate: Delegate | None = None
        self._started: Future[None] = Future()
        self._numbers = itertools.count(1)
        self._asked: dict[int, Future[Any]] = {}
        self._stopping = False
        self._ending = threading.Lock()
        self._ended = False

    # What the subclasses do

    @abstractmethod
    def _launch(self, name: str, pipe: socket.socket, handoff: socket.socket) -> None:
        """Start the agent's side with its ends of the pairs; if this raises ConsensusError, the caller closes them."""

    @abstractmethod
    def _quit(self, *, now: bool) -> None:
        """Make sure that nothing of the agent's side is left. ``now``: do not wait for its messages."""

    @abstractmethod
    def _exit(self) -> str:
        """How the agent's side ended, for people."""

    # Life

    @property
    def running(self) -> bool:
        """Whether the agent takes requests."""
        return self._reader is not None and self._reader.is_alive() and not self._stopping and not self._ended

    def here(self) -> bool:
        """Whether the caller is on the thread that calls the ``Delegate``, which must not wait."""
        return self._reader is threading.current_thread()

    def begin(self, member_id: str) -> None:
        """Begin to start, while the caller works until ``start``. Raises ConsensusError if that is not possible."""
        _refuse_within_agent()
        name = self._name = f"ftlib-agent-{member_id[:6]}"
        pipe, their_pipe = socket.socketpair()
        handoff, their_handoff = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._launch(name, their_pipe, their_handoff)
        except BaseException:
            for each in (pipe, their_pipe, handoff, their_handoff):
                each.close()
            raise
        self._pipe, self._handoff = Pipe(pipe), handoff
        release_in_children(self, _descriptors_of(self._pipe, handoff))
        self._server = threading.Thread(target=self._answer_handoffs, args=(handoff,), name=f"{name}-serve", daemon=True)
        self._server.start()

    def start(
        self, config: Config, member: Member, introducers: Introducers, sockets: SocketPair, delegate: Delegate, timeout: float
    ) -> None:
        """Start the agent and wait until it listens; raises ConsensusError if it does not within ``timeout`` seconds."""
        self._delegate, self._member = delegate, member
        try:
            try:
                if self._pipe is None:
                    self.begin(member.id)
                self._hand_over(sockets)
            finally:
                sockets.close()  # our copies: "connection refused" must prove that the agent is gone
            level = min(_LOG.getEffectiveLevel(), logging.INFO)
            self._send(Setup(config, member, introducers, sockets.advertised, self._sources.paths, level))
            self._reader = threading.Thread(target=self._listen, name=f"{self._name}-delegate", daemon=True)
            self._reader.start()
            self._started.result(timeout)
        except BaseException as error:
            self._stopping = True
            self._end(now=True)
            if isinstance(error, TimeoutError):
                raise ConsensusError(f"the agent's {self._place} did not start within {timeout:g} s") from None
            raise

    def _hand_over(self, sockets: SocketPair) -> None:
        """Send the control sockets; they wait in the handoff socket until the agent takes them."""
        assert self._handoff is not None  # begun
        with contextlib.suppress(OSError):  # the agent has ended: the pipe shows that
            socket.send_fds(self._handoff, [b"\0"], [sockets.udp.fileno(), sockets.tcp.fileno()])

    def stop(self, timeout: float) -> None:
        """End the agent without a goodbye, and wait for that (not when ``here``). Idempotent."""
        first, self._stopping = not self._stopping, True
        if first:
            self._send(Stop())
        if self._reader is None:
            self._end(now=True)
        elif not self.here():
            self._reader.join(timeout)
            self._end()

    # To the agent

    def tell(self, report: Report) -> None:
        """Send ``report`` to the agent. Does not wait; after the end it is dropped."""
        if not self._stopping and self._pipe is not None:
            self._pipe.send(report)

    def ask(self, question: Question, timeout: float) -> Any:
        """The agent's answer; raises TimeoutError if none comes, ConsensusError if the agent has ended."""
        if self.here():
            raise ConsensusError("this call waits for the agent and cannot be made from one of its callbacks")
        number, answer = next(self._numbers), Future[Any]()
        self._asked[number] = answer
        try:
            if not self.running or not self._send(Asked(number, question)):
                raise ConsensusError("the agent has stopped")
            return answer.result(timeout)
        finally:
            self._asked.pop(number, None)

    def commit_to_leave(self) -> None:
        """See ``Consensus``: after this call has returned, it binds everything that the agent does."""
        self.cell.commit_to_leave()

    def cut_off(self, seconds: float) -> None:
        """Fault on purpose: see ``CutOff``."""
        self._send(CutOff(seconds))

    @property
    def pid(self) -> int:
        """The pid of the agent's own process; 0 if it has none."""
        return 0

    def serve(self, path: str, source: Source) -> None:
        """Answer GET ``path`` with what ``source`` yields, in the training process."""
        self._sources.serve(path, source)
        self._send(Serve(path))

    def accept(self, path: str, handler: Callable[[Stream], None]) -> Callable[[], None]:
        """See ``Consensus``. Raises ValueError if the path is taken."""
        return self._acceptors.accept(path, handler, self._here)

    def _here(self) -> Member:
        assert self._member is not None  # no stream comes before the start
        return self._member

    def _send(self, value: object) -> bool:
        return self._pipe is not None and self._pipe.send(value)

    # From the agent

    def _listen(self) -> None:
        pipe, delegate = self._pipe, self._delegate
        assert pipe is not None and delegate is not None
        short_slices()
        try:
            while True:
                for value in pipe.receive():
                    self._hear(value, delegate)
        except EOFError:
            if not self._stopping:
                self._lost(f"this worker's agent {self._place} ended unexpectedly ({self._exit()})")
        except Exception as error:  # noqa: BLE001 - it ends this lifetime
            if not self._started.done():  # the agent did start; the layer above fails
                self._started.set_result(None)
            try:
                self._lost(f"the agent's word could not be carried out: {type(error).__name__}: {error}")
            finally:
                _LOG.error("what the agent said could not be carried out", exc_info=error)
        finally:
            self._end()

    def _hear(self, value: Any, delegate: Delegate) -> None:
        match value:
            case Snapshot():
                delegate.publish(value)
            case Started():
                self._started.set_result(None)
            case Failed(error):
                if not self._started.done():
                    self._started.set_exception(error)
            case Reply(number):
                answer = self._asked.pop(number, None)
                if answer is not None:
                    _settle(answer, value)
            case FactsAsked(number):
                self._send(FactsReply(number, _facts_of(delegate.plane)))
            case logging.LogRecord():
                handle_record(value)
            case _:
                delegate.plane.handle(value)

    def _answer_handoffs(self, handoff: socket.socket) -> None:
        """Take the connections that the agent hands over."""
        while True:
            try:
                data, fds = receive_fds(handoff, _REQUEST_LIMIT, 1)
            except OSError:
                return
            if not data:
                return
            if fds:
                connection = socket.socket(fileno=fds[0])
                try:
                    self._connected(connection, pickle.loads(data))  # noqa: S301 - from our own child
                except Exception:  # noqa: BLE001 - one request must not end the others
                    _LOG.exception("a request could not be answered")
                    connection.close()

    def _connected(self, connection: socket.socket, request: Request) -> None:
        if request.stream:
            self._acceptors.arrived(connection, request, self._here())
        else:
            self._sources.answer(connection, request)

    # The end

    def _lost(self, text: str) -> None:
        self._stopping = True
        error = StoppedError(text)
        if not self._started.done():
            self._started.set_exception(ConsensusError(text))
        elif self._delegate is not None:
            self._delegate.failed(error)

    def _end(self, *, now: bool = False) -> None:
        """Make sure that nothing of the agent is left."""
        with self._ending:
            if not self._ended:
                self._ended = True
                self._clear(now=now)

    def _clear(self, *, now: bool) -> None:
        for answer in list(self._asked.values()):
            with contextlib.suppress(Exception):
                answer.set_exception(ConsensusError("the agent has stopped"))
        if self._pipe is not None:
            self._pipe.shut()
        if self._handoff is not None:
            with contextlib.suppress(OSError):
                self._handoff.shutdown(socket.SHUT_RDWR)
        try:
            self._quit(now=now)
        finally:
            self._release()

    def _release(self) -> None:
        """Give back what this side holds."""
        self.cell = ProgressCell()  # nobody reads the old one any more: free its memory
        if self._pipe is not None:
            self._pipe.close()
        if self._server is not None:
            self._server.join(_SERVER_TIMEOUT)
        if self._handoff is not None:
            self._handoff.close()
        self._acceptors.close()


def _refuse_within_agent() -> None:
    """Raise ConsensusError in an agent's process: each agent would have one of its own.

    It is there because the agent has imported a file of the program's, by a name that should stand for something else.
    """
    if not any(RUN in argument for argument in sys.orig_argv):
        return
    for frame, _ in traceback.walk_stack(None):
        path = Path(frame.f_code.co_filename)
        if frame.f_code.co_name == "<module>" and not path.is_relative_to(_OWN):
            raise ConsensusError(f"{path} was imported by an agent, for its name is that of a module that it needs: rename it")
    raise ConsensusError("an agent has none of its own")


def _settle(future: Future[Any], answer: Reply) -> None:
    with contextlib.suppress(Exception):  # given up meanwhile
        if answer.error is None:
            future.set_result(answer.value)
        else:
            future.set_exception(answer.error)


def _facts_of(plane: DataPlane) -> Mapping[str, Any]:
    """Its facts, made plain; why there are none, if they cannot be had: whoever asks must not end this member."""
    try:
        return {**plain(plane.facts())}
    except Exception as error:  # noqa: BLE001 - of the layer above, or of the program
        return {"error": f"{type(error).__name__}: {error}"}


def _descriptors_of(pipe: Pipe, handoff: socket.socket) -> Callable[[], Iterable[int]]:
    """Descriptors that a forked child must close: the agent would otherwise miss this process's death."""
    return lambda: [pipe.fileno(), handoff.fileno()]
