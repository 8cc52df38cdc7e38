"""Threads in virtual time: what the data plane relies on, and what only a simulation has."""

from __future__ import annotations

from random import Random

import pytest

from consensus.simulation import Host, World, judged
from tests.simulation.data_plane.machine.threads import SimulatedThreads


def process(violation: str = "") -> tuple[World, Host, SimulatedThreads]:
    world = judged(World(1))
    host = world.start("m0")
    return world, host, SimulatedThreads(host, Random(1), lambda: violation)


def test_a_condition_wakes_who_waits_and_times_out() -> None:
    world, _, threads = process()
    condition, seen = threads.condition(), []

    def wait() -> None:
        with condition:
            seen.append(condition.wait_for(lambda: len(seen) == 1, 1.0))
            seen.append(condition.wait(0.5))

    threads.thread(wait, "waits").start()
    world.run(2.0)
    assert seen == [False, False]

    def told() -> None:
        with condition:
            condition.wait(10.0)
            seen.append(threads.now())

    threads.thread(told, "told").start()
    world.run(0.5)
    before = world.now
    condition.notify_all()
    world.run(0.5)
    assert len(seen) == 3
    assert seen[2] - before < 0.1


def test_a_queue_keeps_the_order_and_blocks() -> None:
    world, _, threads = process()
    items, taken = threads.queue(), []

    def take() -> None:
        while (item := items.get()) is not None:
            taken.append(item)

    thread = threads.thread(take, "takes")
    thread.start()
    world.run(0.1)
    for item in (1, 2, None):
        items.put(item)
    world.run(0.1)
    assert taken == [1, 2]
    assert "ended" in repr(thread)


def test_nothing_runs_in_a_stopped_or_held_process_and_all_of_it_afterwards() -> None:
    world, host, threads = process()
    ticks: list[float] = []

    def tick() -> None:
        while True:
            threads.sleep(0.1)
            ticks.append(world.now)

    threads.thread(tick, "ticks").start()
    world.run(1.0)
    assert len(ticks) >= 9
    count = len(ticks)
    world.pause(host)
    world.run(1.0)
    assert len(ticks) == count
    world.resume(host)
    threads.resumed()
    world.run(0.55)
    assert len(ticks) >= count + 5
    count = len(ticks)
    threads.hold(0.5)
    world.run(0.45)
    assert len(ticks) == count
    world.run(0.5)
    assert len(ticks) >= count + 4


def test_a_process_ends_with_all_its_threads_wherever_they_wait() -> None:
    world, _, threads = process()
    ended: list[str] = []

    def sleeps() -> None:
        try:
            threads.sleep(100.0)
        finally:
            ended.append("sleeps")

    threads.thread(sleeps, "sleeps").start()
    threads.thread(lambda: ended.append("never"), "unstarted")
    world.run(0.1)
    threads.end()
    assert ended == ["sleeps"]
    world.run(200.0)
    assert ended == ["sleeps"]


def test_a_violation_that_a_thread_swallowed_is_raised_all_the_same() -> None:
    world, _, threads = process("m0 did wrong")
    threads.thread(lambda: None, "innocent").start()
    with pytest.raises(AssertionError, match="m0 did wrong"):
        world.run(0.1)
