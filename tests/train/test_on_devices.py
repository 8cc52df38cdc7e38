"""Averages under way in backward where parameters are on a device: the same bits as on the CPU, and nothing is sent too early.

The device is one that does everything late, or one whose accelerator is rehearsed; a GPU runs ``tests/gpu/test_training.py``.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ftlib import ConfigError, DiLoCo, DistributedDataParallel, FTLib, Optimizer, Status
from ftlib.common.devices import Event
from ftlib.core.calls import open_device_attempt
from ftlib.core.calls.open_device_attempt import OpenDeviceAttempt
from ftlib.core.engine.call_lock import CallLock
from ftlib.core.tensors.staging import Slot
from ftlib.frameworks import gloo, sockets
from ftlib.frameworks.accelerators.group import HybridGroup
from ftlib.frameworks.accelerators.rehearsal import Faults, RehearsalFramework
from ftlib.frameworks.base import Operation, Work
from tests.ftlib.crews.crew import Crew
from tests.ftlib.devices.test_devices import FLOATS, DeviceCrew
from tests.harness.basics import eventually
from tests.harness.cluster import Cluster
from tests.harness.late_device import LateDevice
from tests.harness.nursery import Nursery
from tests.train.test_backward_processes import SIZES, come_and_die, judge

STEPS = 6
BUCKETS = {"bucket_mb": 0.002, "first_bucket_mb": 0.0005}
"""The model has seven buckets of these sizes, the head among them."""
needs_proc = pytest.mark.skipif(not sockets.supported(), reason="needs /proc")


class Model(nn.Module):
    """A parameter in float64, which is on the CPU in these tests, if that is wanted."""

    def __init__(self, mixed: bool = False) -> None:
        super().__init__()
        drawn = torch.Generator().manual_seed(3)
        self.idle = nn.Linear(3, 3)
        """Never used. Registered first: its buckets, which are complete at the end only, come last."""
        self.layers = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 5))
        self.wide = nn.Parameter(torch.zeros(7, dtype=torch.float64)) if mixed else None
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=drawn))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(inputs)
        return found if self.wide is None else found + self.wide.sum()


def data(step: int, worker: int) -> torch.Tensor:
    return torch.randn(8, 20, generator=torch.Generator().manual_seed(100 * step + worker))


class Trained:
    """What one worker's training came to."""

    def __init__(self, ft: FTLib, worker: int, **arguments: Any) -> None:
        self.model = Model(arguments.pop("mixed", False))
        self.worker = worker
        self.wrapped = DistributedDataParallel(ft, self.model, find_unused_parameters=True, **{**BUCKETS, **arguments})
        self.early: list[bool] = []
        self.redone = 0
        self.gradients: list[list[torch.Tensor]] = []

    def step(self, scale: float = 1.0) -> Status:
        for parameter in self.model.parameters():
            parameter.grad = None
        (self.wrapped(data(len(self.early), self.worker)).square().sum() * scale).backward()
        self.early.append(self.wrapped._backward._early)
        return self.wrapped.status

    def keep(self) -> None:
        self.gradients.append([p.grad.clone() for p in self.model.parameters() if p.grad is not None])


def trained(crew: DeviceCrew, views: bool, **arguments: Any) -> list[Trained]:
    """What all workers have got in a few steps."""
    if views:
        crew.all(lambda ft, _: ft.register_state(state_dict=dict, load_state_dict=lambda _: None))

    def body(ft: FTLib, i: int) -> Trained:
        found, statuses = Trained(ft, i, **arguments), []
        for _ in range(STEPS):
            statuses.append(found.step())
            crew.device.synchronize()
            found.keep()
        found.redone = ft.metrics()["redone"]
        assert all(statuses)  # not before: the others would wait for whoever has no result
        return found

    return crew.all(body)


@contextmanager
def late(seed: int, *, on_device: bool = True) -> Iterator[DeviceCrew]:
    device = LateDevice(seed, lambda tensor: on_device and tensor.dtype in FLOATS)
    with device.placed(), DeviceCrew(3, device) as crew:
        yield crew


