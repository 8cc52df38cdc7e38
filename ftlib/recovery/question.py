"""A question that is asked on a thread of its own, ahead of the call that it is about, so that nobody waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from ..session import Session

__all__ = ["Question"]

T = TypeVar("T")
GoOn = Callable[[], bool]


class Question(Generic[T]):
    """Asked as soon as it is made. Owned by the training thread."""

    def __init__(self, session: Session, version: int, ask: Callable[[GoOn], T], go_on: GoOn) -> None:
        """``ask`` is given what says whether to go on: ``go_on``, as long as this is not closed.

        ``version``: the call on entry to which the state is asked about.
        """
        self.session = session
        self.version = version
        self._over = False
        self._answer: Future[T] = Future()

        def run() -> None:
            try:
                self._answer.set_result(ask(lambda: not self._over and go_on()))
            except BaseException as error:  # noqa: BLE001 - whoever waits for the answer raises it
                self._answer.set_exception(error)

        threading.Thread(target=run, name="ftlib-question", daemon=True).start()

    def result(self) -> T:
        """The answer, or what ``ask`` raised: waits for it."""
        return self._answer.result()

    def close(self) -> None:
        """Nobody wants to know any more. Idempotent."""
        self._over = True
