"""A few threads for calls that may hang, with callers that do not wait forever.

A system call on a network file system whose server is gone returns in minutes, or never, and nothing can end it. So a call has
a deadline after which its caller goes on without it. Its thread may be lost: the number of threads is fixed, and while all of
them hang, further calls fail at once. They are daemons: the interpreter exits without them.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class NotBegunError(Exception):
    """The call was not begun in time, and never will be. ``args``: one text with the reason."""


class UnfinishedError(Exception):
    """The call was begun and goes on, or hangs; its result will be lost."""


class PoolCall(Generic[T]):
    """One call. The function gets it as its argument."""

    def __init__(self, function: Callable[[PoolCall[T]], T], ended: Callable[[], None]) -> None:
        """Made by ``ThreadPool.run``."""
        self.function = function
        self.ended = ended
        self.loop = asyncio.get_running_loop()
        self.result: asyncio.Future[T] = self.loop.create_future()
        self.begun = False
        self.given_up = False
        """Whether nobody waits for the call any more: the function should change nothing from here on."""


class ThreadPool:
    """Runs calls on threads. Owned by one event loop."""

    def __init__(self, name: str, size: int) -> None:
        """``name``: of the threads. ``size``: the most threads; each is started when there is work for it."""
        self._name = name
        self._size = size
        self._calls: queue.SimpleQueue[PoolCall[Any] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # for the numbers below, and ``begun`` and ``given_up`` of calls
        self._threads = 0
        self._open = 0
        self._hanging = 0
        self._closed = False

    @property
    def hanging(self) -> int:
        """The number of threads in calls that were given up."""
        return self._hanging

    async def run(
        self, function: Callable[[PoolCall[T]], T], seconds: float | None, ended: Callable[[], None] = lambda: None
    ) -> T:
        """What ``function`` returns or raises, within ``seconds`` (None: whenever that is); else ``NotBegunError`` or
        ``UnfinishedError``.

        ``ended`` is called on the loop once the call is over, however late, and also if it was never begun.
        """
        call = PoolCall(function, ended)
        try:
            self._submit(call)
            await asyncio.wait({call.result}, timeout=seconds)
        except NotBegunError:
            ended()
            raise
        except asyncio.CancelledError:
            if call.result.done():
                call.result.exception()  # seen: nobody waits for it
            else:
                self._give_up(call)
            raise
        if call.result.done():
            return call.result.result()
        if self._give_up(call):
            raise UnfinishedError
        raise NotBegunError("all its threads are busy")

    def close(self) -> None:
        """End all idle threads; a busy thread ends when its call does. Idempotent."""
        with self._lock:
            if not self._closed:
                self._closed = True
                for _ in range(self._threads):
                    self._calls.put(None)

    def _submit(self, call: PoolCall[Any]) -> None:
        with self._lock:
            if self._closed:
                raise NotBegunError("it is closed")
            if self._hanging >= self._size:
                raise NotBegunError(f"{self._hanging} earlier calls still hang")
            self._open += 1
            if self._open > self._threads and self._threads < self._size:
                try:
                    threading.Thread(target=self._work, name=self._name, daemon=True).start()
                    self._threads += 1
                except RuntimeError:  # this process may start no more threads
                    if not self._threads:
                        self._open -= 1
                        raise NotBegunError("no thread can be started") from None
            self._calls.put(call)

    def _give_up(self, call: PoolCall[Any]) -> bool:
        """Returns whether the call was begun."""
        with self._lock:
            call.given_up = True
            if call.begun:
                self._hanging += 1
                return True
            self._open -= 1
        call.ended()
        return False

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            with self._lock:
                if call.given_up:
                    continue
                call.begun = True
            result: Any = None
            error: BaseException | None = None
            try:
                result = call.function(call)
            except BaseException as raised:  # noqa: BLE001 - it is the caller's
                error = raised
            with self._lock:
                self._open -= 1
            with contextlib.suppress(RuntimeError):  # the loop is closed
                call.loop.call_soon_threadsafe(self._finish, call, result, error)
            del call, result, error

    def _finish(self, call: PoolCall[Any], result: Any, error: BaseException | None) -> None:
        with self._lock:
            if call.given_up:
                self._hanging -= 1
        if not call.given_up and error is None:
            call.result.set_result(result)
        elif not call.given_up and error is not None:
            call.result.set_exception(error)
        call.ended()


async def on_daemon(function: Callable[..., T], *args: object) -> T:
    """What ``function(*args)`` returns or raises, on a thread of its own, however long it takes.

    As ``asyncio.to_thread``, but if it hangs neither the loop nor the interpreter waits for it at its end. Raises OSError if
    this process may start no more threads, which may pass.
    """
    pool = ThreadPool("ftlib-aside", 1)
    try:
        return await pool.run(lambda _call: function(*args), None)
    except NotBegunError as error:
        raise OSError(str(error)) from None
    finally:
        pool.close()
