"""``DiLoCo`` and ``LocalSGD`` in threads of one process: weights, failures, refusals, the ends of a loop."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from ftlib import (
    ConfigError,
    DiLoCo,
    DistributedDataParallel,
    ElasticSampler,
    Excluded,
    FTLib,
    LocalSGD,
    Optimizer,
    PowerSGD,
    Status,
)
from ftlib.core.plane.facts import facts
from ftlib.frameworks.gloo import GlooFramework
from ftlib.train.local_sgd.outer_step import OuterStep
from tests.ftlib.crews.crew import Crew, by_all
from tests.ftlib.crews.trainees import exclude
from tests.ftlib.crews.workers import Worker, workers
from tests.ftlib.recovery.pupils import model_of
from tests.harness.basics import TIMEOUT, eventually
from tests.harness.company import Company, at_once, company
from tests.launch.test_status import shown
from tests.train.local_sgd.test_course import Layers, inner_step


@pytest.fixture(scope="module")
def pair() -> Iterator[Crew]:
    with Crew(2) as crew:
        yield crew


def outer(weights: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, lr=1.0)


def local(ft: FTLib, **more: Any) -> tuple[Layers, torch.optim.Optimizer, DiLoCo]:
    model = Layers()
    inner = torch.optim.SGD(model.parameters(), lr=0.5)
    diloco = DiLoCo(ft, model, inner=inner, outer=outer, **{"sync_every": 2, **more})
    ft.register_state(model=diloco)
    return model, inner, diloco


# --- weights -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("weight", "expected"), [("steps", 1 - 20 / 6), ("equal", 1 - 6 / 2)])
@by_all("pair")
def test_members_of_different_speed(ft: FTLib, i: int, weight: str, expected: float) -> None:
    """One makes 4 inner steps of -1 while the other makes 2."""
    model, inner, diloco = local(ft, sync_every=2 + 2 * i, weight=weight)
    with diloco:
        for _ in range(2 + 2 * i):
            inner_step(model, inner)
    assert model.now == pytest.approx((expected, expected))
    assert diloco.status is Status.SUCCESS


@by_all("pair")
def test_a_fragment_weighs_what_was_done_since_its_own_sync(ft: FTLib, i: int) -> None:
    """Of four inner steps in all, two before each sync."""
    model, inner, diloco = local(ft, sync_every=(4, 8)[i], fragments=2)
    with diloco:
        for _ in range((6, 12)[i]):
            inner_step(model, inner)
    # Layer 0: 2 and 4 steps, then 4 and 8. Layer 1: 4 and 8; then 2 or 4 more, on its own.
    assert model.first.item() == pytest.approx(1 - 20 / 6 - 80 / 12)
    assert model.second.item() == pytest.approx(1 - 80 / 12 - (2, 4)[i])


@by_all("pair")
def test_local_weights_are_averaged(ft: FTLib, i: int) -> None:
    model = Layers()
    inner = torch.optim.SGD(model.parameters(), lr=0.5 + i)
    averaging = LocalSGD(ft, model, sync_every=3)
    ft.register_state(model=averaging)
    with averaging:
        for step in range(3):
            inner_step(model, inner)
            assert averaging.step() is (Status.SUCCESS if step == 2 else None)
    assert model.now == (1 - 6.0, 1 - 6.0)


@pytest.mark.parametrize("delay", [0, 1])
@workers(2)
def test_samples_of_a_sampler_are_the_weight(worker: Worker, delay: int) -> None:
    """A member of batches of 4, and in the end one of 2: 10 samples for two; every one is used up once."""
    ft = worker.ft
    sampler = ElasticSampler(range(20), batch_size=4, shuffle=False)
    model = Layers()
    inner = torch.optim.SGD(model.parameters(), lr=0.5)
    diloco = DiLoCo(ft, model, inner=inner, outer=outer, sync_every=2, fragments=1, weight="samples", delay=delay)
    ft.register_state(model=diloco, sampler=sampler)
    with diloco:
        for _ in range(2):
            for _batch in sampler:
                inner_step(model, inner)
    used = [index for row in sampler.ledger(0) for index in row.indices]
    assert sorted(used) == list(range(20))
    assert diloco.status and ft.step == diloco.syncs > 0


@workers(1)
def test_samples_without_a_sampler(worker: Worker) -> None:
    model, inner, diloco = local(worker.ft, sync_every=1, weight="samples")
    with pytest.raises(ConfigError, match="needs an ElasticSampler"), diloco:
        inner_step(model, inner)


# --- what fails --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delay", [0, 1])
@by_all("pair")
def test_inf_leaves_all_weights_as_they_are(ft: FTLib, i: int, delay: int) -> None:
    """And the inner steps count on: they weigh in the next sync."""
    model, inner, diloco = local(ft, delay=delay)
    before = ft.step
    with diloco:
        for step in range(4):
            if step == 0 and i == 1:
                with torch.no_grad():
                    model.first.fill_(math.inf)
            inner_step(model, inner)
            if step == 1:
                assert diloco.status is Status.FAIL and ft.step == before and diloco.syncs == 1
                assert [weight.item() for weight in diloco.global_model.parameters()] == [1.0, 1.0]
                assert model.now == (math.inf if i else -1.0, -1.0)
                if i == 1:
                    diloco.load_global()
    # One has made 4 - delay inner steps since the last sync, the other 2 - delay since it took the global weights.
    steps = (4 - delay) ** 2 + (2 - delay) ** 2
    assert diloco.status is Status.SUCCESS and ft.step == before + 1
    assert model.first.item() == pytest.approx(1 - steps / (6 - 2 * delay))


@pytest.mark.parametrize("momentum", [False, True], ids=["fresh", "with-momentum"])
@pytest.mark.parametrize("delay", [0, 1])
@by_all("pair")
def test_an_outer_step_that_overflows_is_undone(ft: FTLib, i: int, delay: int, momentum: bool) -> None:
    """The average is finite, the step with it is not: weights and optimizer stay as they are, and the round counts on."""
    model = Layers()
    inner = torch.optim.SGD(model.parameters(), lr=0.5)
    diloco = DiLoCo(
        ft, model, inner=inner, outer=lambda weights: torch.optim.SGD(weights, lr=1.0, momentum=0.5), sync_every=3, delay=delay
    )
    ft.register_state(model=diloco)
    (optimizer,) = diloco._optimizers
    rounds = 1 if momentum else 0
    with diloco:
        for _ in range(3 * rounds):
            inner_step(model, inner)
        before = [weight.item() for weight in diloco.global_model.parameters()]
        kept = {name: value for state in optimizer.state.values() for name, value in state.items()}
        buffers = {name: value.clone() for name, value in kept.items() if isinstance(value, torch.Tensor)}
        optimizer.param_groups[0]["lr"] = 3e38
        own = model.now
        for _ in range(3):
            inner_step(model, inner)
        assert diloco.status is Status.FAIL
        assert diloco.syncs == rounds + 1
        assert [weight.item() for weight in diloco.global_model.parameters()] == before
        assert model.now == (own[0] - 3.0, own[1] - 3.0), "local weights stay as they are"
        now = {name: value for state in optimizer.state.values() for name, value in state.items()}
        assert now.keys() == kept.keys()
        assert all(torch.equal(now[name], value) for name, value in buffers.items())
        assert optimizer.param_groups[0]["lr"] == 3e38
        optimizer.param_groups[0]["lr"] = 1.0
        for _ in range(3):
            inner_step(model, inner)
    assert diloco.status is Status.SUCCESS
    # The pseudo-gradient is of all inner steps since the last sync that was applied.
    moved = 6.0 - delay + (0.5 * buffers["momentum_buffer"].item() if momentum else 0.0)
    assert next(diloco.global_model.parameters()).item() == pytest.approx(before[0] - moved)


def test_what_was_inf_before_may_stay() -> None:
    """A mask, say: only what a step spoils is undone."""
    weights = [nn.Parameter(torch.tensor([1.0, math.inf])), nn.Parameter(torch.tensor([2.0]))]
    optimizer = torch.optim.SGD(weights, lr=1.0)
    step = OuterStep()
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    assert step.make(optimizer, weights)
    assert [weight.tolist() for weight in weights] == [[0.0, math.inf], [1.0]]
    weights[1].grad = torch.tensor([-math.inf])
    assert not step.make(optimizer, weights)
    step.undo()
    assert [weight.tolist() for weight in weights] == [[0.0, math.inf], [1.0]]


@pytest.mark.parametrize("algorithm", [torch.optim.Adam, torch.optim.NAdam, torch.optim.Adagrad, torch.optim.RMSprop])
def test_any_optimizer_is_as_it_was(algorithm: Any) -> None:
    weight = nn.Parameter(torch.tensor([1.0, -1.0]))
    other = nn.Parameter(torch.tensor([1.0, -1.0]))
    ones, twins = algorithm([weight], lr=0.1), algorithm([other], lr=0.1)
    step = OuterStep()
    for gradient in ([0.5, 0.25], [3e38, 3e38], [0.125, 1.0]):
        weight.grad = torch.tensor(gradient)
        made = step.make(ones, [weight])
        if gradient[0] < 1:
            assert made
            other.grad = torch.tensor(gradient)
            twins.step()
        else:
            assert not made
            step.undo()
    assert torch.equal(weight, other), "as if the step between had never been"
    assert repr(ones.state_dict()) == repr(twins.state_dict())


@workers(2, min_size=2)
def test_too_few_members(worker: Worker) -> None:
    """A sync that nobody could make is made after the next inner step."""
    model, inner, diloco = local(worker.ft)
    with diloco:
        for _ in range(2):
            inner_step(model, inner)
        assert diloco.syncs == 1
        if worker.name == "w1":
            return


@pytest.mark.parametrize("rest", [0.0, 1.0], ids=["level", "skewed"])
@pytest.mark.parametrize("delay", [0, 1])
def test_one_gives_a_sync_up_and_another_has_a_new_member_first(rest: float, delay: int) -> None:
    """That sync counts at neither of them, so both go on with the same fragment."""
    with company(3, min_size=3, step_timeout=2.0) as crew:
        failed, gone, last = threading.Event(), threading.Barrier(3), [0]

        def work(ft: FTLib, *, leaves: bool = False, rest: float = 0.0) -> tuple[list[int], int, list[float]]:
            model, inner, diloco = local(ft, sync_every=4, fragments=2, delay=delay)
            with diloco:
                inner_steps(diloco, lambda: inner_step(model, inner), until=3)
                gone.wait(TIMEOUT)
                if not leaves:
                    time.sleep(rest)
                    fails = inner_steps(diloco, lambda: inner_step(model, inner))
            if leaves:
                ft.close()
                return [], 0, []
            return fails, diloco.syncs, [weight.item() for weight in diloco.global_model.parameters()]

        def inner_steps(diloco: DiLoCo, step: Callable[[], None], until: int = 0) -> list[int]:
            """The syncs before which one has failed. ``until``: so many are made; else as many as the joiner says."""
            fails = []
            while not 0 < (until or last[0]) <= diloco.syncs:
                step()
                if diloco.status is Status.FAIL:
                    fails.append(diloco.syncs)
                    failed.set()
            return fails

        def join() -> tuple[int, list[float]]:
            assert failed.wait(TIMEOUT)
            ft = crew.init()
            model, inner, diloco = local(ft, sync_every=4, fragments=2, delay=delay)
            with diloco:
                while not diloco.status:  # until it is one of them
                    inner_step(model, inner)
                last[0] = diloco.syncs + 3
                inner_steps(diloco, lambda: inner_step(model, inner))
            return diloco.syncs, [weight.item() for weight in diloco.global_model.parameters()]

        one, two, three = crew.members
        first, second, _, joined = at_once(
            lambda: work(one), lambda: work(two, rest=rest), lambda: work(three, leaves=True), join
        )
        assert first[1:] == second[1:] == joined
        assert set(first[0]) | set(second[0]) == {3}


def test_the_program_raises_in_the_middle_of_a_sync() -> None:
    """The others finish it without the one that leaves; nobody waits for it."""
    with company(3) as crew:

        def work(ft: FTLib) -> tuple[float, float] | None:
            model, inner, diloco = local(ft, sync_every=3, delay=1)
            try:
                with diloco:
                    for step in range(6):
                        if step == 5 and ft is crew.members[2]:
                            assert diloco._rounds.under_way
                            raise ZeroDivisionError
                        inner_step(model, inner)
            except ZeroDivisionError:
                assert not diloco._rounds.under_way
                ft.close()
                return None
            return model.now

        one, two, none = at_once(*[lambda ft=ft: work(ft) for ft in crew.members])
        assert one == two == (-3.0, -3.0) and none is None


@pytest.mark.parametrize("delay", [0, 1])
def test_a_callback_that_raises_keeps_no_member_from_the_outer_step(delay: int) -> None:
    """A new view is told at the end of a sync, which has finished: the one that raises has what the others have."""
    with company(2) as crew:
        learners = at_once(*[lambda ft=ft: (ft, *local(ft, sync_every=2, delay=delay)) for ft in crew.members])

        def fails(_: object) -> None:
            raise ZeroDivisionError

        def learn(ft: FTLib, model: Layers, inner: torch.optim.Optimizer, diloco: DiLoCo) -> tuple[Any, ...]:
            steps, raised = 0, []
            while steps < 6:
                try:
                    with diloco:
                        while steps < 6:
                            steps += 1
                            if steps == 4 and ft is crew.members[1]:
                                ft.on_view_change(fails)
                                ft._plane.news.changes.append(ft.view)  # type: ignore[arg-type]
                            inner_step(model, inner)
                except ZeroDivisionError:
                    raised.append((steps, diloco.syncs, diloco.status))
            shared = [weight.item() for weight in diloco.global_model.parameters()]
            return raised, ft.step, diloco.syncs, model.now, shared

        (never, *one), (raised, *two) = at_once(*[functools.partial(learn, *each) for each in learners])
        assert not never and raised == [(4, 2, Status.SUCCESS)]
        assert one == two and one[:2] == [3, 3]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("error", [OSError(), KeyboardInterrupt()], ids=["hook", "Ctrl-C"])
def test_who_cannot_take_an_outer_step_leaves(when: str, error: BaseException) -> None:
    """The others have taken it: they go on without this one, and nobody gets from it what it has instead."""

    def fails(*_: object) -> None:
        calls.append(0)
        if len(calls) == 2:
            raise error

    def learn(ft: FTLib, model: Layers, inner: torch.optim.Optimizer, diloco: DiLoCo) -> tuple[Any, ...]:
        raised = None
        with diloco:
            for step in range(1, 9):
                try:
                    inner_step(model, inner)
                except type(error):
                    raised = step, diloco.status, diloco.syncs
        return raised, diloco.status, [weight.item() for weight in diloco.global_model.parameters()]

    calls: list[int] = []
    with company(2) as crew:
        learners = at_once(*[lambda ft=ft: (ft, *local(ft, sync_every=2)) for ft in crew.members])
        optimizer = learners[1][3]._optimizers[0]
        hook = optimizer.register_step_pre_hook if when == "before" else optimizer.register_step_post_hook
        hook(fails)
        goes_on, left = at_once(*[functools.partial(learn, *each) for each in learners])
    assert goes_on == (None, Status.NO_NEED, [1.0 - 8.0] * 2)
    assert left == ((4, Status.ABORT, 2), Status.ABORT, [1.0 - 2.0] * 2)


def test_alone_an_outer_step_that_raises_is_a_sync_that_failed() -> None:
    def fails(*_: object) -> None:
        calls.append(0)
        if len(calls) == 2:
            raise ZeroDivisionError

    calls: list[int] = []
    with company(1) as crew:
        model, inner, diloco = local(crew.members[0], sync_every=2)
        diloco._optimizers[0].register_step_post_hook(fails)
        found = []
        with diloco:
            for step in range(6):
                with pytest.raises(ZeroDivisionError) if step == 3 else contextlib.nullcontext():
                    inner_step(model, inner)
                found.append((diloco.syncs, diloco.status, next(diloco.global_model.parameters()).item()))
    done, failed = Status.NO_NEED, Status.FAIL
    assert found[1::2] == [(1, done, -1.0), (2, failed, -1.0), (3, done, -5.0)]


@pytest.mark.parametrize("way", ["catch_up", "allreduce"])
def test_who_comes_back_between_two_syncs_goes_on_from_the_global_weights(way: str) -> None:
    """It gets the state in another call of its loop than a sync. Its old weights would pull all others back to them."""
    with company(3, rejoin=True) as crew:
        last, stayer = [0], crew.members[0]

        def work(ft: FTLib) -> tuple[Any, ...]:
            model, inner, diloco = local(ft, sync_every=4)
            shared, back = [], None
            with diloco:
                while not 0 < last[0] <= diloco.syncs:
                    leaves = ft is crew.members[2] and diloco.inner_steps == 6
                    if leaves:
                        exclude(ft)
                        eventually(lambda: stayer.step >= 3, "the others go on")
                    assert ft.catch_up() is leaves if way == "catch_up" else ft.allreduce(torch.ones(1))
                    before = diloco.syncs
                    inner_step(model, inner)
                    if leaves:
                        last[0], back = diloco.syncs + 3, (model.now[0], diloco.global_model.first.item())
                    if diloco.syncs > before:
                        shared.append(diloco.global_model.first.item())
                    time.sleep(0.002)  # so that it comes back in the middle of a round
            return back, shared

        (_, one), (_, two), (back, three) = at_once(*[functools.partial(work, ft) for ft in crew.members])
        assert one == two and one[-2:] == three[-2:]
        assert back[0] == back[1]
        assert all(0 < before - after <= 4 for before, after in itertools.pairwise(one)), "nobody goes back"


@by_all("pair")
def test_a_step_that_is_undone_between_two_syncs_costs_no_inner_step(ft: FTLib, i: int) -> None:
    """The state is that of a moment ago, and so are the global weights: the local ones still count as learned from these."""

    tries: list[int] = []

    def measure() -> None:
        tries.append(1)
        ft.allreduce(torch.ones(1))
        if i == 0 and len(tries) == 1:
            raise ValueError("once")

    model, inner, diloco = local(ft, sync_every=4)
    with diloco:
        for step in range(4):
            inner_step(model, inner)
            assert model.now == ((-step, -step) if step < 3 else (-3, -3))
            if step == 1 and i == 0:
                with pytest.raises(ValueError, match="once"):
                    ft.execute(measure)
            if step == 1:
                ft.execute(measure)
    assert len(tries) == 2, "it was undone at both"
    assert diloco.status is Status.SUCCESS


def test_a_loop_that_ends_in_the_middle_of_a_sync_ends_it() -> None:
    with company(2) as crew:

        def work(ft: FTLib) -> tuple[float, float]:
            model, inner, diloco = local(ft, sync_every=3, delay=1)
            with diloco:
                for _ in range(2):
                    inner_step(model, inner)
                assert diloco._rounds.under_way and diloco.syncs == 0
                with pytest.raises(ConfigError, match="a sync is under way"):
                    diloco.load_global()
                kept = copy.deepcopy(diloco.state_dict())
                changed = {**kept, "model": {name: value + 5.0 for name, value in kept["model"].items()}}
                with pytest.raises(ConfigError, match="load_state_dict: a sync is under way"):
                    diloco.load_state_dict(changed)
                for name, value in diloco.state_dict()["model"].items():
                    assert torch.equal(value, kept["model"][name]), "nothing was loaded"
            assert diloco.syncs == 1
            return model.now

        assert at_once(*[lambda ft=ft: work(ft) for ft in crew.members]) == [(-1.0, -1.0)] * 2


# --- compression, checkpoints, forms of parameters ---------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["bf16", "int8", PowerSGD(rank=2)])
@pytest.mark.parametrize("delay", [0, 2])
@by_all("pair")
def test_what_is_sent_is_compressed(ft: FTLib, i: int, compression: Any, delay: int) -> None:
    model = nn.Linear(40, 30)
    same = torch.Generator().manual_seed(0)  # threads share torch's own
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1, generator=same)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    diloco = DiLoCo(ft, model, inner=inner, outer=outer, sync_every=3, delay=delay, compression=compression)
    ft.register_state(model=diloco)
    data = torch.Generator().manual_seed(i)
    with diloco:
        for _ in range(9):
            inner.zero_grad()
            model(torch.randn(20, 40, generator=data)).square().mean().backward()
            inner.step()
    assert diloco.status is Status.SUCCESS and diloco.syncs == 3
    together = [parameter.detach().clone() for parameter in model.parameters()]
    ft.broadcast(together, 0)
    assert all(map(torch.equal, together, model.parameters())), "the same bits at all members"
    assert all(map(torch.equal, together, diloco.global_model.parameters()))
    assert {layout.compression is not None for layout in diloco._rounds._layouts.values()} == {True}


@workers(1)
def test_its_state_is_the_global_weights(worker: Worker) -> None:
    ft = worker.ft
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    inner = torch.optim.SGD(model.parameters(), lr=0.5)
    momentum: Callable[..., Any] = lambda weights: torch.optim.SGD(weights, lr=1.0, momentum=0.9)  # noqa: E731
    diloco = DiLoCo(ft, model, inner=inner, outer=momentum, sync_every=4, fragments=2)
    ft.register_state(model=diloco)
    with diloco:
        for step in range(7):
            inner.zero_grad()
            model(torch.ones(1, 3) * step).square().mean().backward()
            inner.step()
    saved = {name: value.clone() for name, value in diloco.global_model.state_dict().items()}
    assert saved.keys() == model.state_dict().keys(), "the names are the model's"
    state = diloco.state_dict()
    other = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    again = DiLoCo(ft, other, inner=None, outer=momentum, sync_every=4, fragments=2)
    again.load_state_dict(state)
    assert all(torch.equal(saved[name], value) for name, value in other.state_dict().items()), (
        "local weights are the global ones"
    )
    assert again.state_dict()["optimizer"][0]["state"], "the momentum, too"


@workers(1)
def test_a_model_may_name_its_parts_as_it_likes(worker: Worker) -> None:
    """Also as attributes of ftlib's own, and of modules, are called."""
    model = nn.Module()
    for name in ("parts", "replaced", "weights", "local", "module", "type", "buffers"):
        setattr(model, name, nn.Linear(2, 2))
    model.parts.replaced = nn.Linear(2, 2)
    model.parameters_ = nn.Parameter(torch.ones(2))
    other = nn.Module()
    other.parts, other.replaced = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    for each in (model, other):
        inner = torch.optim.SGD(each.parameters(), lr=0.5)
        diloco = DiLoCo(worker.ft, each, inner=inner, outer=outer, sync_every=1)
        worker.ft.register_state(model=diloco)
        with diloco:
            for parameter in each.parameters():
                parameter.grad = torch.ones_like(parameter)
            inner.step()
        assert diloco.syncs == 1
        kept, mine = diloco.global_model.state_dict(), each.state_dict()
        assert list(kept) == [name for name, _ in each.named_parameters()] and kept.keys() == mine.keys()
        assert all(torch.equal(value, mine[name]) for name, value in kept.items())


