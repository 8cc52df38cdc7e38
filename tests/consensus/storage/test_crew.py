"""Threads for calls that may hang: what waits, what is given up, and that there are never more of them."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from consensus.storage.crew import Call, Crew, NotBegunError, UnfinishedError

from .conformance import on_a_loop

_SOON = 0.5
"""Seconds after which a call that hangs is given up: a thread has begun it by then, also on a busy machine."""


def _threads(name: str) -> int:
    return sum(thread.name == name for thread in threading.enumerate())


class Hang:
    """Calls that hang until told."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.begun = 0
        self.wanted: list[bool] = []

    def __call__(self, call: Call[Any]) -> None:
        self.begun += 1
        assert self.over.wait(20)
        self.wanted.append(not call.given_up)


async def _until_none_hangs(crew: Crew) -> None:
    async with asyncio.timeout(10):
        while crew.hanging:
            await asyncio.sleep(0.002)


def _fail(_: Call[None]) -> None:
    raise KeyError("mine")


@on_a_loop
async def test_results_and_errors_come_back() -> None:
    crew = Crew("test-crew-a", 2)
    assert await asyncio.gather(*(crew.run(lambda _, n=n: n * n, 5.0) for n in range(20))) == [n * n for n in range(20)]  # type: ignore[misc]
    with pytest.raises(KeyError, match="mine"):
        await crew.run(_fail, 5.0)
    assert 1 <= _threads("test-crew-a") <= 2
    crew.close()
    crew.close()
    with pytest.raises(NotBegunError, match="closed"):
        await crew.run(_fail, 5.0)
    async with asyncio.timeout(20):
        while _threads("test-crew-a"):
            await asyncio.sleep(0.002)


@on_a_loop
async def test_what_hangs_is_given_up_the_rest_fails_at_once_and_later_all_is_well() -> None:
    crew, hang, ended = Crew("test-crew-b", 2), Hang(), list[str]()

    async def run(name: str) -> None:
        await crew.run(hang, _SOON, lambda: ended.append(name))

    results = await asyncio.gather(*(run(name) for name in "abcd"), return_exceptions=True)
    assert [type(result) for result in results] == [UnfinishedError, UnfinishedError, NotBegunError, NotBegunError]
    assert ended == ["c", "d"]
    began = time.monotonic()
    for _ in range(100):
        with pytest.raises(NotBegunError, match="2 earlier calls still hang"):
            await run("e")
    assert time.monotonic() - began < 5  # and not 100 times so long
    assert _threads("test-crew-b") == 2 and crew.hanging == 2
    hang.over.set()
    await _until_none_hangs(crew)
    assert hang.wanted == [False, False] and hang.begun == 2
    assert sorted(ended) == sorted(["c", "d", *"e" * 100, "a", "b"])
    assert await crew.run(lambda _: "well", 5.0) == "well"
    crew.close()


@on_a_loop
async def test_one_that_hangs_leaves_the_others_room() -> None:
    crew, hang = Crew("test-crew-c", 2), Hang()
    with pytest.raises(UnfinishedError):
        await crew.run(hang, _SOON)
    assert [await crew.run(lambda _: "well", 5.0) for _ in range(10)] == ["well"] * 10
    hang.over.set()
    await _until_none_hangs(crew)
    crew.close()


@on_a_loop
async def test_a_caller_that_is_cancelled_gives_up() -> None:
    crew, hang = Crew("test-crew-d", 1), Hang()
    waiting = asyncio.create_task(crew.run(hang, 20.0))
    queued = asyncio.create_task(crew.run(hang, 20.0))
    async with asyncio.timeout(20):
        while not hang.begun:
            await asyncio.sleep(0.002)
    for task in (waiting, queued):
        task.cancel()
    await asyncio.wait({waiting, queued})
    assert waiting.cancelled() and queued.cancelled() and crew.hanging == 1
    hang.over.set()
    await _until_none_hangs(crew)
    assert hang.wanted == [False]
    crew.close()


def test_a_loop_that_ends_meanwhile_is_no_crash(recwarn: pytest.WarningsRecorder) -> None:
    hang, crews = Hang(), list[Crew]()

    @on_a_loop
    async def story() -> None:
        crews.append(Crew("test-crew-e", 1))
        with pytest.raises(UnfinishedError):
            await crews[0].run(hang, _SOON)
        crews[0].close()

    story()
    hang.over.set()
    began = time.monotonic()
    while _threads("test-crew-e"):
        assert time.monotonic() - began < 20
        time.sleep(0.002)
    assert not recwarn.list
