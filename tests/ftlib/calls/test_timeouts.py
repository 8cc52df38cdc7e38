"""``step_timeout`` ends every kind of waiting, and the text says for whom or for what."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import pytest
import torch

from ftlib import FTLibError, RebuildTimeout, Status
from ftlib.common.threads import Threads
from ftlib.core.calls.call import Call, Kind, Results
from ftlib.core.calls.session import Session
from ftlib.core.engine.waiting import WARN_AFTER, Limits, Patience, Waiting
from ftlib.core.plane.phase import Phase
from ftlib.core.plane.plane import Plane
from ftlib.core.tensors.layout import Layout
from ftlib.frameworks.gloo import GlooFramework
from ftlib.lifecycle.spare import Spare
from tests.ftlib.crews.workers import TIMEOUT, Job, Worker, workers

LIMIT = 0.3


def limited(worker: Worker, seconds: float = LIMIT, *, min_size: int = 1) -> None:
    engine = worker.ft._engine
    engine._limits = engine._waiting._limits = engine._arrival._limits = Limits(seconds, min_size)


def timed(function: object) -> str:
    """The text of the RebuildTimeout, which must come after the limit and long before any other deadline."""
    began = time.monotonic()
    with pytest.raises(RebuildTimeout) as caught:
        function()  # type: ignore[operator]
    assert LIMIT <= time.monotonic() - began < TIMEOUT / 2
    return str(caught.value)


@pytest.mark.parametrize("backend", ["memory", "gloo"])
def test_waiting_in_an_operation_for_a_peer(backend: str) -> None:
    def body(worker: Worker) -> str:
        worker.ft.barrier()
        text = ""
        if worker.name == "w1":
            assert over.wait(TIMEOUT)
        else:
            limited(worker)
            text = timed(lambda: worker.ft.allreduce_average(torch.ones(3)))
            limited(worker, TIMEOUT)
            over.set()
        assert worker.ft.allreduce_average(torch.ones(3))
        return text

    over = threading.Event()
    with Job(2, None if backend == "memory" else lambda _: GlooFramework()) as job:
        text = job.run({"w0": body, "w1": body})["w0"]
    assert text.startswith("call 2, average(float32[3]): not finished within 0.3 s; waiting for w1@127.0.0.1:")
    assert text.endswith(", not in this call yet")


def test_a_worker_that_gave_up_can_call_again() -> None:
    """The others redo the call; nobody is lost, and no gradient was touched."""

    def body(worker: Worker) -> None:
        worker.ft.barrier()
        tensor = torch.tensor([float(worker.name[1:])])
        if worker.name == "w1":
            limited(worker)
            timed(lambda: worker.ft.allreduce_average(tensor))
            limited(worker, TIMEOUT)
            gave_up.set()
        else:
            assert gave_up.wait(TIMEOUT)
        assert worker.ft.allreduce_average(tensor)
        assert tensor.item() == 0.5

    gave_up = threading.Event()
    with Job(2) as job:
        job.run({"w0": body, "w1": body})


def test_waiting_for_a_new_view() -> None:
    def body(worker: Worker) -> str:
        worker.ft.barrier()
        limited(worker)
        with worker.ft._plane.changed:
            worker.ft._plane._freeze()  # and nobody ever decides on a view
        return timed(worker.ft.barrier)

    with Job(1) as job:
        assert job.run({"w0": body})["w0"].startswith("call 2, barrier(): no new view for 0.3 s")


def test_waiting_to_be_admitted() -> None:
    def body(worker: Worker) -> None:
        worker.ft.barrier()
        met.set()
        assert over.wait(TIMEOUT)

    def joiner(worker: Worker) -> str:
        limited(worker)
        worker.consensus.seek_admission = lambda: None  # type: ignore[method-assign]  # nobody hears of it
        text = timed(worker.ft.barrier)
        over.set()
        return text

    met, over = threading.Event(), threading.Event()
    with Job(1) as job:
        job.start("w0", body)
        assert met.wait(TIMEOUT)
        text = job.run({"w9": joiner})["w9"]
        job.workers["w0"].join()
    assert "not admitted to a view yet for 0.3 s" in text


def test_the_time_of_a_spare_begins_as_it_is_admitted() -> None:
    """However long it had waited since it last looked, it has all of ``step_timeout`` for the call itself."""

    class Admission(Threads):
        """Its clock stands still but for waits, which end with the admission, all but over."""

        clock = 100.0

        def now(self) -> float:
            return self.clock

        def condition(self) -> threading.Condition:
            condition = super().condition()
            condition.wait = self.admitted  # type: ignore[method-assign]
            return condition

        def admitted(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            self.clock += 0.95 * timeout
            plane.phase, plane.session = Phase.ACTIVE, session
            return True

    threads = Admission()
    plane, session = Plane("w9", threads=threads), cast("Session", SimpleNamespace(size=2))
    call = Call(Kind.BARRIER, Layout(b"", "barrier", "barrier()", ()), [])
    call.began = threads.clock
    waiting = Waiting(plane, Limits(2.0), lambda: True)
    Spare(plane, Mock(trouble=None)).wait(call)
    assert waiting.session(call) is session
    assert threads.clock > 109.0
    assert waiting._for_session is not None
    assert waiting._for_session[1].deadline == call.began + 2.0 == threads.clock + 2.0


@workers(1)
def test_waiting_for_more_members(worker: Worker) -> None:
    """Too few for ``min_size`` is FAIL after that time: nothing is wrong, it may be called again."""
    limited(worker, min_size=2)
    tensor = torch.ones(2)
    began = time.monotonic()
    assert worker.ft.allreduce_average(tensor) is Status.FAIL
    assert LIMIT <= time.monotonic() - began < TIMEOUT / 2
    assert worker.ft.step == 0
    assert worker.ft._engine._waiting.phase_text() == "only 1 of at least 2 members are there"


def test_waiting_for_state() -> None:
    def body(worker: Worker) -> object:
        ft = worker.ft
        if worker.name == "w9":
            ft.register_state(state_dict=dict, load_state_dict=lambda _: None)
            ft._lives.life.transfer._step_timeout = LIMIT
            try:
                ft.barrier()
            except FTLibError as error:
                over.set()
                return error
            finally:
                ft.close()  # or the other would wait for it
        ft.register_state(state_dict=dict, load_state_dict=lambda _: None)
        ft._lives.life.transfer.fetch = None  # type: ignore[method-assign,assignment]  # it only gives
        worker.consensus.sources["/state"] = silent
        ft.barrier()
        job.start("w9", body)
        while not over.is_set() and ft.size < 2:
            ft.barrier()
        return None

    def silent(_: object) -> object:
        raise LookupError("the state is not there yet")

    over = threading.Event()
    with Job(1) as job:
        job.run({"w0": body})
        error = job.workers["w9"]
        error.thread.join(TIMEOUT)
        assert isinstance(error.result, RebuildTimeout), error.result
        assert "no state from w0@127.0.0.1" in str(error.result)
        assert "within 0.3 s" in str(error.result)


def test_waiting_to_adopt_a_result() -> None:
    """The donor starts to give and is silent from then on. However long it took until then: the limit holds from there."""

    def body(worker: Worker) -> str:
        worker.ft.allreduce_average(torch.ones(2))
        if worker.name == "w0":
            job.hub.fail_next(1, finish_elsewhere=True)
        if worker.name == "w1":
            assert ready.wait(TIMEOUT)
            report, adopt = worker.consensus.average_failure, worker.ft._engine.adopt

            def late(call: int, suspects: Sequence[str]) -> None:
                """Not before the other has finished: or it would be frozen in the call, and redo it."""
                while job.workers["w0"].ft._plane.finished < call:
                    time.sleep(0.001)
                report(call, suspects)

            def adopting(call: Call, session: Session) -> Results | None:
                limited(worker)
                return adopt(call, session)

            worker.consensus.average_failure = late  # type: ignore[method-assign]
            worker.ft._engine.adopt = adopting  # type: ignore[method-assign]
            try:
                worker.ft.allreduce_average(torch.ones(2))
            except RebuildTimeout as error:
                over.set()
                return str(error)
            return "adopted"
        ready.set()
        assert worker.ft.allreduce_average(torch.ones(2))
        assert over.wait(TIMEOUT)
        return ""

    ready, over = threading.Event(), threading.Event()
    from ftlib.core.plane import rebuild

    original = rebuild.donate
    rebuild.donate = lambda *_: []  # type: ignore[assignment]
    try:
        with Job(2) as job:
            text = job.run({"w0": body, "w1": body})["w1"]
    finally:
        rebuild.donate = original
    assert "not finished within 0.3 s" in text


def test_a_warning_names_who_is_waited_for_long_before(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Patience, "__init__", _impatient)

    def body(worker: Worker) -> None:
        worker.ft.barrier()
        if worker.name == "w1":
            assert said.wait(TIMEOUT)
        worker.ft.barrier()

    said = threading.Event()

    class Hearing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage()
            if text.startswith("call 2, ") and "waiting for w1" in text:  # it may be late for the first call as well
                said.set()

    handler = Hearing()
    logging.getLogger("ftlib").addHandler(handler)
    try:
        with Job(2) as job:
            job.run({"w0": body, "w1": body})
    finally:
        logging.getLogger("ftlib").removeHandler(handler)
    assert any("call 2, barrier(): waiting for" in record.getMessage() for record in caplog.records)
    assert math.isfinite(WARN_AFTER)


def _impatient(self: Patience, deadline: float, began: float, now: Callable[[], float]) -> None:
    self.deadline, self.began, self.now, self.warn_at = deadline, began, now, 0.1
