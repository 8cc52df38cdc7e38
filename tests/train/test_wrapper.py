"""What the wrapper promises besides gradients that are those of torch: names, statuses, errors, and what it refuses."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import logging
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from ftlib import ConfigError, DistributedDataParallel, Optimizer, Status
from ftlib.common.local_parts import local_part
from ftlib.core.calls.open_call import OpenCall
from ftlib.core.engine.open_calls import OpenCalls
from ftlib.core.plane.plane import Plane
from ftlib.core.tensors.staging import Staging
from ftlib.ftlib import FTLib
from ftlib.lifecycle.open_turns import OpenTurns
from ftlib.state.registry import Registered
from ftlib.state.replay import why_not
from ftlib.train.additions import Additions
from tests.ftlib.crews.crew import Crew, by_all
from tests.ftlib.crews.workers import TIMEOUT, Job, Worker
from tests.harness.recompute import recompute
from tests.train.cases import Branches, built, data, gradients, near, perceptron

SIZE = 2


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    with Crew(SIZE) as crew:
        crew.all(lambda ft, _: ft.register_state(state_dict=dict, load_state_dict=lambda _: None))
        crew.all(lambda ft, _: ft.allreduce_average(torch.ones(1)))  # from the next average on, gradients are views
        yield crew


@pytest.fixture(scope="module")
def bare() -> Iterator[Crew]:
    """Workers that have registered nothing."""
    with Crew(SIZE) as crew:
        yield crew


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    """Of this process alone."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def expected(make: Callable[[], nn.Module], loss: Callable[[nn.Module, int], torch.Tensor]) -> list[torch.Tensor]:
    """The average of what each of the workers computes by itself; None counts as zeros."""
    found = []
    for rank in range(SIZE):
        module = make()
        loss(module, rank).backward()
        found.append([torch.zeros_like(p) if p.grad is None else p.grad for p in module.parameters()])
    return [torch.stack(each).mean(0) for each in zip(*found, strict=True)]


def loss(module: nn.Module, rank: int) -> torch.Tensor:
    found: torch.Tensor = module(data(rank, 5, 4)).square().mean()
    return found


def small() -> nn.Module:
    return built(perceptron(4, 8, 3))


@by_all("crew")
def test_names_are_those_of_torch(ft: FTLib, index: int) -> None:
    module = small()
    model = DistributedDataParallel(ft, module)
    assert model.module is module
    assert list(model.state_dict()) == [f"module.{name}" for name in module.state_dict()]
    assert not model.eval().module.training
    assert model.train().module.training
    assert [name for name, _ in model.named_parameters()] == list(model.state_dict())
    with pytest.raises(AttributeError):
        _ = model.in_features
    assert model.status is None
    loss(model, ft.rank).backward()
    assert model.status is Status.SUCCESS
    model.load_state_dict(model.state_dict())


FOREIGN = {
    "device_ids": [0],
    "output_device": 0,
    "process_group": None,
    "bucket_cap_mb": 25,
    "mixed_precision": None,
    "delay_all_reduce_named_params": [],
    "param_to_hook_all_reduce": None,
    "check_reduction": False,
    "gradient_predivide": 2.0,
    "nonsense": 1,
}


