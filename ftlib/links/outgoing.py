"""What goes out on a link: a queue of messages, written in order by whichever thread comes first.

``send`` writes at once, in the caller's thread, unless earlier messages wait: then nothing is left to be woken up for. What the
path does not take is written by the loop. One thread writes at a time; callbacks are called with no lock held.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence

from .parts import each_guarded, guarded
from .paths import Path
from .wire import FRAME, Cursor, Kind, Prefix, Seal

Sent = Callable[[BaseException | None], None]
_TOGETHER = 32
"""The most messages in one write."""
_PIECES = 64
"""The most pieces of memory of a message in one write: the kernel takes 1024 in all."""


class _Message:
    __slots__ = ("body", "done", "frame", "header", "kind", "number", "ready", "sealed", "size")

    def __init__(self, kind: Kind, header: bytes, body: Cursor, done: Sent, *, sealed: bool) -> None:
        self.kind = kind
        self.header = header
        self.body = body
        self.done = done
        self.sealed = sealed
        self.size = body.left
        self.ready: Cursor | None = None
        """What can be written as it is; None before the first byte."""
        self.number = 0
        self.frame = 0

    def pieces(self, seal: Seal | None) -> list[memoryview]:
        """The next pieces to write."""
        if self.ready is None:
            sealed = self.sealed and seal is not None
            prefix = Prefix(self.kind, sealed, len(self.header), self.size).pack()
            if seal is None:
                head = prefix + self.header
            else:
                self.number = seal.next()
                head = prefix + seal.close(self.number, 0, self.header, prefix)
            self.sealed = sealed
            self.ready = Cursor(()) if sealed else self.body
            self.ready.begin_with(head)
        if not self.ready.left and self.sealed and self.body.left:
            assert seal is not None
            self.frame += 1
            self.ready = Cursor([memoryview(seal.close(self.number, self.frame, self.body.take(FRAME)))])
        return self.ready.some(_PIECES)


class Outgoing:
    """The queue. ``open`` gives it its path."""

    def __init__(self, seal: Seal, broken: Callable[[Exception], None]) -> None:
        """``seal``: for paths that others could read. ``broken``: the path does not write any more."""
        self._seal: Seal | None = seal
        self._broken = broken
        self._lock = threading.Lock()
        self._queue: deque[_Message] = deque()
        self._path: Path | None = None
        self._busy = False
        self._again = False
        self._error: BaseException | None = None
        self._refusal: BaseException | None = None
        self.blocked = False
        """Whether the path must have room before the next write."""
        self.messages = 0
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._queue)

    def open(self, path: Path) -> None:
        """Write to ``path`` from now on."""
        if not path.sealed:
            self._seal = None
        self._path = path

    def greet(self, path: Path, header: bytes) -> None:
        """Write a message of the meeting, before ``open``; by one thread at a time. Raises OSError if it is not taken."""
        message = _Message(Kind.MEETING, header, Cursor(()), lambda _error: None, sealed=False)
        views = message.pieces(self._seal)
        if path.write(views) < sum(map(len, views)):
            raise ConnectionError("its first bytes were not taken")

    def send(self, kind: Kind, header: bytes, payload: Sequence[memoryview], done: Sent, *, sealed: bool) -> None:
        """Add a message; ``done`` is called once, with the error that ended the link if it was not written."""
        message = _Message(kind, header, Cursor(payload), done, sealed=sealed)
        with self._lock:
            error = self._error or self._refusal
            alone = error is None and not self._queue and not self._busy and self._path is not None
            if error is None:
                self._queue.append(message)
                self._busy |= alone
                if kind is Kind.GOODBYE:
                    self._refusal = ConnectionAbortedError("the link is closed")
        if error is not None:
            guarded(done, error)
        elif alone:
            self._flush([message])
        else:
            self.flush()

    def refuse(self, error: BaseException) -> None:
        """Take no further messages; those that wait are written."""
        with self._lock:
            self._refusal = error

    def fail(self, error: BaseException) -> None:
        """End it: all that waits gets ``error``. The first error counts."""
        with self._lock:
            self._error = self._error or error
        self.flush()

    def flush(self) -> None:
        """Write what the path takes."""
        with self._lock:
            if self._busy:
                self._again = True
                return
            self._busy = True
        self._flush()

    def _flush(self, batch: list[_Message] | None = None) -> None:
        """``batch``: what is first in the queue, where that is known."""
        try:
            self._write_all(batch)
        except BaseException:  # Ctrl-C in a thread that sends, say: how much of a message was written is not known any more
            self._broken(InterruptedError("the thread that wrote to it was interrupted"))
            with self._lock:
                self._busy = False
            self.fail(InterruptedError("the thread that wrote was interrupted"))
            raise

    def _write_all(self, batch: list[_Message] | None) -> None:
        while True:
            written, more = self._write(batch)
            batch = None
            each_guarded((message.done for message in written), None)
            with self._lock:
                error = self._error
                failed: tuple[_Message, ...] = ()
                if error is not None:
                    failed = tuple(self._queue)
                    self._queue.clear()
                elif more or self._again:
                    self._again = False
                    continue
                if not failed:
                    self._busy = False
                    return
            each_guarded((message.done for message in failed), error)

    def _write(self, batch: list[_Message] | None) -> tuple[list[_Message], bool]:
        """One write. Returns what is whole now, and whether there is more to write at once."""
        with self._lock:
            path = self._path
            if path is None or self._error is not None:
                return [], False
            if batch is None:
                batch = list(itertools.islice(self._queue, _TOGETHER))
        if not batch:
            self.blocked = False
            return [], False
        views: list[memoryview] = []
        for message in batch:
            views += message.pieces(self._seal)
            if message.sealed or len(views) >= _PIECES:
                break
        offered = sum([len(view) for view in views])
        self.blocked = True  # whoever hears of room from here on calls ``flush``, so that nobody misses it
        try:
            count = path.write(views)
        except OSError as error:
            self.blocked = False
            self._broken(error)
            return [], False
        self.blocked = count < offered
        whole = self._wrote(batch, count)
        return whole, not self.blocked and bool(self._queue)

    def _wrote(self, batch: list[_Message], count: int) -> list[_Message]:
        self.bytes += count
        whole = []
        for message in batch:
            ready = message.ready
            if ready is None:
                break
            if count < ready.left or (message.sealed and message.body.left):  # not whole
                ready.advance(min(count, ready.left))
                break
            count -= ready.left
            whole.append(message)
        with self._lock:
            for _ in whole:
                self._queue.popleft()
        self.messages += len(whole)
        return whole
