"""What the person who waits is told: by the log, by ``metrics``, and how seldom."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, replace
from typing import Any

import pytest

from consensus import Member, View
from ftlib.core.calls.salvage import SalvagePlan
from ftlib.core.calls.session import Session
from ftlib.core.plane.facts import facts
from ftlib.core.plane.plane import Plane
from ftlib.core.plane.progress import Peers, Progress, told
from ftlib.core.tensors.trailer import Flag, RankRecord, Trailer
from ftlib.frameworks import framework_by_name
from ftlib.recovery.joiner.progress_log import EVERY, ArrivingState, Meter, ProgressLog
from tests.harness.threads import Clock

FRAMEWORK = framework_by_name("memory")
HALF = Progress(total=1_200_000_000, got=600_000_000, rate=300e6, left=2.0, pending=0, braking=False)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def plane(clock: Clock) -> Plane:
    return Plane("a" * 16, threads=clock)


def fields(record: logging.LogRecord) -> dict[str, Any]:
    names = (
        *("ftlib_event", "state_bytes", "received_bytes", "bytes_per_second"),
        *("seconds_left", "pending", "waited_for", "replayed", "seconds", "call"),
    )
    return {name: getattr(record, name) for name in names if hasattr(record, name)}


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (HALF, "600 MB of 1.2 GB (50%) at 300 MB/s, 2.0 s left"),
        (replace(HALF, pending=1), "600 MB of 1.2 GB (50%) at 300 MB/s, 2.0 s left; 1 average waits to be replayed"),
        (
            replace(HALF, pending=5, braking=True),
            "600 MB of 1.2 GB (50%) at 300 MB/s, 2.0 s left; 5 averages wait to be replayed; the others wait for it",
        ),
        (replace(HALF, left=1.0), "600 MB of 1.2 GB (50%) at 300 MB/s, 1.0 s left"),
        (replace(HALF, left=0.2), "600 MB of 1.2 GB (50%) at 300 MB/s, less than 1 s left"),
        (replace(HALF, rate=0.0, left=None), "600 MB of 1.2 GB (50%)"),
        (replace(HALF, got=HALF.total, left=0.0, pending=12), "all 1.2 GB are here; 12 averages wait to be replayed"),
        (replace(HALF, total=0, left=None), "600 MB so far at 300 MB/s"),
        (replace(HALF, total=8, got=0, rate=0.0, left=None), "0 B of 8 B (0%)"),
    ],
)
def test_the_words(progress: Progress, text: str) -> None:
    assert str(progress) == told(json.loads(json.dumps(asdict(progress)))) == text


def test_a_meter_knows_the_pace_and_what_is_left(clock: Clock) -> None:
    meter = Meter(1000, clock.now)
    assert meter.progress(0, braking=False) == Progress(1000, 0, 0.0, None, 0, braking=False)
    clock.at += 2
    meter.got(200)
    assert meter.progress(3, braking=True, replayed=4) == Progress(1000, 200, 100.0, 8.0, 3, True, 4, 2.0)
    meter.got(800)
    assert meter.progress(0, braking=False).left == 0


def test_a_short_one_has_a_pace_as_well(clock: Clock) -> None:
    meter = Meter(1000, clock.now)
    meter.got(400)
    assert meter.progress(0, braking=False) == Progress(1000, 400, 0.0, None, 0, braking=False)
    clock.at += 0.5
    assert meter.progress(0, braking=False) == Progress(1000, 400, 800.0, 0.75, 0, braking=False, seconds=0.5)
    whole = Meter(1000, clock.now)
    whole.got(1000)
    assert whole.progress(0, braking=False).left == 0.0


def test_there_is_progress_before_the_first_byte(clock: Clock, plane: Plane) -> None:
    with ArrivingState(plane, waited_for=True):
        assert plane.recovery is not None
        assert plane.recovery() == Progress(0, 0, 0.0, None, 0, braking=True)
    assert plane.recovery is None


def test_the_pace_is_that_of_the_last_seconds(clock: Clock) -> None:
    """Whoever looks wants to know how long it still takes, not how it began."""
    meter = Meter(1000, clock.now)
    for count in [*[50] * 10, *[10] * 6]:  # a second each
        clock.at += 1
        meter.got(count)
    found = meter.progress(0, braking=False)
    assert (found.got, found.rate, found.left, found.seconds) == (560, 10.0, 44.0, 16.0)


def test_a_line_now_and_then(clock: Clock, plane: Plane, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ftlib")
    progress_log = ProgressLog(plane, lambda: HALF)
    for _ in range(int(20 / 0.25)):  # as often as blocks come
        progress_log.update()
        clock.at += 0.25
    assert [record.getMessage() for record in caplog.records] == [
        "getting the state: 600 MB of 1.2 GB (50%) at 300 MB/s, 2.0 s left"
    ] * int(20 / EVERY - 1)
    assert fields(caplog.records[0]) == {
        "ftlib_event": "recovery",
        "state_bytes": 1_200_000_000,
        "received_bytes": 600_000_000,
        "bytes_per_second": 300e6,
        "seconds_left": 2.0,
        "pending": 0,
        "waited_for": False,
        "replayed": 0,
        "seconds": 0.0,
    }


def test_a_short_one_is_told_at_its_end_alone(clock: Clock, plane: Plane, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ftlib")
    progress_log = ProgressLog(plane, lambda: replace(HALF, got=HALF.total, replayed=5, seconds=3.4))
    clock.at += 3.4
    progress_log.update()
    progress_log.caught_up(41)
    [record] = caplog.records
    assert record.getMessage() == "caught up: 1.2 GB of state in 3.4 s (353 MB/s), 5 averages replayed, counts from call 42 on"
    assert fields(record).items() >= {"ftlib_event": "caught_up", "call": 42, "replayed": 5, "seconds": 3.4}.items()


def test_one_average_is_one(plane: Plane, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ftlib")
    for count in (0, 1, 2):
        ProgressLog(plane, lambda count=count: replace(HALF, replayed=count)).caught_up(41)  # type: ignore[misc]
    found = [record.getMessage().split(", ")[1] for record in caplog.records]
    assert found == ["0 averages replayed", "1 average replayed", "2 averages replayed"]


@pytest.mark.parametrize(("seconds", "rate"), [(0.5, 2.4e9), (0.0, 0.0)])
def test_the_pace_of_a_very_short_one(plane: Plane, caplog: pytest.LogCaptureFixture, seconds: float, rate: float) -> None:
    caplog.set_level(logging.INFO, "ftlib")
    ProgressLog(plane, lambda: replace(HALF, got=HALF.total, seconds=seconds)).caught_up(41)
    assert fields(caplog.records[0])["bytes_per_second"] == rate


def test_one_that_the_others_wait_for(clock: Clock, plane: Plane, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ftlib")
    assert facts(plane, FRAMEWORK)["recovery"] is None
    with ArrivingState(plane, waited_for=True) as arrival:
        clock.at += 2
        arrival.got(100, 0)
        found = facts(plane, FRAMEWORK)["recovery"]
        assert (found["total"], found["left"]) == (0, None), "not known before the list of tensors is here"
        clock.at += 3
        arrival.got(500, 1200)
        found = facts(plane, FRAMEWORK)["recovery"]
    assert (found["total"], found["got"], found["rate"], found["left"], found["braking"]) == (1200, 600, 120.0, 5.0, True)
    assert facts(plane, FRAMEWORK)["recovery"] is None
    [record] = caplog.records
    assert record.getMessage() == "getting the state: 600 B of 1.2 kB (50%) at 120 B/s, 5.0 s left; the others wait for it"


def test_a_broken_one_is_over(plane: Plane) -> None:
    def fail() -> None:
        with ArrivingState(plane, waited_for=False) as arrival:
            arrival.got(1, 2)
            raise EOFError

    with pytest.raises(EOFError):
        fail()
    assert plane.recovery is None


def test_who_follows_is_told_by_the_others(plane: Plane) -> None:
    other = Member("b" * 16, "127.0.0.1", 1)
    members = (Member("a" * 16, "127.0.0.1", 2), other)
    session = Session(View(2, "parent", members), SalvagePlan(5, 5), members[0].id, {members[0].id: 0, other.id: 1}, None)
    assert plane.activate(session)
    untold = {"finished": None, "current": None, "seconds": None, "inner_steps": 0, "following": False, "late": False}
    assert facts(plane, FRAMEWORK)["peers"] == {other.id: untold}, "it is one of them before its first ping"
    plane.peer_progress(other.id, 5, 6)
    assert facts(plane, FRAMEWORK)["peers"] == {other.id: {**untold, "finished": 5, "current": 6, "seconds": 0.0}}
    own, theirs = (RankRecord(1.0, 0, flags, b"abcd") for flags in (Flag(0), Flag.FOLLOWING))
    plane.trailer = Trailer.of((own, theirs))
    assert facts(plane, FRAMEWORK)["peers"][other.id]["following"] is True


def test_only_a_step_more_of_a_peer_is_one() -> None:
    peers = Peers()
    peers.note("a", (3, 4), 10.0)
    assert not peers.inner, "it does none by itself"
    peers.note("a", (3, 4), 11.0, inner=5)
    peers.note("a", (3, 4), 12.0, inner=5)
    assert peers.inner["a"] == (5, 11.0) and peers.changes["a"] == 10.0
    peers.note("a", (3, 4), 13.0, inner=6)
    assert peers.inner["a"] == (6, 13.0)
