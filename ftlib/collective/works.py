"""Handles of what is under way: wait for it, await it, or say what follows.

A work reads an ``Outcome`` that its maker settles. What it carries is made into the result by whoever looks first, so that the
thread that moves bytes never builds objects. Callbacks run on threads of their own and may wait for anything; waiting tasks of
asyncio need no thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from consensus import CarefulLogger

from ..common.threads import LONGEST
from ..links.errors import CollectiveError, CollectiveTimeout, Refused
from ..links.parts import each_guarded, guarded

_LOG = CarefulLogger("ftlib.collective")
DEFAULT_TIMEOUT = 600.0
"""Seconds of a wait that says nothing else: nothing blocks forever."""
_SETTLING = threading.RLock()
"""Of all outcomes: held for some assignments only. A finalizer that runs in between may settle another one. A forked child has
one of its own.
"""
_ANSWER = 10.0
"""Seconds more for the answer, once an operation has been given up."""
_IDLE = 5.0
"""Seconds after which an idle thread for callbacks ends."""


def check_timeout(timeout: float | None) -> None:
    """Refused unless it is a number of seconds, or None."""
    try:
        known = timeout is None or (isinstance(timeout, (int, float)) and not math.isnan(timeout))
    except OverflowError:  # an integer that no float can hold
        known = False
    if not known:
        raise Refused(f"a timeout is a number of seconds, not {timeout!r:.80}")


def limit_of(async_op: bool, timeout: float | None) -> float | None:
    """The time-out of an operation: one that blocks has one always, since nobody else could take it back.

    Refused, before anything is sent or asked for, if ``timeout`` is no number of seconds.
    """
    check_timeout(timeout)
    return DEFAULT_TIMEOUT if timeout is None and not async_op else timeout


class Patience:
    """What a waiting work may ask of its maker; the base knows nobody who is waited for."""

    def help(self, ready: Callable[[], bool], deadline: float) -> None:
        """Move bytes on this thread until ``ready()`` or the deadline; may return early."""

    def give_up(self) -> None:
        """The operation's own time-out has passed: end its work now, or soon."""

    def dropped(self) -> None:
        """Nobody can wait for the work any more. Called by a finalizer: on any thread, in the middle of anything."""

    def late(self) -> CollectiveTimeout:
        """The error of a wait that was too long: whom it waited for, and since when that one was last heard of."""
        return CollectiveTimeout("the work has not ended in time")


class Outcome:
    """What an operation has come to: a value or an error, settled once, by any thread.

    A ``concurrent.futures.Future`` as far as operations need one. Each message has two of these, so they are kept light: no
    lock and no condition of their own, and who waits brings a lock.
    """

    __slots__ = ("_callbacks", "_done", "_error", "_value")

    def __init__(self) -> None:
        self._done = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[], object]] = []

    def settle(self, value: Any = None, error: BaseException | None = None) -> bool:
        """It has ended. The first one counts, and is told so: a time-out may have come before."""
        with _SETTLING:
            if self._done:
                return False
            self._value, self._error = value, error
            self._done = True
            callbacks, self._callbacks = self._callbacks, []
        if callbacks:
            each_guarded(iter(callbacks))
        return True

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._done

    @property
    def error(self) -> BaseException | None:
        """The error it has ended with, None if it has not, or well."""
        return self._error

    @property
    def value(self) -> Any:
        """What it has ended with; raises its error."""
        if self._error is not None:
            raise self._error
        return self._value

    def wait(self, timeout: float) -> bool:
        """Block until it has ended, at most ``timeout`` seconds; whether it has."""
        if not self._done and timeout > 0:
            ended = threading.Lock()
            ended.acquire()
            release = ended.release
            self.on_end(release)
            try:
                ended.acquire(timeout=min(timeout, LONGEST))
            finally:
                self.off_end(release)
        return self._done

    def on_end(self, callback: Callable[[], object]) -> None:
        """Call ``callback()`` once it has ended, on the thread that ends it, or now: it must not wait."""
        with _SETTLING:
            now = self._done
            if not now:
                self._callbacks.append(callback)
        if now:
            guarded(callback)

    def off_end(self, callback: Callable[[], object]) -> None:
        """Whoever wanted to be called does not wait any more. Not called meanwhile, or called all the same."""
        if not self._done:
            with _SETTLING, contextlib.suppress(ValueError):
                self._callbacks.remove(callback)


