"""A call that fails, or ends here otherwise than by its result: what becomes of an order that waited, and of this lifetime."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from consensus.border import Freeze
from ftlib.core.calls.attempt import Disagreement
from ftlib.core.calls.call import Results
from ftlib.core.calls.salvage import SalvagePlan
from ftlib.core.calls.session import Session
from ftlib.core.plane.failures import Failures
from ftlib.core.plane.phase import Phase
from ftlib.core.plane.plane import Plane
from ftlib.core.tensors.trailer import Trailer
from ftlib.errors import Excluded, GroupError, StepMismatch
from tests.ftlib.plane.sessions import AFTER_SEVEN, LAYOUT, average, session


class Failing:
    """A member in call 8, and who hears of its failures."""

    def __init__(self) -> None:
        self.plane, self.consensus, self.rebuilder, self.group = Plane("a"), Mock(), Mock(), Mock()
        self.failures = Failures(self.plane, self.consensus, self.rebuilder)
        self.session: Session = session(3, AFTER_SEVEN, "a", group=self.group)
        self.call = average()
        assert self.plane.activate(self.session)
        self.plane.enter(self.call)
        assert self.plane.begin(self.session)

    def end(self, how: str) -> None:
        match how:
            case "withdrawn":
                self.failures.withdraw(self.session)
            case "abandoned":
                self.failures.abandon()
            case "failed":
                self.failures.report(self.call, self.session, GroupError("it broke", (1,)))


@pytest.mark.parametrize("how", ["withdrawn", "abandoned", "failed"])
def test_a_freeze_that_waited_for_a_call_goes_on_once_the_call_is_over(how: str) -> None:
    """Else the others would wait for this member's report for as long as it takes to give it up."""
    waited, undisturbed = Failing(), Failing()
    order = Freeze(4, 8)
    assert waited.plane.freeze(order) is None
    waited.end(how)
    waited.rebuilder.order.assert_called_once_with(order)
    undisturbed.end(how)
    undisturbed.rebuilder.order.assert_not_called()


def test_a_call_that_nobody_was_in_has_not_failed() -> None:
    failing = Failing()
    failing.end("withdrawn")
    assert failing.plane.phase is Phase.ACTIVE and failing.plane.running is None
    assert not failing.consensus.mock_calls and not failing.group.mock_calls


@pytest.mark.parametrize(("blamed", "stops"), [(("a", "c"), True), (("c",), False)])
def test_who_is_blamed_for_a_disagreement_stops_and_the_others_say_who_it_is(blamed: tuple[str, ...], stops: bool) -> None:
    failing = Failing()
    failing.failures.report(failing.call, failing.session, Disagreement("call 8: it disagrees", blamed, "operations"))
    assert (failing.session.blamed, failing.session.dispute) == (blamed, "operations")
    assert isinstance(failing.plane.error, StepMismatch) is stops
    assert failing.plane.phase is (Phase.STOPPED if stops else Phase.FROZEN)
    assert failing.consensus.leave.called is stops


@pytest.mark.parametrize(
    ("number", "inside", "stops"),
    [
        pytest.param(1, False, True, id="it was finished"),
        pytest.param(2, False, False, id="it was not"),
        pytest.param(0, False, False, id="it was never entered"),
        pytest.param(1, True, False, id="the next call is under way"),
    ],
)
def test_who_lacks_the_result_of_a_finished_call_stops(number: int, inside: bool, stops: bool) -> None:
    """Its state is another one than the others' from then on; who fails before that just leaves the call."""
    plane, consensus = Plane("a"), Mock()
    first = session(1, SalvagePlan(0, 0, current_state_id="a", holders=("a",)), "a", group=Mock())
    assert plane.installing(first.view) and plane.activate(first)
    plane.enter(average())
    assert plane.begin(first)
    assert plane.current is not None and plane.finish(first, plane.current, Trailer.of(()), Results(1, LAYOUT, (), 3.0))
    if inside:
        plane.enter(average())
    call: Any = Mock(number=number)
    Failures(plane, consensus, Mock()).undelivered(call, KeyError("disk"))
    assert isinstance(plane.error, Excluded) is stops
    if stops:
        assert "its result could not be delivered here (KeyError): start this worker anew" in str(plane.error)
