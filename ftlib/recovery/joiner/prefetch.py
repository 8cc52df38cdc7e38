"""A request sent on a separate thread before the call that it names, so that nobody waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from ...common.devices import thread_device
from ...core.calls.session import Session
from .http_transport import GoOn

T = TypeVar("T")
B = TypeVar("B")


class Prefetch(Generic[T, B]):
    """A request that is sent at once. Owned by the training thread."""

    def __init__(
        self,
        session: Session,
        version: int,
        ask: Callable[[GoOn], T],
        go_on: GoOn,
        begin: Callable[[T], B] | None = None,
    ) -> None:
        """``ask`` makes the request. Its argument returns True while ``go_on`` does and the prefetch is not closed.

        ``version``: the call on entry to which the state is requested. ``begin``: called with the answer as soon as it is
        there, unless the prefetch is closed; ``result`` raises what ``begin`` raises.
        """
        self.session = session
        self.version = version
        self.begun: B | None = None
        """What ``begin`` returned, once ``result`` or ``close`` has returned."""
        self._over = False
        self._beginning = threading.Lock()
        """Held during ``begin`` and in ``close``, so that nothing begins after ``close``."""
        self._answer: Future[T] = Future()
        share_device = thread_device()

        def run() -> None:
            try:
                share_device()
                answer = ask(lambda: not self._over and go_on())
                with self._beginning:
                    if begin is not None and not self._over:
                        self.begun = begin(answer)
                self._answer.set_result(answer)
            except BaseException as error:  # noqa: BLE001 - ``result`` raises it
                self._answer.set_exception(error)

        threading.Thread(target=run, name="ftlib-prefetch", daemon=True).start()

    def result(self) -> T:
        """Wait for the answer; raises what ``ask`` or ``begin`` raised."""
        return self._answer.result()

    def close(self) -> None:
        """Drop the answer: nothing begins once this returns. Idempotent."""
        self._over = True  # before the lock, so that a request under way ends soon
        with self._beginning:
            pass
