"""What comes in on a link: messages in order, each into the memory that its receiver gives for it.

One thread reads at a time, whichever has a reason to: the loop, a thread that waits for a message, or one that asks for a
message that is here already. Messages that nobody has asked for yet are kept, up to ``buffer`` bytes; then the path is not read
any more.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from .intake import NO_MEMORY, Intake
from .parts import each_guarded, guarded
from .paths import Path
from .wire import FRAME, PREFIX, TAG, Cursor, Kind, Prefix, Seal, WireError, read_prefix

Place = Callable[[bytes], Sequence[memoryview] | None]
Received = Callable[[bytes | None, BaseException | None], None]
Move = Callable[[], tuple[Sequence[memoryview], Sequence[memoryview]] | None]
"""Gives the memory that a message was to go to, and the memory that it goes to instead; None: it is thrown away."""

_ASIDE = 10.0
"""The most seconds that who takes memory back waits for a step of the thread that reads, which never waits itself."""
_EACH = 256
"""What a kept message counts besides its bytes."""


class Incoming:
    """The reading side. ``open`` gives it its path."""

    def __init__(
        self,
        seal: Seal,
        buffer: int,
        most: int,
        said: Callable[[Kind, bytes], None],
        broken: Callable[[Exception], None],
        dry: Callable[[], None] = lambda: None,
        room: Callable[[], None] = lambda: None,
    ) -> None:
        """``most``: bytes of a payload. ``said``: a message for the link itself. ``broken``: nothing more can be read.

        ``dry`` is called once, when nothing will be read any more; ``room`` when who reads has found room for a writer.
        """
        self._dry = dry
        self._seal: Seal | None = seal
        self._buffer = buffer
        self._most = most
        self._said = said
        self._broken = broken
        self._lock = threading.Lock()
        self._rested = threading.Condition(self._lock)
        self._intake = Intake(room)
        self._busy = False
        self._reader = 0
        """The thread that reads."""
        self._again = False
        self._news = False
        self._error: BaseException | None = None
        self._last: BaseException | None = None
        """What comes after all that has arrived, which is still to be read."""
        self.goodbye: BaseException | None = None
        """What comes after all that is kept."""
        self._over = False
        self._tasks: deque[Callable[[], None]] = deque()
        """Background tasks: the thread that reads runs them between two steps."""
        self._posted: deque[tuple[Place, Received]] = deque()
        self._kept: deque[tuple[bytes, memoryview]] = deque()
        self._held = 0
        self.paused = False
        """Whether the path is not read, since too much is kept."""
        self.messages = 0
        self._step: Callable[[], bool] = self._read_prefix
        # The message under way:
        self._prefix = Prefix(Kind.MESSAGE, sealed=False, header=0, payload=0)
        self._raw = b""
        self._header = b""
        self._receiver: Received | None = None
        self._flaw: BaseException | None = None
        self._storage = NO_MEMORY
        self._cursor: Cursor | None = None
        """Where the payload goes; None: nowhere."""
        self._left = 0
        self._number = self._frame = 0
        self._sealed: memoryview | None = None
        self._got = 0
        """Bytes of the frame under way, in ``_sealed``."""

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def last_received(self) -> float:
        """When bytes came last, of ``time.monotonic``."""
        return self._intake.last_received

    @property
    def bytes(self) -> int:
        """So many have come."""
        return self._intake.bytes

    def open(self, path: Path) -> None:
        """Read from ``path`` from now on; in a callback of ``said``, or before the first ``pump``."""
        if self._intake.staged:
            raise WireError("bytes that belong to no path")
        if not path.sealed:
            self._seal = None
        self._intake.open(path)

    def receive(self, place: Place, done: Received) -> None:
        """See ``Link.receive``."""
        with self._lock:
            self._posted.append((place, done))
            idle = not (self.paused or self._kept or self._error or self.goodbye or self._last)
        if not idle:
            self.pump(news=True)

    def redirect(self, done: Received, move: Move) -> bool:
        """If the message for ``done`` has begun to arrive and is not whole, it goes to other memory from now on.

        Once this returns nothing is written to the memory that it went to before. False if that is not known, since the thread
        that reads is held up by a callback, which may not wait: then the link is of no use any more.
        """
        if self.reads_here():
            self._redirect(done, move)
            return True
        gone = threading.Lock()
        gone.acquire()

        def task() -> None:
            try:
                self._redirect(done, move)
            finally:
                gone.release()

        self._tasks.append(task)
        return self.pump() or gone.acquire(timeout=_ASIDE)

    def _redirect(self, done: Received, move: Move) -> None:
        cursor = self._cursor
        if self._receiver != done or cursor is None:
            return
        self._cursor = None  # also where there is no memory left
        places = move()
        if places is None:
            return
        before, self._cursor = places[0], Cursor(places[1])
        arrived = self._cursor.left - cursor.left
        for view in before:
            piece = view.cast("B")[:arrived]
            self._cursor.put(piece)
            arrived -= len(piece)

    def end(self, error: BaseException) -> None:
        """The peer has said goodbye: once all that is kept was received, there is only ``error``."""
        self.goodbye = error
        self._step = _nothing

    def finish(self, error: BaseException) -> None:
        """No more will come than what has arrived: after that there is only ``error``."""
        with self._lock:
            self._last = self._last or error
            self._news = True
        self.pump(news=True)

    def fail(self, error: BaseException) -> None:
        """End it: all that waits gets ``error``, what is kept is dropped. The first error counts."""
        with self._lock:
            self._error = self._error or error
        self.pump()

    def pump(self, *, news: bool = False) -> bool:
        """Read what is there, and give it to those who asked. ``news``: the path's descriptor says that there is some.

        False if another thread reads just now: that one does all this before it rests.
        """
        with self._lock:
            self._news |= news
            if self._busy:
                self._again = True
                return False
            self._busy = True
        try:
            self._pump()
        except BaseException:  # Ctrl-C in a thread that waits, say
            # It may have come in the middle of anything: what is read from here on would make no sense.
            self._step = _nothing
            with self._lock:
                self._busy, self._reader = False, 0
                self._rested.notify_all()
            self._broken(InterruptedError("the thread that read it was interrupted"))
            raise
        return True

    def _pump(self) -> None:
        self._reader = threading.get_ident()
        while True:
            self._work()
            with self._lock:
                failed = self._failed()
                over = not self._over and (self._error or self.goodbye) is not None
                self._over |= over
                if not failed and not over:
                    if self._again:
                        self._again = False
                        continue
                    self._busy, self._reader = False, 0
                    self._rested.notify_all()
                    return
            each_guarded(iter(failed), None, self._error or self.goodbye)
            if over:
                guarded(self._dry)

    def reads_here(self) -> bool:
        """Whether the caller is in a callback of ``pump``."""
        return self._reader == threading.get_ident()

    def rest(self, timeout: float) -> bool:
        """Wait until no other thread reads, at most so many seconds; whether none does.

        Whoever reads wakes this in ``pump``, once there is nothing more to read, or nothing is read any more, whatever was
        raised. Nobody reads for ever but from a peer that sends for ever.
        """
        with self._lock:
            return self._rested.wait_for(lambda: not self._busy, timeout)

    def _failed(self) -> list[Received]:
        """Receivers that get nothing any more."""
        failed: list[Received] = []
        if self.goodbye is None and not self.paused and not self._news:
            self.goodbye = self._last
        if self._error is not None:
            self._kept.clear()
        if (self._error or self.goodbye) is not None:
            self._step = _nothing
            if self._receiver is not None:
                failed.append(self._receiver)
            self._receiver = self._cursor = None
            # An ended link may live on until Python looks for circles, hundreds of links later: its buffers do not.
            self._storage = NO_MEMORY
            self._intake.release()
            self._sealed = None
            if not self._kept:
                failed += [done for _, done in self._posted]
                self._posted.clear()
        return failed

    def _work(self) -> None:
        self._serve_kept()
        self._run_tasks()
        try:
            news, self._news = self._news, False
            if news and self._step is not _nothing:
                self._intake.refresh()
            while self._intake.opened and self._error is None and self._step():
                if self._tasks:
                    self._run_tasks()
        except EOFError:
            self._step = _nothing
            self._broken(ConnectionResetError("its end of the connection is closed"))
        except Exception as error:  # noqa: BLE001 - no memory, say: others wait for this reader, so it never ends by what is raised
            self._step = _nothing
            self._broken(error)

    def _run_tasks(self) -> None:
        while self._tasks:  # only this thread takes any
            guarded(self._tasks.popleft())

    # Messages that came before they were asked for

    def _serve_kept(self) -> None:
        while self._kept:  # only this thread adds any
            with self._lock:
                if not self._kept or not self._posted or self._error is not None:
                    return
                header, data = self._kept.popleft()
                place, done = self._posted.popleft()
                self._held -= len(data) + len(header) + _EACH
            cursor, flaw = _place(place, header, len(data))
            if cursor is not None and data:
                cursor.put(data)
            guarded(done, header, flaw)

    # Steps: each returns whether the next one can be taken now

    def _read_prefix(self) -> bool:
        if not self._intake.need(PREFIX):
            return False
        self._raw = bytes(self._intake.take(PREFIX))
        self._prefix = read_prefix(self._raw, self._most)
        self._step = self._read_header
        return True

    def _read_header(self) -> bool:
        size = self._prefix.header
        if self._seal is None:
            if not self._intake.need(size):
                return False
            self._header = bytes(self._intake.take(size))
        else:
            if not self._intake.need(size + TAG):
                return False
            self._number = self._seal.next()
            self._header = self._seal.open(self._number, 0, self._intake.take(size + TAG), self._raw)
        self._step = self._match
        if self._prefix.kind is not Kind.MESSAGE:
            self._step = self._read_prefix
            self._said(self._prefix.kind, self._header)
        return True

    def _match(self) -> bool:
        """Find out where the payload goes."""
        size = self._prefix.payload
        room = size + len(self._header) + _EACH
        while True:
            self._serve_kept()
            with self._lock:
                self.paused = False
                if self._kept and self._posted:
                    continue
                asked = self._posted.popleft() if self._posted else None
                if asked is None and self._held + room > self._buffer:
                    self.paused = True
                    return False
                if asked is None:
                    self._held += room
            break
        self._left, self._frame, self._flaw = size, 0, None
        if asked is None:
            self._receiver, self._storage = None, np.empty(size, np.uint8).data
            self._cursor = Cursor([self._storage])
        else:
            self._receiver = asked[1]
            self._cursor, self._flaw = _place(asked[0], self._header, size)
        sealed = self._prefix.sealed and self._seal is not None
        self._step = self._read_frames if sealed else self._read_payload
        return True

    def _read_payload(self) -> bool:
        while self._left:
            if self._tasks:
                return True
            count = self._intake.pour(self._cursor, self._left)
            if not count:
                return False
            self._left -= count
        return self._deliver()

    def _read_frames(self) -> bool:
        seal = self._seal
        assert seal is not None
        if self._sealed is None:
            self._sealed = memoryview(bytearray(FRAME + TAG))
        while self._left:
            if self._tasks:
                return True
            size = min(FRAME, self._left)
            whole = size + TAG
            while self._got < whole:
                count = self._intake.into(self._sealed[self._got : whole])
                if not count:
                    return False
                self._got += count
            self._frame += 1
            data = seal.open(self._number, self._frame, self._sealed[:whole])
            if self._cursor is not None:
                self._cursor.put(data)
            self._left -= size
            self._got = 0
        return self._deliver()

    def _deliver(self) -> bool:
        self.messages += 1
        receiver, header = self._receiver, self._header
        self._step = self._read_prefix
        self._receiver = self._cursor = None
        if receiver is not None:
            guarded(receiver, header, self._flaw)
            return True
        with self._lock:
            self._kept.append((header, self._storage))
        self._storage = NO_MEMORY
        self._serve_kept()
        return True


def _nothing() -> bool:
    """The step after the last message."""
    return False


def _place(place: Place, header: bytes, size: int) -> tuple[Cursor | None, BaseException | None]:
    """Where a payload goes, or nowhere, and why."""
    try:
        views = place(header)
        if views is None:
            return None, None
        cursor = Cursor(views)
    except Exception as error:  # noqa: BLE001 - it goes to the receiver; the stream goes on
        return None, error
    if cursor.left != size:
        return None, ValueError(f"{cursor.left} bytes of memory were given for a payload of {size} bytes")
    return cursor, None