def check(found: Sequence[Trained], wanted: Sequence[Trained]) -> None:
    """They have the same bits at all workers, and the same as without a device."""
    for worker, other in zip(found, wanted, strict=True):
        for step, (gradients, expected) in enumerate(zip(worker.gradients, other.gradients, strict=True)):
            for index, (one, two) in enumerate(zip(gradients, expected, strict=True)):
                assert torch.equal(one, two), f"step {step}, gradient {index} of worker {worker.worker}"


@pytest.fixture(scope="module", params=[False, True], ids=["alike", "mixed"])
def plain(request: pytest.FixtureRequest) -> tuple[bool, list[Trained]]:
    with late(0, on_device=False) as crew:
        return request.param, trained(crew, False, mixed=request.param)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("views", [False, True], ids=["copies", "views"])
def test_the_same_bits_as_on_the_cpu(plain: tuple[bool, list[Trained]], views: bool, seed: int) -> None:
    mixed, wanted = plain
    with late(seed) as crew:
        found = trained(crew, views, mixed=mixed)
    check(found, wanted)
    for worker in found:
        # With state, the second average takes over the order in which the gradients came.
        assert worker.early == [not mixed and (step != 1 or not views) for step in range(STEPS)]


def test_a_member_that_sends_at_the_end_sends_the_same(plain: tuple[bool, list[Trained]]) -> None:
    """Another thread of its program awaits its turn, say."""
    mixed, wanted = plain
    with late(5) as crew:

        def body(ft: FTLib, i: int) -> Trained:
            found = Trained(ft, i, mixed=mixed)
            for step in range(STEPS):
                if i == step % 3:
                    with pytest.MonkeyPatch.context() as patch:
                        patch.setattr(ft._call_lock, "try_open", lambda *_: False)
                        assert found.step()
                else:
                    assert found.step()
                crew.device.synchronize()
                found.keep()
            return found

        check(crew.all(body), wanted)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_nobody_gets_an_average_with_inf(bad: float) -> None:
    with late(2) as crew:

        def body(ft: FTLib, i: int) -> bool:
            found = Trained(ft, i)
            assert found.step()
            own = Trained(ft, i)
            with own.wrapped.no_sync():
                own.wrapped(data(1, i)).square().sum().mul(bad if i == 1 else 1.0).backward()
            assert found.step(bad if i == 1 else 1.0) is Status.FAIL
            crew.device.synchronize()
            assert found.early == [True, True]
            both = zip(found.model.layers.parameters(), own.model.layers.parameters(), strict=True)
            return all(torch.equal(one.grad, other.grad) or i == 1 for one, other in both)  # type: ignore[arg-type]

        assert all(crew.all(body)), "gradients are as backward left them"


def test_a_program_that_raises_in_backward() -> None:
    """The others do not wait for it; the next pass is a new call."""
    with late(3) as crew:

        def body(ft: FTLib, i: int) -> int:
            found, raises = Trained(ft, i), [i == 1]

            def hook(_: torch.Tensor) -> None:
                if raises[0] and len(found.early) == 2:
                    raises[0] = False
                    raise ArithmeticError("planted")

            found.model.layers[0].weight.register_hook(hook)
            for _ in range(4):
                try:
                    assert found.step()
                except ArithmeticError:
                    assert found.step()
            return ft.step

        assert crew.all(body) == [4] * 3


def test_gradients_of_several_streams_are_sent_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket may have been gathered on a stream that knows nothing of some of its gradients: it does not count."""
    with late(0, on_device=False) as crew:
        wanted = trained(crew, False)
    with late(4) as crew:
        begin, own = itertools.count(0, 7), threading.local()

        def stream_id(_: LateDevice) -> bool:
            """Each worker counts for itself, as otherwise one of them may be shown the same stream every time."""
            own.count = own.count + 1 if hasattr(own, "count") else next(begin)
            return own.count % 23 > 17

        monkeypatch.setattr(LateDevice, "stream_id", property(stream_id))
        found = trained(crew, False)
        check(found, [found[0]] * 3)
        for gradients, means in zip(found[0].gradients, wanted[0].gradients, strict=True):
            torch.testing.assert_close(gradients, means)  # it is divided after the sum where a call is made again
        assert not any(worker.early[-1] for worker in found), "they are not sent in vain in each pass"
        assert found[0].redone <= 3


def test_a_backward_that_is_captured_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph would repeat the copies without the operations."""

    def refuse(_: LateDevice) -> None:
        raise ConfigError("a graph is captured")

    with late(7) as crew:

        def body(ft: FTLib, i: int) -> str:
            found = Trained(ft, i)
            assert found.step()
            ft.barrier()
            monkeypatch.setattr(LateDevice, "check_capture", refuse)
            try:
                found.step()
            except ConfigError as error:
                return str(error)
            return ""

        assert crew.all(body) == ["a graph is captured"] * 3


