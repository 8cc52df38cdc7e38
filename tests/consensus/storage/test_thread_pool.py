"""Threads for calls that may hang: what waits, what is given up, and that there are never more of them."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from consensus.storage.thread_pool import NotBegunError, PoolCall, ThreadPool, UnfinishedError
from tests.harness.basics import TIMEOUT

_SOON = 4.0
"""Seconds after which a call that hangs is given up: a thread has begun it by then, also on a busy machine."""


def _threads(name: str) -> int:
    return sum(thread.name == name for thread in threading.enumerate())


class Hang:
    """Calls that hang until told."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.begun = 0
        self.wanted: list[bool] = []

    def __call__(self, call: PoolCall[Any]) -> None:
        self.begun += 1
        assert self.over.wait(TIMEOUT)
        self.wanted.append(not call.given_up)


async def _until_none_hangs(pool: ThreadPool) -> None:
    async with asyncio.timeout(TIMEOUT):
        while pool.hanging:
            await asyncio.sleep(0.002)


def _fail(_: PoolCall[None]) -> None:
    raise KeyError("mine")


async def test_results_and_errors_come_back() -> None:
    pool = ThreadPool("test-pool-a", 2)
    assert await asyncio.gather(*(pool.run(lambda _, n=n: n * n, TIMEOUT) for n in range(20))) == [n * n for n in range(20)]  # type: ignore[misc]
    with pytest.raises(KeyError, match="mine"):
        await pool.run(_fail, TIMEOUT)
    assert 1 <= _threads("test-pool-a") <= 2
    pool.close()
    pool.close()
    with pytest.raises(NotBegunError, match="closed"):
        await pool.run(_fail, TIMEOUT)
    async with asyncio.timeout(TIMEOUT):
        while _threads("test-pool-a"):
            await asyncio.sleep(0.002)


async def test_what_hangs_is_given_up_the_rest_fails_at_once_and_later_all_is_well() -> None:
    pool, hang, ended = ThreadPool("test-pool-b", 2), Hang(), list[str]()

    async def run(name: str) -> None:
        await pool.run(hang, _SOON, lambda: ended.append(name))

    results = await asyncio.gather(*(run(name) for name in "abcd"), return_exceptions=True)
    assert [type(result) for result in results] == [UnfinishedError, UnfinishedError, NotBegunError, NotBegunError]
    assert ended == ["c", "d"]
    began = time.monotonic()
    for _ in range(100):
        with pytest.raises(NotBegunError, match="2 earlier calls still hang"):
            await run("e")
    assert time.monotonic() - began < TIMEOUT  # and not 100 times so long
    assert _threads("test-pool-b") == 2 and pool.hanging == 2
    hang.over.set()
    await _until_none_hangs(pool)
    assert hang.wanted == [False, False] and hang.begun == 2
    assert sorted(ended) == sorted(["c", "d", *"e" * 100, "a", "b"])
    assert await pool.run(lambda _: "well", TIMEOUT) == "well"
    pool.close()


async def test_one_that_hangs_leaves_the_others_room() -> None:
    pool, hang = ThreadPool("test-pool-c", 2), Hang()
    with pytest.raises(UnfinishedError):
        await pool.run(hang, _SOON)
    assert [await pool.run(lambda _: "well", TIMEOUT) for _ in range(10)] == ["well"] * 10
    hang.over.set()
    await _until_none_hangs(pool)
    pool.close()


async def test_a_caller_that_is_cancelled_gives_up() -> None:
    pool, hang = ThreadPool("test-pool-d", 1), Hang()
    waiting = asyncio.create_task(pool.run(hang, TIMEOUT))
    queued = asyncio.create_task(pool.run(hang, TIMEOUT))
    async with asyncio.timeout(TIMEOUT):
        while not hang.begun:
            await asyncio.sleep(0.002)
    for task in (waiting, queued):
        task.cancel()
    await asyncio.wait({waiting, queued})
    assert waiting.cancelled() and queued.cancelled() and pool.hanging == 1
    hang.over.set()
    await _until_none_hangs(pool)
    assert hang.wanted == [False]
    pool.close()


def test_a_loop_that_ends_meanwhile_is_no_crash(recwarn: pytest.WarningsRecorder) -> None:
    hang, pools = Hang(), list[ThreadPool]()

    async def story() -> None:
        pools.append(ThreadPool("test-pool-e", 1))
        with pytest.raises(UnfinishedError):
            await pools[0].run(hang, _SOON)
        pools[0].close()

    asyncio.run(story())
    hang.over.set()
    began = time.monotonic()
    while _threads("test-pool-e"):
        assert time.monotonic() - began < TIMEOUT
        time.sleep(0.002)
    assert not recwarn.list
