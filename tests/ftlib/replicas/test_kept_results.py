"""A result that a process of a replica holds since the view before, and the call that its program makes after an exception."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
import torch

from ftlib.core.calls.call import Call, Kind, Results
from ftlib.core.calls.follow import Declined
from ftlib.core.calls.salvage import SalvagePlan
from ftlib.core.engine.call_lock import CallLock
from ftlib.core.engine.engine import Engine
from ftlib.core.engine.waiting import Limits
from ftlib.core.plane.plane import Plane
from ftlib.core.tensors.layout import lay_out
from ftlib.core.tensors.staging import StagingPool
from ftlib.core.tensors.trailer import Trailer
from ftlib.errors import StepMismatch
from ftlib.status import Status
from tests.ftlib.plane.sessions import AFTER_SEVEN, LAYOUT, average, session

SHORT = lay_out("average", [(torch.float32, (2,))], "SUM", 1 << 20)


class Kept:
    """A member that has held the sum of an average, 3 x 6, in call 8, which the program left by an exception meanwhile; the
    others have finished that call.
    """

    def __init__(self) -> None:
        self.plane = plane = Plane("a")
        self.engine = Engine(plane, Mock(), Mock(), CallLock(1.0), Limits(), 2, load=Mock())
        here = session(3, AFTER_SEVEN, "a", group=Mock())
        assert plane.activate(here)
        plane.origin = "a"
        plane.enter(average())
        slots = [StagingPool(2).staging(LAYOUT).slot(0, 0)]
        slots[0].claim()
        slots[0].data.fill_(6.0)
        assert plane.begin(here) and plane.hold(here, Results(8, LAYOUT, slots, 3.0), Trailer.of(()))
        plane.abandon()
        assert plane.activate(session(4, SalvagePlan(8, 8, authority="a", holders=("a",)), "a", group=Mock(), keeps=True))


def test_the_call_made_again_has_it() -> None:
    kept, call = Kept(), average()
    assert kept.engine.run(call) is Status.SUCCESS
    assert torch.equal(call.sources[0], torch.full((3,), 2.0))
    assert kept.plane.step == 8


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(Call(Kind.BARRIER, lay_out("barrier", [], "SUM", 1 << 20), []), id="barrier"),
        pytest.param(Call(Kind.AVERAGE, SHORT, [torch.ones(2)], divide=True), id="other tensors"),
    ],
)
def test_another_call_has_not(call: Call) -> None:
    """It would end as if all were well, and this member would never apply what the others have."""
    kept = Kept()
    with pytest.raises(StepMismatch, match=r"call 8, .* was finished by the others with other tensors or another operation"):
        kept.engine.run(call)
    assert kept.plane.finished == 7


def test_who_declines_it_counts_it_as_the_others_do() -> None:
    kept, call = Kept(), Declined(veto=True)
    assert kept.engine.run(call) is Status.SUCCESS
    assert call.lacks is not None and call.kind is Kind.AVERAGE
    assert (kept.plane.finished, kept.plane.step) == (8, 8)
