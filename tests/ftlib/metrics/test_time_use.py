"""Each second belongs to one state, no number falls, and the numbers add up, whatever is asked when."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ftlib.common.counters import State, TimeUse
from tests.ftlib.crews.workers import Job, Worker
from tests.harness.basics import eventually


def told(use: TimeUse, now: float, guess: State = State.AVERAGING) -> dict[str, float]:
    """What is not zero."""
    return {state: round(seconds, 9) for state, seconds in use.shown(now, guess).items() if seconds}


def begun() -> TimeUse:
    use = TimeUse(100.0)
    use.turn(103.0, State.COMPUTING)
    return use


def test_the_job_is_waited_for_then_the_program_computes() -> None:
    assert told(begun(), 110.0) == {"waiting": 3.0, "computing": 7.0}


def test_a_healthy_step() -> None:
    use = begun()
    use.entered(105.0)
    use.left(106.0)
    assert told(use, 108.0) == {"waiting": 3.0, "computing": 4.0, "averaging": 1.0}


def test_the_slowest_member_is_waited_for_no_longer_than_the_call_took() -> None:
    use = begun()
    use.entered(105.0)
    use.behind(0.25)
    use.left(106.0)
    assert told(use, 106.0)["waiting"] == 3.25
    use.entered(107.0)
    use.behind(50.0)
    use.left(108.0)
    assert told(use, 108.0)["waiting"] == 4.25


def test_a_view_change_within_a_call() -> None:
    """The wait for a view is the change's where both are known."""
    use = begun()
    use.entered(105.0)
    use.changed(0.5)
    use.waited(0.75)
    use.left(107.0)
    assert told(use, 107.0) == {"waiting": 3.25, "computing": 2.0, "changing": 0.5, "averaging": 1.25}


def test_what_comes_with_the_state_is_recovery() -> None:
    use = begun()
    use.entered(105.0)
    use.waited(1.0)
    use.recovered()
    use.left(109.0)
    use.entered(110.0)
    use.left(111.0)
    assert told(use, 111.0) == {"waiting": 4.0, "computing": 3.0, "recovering": 3.0, "averaging": 1.0}


def test_another_lifetime_is_waited_for() -> None:
    use = begun()
    use.entered(105.0)
    use.left(106.0)
    use.turn(106.0, State.WAITING)
    use.entered(109.0)
    use.left(110.0)
    assert told(use, 110.0) == {"waiting": 6.0, "computing": 2.0, "averaging": 2.0}


def test_the_time_outside_is_unknown_before_the_first_call_of_a_lifetime() -> None:
    use = begun()
    use.entered(105.0)
    assert use.outside < 0.0
    use.left(106.0)
    use.entered(108.0)
    assert use.outside == 2.0
    use.left(109.0)
    use.anew(110.0)
    use.entered(111.0)
    assert use.outside < 0.0


def test_a_time_outside_that_shows_nothing_of_this_members_pace() -> None:
    use = begun()
    use.left(106.0)
    use.entered(108.0)
    use.unknown()
    assert use.outside < 0.0
    use.left(109.0)
    use.entered(110.0)
    assert use.outside == 1.0


def test_what_a_unit_computes_is_not_outside_of_calls() -> None:
    use = begun()
    use.left(106.0)
    use.entered(108.0)
    use.computes(109.0)
    use.computed(112.0)
    assert use.outside == 2.0
    use.left(113.0)
    assert told(use, 113.0) == {"waiting": 3.0, "computing": 8.0, "averaging": 2.0}
    use.entered(114.0)
    assert use.outside == 1.0


def test_the_rest_of_backward_counts_in_the_next_call() -> None:
    """An open call says its time as it is entered, in the middle of backward."""
    use = begun()
    use.left(106.0)
    use.entered(108.0)
    use.computes(108.0)
    use.computed(111.0)
    use.carry(3.0)
    assert use.outside == 2.0
    use.left(112.0)
    assert told(use, 112.0) == {"waiting": 3.0, "computing": 8.0, "averaging": 1.0}
    use.entered(113.0)
    assert use.outside == 4.0
    use.left(114.0)
    use.entered(115.0)
    assert use.outside == 1.0, "it counts once"


def test_an_open_call_that_is_given_up_ends_the_time_before_it() -> None:
    use = begun()
    use.left(106.0)
    use.entered(108.0)
    use.computes(108.0)
    use.left(110.0)
    use.entered(111.0)
    assert use.outside == 1.0
    assert told(use, 111.0) == {"waiting": 3.0, "computing": 8.0}


def test_a_wrong_guess_is_put_right_and_no_number_falls() -> None:
    use = begun()
    use.entered(105.0)
    assert told(use, 108.0, State.WAITING) == {"waiting": 6.0, "computing": 2.0}
    use.left(109.0)  # nobody was waited for
    assert told(use, 109.0) == {"waiting": 6.0, "computing": 2.0, "averaging": 1.0}
    assert told(use, 112.0) == {"waiting": 6.0, "computing": 3.5, "averaging": 2.5}
    assert sum(told(use, 130.0).values()) == 30.0


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["enter", "leave", "ask", "change", "wait", "recover", "behind"]),
            st.floats(0, 10),
            st.sampled_from(State),
        ),
        max_size=40,
    )
)
def test_random_histories(steps: list[tuple[str, float, State]]) -> None:
    use, now, inside = TimeUse(0.0), 0.0, False
    use.turn(now, State.COMPUTING)
    before = dict.fromkeys((state.value for state in State), 0.0)
    for kind, seconds, guess in steps:
        if kind == "enter" and not inside:
            now, inside = now + seconds, True
            use.entered(now)
        elif kind == "leave" and inside:
            now, inside = now + seconds, False
            use.left(now)
        elif kind == "change" and inside:
            use.changed(seconds)
        elif kind == "wait" and inside:
            use.waited(seconds)
        elif kind == "behind" and inside:
            use.behind(seconds)
        elif kind == "recover" and inside:
            use.recovered()
        elif kind == "ask":
            now += seconds
            found = use.shown(now, guess)
            assert sum(found.values()) == pytest.approx(now, abs=1e-6)
            assert all(found[state] >= before[state] - 1e-9 for state in before)
            before = found


def test_workers_time_adds_up() -> None:
    """Of three real ones, one of which is killed while the others wait for it in a call."""

    def others_wait(job: Job) -> bool:
        calls = [job.workers[name].ft._plane.current for name in ("w0", "w1")]
        return all(call is not None and call.number == 4 for call in calls)

    def body(worker: Worker) -> float:
        began = worker.ft._plane.threads.now()
        for number in range(6):
            if worker.name == "w2" and number == 3:
                eventually(lambda: others_wait(worker.job), "the others are in the fourth call")
                worker.job.kill("w2")
                return 0.0
            worker.ft.allreduce_average(torch.ones(300))
        found = worker.ft.metrics()
        took = worker.ft._plane.threads.now() - began
        seconds = found["seconds"]
        assert seconds.keys() == {state.value for state in State}
        assert sum(seconds.values()) >= took - 0.1 * took
        assert seconds["changing"] > 0
        assert seconds["averaging"] > 0
        assert found["goodput"] == pytest.approx((seconds["computing"] + seconds["averaging"]) / sum(seconds.values()))
        return 1.0

    with Job(3) as job:
        found = job.run({f"w{i}": body for i in range(3)})
    assert found["w0"] == found["w1"] == 1.0
