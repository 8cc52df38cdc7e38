"""An event loop on a thread of its own, for callers that are synchronous.

The thread is a daemon: an interpreter that exits does not wait for it. If the loop ends by an exception, ``failed``
is told; nothing ends silently.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import selectors
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from typing import Any, TypeVar

from ..errors import ConsensusError

__all__ = ["Background"]

_LOG = logging.getLogger("ftlib.consensus")
_STOP_TIMEOUT = 5.0

T = TypeVar("T")


class Background:
    """NEW -> RUNNING (``start``) -> ENDED (``stop`` or failure). Cannot be started twice."""

    def __init__(self, name: str, failed: Callable[[BaseException], None]) -> None:
        """``name``: of the thread. ``failed``: called on the loop's thread if the loop ended by an exception."""
        self._selector = selectors.DefaultSelector()
        self._loop = asyncio.SelectorEventLoop(self._selector)
        self._loop.set_exception_handler(_log_exception)
        self._failed = failed
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._lock = threading.Lock()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop."""
        return self._loop

    @property
    def running(self) -> bool:
        """Whether the loop takes work."""
        return self._thread.is_alive() and not self._loop.is_closed()

    def here(self) -> bool:
        """Whether the caller is on the loop's thread."""
        return threading.get_ident() == self._thread.ident

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T], timeout: float) -> T:
        """Run ``coroutine`` on the loop and wait for it, at most ``timeout`` seconds (TimeoutError)."""
        if self.here():
            coroutine.close()
            raise ConsensusError("this call waits for the agent and cannot be made on the agent's own thread")
        if not self.running:
            coroutine.close()
            raise ConsensusError("the agent does not run")
        future: Future[T] = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(timeout)
        except TimeoutError:
            future.cancel()
            raise

    def post(self, function: Callable[..., object], *args: Any) -> bool:
        """Run ``function(*args)`` on the loop, soon; False where the loop has ended."""
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            return False
        return True

    def stop(self) -> None:
        """End the loop and wait for its thread (not when called on it). Idempotent."""
        with self._lock:
            self.post(self._loop.stop)
            if not self._thread.is_alive():
                if self._thread.ident is None and not self._loop.is_closed():  # never started
                    self._loop.close()
                return
        self.join()

    def join(self) -> None:
        """Wait for the end that somebody else asked for (not when called on the loop's own thread)."""
        if self._thread.ident is None or self.here():
            return
        self._thread.join(_STOP_TIMEOUT)
        if self._thread.is_alive():
            _LOG.error("the agent's thread did not end within %g s: a callback hangs", _STOP_TIMEOUT)

    def descriptors(self) -> Iterable[int]:
        """Every descriptor that the loop watches, and its own (for ``fork``). Takes no lock."""
        mapping = self._selector.get_map()
        fds = [] if mapping is None else [key.fd for key in list(mapping.values())]
        fileno = getattr(self._selector, "fileno", None)
        if fileno is not None:
            with contextlib.suppress(ValueError):
                fds.append(fileno())
        return fds

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        except BaseException as error:  # noqa: BLE001 - handed on; this is the last frame of the thread
            _LOG.critical("the agent's loop failed", exc_info=error)
            self._failed(error)
        finally:
            with contextlib.suppress(Exception):
                self._cancel_tasks()
            self._loop.close()

    def _cancel_tasks(self) -> None:
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 1.0))


def _log_exception(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    _LOG.error("in the agent's loop: %s", context.get("message"), exc_info=context.get("exception"))
