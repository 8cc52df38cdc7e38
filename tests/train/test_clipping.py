"""Clipping gives the values that torch gives, and writes nowhere that somebody else may need."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from ftlib.train.clipping import GradientCopies, clip, total_norm

MIXED = [(7, torch.bfloat16), (900, torch.float32), (33, torch.float16), (1, torch.float64)]
FORMS = {"one": [(5, torch.float32)], "many": [(3 * i + 1, torch.float32) for i in range(40)], "mixed": MIXED}


def parameters(form: str, seed: int = 3, scale: float = 1.0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    found = []
    for count, dtype in FORMS[form]:
        parameter = nn.Parameter(torch.zeros(count, dtype=dtype))
        parameter.grad = (torch.randn(count, generator=generator) * scale).to(dtype)
        found.append(parameter)
    return found


def gradients(owners: list[nn.Parameter]) -> list[torch.Tensor]:
    return [owner.grad for owner in owners if owner.grad is not None]


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """To the bit, nan included."""
    return one.dtype is other.dtype and torch.equal(one.flatten().view(torch.uint8), other.flatten().view(torch.uint8))


@pytest.mark.parametrize("how", ["new", "kept", "in place"])
@pytest.mark.parametrize("norm_type", [2.0, 1.0, 3.0, math.inf])
@pytest.mark.parametrize("form", FORMS)
def test_the_bits_are_those_of_torch(form: str, norm_type: float, how: str) -> None:
    copies = GradientCopies() if how == "kept" else None
    for seed, largest in enumerate([1e-3, 0.7, 1.0, 1e9]):
        theirs, mine = parameters(form, seed), parameters(form, seed)
        expected = nn.utils.clip_grad_norm_(theirs, largest, norm_type)
        norm = clip(mine, largest, norm_type, copies=copies, in_place=how == "in place")
        assert same(norm, expected)
        for one, other in zip(gradients(mine), gradients(theirs), strict=True):
            assert same(one, other)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_comes_out_as_torch_has_it(bad: float) -> None:
    theirs, mine = parameters("many"), parameters("many")
    for owners in (theirs, mine):
        gradients(owners)[5][1] = bad
    expected = nn.utils.clip_grad_norm_(theirs, 1.0)
    assert same(clip(mine, 1.0), expected)
    for one, other in zip(gradients(mine), gradients(theirs), strict=True):
        assert same(one, other)
    with pytest.raises(RuntimeError, match=r"non-finite|not finite"):
        clip(parameters_with(bad), 1.0, error_if_nonfinite=True)


def parameters_with(bad: float) -> list[nn.Parameter]:
    owners = parameters("one")
    gradients(owners)[0][0] = bad
    return owners


@pytest.mark.parametrize("kept", [True, False])
def test_a_view_of_a_result_is_never_written(kept: bool) -> None:
    """``_version`` counts every write to the memory that views share."""
    copies = GradientCopies() if kept else None
    result = torch.arange(1.0, 13.0)
    before, version = result.clone(), result._version
    owners = [nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(8))]
    for _ in range(2):
        owners[0].grad, owners[1].grad = result[:4], result[4:]
        norm = clip(owners, 1.0, copies=copies)
        assert norm == torch.linalg.vector_norm(result)
        assert result._version == version
        assert torch.equal(result, before)
        assert torch.linalg.vector_norm(torch.cat(gradients(owners))) <= 1.0


def test_gradients_that_are_small_enough_stay_where_they_are() -> None:
    owners = parameters("many", scale=1e-6)
    found = gradients(owners)
    copies = GradientCopies()
    clip(owners, 1.0, copies=copies)
    assert all(one is other for one, other in zip(gradients(owners), found, strict=True))
    assert copies.nbytes == 0, "and no memory is taken"


def test_memory_is_kept_from_step_to_step() -> None:
    copies, owners = GradientCopies(), parameters("many")
    clip(owners, 0.1, copies=copies)
    places = [gradient.data_ptr() for gradient in gradients(owners)]
    for seed in range(3):
        fresh = parameters("many", seed)
        clip(fresh, 0.1, copies=copies)
        assert [gradient.data_ptr() for gradient in gradients(fresh)] == places
    assert copies.nbytes == sum(gradient.nbytes for gradient in gradients(owners))


def test_gradients_that_lie_in_that_memory_already_are_scaled_there() -> None:
    """As where the next average was copied into them."""
    copies, owners, theirs = GradientCopies(), parameters("many"), parameters("many")
    for _ in range(3):
        clip(owners, 0.1, copies=copies)
        nn.utils.clip_grad_norm_(theirs, 0.1)
        for one, other in zip(owners, theirs, strict=True):
            assert one.grad is not None and other.grad is not None
            assert same(one.grad, other.grad)
            one.grad.mul_(50.0)
            other.grad.mul_(50.0)


def test_a_parameter_of_another_form_gets_other_memory() -> None:
    copies = GradientCopies()
    for shape in [(4, 6), (6, 4), (24,)]:
        theirs, mine = nn.Parameter(torch.zeros(shape)), nn.Parameter(torch.zeros(shape))
        theirs.grad = torch.randn(shape).mul_(5)
        mine.grad = theirs.grad.clone()
        nn.utils.clip_grad_norm_(theirs, 1.0)
        clip([mine], 1.0, copies=copies)
        assert same(mine.grad, theirs.grad)


def test_moved_gradients_are_copies() -> None:
    copies, result = GradientCopies(), torch.arange(6.0)
    owners = [nn.Parameter(torch.zeros(6)), nn.Parameter(torch.zeros(2))]
    owners[0].grad = result[:]
    copies.move(owners)
    assert torch.equal(gradients(owners)[0], result)
    gradients(owners)[0].zero_()
    assert result.sum() == 15
    assert owners[1].grad is None


def test_one_tensor_and_none_at_all() -> None:
    alone = nn.Parameter(torch.zeros(2))
    alone.grad = torch.tensor([3.0, 4.0])
    assert clip(alone, 1.0) == 5.0
    assert clip(parameters("one")[:0], 1.0) == 0.0
    assert clip(iter([nn.Parameter(torch.zeros(2))]), 1.0) == 0.0
    empty = nn.Parameter(torch.zeros(0, 3))
    empty.grad = torch.zeros(0, 3)
    assert clip([empty, alone], 1.0, copies=GradientCopies()) == pytest.approx(1.0)
    assert total_norm([torch.tensor([3.0, 4.0])]) == 5.0


@pytest.mark.parametrize("moves", [False, True])
def test_memory_that_the_program_gives_to_a_gradient_stays_the_programs(moves: bool) -> None:
    copies, owner, own = GradientCopies(), nn.Parameter(torch.ones(6)), torch.full((6,), 5.0)
    for _ in range(3):
        owner.grad = torch.ones(6)
        if moves:
            copies.move([owner])
        else:
            clip([owner], 0.1, copies=copies)
        owner.grad.data = own
    assert torch.equal(own, torch.full((6,), 5.0))
    assert copies.nbytes == own.nbytes
