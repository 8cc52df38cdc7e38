"""Handles: waited for by threads and tasks, chained, failed; the pure part, with futures that the test completes."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from typing import Any

import pytest
import torch

from ftlib import AsyncCollWork, AsyncFuncWork, AsyncWork, CollectiveError, CollectiveTimeout, PeerLost, Refused
from ftlib.collective.works import Outcome
from tests.harness.basics import eventually

LIMIT = 120.0


def made() -> tuple[Outcome, AsyncWork]:
    outcome = Outcome()
    return outcome, AsyncWork(outcome)


def test_any_number_of_threads_get_the_result() -> None:
    outcome, work = made()
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(work.wait(LIMIT))) for _ in range(5)]
    for thread in threads:
        thread.start()
    assert not work.done()
    outcome.settle(3)
    for thread in threads:
        thread.join(LIMIT)
    assert found == [3] * 5 and work.done() and work.wait() == 3


def test_an_error_is_raised_at_every_wait_and_in_what_follows() -> None:
    outcome, work = made()
    called: list[Any] = []
    first, second = work.then(called.append), work.then(lambda _: 1).then(called.append)
    outcome.settle(error=PeerLost("b is gone", group="g", operation="recv"))
    for each in (work, first, second, work, second):
        with pytest.raises(PeerLost, match="b is gone") as lost:
            each.wait(LIMIT)
        assert (lost.value.group, lost.value.operation) == ("g", "recv")
    assert called == []


def test_then_gives_the_result_and_the_arguments() -> None:
    outcome, work = made()

    def call(result: int, *args: Any, **kwargs: Any) -> Any:
        return result, args, kwargs, threading.current_thread() is threading.main_thread()

    following = work.then(call, 2, 3, word="x")
    assert isinstance(following, AsyncFuncWork)
    outcome.settle(1)
    assert following.wait(LIMIT) == (1, (2, 3), {"word": "x"}, False)
    assert work.then(call).wait(LIMIT) == (1, (), {}, False), "after the end as well"


def test_chains_can_be_walked() -> None:
    outcome, work = made()
    assert work.get_next_work() is None and work.get_last_work() is work
    first = work.then(lambda value: value + 1)
    other = work.then(lambda value: value * 10)
    last = first.then(lambda value: value + 1)
    assert work.get_next_work() is first and work.get_last_work() is last and other.get_last_work() is other
    outcome.settle(1)
    assert [each.wait(LIMIT) for each in (last, other)] == [3, 10]


def test_a_callback_that_returns_a_work_ends_with_the_last_of_its_chain() -> None:
    outcome, work = made()
    inner, inner_work = made()
    inner_last = inner_work.then(lambda value: value + 1)
    following = work.then(lambda _: inner_work)
    outcome.settle(None)
    time.sleep(0.05)
    assert not following.done()
    inner.settle(1)
    assert following.wait(LIMIT) == 2 == inner_last.wait(LIMIT)
    failing = work.then(lambda _: inner_work.then(lambda _: 1 / 0))
    with pytest.raises(ZeroDivisionError):
        failing.wait(LIMIT)
    own: list[AsyncWork] = []
    own.append(work.then(lambda _: (eventually(lambda: own, "it is there"), own[0])[1]))
    with pytest.raises(CollectiveError, match="the work of its own"):
        own[0].wait(LIMIT)


def test_callbacks_may_wait_for_each_other() -> None:
    """Also where one comes later: no fixed number of threads would do."""
    outcome, work = made()
    waits = [Outcome() for _ in range(20)]
    works = [work.then(lambda _, wait=wait: wait.wait(LIMIT) and wait.value) for wait in waits]
    outcome.settle(None)
    for number, wait in reversed(list(enumerate(waits))):
        wait.settle(number)
    assert [each.wait(LIMIT) for each in works] == list(range(20))


@pytest.mark.parametrize("limit", [float("inf"), 1e10, 30 * 86400])
def test_a_wait_may_be_for_longer_than_the_system_waits_at_once(limit: float) -> None:
    outcome, work = made()
    threading.Timer(0.05, outcome.settle, [1]).start()
    assert work.wait(limit) == 1


async def test_a_time_that_is_no_number_is_refused() -> None:
    outcome, work = made()
    for limit in (float("nan"), "1", 10**400):
        with pytest.raises(Refused, match="a timeout is a number of seconds"):
            work.wait(limit)  # type: ignore[arg-type]
        with pytest.raises(Refused, match="a timeout is a number of seconds"):
            await work.async_wait(limit)  # type: ignore[arg-type]
    outcome.settle(1)
    assert work.wait(LIMIT) == 1


def test_a_wait_that_is_too_long_can_be_repeated() -> None:
    outcome, work = made()
    following = work.then(lambda value: value)
    for each in (work, following):
        with pytest.raises(CollectiveTimeout) as late:
            each.wait(0.01)
        assert isinstance(late.value, TimeoutError)
    outcome.settle(5)
    assert (work.wait(), following.wait(LIMIT)) == (5, 5)


def test_a_wait_that_is_too_long_leaves_nothing_behind() -> None:
    """Whoever polls with a short time-out does so for hours."""
    outcome, work = made()

    async def poll() -> None:
        for _ in range(10):
            with pytest.raises(CollectiveTimeout):
                await work.async_wait(0.001)

    for _ in range(10):
        with pytest.raises(CollectiveTimeout):
            work.wait(0.001)
    asyncio.run(poll())
    assert outcome._callbacks == []
    outcome.settle(1)
    assert work.wait() == 1


async def test_ten_thousand_tasks_need_no_thread() -> None:
    outcome, work = made()
    before = threading.active_count()
    tasks = [asyncio.ensure_future(work.async_wait(LIMIT)) for _ in range(10_000)]
    await asyncio.sleep(0)
    threading.Timer(0.05, outcome.settle, [7]).start()
    assert set(await asyncio.gather(*tasks)) == {7}
    assert threading.active_count() <= before + 1
    assert await work == 7


async def test_a_task_can_be_cancelled_and_a_wait_can_be_too_long() -> None:
    outcome, work = made()
    task = asyncio.ensure_future(work.async_wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(CollectiveTimeout):
        await work.async_wait(0.01)
    outcome.settle(1)
    assert await work == 1


def test_nothing_keeps_a_result_that_the_program_has_dropped() -> None:
    class Big:
        pass

    outcome, work = made()
    following = work.then(lambda _: None)
    big = Big()
    reference = weakref.ref(big)
    outcome.settle(big)
    following.wait(LIMIT)
    gc.disable()
    try:
        del work, outcome, big
        eventually(lambda: reference() is None, "it is freed without a collection", LIMIT)
    finally:
        gc.enable()
    del following


def test_works_of_torch_are_works() -> None:
    class Work:
        def __init__(self) -> None:
            self.ended: torch.futures.Future[Any] = torch.futures.Future()

        def get_future(self) -> Any:
            return self.ended

    inner = Work()
    work = AsyncCollWork(inner, "result")
    assert not work.done()
    inner.ended.set_result(None)
    assert work.then(str.upper).wait(LIMIT) == "RESULT"
    failed = Work()
    failed.ended.set_exception(RuntimeError("peer closed"))
    with pytest.raises(RuntimeError, match="peer closed"):
        AsyncCollWork(failed).wait(LIMIT)
