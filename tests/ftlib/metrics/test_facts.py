"""What ``ft.metrics()`` returns, and that every key of it is documented."""

from __future__ import annotations

import contextlib
import re
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from consensus import Member, View
from consensus.runtime.net.metrics import METRICS, render
from ftlib import Excluded
from ftlib.common.counters import State
from ftlib.common.threads import Threads
from ftlib.core.calls.salvage import SalvagePlan
from ftlib.core.calls.session import Session
from ftlib.core.plane.facts import _guess, facts
from ftlib.core.plane.phase import Phase
from ftlib.core.plane.plane import Plane
from ftlib.core.tensors.trailer import Flag, RankRecord, Trailer
from ftlib.frameworks import framework_by_name
from tests.ftlib.crews.workers import Job, Worker, workers
from tests.ftlib.plane.sessions import LAYOUT, average, session
from tests.harness.basics import eventually

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "observability.md"


def trained(size: int) -> dict[str, Any]:
    """The metrics of one of ``size`` workers after three averages of 1200 bytes."""

    def body(worker: Worker) -> dict[str, Any]:
        for _ in range(3):
            worker.ft.allreduce_average(torch.ones(300))
        return worker.ft.metrics()

    with Job(size) as job:
        found = job.run({f"w{i}": body for i in range(size)})
    result = found["w0"]
    assert isinstance(result, dict)
    return result


def test_the_numbers() -> None:
    found = trained(2)
    assert (found["phase"], found["epoch"], found["size"], found["step"], found["calls"]) == ("active", 1, 2, 3, 3)
    assert found["rank"] in (0, 1)
    assert found["bytes_averaged"] == 3 * 1200
    calls = found["call_seconds"]
    assert calls["count"] == 3
    assert 0 < calls["last"] <= calls["max"] <= calls["sum"] < 60
    assert calls["buckets"][-1][1] == 3
    assert found["pauses"]["count"] == 0, "founding is no pause"
    assert found["in_call"] is None
    assert found["level"], "though nothing is registered: then there is nothing to get"
    assert found["build"]["torch"] == str(torch.__version__)


@pytest.mark.parametrize(
    ("plane", "behind", "state"),
    [
        ({"phase": Phase.FROZEN, "recovery": object()}, True, State.CHANGING),
        ({"recovery": object()}, True, State.RECOVERING),
        ({"session": object(), "has_state": True}, True, State.RECOVERING),
        ({"session": object(), "has_state": True, "level": True}, False, State.AVERAGING),
        ({"session": object()}, False, State.AVERAGING),
        ({"has_state": True}, False, State.AVERAGING),
        ({"session": object(), "has_state": True, "level": True}, True, State.WAITING),
        ({"phase": Phase.WAITING}, False, State.WAITING),
    ],
)
def test_what_a_call_in_progress_does(plane: dict[str, Any], behind: bool, state: State) -> None:
    """As far as that is known before its end."""
    usual = {"phase": Phase.ACTIVE, "recovery": None, "session": None, "has_state": False, "level": False}
    assert _guess(Mock(**{**usual, **plane}), behind=behind) is state


def test_a_joiner_is_level_once_it_has_come_in() -> None:
    """Also where nothing is registered, so that there is no state to get."""
    over = threading.Event()
    found: list[bool] = []

    def body(worker: Worker) -> None:
        if worker.name == "j":
            found.append(worker.ft.metrics()["level"])
        while not over.is_set() and worker.ft.allreduce_average(torch.ones(3)):
            if worker.name == "j" and worker.ft.size == 3 and worker.ft.metrics()["level"]:
                over.set()
        worker.ft.leave()

    with Job(2) as job:
        founders = [job.start(name, body) for name in ("w0", "w1")]
        eventually(lambda: all(each.ft.metrics()["level"] for each in founders), "they have founded the job")
        job.start("j", body).join()
        for each in founders:
            each.join()
    assert found == [False]
    assert over.is_set()


class Clock(Threads):
    """Stands still but for what it is set forward."""

    def __init__(self) -> None:
        self.moment = 0.0

    def now(self) -> float:
        return self.moment

    def forward(self, seconds: float) -> None:
        self.moment += seconds


@pytest.mark.parametrize(
    ("places", "spent"),
    [
        pytest.param({}, "waiting", id="nobody has been heard of"),
        pytest.param({"b": (0, 1)}, "waiting", id="one has not been heard of"),
        pytest.param({"b": (0, 1), "c": (0, 0)}, "waiting", id="one is outside of calls"),
        pytest.param({"b": (0, 1), "c": (0, 1)}, "averaging", id="all are in the call"),
        pytest.param({"b": (1, 0), "c": (0, 1)}, "averaging", id="one has ended it already"),
    ],
)
def test_the_time_in_a_call_is_waiting_until_all_have_come(places: dict[str, tuple[int, int]], spent: str) -> None:
    """The first call of the job, in progress for two seconds."""
    clock = Clock()
    clock.forward(3.0)
    plane = Plane("a", threads=clock)
    founding = session(1, SalvagePlan(0, 0, current_state_id="a", holders=("a",)), "a")
    assert plane.installing(founding.view) and plane.activate(founding)
    for member, (finished, current) in places.items():
        plane.peer_progress(member, finished, current)
    plane.enter(average())
    plane.counters.time_use.entered(clock.now())
    clock.forward(2.0)
    found = facts(plane, framework_by_name("memory"))
    assert found["in_call"] == {"number": 1, "seconds": 2.0, "text": LAYOUT.text}
    assert {state: seconds for state, seconds in found["seconds"].items() if seconds} == {spent: 2.0}


