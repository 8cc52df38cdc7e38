"""The deadline between caller and agent: its table, and random histories of both ends in virtual time."""

from __future__ import annotations

import itertools
import random

import pytest

from ftlib.launch.stream.deadline import TABLE, Deadline, Event, Hearing


def test_the_table_is_whole_and_ends_are_final() -> None:
    assert set(TABLE) == set(itertools.product(Hearing, Event))
    for (state, event), after in TABLE.items():
        if state.over:
            assert after is state
        elif event is Event.RECEIVED:
            assert after is Hearing.ALIVE
        elif event is Event.ENDED:
            assert after is Hearing.ENDED
    assert TABLE[Hearing.ALIVE, Event.SILENT] is Hearing.QUIET, "one late heartbeat loses nobody"


def play(seed: int) -> None:
    """One end of a stream: it is stopped now and then, starved at times; the other speaks, is stopped, falls silent or ends."""
    chance = random.Random(seed)
    timeout = chance.choice([0.5, 3.0, 30.0])
    opening = timeout * chance.choice([1, 2, 10])
    now = chance.uniform(0, 1e6)
    deadline = Deadline(now, timeout=timeout, opening=opening)
    interval = deadline.interval
    silence = 0.0  # as counted by this model
    last = now
    heard = quiet_since = None
    prompt = True  # every gap since it last spoke was one of a process that runs
    mute = False
    for _ in range(chance.randrange(5, 120)):
        roll = chance.random()
        pause = interval * chance.uniform(0.9, 1.0) if roll < 0.8 else interval * chance.uniform(1, 3)
        if roll > 0.96:
            pause = timeout * chance.uniform(1, 100)  # this end was stopped
        mute = mute or chance.random() < 0.03
        before = deadline.state
        now += pause
        prompt = prompt and pause <= interval
        if not mute and chance.random() < 0.7:  # something came meanwhile, and is read before the clock is looked at
            deadline.received(now)
            silence, last, heard, prompt = 0.0, now, now, True
            quiet_since = None
            if not before.over:
                assert deadline.state is Hearing.ALIVE
        elif chance.random() < 0.005:
            deadline.ended()
            assert deadline.state is (before if before.over else Hearing.ENDED)
        silence += min(now - last, 2 * interval)
        last = now
        state = deadline.tick(now)
        if before.over:
            assert state is before
            continue
        allowed = timeout if heard is not None else opening
        if state is Hearing.LOST:
            assert silence >= allowed * 0.999, "lost, though it was silent for less, by the time in which this end ran"
        elif state is not Hearing.ENDED:
            assert silence < allowed
            if prompt and heard is not None:
                assert now - heard < timeout + interval, "silent for long, and this end looked every time"
        if state is Hearing.QUIET:
            quiet_since = now if quiet_since is None else quiet_since
            assert silence >= timeout / 3 * 0.999


@pytest.mark.parametrize("part", range(4))
def test_random_histories(part: int) -> None:
    for seed in range(part * 125, part * 125 + 125):
        play(seed)


@pytest.mark.soak
def test_ten_thousand_random_histories() -> None:
    for seed in range(10_000):
        play(seed)


def test_a_stopped_end_does_not_blame_the_other() -> None:
    deadline = Deadline(0.0, timeout=30.0, opening=60.0)
    deadline.received(1.0)
    assert deadline.tick(3600.0) is Hearing.ALIVE
    deadline.received(3600.1)
    assert deadline.silence == 0.0