def test_hooks_and_the_end_of_backward_may_run_on_different_threads(plain: tuple[bool, list[Trained]]) -> None:
    """As they do where the device has a thread of torch's, and the last node of the graph is on the CPU."""
    mixed, wanted = plain
    with late(6) as crew:

        def body(ft: FTLib, i: int) -> Trained:
            found = Trained(ft, i, mixed=mixed)
            try_open, ends = ft._call_lock.try_open, []

            def elsewhere(name: str, call: object) -> bool:
                ends.append(_in_a_thread(lambda: try_open(name, call)))
                return ends[-1]

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(ft._call_lock, "try_open", elsewhere)
                for _ in range(STEPS):
                    assert found.step()
                    crew.device.synchronize()
                    found.keep()
            assert mixed or any(ends)
            return found

        check(crew.all(body), wanted)


def _in_a_thread(action: Callable[[], bool]) -> bool:
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(action()))
    thread.start()
    thread.join(10.0)
    return found[0]


def test_the_turn_of_an_open_call_may_be_given_back_elsewhere() -> None:
    lock = CallLock(1.0)
    assert _in_a_thread(lambda: lock.try_open("average", "call"))
    assert not lock.inside()
    assert lock.finish_open(lock.inside, lambda: None), "it is this thread's from now on"
    assert lock.take("barrier", lambda: True, lambda: None)
    assert _in_a_thread(lambda: lock.try_open("average", "call"))
    lock.end_open()
    assert lock.try_open("average", "call")
    with pytest.raises(ConfigError, match="barrier was called while average is under way in backward"):
        lock.take("barrier", lambda: None, lambda: None)


# --- planted bugs --------------------------------------------------------------------------------------------------------


def copies_before_it_is_gathered(patch: pytest.MonkeyPatch) -> None:
    """The copy to CPU memory does not follow what gathers the row."""
    patch.setattr(LateDevice, "follow", lambda *_: None)


def sends_before_it_is_copied(patch: pytest.MonkeyPatch) -> None:
    """The group reduces CPU memory to which the device still copies."""
    lower = open_device_attempt.lower

    class Ended:
        def __init__(self, copies: Any) -> None:
            self.copies = copies

        def wait(self, _timeout: float) -> bool:
            return True

        def done(self) -> bool:
            return True

    def hasty(slot: Slot, row: torch.Tensor, gathered: Event) -> Any:
        return Ended(lower(slot, row, gathered))

    patch.setattr(open_device_attempt, "lower", hasty)


def gathers_too_early(patch: pytest.MonkeyPatch) -> None:
    """A bucket is gathered before all its gradients are there."""
    begin = OpenDeviceAttempt.begin

    def hasty(self: OpenDeviceAttempt) -> None:
        begin(self)
        while 1 < self.begun < self.count - 1:
            begin(self)

    patch.setattr(OpenDeviceAttempt, "begin", hasty)


@pytest.mark.parametrize("plant", [copies_before_it_is_gathered, sends_before_it_is_copied, gathers_too_early])
def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]) -> None:
    with late(0, on_device=False) as crew:
        wanted = trained(crew, False)
    plant(monkeypatch)
    with late(1) as crew, pytest.raises(AssertionError):
        check(trained(crew, False), wanted)


# --- accelerators --------------------------------------------------------------------------------------------------------


