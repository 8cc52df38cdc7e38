"""Step times: the code of a byte, who is a straggler and who is not, what the program, the log and the metrics say of it."""

from __future__ import annotations

import logging
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ftlib import ConfigError, FTLib
from ftlib.common.counters import UNKNOWN
from ftlib.common.threads import Threads
from ftlib.core.plane.step_times import LEAST, WINDOW, StepTimes, Straggler, coded, seconds
from ftlib.core.tensors.trailer import SLOT_BYTES, Flag, RankRecord, TrailerCodec
from ftlib.settings.config import resolve
from tests.ftlib.crews.workers import Job, Worker

IDS = ("a", "b", "c", "d")


def told(*times: float) -> bytes:
    """Codes of so many seconds; 0 for 0."""
    return bytes(coded(time) if time else 0 for time in times)


def steps(step_times: StepTimes, count: int, *times: float, average: bool = True) -> tuple[list[str], list[str]]:
    """So many calls after such times of the members: who fell behind, who recovered."""
    fell, recovered = [], []
    for _ in range(count):
        verdict = step_times.note(IDS_OF[len(times)], told(*times), average=average)
        fell += [member_id for member_id, *_ in verdict.fell]
        recovered += verdict.recovered
    return fell, recovered


IDS_OF = {count: IDS[:count] for count in range(1, 5)}


@given(st.floats(1e-4, 3e5))
def test_a_code_is_within_half_a_step_of_what_it_stands_for(duration: float) -> None:
    assert duration / 1.0441 <= seconds(coded(duration)) <= duration * 1.0441


def test_codes_at_the_ends() -> None:
    assert seconds(0) == 0.0
    assert [coded(0.0), coded(1e-9), coded(1e-4), coded(1e9)] == [1, 1, 1, 255]
    assert coded(UNKNOWN) == 0
    assert 24 * 3600 < seconds(255) < 1e7
    assert all(coded(seconds(code)) == code for code in range(1, 256))


@pytest.mark.parametrize("size", [2, 3, 4])
def test_who_is_slow_for_ten_steps_is_told_of_once(size: int) -> None:
    step_times = StepTimes(2.0, 10)
    slow = [0.01] * (size - 1) + [0.025]
    assert steps(step_times, 9, *slow) == ([], [])
    last = step_times.note(IDS_OF[size], told(*slow), average=True)
    [(member, time, median, count)] = last.fell
    assert (member, count) == (IDS[size - 1], 10)
    assert time == pytest.approx(0.025, rel=0.05)
    assert median == pytest.approx(0.01, rel=0.05)
    assert steps(step_times, 50, *slow) == ([], []), "not again"


def test_one_step_in_time_begins_a_new_row() -> None:
    step_times = StepTimes(2.0, 10)
    for _ in range(20):
        assert steps(step_times, 9, 0.01, 0.01, 0.05) == ([], [])
        assert steps(step_times, 1, 0.01, 0.01, 0.01) == ([], [])


def test_it_has_recovered_after_as_many_steps_and_may_fall_again() -> None:
    step_times = StepTimes(2.0, 5)
    assert steps(step_times, 5, 0.01, 0.01, 0.05) == (["c"], [])
    for _ in range(3):  # at the limit: neither told again, nor that it has recovered
        assert steps(step_times, 4, 0.01, 0.01, 0.01) == ([], [])
        assert steps(step_times, 6, 0.01, 0.01, 0.05) == ([], [])
    assert steps(step_times, 5, 0.01, 0.01, 0.01) == ([], ["c"])
    assert steps(step_times, 4, 0.01, 0.01, 0.05) == ([], [])
    assert steps(step_times, 1, 0.01, 0.01, 0.05) == (["c"], [])


@pytest.mark.parametrize(
    "times",
    [
        pytest.param((60.0, 60.0, 61.0, 59.0), id="all evaluate"),
        pytest.param((0.019, 0.01, 0.011, 0.01), id="below the factor"),
        pytest.param((0.0009, 0.0001, 0.0001, 0.0001), id="a scheduler's noise"),
        pytest.param((0.0019, 0.0003, 0.0003, 0.0003), id="little beside what is compared"),
        pytest.param((0.03, 0.03, 0.03, 0.01), id="one is quick"),
        pytest.param((0.5, 0.0, 0.0, 0.0), id="nobody else says anything"),
        pytest.param((0.0, 0.01, 0.01, 0.01), id="the others do"),
        pytest.param((5.0,), id="alone"),
    ],
)
def test_that_is_no_straggler(times: tuple[float, ...]) -> None:
    assert steps(StepTimes(2.0, 2), 30, *times) == ([], [])


