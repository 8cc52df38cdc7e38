"""Which portion is asked for next, and what an average is applied to meanwhile."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from ftlib.follower import NoFollowing
from ftlib.recovery.fetch import Offer
from ftlib.recovery.manifest import split
from ftlib.recovery.portions import Portions
from ftlib.recovery.stripes import Stripe, Wave
from ftlib.registry import Registered

from .holders import Model, optimizer_of

SIZES = [3, 4, 5]
ENDS = [0, 12, 28, 48]
THREE = Offer(48, 1, b"", tuple(pairwise(ENDS)))


def stripe(index: int, version: int) -> Stripe:
    return Stripe(index, ENDS[index], ENDS[index + 1], version, ("a",))


def test_one_after_the_other_and_no_more_than_two_at_a_time() -> None:
    portions = Portions(THREE, 5)
    stripes = [stripe(0, 5)]
    assert portions.next(stripes, {0}) == Wave(1, 1, 6), "all is here: nothing that is pinned is wanted any more"
    assert portions.next(stripes, set()) == Wave(1, 1, 5), "the first is on its way"
    portions.add(THREE, 7)
    stripes.append(stripe(1, 7))
    assert portions.next(stripes, set()) is None
    assert portions.next(stripes, {0}) == Wave(2, 2, 7)
    assert not portions.all_pinned
    portions.add(THREE, 8)
    assert portions.all_pinned
    assert portions.next([*stripes, stripe(2, 8)], {0, 1, 2}) is None


def test_an_average_is_applied_to_older_portions_alone() -> None:
    model = Model(SIZES)
    registered = Registered({"model": model, "optimizer": optimizer_of(model)})
    portions = Portions(THREE, 5)
    portions.settle(registered, split(registered, 0)[1])
    portions.add(THREE, 7)

    def without(position: int) -> list[int]:
        return [place for place, row in enumerate(model.rows) if any(row is other for other in portions.without(position))]

    assert (without(5), without(6), without(7), without(8)) == ([1, 2], [1, 2], [2], [2])


def test_counters_come_with_their_portion() -> None:
    """And those of the others stay."""

    def adam(steps: int) -> tuple[nn.Module, torch.optim.Adam, Registered]:
        model = Model(SIZES)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(steps):
            for row in model.rows:
                row.grad = torch.ones_like(row)
            optimizer.step()
        return model, optimizer, Registered({"model": model, "optimizer": optimizer})

    _, _, donor = adam(7)
    model, optimizer, joiner = adam(2)
    manifest, ground = split(joiner, 0)
    ends = [*manifest.borders, manifest.nbytes]
    offer = Offer(manifest.nbytes, 1, split(donor, 0)[0].packed, tuple(pairwise([0, *ends])))
    portions = Portions(offer, 5)
    portions.settle(joiner, ground)
    portions.add(offer, 7)
    assert portions.fresh
    portions.take_over(joiner, portions.pop_fresh())
    assert not portions.fresh
    assert [int(optimizer.state[row]["step"]) for row in model.parameters()] == [2, 7, 2]


def test_a_state_that_has_grown_meanwhile() -> None:
    with pytest.raises(NoFollowing, match="has grown"):
        Portions(THREE, 5).add(Offer(60, 1, b"", (*THREE.portions, (48, 60))), 7)