@workers(1)
def test_the_global_weights_are_where_they_are_asked_to_be(worker: Worker) -> None:
    """So is what the outer optimizer keeps of them; a device without memory will do to see that."""
    model = nn.Linear(2, 2)
    momentum: Callable[..., Any] = lambda weights: torch.optim.SGD(weights, lr=1.0, momentum=0.9)  # noqa: E731
    for device in ("cpu", "meta", torch.device("meta")):
        diloco = DiLoCo(worker.ft, model, inner=None, outer=momentum, sync_every=1, backup_device=device)
        assert {weight.device for weight in diloco.global_model.parameters()} == {torch.device(device)}
        assert {weight.device for weight in model.parameters()} == {torch.device("cpu")}
    for missing in ("nowhere", "cuda:99", 1.5, None):
        with pytest.raises(ConfigError, match=f"backup_device={missing!r} cannot be used: give 'cpu'"):
            DiLoCo(worker.ft, model, inner=None, outer=momentum, sync_every=1, backup_device=missing)  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.parametrize("backup", ["cpu", "cuda"])
@workers(1, framework=lambda _: GlooFramework())
def test_a_model_on_a_gpu(worker: Worker, backup: str) -> None:
    model = Layers().cuda()
    inner = torch.optim.SGD(model.parameters(), lr=0.5)
    momentum: Callable[..., Any] = lambda weights: torch.optim.SGD(weights, lr=1.0, momentum=0.5)  # noqa: E731
    diloco = DiLoCo(worker.ft, model, inner=inner, outer=momentum, sync_every=2, backup_device=backup, alpha=0.5)
    worker.ft.register_state(model=diloco)
    with diloco:
        for _ in range(4):
            inner_step(model, inner)
    assert {weight.device.type for weight in diloco.global_model.parameters()} == {backup}
    assert {value.device.type for state in diloco._outer[0].state.values() for value in state.values()} == {backup}
    # Global: 1, then 1 - 2 = -1. Local: -1, then -3, which is 2 below: momentum makes 2 + 1 of it. Local: (-3 - 4) / 2.
    assert [weight.item() for weight in diloco.global_model.parameters()] == [-4.0, -4.0]
    assert model.now == (-3.5, -3.5)


