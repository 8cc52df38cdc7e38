"""A shared store for a benchmark: a directory, a Redis server or an etcd server of its own, which can be taken away.

A directory goes as that of an unmounted file system does: the benchmark has a mount namespace of its own (for which it must be
root), and a tmpfs in it that is lazily unmounted. A server goes by SIGKILL, and comes back on its port and data.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import ctypes
import os
import random
import shutil
import subprocess
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, Self

from tests.harness.servers import EtcdServer, RedisServer, Server

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


KINDS = ("file", "redis", "etcd")
_SERVERS: dict[str, type[RedisServer | EtcdServer]] = {"redis": RedisServer, "etcd": EtcdServer}
_CLONE_NEWNS = 0x20000


class Depot(ABC):
    """One store. ``lose`` it and ``restore`` it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.line: BadLine | None = None
        """What is between the members and a server, if anything."""

    @abstractmethod
    def lose(self) -> None:
        """From now on nobody reaches it."""

    @abstractmethod
    def restore(self) -> None:
        """As it was."""


class _Directory(Depot):
    """A directory below ``root``; one that can be lost is in a tmpfs."""

    def __init__(self, root: Path, *, mounted: bool) -> None:
        self._mount, self._kept = root / "mount", root / "kept"
        for path in (self._mount, self._kept):
            path.mkdir()
        if mounted:
            _run("mount", "-t", "tmpfs", "ftlib-benchmark", str(self._kept))
            (self._kept / "store").mkdir()
            self.restore()
        else:
            (self._mount / "store").mkdir()
        super().__init__(f"file://{self._mount / 'store'}")

    def lose(self) -> None:
        _run("umount", "--lazy", str(self._mount))

    def restore(self) -> None:
        _run("mount", "--bind", str(self._kept), str(self._mount))

    def close(self) -> None:
        """Unmount whatever is mounted."""
        for path in (self._mount, self._kept):
            if path.is_mount():
                _run("umount", "--lazy", str(path))


class _Served(Depot):
    """What a server keeps."""

    def __init__(self, server: Server, url: str) -> None:
        self._server = server
        super().__init__(url)

    def lose(self) -> None:
        self._server.kill()

    def restore(self) -> None:
        self._server.start()


def missing(kind: str) -> str:
    """What has to be installed for it, empty if nothing."""
    server = _SERVERS.get(kind)
    return "" if server is None or shutil.which(server.program) else f"apt-get install {server.package}"


@contextlib.contextmanager
def depot(kind: str, *, mounted: bool = False, trouble: int | None = None) -> Iterator[Depot]:
    """A store of that ``kind``, empty. ``mounted``: a directory that can be lost (PermissionError for who is not root).

    ``trouble``: a seed; between its members and a server is then a ``BadLine``.
    """
    root = Path(tempfile.mkdtemp(prefix=f"ftlib-{kind}-"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, root, ignore_errors=True)
        if kind == "file":
            if mounted:
                _own_mounts()
            directory = _Directory(root, mounted=mounted)
            stack.callback(directory.close)
            yield directory
            return
        server = _SERVERS[kind](root)
        server.start()
        stack.callback(server.kill)
        found = _Served(server, server.url)
        if trouble is not None:
            found.line = stack.enter_context(BadLine(server.port, trouble))
            found.url = f"{kind}://localhost:{found.line.port}"
        yield found


_mounts_are_own = False


def _own_mounts() -> None:
    """From now on this thread, and what it starts, has mounts that nobody else sees, and that go with the last of them."""
    global _mounts_are_own  # noqa: PLW0603 - as the namespace is the process's
    if not _mounts_are_own:
        if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS) != 0:
            raise PermissionError(ctypes.get_errno(), f"{os.strerror(ctypes.get_errno())}: mounts need root")
        _run("mount", "--make-rprivate", "/")
        _mounts_are_own = True


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=20, capture_output=True)