@pytest.mark.parametrize("name", FOREIGN)
@by_all("crew")
def test_arguments_of_torch_are_refused_with_the_remedy(ft: FTLib, index: int, name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        DistributedDataParallel(ft, small(), **{name: FOREIGN[name]})


@by_all("crew")
def test_what_cannot_work_is_refused(ft: FTLib, index: int) -> None:
    model = DistributedDataParallel(ft, small())
    for misuse, words in (
        (lambda: DistributedDataParallel(small(), small()), "FTLib.init"),  # type: ignore[arg-type]
        (lambda: DistributedDataParallel(ft, [small()]), "list"),  # type: ignore[arg-type]
        (lambda: DistributedDataParallel(ft, small(), bucket_mb=0), "bucket_mb=0"),
        (lambda: DistributedDataParallel(ft, small(), first_bucket_mb=float("nan")), "first_bucket_mb=nan"),
        (lambda: DistributedDataParallel(ft, nn.LazyLinear(3)), "weight has no shape"),
        (lambda: DistributedDataParallel(ft, nn.Sequential(nn.Embedding(3, 2, sparse=True))), "module 0 has sparse gradients"),
        (lambda: model.register_comm_hook(None, None), "compression="),
        (model.join, "weigh"),
        (lambda: copy.deepcopy(model), ".module"),
    ):
        with pytest.raises(ConfigError, match=words):
            misuse()


@by_all("crew")
def test_parameters_that_nobody_reaches_count_as_zeros(ft: FTLib, index: int) -> None:
    model = DistributedDataParallel(ft, built(Branches()))
    model(data(ft.rank, 3, 4), "left").sum().backward()
    wanted = expected(lambda: built(Branches()), lambda module, rank: module(data(rank, 3, 4), "left").sum())
    near(gradients(model), wanted)
    assert model.status is Status.SUCCESS


@by_all("crew")
def test_backward_that_reaches_no_parameter_takes_part(ft: FTLib, index: int) -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = small()

        def forward(self, inputs: torch.Tensor, ours: bool) -> torch.Tensor:
            found: torch.Tensor = self.inner(inputs) if ours else inputs * 2
            return found

    model = DistributedDataParallel(ft, Gated())
    inputs = data(ft.rank, 5, 4).requires_grad_()
    model(inputs, ft.rank == 0).square().mean().backward()
    assert model.status is Status.SUCCESS

    def alone(module: nn.Module, rank: int) -> torch.Tensor:
        return loss(module, rank) * (rank == 0)

    wanted = expected(small, alone)
    near(gradients(model), wanted)


@by_all("crew")
def test_twice_through_one_graph(ft: FTLib, index: int) -> None:
    """Each backward ends with an average."""
    model, before = DistributedDataParallel(ft, small()), ft.step
    found = loss(model, ft.rank)
    found.backward(retain_graph=True)
    assert ft.step == before + 1
    found.backward()
    assert ft.step == before + 2
    near(gradients(model), [2 * each for each in expected(small, loss)])


@by_all("crew")
def test_a_gradient_that_is_asked_for_is_no_step(ft: FTLib, index: int) -> None:
    model, before = DistributedDataParallel(ft, small()), ft.step
    inputs = data(ft.rank, 5, 4).requires_grad_()
    torch.autograd.grad(model(inputs).sum(), inputs)
    model(inputs).sum().backward(inputs=[inputs])
    assert ft.step == before
    assert model.status is None
    loss(model, ft.rank).backward()
    assert ft.step == before + 1


@by_all("crew")
def test_gradients_wait_for_the_pass_that_synchronizes(ft: FTLib, index: int) -> None:
    model, before = DistributedDataParallel(ft, small()), ft.step
    with model.no_sync():
        loss(model, ft.rank).backward()
        with torch.no_grad():
            model(data(0, 1, 4))
    assert ft.step == before
    assert model.status is None
    alone = small()
    loss(alone, ft.rank).backward()
    near(gradients(model), gradients(alone))


@by_all("crew")
def test_weights_hold_for_one_average(ft: FTLib, index: int) -> None:
    model = DistributedDataParallel(ft, small())
    model.weigh(1.0 if ft.rank == 0 else 0.0)
    loss(model, ft.rank).backward()
    first = small()
    loss(first, 0).backward()
    near(gradients(model), gradients(first))
    for parameter in model.parameters():
        parameter.grad = None
    loss(model, ft.rank).backward()
    near(gradients(model), expected(small, loss))
    model.weigh(0.0)
    for parameter in model.parameters():
        parameter.grad = None
    loss(model, ft.rank).backward()
    assert model.status is Status.FAIL
    alone = small()
    loss(alone, ft.rank).backward()
    near(gradients(model), gradients(alone))


@pytest.mark.parametrize("place", [0, 3])
@by_all("crew")
def test_a_weight_holds_until_an_average_has_ended(ft: FTLib, index: int, place: int) -> None:
    """Also where backward fails before its average has begun, or when it is under way already."""
    model = DistributedDataParallel(ft, small(), bucket_mb=1e-4)
    for _ in range(3):
        loss(model, ft.rank).backward()
        model.zero_grad()
    model.weigh(3.0 if ft.rank else 1.0)
    if ft.rank == 1:
        with breaking(list(model.parameters())[place]), pytest.raises(Broken):
            loss(model, ft.rank).backward()
        model.zero_grad()
    loss(model, ft.rank).backward()
    near(gradients(model), [each / 2 for each in expected(small, lambda module, rank: loss(module, rank) * (1 + 2 * rank))])
    model.zero_grad()
    loss(model, ft.rank).backward()
    near(gradients(model), expected(small, loss))


@by_all("crew")
def test_a_weight_is_gone_with_its_average(ft: FTLib, index: int) -> None:
    """A callback raises when it has ended; or the program declines the call instead."""
    model, pending = DistributedDataParallel(ft, small()), [Broken()]

    def fails(_: object) -> None:
        if pending:
            raise pending.pop()

    ft.on_view_change(fails)
    ft._plane.news.changes.append(ft.view)  # type: ignore[arg-type]
    model.weigh(1.0 + ft.rank)
    with pytest.raises(Broken):
        loss(model, ft.rank).backward()
    model.zero_grad()
    loss(model, ft.rank).backward()
    near(gradients(model), expected(small, loss))
    model.zero_grad()
    model.weigh(1.0 + ft.rank)
    assert ft.decline() is Status.FAIL
    loss(model, ft.rank).backward()
    near(gradients(model), expected(small, loss))


@pytest.mark.parametrize("others", ["another average", "another call", "itself"])
@by_all("bare")
def test_a_weight_is_gone_with_its_own_average_only(ft: FTLib, index: int, others: str) -> None:
    """A worker declines a call that the others make: of another model, or of none, between ``weigh`` and its average."""
    other, model = (DistributedDataParallel(ft, small()) for _ in range(2))
    other.weigh(1.0)
    model.weigh(1.0 + 2.0 * ft.rank)
    if ft.rank == 1:
        assert ft.decline() is Status.FAIL
    elif others == "another call":
        assert ft.allreduce(torch.ones(3)) is Status.FAIL
    else:
        loss(other if others == "another average" else model, ft.rank).backward()
        model.zero_grad()
    loss(model, ft.rank).backward()
    assert model.status is Status.SUCCESS
    shares = (1.0, 1.0) if others == "itself" else (0.5, 1.5)
    near(gradients(model), expected(small, lambda module, rank: loss(module, rank) * shares[rank]))
    model.zero_grad()
    loss(model, ft.rank).backward()
    near(gradients(model), expected(small, loss))


@by_all("crew")
def test_inf_is_applied_by_nobody(ft: FTLib, index: int) -> None:
    model = DistributedDataParallel(ft, small())
    scale = float("inf") if ft.rank == 1 else 1.0
    (loss(model, ft.rank) * scale).backward()
    assert model.status is Status.FAIL
    assert model.outcome(model.parameters()) is Status.FAIL
    alone = small()
    (loss(alone, ft.rank) * scale).backward()
    for one, other in zip(gradients(model), gradients(alone), strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)
    model.begin_step(model.parameters())
    loss(model, ft.rank).backward()


@by_all("crew")
def test_outcomes_of_a_step_are_taken_together(ft: FTLib, index: int) -> None:
    model = DistributedDataParallel(ft, small())
    assert model.outcome(model.parameters()) is None
    model.weigh(0.0)
    loss(model, ft.rank).backward()
    loss(model, ft.rank).backward()
    assert model.status is Status.SUCCESS
    assert model.outcome(model.parameters()) is Status.FAIL
    model.begin_step(model.parameters())
    assert model.outcome(model.parameters()) is None
    loss(model, ft.rank).backward()
    assert model.outcome(model.parameters()) is Status.SUCCESS


class Broken(RuntimeError):
    pass


@contextlib.contextmanager
def breaking(parameter: nn.Parameter) -> Iterator[None]:
    """Backward raises when it comes to that parameter."""

    def fail(_: torch.Tensor) -> None:
        raise Broken

    handle = parameter.register_hook(fail)
    try:
        yield
    finally:
        handle.remove()


@pytest.mark.parametrize("place", range(6))
@by_all("crew")
def test_a_backward_that_fails_here_is_begun_again(ft: FTLib, index: int, place: int) -> None:
    """The others wait for the next one; every boundary between buckets."""
    make = lambda: built(perceptron(4, 8, 8, 3))  # noqa: E731
    model = DistributedDataParallel(ft, make(), bucket_mb=1e-4)
    for _ in range(3):
        loss(model, ft.rank).backward()
        model.zero_grad()
    before = ft.step
    if ft.rank == 1:
        with breaking(list(model.parameters())[place]):
            try:
                loss(model, ft.rank).backward()
            except Broken:
                assert ft._plane.current is None, "the others know by now"
            else:
                pytest.fail("nothing was raised")
        assert model.status is None
        assert model.outcome(model.parameters()) is Status.FAIL
        assert ft.step == before
        model.zero_grad()
    loss(model, ft.rank).backward()
    assert model.status is Status.SUCCESS
    assert ft.step == before + 1
    near(gradients(model), expected(make, loss))


@contextlib.contextmanager
def interrupted(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, error: BaseException, when: str) -> Iterator[None]:
    """Ctrl-C or the like comes to this thread ``when`` that method is called, or has been: the first time only."""
    honest, here, pending = getattr(owner, name), threading.get_ident(), [error]

    def method(*arguments: object, **more: object) -> object:
        if threading.get_ident() != here or not pending:
            return honest(*arguments, **more)
        if when == "after":
            honest(*arguments, **more)
        raise pending.pop()

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, method)
        yield
    assert not pending, "it never came"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError()], ids=["Ctrl-C", "memory"])
