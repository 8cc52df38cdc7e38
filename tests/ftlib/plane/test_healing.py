"""A member that is more than one call behind goes on like a joiner, with the state of the others; by real agents."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from ftlib import Excluded, FTLib, Status, StepMismatch
from tests.ftlib.crews.trainees import Trainee, exclude
from tests.harness.basics import TIMEOUT, eventually
from tests.harness.company import at_once, company, in_thread

STEPS = 4


@contextmanager
def trained(count: int = 3) -> Iterator[list[Trainee]]:
    """Founders in rank order that have made some steps, and are all between calls."""
    with company(count) as crew:
        trainees: list[Trainee] = at_once(*[functools.partial(Trainee, ft) for ft in crew.members])
        for _ in range(STEPS):
            at_once(*[trainee.step for trainee in trainees])
        yield trainees


def lag(ft: FTLib, calls: int = 2) -> None:
    """It has lost so many calls, and what they led to."""
    with ft._plane.changed:
        ft._plane.finished -= calls
        ft._plane.step -= min(calls, ft._plane.step)
        ft._plane.results = None


def behind(caplog: pytest.LogCaptureFixture) -> list[int]:
    return [record.behind for record in caplog.records if getattr(record, "ftlib_event", "") == "healed"]  # type: ignore[attr-defined]


def alike(trainees: list[Trainee], step: int) -> bool:
    return all(torch.equal(each.weight, torch.full((8,), float(step))) and each.ft.step == step for each in trainees)


@pytest.mark.parametrize("calls", [2, 3])
@pytest.mark.parametrize("place", [0, 1])
def test_between_calls(place: int, calls: int, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever it is: the state is called after the first founder, and that one may be it."""
    with trained() as trainees:
        gone = trainees.pop()
        late, other = trainees[place], trainees[1 - place]
        late.weight.fill_(-77.0)
        lag(late.ft, calls)
        exclude(gone.ft)
        eventually(lambda: late.ft.size == other.ft.size == 2, "the others go on")
        assert at_once(functools.partial(late.step, 1000.0), other.step) == [Status.SUCCESS] * 2
        assert alike(trainees, STEPS + 1), "what it brought to that call counts nothing"
        eventually(lambda: behind(caplog) == [calls], "it is told, by another thread")
        at_once(functools.partial(late.step, 3.0), other.step)
        assert all(torch.equal(each.weight, torch.full((8,), STEPS + 3.0)) for each in trainees), "from then on it counts"


@pytest.mark.parametrize("place", [0, 1])
def test_within_a_call(place: int, caplog: pytest.LogCaptureFixture) -> None:
    with trained() as trainees:
        gone = trainees.pop()
        late, other = trainees[place], trainees[1 - place]
        results: list[Status] = []
        threads = [in_thread(lambda: results.append(late.step(1000.0))), in_thread(lambda: results.append(other.step()))]
        eventually(lambda: all(each.ft._plane.running is not None for each in trainees), "both wait for the third")
        late.weight.fill_(-77.0)
        lag(late.ft)
        exclude(gone.ft)
        for thread in threads:
            thread.join(TIMEOUT)
        assert results == [Status.SUCCESS] * 2
        assert alike(trainees, STEPS + 1)
        eventually(lambda: behind(caplog) == [2], "it is told, by another thread")


def test_it_has_counted_wrong_for_some_calls(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody can see it before the next view change, here one for a member that leaves after a call."""
    with trained() as trainees:
        lag(trainees[1].ft)
        trainees[1].weight.fill_(-77.0)
        at_once(*[trainee.step for trainee in trainees])
        leaving = trainees.pop()
        thread = in_thread(leaving.ft.close)
        while any(trainee.ft.size == 3 for trainee in trainees):
            at_once(*[trainee.step for trainee in trainees])
        thread.join(TIMEOUT)
        at_once(*[trainee.step for trainee in trainees])
        assert alike(trainees, trainees[0].ft.step)
        eventually(lambda: behind(caplog) == [2], "it is told, by another thread")


def test_without_registered_state_it_has_to_stop() -> None:
    with company(3) as crew:
        late, other, gone = crew.members
        for _ in range(STEPS):
            at_once(*[ft.barrier for ft in crew.members])
        lag(late)
        exclude(gone)
        eventually(lambda: late._plane.phase.value == "stopped", "it is told")
        with pytest.raises(StepMismatch, match=r"more than one call apart.*register_state"):
            late.barrier()
        late.close()
        assert other.barrier()
        assert other.size == 1
        with pytest.raises(Excluded):
            gone.barrier()


def test_it_lags_again_before_it_has_got_the_state(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever is healed is a joiner to the next view as well: it is asked for nothing, and blamed for nothing."""
    with trained(4) as trainees:
        late, senior, *gone = trainees
        lag(late.ft)
        late.weight.fill_(-77.0)
        for left, each in enumerate(reversed(gone)):
            exclude(each.ft)
            eventually(lambda size=3 - left: late.ft.size == senior.ft.size == size, "the others go on")  # type: ignore[misc]
        assert not late.ft._plane.state_id
        assert late.ft._plane.session is not None
        assert late.ft._plane.session.plan.healed == ()
        assert late.ft._plane.session.plan.blank == (late.ft._plane.member_id,)
        at_once(functools.partial(late.step, 1000.0), senior.step)
        assert alike([late, senior], STEPS + 1)
        eventually(lambda: behind(caplog) == [2], "it is told, by another thread")
