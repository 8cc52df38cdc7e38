"""``FaultInjector`` in threads of one process: what happens at which call, and where it is refused."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from ftlib import ConfigError, DiLoCo, DistributedDataParallel, Excluded, FaultInjector, FTLib, InjectedFault, Status
from tests.ftlib.crews.crew import Crew, by_all
from tests.ftlib.crews.trainees import Trainee, exclude
from tests.harness.basics import TIMEOUT, eventually
from tests.harness.company import at_once, company, in_thread
from tests.train.local_sgd.test_course import Layers, inner_step


@pytest.fixture
def pair() -> Iterator[Crew]:
    with Crew(2, chaos=True) as crew:
        yield crew


def average(ft: FTLib, value: float) -> tuple[Status, float]:
    tensor = torch.full((4,), float(value))
    return ft.allreduce_average(tensor), tensor[0].item()


@by_all("pair")
def test_a_call_fails_in_its_step_alone(ft: FTLib, i: int) -> None:
    """The program catches it and calls again: nobody has lost anything."""
    if i == 1:
        FaultInjector(ft).fail_at(2)
    for step in range(4):
        assert ft.step == step
        if i == 1 and step == 2:
            with pytest.raises(InjectedFault, match="step 2"):
                average(ft, i)
        assert average(ft, i) == (Status.SUCCESS, 0.5)


@by_all("pair")
def test_an_allreduce_fails_and_is_repeated(ft: FTLib, i: int) -> None:
    assert average(ft, i)[0]  # the first call is over at all before the epoch is read
    before = ft.epoch
    if i == 1:
        FaultInjector(ft).fail_allreduce_at(2)
    for _ in range(3):
        assert average(ft, i) == (Status.SUCCESS, 0.5)
    assert (ft.step, ft.size) == (4, 2)
    assert ft.epoch > before or i == 0, "nothing broke"


@by_all("pair")
def test_faults_in_backward(ft: FTLib, i: int) -> None:
    """A call that DistributedDataParallel would enter in the middle of backward fails at its end, as any other."""
    torch.manual_seed(0)
    model = DistributedDataParallel(ft, nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)), bucket_mb=1e-5)
    faults, failed = FaultInjector(ft), 0
    if i == 0:
        faults.fail_at(3)
        faults.fail_allreduce_at(1)
    while ft.step < 5:
        model.zero_grad()
        try:
            model(torch.ones(2, 4)).sum().backward()
        except InjectedFault:
            assert (i, ft.step) == (0, 3)
            failed += 1
        else:
            assert model.status is Status.SUCCESS
    assert failed == (i == 0)


@by_all("pair")
def test_faults_of_a_barrier(ft: FTLib, i: int) -> None:
    faults = FaultInjector(ft)
    assert average(ft, i)[0]
    if i == 1:
        faults.fail_at(1)
        with pytest.raises(InjectedFault, match="step 1"):
            ft.barrier()
    assert ft.barrier() is Status.SUCCESS
    before = ft.epoch
    if i == 1:
        faults.fail_allreduce_at(1)
    assert ft.barrier() is Status.SUCCESS
    assert ft.epoch > before or i == 0, "nothing broke"  # at the other one it may have broken already as it looked
    if i == 1:
        faults.wedge_at(1, seconds=0.3)
    began = time.monotonic()
    assert ft.barrier() is Status.SUCCESS
    assert time.monotonic() - began >= 0.25
    assert (ft.step, ft.size) == (1, 2)


@by_all("pair")
def test_faults_of_a_step_that_is_executed(ft: FTLib, i: int) -> None:
    """The function has not begun where one is raised; where a group breaks, it runs once more from the state before."""
    trainee, faults = Trainee(ft), FaultInjector(ft)
    runs: list[float] = []

    def step() -> Status:
        runs.append(trainee.weight[0].item())
        return trainee.step()

    assert ft.execute(step)
    if i == 1:
        faults.fail_at(1)
        with pytest.raises(InjectedFault, match="step 1"):
            ft.execute(step)
        assert runs == [0.0]
    assert ft.execute(step)
    before = ft.epoch
    if i == 1:
        faults.fail_allreduce_at(2)
    assert ft.execute(step)
    assert ft.epoch > before or i == 0, "nothing broke"  # at the other one it may have broken already as it looked
    if i == 1:
        faults.wedge_at(3, seconds=0.3)
    began = time.monotonic()
    assert ft.execute(step)
    assert time.monotonic() - began >= 0.25
    assert trainee.weight.tolist() == [4.0] * 8
    assert sorted(set(runs)) == [0.0, 1.0, 2.0, 3.0]
    assert (ft.step, ft.size) == (4, 2)


@pytest.mark.parametrize("delay", [0, 1, 2])
@by_all("pair")
def test_faults_of_a_sync(ft: FTLib, i: int, delay: int) -> None:
    """One that is to go on beside inner steps does not begin before its end then, where the fault happens.

    Who catches it syncs after the next inner step, in the same sync as the other, who waits.
    """
    model, faults = Layers(), FaultInjector(ft)
    inner = torch.optim.SGD(model.parameters(), lr=0.5)
    outer = torch.optim.SGD(model.parameters(), lr=1.0)
    diloco = DiLoCo(ft, model, inner=inner, outer=outer, sync_every=3, delay=delay)
    ft.register_state(model=diloco)
    if i == 1:
        faults.fail_at(1)
        faults.fail_allreduce_at(2)
        faults.wedge_at(3, seconds=0.3)
    failed: list[tuple[int, int]] = []
    course, redone, took = [], [], 0.0
    with diloco:
        while diloco.syncs < 4:
            began, syncs, since = diloco.inner_steps, diloco.syncs, time.monotonic()
            try:
                inner_step(model, inner)
            except InjectedFault:
                failed.append((began + 1, diloco.syncs))
            if diloco.syncs > syncs:
                assert diloco.status is Status.SUCCESS
                course.append(next(diloco.global_model.parameters()).item())
                redone.append(ft.metrics()["redone"])
                took = time.monotonic() - since
        assert model.now == (course[-1], course[-1])
    assert failed == ([(6, 1)] if i == 1 else [])
    assert diloco.inner_steps == 12 + i
    assert took >= 0.25 or i == 0, "the last sync of the one with the faults hangs"
    # The other may have been at the end of the second sync, in the third, or in neither when the group broke.
    assert redone == [0, 0, 1, 1] if i == 1 else redone[-1] <= 1, "the third sync broke, and no other"
    assert (ft.step, ft.size) == (4, 2)
    told = torch.tensor(course)
    assert ft.broadcast(told, 0) and told.tolist() == course, "the same at both"


def test_a_wedged_member_is_given_up() -> None:
    """It hangs until it is told that the others went on; then its call ends as for anybody who is excluded."""
    with company(2, chaos=True, rejoin=False) as crew:
        first, second = at_once(*[lambda ft=ft: Trainee(ft) for ft in crew.members])
        FaultInjector(second.ft).wedge_at(1)
        ended: list[BaseException] = []

        def train() -> None:
            try:
                while True:
                    second.step()
            except Excluded as error:
                ended.append(error)

        thread = in_thread(train)
        assert first.step()
        eventually(lambda: second.ft.step == 1, "it has come to the step of the fault")
        time.sleep(0.2)  # were it in its call, it would wait for the other, and not end below
        assert second.ft._plane.current is None
        assert not ended
        exclude(second.ft)
        thread.join(TIMEOUT)
        assert ended


@by_all("pair")
def test_a_wedge_that_ends(ft: FTLib, i: int) -> None:
    if i == 1:
        FaultInjector(ft).wedge_at(1, seconds=0.3)
    assert average(ft, i)[0]
    began = time.monotonic()
    assert average(ft, i) == (Status.SUCCESS, 0.5)
    assert time.monotonic() - began >= 0.25
    assert ft.size == 2


def test_closing_ends_a_wedge() -> None:
    with Crew(1, chaos=True) as crew:
        ft = crew.job.workers["w0"].ft
        FaultInjector(ft).wedge_at(0)
        statuses: list[Status] = []
        thread = in_thread(lambda: statuses.append(average(ft, 1)[0]))
        time.sleep(0.1)
        assert not statuses
        ft.close()
        thread.join(TIMEOUT)
        assert statuses == [Status.ABORT]


@by_all("pair")
def test_a_step_that_is_over_has_no_fault(ft: FTLib, i: int) -> None:
    assert average(ft, i)[0]
    assert average(ft, i)[0]
    FaultInjector(ft).fail_at(1)
    assert average(ft, i)[0]


@by_all("pair")
def test_orders_that_make_no_sense(ft: FTLib, i: int) -> None:
    faults = FaultInjector(ft)
    faults.fail_at(10**6)
    with pytest.raises(ConfigError, match=r"has a fault already \(fail\): give another step"):
        faults.wedge_at(10**6)
    for step in (-1, 1.5, True, "3"):
        with pytest.raises(ConfigError, match="whole number"):
            faults.fail_at(step)  # type: ignore[arg-type]
    for seconds in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match="positive number"):
            faults.wedge_at(3, seconds=seconds)


def test_it_is_off_unless_allowed() -> None:
    with Crew(1) as crew, pytest.raises(ConfigError, match="chaos = true"):
        FaultInjector(crew.job.workers["w0"].ft)
