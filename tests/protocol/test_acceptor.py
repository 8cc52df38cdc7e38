"""Promises, votes, and the voter's side of the lease."""

from __future__ import annotations

import pytest

from consensus.messages import Accept, Ballot, Prepare, Promise, Promised
from consensus.protocol.agreement.acceptor import NO_BALLOT, Acceptor
from consensus.protocol.state.evidence import Proof
from consensus.view import Cause, Proposal, Removal

from .people import CONFIG, T_EXCL, view_of

VIEW = view_of("abc")


def acceptor(own: str = "b") -> Acceptor:
    return Acceptor(CONFIG, own, VIEW)


def without(name: str, cause: Cause) -> Proposal:
    return Proposal(VIEW.view_id, 2, (Removal(name, cause),))


def prepare(ballot: Ballot) -> Prepare:
    return Prepare(2, VIEW.view_id, ballot)


def accept(ballot: Ballot, proposal: Proposal | None = None) -> Accept:
    return Accept(2, VIEW.view_id, ballot, proposal or without("c", Cause.PROOF))


def test_promises_rise() -> None:
    one = acceptor()
    assert one.prepare(prepare((1, "b"))) == Promise(2, VIEW.view_id, (1, "b"))
    assert one.prepare(prepare((2, "a"))) == Promise(2, VIEW.view_id, (2, "a"))
    assert one.prepare(prepare((1, "c"))) == Promised(2, VIEW.view_id, (1, "c"), (2, "a"))


def test_the_same_ballot_is_promised_again() -> None:
    one = acceptor()
    assert one.prepare(prepare((1, "b"))) == one.prepare(prepare((1, "b")))


def test_a_promise_tells_what_was_accepted() -> None:
    one = acceptor()
    one.accept(accept((0, "a")))
    assert one.prepare(prepare((1, "b"))) == Promise(2, VIEW.view_id, (1, "b"), (0, "a"), without("c", Cause.PROOF))


def test_accepting_is_promising() -> None:
    one = acceptor()
    one.accept(accept((3, "b")))
    assert isinstance(one.prepare(prepare((2, "c"))), Promised)


@pytest.mark.parametrize(
    ("sender", "ballot", "legitimate"),
    [
        ("a", (0, "a"), True),
        ("b", (0, "b"), False),
        ("b", (1, "b"), True),
        ("b", (1, "a"), False),
        ("x", (1, "x"), False),
        ("a", NO_BALLOT, False),
    ],
)
def test_round_zero_is_the_most_seniors_and_ballots_are_their_owners(sender: str, ballot: Ballot, legitimate: bool) -> None:
    assert acceptor().legitimate(sender, ballot) is legitimate


@pytest.mark.parametrize("cause", [Cause.SILENCE, Cause.UNREADY])
def test_no_exclusion_without_proof_within_t_excl_of_the_own_ack(cause: Cause) -> None:
    one = acceptor()
    assert one.wait_for(without("c", cause), {}, {"c": 99.0}, 100.0) == 99.0 + T_EXCL
    assert one.shunned == {"c"}, "from the first request on it is not acked, so that the wait ends"
    assert one.wait_for(without("c", cause), {}, {"c": 99.0}, 99.0 + T_EXCL) == 99.0 + T_EXCL


def test_whom_we_never_acked_we_may_exclude() -> None:
    assert acceptor().wait_for(without("c", Cause.SILENCE), {}, {}, 100.0) == 100.0


@pytest.mark.parametrize("cause", [Cause.PROOF, Cause.LEFT])
def test_proof_and_own_request_need_no_lease(cause: Cause) -> None:
    one = acceptor()
    assert one.wait_for(without("c", cause), {}, {"c": 100.0}, 100.0) == 100.0
    assert one.shunned == set()


def test_an_own_proof_serves_as_well() -> None:
    proofs = {"c": Proof(99.0, "refused", True, 98.9)}
    assert acceptor().wait_for(without("c", Cause.SILENCE), proofs, {"c": 100.0}, 100.0) == 100.0


def test_ones_own_exclusion_needs_no_lease() -> None:
    assert acceptor("c").wait_for(without("c", Cause.SILENCE), {}, {"c": 100.0}, 100.0) == 100.0


def test_the_youngest_ack_decides() -> None:
    proposal = Proposal(VIEW.view_id, 2, (Removal("a", Cause.SILENCE), Removal("c", Cause.UNREADY)))
    assert acceptor().wait_for(proposal, {}, {"a": 98.5, "c": 99.5}, 100.0) == 99.5 + T_EXCL
