"""A worker's end is told once nothing of it holds its port."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

import pytest

from ftlib.launch.processes.remains import Remains
from ftlib.launch.processes.sockets import ControlSockets, bind_control
from ftlib.launch.processes.steward import Steward
from ftlib.launch.processes.worker import Worker

pytestmark = pytest.mark.process

TIMEOUT = 60.0

SLOW_TO_END = """
import os
ready, go = os.pipe()
if os.fork() == 0:
    memory = bytearray(os.urandom(1 << 20)) * 300  # to be freed before its descriptors are closed
    print("there", flush=True)
os.read(ready, 1)  # for ever
"""
"""A program whose child has its sockets, and takes longer to end than it does."""


class Lines:
    """What a worker says (a ``Sink``)."""

    full = False

    def __init__(self) -> None:
        self.came = asyncio.Event()

    def lines(self, _worker: Worker, _lines: list[bytes], *, error: bool) -> None:
        if not error:
            self.came.set()

    def pause(self, _stream: Any) -> None: ...

    def progress(self, _worker: Worker, _bar: bytes, *, error: bool) -> None: ...


def test_its_port_is_free_once_its_end_is_told() -> None:
    assert asyncio.run(asyncio.wait_for(_kill_and_bind(), TIMEOUT)) == -signal.SIGKILL


async def _kill_and_bind() -> int:
    loop, lines = asyncio.get_running_loop(), Lines()
    over: asyncio.Future[int] = loop.create_future()
    sockets = bind_control()
    port = sockets.port

    def ended(_worker: Worker, code: int) -> None:
        try:
            bind_control(port).close()
        except OSError as error:  # it is still held
            over.set_exception(error)
        else:
            over.set_result(code)

    steward = Steward(loop, ended)
    steward.take(worker := _spawn(lines, sockets))
    await lines.came.wait()
    os.kill(worker.pid, signal.SIGKILL)
    code = await over
    steward.close(sweep=False)
    return code


def _spawn(lines: Lines, sockets: ControlSockets) -> Worker:
    try:
        return Worker.spawn(0, "w0", [sys.executable, "-c", SLOW_TO_END], os.environ, lines, sockets.fds)
    finally:
        sockets.close()


def test_what_does_not_end_is_not_waited_for() -> None:
    async def wait_in_vain() -> None:
        over = asyncio.Event()
        Remains(asyncio.get_running_loop(), os.getpgrp(), over.set, 0.05)  # this process does not end
        assert not over.is_set()
        await over.wait()

    asyncio.run(asyncio.wait_for(wait_in_vain(), TIMEOUT))


def test_nothing_is_left() -> None:
    async def look() -> bool:
        process = await asyncio.create_subprocess_exec("true", start_new_session=True)
        await process.wait()
        over = asyncio.Event()
        Remains(asyncio.get_running_loop(), process.pid, over.set, TIMEOUT)
        return over.is_set()

    assert asyncio.run(look())
