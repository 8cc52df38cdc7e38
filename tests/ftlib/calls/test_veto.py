"""Inf or nan anywhere: the average is applied by nobody."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterator, Sequence
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from consensus import View
from ftlib import ConfigError, Status
from ftlib.core.calls.session import Session
from ftlib.core.plane.nonfinite_check import NonfiniteCheck
from ftlib.core.plane.plane import Plane
from ftlib.core.tensors.layout import lay_out
from ftlib.frameworks.gloo import GlooFramework
from ftlib.ftlib import FTLib
from ftlib.settings.config import resolve
from tests.ftlib.crews.crew import Crew, by_all
from tests.ftlib.crews.workers import TIMEOUT, Job, Worker, workers
from tests.ftlib.plane.sessions import AFTER_SEVEN, MEMBERS, session
from tests.harness.basics import eventually

BAD = [math.inf, -math.inf, math.nan]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.fixture(scope="module", params=["memory", "gloo"])
def trio(request: pytest.FixtureRequest) -> Iterator[Crew]:
    framework = None if request.param == "memory" else lambda _: GlooFramework()
    with Crew(3, framework, bucket_mb=0.01) as crew:
        yield crew


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@by_all("trio")
def test_one_bad_element_anywhere_stops_everybody(ft: FTLib, i: int, dtype: torch.dtype) -> None:
    """In the head, in a middle bucket, at the very end; by any worker; several kinds."""
    steps, vetoed = ft.step, ft.metrics()["vetoed"]
    cases = [(place, who, BAD[(place + who) % 3]) for place in range(3) for who in range(3)]
    for place, who, value in cases:
        tensors = [torch.full((3,), float(i)).to(dtype), torch.full((9000,), float(i)).to(dtype), torch.ones(2).to(dtype)]
        if i == who:
            tensors[place].view(-1)[-1] = value
        before = [tensor.clone() for tensor in tensors]
        assert ft.allreduce_average(tensors, weight=i + 1) is Status.FAIL
        for tensor, old in zip(tensors, before, strict=True):
            assert torch.equal(tensor.view(torch.uint8), old.view(torch.uint8)), "untouched, to the bit"
    assert ft.metrics()["vetoed"] == vetoed + len(cases)
    assert ft.step == steps
    good = torch.full((3,), float(i)).to(dtype)
    assert ft.allreduce_average(good) is Status.SUCCESS
    assert ft.step == steps + 1


@by_all("trio")
def test_a_vote_has_a_count_unless_somebody_is_against(ft: FTLib, i: int) -> None:
    """Whatever inf and nan do; it is no step, and not told as a veto."""
    steps, vetoed = ft.step, ft.metrics()["vetoed"]
    for against in ((), (0,), (1, 2), ()):
        expected = (Status.FAIL, 0) if against else (Status.SUCCESS, 3)
        assert ft.vote(i, against=i in against) == expected
    assert (ft.step, ft.metrics()["vetoed"]) == (steps, vetoed)


def test_inf_and_minus_inf_of_two_workers(trio: Crew) -> None:
    tensors = [torch.tensor([1.0, value]) for value in (math.inf, -math.inf, 0.0)]
    assert trio.all(lambda ft, i: ft.allreduce_average(tensors[i])) == [Status.FAIL] * 3


@by_all("trio")
def test_a_sum_that_overflows_is_vetoed_and_one_that_does_not_is_not(ft: FTLib, i: int) -> None:
    huge = torch.full((5000,), 3e38)
    ft.allreduce_average(torch.ones(1))  # from then on inputs are divided by 3, and then multiplied by their weight
    assert ft.allreduce_average(huge, weight=4) is Status.FAIL
    assert bool((huge == torch.tensor(3e38)).all())
    # Every element of the result is finite, though the sum over the elements, by which that is seen, is not.
    large = torch.full((5000,), 1e38)
    assert ft.allreduce_average(large) is Status.SUCCESS
    assert torch.allclose(large, torch.tensor(1e38))


@by_all("trio")
def test_a_missing_gradient_stays_missing(ft: FTLib, i: int) -> None:
    model = nn.Linear(2, 2)
    if i == 1:
        model.weight.grad = torch.full((2, 2), math.nan)
    assert ft.allreduce_average(model) is Status.FAIL
    assert model.bias.grad is None
    assert (model.weight.grad is None) == (i != 1)


@by_all("trio")
def test_weight_zero_keeps_nan_out(ft: FTLib, i: int) -> None:
    tensor = torch.full((4,), math.nan if i == 0 else 2.0)
    assert ft.allreduce_average(tensor, weight=0 if i == 0 else 1) is Status.SUCCESS
    assert torch.equal(tensor, torch.full((4,), 2.0))


def test_weights_that_sum_to_zero_fail_and_touch_nothing(trio: Crew) -> None:
    def body(ft: FTLib, i: int) -> None:
        steps = ft.step
        tensor, parameter = torch.full((4,), float(i)), nn.Parameter(torch.ones(2))
        assert ft.allreduce_average([tensor, parameter], weight=0) is Status.FAIL
        assert torch.equal(tensor, torch.full((4,), float(i)))
        assert parameter.grad is None
        assert ft.step == steps
        assert ft.metrics()["vetoed"] == vetoed[i]

    vetoed = trio.all(lambda ft, _: ft.metrics()["vetoed"])
    trio.all(body)


@by_all("trio")
def test_allreduce_lets_inf_and_nan_pass(ft: FTLib, i: int) -> None:
    for op in ("MEAN", "SUM", "PRODUCT", "MAX"):
        tensor = torch.tensor([1.0, math.nan if i == 1 else 1.0, math.inf if i == 2 else 1.0])
        assert ft.allreduce(tensor, op) is Status.SUCCESS
        assert math.isfinite(tensor[0])
        assert math.isnan(tensor[1])
        assert tensor[2] == math.inf


@workers(1)
def test_a_worker_alone_vetoes_too(worker: Worker) -> None:
    ft = worker.ft
    for dtype in DTYPES:
        tensor = torch.tensor([1.0, math.nan], dtype=dtype)
        assert ft.allreduce_average(tensor) is Status.FAIL
    assert ft.step == 0
    assert ft.allreduce_average(torch.ones(2)) is Status.NO_NEED
    assert (ft.step, ft.metrics()["vetoed"]) == (1, 4)


def test_it_can_be_let_pass() -> None:
    def body(ft: FTLib, i: int) -> float:
        tensor = torch.tensor([math.nan if i else 1.0])
        assert ft.allreduce_average(tensor) is Status.SUCCESS
        assert ft.metrics()["vetoed"] == 0
        return tensor.item()

    with Crew(2, nonfinite="pass") as crew:
        assert all(math.isnan(value) for value in crew.all(body))


def test_members_must_agree_on_it() -> None:
    veto, let_pass = resolve({}, {}, {}), resolve({}, {}, {"FTLIB_NONFINITE": "pass"})
    assert (veto.nonfinite, let_pass.nonfinite) == ("veto", "pass")
    assert veto.consensus.terms != let_pass.consensus.terms
    with pytest.raises(ConfigError, match="nonfinite in the arguments='drop': choose one of veto, pass"):
        resolve({"nonfinite": "drop"}, {}, {})


def test_the_log_names_the_worker_and_the_tensor(caplog: pytest.LogCaptureFixture) -> None:
    def body(ft: FTLib, i: int) -> None:
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        if i == 1:
            model[1].weight.grad[0, 0] = math.nan
        assert ft.allreduce_average(model) is Status.FAIL
        ft.barrier()  # its trailer tells the others who it was
        ft.barrier()

    with Crew(3) as crew, caplog.at_level(logging.WARNING, logger="ftlib"):
        caplog.clear()
        crew.all(body)
        said = [record.getMessage() for record in caplog.records]
        number = crew.all(lambda ft, _: ft.metrics()["finished_calls"])[0] - 2
    assert len(said) == 3, "one a worker"
    assert len([text for text in said if text.startswith(f"call {number}, average") and "1.weight" in text]) == 1
    others = [text for text in said if "1.weight" not in text]
    assert len(others) == 2
    assert all(text.startswith(f"call {number}, average") and "inf or nan at w1" in text for text in others)


def test_an_overflow_blames_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def body(ft: FTLib, _: int) -> None:
        assert ft.allreduce_average(torch.full((2,), 3e38), weight=1.5) is Status.FAIL  # each weighs more than is assumed
        ft.barrier()

    with Crew(2) as crew, caplog.at_level(logging.WARNING, logger="ftlib"):
        caplog.clear()
        crew.all(body)
        assert [("the sum overflowed" in record.getMessage()) for record in caplog.records] == [True, True]


@pytest.mark.parametrize("spoilt", [False, True])
def test_whoever_adopts_a_vetoed_result_vetoes_it_too(spoilt: bool) -> None:
    """The call ends at two workers and fails at the third, which then takes the same bits from one of them."""

    def body(worker: Worker) -> Status:
        tensor = torch.full((8000,), 1.0)
        assert worker.ft.allreduce_average(tensor) is Status.SUCCESS
        if worker.name == "w1":
            job.hub.fail_next(1, job.buckets - 1, finish_elsewhere=True)  # type: ignore[attr-defined]
            report_late(worker)
        if worker.name == "w2" and spoilt:
            tensor[-1] = math.inf
        before = tensor.clone()
        status = worker.ft.allreduce_average(tensor)
        if worker.name != "w1":
            both.wait(TIMEOUT)  # the next call of one fails, which would freeze the other in this one
        assert torch.equal(tensor, before)
        assert worker.ft.step == (1 if spoilt else 2)
        assert worker.ft.metrics()["adopted"] == (worker.name == "w1")
        assert worker.ft.metrics()["vetoed"] == spoilt
        assert worker.ft.barrier()
        return status

    def report_late(worker: Worker) -> None:
        """Not before the others have finished: or they would be frozen in the call, and redo it."""
        report = worker.consensus.average_failure

        def late(call: int, suspects: Sequence[str]) -> None:
            eventually(lambda: all(job.workers[name].ft._plane.finished >= call for name in ("w0", "w2")), "finished there")
            report(call, suspects)

        worker.consensus.average_failure = late  # type: ignore[method-assign]

    both = threading.Barrier(2)
    with Job(3, bucket_mb=0.01) as job:
        job.buckets = len(lay_out("", [(torch.float32, (8000,))], "SUM", int(0.01 * 2**20)).buckets)  # type: ignore[attr-defined]
        assert job.buckets > 2  # type: ignore[attr-defined]
        results = job.run({f"w{i}": body for i in range(3)})
    assert set(results.values()) == {Status.FAIL if spoilt else Status.SUCCESS}


def test_who_brought_inf_or_nan_says_so_in_the_next_call_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Else it would be blamed for what others bring later."""
    caplog.set_level(logging.WARNING, "ftlib")
    here = session(3, AFTER_SEVEN, "b")
    check, call, trailer = NonfiniteCheck(Plane("b")), Mock(number=8), Mock(tainted=(0, 2))
    call.name.return_value = "tensor 0"
    for spoilt in ([0], []):
        call.spoilt.return_value = spoilt
        check.explain(call, here)
        assert (check.tainted, check.asks) == (bool(spoilt), True)
        check.finished(here, trailer)
        assert (check.tainted, check.asks) == (False, False)
    told = [record.by for record in caplog.records if getattr(record, "ftlib_event", "") == "vetoed_elsewhere"]  # type: ignore[attr-defined]
    assert told == [here.names(("a", "c"))]


