"""A connection between two members: messages in strict order each way, and one answer to what became of it.

``Outgoing`` and ``Incoming`` carry the messages; a ``Link`` knows when they end, and why. A socket that ends without a goodbye
is first taken for a death, of which the agreement will hear within milliseconds: ``fail`` then says so. If nobody says so, the
link asks the peer's control port: refused, the peer is gone, else it lives and only the connection broke.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Sequence
from enum import Enum

from consensus import Member, Stream

from .errors import GroupClosed, LinkBroken, PeerLost, called
from .incoming import Incoming, Move, Place, Received
from .meeting import Meeting
from .outgoing import Outgoing, Sent
from .parts import LinkStats, Loop
from .paths import Path, TcpPath
from .turn import GONE, IN, OUT, Turn, Watch
from .verdict import judge
from .wire import HEADER, Kind, Seal, WireError
from .words import Words

GRACE = 0.25
"""Seconds in which the agreement may say why a socket has ended."""
_DISPOSE = 0.05
"""Seconds after its end until a link's descriptors are closed: no thread uses them by then."""
_ACK, _LOOK = 1.0, 0.005
"""Seconds that a close waits until the peer's host has all that was written, and between two looks: what the peer still sends
to a closed socket would make the kernel drop the rest.
"""


class _State(Enum):
    OPEN = "messages pass"
    LOST = "the peer is over, and what it had sent is still received"
    DOUBTFUL = "the connection has ended, and it is not known yet what that means"
    ENDED = "every operation fails"


_READING = (_State.OPEN, _State.LOST)