@pytest.mark.parametrize(
    ("owner", "name"),
    [(Staging, "turn"), (Plane, "begin"), (OpenCalls, "enter"), (OpenTurns, "begin_open"), (OpenCall, "provide_all")],
    ids=["staged", "begun", "entered", "open", "complete"],
)
def test_who_is_interrupted_as_it_enters_its_call_has_left_it(
    crew: Crew, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, error: BaseException, when: str
) -> None:
    """The others wait for its next backward, not for its death; and its thread may make any call meanwhile."""
    ready = threading.Barrier(SIZE)

    def body(ft: FTLib, index: int) -> None:
        make = lambda: built(perceptron(4, 8, 8, 3))  # noqa: E731
        model = DistributedDataParallel(ft, make(), bucket_mb=1e-4)
        for _ in range(3):
            loss(model, ft.rank).backward()
            model.zero_grad()
        before = ft.step
        ready.wait(TIMEOUT)
        if ft.rank == 1:
            with interrupted(monkeypatch, owner, name, error, when), pytest.raises(type(error)):
                loss(model, ft.rank).backward()
            assert ft._plane.current is None, "the others know by now"
            assert not ft._call_lock.inside()
            assert model.status is None
            assert ft.step == before
            model.zero_grad()
        loss(model, ft.rank).backward()
        assert model.status is Status.SUCCESS
        assert ft.step == before + 1
        near(gradients(model), expected(make, loss))
        assert ft.barrier()

    crew.all(body)


def test_after_the_end_backward_still_returns() -> None:
    def train(worker: Worker) -> None:
        model = DistributedDataParallel(worker.ft, small())
        loss(model, 0).backward()
        assert model.status is Status.NO_NEED
        worker.ft.leave()
        model.zero_grad()
        loss(model, 0).backward()
        assert model.status is Status.ABORT
        alone = small()
        loss(alone, 0).backward()
        near(gradients(model), gradients(alone))

    with Job(1) as job:
        job.run({"a": train})


def test_notice_to_leave_ends_the_program_in_backward() -> None:
    """As in any other call: this worker's part is over."""

    def train(worker: Worker) -> None:
        model = DistributedDataParallel(worker.ft, small())
        loss(model, 0).backward()
        worker.ft.drain()
        with pytest.raises(SystemExit):
            loss(model, 0).backward()

    with Job(1) as job:
        job.run({"a": train})


@by_all("crew")
def test_errors_of_the_call_leave_backward_as_they_are(ft: FTLib, index: int) -> None:
    model = DistributedDataParallel(ft, small())
    model.weigh(-1.0)
    with pytest.raises(ConfigError, match=r"weight=-1.0"):
        loss(model, ft.rank).backward()
    model.zero_grad()
    loss(model, ft.rank).backward()
    near(gradients(model), expected(small, loss))


@by_all("crew")
def test_frozen_parameters_may_be_trained_later(ft: FTLib, index: int) -> None:
    def make() -> nn.Module:
        module = small()
        module[0].weight.requires_grad_(False)
        return module

    module = make()
    model = DistributedDataParallel(ft, module, bucket_mb=1e-4)
    for _ in range(3):
        model.zero_grad()
        loss(model, ft.rank).backward()
    assert module[0].weight.grad is None
    module[0].weight.requires_grad_(True)
    module[2].bias.requires_grad_(False)
    for _ in range(3):
        for parameter in module.parameters():
            parameter.grad = None
        loss(model, ft.rank).backward()
    wanted = expected(small, loss)
    assert gradients(model).pop() is None
    near(gradients(model)[:-1], wanted[:-1])


def head(module: nn.Module) -> None:
    module[2] = nn.Linear(8, 3)  # type: ignore[operator]


def weight(module: nn.Module) -> None:
    module[2].weight = nn.Parameter(torch.ones(3, 8))  # type: ignore[index]


def assigned(module: nn.Module) -> None:
    module[2].load_state_dict({name: value.clone() for name, value in module[2].state_dict().items()}, assign=True)  # type: ignore[index]


def within(module: nn.Module) -> None:
    """A part of a part that is new itself."""
    head(module.requires_grad_(False))
    module[2] = nn.Sequential(module[2].requires_grad_(False))  # type: ignore[index, operator]
    module[2].append(nn.Linear(3, 3))  # type: ignore[index]


