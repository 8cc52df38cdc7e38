"""Looks for a notice of preemption until there is one, on a daemon thread; while nothing answers, with growing pauses."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

import aiohttp

from consensus import CarefulLogger

from ..settings.preemption import Signal, Source

logger = CarefulLogger("ftlib")

LONGEST_REST = 60.0
"""Most seconds between two looks, while none succeeds."""


class Watch:
    """Watches one source. ``start``, then ``stop``; ends by itself with the first notice."""

    def __init__(self, source: Source, notice: Callable[[str], None]) -> None:
        """``notice``: called, on the thread, with the text of the notice."""
        self._source = source
        self._notice = notice
        self._looking: asyncio.Task[None] | None = None
        """None until it has begun."""
        self._thread = threading.Thread(target=self._run, name="ftlib-preemption", daemon=True)

    def start(self) -> None:
        """Begin to look. ConfigError if the source is a signal, and this is not the main thread."""
        if isinstance(self._source, Signal):
            self._source.install()
        logger.info("looking for a notice of preemption: %s", self._source, extra={"ftlib_event": "preemption_watch"})
        self._looking = asyncio.new_event_loop().create_task(self._look())
        self._thread.start()

    def stop(self, timeout: float = 1.0) -> None:
        """Stop looking; waits ``timeout`` seconds for the thread's end. Idempotent; does nothing if it has not begun."""
        if self._looking is None:
            return
        with contextlib.suppress(RuntimeError):  # it has ended
            self._looking.get_loop().call_soon_threadsafe(self._looking.cancel)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _run(self) -> None:
        assert self._looking is not None
        loop = self._looking.get_loop()
        try:
            with contextlib.suppress(asyncio.CancelledError):
                loop.run_until_complete(self._looking)
        finally:
            loop.close()

    async def _look(self) -> None:
        rest, failing = self._source.interval, False
        async with aiohttp.ClientSession() as http:  # proxies of the environment are not used: the service is this host's own
            while True:
                try:
                    told = await self._source.look(http)
                except Exception as error:  # noqa: BLE001 - a service that is away, or answers nonsense, must not end the watch
                    rest = min(LONGEST_REST, 2 * rest)
                    if not failing:
                        why = str(error) or type(error).__name__
                        text = "no answer from %s where a notice of preemption would be: %s; still looking, at least every %g s"
                        extra = {"ftlib_event": "preemption_unknown", "why": why}
                        logger.warning(text, self._source, why, LONGEST_REST, extra=extra)
                    failing = True
                else:
                    if told:
                        self._notice(f"preemption, {self._source}: {told}")
                        return
                    if failing:
                        logger.info("%s answers again", self._source, extra={"ftlib_event": "preemption_watch"})
                    rest, failing = self._source.interval, False
                await asyncio.sleep(rest)