class Link:
    """See the module. Thread-safe. Callbacks are called with no lock held, in order for each direction."""

    def __init__(self, stream: Stream, loop: Loop, gone: Callable[[Link], None]) -> None:
        """Made by ``LinkLoop.connect``; owns the stream's socket. ``gone`` is called once it has no descriptors any more."""
        self._gone = gone
        self.peer: Member = stream.peer
        self._loop = loop
        self._lock = threading.Lock()
        self._state = _State.OPEN
        self._error: BaseException | None = None
        self._socket = stream.socket
        self._stream = TcpPath(stream.socket, loop.link_timeout)
        """The path until another is agreed on; then its end is that of the peer."""
        self._path: Path = self._stream
        self._meeting = Meeting(dialled=stream.dialled, ring=loop.ring)
        ways = (b"there", b"back") if stream.dialled else (b"back", b"there")
        self._out = Outgoing(Seal(stream.key, ways[0]), self._broke)
        self._in = Incoming(
            Seal(stream.key, ways[1]), loop.buffer, loop.max_bytes, self._said, self._broke, self._hang_up, self._room
        )
        self._turn = Turn(loop, self._interest)
        self._watch = Watch(stream.socket.fileno())
        self._mask = 0
        self._closed = False
        self._words = Words()
        self._quiet = threading.Event()
        """Set once nothing is read or written any more."""

    @property
    def path(self) -> str:
        """How bytes get to the peer."""
        return self._path.name

    @property
    def closed(self) -> bool:
        """Whether the peer has closed it: what it had sent before can still be received."""
        return self._closed

    @property
    def broken(self) -> bool:
        """Whether it has ended without the peer's goodbye."""
        return self._state is not _State.OPEN and not self._closed

    @property
    def over(self) -> BaseException | None:
        """Why nothing more can be sent or received; None while messages pass, or some that have come can still be received."""
        if self._state is not _State.ENDED:
            return None
        if self._error is not None and not isinstance(self._error, PeerLost):
            return self._error  # what was kept is dropped with it
        return None if len(self._in) else self._error or self._in.goodbye

    @property
    def why(self) -> str:
        """Why it is no ring; "" if it is one, or not agreed yet."""
        return self._meeting.why

    @property
    def last_received(self) -> float:
        """When the last byte came from the peer (``time.monotonic``)."""
        return self._in.last_received

    @property
    def stats(self) -> LinkStats:
        """Counts since the beginning."""
        return LinkStats(self._out.bytes, self._in.bytes, self._out.messages, self._in.messages, len(self._out), len(self._in))

    def begin(self) -> None:
        """Begin to read; once."""
        self._in.open(self._stream)
        opening = self._meeting.opening()
        try:
            if opening is not None:
                self._out.greet(self._stream, opening)
        except OSError as error:
            self._broke(error)
        with self._lock:
            if self._state is _State.OPEN:
                self._mask = IN
                self._loop.add(self._stream.fileno(), IN, self._ready)

    def _meet(self, said: bytes) -> None:
        """The peer says something about the path; called by the reading thread.

        It may say so late: a program that is busy is no broken link (see ``check``), and who waits for it has a time-out.
        """
        try:
            answer = self._meeting.received(said)
            if answer is not None:
                self._out.greet(self._stream, answer)
        except (OSError, WireError) as error:
            self._broke(error)
            return
        if not self._meeting.over:
            return
        if (ring := self._meeting.path) is not None:
            self._in.open(ring)
            with self._lock:
                if self._state is _State.OPEN:
                    self._loop.remove(self._stream.fileno())
                    self._loop.add(self._stream.fileno(), IN, self._over)
                    self._path, self._mask = ring, 0
                    self._loop.add(ring.fileno(), 0, self._ready)
            self._interest()
            self._in.pump(news=True)
        self._out.open(self._path)
        self._out.flush()
        self._interest()

    def _over(self, _events: int = 0) -> None:
        """The stream beside a ring has news: only its end can be one."""
        self._loop.remove(self._stream.fileno())
        ring = self._meeting.path
        assert ring is not None
        ring.cut()
        self._in.pump(news=True)

    # Messages

    def send(self, header: bytes, payload: Sequence[memoryview], done: Sent, *, sealed: bool = False) -> None:
        """Send one message, after those before. ``done(None)``: its memory may be used again; else the link has ended.

        ``header``: at most 64 KiB, always sealed where others could read it; ``payload``: if ``sealed``.
        """
        self._send(Kind.MESSAGE, header, payload, done, sealed=sealed or self._loop.seal_all)

    def talk(self, word: bytes) -> None:
        """Send a word beside the messages, but in order with them: at most 64 KiB, sealed where others could read it."""
        self._send(Kind.CONTROL, word, (), lambda _error: None, sealed=False)

    def _send(self, kind: Kind, header: bytes, payload: Sequence[memoryview], done: Sent, *, sealed: bool) -> None:
        if len(header) > HEADER:
            raise ValueError(f"a header or a word of {len(header)} bytes; {HEADER} are the most")
        self._out.send(kind, header, payload, done, sealed=sealed)
        if self._out.blocked:
            self._interest()

    def listen(self, listener: Callable[[bytes], None], ended: Callable[[BaseException], None]) -> None:
        """Give every word of the peer to ``listener``, and the link's end to ``ended``: neither may wait. Once."""
        self._words.listen(listener, ended)

    def receive(self, place: Place, done: Received) -> None:
        """Take one message. ``place(header)`` gives the memory for its payload; ``done(header, error)`` says that it is there.

        ``place`` must be quick. If it gives None, or raises, the payload is thrown away and the stream goes on.
        """
        self._in.receive(place, done)
        if self._in.paused or self._mask & IN == 0:
            self._interest()

    def redirect(self, done: Received, move: Move) -> None:
        """See ``Incoming.redirect``. If the memory does not come back the link breaks: no message may go there any more."""
        if not self._in.redirect(done, move):
            text = f"a callback on the link to {called(self.peer)} keeps the thread that reads waiting, which it may not"
            self.fail(LinkBroken(f"{text}: memory that was given for a message could not be taken back", peer=self.peer))

    def help(self, ready: Callable[[], bool], deadline: float) -> None:
        """Read this link in the calling thread, which waits for a message, until ``ready()``, ``deadline``, or the link's end.

        ``deadline``: of ``time.monotonic``. Returns at once if another thread does so already, and in a callback.
        """
        if self._state not in _READING or self._in.reads_here() or not self._turn.take():
            return
        try:  # from here on only this thread reads: nobody else can take what it waits for, and let it sleep
            self._interest()
            alone = self._alone(ready, deadline)
            while alone and not ready() and self._state in _READING and not self._in.paused:
                if (rest := deadline - time.monotonic()) <= 0:
                    return
                before = self._in.bytes
                if not self._watch.look(self._read):
                    news, ended = self._watch.wait(self._path.fileno(), rest)
                    if ended:
                        self._over()
                    if news:
                        self._read()
                # Another thread may have taken the news: what they mean is known once it rests.
                alone = self._alone(ready, deadline)
                self._watch.came(self._in.bytes - before)
        finally:
            self._turn.hand_back()
            if self._out.blocked:  # the loop is to hear of room at once
                self._interest()

    def _read(self) -> bool:
        """Read what there is, without asking first whether there is any; False if nothing was read or written."""
        before = self._in.bytes, self._out.bytes
        return not self._in.pump(news=True) or before != (self._in.bytes, self._out.bytes)

    def _room(self) -> None:
        """The path has room again, as whoever reads has found out."""
        if self._out.blocked:
            self._out.flush()
            self._interest()

    def _alone(self, ready: Callable[[], bool], deadline: float) -> bool:
        """Wait for the end of another thread's reading; whether it came before all that ``help`` waits for.

        A peer that sends all the time may keep that thread reading for long.
        """
        while not self._in.rest(_LOOK):
            if ready() or time.monotonic() >= deadline:
                return False
        return True

    def catch_up(self, timeout: float) -> bool:
        """Read what has arrived, whichever thread should have done so: at most so many seconds. Not in a callback.

        Returns False where another thread still reads from ``peer``.
        """
        self._in.pump(news=True)
        return self._in.rest(timeout)

    # The end

    def close(self, timeout: float) -> None:
        """Write what was sent, tell the peer, and end: at most so many seconds. What still waits fails with GroupClosed.

        On the loop's thread, in a callback, it does not wait.
        """
        deadline = time.monotonic() + timeout
        written = threading.Event()
        self._out.send(Kind.GOODBYE, b"", (), lambda _error: written.set(), sealed=False)
        self._out.refuse(GroupClosed("the link was closed here", peer=self.peer))
        self._interest()
        if not self._loop.here():
            written.wait(timeout)
            deadline = min(deadline, time.monotonic() + _ACK)
            while self._state is _State.OPEN and self._path.unsent() and time.monotonic() < deadline:
                self._quiet.wait(_LOOK)
        self.fail(GroupClosed("the link was closed here", peer=self.peer))

    def fail(self, error: BaseException) -> None:
        """End it: every pending and later operation fails with ``error``. The first error counts.

        After a PeerLost what the peer had sent can still be received, in order: what its kernel still sends, for ``GRACE``
        seconds at most, and what has arrived; then comes the error.
        """
        lost = isinstance(error, PeerLost)
        with self._lock:
            before = self._state
            if lost and before in (_State.LOST, _State.ENDED):
                return
            self._state = _State.LOST if lost and before is _State.OPEN else _State.ENDED
            error = self._error = self._error or error
        self._words.end(error)
        self._out.fail(error)
        if self._state is _State.LOST:
            self._loop.later(GRACE, self._last_look)
            self._interest()
            return
        self._detach()
        (self._in.finish if lost else self._in.fail)(error)
        self._wake()

    def _last_look(self) -> None:
        if self._state is _State.LOST and self._in.paused:
            self._loop.later(GRACE, self._last_look)
        else:
            self._run_dry()

    def _run_dry(self) -> None:
        """A lost peer sends no more: what is here is all."""
        with self._lock:
            if self._state is not _State.LOST or self._error is None:
                return
            self._state = _State.ENDED
        self._detach()
        self._in.finish(self._error)
        self._wake()

    def _said(self, kind: Kind, header: bytes) -> None:
        """A message for the link itself: of the meeting, or that the peer has closed it."""
        if kind is Kind.MEETING:
            self._meet(header)
            return
        if kind is Kind.CONTROL:
            self._words.came(header)
            return
        self._closed = True
        error = GroupClosed(f"{called(self.peer)} has closed the link", peer=self.peer)
        self._in.end(error)
        self._words.end(error)
        with self._lock:
            if self._state is _State.ENDED:
                return
            self._state = _State.ENDED
        self._detach()
        self._out.fail(error)
        self._wake()

    def _broke(self, error: Exception) -> None:
        """The path does not read or write any more; the agreement may soon say why."""
        self._run_dry()
        with self._lock:
            if self._state is not _State.OPEN:
                return
            self._state = _State.DOUBTFUL
        self._detach()
        if isinstance(error, ValueError):  # it lives, and talks nonsense
            self.fail(LinkBroken(f"{called(self.peer)}: {error}: do both run the same release?", peer=self.peer))
        elif isinstance(error, ConnectionError):
            self._loop.later(GRACE, lambda: self._judge(error))
        else:
            self.fail(LinkBroken(f"the connection to {called(self.peer)} broke: {error}", peer=self.peer))

    def _judge(self, error: Exception) -> None:
        """Nobody has said why it ended."""
        if self._state is _State.DOUBTFUL:
            judge(self.peer, error, self._quiet, self._loop, self.fail)

    def check(self) -> None:
        """The loop asks from time to time whether the peer's host still answers."""
        silent = self._path.silent()
        if self._state is _State.OPEN and silent > 0.7 * self._loop.link_timeout:
            self._broke(TimeoutError(f"its host has not answered for {silent:.1f} s"))

    # Descriptors

    def descriptors(self) -> list[int]:
        """All of them; takes no lock."""
        ring = self._meeting.path
        return [self._stream.fileno(), *self._meeting.descriptors(), *(() if ring is None else ring.descriptors())]

    def _ready(self, events: int) -> None:
        """On the loop's thread."""
        if not self._turn.taken:
            self._news()
        elif self._out.blocked:
            self._out.flush()
            self._interest()
        if events & GONE and self._in.paused:
            self._broke(ConnectionResetError("its end of the connection is closed"))

    def _news(self) -> None:
        self._in.pump(news=True)
        if self._out.blocked:
            self._out.flush()
        self._interest()

    def _interest(self) -> None:
        """Tell the loop what to wait for."""
        with self._lock:
            if self._state not in _READING:
                return
            plain, blocked = self._path is self._stream, self._out.blocked
            idle = self._turn.taken or (self._turn.spared and (plain or not blocked)) or (plain and self._in.paused)
            mask = 0 if idle else IN
            mask |= OUT if blocked and plain else 0
            if mask != self._mask:
                self._mask = mask
                self._loop.change(self._path.fileno(), mask)

    def _detach(self) -> None:
        self._loop.remove(self._path.fileno())
        self._loop.remove(self._stream.fileno())

    def _wake(self) -> None:
        """Wake who helps or closes, and tell the peer's kernel. What has arrived can still be read."""
        self._quiet.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _hang_up(self) -> None:
        """Nothing more will be read: close once nobody uses the descriptors any more."""
        self._loop.later(_DISPOSE, self._dispose)

    def _dispose(self) -> None:
        if self._turn.taken:
            self._loop.later(_DISPOSE, self._dispose)
            return
        self._meeting.close()
        self._path.close()
        self._stream.close()
        self._gone(self)