@contextmanager
def rehearsed(faults: Faults = Faults(), *, registered: bool = True) -> Iterator[Crew]:  # noqa: B008 - it is a value
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gloo, "_FINISH", 0.1)  # each of them would wait for what the others have under way
        with Crew(2, lambda _: RehearsalFramework(faults)) as crew:
            if registered:
                crew.all(lambda ft, _: ft.register_state(state_dict=dict, load_state_dict=lambda _: None))
            yield crew


def expected(step: int) -> list[torch.Tensor]:
    """The means of the gradients, of those that there are."""
    found = []
    for worker in range(2):
        model = Model()
        model(data(step, worker)).square().sum().backward()
        found.append([parameter.grad for parameter in model.layers.parameters()])
    return [(one + other) / 2 for one, other in zip(*found, strict=True)]  # type: ignore[operator]


def accelerated(ft: FTLib) -> int:
    return ft._plane.counters.accelerated


def until_accelerated(ft: FTLib) -> Iterator[int]:
    """The numbers of steps, alike at all members, until accelerators have carried some, which are slow on a busy machine."""
    for step in range(5000):
        if accelerated(ft) >= 15:
            return
        yield step
    raise AssertionError("no accelerators")


@needs_proc
@pytest.mark.parametrize("way", ["wrapper", "views", "copies"])
def test_averages_by_accelerators_are_right(way: str) -> None:
    """Where gradients would be views of CPU memory, results on devices are copied from there, not from that memory."""
    with rehearsed() as crew:

        def body(ft: FTLib, i: int) -> list[bool]:
            found = Trained(ft, i)
            for step in until_accelerated(ft):
                if way == "wrapper":
                    assert found.step()
                else:
                    for parameter in found.model.parameters():
                        parameter.grad = None
                    found.model(data(step, i)).square().sum().backward()
                    assert ft.allreduce_average(found.model, views=way == "views")
                for parameter, mean in zip(found.model.layers.parameters(), expected(step), strict=True):
                    torch.testing.assert_close(parameter.grad, mean)
            return found.early

        for early in crew.all(body):
            assert early.count(False) <= 2


@needs_proc
def test_operations_are_launched_one_by_one_and_in_backward() -> None:
    """Alike at members that launch them in backward and at those that do so at its end: together they would be others."""
    with rehearsed() as crew:
        launched: dict[int, list[int]] = {0: [], 1: []}
        amid: list[bool] = []
        submit = HybridGroup.submit_bulk

        def noted(group: HybridGroup, operations: Sequence[Operation], after: Callable[[], None] | None = None) -> Work:
            assert len(operations) == 1
            launched[group.rank].append(operations[0].tensor.numel())
            return submit(group, operations, after)

        def body(ft: FTLib, i: int) -> list[list[int]]:
            found, steps = Trained(ft, i), []

            def hook(_: torch.Tensor) -> None:
                """Of the parameter that comes last: until then some of the others' operations should have been launched."""
                with contextlib.suppress(AssertionError):
                    eventually(lambda: found.wrapped._backward._poll() or launched[0], "a launch", 0.2)
                amid.append(bool(launched[0]))

            if ft.rank == 0:
                found.model.layers[0].weight.register_hook(hook)
            for step in until_accelerated(ft):
                launched[ft.rank].clear()
                with pytest.MonkeyPatch.context() as patch:
                    if ft.rank and step % 2:
                        patch.setattr(ft._call_lock, "try_open", lambda *_: False)
                    assert found.step()
                steps.append(list(launched[ft.rank]))
            return steps

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(HybridGroup, "submit_bulk", noted)
            one, other = crew.all(body)
        assert one == other
        assert len(one[-1]) > 5
        assert sum(amid) > 5


@needs_proc
@pytest.mark.parametrize(
    "faults",
    [Faults(error_at=9), Faults(kernel_seconds=0.02), Faults(launch_seconds=0.02), Faults(start_seconds=0.3, rank=1)],
    ids=["fails", "slow kernels", "slow launches", "slow start"],
)
def test_an_accelerator_that_fails_or_is_slow_costs_no_step(faults: Faults) -> None:
    with rehearsed(faults) as crew:

        def body(ft: FTLib, i: int) -> tuple[int, int]:
            found = Trained(ft, i)
            for step in range(25):
                assert found.step()
                for parameter, mean in zip(found.model.layers.parameters(), expected(step), strict=True):
                    torch.testing.assert_close(parameter.grad, mean)
            return ft.step, accelerated(ft)

        assert [step for step, _ in crew.all(body)] == [25, 25]


