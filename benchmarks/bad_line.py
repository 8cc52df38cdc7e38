"""A line to a server that is slow, breaks before a request arrives, or after: then nobody knows whether it was done.

Whatever a client sends in one piece is a request: it is delayed, and now and then its connection is closed instead; or it
arrives and the connection is closed when the answer comes; or nothing is ever heard of it. Besides, the line is down for a
while now and then: all connections are closed, and new ones as they come.
"""

from __future__ import annotations

import asyncio
import collections
import random
import threading
from collections.abc import Coroutine
from typing import Any, Self

__all__ = ["BadLine"]

DELAY = 0.03
"""Seconds of a request, at most."""
CUT, LOST, SILENT = 0.04, 0.04, 0.002
"""Of the requests so many never arrive, so many are never answered for, and so many just vanish, the connection standing."""
BETWEEN, DOWN = 6.0, (0.2, 1.5)
"""Seconds between two breakdowns on average, and how long they last."""


class BadLine:
    """On a loop of its own, on a thread. Use as a context manager."""

    def __init__(self, target: int, seed: int) -> None:
        """``target``: a port of this machine. ``seed``: of its moods; when the requests come is not in its hands."""
        self.port = 0
        self.done: collections.Counter[str] = collections.Counter()
        """What was done to how many requests."""
        self._target = target
        self._chance = random.Random(seed)
        self._down = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="bad-line", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _open(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self._spawn(self._break_down())

    async def _close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._hang_up()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _break_down(self) -> None:
        while True:
            await asyncio.sleep(self._chance.expovariate(1 / BETWEEN))
            self._down = True
            self.done["breakdowns"] += 1
            self._hang_up()
            await asyncio.sleep(self._chance.uniform(*DOWN))
            self._down = False

    def _hang_up(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._spawn(self._serve(reader, writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        self._writers.add(writer)
        try:
            if self._down:
                return
            answers, server = await asyncio.open_connection("127.0.0.1", self._target)
            writers.append(server)
            self._writers.add(server)
            losing = asyncio.Event()
            there, back = self._carry(reader, server, losing), self._bring(answers, writer, losing)
            await _any(there, back)
        except OSError:
            pass  # one end hung up
        finally:
            for each in writers:
                self._writers.discard(each)
                each.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, server: asyncio.StreamWriter, losing: asyncio.Event) -> None:
        """Requests, until one is cut off."""
        while data := await reader.read(1 << 16):
            await asyncio.sleep(self._chance.random() * DELAY)
            self.done["requests"] += 1
            mood = self._chance.random()
            if mood < CUT:
                self.done["cut off"] += 1
                return
            if mood < CUT + SILENT:
                self.done["vanished"] += 1
                continue
            if mood < CUT + SILENT + LOST:
                self.done["answers lost"] += 1
                losing.set()
            server.write(data)
            await server.drain()

    async def _bring(self, answers: asyncio.StreamReader, writer: asyncio.StreamWriter, losing: asyncio.Event) -> None:
        """Answers, until one is lost."""
        while (data := await answers.read(1 << 16)) and not losing.is_set():
            writer.write(data)
            await writer.drain()


async def _any(*ways: Coroutine[Any, Any, None]) -> None:
    """Until one of them ends; the others end with it."""
    tasks = [asyncio.ensure_future(way) for way in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception) and not isinstance(result, OSError):
                raise result
