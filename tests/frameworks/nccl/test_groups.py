"""A Gloo group with NCCL, among real processes: results, what ends by an abort, who frees when, and what a planted bug does.

More of it is in ``tests/frameworks/accelerators/test_rehearsal.py``, for the rehearsal and for NCCL.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from ftlib.frameworks import sockets
from ftlib.frameworks.accelerators.rehearsal import Faults
from tests.frameworks.accelerators import orders
from tests.frameworks.accelerators.orders import hire
from tests.frameworks.accelerators.test_rehearsal import (
    SOON,
    check_a_late_launch,
    check_that_an_abort_is_no_success,
    check_that_memory_is_kept,
    ready,
)
from tests.frameworks.crew import Crew

pytestmark = [pytest.mark.process, pytest.mark.skipif(not sockets.supported(), reason="needs /proc")]


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    crew = Crew("tests.frameworks.nccl.fake:FakeNcclFramework")
    yield crew
    crew.close()


def test_results_are_gloos_and_bit_identical(crew: Crew) -> None:
    hands = hire(crew, 3)
    ready(crew, hands)
    answers = crew.run(hands, orders.reduce_both_ways, 5)
    assert answers[0] == answers[1] == answers[2]
    assert crew.run(hands, orders.look_after_bulk, -2.0) == [(0, 6.0)] * 3


def test_a_death_is_noticed_and_nccl_comes_back(crew: Crew) -> None:
    hands = hire(crew, 3)
    ready(crew, hands)
    for hand in hands:
        hand.tell(orders.reduce_until_it_breaks, 100_000)
    time.sleep(0.2)
    killed = hands[2].kill()
    for at, error, _, done, wrong in [hand.answer() for hand in hands[:2]]:
        assert at - killed < SOON and done and not wrong
        assert "broke" in error or "remote process exited" in error
    ready(crew, hands[:2])
    assert all(figures["accelerator_frees"] == 0 for figures in crew.run(hands[:2], orders.figures))
    for figures in crew.run(hands[:2], orders.settle, 1 << 30):
        assert (figures["accelerator_stops"], figures["accelerator_frees"], figures["accelerator_leaks"]) == (1, 1, 0)


@pytest.mark.parametrize("bug", ["", "an event alone counts as success"])
def test_what_ends_by_an_abort_is_no_success(crew: Crew, bug: str) -> None:
    if not bug:
        check_that_an_abort_is_no_success(crew)
        return
    with pytest.raises(AssertionError, match="'aborted' in 'True'"):
        check_that_an_abort_is_no_success(crew, bug)


@pytest.mark.parametrize("bug", ["", "an event recorded before NCCL's launch"])
def test_an_event_marks_what_was_launched(crew: Crew, bug: str) -> None:
    if not bug:
        check_a_late_launch(crew)
        return
    with pytest.raises(AssertionError, match=r"1\.0 is not the sum"):
        check_a_late_launch(crew, bug)


@pytest.mark.parametrize("bug", ["", "freed at the abort"])
def test_nothing_is_freed_at_an_abort(crew: Crew, bug: str) -> None:
    if not bug:
        check_that_memory_is_kept(crew)
        return
    with pytest.raises(AssertionError, match="illegal memory access"):
        check_that_memory_is_kept(crew, bug)


def test_a_cuda_error_at_one_member(crew: Crew) -> None:
    hands = hire(crew, 2, Faults(error_at=2, rank=1))
    ready(crew, hands)
    for hand in hands:
        hand.tell(orders.reduce_until_it_breaks, 1000)
    answers = [hand.answer() for hand in hands]
    assert "unhandled cuda error" in answers[1][1] and answers[1][2] == (1,)
    assert all(done and not wrong for *_, done, wrong in answers)
    ready(crew, hands)