@needs_proc
def test_clipping_and_steps_by_the_optimizer() -> None:
    with rehearsed() as crew:

        def body(ft: FTLib, i: int) -> list[torch.Tensor]:
            found = Trained(ft, i)
            optimizer = Optimizer(ft, torch.optim.Adam(found.model.parameters(), lr=0.01), clip_norm=0.5)
            for step in range(20):
                optimizer.zero_grad()
                found.wrapped(data(step, i)).square().sum().backward()
                assert optimizer.step()
            return [parameter.detach() for parameter in found.model.parameters()]

        one, other = crew.all(body)
        alone = Model()
        plain = torch.optim.Adam(alone.parameters(), lr=0.01)
        for step in range(20):
            gradients: list[torch.Tensor] = []
            for worker in range(2):
                plain.zero_grad()
                alone(data(step, worker)).square().sum().backward()
                gradients = [
                    (parameter.grad / 2 + (gradients[n] if worker else 0)) if parameter.grad is not None else torch.zeros(())
                    for n, parameter in enumerate(alone.parameters())
                ]
            for parameter, gradient in zip(alone.parameters(), gradients, strict=True):
                parameter.grad = gradient if parameter.grad is not None else None
            nn.utils.clip_grad_norm_(alone.parameters(), 0.5)
            plain.step()
        for mine, others, wanted in zip(one, other, alone.parameters(), strict=True):
            assert torch.equal(mine, others)
            torch.testing.assert_close(mine, wanted.detach(), rtol=1e-4, atol=1e-5)


@needs_proc
@pytest.mark.parametrize("delay", [0, 2])
def test_syncs_by_accelerators(delay: int) -> None:
    """Of inner steps that go on meanwhile: the global weights are those of a job without accelerators."""

    def learn(ft: FTLib, i: int, steps: int) -> tuple[int, list[torch.Tensor]]:
        """``steps``: so many inner ones; 0: until accelerators have carried some syncs."""
        model, count = Model(), 0
        inner = torch.optim.SGD(model.parameters(), lr=1e-5)
        outer = functools.partial(torch.optim.SGD, lr=0.7, momentum=0.9)
        local = DiLoCo(ft, model, inner=inner, outer=outer, sync_every=3, delay=delay)
        ft.register_state(model=local)
        with local:
            while count < steps if steps else accelerated(ft) < 5:
                inner.zero_grad()
                model(data(count % 50, i)).square().sum().backward()
                inner.step()
                count += 1
        return count, [weight.detach().clone() for weight in local.global_model.parameters()]

    with rehearsed(registered=False) as crew:
        (count, one), (_, other) = crew.all(lambda ft, i: learn(ft, i, 0))
    with Crew(2) as crew:
        _, plain = crew.all(lambda ft, i: learn(ft, i, count))[0]
    for mine, others, wanted in zip(one, other, plain, strict=True):
        assert torch.equal(mine, others)
        torch.testing.assert_close(mine, wanted)


@pytest.mark.process
@pytest.mark.timeout(600)
@pytest.mark.parametrize("framework", ["rehearsal", pytest.param("isolated:rehearsal", marks=pytest.mark.soak)])
def test_whoever_dies_amid_buckets_costs_no_step(nursery: Nursery, tmp_path: Path, framework: str) -> None:
    settings = {"agent": "thread", "framework": framework}
    with Cluster(tmp_path, nursery, program="tests.train.backward_learner:learn", settings=settings) as cluster:
        task = {"sizes": SIZES, "pause": 0.002}
        cluster.found(2, **task)
        cluster.training(2)
        come_and_die(cluster, range(len(SIZES)), **task)
        judge(cluster)
        assert all(worker.last["early"] for worker in cluster.workers if worker.code is None)
        assert all(worker.last["accelerated"] for worker in cluster.workers if worker.code is None)
