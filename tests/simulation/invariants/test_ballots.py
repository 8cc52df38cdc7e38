from __future__ import annotations

import pytest

from consensus.messages import Accept, Accepted, Ack, Ping, Prepare, Promise
from consensus.simulation.invariants import Ballots, Violation
from consensus.view import Cause, Proposal

from .stage import Stage


def play(stage: Stage) -> tuple[str, Proposal]:
    return stage.view.view_id, stage.value(stage.view, stage.hosts[-1], cause=Cause.PROOF)


def test_a_ballot_of_another() -> None:
    stage = Stage(Ballots)
    a, b, _ = stage.hosts
    with pytest.raises(Violation, match="uses the ballot"):
        stage.observers.sent(a, b, Prepare(2, stage.view.view_id, (1, b.id)))


def test_round_zero_of_another() -> None:
    stage = Stage(Ballots)
    a, b, _ = stage.hosts
    parent, value = play(stage)
    with pytest.raises(Violation, match="takes round 0"):
        stage.observers.sent(b, a, Accept(2, parent, (0, b.id), value))


def test_two_values_under_one_ballot() -> None:
    stage = Stage(Ballots)
    a, b, _ = stage.hosts
    parent, value = play(stage)
    stage.observers.sent(a, b, Accept(2, parent, (1, a.id), value))
    with pytest.raises(Violation, match="two values"):
        stage.observers.sent(a, b, Accept(2, parent, (1, a.id), Proposal(parent, 2)))


def test_a_vote_or_promise_below_a_promise() -> None:
    stage = Stage(Ballots)
    a, b, _ = stage.hosts
    parent, _ = play(stage)
    stage.observers.sent(b, a, Promise(2, parent, (5, a.id)))
    with pytest.raises(Violation, match=r"votes for \(1, .* having promised \(5"):
        stage.observers.sent(b, a, Accepted(2, parent, (1, a.id), b""))
    with pytest.raises(Violation, match="too late"):
        stage.observers.sent(b, a, Promise(2, parent, (4, a.id)))


def test_a_promise_that_hides_a_vote() -> None:
    stage = Stage(Ballots)
    a, b, _ = stage.hosts
    parent, value = play(stage)
    stage.observers.sent(a, b, Accept(2, parent, (0, a.id), value))
    stage.observers.sent(b, a, Accepted(2, parent, (0, a.id), b""))
    with pytest.raises(Violation, match="without telling its vote"):
        stage.observers.sent(b, a, Promise(2, parent, (1, a.id)))


def test_a_proposer_that_ignores_what_it_was_told() -> None:
    stage = Stage(Ballots)
    a, b, c = stage.hosts
    parent, value = play(stage)
    stage.observers.sent(a, c, Accept(2, parent, (0, a.id), value))
    told = Promise(2, parent, (1, b.id), (0, a.id), value)
    stage.observers.sent(c, b, told)
    stage.observers.delivered(b, c, told)
    with pytest.raises(Violation, match="proposes anew"):
        stage.observers.sent(b, c, Accept(2, parent, (1, b.id), Proposal(parent, 2)))


def test_voting_out_whom_one_acked_and_acking_whom_one_voted_out() -> None:
    stage = Stage(Ballots)
    a, b, c = stage.hosts
    value = stage.value(stage.view, c)
    parent = stage.view.view_id
    stage.observers.sent(a, b, Accept(2, parent, (0, a.id), value))
    stage.observers.sent(c, b, Ping(7, b.id, 1, parent))
    stage.observers.sent(b, c, Ack(7, b.id, 1, parent))
    with pytest.raises(Violation, match=r"votes m.* out 0\.000 s after its last ack"):
        stage.observers.sent(b, a, Accepted(2, parent, (0, a.id), b""))
    with pytest.raises(Violation, match=r"acks m.*, whom it voted out"):
        stage.observers.sent(b, c, Ack(7, b.id, 1, parent))


def test_an_ack_that_tells_of_the_chosen_view_is_no_contact() -> None:
    """A vote may go out late, after its sender has followed the view: m15 of the training history with seed 3087 did."""
    stage = Stage(Ballots)
    _, b, c = stage.hosts
    record = stage.checkers.facts.record
    before = record.last_ack(b.id, c.id, 2)
    stage.observers.sent(c, b, Ping(7, b.id, 1, stage.view.view_id))
    stage.observers.sent(b, c, Ack(7, b.id, 2, "another"))
    assert before == record.last_ack(b.id, c.id, 2) < b.now == record.last_ack(b.id, c.id, 3)
