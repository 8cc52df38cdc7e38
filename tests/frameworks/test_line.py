"""The line of collectives: what is foreseen starts at once, what is not after a comparison, failures end everything."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
import torch

from ftlib.errors import GroupError
from ftlib.frameworks import GroupSpec
from ftlib.frameworks.line import Line
from ftlib.frameworks.memory import MemoryHub

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftlib.frameworks import Group, Work


class Owner:
    """A memory group as what a line needs; gathers by an allreduce."""

    def __init__(self, group: Group) -> None:
        self.group, self.rank, self.size = group, group.rank, group.size
        self.gathers: int = 0
        self.launched: list[int] = []
        self.line = Line(self)

    def gather(self, outputs: list[torch.Tensor], mine: torch.Tensor) -> Work:
        self.gathers += 1
        outputs[self.rank].copy_(mine)
        works = [self.group.broadcast(output, rank) for rank, output in enumerate(outputs)]
        return works[-1]

    def abort(self) -> None:
        self.group.abort()

    def start(self, elements: int) -> Work:
        def launch() -> Work:
            self.launched.append(elements)
            return self.group.allreduce(torch.ones(elements))

        return self.line.start(("SUM", elements), launch)


def together(size: int, function: Callable[[Owner], object]) -> list[object]:
    """Run a function at all ranks; their results or errors."""
    hub = MemoryHub()
    results: list[object] = [None] * size

    def run(rank: int) -> None:
        group = hub.framework().rebuild(GroupSpec("v", 1, rank, size, {}, 10.0))
        try:
            results[rank] = function(Owner(group))
        except GroupError as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20.0)
    return results


def test_repetition_needs_no_comparison() -> None:
    def work(owner: Owner) -> tuple[int, int]:
        for _ in range(10):
            for under_way in [owner.start(3), owner.start(3), owner.start(5)]:
                assert under_way.wait(10.0)
                assert under_way.done()
        return owner.gathers, len(owner.launched)

    for gathers, launched in together(3, work):  # type: ignore[misc]
        assert launched == 30
        assert gathers <= 6


def test_order_is_kept_behind_a_late_one() -> None:
    def work(owner: Owner) -> list[int]:
        works = [owner.start(elements) for elements in (1, 2, 3, 4)]
        assert works[-1].wait(10.0)
        assert all(each.wait(10.0) for each in works)
        return owner.launched

    assert together(2, work) == [[1, 2, 3, 4]] * 2


def test_a_mismatch_is_an_error_and_nothing_starts() -> None:
    def work(owner: Owner) -> list[int]:
        first = owner.start(10 + (owner.rank == 1))
        second = owner.start(3)
        for under_way in (first, second):
            with pytest.raises(GroupError):
                under_way.wait(10.0)
            assert under_way.done()
        with pytest.raises(GroupError):
            owner.start(3).wait(1.0)
        return owner.launched

    assert together(3, work) == [[]] * 3


def test_waiting_in_vain_is_bounded_and_abort_ends_it() -> None:
    def work(owner: Owner) -> str:
        if owner.rank == 1:
            return "away"
        late = owner.start(3)
        assert late.wait(0.05) is False
        assert not late.done()
        owner.abort()
        with pytest.raises(GroupError):
            late.wait(5.0)
        assert late.done()
        return "aborted"

    assert together(2, work) == ["aborted", "away"]
