"""Beliefs about peers, by SWIM's order of rumours."""

from __future__ import annotations

import pytest

from consensus.messages import Status, Update
from consensus.protocol.member_table import NEVER, MemberTable, Peer, Sign

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
