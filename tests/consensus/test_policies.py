"""The policies with whole members on real sockets: sides that part and meet, clusters founded apart, spares."""

from __future__ import annotations

import time

import pytest

from consensus import FoundedApartError, Gossip, Home, LeftError, OvertakenError, Policy
from tests.harness.basics import eventually

from .group import address, agree, begin, members


@pytest.mark.process
def test_any_two_that_lost_each_other_go_on_and_one_of_them_stops_when_they_meet() -> None:
    """A cut that nothing crosses: of a member that is stopped, the other one's words would lie in its sockets meanwhile."""
    with members(2, agent=Home.PROCESS, exclude_after=4.0, policy=Policy.ANY) as group:
        agree(group, 2)
        one, two = group
        cut = 0.0

        def apart() -> bool:
            """Nobody waits for the end of the cut, which begins anew each second until both have gone on."""
            nonlocal cut
            if time.monotonic() > cut + 1.0:
                cut = time.monotonic()
                assert one.cut_off(8.0)
            return all(member.view is not None and member.view.ids == (member.id,) and member.confirm() for member in group)

        eventually(apart, "both go on alone")
        one.progress(5, 0)
        two.progress(7, 0)
        eventually(lambda: one.stopped is not None, "they meet, and the second has done more steps")
        assert time.monotonic() - cut >= 8.0
        assert isinstance(one.stopped, OvertakenError)
        assert "the job was cut in two (policy any)" in str(one.stopped)
        assert two.stopped is None
        assert two.view is not None
        assert two.view.ids == (two.id,)


@pytest.mark.usefixtures("patient")
def test_two_clusters_founded_apart_do_not_both_go_on() -> None:
    with members(2) as large, members(1) as [small]:
        agree(large, 2)
        agree([small], 1)
        assert small.report_join([address(large[1])])
        eventually(lambda: small.stopped is not None, "the smaller one stops")
        assert isinstance(small.stopped, FoundedApartError)
        assert small.stopped.view == large[0].view, "where to go instead"
        assert address(large[0]) in str(small.stopped) and address(small) in str(small.stopped)
        assert agree(large, 2).epoch == 1


def known(group: list[Gossip]) -> list[int]:
    """How many spares each knows of."""
    return [len(member.status()["spares"]) for member in group]


def test_the_spare_that_has_waited_longest_steps_in_with_the_view_that_removes_somebody() -> None:
    with members(3, max_size=3) as group:
        agree(group, 3)
        spares = []
        try:
            for number in (1, 2):
                spares.append(begin(job="test", introducers=(address(group[0]),), max_size=3))
                spares[-1].seek_admission()
                everywhere = [number] * len(group)  # those have to know it, too, who may have to let it in
                eventually(lambda wanted=everywhere: known(group) == wanted, "it is known")  # type: ignore[misc]
            assert [spare["id"] for spare in group[0].status()["spares"]] == [spare.member.id for spare in spares]
            assert not group[0].new_member_join(), "there is no room"
            senior = next(each for each in group if each.member.id == group[0].get_member_list()[0].id)
            senior.leave()
            rest = [each for each in group if each is not senior]
            view = agree([*rest, spares[0]], 3)
            assert view.epoch in (2, 3), "a spare that has got no processor for a second comes one view later"
            eventually(lambda: senior.stopped is not None, "the leaver is told")
            assert isinstance(senior.stopped, LeftError)
            assert spares[1].view is None and spares[1].stopped is None
        finally:
            for spare in spares:
                spare.stop()