def frozen(module: nn.Module) -> None:
    """At first; nothing else is trained, either."""
    head(module)
    module.requires_grad_(False)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (head, "module.2.weight, module.2.bias;"),
        (weight, "module.2.weight;"),
        (assigned, "module.2.weight, module.2.bias;"),
        (within, "module.2.1.weight, module.2.1.bias;"),
        (frozen, "module.2.weight, module.2.bias;"),
    ],
)
@by_all("crew")
def test_what_a_model_got_after_it_was_wrapped_is_refused(
    ft: FTLib, index: int, change: Callable[[nn.Module], None], named: str
) -> None:
    """Nobody would average it."""
    model = DistributedDataParallel(ft, small())
    loss(model, ft.rank).backward()
    change(model.module)
    if change is frozen:
        loss(model, ft.rank)
        model.requires_grad_(True)
    with torch.no_grad():
        loss(model, ft.rank)
    for _ in range(2):
        with pytest.raises(ConfigError, match=rf"got parameters after it was wrapped.* {named}.*DistributedDataParallel\(ft,"):
            loss(model, ft.rank)
    built(model.module)
    wanted = expected(lambda: copy.deepcopy(model.module), loss)
    model = DistributedDataParallel(ft, model.module)
    model.zero_grad()
    loss(model, ft.rank).backward()
    near([gradient for gradient in gradients(model) if gradient is not None], [each for each in wanted if each.any()])


@by_all("crew")
def test_what_a_model_has_already_may_be_registered_again(ft: FTLib, index: int) -> None:
    """And new ones that are never trained concern nobody."""
    module = small()
    model = DistributedDataParallel(ft, module)
    module[2] = module[2]
    module[0].weight = module[0].weight
    loss(model, ft.rank).backward()
    module[0].teacher = small().requires_grad_(False)
    model.zero_grad()
    loss(model, ft.rank).backward()
    assert model.status is Status.SUCCESS


class ByName(nn.Module):
    """Its hash needs what it has only later."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(1, 1)
        self.name = "later"

    def __hash__(self) -> int:
        return hash(self.name)


class ByValue(ByName):
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByValue)


@pytest.mark.parametrize("other", [ByName, ByValue])
def test_a_model_is_looked_through_once_after_others_were_made_whatever_these_are(other: Callable[[], nn.Module]) -> None:
    model = small()
    additions = Additions(model, {id(parameter) for parameter in model.parameters()})
    assert not additions.due
    other()
    assert additions.due
    additions.look(model)
    assert not additions.due


def test_parameters_that_are_trained_later_are_named(crew: Crew, caplog: pytest.LogCaptureFixture) -> None:
    def train(ft: FTLib, _: int) -> None:
        module = small()
        module[0].weight.requires_grad_(False)
        model = DistributedDataParallel(ft, module)
        module[0].weight.requires_grad_(True)
        module[2].bias.requires_grad_(False)
        loss(model, ft.rank).backward()

    with caplog.at_level(logging.INFO, "ftlib"):
        crew.all(train)
    assert "trained from now on: 0.weight; frozen from now on: 2.bias" in caplog.text


@by_all("crew")
def test_a_module_without_trained_parameters_is_left_alone(ft: FTLib, index: int) -> None:
    module, before = small().requires_grad_(False), ft.step
    model = DistributedDataParallel(ft, module)
    inputs = data(0, 2, 4).requires_grad_()
    model(inputs).sum().backward()
    assert ft.step == before
    assert inputs.grad is not None
    module.requires_grad_(True)
    loss(model, ft.rank).backward()
    near(gradients(model), expected(small, loss))
    loss(DistributedDataParallel(ft, nn.Sequential(nn.Tanh(), small())), ft.rank).backward()
    assert DistributedDataParallel(ft, nn.ReLU())(inputs).requires_grad


@by_all("crew")
def test_a_loss_that_is_no_output_begins_a_pass_as_well(ft: FTLib, index: int) -> None:
    class Aside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = small()

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            self.loss = self.inner(inputs).square().mean()
            return self.loss.detach()

    module = Aside()
    model = DistributedDataParallel(ft, module)
    model(data(ft.rank, 5, 4))
    module.loss.backward()
    assert model.status is Status.SUCCESS
    near(gradients(model), expected(small, loss))


@by_all("crew")
def test_a_checkpoint_whose_end_cannot_be_seen_is_refused(ft: FTLib, index: int) -> None:
    class Aside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = small()

        def forward(self, inputs: torch.Tensor) -> None:
            self.loss = recompute(self.inner, inputs, use_reentrant=True).square().mean()

    module = Aside()
    model = DistributedDataParallel(ft, module)
    model(data(ft.rank, 5, 4).requires_grad_())
    with pytest.raises(ConfigError, match="use_reentrant=False"):
        module.loss.backward()


@by_all("crew")
def test_within_execute(ft: FTLib, index: int) -> None:
    model = DistributedDataParallel(ft, small(), bucket_mb=1e-4)

    def step() -> Status | None:
        model.zero_grad()
        loss(model, ft.rank).backward()
        return model.status

    for _ in range(3):
        assert ft.execute(step) is Status.SUCCESS
        near(gradients(model), expected(small, loss))
    step()
    step()
    near(gradients(model), expected(small, loss))
    compressed = DistributedDataParallel(ft, small(), compression="bf16")
    with pytest.raises(ConfigError, match="compression= does not work within execute"):
        ft.execute(lambda: loss(compressed, ft.rank).backward())
    assert ft.barrier()


@by_all("crew")
def test_gradients_that_complete_no_bucket_look_at_what_is_under_way(ft: FTLib, index: int) -> None:
    """A peer's death is noted, and said to the others, though the next bucket takes long to fill."""
    module = nn.ParameterList([torch.zeros(4) for _ in range(100)])
    model = DistributedDataParallel(ft, Summed(module), bucket_mb=1.0, first_bucket_mb=16 / 2**20)
    for _ in range(4):
        model.zero_grad()
        model(torch.ones(4)).backward()
    engine, looks = ft._lives.life.engine, []
    honest = engine.advance
    engine.advance = lambda complete: (looks.append(complete), honest(complete))  # type: ignore[assignment,func-returns-value]
    try:
        model(torch.ones(4)).backward()
    finally:
        engine.advance = honest  # type: ignore[method-assign]
    assert looks.count(1) >= 99 // 8 - 1, "one bucket is there, the others are not"


class Summed(nn.Module):
    def __init__(self, weights: nn.ParameterList) -> None:
        super().__init__()
        self.weights = weights

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            inputs = inputs + weight
        return inputs.square().sum()


