"""A view whose driver is not in it is missed by those who are, once."""

from __future__ import annotations

from math import inf

import pytest

from consensus.messages import Chosen, Prepare
from consensus.protocol.agreement.abandonment import ABANDONED_AFTER
from consensus.protocol.machine import Machine
from consensus.view import Cause, Proposal, Removal, View

from .people import machine_in, member, sends, view_of

PARENT = view_of("abc")
WITHOUT_A = Proposal(PARENT.view_id, 2, (Removal("a", Cause.LEFT),)).apply(PARENT)


def told(driver: str, chosen: View = WITHOUT_A) -> Machine:
    """c, which has heard at 100.0 that a view was chosen that ``driver`` is to bring to life."""
    machine = machine_in("abc", "c")
    machine.receive("b", member("b").address, Chosen(chosen, driver), 100.0)
    machine.drain()
    assert machine.view == chosen
    return machine


def proposes(machine: Machine, until: float) -> list[float]:
    """When it tried to have another view decided; b, which is silent, coordinates nothing."""
    times = []
    while (due := machine.next_deadline()) is not None and due <= until:
        machine.tick(due)
        times += [due for _ in sends(machine.drain(), Prepare)]
    return times


def test_a_driver_outside_of_the_view_is_waited_for_a_while() -> None:
    machine = told("a")
    assert machine._change._abandonment.deadline() == 100.0 + ABANDONED_AFTER
    assert proposes(machine, 100.0 + ABANDONED_AFTER + 0.01) == [pytest.approx(100.0 + ABANDONED_AFTER)]
    assert machine._change._abandonment.deadline() == inf, "once a view"


def test_a_driver_within_the_view_is_missed_as_a_member() -> None:
    assert proposes(told("b"), 100.0 + 1.5 * ABANDONED_AFTER) == []


def test_a_view_is_missed_once_whether_anybody_does_something_about_it_or_not() -> None:
    missed = told("a")._change._abandonment
    assert missed.due(100.0 + ABANDONED_AFTER)
    assert not missed.due(100.1 + ABANDONED_AFTER)
    assert missed.deadline() == inf


def test_nothing_is_missed_once_the_view_is_active_or_this_member_proposes_another() -> None:
    for active, attempt in ((True, None), (False, object())):
        machine = told("a")
        missed = machine._change._abandonment
        assert missed.deadline() == 100.0 + ABANDONED_AFTER
        machine._core.active = machine._core.view if active else machine._core.active
        machine._change.proposer.attempt = attempt  # type: ignore[assignment]
        assert missed.deadline() == inf, (active, attempt)
        assert not missed.due(100.0 + ABANDONED_AFTER)