def test_who_takes_just_the_factor_is_no_straggler() -> None:
    step_times = StepTimes(1.0, 2)
    assert steps(step_times, 1, 0.01, 0.05) == ([], []), "from now on every step is looked at closely"
    assert steps(step_times, 5, 0.05, 0.05) == ([], [])


def test_half_of_the_members_may_be_slow() -> None:
    assert steps(StepTimes(2.0, 3), 3, 0.05, 0.01, 0.05, 0.01) == (["a", "c"], [])


def test_calls_without_work_between_them_neither_help_nor_harm() -> None:
    """Layer by layer: the first average of a step tells, the others follow at once."""
    step_times = StepTimes(2.0, 3)
    for _ in range(2):
        assert steps(step_times, 1, 0.01, 0.05) == ([], [])
        assert steps(step_times, 4, 0.0002, 0.0001) == ([], [])
    assert steps(step_times, 1, 0.01, 0.05) == (["b"], [])


def test_other_calls_of_who_averages_add_to_the_next_average() -> None:
    """What is slow is the reading of data; before the mean of a loss all take alike."""
    step_times = StepTimes(2.0, 3)
    assert steps(step_times, 1, 0.01, 0.01) == ([], [])
    for _ in range(3):
        assert steps(step_times, 1, 0.01, 0.01, average=False) == ([], [])
        fell, _ = steps(step_times, 1, 0.01, 0.05)
    assert fell == ["b"]
    assert step_times.facts()["b"]["last"] == pytest.approx(0.06, rel=0.05)


def test_who_never_averages_is_compared_at_every_call() -> None:
    assert steps(StepTimes(2.0, 3), 3, 0.01, 0.05, average=False) == (["b"], [])


def test_who_says_nothing_for_a_step_goes_on_where_it_was() -> None:
    step_times = StepTimes(2.0, 3)
    assert steps(step_times, 2, 0.01, 0.01, 0.05) == ([], [])
    assert steps(step_times, 5, 0.01, 0.01, 0.0) == ([], [])
    assert steps(step_times, 1, 0.01, 0.01, 0.05) == (["c"], [])


def test_a_quick_step_ends_the_count_of_slow_ones_and_not_the_report() -> None:
    """Who has been told of as a straggler stays one until it was quick for as many steps."""
    step_times = StepTimes(2.0, 3)
    assert steps(step_times, 5, 0.01, 0.05) == (["b"], [])
    assert steps(step_times, 2, 0.01, 0.01) == ([], [])
    row = step_times.facts()["b"]
    assert (row["slow_for"], row["straggler"]) == (0, True)
    assert steps(step_times, 1, 0.01, 0.05) == ([], []), "it was never told to have recovered"
    assert step_times.facts()["b"]["slow_for"] == 1
    assert steps(step_times, 2, 0.01, 0.01) == ([], [])
    assert steps(step_times, 1, 0.01, 0.01) == ([], ["b"])


def test_rows_outlast_a_view_change_and_end_with_their_member() -> None:
    step_times = StepTimes(2.0, 4)
    before, after = ("a", "b", "c", "e"), ("b", "c", "d")
    for _ in range(3):
        assert not step_times.note(before, told(0.05, 0.01, 0.05, 0.01), average=True).fell
    step_times.note(before, told(0.0001, 0.0001, 0.0001, 0.0001), average=True)  # added up by rank: of no use in another view
    verdict = step_times.note(after, told(0.01, 0.05, 0.01), average=True)
    assert [member for member, *_ in verdict.fell] == ["c"]
    assert set(step_times.facts()) == set(after)
    assert step_times._rows.keys() == {"c"}


def test_a_straggler_that_is_gone_does_not_keep_pace_again() -> None:
    step_times = StepTimes(2.0, 2)
    assert steps(step_times, 2, 0.01, 0.01, 0.05) == (["c"], [])
    assert steps(step_times, 3, 0.01, 0.01) == ([], [])


