"""Each rumour is sent mult * ceil(log10(n + 1)) times, the least sent first."""

from __future__ import annotations

import pytest

from consensus.messages import Status, Update
from consensus.protocol.state.dissemination import Dissemination


def rumour(about: str, status: Status = Status.SUSPECT, incarnation: int = 0, by: str = "z") -> Update:
    return Update(about, status, incarnation, by)


@pytest.mark.parametrize(("members", "times"), [(1, 4), (8, 4), (9, 4), (10, 8), (99, 8), (100, 12)])
def test_retransmit_limit(members: int, times: int) -> None:
    rumours = Dissemination(4)
    rumours.add(rumour("a"))
    sent = 0
    while rumours.take(6, members):
        sent += 1
        assert sent < 100
    assert sent == times
    assert len(rumours) == 0


def test_the_least_sent_go_first() -> None:
    rumours = Dissemination(4)
    rumours.add(rumour("a"))
    rumours.take(1, 5)
    rumours.add(rumour("b"))
    assert [update.member_id for update in rumours.take(1, 5)] == ["b"]


def test_those_about_the_receiver_come_first() -> None:
    rumours = Dissemination(4)
    for about in "abc":
        rumours.add(rumour(about))
    assert rumours.take(1, 5, about="c")[0].member_id == "c"


def test_a_higher_incarnation_replaces_all_older_rumours() -> None:
    rumours = Dissemination(4)
    rumours.add(rumour("a", by="x"))
    rumours.add(rumour("a", by="y"))
    assert len(rumours) == 2, "accusers count one by one"
    rumours.add(rumour("a", Status.ALIVE, 1, "a"))
    assert rumours.take(6, 5) == (rumour("a", Status.ALIVE, 1, "a"),)


def test_rumours_about_those_who_left_are_dropped() -> None:
    rumours = Dissemination(4)
    rumours.add(rumour("a"))
    rumours.add(rumour("b"))
    rumours.forget(frozenset("b"))
    assert [update.member_id for update in rumours.take(6, 5)] == ["b"]


def test_at_most_limit() -> None:
    rumours = Dissemination(4)
    for about in "abcdefgh":
        rumours.add(rumour(about))
    assert len(rumours.take(6, 9)) == 6
