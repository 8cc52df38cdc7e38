"""Fixed neighbours: mutual, even, found again where a view changes, and missed as soon as a ping is."""

from __future__ import annotations

from random import Random

import pytest

from consensus.member import Member
from consensus.protocol.detection import watch
from consensus.protocol.detection.watch import RINGS, SLACK, Watch, watchers
from consensus.view import NO_VIEW_ID, Cause, Proposal, Removal, View

SLOT = 0.4
LAP = 2 * RINGS * SLOT + SLACK


def large(size: int, seed: int = 1) -> View:
    rng = Random(seed)
    return View(1, NO_VIEW_ID, tuple(Member(f"{rng.getrandbits(64):016x}", "10.0.0.1", 1 + n) for n in range(size)))


def test_watching_is_mutual_and_even() -> None:
    view = large(100)
    slots = {key: watchers(key, view) for key in view.ids}
    for key, beside in slots.items():
        assert len(beside) == 2 * RINGS
        assert key not in beside
        assert all(key in slots[other] for other in beside)


@pytest.mark.parametrize("seed", range(5))
def test_a_change_of_the_view_leads_to_the_same_neighbours_as_a_fresh_look(seed: int) -> None:
    rng = Random(seed)
    view = large(40, seed)
    own = view.ids[7]
    one = Watch(own)
    one.adopt(view, SLOT, 100.0)
    for step in range(10):
        gone = tuple(Removal(key, Cause.PROOF) for key in rng.sample(view.ids, 3) if key != own)
        new = tuple(Member(f"{rng.getrandbits(64):016x}", "10.0.0.2", 1 + n) for n in range(rng.randrange(5)))
        view = Proposal(view.view_id, view.epoch + 1, gone, new).apply(view)
        one.adopt(view, SLOT, 100.0 + step)
        assert one.slots == watchers(own, view)


def test_everybody_is_pinged_once_a_lap() -> None:
    view = large(100)
    one = Watch(view.ids[0])
    one.adopt(view, SLOT, 100.0)
    lap = [one.turn() for _ in one.slots]
    assert sorted(lap) == sorted(one.slots)


def test_a_ping_that_does_not_come_is_missed_once_a_lap() -> None:
    view = large(100)
    one = Watch(view.ids[0])
    one.adopt(view, SLOT, 100.0)
    late, other = dict.fromkeys(one.slots), one.slots[0]
    assert one.missed(SLOT, 100.0 + LAP) == [], "they may not know yet that they are neighbours"
    for key in late:
        one.received_ping(key, SLOT, 104.0)
    one.received_ping(other, SLOT, 105.0)
    one.received_ping("a stranger", SLOT, 105.0)
    assert one.deadline() == pytest.approx(104.0 + LAP)
    assert set(one.missed(SLOT, 104.0 + LAP)) == set(late) - {other}
    assert one.missed(SLOT, 104.0 + LAP + 0.1) == []
    assert one.missed(SLOT, 105.0 + LAP) == [other]


def test_small_views_and_views_without_us_have_no_neighbours() -> None:
    view = large(10)
    one = Watch(view.ids[0])
    one.adopt(view, SLOT, 100.0)
    one.adopt(None, SLOT, 100.0)
    assert one.slots == ()
    stranger = Watch("stranger")
    stranger.adopt(view, SLOT, 100.0)
    assert stranger.slots == ()


def test_each_ring_begins_at_another_quarter_of_the_ids() -> None:
    """All members have to compute the same rings, and short ids should not make two of them one."""
    assert [watch._place(ring, "abcdefgh") for ring in range(RINGS)] == ["abcdefgh", "cdefghab", "efghabcd", "ghabcdef"]
    assert [watch._place(ring, "abcd") for ring in range(RINGS)] == ["abcd", "bcda", "cdab", "dabc"]


def test_a_ring_is_sorted_only_if_a_neighbour_in_it_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    view = large(100)
    own = view.ids[0]
    one = Watch(own)
    one.adopt(view, SLOT, 100.0)
    far = next(key for key in view.ids if key != own and key not in one.slots)
    monkeypatch.setattr(View, "find", lambda *_: pytest.fail("a whole ring was looked at"))
    without = Proposal(view.view_id, 2, (Removal(far, Cause.PROOF),), (Member("f" * 16, "10.0.0.2", 1),)).apply(view)
    one.adopt(without, SLOT, 101.0)
    monkeypatch.undo()
    assert one.slots == watchers(own, without)


def test_whoever_could_receive_nothing_gives_its_neighbours_as_much_more_time() -> None:
    view = large(100)
    one = Watch(view.ids[0])
    one.adopt(view, SLOT, 100.0)
    for key in one.slots:
        one.received_ping(key, SLOT, 104.0)
    one.postpone(30.0)
    assert one.deadline() == pytest.approx(134.0 + LAP)
    assert one.missed(SLOT, 133.9 + LAP) == []


@pytest.mark.parametrize("place", range(2 * RINGS))
def test_only_the_ring_is_sorted_in_which_a_neighbour_is_gone(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    view = large(100)
    one = Watch(view.ids[0])
    one.adopt(view, SLOT, 100.0)
    gone, slots = one.slots[place], one.slots
    without = Proposal(view.view_id, 2, (Removal(gone, Cause.PROOF),), (Member("f" * 16, "10.0.0.2", 1),)).apply(view)
    sorted_rings: list[str] = []
    find = View.find
    monkeypatch.setattr(View, "find", lambda self, what, make: sorted_rings.append(what) or find(self, what, make))  # type: ignore[func-returns-value]
    one.adopt(without, SLOT, 101.0)
    monkeypatch.undo()
    assert sorted_rings == [f"ring {ring}" for ring in range(RINGS) if gone in slots[2 * ring : 2 * ring + 2]]
    assert one.slots == watchers(view.ids[0], without)