def test_the_history_is_a_window() -> None:
    step_times = StepTimes()
    steps(step_times, WINDOW, 0.1, 0.1)
    steps(step_times, WINDOW // 2 + 1, 0.01, 0.01)
    assert step_times.facts()["a"]["median"] == pytest.approx(0.01, rel=0.05)
    steps(step_times, 10 * WINDOW, 0.02, 0.02)
    assert len(step_times._recent) == WINDOW


def test_a_changing_pace_makes_no_new_trailer() -> None:
    codec = TrailerCodec(1, 2)
    region = torch.zeros(2 * SLOT_BYTES)
    trailers = []
    for busy in (7, 7, 200):
        codec.write(region.numpy(), RankRecord(1.0, 5, Flag(0), b"abcd", busy=busy), "SUM")
        trailers.append(codec.read(region.numpy()))
        assert codec.busy == bytes([0, busy])
    assert trailers[0] is trailers[1] is trailers[2]
    assert trailers[0].slots[1] == RankRecord(1.0, 5, Flag(0), b"abcd")
    codec.write(region.numpy(), RankRecord(1.0, 6, Flag(0), b"abcd", busy=9), "SUM")
    assert codec.read(region.numpy()).slots[1].samples == 6
    assert codec.busy[1] == 9


def test_settings() -> None:
    for wrong in ({"straggler_factor": 1}, {"straggler_steps": 0}, {"straggler_factor": "much"}):
        with pytest.raises(ConfigError, match="straggler"):
            resolve(wrong, {}, {})


class Clock(Threads):
    """Each thread has a time of its own, which stands still but for its ``work``."""

    def __init__(self) -> None:
        self._own = threading.local()

    def now(self) -> float:
        return super().now() * 1e-9 + getattr(self._own, "worked", 0.0)  # deadlines never come

    def work(self, duration: float) -> None:
        self._own.worked = getattr(self._own, "worked", 0.0) + duration


def by(clock: Clock, ft: FTLib) -> None:
    """All that ``ft`` measures of its calls it measures by ``clock``, and how long it has waited."""
    ft._plane.threads = ft._engine._threads = clock
    ft._engine._waiting.now = clock.now


def test_all_members_see_the_same(caplog: pytest.LogCaptureFixture) -> None:
    """Over the memory framework: callback, log, metrics, of a member that is slow for a while."""
    clock = Clock()
    found: dict[str, list[tuple[int, Straggler]]] = {}
    metrics: dict[str, dict[str, dict[str, float]]] = {}

    def body(worker: Worker) -> None:
        ft = worker.ft
        by(clock, ft)
        found[worker.name] = []
        ft.on_straggler(lambda straggler: found[worker.name].append((ft.step, straggler)))
        for step in range(20):
            clock.work(0.5 if worker.name == "w2" and 3 <= step < 9 else 0.1)
            assert ft.allreduce_average(torch.ones(4))
            if step == 7:
                metrics[worker.name] = ft.metrics()["step_times"]
        assert ft.metrics()["step_times"]["w2"]["last"] == pytest.approx(0.1, rel=0.05)

    with caplog.at_level(logging.INFO, "ftlib"), Job(3, straggler_steps=4) as job:
        job.run({f"w{i}": body for i in range(3)})
    for told_of in found.values():
        [(step, straggler)] = told_of
        assert step == 7, "at the end of the fourth slow step, before the call returns"
        assert (straggler.member, straggler.steps) == ("w2", 4)
        assert straggler.seconds == pytest.approx(0.5, rel=0.05)
        assert straggler.median == pytest.approx(0.1, rel=0.05)
    for seen in metrics.values():
        assert seen == metrics["w0"]
        assert seen["w2"]["slow_for"] == 5
        assert [seen[name]["straggler"] for name in ("w0", "w1", "w2")] == [False, False, True]
        assert seen["w1"]["median"] == pytest.approx(0.1, rel=0.05)
    events = [record.ftlib_event for record in caplog.records if "straggler" in getattr(record, "ftlib_event", "")]
    assert sorted(events) == ["straggler"] * 3 + ["straggler_recovered"] * 3


def test_what_a_callback_raises_passes_through_once(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()

    def body(worker: Worker) -> None:
        ft = worker.ft
        by(clock, ft)

        def callback(straggler: Straggler) -> None:
            raise KeyError(straggler.member)

        ft.on_straggler(callback)
        raised = 0
        for _ in range(5):
            clock.work(0.5 if worker.name == "w1" else 0.1)
            try:
                ft.allreduce_average(torch.ones(1))
            except KeyError:
                raised += 1
        assert raised == 1
        assert ft.step == 5

    with Job(2, straggler_steps=2) as job:
        job.run({"w0": body, "w1": body})


def test_nothing_is_compared_below_the_least() -> None:
    step_times = StepTimes(2.0, 1)
    assert steps(step_times, 5, LEAST / 100, LEAST / 9) == ([], [])
    assert step_times.facts() == {}
