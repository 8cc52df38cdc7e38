"""Buffers are there before an average needs them."""

from __future__ import annotations

import threading
from unittest.mock import Mock

import pytest
import torch

from ftlib.common.memory import room
from ftlib.core.calls.learner import kept
from ftlib.core.tensors.layout import Bucket, Layout
from ftlib.core.tensors.staging import Staging
from ftlib.recovery.joiner import slot_pool as making
from ftlib.recovery.joiner.slot_pool import SlotPool
from tests.ftlib.recovery.trainer import LONG
from tests.harness.threads import no_threads

LAYOUT = Layout(
    b"s", "average", "an average", (Bucket(torch.float32, 500_000, "SUM", ()), Bucket(torch.float32, 200_000, "SUM", ()))
)


def ended() -> None:
    for thread in threading.enumerate():
        if thread.name == "ftlib-slots":
            thread.join(LONG)
            assert not thread.is_alive()


def test_sets_for_the_next_two_calls_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    touched: list[int] = []
    monkeypatch.setattr(making, "touch", lambda memory: touched.append(memory.numel()))
    stock = SlotPool(2 * LAYOUT.nbytes)
    for waiting in (0, 1):
        assert stock.kept(LAYOUT, waiting) == []
    ended()
    assert not touched, "three are there, which is enough for one that waits"
    stock.kept(LAYOUT, 2)
    ended()
    made = stock.kept(LAYOUT, 2)
    assert [slot.bucket for slot in made] == list(LAYOUT.buckets)
    assert touched == [500_000, 200_000]
    assert stock.kept(LAYOUT, 2) == []
    made = stock.kept(LAYOUT, 4)
    ended()
    made += stock.kept(LAYOUT, 1)
    assert [slot.bucket for slot in made] == [*LAYOUT.buckets] * 2
    assert stock.kept(LAYOUT, 4) == [], "so many are in use, or at hand"
    ended()


def test_they_fit_the_staging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "stand_back", stood_back := Mock())
    stock, staging = SlotPool(0), Staging(LAYOUT, 1)
    stock.kept(LAYOUT, 0)
    ended()
    made = stock.kept(LAYOUT, 0)
    staging.exchange((), made)
    assert staging.slot(1, 0) in made
    assert stood_back.called, "training comes first"


@pytest.mark.parametrize(("width", "worth"), [(200_000, False), (524_287, False), (524_288, True)])
def test_small_ones_are_not_worth_it(width: int, worth: bool) -> None:
    """Less than 2 MiB."""
    stock, small = SlotPool(0), Layout(b"s", "average", "an average", (Bucket(torch.float32, width, "SUM", ()),))
    stock.kept(small, 1)
    ended()
    assert bool(stock.kept(small, 1)) is worth


def test_nothing_is_made_for_a_recovery_that_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if another has begun meanwhile."""
    touching, go_on = threading.Event(), threading.Event()
    touched: list[int] = []

    def touch(memory: torch.Tensor) -> None:
        touching.set()
        assert go_on.wait(LONG)
        touched.append(memory.numel())

    monkeypatch.setattr(making, "touch", touch)
    stock = SlotPool(0)
    stock.kept(LAYOUT, 3)
    assert touching.wait(LONG)
    stock.close()
    go_on.set()
    ended()
    assert touched == [500_000], "several sets were wanted"
    assert stock._made == []
    go_on.clear()
    touching.clear()
    stock.kept(LAYOUT, 3)
    assert touching.wait(LONG)
    stock.close()
    stock.kept(LAYOUT, 0)
    go_on.set()
    ended()
    assert [slot.bucket for slot in stock.kept(LAYOUT, 0)] == list(LAYOUT.buckets)


def test_where_no_thread_is_to_be_had_the_next_average_tries_again() -> None:
    stock = SlotPool(0)
    with no_threads("ftlib-slots") as refused:
        assert stock.kept(LAYOUT, 0) == []
    assert len(refused) == 1
    stock.kept(LAYOUT, 0)
    ended()
    assert [slot.bucket for slot in stock.kept(LAYOUT, 0)] == list(LAYOUT.buckets)


def test_where_no_memory_is_to_be_had_the_next_average_tries_again() -> None:
    short = [True]

    def allocate(count: int, dtype: torch.dtype) -> torch.Tensor:
        if short[0] and count == 200_000:
            raise MemoryError
        return room(count, dtype)

    stock = SlotPool(0, allocate=allocate)
    made = stock.kept(LAYOUT, 2)
    ended()
    made += stock.kept(LAYOUT, 2)
    ended()
    short[0] = False
    made += stock.kept(LAYOUT, 2)
    ended()
    made += stock.kept(LAYOUT, 2)
    whole = [slot.bucket for slot in made]
    assert whole == [LAYOUT.buckets[0]] * 2 + [*LAYOUT.buckets] * 3, "three sets are missing, and each attempt began with one"
    assert stock.kept(LAYOUT, 2) == []


def test_as_many_as_may_wait_and_no_more_than_usual() -> None:
    nbytes = LAYOUT.nbytes
    assert [kept(LAYOUT, held) for held in (0, 1, 2 * nbytes - 1, 2 * nbytes, 3 * nbytes, 99 * nbytes)] == [0, 1, 1, 2, 3, 3]
    assert kept(Layout(b"s", "average", "an average", ()), 1) == 1