def test_who_has_missed_the_answer_neither_blames_nor_is_blamed_later(caplog: pytest.LogCaptureFixture) -> None:
    """The next call's result came from a donor, without the trailer that names those who had brought inf or nan."""
    caplog.set_level(logging.WARNING, "ftlib")
    here = session(3, AFTER_SEVEN, "b")
    check, call = NonfiniteCheck(Plane("b")), Mock(number=8)
    assert (check.tainted, check.asks) == (False, False), "nothing was vetoed yet"
    for spoilt in ([0], []):
        call.spoilt.return_value, call.name.return_value = spoilt, "tensor 0"
        check.explain(call, here)
        check.missed()
        assert (check.tainted, check.asks) == (False, False)
    caplog.clear()
    check.finished(here, Mock(tainted=(0,)))
    assert not caplog.records


@pytest.mark.parametrize(("count", "more"), [(8, False), (9, True)])
def test_the_first_eight_tensors_with_inf_or_nan_are_named(caplog: pytest.LogCaptureFixture, count: int, more: bool) -> None:
    caplog.set_level(logging.WARNING, "ftlib")
    plane, call = Plane("b"), Mock(number=8)
    call.spoilt.return_value, call.name.side_effect = list(range(count)), "t{}".format
    NonfiniteCheck(plane).explain(call, session(3, AFTER_SEVEN, "b"))
    [record] = caplog.records
    assert record.tensors == "t0, t1, t2, t3, t4, t5, t6, t7" + " and more" * more  # type: ignore[attr-defined]
    assert plane.counters.vetoed == 1


@pytest.mark.parametrize("size", [1, 2])
def test_who_is_alone_in_its_group_has_nobody_else_to_blame(caplog: pytest.LogCaptureFixture, size: int) -> None:
    """Another process of its replica has brought inf or nan, and says so itself."""
    caplog.set_level(logging.WARNING, "ftlib")
    ranks = {member.id: rank for rank, member in enumerate(MEMBERS[:size])}
    here = Session(View(3, "parent", MEMBERS[:size]), AFTER_SEVEN, "a", ranks, None)
    check = NonfiniteCheck(Plane("a"))
    check.explain(Mock(number=8, spoilt=Mock(return_value=[])), here)
    check.finished(here, Mock(tainted=()))
    assert len(caplog.records) == size - 1
