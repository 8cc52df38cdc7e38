"""Calls that may block (name lookups above all), kept away from an event loop and from the end of the process."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def apart(function: Callable[[], T], within: float) -> T:
    """What ``function`` returns or raises, called in a thread of its own. TimeoutError after ``within`` seconds: the thread is
    left alone then, and keeps no process from ending.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: Exception | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(value)  # type: ignore[arg-type]  # None only where T has it

    def call() -> None:
        value: T | None = None
        failed: Exception | None = None
        try:
            value = function()
        except Exception as error:  # noqa: BLE001 - raised where it is awaited
            failed = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, value, failed)

    threading.Thread(target=call, name="ftlib-apart", daemon=True).start()
    async with asyncio.timeout(within):
        return await done