@pytest.mark.parametrize("around", [False, True], ids=["module", "wrapper"])
@by_all("crew")
def test_compiled(ft: FTLib, index: int, around: bool) -> None:
    """Without a compiler: what is traced, and how its gradients come, is the same."""
    with _COMPILING:
        module = small() if around else torch.compile(small(), backend="aot_eager")
        model = DistributedDataParallel(ft, module, bucket_mb=1e-4)
        call = torch.compile(model, backend="aot_eager") if around else model
        found = loss(call, ft.rank)
    for _ in range(3):
        model.zero_grad()
        with _COMPILING:
            found = loss(call, ft.rank)
        found.backward()
        assert model.status is Status.SUCCESS
        near(gradients(model), expected(small, loss))


class Apart(nn.Module):
    """Two parts; ``look`` is called in backward between them."""

    def __init__(self, wrap: Callable[[nn.Module], nn.Module], look: Callable[[], object]) -> None:
        super().__init__()
        whole = built(nn.Sequential(perceptron(4, 8, 8), perceptron(8, 6, 3)))
        self.first, self.second = (wrap(part) for part in whole)
        self._look = look

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.first(inputs)
        hidden.register_hook(self._looked)
        found: torch.Tensor = self.second(hidden)
        return found

    def _looked(self, _: torch.Tensor) -> None:
        self._look()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # what Dynamo looks at
@by_all("crew")
def test_graphs_that_were_compiled_apart_let_averages_begin_between_them(ft: FTLib, index: int) -> None:
    """The gradients of one graph come all at once; while the next one computes its own, they are on their way."""
    begun: list[bool] = []
    with _COMPILING:
        parts = Apart(lambda part: torch.compile(part, backend="aot_eager"), lambda: begun.append(ft._call_lock.carrying))
        loss(parts, ft.rank).backward()
        wanted = expected(lambda: Apart(lambda part: part, lambda: None), loss)
    assert ft.barrier(), "nobody compiles any more"
    model = DistributedDataParallel(ft, parts, bucket_mb=1e-4)
    for _ in range(5):
        model.zero_grad()
        loss(model, ft.rank).backward()
        near(gradients(model), wanted)
    assert begun[-2:] == [True, True]


_COMPILING = threading.Lock()
"""Workers are threads here, and compilation is for one at a time."""


@by_all("crew")
def test_buckets_have_names_in_profiles(ft: FTLib, index: int) -> None:
    model = DistributedDataParallel(ft, small(), bucket_mb=1e-4)
    loss(model, ft.rank).backward()
    with _PROFILING:
        pass
    barrier = ft.barrier()
    assert barrier
    if index == 0:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            loss(model, ft.rank).backward()
        names = {event.key for event in profile.key_averages()}
        assert any(name.startswith("ftlib bucket 0 (") for name in names)
        assert "ftlib finish" in names
    else:
        loss(model, ft.rank).backward()


_PROFILING = threading.Lock()


@by_all("crew")
def test_the_wrapper_leaves_the_module_as_it_was(ft: FTLib, index: int) -> None:
    module, before = small(), ft.step
    model = DistributedDataParallel(ft, module)
    loss(model, ft.rank).backward()
    before, gone = ft.step, weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    loss(module, ft.rank).backward()
    assert ft.step == before
    assert not any(parameter._post_accumulate_grad_hooks for parameter in module.parameters())


@pytest.mark.parametrize("wanted", [False, True])
def test_buffers_are_those_of_rank_0_if_asked_for(crew: Crew, wanted: bool) -> None:
    def train(ft: FTLib, _: int) -> tuple[int, list[torch.Tensor]]:
        module = nn.Sequential(built(nn.Linear(4, 3)), nn.BatchNorm1d(3))
        model, seen = DistributedDataParallel(ft, module, broadcast_buffers=wanted), []
        module.register_forward_pre_hook(lambda *_: seen.append(module[1].running_mean.clone()))
        for seed in range(3):
            model(data(ft.rank, 5, 4, seed=seed)).square().mean().backward()
            with torch.no_grad():
                module[1].running_mean += ft.rank
        return ft.rank, seen

    first, second = (seen for _, seen in sorted(crew.all(train), key=lambda each: each[0]))
    assert [torch.equal(one, other) for one, other in zip(first, second, strict=True)] == [True, wanted, wanted]