def all_of(outcomes: list[Outcome], whole: Outcome) -> Outcome:
    """``whole``, which ends when all have ended, with the first error of any; unless it ends before."""
    lock, left = threading.Lock(), [len(outcomes)]

    def one() -> None:
        with lock:
            left[0] -= 1
            last = left[0] == 0
        if last:
            whole.settle(error=next((each.error for each in outcomes if each.error is not None), None))

    for each in outcomes:
        each.on_end(one)
    return whole


class AsyncWork:
    """Something under way. Any number of threads and tasks may wait for it; each gets its result, or raises its error."""

    def __init__(
        self,
        outcome: Outcome,
        finish: Callable[[Any], Any] | None = None,
        *,
        patience: Patience | None = None,
        timeout: float | None = None,
    ) -> None:
        """``finish`` makes the result of what ``outcome`` carries. ``timeout``: of the operation, in seconds from now."""
        self._ended = outcome
        self._finish = finish
        self.patience = patience or Patience()
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._lock = threading.RLock()
        self._made: tuple[Any, BaseException | None] | None = None
        """The result, or the error that it is."""
        self._next: AsyncWork | None = None

    def wait(self, timeout: float | None = None) -> Any:
        """Block until it has ended; its result. CollectiveTimeout after ``timeout`` seconds: it goes on all the same.

        Without ``timeout``, that of the operation holds, which then is given up; without that, ten minutes.
        """
        if not self._ended.done():
            until, own = self._until(timeout)
            self.patience.help(self._ended.done, until)
            if not self._ended.wait(until - time.monotonic()):
                if not own:
                    raise self.patience.late()
                self.patience.give_up()
                if not self._ended.wait(_ANSWER):
                    self._ended.settle(error=self.patience.late())  # nobody waits for it again
        return self.result()

    async def async_wait(self, timeout: float | None = None) -> Any:  # noqa: ASYNC109 - of the operation, as in wait
        """The same for asyncio: blocks no thread."""
        if not self._ended.done():
            until, own = self._until(timeout)
            if not await self._seen(until):
                if not own:
                    raise self.patience.late()
                self.patience.give_up()
                if not await self._seen(time.monotonic() + _ANSWER):
                    self._ended.settle(error=self.patience.late())  # as in wait
        return self.result()

    def __await__(self) -> Generator[Any, None, Any]:
        return self.async_wait().__await__()

    def then(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> AsyncFuncWork:
        """Call ``func(result, *args, **kwargs)`` on another thread when this has ended well; the work of that call.

        If this fails, so does that work, without calling ``func``. If ``func`` returns a work, the last one after it counts.
        """
        following = AsyncFuncWork(self, func, args, kwargs)
        with self._lock:
            self._next = self._next or following
        return following

    def done(self) -> bool:
        """Whether it has ended, well or not. Does not block."""
        return self._ended.done()

    def get_next_work(self) -> AsyncWork | None:
        """The first work that ``then`` made of this one, or None."""
        return self._next

    def get_last_work(self) -> AsyncWork:
        """The end of the chain that ``get_next_work`` leads along: this work if nothing follows."""
        last: AsyncWork = self
        while (following := last.get_next_work()) is not None:
            last = following
        return last

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once it has ended, on the thread that ended it: it must not wait."""
        self._ended.on_end(callback)

    def result(self) -> Any:
        """The result of a work that has ended; raises its error, each time anew."""
        with self._lock:
            if self._made is None:
                try:
                    value = self._ended.value
                    self._made = (value if self._finish is None else self._finish(value)), None
                except BaseException as error:  # noqa: BLE001 - whatever a callback raised is raised at every wait
                    self._made = None, error
                self._finish = None
            value, failure = self._made
        if failure is None:
            return value
        raise failure.about() if isinstance(failure, CollectiveError) else failure.with_traceback(None)

    def _until(self, timeout: float | None) -> tuple[float, bool]:
        """Until when to wait, and whether the operation's own time is over then. Refused if ``timeout`` is no number."""
        check_timeout(timeout)
        now = time.monotonic()
        until = now + (DEFAULT_TIMEOUT if timeout is None else timeout)
        if self._deadline is not None and (timeout is None or self._deadline <= until):
            return self._deadline, True
        return until, False

    async def _seen(self, until: float) -> bool:
        loop = asyncio.get_running_loop()
        ended = loop.create_future()

        def end() -> None:
            if not ended.done():
                ended.set_result(None)

        def told() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(end)

        self._ended.on_end(told)
        try:
            await asyncio.wait({ended}, timeout=max(0.0, until - time.monotonic()))
        finally:
            self._ended.off_end(told)
        return self._ended.done()


class AsyncFuncWork(AsyncWork):
    """A callback that runs when the work before it has ended. Made by ``then``."""

    def __init__(self, before: AsyncWork, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._ran = Outcome()
        self._before: AsyncWork | None = before
        super().__init__(self._ran, _outcome_of, patience=_Chained(self))
        before.on_end(lambda: CALLBACKS.submit(lambda: self._run(func, args, kwargs)))

    @property
    def before(self) -> AsyncWork | None:
        """The work whose end this waits for; None once that has come, so that nothing keeps its result."""
        return self._before

    def _run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        before, self._before = self._before, None
        assert before is not None  # it runs once
        try:
            value = func(before.result(), *args, **kwargs)
            on_device()
        except BaseException as error:  # noqa: BLE001 - it is raised at whoever waits for this
            self._ran.settle(error=error)
        else:
            self._follow(value)

    def _follow(self, value: Any) -> None:
        """End with ``value``; where it is a work, when the last one of its chain ends."""
        last = value.get_last_work() if isinstance(value, AsyncWork) else value
        if last is self:
            self._ran.settle(error=CollectiveError("a callback returned the work of its own: nothing would ever end it"))
        elif isinstance(last, AsyncWork) and not (last.done() and last.get_next_work() is None):
            last.on_end(lambda: self._follow(last))
        else:
            self._ran.settle(last)


class AsyncCollWork(AsyncWork):
    """A work of ``ft.group`` or of torch.distributed as one of these: it ends when the operation physically has."""

    def __init__(self, work: Any, result: Any = None) -> None:
        """``work``: what the operation returned, with ``future()`` or ``get_future()``; ``result``: what a wait returns."""
        outcome, ended = Outcome(), (work.future if hasattr(work, "future") else work.get_future)()

        def end(_: Any) -> None:
            try:
                ended.wait()
                on_device()
            except BaseException as error:  # noqa: BLE001 - it is raised at whoever waits
                outcome.settle(error=error)
            else:
                outcome.settle(result)

        super().__init__(outcome)
        ended.add_done_callback(lambda _: CALLBACKS.submit(lambda: end(None)))


class AsyncChannelWork(AsyncWork):
    """An operation of a ``Channel``. One that nobody can wait for any more, as its work is gone, takes no item."""

    def __del__(self) -> None:
        if not self._ended.done():
            self.patience.dropped()


class _Chained(Patience):
    """Of a callback: it waits for what the work before it waits for."""

    def __init__(self, work: AsyncFuncWork) -> None:
        self._work = weakref.ref(work)

    def help(self, ready: Callable[[], bool], deadline: float) -> None:
        """See ``Patience``."""
        if (before := self._before()) is not None:
            before.patience.help(lambda: before.done() or ready(), deadline)

    def late(self) -> CollectiveTimeout:
        """See ``Patience``."""
        before = self._before()
        return CollectiveTimeout("a callback has not ended in time") if before is None else before.patience.late()

    def _before(self) -> AsyncWork | None:
        work = self._work()
        return None if work is None else work.before


def _outcome_of(value: Any) -> Any:
    return value.result() if isinstance(value, AsyncWork) else value


def on_device() -> None:
    """Wait until what this thread has launched on its GPU has ended, if the process uses one."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        event = torch.cuda.Event()
        event.record()
        event.synchronize()


class Callbacks:
    """Threads for callbacks: one more whenever none is idle, since a callback may wait for another one. Idle ones end."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """In a forked child: the threads are not there, nor is what they were to do, and one may have held the lock."""
        self._changed = threading.Condition()
        self._tasks: deque[Callable[[], None]] = deque()
        self._idle = 0

    def submit(self, task: Callable[[], None]) -> None:
        """Run ``task`` soon. It should not raise: nobody would hear of it but the log."""
        with self._changed:
            self._tasks.append(task)
            if self._idle >= len(self._tasks):
                self._changed.notify()
                return
        threading.Thread(target=self._work, name="ftlib-callback", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                self._changed.wait_for(lambda: bool(self._tasks), _IDLE)
                self._idle -= 1
                if not self._tasks:
                    return
                task = self._tasks.popleft()
            try:
                task()
            except Exception:  # noqa: BLE001 - this thread has other tasks to do
                _LOG.exception("a callback failed")
            del task


CALLBACKS = Callbacks()


def _forget() -> None:
    """In a forked child: other threads are not there, and one may have held a lock."""
    global _SETTLING  # noqa: PLW0603
    _SETTLING = threading.RLock()
    CALLBACKS.forget()


os.register_at_fork(after_in_child=_forget)
