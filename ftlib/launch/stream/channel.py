"""One end of a stream on an event loop: what goes out in which order, what came in, and the deadline of the other end.

Three lanes go out. *Urgent*: everything short; it never waits for more than one piece of the others. *Lines* of workers wait
for credit: the other end grants as much as it has handled, so a slow reader of logs stops the workers, but no heartbeat.
*Bulk*: large things, read piece by piece only as they are sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum

from .deadline import Deadline, Hearing
from .messages import Beat, Credit, Decoder, Message, StreamError, encode

_CHUNK = 256 << 10
CREDIT = 1 << 20
"""Bytes of lines that may be under way."""


class Lane(Enum):
    """Where a message waits."""

    URGENT = "urgent"
    LINES = "lines"


class Channel:
    """Reads ``fd_in`` and writes ``fd_out``, which must be pipes or sockets. Use on its loop only."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fd_in: int,
        fd_out: int,
        deadline: Deadline,
        *,
        received: Callable[[Message, int], None],
        over: Callable[[str], None],
        first: Callable[[bytes], bytes | None] | None = None,
        on_room: Callable[[], None] = lambda: None,
    ) -> None:
        """``received``: called with each message and its bytes. ``over``: called once, with the reason, when the other end has
        ended or is lost. ``first``: eats what comes before the first message and returns the rest, or None while there is
        none. ``on_room``: lines may be sent again.
        """
        self._loop = loop
        self._in, self._out = fd_in, fd_out
        self.deadline = deadline
        self._received, self._over, self._first, self._on_room = received, over, first, on_room
        self._decoder = Decoder()
        self._urgent: deque[bytes] = deque()
        self._lines: deque[tuple[bytes, bool]] = deque()  # whether it costs credit
        self._bulk: deque[Iterator[Message]] = deque()
        self._rest = memoryview(b"")
        self._credit = CREDIT
        self._waiting = 0
        self._closed = False
        self._writing = False
        self._bulk_next = False
        self._sent_at = time.monotonic()
        os.set_blocking(fd_in, False)
        os.set_blocking(fd_out, False)
        loop.add_reader(fd_in, self._readable)
        self._timer = loop.call_later(deadline.interval, self._tick)

    def send(self, message: Message, lane: Lane = Lane.URGENT, *, counted: bool = True) -> None:
        """Queue a message. In the lane of lines it costs its size in credit if it is ``counted``."""
        if self._closed:
            return
        frame = encode(message)
        if lane is Lane.URGENT:
            self._urgent.append(frame)
        else:
            self._lines.append((frame, counted))
            self._waiting += len(frame)
        self._want()

    def send_pieces(self, pieces: Iterator[Message]) -> None:
        """Queue something large."""
        if not self._closed:
            self._bulk.append(pieces)
            self._want()

    @property
    def full(self) -> bool:
        """Whether so many lines wait that no more should be read from workers."""
        return self._waiting > CREDIT

    @property
    def idle(self) -> bool:
        """Whether everything was written."""
        return not (self._urgent or self._lines or self._bulk or self._rest)

    def renew(self, deadline: Deadline) -> None:
        """Judge the other end, from which something just came, by another deadline from now on."""
        deadline.received(time.monotonic())
        self.deadline = deadline
        self._timer.cancel()
        self._timer = self._loop.call_later(deadline.interval, self._tick)

    def close(self) -> None:
        """Stop. The descriptors stay the owner's to close."""
        if not self._closed:
            self._closed = True
            self._timer.cancel()
            self._loop.remove_reader(self._in)
            if self._writing:
                self._loop.remove_writer(self._out)

    # In.

    def _readable(self) -> None:
        try:
            chunk = os.read(self._in, _CHUNK)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(f"the stream broke: {error.strerror}")
            return
        if not chunk:
            self._end("the stream ended")
            return
        self._take(chunk)

    def _take(self, chunk: bytes) -> None:
        if self._first is not None:
            try:
                rest = self._first(chunk)
            except StreamError as error:
                self._end(str(error))
                return
            if rest is None:
                return
            self._first, chunk = None, rest
        self.deadline.received(time.monotonic())
        try:
            messages = self._decoder.feed(chunk)
        except StreamError as error:
            self._end(str(error))
            return
        for message, size in messages:
            if isinstance(message, Credit):
                self._credit += message.size
                self._want()
            elif not isinstance(message, Beat):
                self._received(message, size)
            if not self._closed:
                self._keep_up()
            if self._closed:
                return

    def _keep_up(self) -> None:
        """Say something if it is time, though much is coming in: a turn of the loop may take long on a busy machine."""
        if time.monotonic() - self._sent_at >= self.deadline.interval * 0.9:
            if self.idle:
                self._urgent.append(encode(Beat()))
            self._want()
            self._writable()

    def _end(self, why: str) -> None:
        if not self._closed:
            self.deadline.ended()
            self.close()
            self._over(why)

    def _tick(self) -> None:
        self._readable()  # what came while this process was stopped counts first
        if self._closed:
            return
        now = time.monotonic()
        if self.deadline.tick(now) is Hearing.LOST:
            silence = self.deadline.silence
            self.close()
            self._over(f"nothing came for {silence:.1f} s")
            return
        if now - self._sent_at >= self.deadline.interval * 0.9 and not self._urgent:
            self.send(Beat())
        self._timer = self._loop.call_later(self.deadline.interval, self._tick)

    # Out.

    def _want(self) -> None:
        if not self._writing and not self._closed:
            self._writing = True
            self._loop.add_writer(self._out, self._writable)

    def _next(self) -> bytes | None:
        if self._urgent:
            return self._urgent.popleft()
        self._bulk_next = not self._bulk_next
        if self._bulk_next and (piece := self._piece()) is not None:
            return piece
        return self._line() or self._piece()

    def _line(self) -> bytes | None:
        if not self._lines or (self._credit <= 0 and self._lines[0][1]):
            return None
        was_full = self.full
        frame, counted = self._lines.popleft()
        self._waiting -= len(frame)
        if counted:
            self._credit -= len(frame)
        if was_full and not self.full:
            self._loop.call_soon(self._on_room)
        return frame

    def _piece(self) -> bytes | None:
        while self._bulk:
            message = next(self._bulk[0], None)
            if message is not None:
                return encode(message)
            self._bulk.popleft()
        return None

    def _writable(self) -> None:
        if not self._rest:
            frame = self._next()
            if frame is None:
                self._writing = False
                self._loop.remove_writer(self._out)
                return
            self._rest = memoryview(frame)
        try:
            written = os.write(self._out, self._rest)
        except BlockingIOError:
            return
        except OSError as error:
            self._readable()  # what the other end said last
            with contextlib.suppress(OSError):
                self._end(f"the stream broke: {error.strerror}")
            return
        self._sent_at = time.monotonic()
        self._rest = self._rest[written:]
