"""A loop whose time passes at once where nobody has anything to do, so that intervals of seconds are exact and cost nothing."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any


class _Clock(selectors.DefaultSelector):
    """Where the loop would sleep, the time is later."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "all wait for what never comes"
        self.now += timeout
        return super().select(0)


class _Loop(asyncio.SelectorEventLoop):
    """What is to run on a thread runs at once, on this one, and is answered ``away`` seconds later."""

    def __init__(self, away: float) -> None:
        self._clock = _Clock()
        self._away = away
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        answer: asyncio.Future[Any] = self.create_future()
        try:
            self.call_later(self._away, _settle, answer, func(*args), None)
        except Exception as error:  # noqa: BLE001 - whatever it is, who asked gets it
            self.call_later(self._away, _settle, answer, None, error)
        return answer


def _settle(answer: asyncio.Future[Any], value: Any, error: Exception | None) -> None:
    if answer.cancelled():
        return
    if error is None:
        answer.set_result(value)
    else:
        answer.set_exception(error)


def run(main: Coroutine[Any, Any, None], away: float = 0.01) -> None:
    """Run it to its end; ``away``: see ``_Loop``."""
    with asyncio.Runner(loop_factory=lambda: _Loop(away)) as runner:
        runner.run(main)
