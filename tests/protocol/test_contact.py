"""Whoever turns out to hold another view than this member: who is asked, who is told, who is left alone."""

from __future__ import annotations

import itertools

import pytest

from consensus.config import Config, Policy
from consensus.member import Member
from consensus.messages import Chosen, Install, Introduction, Message, Ping, Pull
from consensus.messages.reports import Reports
from consensus.protocol.agreement.contact import INTRODUCE_EVERY, LOOK_AT_MOST, LOOK_FOR
from consensus.protocol.machine import Machine
from consensus.view import View

from .people import machine_in, member, sends, view_of
from .test_machine import about_to_install

NOW = 100.1
FIRST = view_of("abc")
NEXT = view_of("ab", 2, FIRST.view_id, FIRST.cluster)


def answers(machine: Machine, *kinds: type[Message]) -> list[tuple[str, type[Message]]]:
    """To whom it has said something of these kinds, and what."""
    effects = machine.drain()
    return [(chr(send.address[1] - 1000), kind) for kind in kinds for send in sends(effects, kind)]


def pointed(machine: Machine, view: View | None, coordinator: Member | None) -> list[tuple[str, type[Message]]]:
    machine.drain()
    machine._change.contact.pointed(view, coordinator, NOW)
    return answers(machine, Pull, Introduction)


def test_a_newer_view_of_its_cluster_is_asked_for() -> None:
    assert pointed(machine_in("abc", "b"), NEXT, member("a")) == [("a", Pull)]


def test_its_own_view_or_an_older_one_is_no_news() -> None:
    machine = machine_in("abc", "b")
    assert pointed(machine, FIRST, member("a")) == []
    machine._change.adopt(NEXT, "a", NOW)
    assert pointed(machine, FIRST, member("a")) == []


@pytest.mark.parametrize("other", [view_of("xy"), view_of("xb"), view_of("ac", 2, FIRST.view_id, FIRST.cluster)], ids=str)
def test_who_acts_in_another_chain_or_without_it_is_told_who_it_is(other: View) -> None:
    assert pointed(machine_in("abc", "b"), other, member("x")) == [("x", Introduction)]


def test_who_leads_a_view_that_it_is_not_in_has_nothing_to_say_about_that() -> None:
    """It leaves, and brings the others to their feet first."""
    machine = machine_in("abc", "c")
    machine._change.adopt(NEXT, "c", NOW)
    assert pointed(machine, NEXT, member("a")) == []


@pytest.mark.parametrize(("view", "coordinator"), [(None, member("a")), (NEXT, None), (NEXT, member("b")), (None, None)])
def test_without_a_view_and_somebody_else_in_it_nothing_is_said(view: View | None, coordinator: Member | None) -> None:
    assert pointed(machine_in("abc", "b"), view, coordinator) == []


def test_who_has_no_view_has_nothing_to_compare() -> None:
    machine = Machine(Config(), member("x"), machine_in("a", "a")._core.rng, founder=False, introducers=())
    machine.start(NOW)
    assert pointed(machine, NEXT, member("a")) == []


def test_a_ping_alone_tells_who_is_ahead() -> None:
    """It comes before any answer to a ping of its own."""
    machine = machine_in("abc", "b")
    machine.receive("a", member("a").address, Ping(1, "b", 2, NEXT.view_id), NOW)
    assert answers(machine, Pull) == [("a", Pull)]


@pytest.mark.parametrize(("policy", "told"), [(Policy.MAJORITY, [("c", Introduction)]), (Policy.ANY, [])])
def test_of_two_lists_for_one_epoch_only_one_can_be_active(
    policy: Policy, told: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who installs the other one is told which this member follows; under ``any`` both may be."""
    machine, install = about_to_install()
    view = install.view
    assert view is not None
    machine.receive("a", member("a").address, Chosen(view, "a"), NOW)
    machine.drain()
    monkeypatch.setattr(machine._core, "config", Config(policy=policy))
    other = View(2, FIRST.view_id, (member("b"), member("c")), view.cluster)
    machine.receive("c", member("c").address, Install(other, None, (9, "c"), Reports.of([b"B", b"C"])), NOW)
    assert answers(machine, Introduction) == told


def test_of_another_cluster_for_the_same_epoch_nothing_is_said() -> None:
    machine, install = about_to_install()
    assert install.view is not None
    machine.receive("a", member("a").address, Chosen(install.view, "a"), NOW)
    machine.drain()
    other = View(2, FIRST.view_id, (member("b"), member("c")), "another cluster")
    machine.receive("c", member("c").address, Install(other, None, (9, "c"), Reports.of([b"B", b"C"])), NOW)
    assert answers(machine, Introduction) == []


def test_who_was_left_behind_in_silence_is_looked_for_for_a_while() -> None:
    """It may live on the other side of a cut, and would not look itself."""
    machine = machine_in("abc", "a")
    machine._change.adopt(NEXT, "a", NOW)
    contact, now, asked = machine._change.contact, NOW, []
    while now < NOW + 2 * LOOK_FOR:
        contact.tick(now)
        asked += [now for send in sends(machine.drain(), Ping) if send.message.target == "c"]  # type: ignore[union-attr]
        now += 1.0
    assert asked[0] <= NOW + INTRODUCE_EVERY + 1.0
    assert LOOK_FOR / 2 <= asked[-1] - NOW <= LOOK_FOR
    assert max(later - former for former, later in itertools.pairwise(asked)) <= LOOK_AT_MOST + 1.0


def test_whom_it_acked_a_moment_ago_is_remembered_though_a_view_is_without_it() -> None:
    """Its lease runs on, should another list for that epoch turn out to be the one that can act."""
    machine = machine_in("abc", "a")
    machine._core.acked = {"b": 0.0, "c": NOW, "x": NOW - 3 * machine._core.config.exclude_after}
    machine._change.adopt(NEXT, "a", NOW)
    assert machine._core.acked == {"b": 0.0, "c": NOW}