def test_calls_of_every_carrier_add_up_to_those_that_were_carried() -> None:
    plane, framework = Plane("a"), Mock(transports=("net", "gpu"), replaced=0)
    framework.metrics.return_value = {}
    for alone, accelerated in ((True, False), (False, True), (False, True), (False, True), (False, False)):
        plane.counters.calls += 1
        plane.counters.alone += alone
        plane.counters.accelerated += accelerated
    assert facts(plane, framework)["calls_by_transport"] == {"net": 1, "gpu": 3}


def test_calls_are_counted_by_what_carries_them() -> None:
    assert trained(2)["calls_by_transport"] == {"memory": 3}
    assert trained(1)["calls_by_transport"] == {"memory": 0}, "a lone worker sends nothing"


def test_a_kill_is_a_pause() -> None:
    def body(worker: Worker) -> dict[str, Any]:
        with contextlib.suppress(Excluded):  # the victim may still be in its first call
            worker.ft.allreduce_average(torch.ones(3))
        if worker.name == "w2":
            return {}
        if worker.name == "w0":
            worker.job.kill("w2")
        for _ in range(3):
            worker.ft.allreduce_average(torch.ones(3))
        assert worker.ft.size == 2
        return worker.ft.metrics()

    with Job(3) as job:
        found = job.run({f"w{i}": body for i in range(3)})["w0"]
    pauses = found["pauses"]
    assert pauses["count"] >= 1
    assert 0 < pauses["last"] == found["last_pause"] <= pauses["max"] <= pauses["sum"]


@workers(1)
def test_the_name_of_the_room_is_for_members_only(worker: Worker) -> None:
    """Who knows it can enter the group's store: ``/status`` shows what ``Member.shown`` does."""
    member = worker.ft.member_list[0]
    assert set(dict(member.meta)) - set(member.shown()) == {"_room"}
    assert len(member.fact("_room") or "") == 16


def test_every_key_is_documented() -> None:
    rows = [line.split("|")[1] for line in DOCUMENT.read_text().splitlines() if line.startswith("| ")]
    known = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert not keys() - known


def keys() -> set[str]:
    """Of any framework; what a ``Collective`` adds comes with the first one."""
    return set(trained(1)) | set(framework_by_name("rehearsal").metrics()) | {"collective"}


def test_the_table_of_metrics_names_keys_that_exist() -> None:
    named = {metric.key.split(".")[1] for metric in METRICS if metric.key.startswith("ftlib.")}
    assert named <= keys()


def test_who_follows_and_who_is_late_is_told_apart() -> None:
    """A backup worker's call counts as late, and not as a learner's, though its rank record has both flags."""
    plane, framework = Plane("a"), framework_by_name("memory")
    nowhere = facts(plane, framework)
    assert (nowhere["rank"], nowhere["size"], nowhere["epoch"], nowhere["peers"]) == (-1, 0, 0, {})
    names = "abcde"
    members = tuple(Member(name, "127.0.0.1", 1000 + number) for number, name in enumerate(names))
    ranks = {name: number for number, name in enumerate(names)}
    assert plane.activate(Session(View(3, "parent", members), SalvagePlan(7, 7), "a", ranks, None))
    flags = (Flag(0), Flag.FOLLOWING, Flag.LATE, Flag.FOLLOWING | Flag.LATE, Flag.NONFINITE)
    plane.trailer = Trailer.of(tuple(RankRecord(1.0, 0, each, bytes(4)) for each in flags))
    found = facts(plane, framework)
    assert (found["size"], found["epoch"]) == (5, 3)
    told = {name: (each["following"], each["late"], each["inner_steps"]) for name, each in found["peers"].items()}
    assert told == {"b": (True, False, 0), "c": (False, True, 0), "d": (False, True, 0), "e": (False, False, 0)}


def test_a_figure_that_raises_costs_no_other() -> None:
    """A collective's error is none of its groups."""
    more = {"mine": lambda: 1 / 0, "other": lambda: 7, "collective": lambda: {}["gone"]}
    found = facts(Plane("a"), framework_by_name("memory"), more)
    assert found["mine"] == {"error": "ZeroDivisionError: division by zero"}
    assert found["other"] == 7 and found["size"] == 0
    assert b"ftlib_collective" not in render({"ftlib": found})