class Shuffled(nn.Module):
    """Registered in another order than it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.middle, self.last, self.first = nn.Linear(8, 8), nn.Linear(8, 3), nn.Linear(4, 8)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.middle(self.first(inputs).tanh()).tanh())
        return found


def order_of(model: DistributedDataParallel) -> list[int]:
    return model._backward._order.order()


REVERSED, READY = [5, 4, 3, 2, 1, 0], [3, 2, 1, 0, 5, 4]


@by_all("crew")
def test_the_order_is_agreed_after_the_first_average(ft: FTLib, index: int) -> None:
    model = DistributedDataParallel(ft, built(Shuffled()), bucket_mb=1e-4)
    found = []
    for _ in range(3):
        found.append(order_of(model))
        model.zero_grad()
        loss(model, ft.rank).backward()
        near(gradients(model), expected(lambda: built(Shuffled()), loss))
    first, second, third = found
    assert first == second == REVERSED
    assert set(third[:2]) == {2, 3}
    assert set(third[-2:]) == {4, 5}


@by_all("crew")
def test_the_order_is_agreed_though_a_callback_raises(ft: FTLib, index: int) -> None:
    """The average has ended, and one of the two workers alone would not know that the order is to be agreed."""
    model, pending = DistributedDataParallel(ft, built(Shuffled())), [Broken()]

    def fails(_: object) -> None:
        if pending:
            raise pending.pop()

    if ft.rank == 1:
        ft.on_view_change(fails)
        ft._plane.news.changes.append(ft.view)  # type: ignore[arg-type]
    for step in range(3):
        model.zero_grad()
        with pytest.raises(Broken) if ft.rank == 1 and not step else contextlib.nullcontext():
            loss(model, ft.rank).backward()
        assert model.status is Status.SUCCESS
        assert model.outcome(model.parameters()) is Status.SUCCESS
        near(gradients(model), expected(lambda: built(Shuffled()), loss))
    assert set(order_of(model)[:2]) == {2, 3}


@pytest.mark.parametrize("views", [True, False])
@by_all("crew")
def test_gradients_may_be_negated_views(ft: FTLib, index: int, views: bool) -> None:
    """As a hook makes them that computes with complex numbers; few operations write to them."""
    model = DistributedDataParallel(ft, nn.Linear(1, 1, bias=False), gradient_as_bucket_view=views)
    weight = model.module.weight
    weight.register_hook(lambda gradient: torch.complex(gradient, gradient * -ft.rank).conj().imag)
    weight.register_post_accumulate_grad_hook(lambda weight: negated.append(weight.grad.is_neg()))
    negated: list[bool] = []
    for _ in range(2):
        model.zero_grad()
        model(torch.ones(2, 1)).sum().backward()
        assert model.status is Status.SUCCESS
        assert weight.grad.item() == 1.0
    assert True in negated


@by_all("crew")
def test_the_order_is_that_of_rank_0(ft: FTLib, index: int) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            first, second = (self.one, self.other) if ft.rank else (self.other, self.one)
            found: torch.Tensor = second(first(inputs).repeat(1, 2)[:, :4])
            return found

    model = DistributedDataParallel(ft, Two())
    for _ in range(2):
        loss(model, ft.rank).backward()
    assert set(order_of(model)[:2]) == {0, 1}


@by_all("bare")
def test_without_registered_state_the_first_order_stays(ft: FTLib, index: int) -> None:
    """A joiner could not learn another one."""
    model = DistributedDataParallel(ft, built(Shuffled()))
    for _ in range(3):
        loss(model, ft.rank).backward()
    assert order_of(model) == REVERSED


def test_copies_without_registered_state_are_said_once(bare: Crew, caplog: pytest.LogCaptureFixture) -> None:
    def train(ft: FTLib, _: int) -> None:
        model = DistributedDataParallel(ft, small())
        for _ in range(2):
            loss(model, ft.rank).backward()

    with caplog.at_level(logging.INFO, "ftlib"):
        bare.all(train)
    assert caplog.text.count("gradient_as_bucket_view") == SIZE


@by_all("crew")
def test_clipping_leaves_the_averages_as_they_are(ft: FTLib, index: int) -> None:
    """Clipped gradients lie where autograd had put its own, so that they take no memory."""
    ft.allreduce_average(torch.ones(1))  # from the next average on, gradients are views
    model = DistributedDataParallel(ft, small())
    loss(model, ft.rank).backward()
    wanted = small()
    for parameter, average in zip(wanted.parameters(), expected(small, loss), strict=True):
        parameter.grad = average
    results = [parameter.grad for parameter in model.parameters()]
    before = gradients(model)
    assert model.clip_grad_norm_(1e6) == torch.nn.utils.clip_grad_norm_(wanted.parameters(), 1e6)
    assert all(parameter.grad is result for parameter, result in zip(model.parameters(), results, strict=True))
    norm = model.clip_grad_norm_(0.01)
    torch.testing.assert_close(norm, torch.nn.utils.clip_grad_norm_(wanted.parameters(), 0.01))
    near(gradients(model), gradients(wanted))
    near(results, before)
    average = model._backward._average
    assert average is not None
    former = {gradient.data_ptr() for gradient in average.inputs if gradient is not None}
    assert {parameter.grad.data_ptr() for parameter in model.parameters() if parameter.grad is not None} == former


@by_all("crew")
def test_what_was_averaged_is_not_added_to_in_place(ft: FTLib, index: int) -> None:
    """Another worker may still need it."""
    model = DistributedDataParallel(ft, small())
    loss(model, ft.rank).backward()
    results, before = [parameter.grad for parameter in model.parameters()], gradients(model)
    with model.no_sync():
        loss(model, ft.rank).backward()
    near(results, before)
    loss(model, ft.rank).backward()
    near(gradients(model), [3 * each for each in expected(small, loss)])


@by_all("crew")
def test_sharded_parameters_are_averaged_by_their_local_part(ft: FTLib, index: int, mesh: DeviceMesh) -> None:
    from torch.distributed.tensor import DTensor, Replicate, Shard

    class Sharded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            inner = nn.Linear(4, 3)
            built(inner)
            self.weight = nn.Parameter(DTensor.from_local(inner.weight.detach(), mesh, [Shard(0)]))
            self.spare = nn.Parameter(DTensor.from_local(torch.ones(2), mesh, [Replicate()]))
            self.bias = inner.bias

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs @ self.weight.to_local().t() + self.bias

    model = DistributedDataParallel(ft, Sharded())
    for times in (1, 1, 1, 2):
        for parameter in model.parameters():
            parameter.grad = None
        for _ in range(times):
            loss(model, ft.rank).backward()
        weight, spare, bias = (parameter.grad for parameter in model.parameters())
        assert isinstance(weight, DTensor) and isinstance(spare, DTensor)
        found = expected(lambda: built(nn.Linear(4, 3)), loss)
        near([weight.to_local(), bias], [times * each for each in found])
        assert not spare.to_local().any()
        assert weight.placements == (Shard(0),)


class Scaled(nn.Module):
    """A replicated weight beside sharded activations, as norms have it: backward leaves a part of its gradient."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        from torch.distributed.tensor import DTensor, Replicate

        self._mesh = mesh
        self.weight = nn.Parameter(DTensor.from_local(torch.ones(3), mesh, [Replicate()]))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        from torch.distributed.tensor import DTensor, Shard

        scaled = DTensor.from_local(inputs, self._mesh, [Shard(0)]) * self.weight
        found: torch.Tensor = scaled.to_local().sum()
        return found


@pytest.mark.parametrize("wraps", [False, True], ids=["call", "wrapper"])
@by_all("crew")
def test_gradients_are_averaged_as_their_parameters_are_sharded(ft: FTLib, index: int, mesh: DeviceMesh, wraps: bool) -> None:
    """Parts of sums are put together before, as a member without a gradient could not know that they are such."""
    module = Scaled(mesh)
    model = DistributedDataParallel(ft, module) if wraps else module
    for step in range(3):
        model.zero_grad()
        inputs = torch.full((4, 3), 1.0 + ft.rank)
        if step != 1:
            model(inputs).backward()
        elif ft.rank == 0 or wraps:  # a wrapped model has a backward in each step
            (model(inputs) * (ft.rank == 0)).backward()
        status = model.status if wraps else ft.allreduce_average(module)
        assert status is Status.SUCCESS
        assert module.weight.grad.placements == module.weight.placements
        near([local_part(module.weight.grad)], [torch.full((3,), 2.0 if step == 1 else 6.0)])


