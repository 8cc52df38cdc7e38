"""Norms that come with the look for inf and nan have torch's own bits, and count only while a gradient is as it was."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ftlib import DistributedDataParallel, Optimizer, Status
from ftlib.core.tensors.layout import Layout, lay_out_in_order
from ftlib.core.tensors.norms import Norms, together
from ftlib.core.tensors.staging import Slot, Staging
from ftlib.ftlib import FTLib
from ftlib.train.clipping import clip, total_norm
from tests.ftlib.crews.crew import Crew
from tests.ftlib.crews.workers import Worker, workers
from tests.train.cases import built, data, perceptron

SHAPES = st.lists(st.sampled_from([(1,), (3, 5), (700,), (7, 11, 13), (200, 300), (90_001,)]), min_size=1, max_size=6)
"""On both sides of the sizes from which torch and numpy take other ways."""


def laid_out(shapes: list[tuple[int, ...]]) -> tuple[Layout, list[Slot]]:
    layout = lay_out_in_order("average", [(torch.float32, shape) for shape in shapes], range(len(shapes)), 300_000, 1_000)
    staging = Staging(layout, 1)
    return layout, [staging.slot(number, 0) for number in range(len(layout.buckets))]


def shown(shapes: list[tuple[int, ...]], scale: float = 1.0) -> tuple[list[nn.Parameter], list[Slot]]:
    """Parameters whose gradients are views of checked slots, where these have the whole tensor."""
    _, slots = laid_out(shapes)
    owners = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
    for slot in slots:
        if slot.views:  # no head without data
            slot.host.normal_().mul_(scale)
        assert slot.check(norms=True)
        for piece, view in zip(slot.bucket.pieces, slot.views, strict=True):
            owners[piece.index].grad = view if piece.shape is not None else torch.randn(shapes[piece.index])
    return owners, slots


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.int32), other.view(torch.int32))


def gradients(owners: list[nn.Parameter]) -> list[torch.Tensor]:
    return [owner.grad for owner in owners if owner.grad is not None]


@given(SHAPES, st.integers(0, 7))
@settings(max_examples=25, deadline=None)
def test_it_does_not_matter_where_a_norm_is_computed(shapes: list[tuple[int, ...]], offset: int) -> None:
    """One member has it from the look at the result, another computes it from a copy, as who replays an average does."""
    owners, slots = shown(shapes)
    known = Norms(slots, owners, guarded=True).of(owners)
    assert all((norm is None) is (math.prod(shape) * 4 > 300_000) for norm, shape in zip(known, shapes, strict=True))
    copies = []
    for gradient in gradients(owners):
        room = torch.zeros(gradient.numel() + offset)[offset:]
        copies.append(room.copy_(gradient.flatten()).view(gradient.shape))
    assert same(total_norm(gradients(owners), known=known), total_norm(copies))


@pytest.mark.parametrize("count", [3, 20_000])
@pytest.mark.parametrize("norms", [True, False])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 3e38, 1e30, 0.0])
def test_what_is_not_finite_is_seen_and_what_only_adds_up_to_it_is_not(value: float, norms: bool, count: int) -> None:
    _, slots = laid_out([(count,)])
    slot = next(slot for slot in slots if slot.views)
    slot.host.fill_(1.0)[-2:] = value
    assert slot.check(norms=norms) is math.isfinite(value)


@pytest.mark.parametrize("norms", [True, False])
@pytest.mark.parametrize("index", range(3))
def test_sums_and_norms_tell_of_a_change(index: int, norms: bool) -> None:
    shapes = [(4,), (100, 3), (30_000,)]
    _, slots = laid_out(shapes)
    owner = nn.Parameter(torch.zeros(shapes[index]))
    for slot in slots:
        slot.host.fill_(1.0)  # one element must not be lost in the rounding of the sum
        slot.check(norms=norms)
        slot.show([owner], (0, 0), checked=True)
        copy = slot.host.clone()
        assert not slot.tells(copy)
        for piece in slot.bucket.pieces:
            if piece.index == index:
                copy[piece.stop - piece.start - 1 + piece.offset].mul_(0.5)
                assert slot.tells(copy)
        earlier = slot.host.clone()
        slot.host.mul_(2.0)
        slot.show([owner], (0, 0), checked=False)
        assert not slot.tells(slot.host.clone())
        if slot.bucket.count:
            assert slot.tells(earlier), "what an earlier call has left does not count"
            slot.host[0] = float("inf")
            slot.show([owner], (0, 0), checked=False)
            assert slot.tells(slot.host.clone()), "it cannot be known"


def test_a_gradient_that_is_not_as_it_was_has_no_known_norm() -> None:
    shapes = [(4, 5), (6,)]
    changes: list[Callable[[torch.Tensor], object]] = [
        lambda gradient: gradient.mul_(2.0),
        lambda gradient: gradient.data.mul_(2.0),
        lambda gradient: gradient.detach().numpy().fill(1.0),
    ]
    for change in changes:
        owners, slots = shown(shapes)
        norms = Norms(slots, owners, guarded=True)
        assert all(norm is not None for norm in norms.of(owners))
        change(gradients(owners)[1])
        assert norms.of(owners)[1] is None
    owners, slots = shown(shapes)
    norms = Norms(slots, owners, guarded=True)
    owners[0].grad = gradients(owners)[0].clone()
    assert [norm is None for norm in norms.of(owners)] == [True, False]
    assert together([], owners) == []


def test_a_norm_that_overflows_is_what_torch_makes_of_it() -> None:
    owners, slots = shown([(4,), (50,)], scale=1e30)
    known = Norms(slots, owners, guarded=True).of(owners)
    assert same(total_norm(gradients(owners), known=known), total_norm(gradients(owners)))
    with pytest.raises(RuntimeError):
        clip(owners, 1.0, known=known, error_if_nonfinite=True)


# --- in a job ----------------------------------------------------------------------------------------------------------


class Passes:
    """Counts the passes over gradients that torch makes for a norm, by thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._count: Counter[str] = Counter()
        of_torch = torch.nn.utils.get_total_norm

        def counted(*given: object, **more: object) -> torch.Tensor:
            self._count[threading.current_thread().name] += 1
            return of_torch(*given, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(torch.nn.utils, "get_total_norm", counted)

    def taken(self) -> int:
        """By this thread, since it last asked."""
        return self._count.pop(threading.current_thread().name, 0)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Passes:
    return Passes(monkeypatch)


def small() -> nn.Module:
    return built(perceptron(4, 8, 3))


def backward(model: nn.Module, worker: Worker, step: int) -> None:
    model.zero_grad()
    model(data(2 * step + int(worker.name[1:]), 5, 4)).square().mean().mul(50.0).backward()


def registered(ft: FTLib, model: nn.Module) -> None:
    ft.register_state(model=model)


@pytest.mark.parametrize("views", [True, False])
@workers(2)
def test_members_that_know_a_norm_and_that_compute_it_have_the_same_bits(worker: Worker, views: bool, passes: Passes) -> None:
    module = small()
    model = DistributedDataParallel(worker.ft, module, gradient_as_bucket_view=views, bucket_mb=0.0002)
    registered(worker.ft, model)
    for step in range(6):
        backward(model, worker, step)
        assert model.status is Status.SUCCESS
        plain = [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]
        if worker.name == "w0":
            passes.taken()
            found = model.clip_grad_norm_(1.0)
            assert passes.taken() == (0 if views and step > 2 else 1) or step <= 2
        else:
            found = clip(module.parameters(), 1.0)
        assert same(found, total_norm(plain))
        assert found > 1.0
        with torch.no_grad():
            for parameter in module.parameters():
                assert parameter.grad is not None
                parameter.sub_(parameter.grad, alpha=0.1)
        mine = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
        other = mine.clone()
        assert worker.ft.allreduce(other, "MAX")
        assert torch.equal(mine, other)


@pytest.mark.parametrize("seen", [True, False])
@workers(2)
def test_what_the_program_makes_of_gradients_is_clipped(worker: Worker, seen: bool, passes: Passes) -> None:
    model = DistributedDataParallel(worker.ft, small())
    registered(worker.ft, model)
    for step in range(5):
        backward(model, worker, step)
        for parameter in model.parameters():
            assert parameter.grad is not None
            (parameter.grad if seen else parameter.grad.data).mul_(3.0)
        passes.taken()
        wanted = total_norm([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
        assert same(model.clip_grad_norm_(1e9), wanted)
        assert passes.taken() == 2


@workers(2)
def test_norms_are_computed_only_where_they_were_asked_for(worker: Worker, passes: Passes) -> None:
    model = DistributedDataParallel(worker.ft, small())
    registered(worker.ft, model)
    for step in range(12):
        backward(model, worker, step)
        known = model._backward._average is not None and model._backward._average.norms.of(list(model.parameters()))
        asked = step > 3 and step % 4 in (1, 2, 3)
        assert (isinstance(known, list) and all(norm is not None for norm in known)) is asked or step <= 3
        if step % 4 != 3:
            model.clip_grad_norm_(1.0, 2.0)
            assert passes.taken() == (not asked) or step <= 3


@pytest.mark.parametrize("wrapped", [True, False])
@workers(2)
def test_an_optimizer_that_clips_makes_no_pass_of_its_own(worker: Worker, wrapped: bool, passes: Passes) -> None:
    module, theirs = small(), small()
    model = DistributedDataParallel(worker.ft, module) if wrapped else module
    optimizer = Optimizer(worker.ft, torch.optim.SGD(model.parameters(), lr=0.1), clip_norm=0.5)
    worker.ft.register_state(model=module, optimizer=optimizer)
    other = torch.optim.SGD(theirs.parameters(), lr=0.1)
    for step in range(6):
        optimizer.zero_grad()
        model(data(2 * step + int(worker.name[1:]), 5, 4)).square().mean().mul(50.0).backward()
        passes.taken()
        assert optimizer.step() is Status.SUCCESS
        assert passes.taken() == 0 or step <= 2
        theirs.zero_grad()
        for rank in range(2):
            theirs(data(2 * step + rank, 5, 4)).square().mean().mul(25.0).backward()
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        other.step()
        for mine, wanted in zip(module.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(mine, wanted)


def test_there_is_none_where_nobody_looks_for_inf_and_nan(passes: Passes) -> None:
    def body(ft: FTLib, index: int) -> None:
        model = DistributedDataParallel(ft, small())
        registered(ft, model)
        for step in range(4):
            model.zero_grad()
            model(data(2 * step + index, 5, 4)).square().mean().backward()
            passes.taken()
            model.clip_grad_norm_(1e-3)
            assert passes.taken() == 1

    with Crew(2, nonfinite="pass") as crew:
        crew.all(body)
