"""Buffers are there before an average needs them."""

from __future__ import annotations

import threading

import pytest
import torch

from ftlib.bucket import Bucket, Layout
from ftlib.recovery import stock as making
from ftlib.recovery.stock import Stock
from ftlib.staging import Staging
from tests.ftlib.recovery.trainer import LONG

LAYOUT = Layout(
    b"s", "average", "an average", (Bucket(torch.float32, 500_000, "SUM", ()), Bucket(torch.float32, 200_000, "SUM", ()))
)


def ended() -> None:
    for thread in threading.enumerate():
        if thread.name == "ftlib-stock":
            thread.join(LONG)
            assert not thread.is_alive()


def test_sets_for_the_next_two_calls_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    touched: list[int] = []
    monkeypatch.setattr(making, "touch", lambda memory: touched.append(memory.numel()))
    stock = Stock(LAYOUT, 3)
    for waiting in (0, 1):
        assert stock.kept(waiting) == []
    ended()
    assert not touched, "three are enough for one that waits"
    stock.kept(2)
    ended()
    made = stock.kept(2)
    assert [slot.bucket for slot in made] == list(LAYOUT.buckets)
    assert touched == [500_000, 200_000]
    assert stock.kept(2) == []
    made = stock.kept(4)
    ended()
    made += stock.kept(1)
    assert [slot.bucket for slot in made] == [*LAYOUT.buckets] * 2
    assert stock.kept(4) == [], "so many are in use, or at hand"
    ended()


def test_they_fit_the_staging() -> None:
    stock, staging = Stock(LAYOUT, 0), Staging(LAYOUT, 1)
    stock.kept(0)
    ended()
    made = stock.kept(0)
    staging.exchange((), made)
    assert staging.slot(1, 0) in made


def test_small_ones_are_not_worth_it() -> None:
    stock = Stock(Layout(b"s", "average", "an average", LAYOUT.buckets[1:]), 0)
    stock.kept(5)
    ended()
    assert stock.kept(5) == []


def test_nothing_is_made_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    touching, go_on = threading.Event(), threading.Event()

    def touch(_memory: torch.Tensor) -> None:
        touching.set()
        assert go_on.wait(LONG)

    monkeypatch.setattr(making, "touch", touch)
    stock = Stock(LAYOUT, 0)
    stock.kept(3)
    assert touching.wait(LONG)
    stock.close()
    go_on.set()
    ended()
    assert stock.kept(3) == []