@by_all("crew")
def test_a_call_without_a_result_makes_no_gradient_of_a_sharded_parameter(ft: FTLib, index: int, mesh: DeviceMesh) -> None:
    module = Scaled(mesh)
    assert ft.allreduce_average(module, weight=0.0) is Status.FAIL
    assert module.weight.grad is None
    model = DistributedDataParallel(ft, module)
    model.weigh(0.0)
    model(torch.ones(4, 3)).backward()
    assert model.status is Status.FAIL
    near([module.weight.grad.full_tensor()], [torch.full((3,), 4.0)])


class Ways(nn.Module):
    """Each call uses the parameters that it names."""

    def __init__(self, mesh: DeviceMesh | None = None) -> None:
        super().__init__()
        for name in "ab":
            weight = torch.ones(2)
            if mesh is not None:
                from torch.distributed.tensor import Shard, distribute_tensor

                weight = distribute_tensor(weight, mesh, [Shard(0)])
            self.register_parameter(name, nn.Parameter(weight))

    def forward(self, names: str) -> torch.Tensor:
        used = [local_part(getattr(self, name)) for name in names]
        return torch.stack([each.sum() for each in used]).sum()

    def found(self) -> list[list[float] | None]:
        return [None if each.grad is None else local_part(each.grad).tolist() for each in self.parameters()]


@pytest.mark.parametrize("sharded", [False, True], ids=["plain", "sharded"])
@pytest.mark.parametrize("reset", ["to_none", "to_zero", "not"])
@pytest.mark.parametrize("apart", [False, True], ids=["at_once", "no_sync"])
@by_all("crew")
def test_what_only_a_member_of_weight_0_used_was_used_by_nobody(
    ft: FTLib, index: int, mesh: DeviceMesh, sharded: bool, reset: str, apart: bool
) -> None:
    """Its gradients stay what they were, too, so that all members apply the same."""
    module = Ways(mesh if sharded else None)
    model = DistributedDataParallel(ft, module, find_unused_parameters=True)
    model("ab").backward()
    if reset != "not":
        model.zero_grad(set_to_none=reset == "to_none")
    if apart:
        with model.no_sync():
            model("b" if ft.rank == 0 else "a").backward()
    model.weigh(0.0 if ft.rank == 0 else 1.0)
    model("b" if ft.rank == 0 and not apart else "a").backward()
    assert model.status is Status.SUCCESS
    of_a = 1.0 + (reset == "not") + apart
    assert module.found() == [[of_a] * 2, {"to_none": None, "to_zero": [0.0] * 2, "not": [1.0] * 2}[reset]]
    model.zero_grad()
    model("b").backward()
    assert module.found() == [None, [1.0, 1.0]], "the weight was for one average"


@pytest.mark.parametrize("sharded", [False, True], ids=["plain", "sharded"])
@by_all("crew")
def test_a_gradient_that_nobody_used_is_none_of_an_earlier_step(ft: FTLib, index: int, mesh: DeviceMesh, sharded: bool) -> None:
    module = Ways(mesh if sharded else None)
    model = DistributedDataParallel(ft, module, find_unused_parameters=True)
    for name in "abbab":
        model.zero_grad()
        model(name).backward()
        assert module.found() == [[1.0, 1.0] if name == each else None for each in "ab"]


@by_all("crew")
def test_what_was_used_in_a_step_that_failed_counts_until_it_is_dropped(ft: FTLib, index: int) -> None:
    module = Ways()
    model = DistributedDataParallel(ft, module, find_unused_parameters=True)
    for dropped in (True, False):
        model.zero_grad()
        model.weigh(0.0)
        model("a").backward()
        assert model.status is Status.FAIL
        if dropped:
            model.zero_grad()
        model("b").backward()
        assert module.found() == [None if dropped else [1.0, 1.0], [1.0, 1.0]]
    with model.no_sync():
        model("a").backward()
    model.zero_grad(set_to_none=False)
    model.begin_step(model.parameters())
    model("b").backward()
    assert module.found() == [[0.0, 0.0], [1.0, 1.0]]


@by_all("crew")
def test_what_a_backward_that_failed_has_added_is_used(ft: FTLib, index: int) -> None:
    module = Ways()
    model = DistributedDataParallel(ft, module, find_unused_parameters=True)
    for _ in range(2):  # the second time the gradients come in the order in which they are used
        model.zero_grad()
        model("ab").backward()
    model.zero_grad()
    if ft.rank == 1:
        with breaking(module.a), pytest.raises(Broken):
            model("ab").backward()
    kept = module.b.grad is not None
    model("a").backward()
    near([module.a.grad], [torch.ones(2)])
    assert kept == (ft.rank == 1), "the one before the one that broke"
    near([module.b.grad], [torch.full((2,), 0.5)])


@pytest.mark.parametrize("sharded", [False, True], ids=["plain", "sharded"])
@by_all("crew")
def test_a_gradient_that_only_some_have_is_averaged_and_one_that_nobody_has_is_none(
    ft: FTLib, index: int, mesh: DeviceMesh, sharded: bool
) -> None:
    """Whether it was used or not: who joined has none, where the others have kept zeros, or what they had alone."""
    module = Ways(mesh if sharded else None)
    model = DistributedDataParallel(ft, module, find_unused_parameters=True)
    for kept, counts in ((0.0, True), (3.0, True), (3.0, False)):
        model.zero_grad()
        if ft.rank == 0:
            model.module("b").backward()
            local_part(module.b.grad).fill_(kept)  # type: ignore[arg-type]
        model.weigh(1.0 if counts or ft.rank else 0.0)
        model("a").backward()
        assert module.found() == [[1.0, 1.0], [kept / 2] * 2 if counts else None]


@pytest.mark.parametrize("apart", ["no_sync", "failed"])
@by_all("crew")
def test_one_of_two_optimizers_begins_its_step_alone(ft: FTLib, index: int, apart: str) -> None:
    """What the model has accumulated for the other one is averaged all the same; if its own average fails, so does its step."""
    module = Ways()
    model = DistributedDataParallel(ft, module, find_unused_parameters=True)
    one, other = (Optimizer(ft, torch.optim.SGD([each], lr=1.0)) for each in (module.a, module.b))
    one.zero_grad()
    other.zero_grad()
    with model.no_sync() if apart == "no_sync" else contextlib.nullcontext():
        model.weigh(0.0)
        (model("ab") * ft.rank).backward()
    other.zero_grad()
    model.weigh(1.0)
    (model("b") * ft.rank).backward()
    assert module.found() == [[0.5, 0.5]] * 2
    assert other.step() is Status.SUCCESS
    assert one.step() is (Status.SUCCESS if apart == "no_sync" else Status.FAIL)
    assert [each.tolist() for each in (module.a, module.b)] == [[0.5 if apart == "no_sync" else 1.0] * 2, [0.5] * 2]