@workers(1)
def test_frozen_and_tied_parameters_and_buffers_are_left_alone(worker: Worker) -> None:
    model = model_of(0)
    model[0].bias.requires_grad_(requires_grad=False)
    inner = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    diloco = DiLoCo(worker.ft, model, inner=inner, outer=outer, sync_every=1)
    worker.ft.register_state(model=diloco)
    bias = model[0].bias.clone()
    with diloco:
        for _ in range(2):
            inner.zero_grad()
            model(torch.randn(8, 64)).square().mean().backward()
            inner.step()
    assert torch.equal(bias, model[0].bias) and diloco.syncs == 2
    assert "0.bias" not in diloco.global_model.state_dict() and "1.running_mean" not in diloco.global_model.state_dict()


@workers(1)
def test_a_tied_parameter_is_global_under_all_its_names(worker: Worker) -> None:
    """No joiner gets a donor's local weights, which would be of no use."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    model[2].bias.requires_grad_(requires_grad=False)
    diloco = DiLoCo(worker.ft, model, inner=None, outer=outer, sync_every=1)
    remainder = diloco.registered_parts().private["remainder"].state_dict()  # type: ignore[index]
    assert list(remainder) == ["1.running_mean", "1.running_var", "1.num_batches_tracked", "2.bias"]


@workers(1)
def test_sharded_parameters_by_their_local_part(worker: Worker, tmp_path_factory: pytest.TempPathFactory) -> None:
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor, Shard

    store = tmp_path_factory.mktemp("sharded") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    try:
        mesh = dist.init_device_mesh("cpu", (1,))
        model = nn.Linear(4, 2, bias=False)
        start = model.weight.detach().clone()
        model.weight = nn.Parameter(DTensor.from_local(start.clone(), mesh, [Shard(0)]))
        inner = torch.optim.SGD(model.parameters(), lr=0.5)
        diloco = DiLoCo(worker.ft, model, inner=inner, outer=lambda w: torch.optim.SGD(w, lr=2.0), sync_every=2)
        worker.ft.register_state(model=diloco)
        with diloco:
            for _ in range(2):
                inner.zero_grad()
                model.weight.sum().backward()
                inner.step()
        weight = model.weight
        assert isinstance(weight, DTensor)
        assert torch.allclose(weight.to_local(), start - 2.0 * 2 * 0.5)
        assert type(next(diloco.global_model.parameters()).data) is torch.Tensor
    finally:
        dist.destroy_process_group()


# --- what is refused ---------------------------------------------------------------------------------------------------


@workers(1)
def test_what_cannot_be_used(worker: Worker) -> None:
    ft, model = worker.ft, Layers()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    good: dict[str, Any] = {"inner": inner, "outer": outer, "sync_every": 2}
    refused: list[tuple[dict[str, Any], str]] = [
        ({"inner": Optimizer(ft, inner)}, "inner= is an ftlib.Optimizer"),
        ({"inner": model}, "inner= takes an optimizer"),
        ({"outer": [outer]}, "outer= takes optimizers of torch.optim, not a function"),
        ({"outer": 3}, "outer= takes a function"),
        ({"outer": lambda _: None}, "made a NoneType"),
        ({"outer": torch.optim.SGD(Layers().parameters(), lr=0.1)}, "none of the model's"),
        ({"outer": torch.optim.SGD([model.first], lr=0.1)}, "lacks some of its parameters"),
        ({"alpha": 1.5}, "alpha=1.5 must be a number from 0 to 1"),
        ({"weight": "rank"}, "weight='rank': choose one of steps, samples, equal"),
        ({"delay": 2}, "delay=2 must be below 2"),
        ({"fragments": 3}, "fragments=3 must be 1 to 2"),
        ({"fragments": 2.0}, "fragments= takes a whole number, or a list of modules"),
        ({"compression": "zip"}, "zip"),
    ]
    for arguments, text in refused:
        with pytest.raises(ConfigError, match=text):
            DiLoCo(ft, model, **(good | arguments))
    with pytest.raises(ConfigError, match="pass the module that it wraps"):
        DiLoCo(ft, DistributedDataParallel(ft, nn.Linear(2, 2)), **good)
    with pytest.raises(ConfigError, match="the first argument is a Layers"):
        DiLoCo(model, model, **good)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="expected a module"):
        LocalSGD(ft, inner, sync_every=1)  # type: ignore[arg-type]


@workers(1)
def test_what_has_to_be_registered(worker: Worker) -> None:
    ft, model = worker.ft, Layers()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    diloco = DiLoCo(ft, model, inner=inner, outer=outer, sync_every=1)

    def entered(text: str) -> None:
        with pytest.raises(ConfigError, match=text), diloco:
            pass

    entered("are not registered")
    ft.register_state(model=model)
    entered("are not registered")
    ft.register_state(model=[diloco, model])
    entered("the model itself is registered")
    with pytest.raises(ConfigError, match="was given as optimizer= and as private="):
        ft.register_state(model=diloco, optimizer=inner)
    ft.register_state(model=diloco)
    with pytest.raises(ConfigError, match="outside of its context"):
        diloco.step()
    with diloco:
        with pytest.raises(ConfigError, match="entered already"), diloco:
            pass
        with pytest.raises(ConfigError, match="within execute"):
            ft.execute(inner_step, model, inner)


def a_new_one(model: Layers) -> None:
    model.first = nn.Parameter(model.first.detach().clone())


def one_that_was_frozen(model: Layers) -> None:
    model.first.requires_grad_(True)


@pytest.mark.parametrize("change", [a_new_one, one_that_was_frozen])
@workers(1)
def test_what_is_trained_later_is_refused(worker: Worker, change: Callable[[Layers], None]) -> None:
    """No sync would average it."""
    model = Layers()
    model.first.requires_grad_(change is a_new_one)
    local = LocalSGD(worker.ft, model, sync_every=1)
    worker.ft.register_state(model=local)
    with local:
        pass
    change(model)
    with pytest.raises(ConfigError, match=r"first is trained, but was not when .* make the LocalSGD anew"), local:
        pass
    local = LocalSGD(worker.ft, model, sync_every=1)
    worker.ft.register_state(model=local)
    with local:
        pass


@workers(1)
def test_decline_is_refused_until_the_last_context_ends(worker: Worker) -> None:
    ft, models = worker.ft, [Layers(), Layers()]
    inner = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    diloco = DiLoCo(ft, models[0], inner=inner[0], outer=outer, sync_every=1)
    local_sgd = LocalSGD(ft, models[1], inner=inner[1], sync_every=1)
    ft.register_state(model=[diloco, local_sgd])

    def refused(name: str) -> None:
        with pytest.raises(ConfigError, match=f"decline was called within {name}"):
            ft.decline()

    with diloco:
        refused("DiLoCo")
        with local_sgd:
            refused("LocalSGD")
        refused("DiLoCo")
        with pytest.raises(KeyError), local_sgd:
            raise KeyError
        refused("DiLoCo")
    assert ft.decline() is Status.FAIL


# --- a notice to leave -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delay", [0, 60])
@pytest.mark.parametrize(
    ("near", "patience", "waits"),
    [(True, None, True), (False, None, False), (True, 0, False), (False, "100 h", True)],
    ids=["near", "far", "without patience", "with all patience"],
)
def test_who_has_to_leave_waits_for_a_sync_that_is_near(
    near: bool, patience: str | float | None, waits: bool, delay: int
) -> None:
    """Else it leaves at once. The others are not kept waiting by it."""
    with company(2, **({} if patience is None else {"drain_patience": patience})) as crew:

        def work(ft: FTLib) -> tuple[float, int]:
            model, inner, diloco = local(ft, sync_every=70, delay=delay)
            last = ft is crew.members[1]
            try:
                with diloco:
                    for step in range(70):
                        inner_step(model, inner)
                        if step == 20 and last:
                            if not near:
                                diloco._rounds._since -= 1e4
                            ft.drain("told to")
            except SystemExit as end:
                assert last and end.code == 0  # noqa: PT017 - nobody calls this who could expect it
            return model.now[0], diloco.inner_steps

        stayed, left = at_once(*[lambda ft=ft: work(ft) for ft in crew.members])
        assert stayed == (1.0 - (70 - delay), 70)
        assert left[1] == (70 if waits else 22)


# --- rounds that take long ---------------------------------------------------------------------------------------------


def test_a_round_may_take_longer_than_any_timeout() -> None:
    """Whoever waits for a slow worker sees its inner steps: in two jobs at once, as a round has to take its time."""
    with contextlib.ExitStack() as stack:
        crews = {delay: stack.enter_context(company(2, stall_timeout=6.0, step_timeout=6.0)) for delay in (0, 4)}

        def work(crew: Company, ft: FTLib, delay: int) -> float:
            slow = ft is crew.members[1]
            model, inner, diloco = local(ft, sync_every=10, delay=delay)
            with diloco:
                for _ in range(10):
                    time.sleep(0.9 * slow)  # a round takes 9 s, half as long again as both timeouts; each step is well within
                    inner_step(model, inner)
            found = facts(ft._plane, ft._framework)
            told = next(iter(found["peers"].values()))["inner_steps"]
            assert found["inner_steps"] == 10 and (slow or told > 5)
            mine = ft._plane.member_id
            members = [{"id": mine}, {"id": next(iter(found["peers"]))}]
            lines = shown({"member": mine, "members": members, "ftlib": found})
            rows = {line.split()[1]: line for line in lines if line.startswith("-")}
            assert ", 10 inner steps" in rows[mine[:6]]
            assert f", {told} inner steps" in rows[members[1]["id"][:6]]
            return model.now[0]

        works = [functools.partial(work, crew, ft, delay) for delay, crew in crews.items() for ft in crew.members]
        assert at_once(*works) == [1.0 - 10, 1.0 - 10, 1.0 - 6, 1.0 - 6]
        assert all(crew.members[0].size == 2 for crew in crews.values())


def test_a_joiner_comes_in_mid_round_where_the_loop_counts_its_steps_itself() -> None:
    """There is no optimizer whose steps tell where the loop is; and there is no sync in which the others would wait."""
    with company(2) as crew:
        over = threading.Event()

        def work(ft: FTLib) -> int:
            model = Layers()
            diloco = DiLoCo(ft, model, inner=None, outer=outer, sync_every=1_000_000)
            ft.register_state(model=diloco)
            with diloco:
                if ft not in founders:
                    over.set()
                while not over.is_set():
                    with torch.no_grad():
                        model.first -= 1.0
                    diloco.step()
                    time.sleep(0.002)
            return diloco._place.steps

        founders = tuple(crew.members)
        steps = at_once(*[functools.partial(work, ft) for ft in founders], lambda: work(crew.init()))
        assert steps[0] > 0 and steps[1] > 0
        assert 0 < steps[2] <= max(steps[:2]), "it goes on from one donor's place in the round"


def test_who_does_no_inner_step_any_more_hangs() -> None:
    with company(2, stall_timeout=5.0) as crew:
        over = threading.Event()

        def work(ft: FTLib) -> float | None:
            slow = ft is crew.members[1]
            model, inner, diloco = local(ft, sync_every=3)
            with diloco:
                for step in range(3):
                    if slow and step == 2:
                        over.wait(TIMEOUT)
                        with pytest.raises(Excluded):
                            inner_step(model, inner)
                        return None
                    inner_step(model, inner)
            over.set()
            return model.now[0]

        assert at_once(*[lambda ft=ft: work(ft) for ft in crew.members]) == [-2.0, None]
