"""Beliefs about peers, by SWIM's order of rumours."""

from __future__ import annotations

from random import Random

import pytest

from consensus.member import Member
from consensus.messages import Status, Update
from consensus.protocol.state.member_table import NEVER, MemberTable, Peer, Sign
from consensus.view import NO_VIEW_ID, Cause, Proposal, Removal, View

from .people import view_of


def table(names: str = "abc") -> MemberTable:
    one = MemberTable("a")
    one.adopt(view_of(names), {"c": 42.0}, 50.0)
    return one


def peer(one: MemberTable, name: str = "b") -> Peer:
    found = one.get(name)
    assert found is not None
    return found


def test_peers_in_seniority_order_without_oneself() -> None:
    one = MemberTable("b")
    one.adopt(view_of("dcba"), {}, 50.0)
    assert [peer.member.id for peer in one] == list("dca")
    assert len(one) == 3


def test_contacts_seed_those_who_came() -> None:
    one = table()
    assert peer(one, "b").contact == NEVER
    assert peer(one, "c").contact == 42.0
    assert peer(one, "c").last_sign == 50.0, "a new member is given the benefit of its admission"


def test_beliefs_about_those_who_stay_are_kept() -> None:
    one = table()
    one.answered("b", 60.0)
    peer(one).status = Status.SUSPECT
    one.adopt(view_of("ab", 2), {"b": 1.0}, 70.0)
    assert (peer(one).contact, peer(one).since, peer(one).status) == (60.0, 50.0, Status.SUSPECT)
    assert one.get("c") is None


def test_contact_never_goes_back() -> None:
    one = table()
    one.answered("b", 60.0)
    one.answered("b", 55.0)
    assert peer(one).contact == 60.0
    assert one.answered("x", 60.0) is None


@pytest.mark.parametrize(
    ("status", "incarnation", "news"),
    [
        (Status.ALIVE, 2, False),
        (Status.ALIVE, 3, True),
        (Status.SUSPECT, 1, False),
        (Status.SUSPECT, 2, True),
        (Status.SUSPECT, 3, True),
        (Status.DEAD, 9, False),  # rumours kill nobody
    ],
)
def test_order_of_rumours(status: Status, incarnation: int, news: bool) -> None:
    one = table()
    peer(one).incarnation = 2
    peer(one).status = Status.SUSPECT
    assert one.apply(Update("b", status, incarnation, "z")) is news
    assert peer(one).status is (Status.ALIVE if status is Status.ALIVE and news else Status.SUSPECT)


def test_death_is_final() -> None:
    one = table()
    peer(one).learn(Sign.PROVEN)
    assert not one.apply(Update("b", Status.ALIVE, 99, "b"))
    assert peer(one).status is Status.DEAD


def test_strangers_are_no_news() -> None:
    assert not table().apply(Update("x", Status.ALIVE, 1, "x"))


def test_trust() -> None:
    one = table()
    assert one.trusted("a")
    assert one.trusted("b")
    assert not one.trusted("x")
    peer(one).status = Status.SUSPECT
    assert not one.trusted("b")


def test_a_late_ack_says_nothing_about_the_epoch_of_an_earlier_one() -> None:
    one = table()
    one.met("b", 60.0, epoch=3)
    one.met("b", 55.0, epoch=1)
    one.all_in(2)
    assert peer(one).contact == NEVER, "what it acked last it acked in epoch 3"
    one.all_in(3)
    assert peer(one).contact == 60.0


@pytest.mark.parametrize("seed", range(20))
def test_a_peer_that_is_asked_for_late_is_as_one_made_at_once(seed: int) -> None:
    rng = Random(seed)
    names = iter(f"{number:04x}" for number in range(10_000))
    view = View(1, NO_VIEW_ID, tuple(Member(next(names), "10.0.0.1", 1 + n) for n in range(8)))
    own = view.ids[3]
    late, since = MemberTable(own), dict.fromkeys(view.ids, 0.0)
    late.adopt(view, {}, 0.0)
    for now in range(1, 30):
        before = view
        gone = [key for key in view.ids if key != own and rng.random() < 0.2]
        new = tuple(Member(next(names), "10.0.0.2", 1 + n) for n in range(rng.randrange(4)))
        view = Proposal(view.view_id, view.epoch + 1, tuple(Removal(key, Cause.PROOF) for key in gone), new).apply(view)
        if rng.random() < 0.2:  # two views at once: it was behind
            more = Member(next(names), "10.0.0.3", 1)
            view = Proposal(view.view_id, view.epoch + 1, (), (more,)).apply(view)
        seeds = {key: now - 0.25 for key in view.ids if rng.random() < 0.3}
        since = {key: since.get(key, float(now)) for key in view.ids}
        late.adopt(view, seeds, float(now))
        for key in view.ids:
            if key in seeds and key not in before and key != own:
                assert peer(late, key).contact == seeds[key]
        if rng.random() < 0.3:
            late.postpone(0.5)
            since = {key: at + 0.5 for key, at in since.items()}
        for key in rng.sample(view.ids, min(3, len(view))):
            assert key == own or peer(late, key).since == since[key]
    assert [(each.member.id, each.since) for each in late] == [(key, since[key]) for key in view.ids if key != own]
    assert len(late) == len(view) - 1


def test_whoever_stays_gets_no_contact_from_an_old_request_to_join() -> None:
    view = View(1, NO_VIEW_ID, tuple(Member(key, "10.0.0.1", 1 + n) for n, key in enumerate("abc")))
    one = MemberTable("a")
    one.adopt(view, {}, 0.0)
    one.adopt(Proposal(view.view_id, 2).apply(view), {"b": 0.9}, 1.0)
    assert (peer(one, "b").contact, peer(one, "b").since) == (NEVER, 0.0)
