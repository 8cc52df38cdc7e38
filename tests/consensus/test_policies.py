"""The policies with whole members on real sockets: sides that part and meet, clusters founded apart, spares."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

import consensus
from consensus import FoundedApartError, Gossip, LeftError
from tests.harness.basics import TIMEOUT, eventually

from .group import address, agree, begin, members, peers
from .peer import Peer


def status(peer: Peer) -> dict[str, Any]:
    """What the agent of another process believes."""
    with consensus.get(peer.member.address, "/status", timeout=TIMEOUT) as answer:
        found: dict[str, Any] = json.loads(answer.read())
    return found


def inside(peer: Peer) -> list[str]:
    return [member["id"] for member in status(peer)["members"]]


@pytest.mark.process
def test_any_two_that_lost_each_other_go_on_and_one_of_them_stops_when_they_meet() -> None:
    """They lose each other by being stopped in turns."""
    settings: dict[str, Any] = {"job": "test", "initial_size": 2, "exclude_after": 4.0, "policy": "any"}
    with peers(1, **settings) as [one], peers(1, introducers=(one.address,), **settings) as [two]:
        eventually(lambda: len(inside(one)) == len(inside(two)) == 2, "they meet")
        one.pause()
        eventually(lambda: inside(two) == [two.member.id], "the second goes on alone")
        two.tell("where 7,0")
        two.pause()
        os.kill(one.process.pid, signal.SIGCONT)
        eventually(lambda: inside(one) == [one.member.id] and not status(one)["changing"], "the first goes on alone")
        one.tell("where 5,0")
        eventually(lambda: status(one)["active_epoch"] == 2, "it acts")
        os.kill(two.process.pid, signal.SIGCONT)
        eventually(lambda: status(one)["stopped"] is not None, "they meet, and the second has done more steps")
        assert "OvertakenError: the job was cut in two (policy any)" in status(one)["stopped"]
        assert status(two)["stopped"] is None and inside(two) == [two.member.id]


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
            assert view.epoch == 2
            eventually(lambda: senior.stopped is not None, "the leaver is told")
            assert isinstance(senior.stopped, LeftError)
            assert spares[1].view is None and spares[1].stopped is None
        finally:
            for spare in spares:
                spare.stop()
