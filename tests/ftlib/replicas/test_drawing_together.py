"""The processes of a replica have computed a call from the same samples, or it has no result."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import pytest

from ftlib.core.calls.call import Call, CallOutcome, Kind, Results
from ftlib.core.calls.session import Session
from ftlib.core.engine.shard_agreement import ShardAgreement
from ftlib.core.plane.failures import Failures
from ftlib.core.plane.phase import Phase
from ftlib.core.plane.plane import Plane
from ftlib.core.replicas.words import Mates, ReplicaVerdict
from ftlib.core.tensors.layout import Layout
from ftlib.data.mates import Drawing
from ftlib.data.sampling import Share
from ftlib.errors import StepMismatch

THIS, OTHER = Share(samples=3, data_epoch=1, deal=7), Share(samples=2, data_epoch=1, deal=7)
IDLE = Share(data_epoch=1, deal=7)


class Held:
    """A call that this member, of replica ``r``, holds; its mate says that its own shard's records have other shares."""

    def __init__(self, own: dict[str, Share], theirs: tuple[Share, ...], ahead: tuple[bool, ...] = ()) -> None:
        plane = Plane("w0", replica="r")
        view = SimpleNamespace(epoch=3, view_id="v3", ids=("w0", "w1"))
        self.session = cast("Session", SimpleNamespace(view=view, rank=0, size=2, plan=SimpleNamespace(call=4)))
        plane.phase, plane.session = Phase.ACTIVE, self.session
        layout = Layout(b"", "barrier", "barrier()", ())
        self.call = Call(Kind.BARRIER, layout, [])
        self.results = Results(5, layout, (), 2.0)
        self.results.share(own)
        self.mates, self.failures = Mock(spec=Mates), Mock(spec=Failures)
        said = (Drawing((), tuple(own.values())).pack(), Drawing(ahead, theirs).pack())
        self.mates.verdict.return_value = ReplicaVerdict(freeze=False, void=False, alike=True, drawn=said)
        self._agreement = ShardAgreement(plane, Mock(), self.mates, self.failures)

    def hold(self) -> bool:
        """True if the call has a result."""
        assert self._agreement.hold(self.call, self.session, self.results) is True
        return self.results.outcome is CallOutcome.INTACT


def test_those_who_used_the_same_have_a_result() -> None:
    held = Held({"r": THIS, "s": OTHER}, (THIS, OTHER), ahead=(True,))
    assert held.hold()
    assert held.results.shares == {"r": THIS, "s": OTHER}
    assert held.results.drawing is not None and held.results.drawing.ahead == (True,)


def test_a_replica_of_which_one_had_a_filler_counts_for_nobody() -> None:
    """Also where that is another replica than this member's: all members see it."""
    own = Held({"r": THIS, "s": OTHER}, (IDLE, OTHER))
    assert not own.hold()
    assert own.results.shares == {"r": IDLE, "s": OTHER}
    assert not Held({"r": THIS, "s": OTHER}, (THIS, IDLE)).hold()


def test_who_deals_differently_stops() -> None:
    """Another seed, say: they would never agree."""
    held = Held({"r": THIS}, (Share(samples=3, data_epoch=1, deal=8),))
    with pytest.raises(StepMismatch, match="deal the samples differently: give ElasticSampler the same dataset"):
        held.hold()
    held.failures.stop.assert_called_once()


def test_what_was_agreed_on_is_said_again_in_the_next_view() -> None:
    held = Held({"r": THIS, "s": OTHER}, (IDLE, OTHER))
    held.hold()
    before = held.results.drawing
    assert before is not None
    held.mates.enter.reset_mock()
    held.hold()
    assert held.mates.enter.call_args.args[0].drawn == before.pack()


def test_whose_mate_had_a_filler_does_not_log_that_its_shards_are_over_different_replicas(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A filler has no weight: this is what is meant to happen, and a warning says it."""
    for theirs, level in (((IDLE, OTHER), "WARNING"), ((THIS, OTHER), "ERROR")):
        held = Held({"r": THIS, "s": OTHER}, theirs)
        held.mates.verdict.return_value = held.mates.verdict.return_value._replace(alike=False)
        caplog.clear()
        assert not held.hold()
        assert [record.levelname for record in caplog.records] == [level]
