"""What is Gloo's own, among real processes; what it has in common with others is in ``test_contract``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from ftlib.frameworks import sockets
from tests.frameworks.crew import Crew, Hand
from tests.frameworks.orders import (
    FORGOTTEN,
    TIMEOUT,
    abandon,
    building_threads,
    child_sockets,
    close_under_way,
    close_without_a_thread,
    epochs_kept,
    fail_in_the_middle,
    know_peers,
    loop,
    meet_and_never_connect,
    rebuild_blindly,
    receive_before_the_sends,
    receive_from_the_dead,
    reduce_beside_an_open_receive,
    reduce_few_bytes,
    reduce_one,
    send_and_never_wait,
    send_ones,
    try_rebuild,
    wait_without_a_thread,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.process, pytest.mark.skipif(not sockets.supported(), reason="needs /proc")]

SOON = TIMEOUT / 2
"""Seconds that are long, and yet short of any deadline in these tests."""


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    crew = Crew()
    yield crew
    crew.close()


def test_close_gives_everything_back(crew: Crew) -> None:
    hands = crew.hire(3)
    crew.build(hands)
    answers = crew.run(hands, close_under_way)
    print(f"\nclose took {1e3 * max(took for took, _ in answers):.2f} ms")
    assert all(took < SOON for took, _ in answers)
    assert all(freed >= 4 for _, freed in answers), answers  # listener, two connections, store


def test_operations_that_have_ended_are_forgotten_although_a_receive_is_open(crew: Crew) -> None:
    hands = crew.hire(3)[:2]
    crew.build(hands)
    remembered = crew.run(hands, reduce_beside_an_open_receive, 100)
    assert max(remembered) < 20


def test_open_receives_take_few_threads(crew: Crew) -> None:
    hands = crew.hire(2)
    crew.build(hands)
    (started, received), _ = crew.run(hands, receive_before_the_sends, 100)
    assert started <= 8
    assert received == {1.0}


def test_sends_that_nobody_waits_for_are_forgotten_once_they_have_ended(crew: Crew) -> None:
    hands = crew.hire(2)
    crew.build(hands)
    assert max(crew.run(hands, send_and_never_wait, 100)) < 40


def test_a_transfer_goes_on_where_no_thread_can_be_had_that_waits_for_it(crew: Crew) -> None:
    hands = crew.hire(2)
    crew.build(hands)
    (text, early, later, value), _ = crew.run(hands, wait_without_a_thread)
    assert "no thread can be had" in text
    assert (early, later, value) == (False, True, 1.0)


def test_a_group_is_destroyed_by_a_later_close_where_no_thread_could_be_had(crew: Crew) -> None:
    hands = crew.hire(2)
    crew.build(hands)
    crew.run(hands, close_without_a_thread)


def test_few_bytes_are_exchanged_and_reduced_in_the_order_of_the_ranks(crew: Crew) -> None:
    hands = crew.hire(3)
    crew.build(hands)
    for answer in crew.run(hands, reduce_few_bytes):
        assert answer == {"in order": [0.0] * 7, "inferred": [[6, 6], [6, 6]], "leaf": 6.0}


@pytest.mark.parametrize("victim", [0, 2])
def test_kill_is_felt_in_exchanges(crew: Crew, victim: int) -> None:
    hands = crew.hire(4)
    crew.build(hands)
    crew.run(hands, know_peers)
    for hand in hands:
        hand.tell(loop, 100)
    time.sleep(0.2)
    killed = hands[victim].kill()
    survivors = [hand for hand in hands if hand is not hands[victim]]
    answers = [hand.answer() for hand in survivors]
    assert max(answer[0] for answer in answers) - killed < SOON
    assert max(answer[1] for answer in answers) - min(answer[1] for answer in answers) <= 1
    assert any(victim in answer[3] or answer[2] == FORGOTTEN for answer in answers)
    crew.build(survivors)
    assert crew.run(survivors, reduce_one, 100) == [3.0] * 3


def test_cancel_while_gloo_connects(crew: Crew) -> None:
    hands = crew.hire(3)
    specs = crew.specs(hands)
    hands[1].tell(fail_in_the_middle, specs[1])
    for rank in (0, 2):
        hands[rank].tell(try_rebuild, specs[rank], 1.5)
    assert "broken on purpose" in hands[1].answer()
    for rank in (0, 2):
        took, text = hands[rank].answer()
        assert "cancelled" in text
        assert took < SOON
    assert crew.run(hands, building_threads) == [0, 0, 0]
    crew.build(hands)
    assert crew.run(hands, reduce_one, 10) == [3.0] * 3


def test_cancel_while_gloo_waits_for_a_connection_that_never_comes(crew: Crew) -> None:
    """There is no socket to cut then: the build ends nevertheless, not after the deadline of the view."""
    hands = crew.hire(2)
    specs = crew.specs(hands)
    hands[0].tell(meet_and_never_connect, specs[0])
    hands[1].tell(try_rebuild, specs[1], 1.5)
    hands[0].answer()
    took, text = hands[1].answer()
    assert "cancelled" in text
    assert took < SOON
    hands[1].tell(building_threads)
    begin = time.monotonic()
    assert hands[1].answer() == 0
    assert time.monotonic() - begin < SOON


def test_forked_children_hold_no_sockets(crew: Crew) -> None:
    hands = crew.hire(2)
    crew.build(hands)
    for here, inherited in crew.run(hands, child_sockets):
        assert here > 3
        assert inherited == "[]"
    assert crew.run(hands, reduce_one, 10) == [2.0] * 2


def test_operations_are_abandoned_where_sockets_cannot_be_cut(crew: Crew) -> None:
    hands = crew.hire(2)
    for hand, spec in zip(hands, crew.specs(hands, timeout=10.0), strict=True):
        hand.tell(rebuild_blindly, spec)
    assert all("inexact" in hand.answer() for hand in hands)
    failed, done, until_done = crew.run(hands, abandon)[0]
    assert failed < 9.0
    assert not done
    assert until_done < TIMEOUT
    crew.build(hands)
    assert crew.run(hands, reduce_one, 10) == [2.0] * 2


def test_a_transfer_that_a_death_cuts_in_two_ends_with_its_group(crew: Crew) -> None:
    """Gloo forgets it: see docs/frameworks.md."""
    halves = []
    for _ in range(3):
        hands = crew.hire(2)
        crew.build(hands)
        process = hands[1].process.pid
        hands[1].tell(send_ones, 1 << 24)
        hands[0].tell(receive_from_the_dead, process, 1 << 24)
        half, took = hands[0].answer()
        hands[1].close()
        halves.append(half)
        assert took < SOON
    assert any(halves), "each was quicker than its death"


def test_store_forgets_earlier_epochs(crew: Crew) -> None:
    hands = crew.hire(2)
    for _ in range(4):
        crew.build(hands)
        crew.run(hands, reduce_one, 10)
    hands[0].tell(epochs_kept)
    assert len(hands[0].answer()) == 1


@pytest.mark.soak
def test_thirty_kills_in_a_row(crew: Crew) -> None:
    errors, rebuilds = [], []
    for repetition in range(30):
        hands: list[Hand] = crew.hire(4)
        crew.build(hands, host=repetition % 4)
        crew.run(hands, reduce_one, 1000)  # new ones import their orders first
        for hand in hands:
            hand.tell(loop, 1_000_000)
        time.sleep(0.05)
        victim = hands[repetition % 3]
        killed = victim.kill()
        survivors = [hand for hand in hands if hand is not victim]
        errors.append(1e3 * (max(hand.answer()[0] for hand in survivors) - killed))
        rebuilds.append(1e3 * max(crew.build(survivors)))
        assert crew.run(survivors, reduce_one, 1000) == [3.0] * 3
    for name, values in (("kill to all errors", sorted(errors)), ("rebuild", sorted(rebuilds))):
        print(f"\n{name}: median {values[15]:.1f} ms, worst {values[-1]:.1f} ms")
    assert errors[15] < 500.0