def test_averages_that_leave_gradients_out_are_not_replayed() -> None:
    """A joiner would apply zeros where the others applied nothing."""

    def train(worker: Worker) -> str:
        module = small()
        DistributedDataParallel(worker.ft, module, find_unused_parameters=True)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        return why_not(Registered({"model": module, "optimizer": optimizer}, agreed=worker.ft.agreed))

    with Job(1) as job:
        assert "find_unused_parameters" in job.run({"a": train})["a"]


@pytest.mark.parametrize("reentrant", [False, True])
@by_all("crew")
def test_the_wrapper_itself_may_be_computed_again(ft: FTLib, index: int, reentrant: bool) -> None:
    def make() -> nn.Module:
        return built(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, affine=False), nn.Linear(3, 2)))

    model = DistributedDataParallel(ft, make(), bucket_mb=1e-5, broadcast_buffers=True)
    for _ in range(3):
        model.zero_grad()
        inputs = data(ft.rank, 5, 4).requires_grad_()
        recompute(model, inputs, use_reentrant=reentrant).square().mean().backward()
        near(gradients(model), expected(make, loss))


class Transposed(nn.Module):
    """A weight that is not contiguous, and whose gradient comes ``times`` times in one backward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = perceptron(4, 4)
        self.weight = nn.Parameter(torch.ones(30, 4).t())
        self.times = 1

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found = self.inner(inputs)
        parts = [recompute(lambda x: (x @ self.weight).tanh(), found, use_reentrant=True) for _ in range(self.times)]
        return torch.stack(parts).sum(0)


@by_all("crew")
def test_a_split_gradient_that_changes_after_a_part_was_sent(ft: FTLib, index: int) -> None:
    """It is copied to a row, as it is not contiguous; what is sent in the end is not the row of before."""

    def make() -> Transposed:
        return built(Transposed())

    def passes(module: nn.Module, rank: int, times: int) -> torch.Tensor:
        inner = module.module if isinstance(module, DistributedDataParallel) else module
        assert isinstance(inner, Transposed)
        inner.times = times
        found: torch.Tensor = module(data(rank, 5, 4)).square().mean()
        return found

    model = DistributedDataParallel(ft, make(), bucket_mb=1e-4, first_bucket_mb=1e-4)
    for times in (1, 1, 1, 2, 3):
        model.zero_grad()
        passes(model, ft.rank, times).backward()
        near(gradients(model), expected(make, lambda module, rank, times=times: passes(module, rank, times)))


@pytest.mark.parametrize("output", [True, False], ids=["output", "no output"])
@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "replaced"])
@by_all("crew")
def test_hooks_that_are_registered_after_the_wrapper_change_what_is_averaged(
    ft: FTLib, index: int, in_place: bool, output: bool
) -> None:
    """As with torch, whose hooks come before its wrapper's whenever they are registered."""

    def make(module: nn.Module | None = None) -> nn.Module:
        module = module or small()
        for number, parameter in enumerate(module.parameters(), 2):
            parameter.register_post_accumulate_grad_hook(functools.partial(hook, number))  # type: ignore[no-untyped-call]
        return module

    def hook(number: int, parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        if in_place:
            parameter.grad.mul_(number)
        else:
            parameter.grad = parameter.grad * number

    def penalized(module: nn.Module, rank: int) -> torch.Tensor:
        """Where it is of no output of forward, backward begins at the parameters."""
        if output:
            return loss(module, rank)
        loss(module, rank)
        return torch.stack([parameter.square().sum() * (rank + 1) for parameter in module.parameters()]).sum()

    model = DistributedDataParallel(ft, small(), bucket_mb=1e-4, first_bucket_mb=1e-4)
    penalized(model, ft.rank).backward()
    model.zero_grad()
    penalized(model, ft.rank).backward()
    make(model.module)
    for _ in range(3):
        model.zero_grad()
        penalized(model, ft.rank).backward()
        near(gradients(model), expected(make, penalized))


@by_all("crew")
def test_an_optimizer_that_steps_within_backward_is_refused(ft: FTLib, index: int) -> None:
    """It would apply what this worker alone has computed, and there would be nothing left to average."""

    def step(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    model = DistributedDataParallel(ft, small(), bucket_mb=1e-4, first_bucket_mb=1e-4)
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()}
    loss(model, ft.rank).backward()
    model.zero_grad()
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    with pytest.raises(ConfigError, match=r"parameter 0\.weight .*within backward.*step\(\) after it"):
        loss(model, ft.rank).backward()
    assert model.status is None
    assert ft.barrier(), "nobody is held up"


@by_all("crew")
def test_a_hook_may_drop_a_gradient(ft: FTLib, index: int) -> None:
    """It counts as zeros, like one that did not come."""
    model = DistributedDataParallel(ft, small())
    first, *others = model.parameters()
    first.register_post_accumulate_grad_hook(lambda parameter: setattr(parameter, "grad", None))
    loss(model, ft.rank).backward()
    assert model.status is Status.SUCCESS
    assert not first.grad.any()
    assert all(other.grad.any() for other in others)


@by_all("crew")
def test_a_model_that_is_converted_later(ft: FTLib, index: int) -> None:
    """It converts its gradients, too, which are views of averages then."""
    model = DistributedDataParallel(ft, small(), bucket_mb=1e-4, first_bucket_mb=1e-4)
    for dtype in (torch.float32, torch.float64, torch.float32):

        def passed(module: nn.Module, rank: int, dtype: torch.dtype = dtype) -> torch.Tensor:
            found: torch.Tensor = module(data(rank, 5, 4).to(dtype)).square().mean()
            return found

        model.to(dtype)
        for _ in range(3):
            model.zero_grad()
            passed(model, ft.rank).backward()
            near(gradients(model), expected(lambda dtype=dtype: small().to(dtype), passed))
