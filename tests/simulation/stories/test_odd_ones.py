"""A member that does something else than the others stops with StepMismatch, however slowly it reads what they said.

The others end the attempt as soon as they see the difference. Who learns of it from that attempt alone would be too late each
time, in one view after the other, if its results always come later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from consensus.simulation import Host
from ftlib.core.calls.call import Call
from ftlib.core.calls.session import Session
from tests.harness.basics import around
from tests.simulation.data_plane import Habits, Pace, Trainers
from tests.simulation.data_plane.process import Process
from tests.simulation.training import Job

SIZE = 4
VETERAN, JOINER = 1, SIZE
"""Which process of the job is the odd one."""
FROM = 10
"""The call after which it is."""
VIEWS = 4
"""How many it may take at each member: the joiner's, the one that finds out, the one without it; and one more."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def other_samples(process: Process) -> None:
    """It deals the samples otherwise, of which no flush report tells."""
    share = process.plane.data.share

    def odd(call: Call) -> Any:
        found = share(call)
        return replace(found, deal=found.deal ^ 1) if call.number > FROM else found

    process.plane.data.share = odd  # type: ignore[method-assign]


def other_tensors(process: Process) -> None:
    """Its call has another signature, which a newcomer's report does not tell."""
    honest = process.trainer._call

    def odd() -> Call:
        call = honest()
        if process.plane.finished >= FROM or process.index == JOINER:
            call.layout = replace(call.layout, signature=b"odd".ljust(16))
        return call

    process.trainer._call = odd  # type: ignore[method-assign]


@pytest.mark.parametrize("late", [0.0, 0.05])
@pytest.mark.parametrize("habits", [None, Habits(raises=0.0, restarts=0.0)], ids=["blocking", "open"])
@pytest.mark.parametrize("index", [VETERAN, JOINER], ids=["veteran", "joiner"])
@pytest.mark.parametrize("make_odd", [other_samples, other_tensors])
def test_who_differs_stops_and_the_others_go_on(
    make_odd: Callable[[Process], None], index: int, habits: Habits | None, late: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    @around(monkeypatch, Trainers, "plane")
    def plane(honest: Any, self: Trainers, host: Host) -> Process:
        process: Process = honest(self, host)
        if process.index == index:
            self.promises.odd.add(host.id)
            self.rooms.late[host.id] = late  # each of its results comes later than the others'
            make_odd(process)
        return process

    pace = Pace(slow=0.0, unbuilt=0.0, endless=0.0)
    with Job(index, SIZE, compute=0.01, tensors=3, pace=pace, habits=habits) as job:
        job.world.run(0.3)
        if index == JOINER:
            job.join("j")
        processes = job.trainers.processes
        odd = lambda: next((each for each in processes.values() if each.index == index), None)  # noqa: E731
        job.world.run_until(lambda: (found := odd()) is not None and bool(found.trainer.ending), 20.0)
        culprit = odd()
        assert culprit is not None and culprit.trainer.ending.startswith("StepMismatch"), culprit
        job.world.run(1.0)
        job.go_on()
        rest = [process for process in processes.values() if process is not culprit]
        views = [process.plane.counters.views for process in rest]
        assert max(views) <= VIEWS, views
        assert not any(process.trainer.ending for process in rest)


def test_it_takes_a_report_that_names_who_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule undone: the others find the slow one out in each view, and it never learns of that."""
    monkeypatch.setattr(Session, "blame", lambda *_: None)
    with pytest.raises(AssertionError):
        test_who_differs_stops_and_the_others_go_on(other_samples, JOINER, None, 0.05, monkeypatch)
