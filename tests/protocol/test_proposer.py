"""Which ballot a proposer begins with, and when a second one is needed."""

from __future__ import annotations

from consensus.border import Flushed
from consensus.messages import Accept, Accepted, Ack, Ballot, Install, Message, Ping, Prepare, Promise
from consensus.messages.reports import Reports
from consensus.protocol.agreement.proposer import STANDS_IN
from consensus.protocol.machine import Machine
from consensus.protocol.state.effects import Effect
from consensus.protocol.state.inputs import Checked

from .people import CONFIG, machine_in, member, sends, view_of


def give(machine: Machine, sender: str, message: Message, now: float) -> list[Effect]:
    machine.receive(sender, member(sender).address, message, now)
    return machine.drain()


def asks(machine: Machine, dead: str, now: float) -> list[Effect]:
    """What it sends once ``dead`` is proven so."""
    machine.handle(Checked(dead, False, "refused"), now)
    machine.tick(now + CONFIG.settle_max)
    return machine.drain()


def test_the_most_senior_member_asks_for_votes_at_once_in_every_epoch() -> None:
    """The ballots that it needed for the view before say nothing about this one."""
    machine, parent = machine_in("abcde", "a"), view_of("abcde")
    ballots: list[Ballot] = []
    for epoch, dead in enumerate("edc", 2):
        effects = asks(machine, dead, 100.0 + epoch)
        assert not sends(effects, Prepare)
        ballots += {send.message.ballot for send in sends(effects, Accept)}  # type: ignore[attr-defined]
        parent = view_of("abcde"[: 6 - epoch], epoch, parent.view_id, view_of("abcde").cluster)
        machine._change.adopt(parent, "a", 100.9 + epoch)
    assert ballots == [(0, "a")] * 3


def newcomer_dies(*, voting: bool) -> tuple[Machine, list[Effect]]:
    """A view without "a", for which "b" needs "j" discounted: that one has just come in, and dies before or after the votes
    are asked for. What "b" sends once all votes are there.
    """
    machine, first = machine_in("abc", "b"), view_of("abc")
    view = view_of("abcj", 2, first.view_id, first.cluster)
    machine._change.adopt(view, "a", 100.0)
    machine.tick(100.5)
    ping = next(send.message for send in sends(machine.drain(), Ping) if send.message.target == "a")  # type: ignore[attr-defined]
    give(machine, "a", Ack(ping.seq, "a", 2, view.view_id), 100.51)  # type: ignore[attr-defined]
    effects = asks(machine, "a", 100.6)
    ballot = next(send.message.ballot for send in sends(effects, Prepare))  # type: ignore[attr-defined]
    now = 100.7 + CONFIG.settle_max
    promise = Promise(3, view.view_id, ballot)
    if voting:
        give(machine, "j", promise, now)
        give(machine, "c", promise, now)
        machine.handle(Checked("j", False, "refused"), now + 0.1)
    else:
        machine.handle(Checked("j", False, "refused"), now)
        give(machine, "c", promise, now + 0.1)
    machine.handle(Flushed(3, b"B"), now + 0.2)
    machine.drain()
    return machine, give(machine, "c", Accepted(3, view.view_id, ballot, b"C"), now + 0.3)


def test_a_newcomer_that_was_dead_before_the_votes_were_asked_for_costs_no_second_ballot() -> None:
    machine, effects = newcomer_dies(voting=False)
    assert not sends(effects, Prepare)
    assert machine.view is not None and machine.view.ids == ("b", "c")


def test_a_newcomer_that_died_after_the_votes_were_asked_for_costs_another_ballot() -> None:
    """Whoever voted may have voted for the newcomer's own proposal since."""
    machine, effects = newcomer_dies(voting=True)
    assert {send.message.ballot[0] for send in sends(effects, Prepare)} == {2}  # type: ignore[attr-defined]
    assert machine.view is not None and machine.view.epoch == 2


def test_votes_for_another_ballot_or_of_a_stranger_count_for_nothing() -> None:
    """A late vote for a ballot that was given up says nothing about the value of this one."""
    machine, view_id = machine_in("abc", "a"), view_of("abc").view_id
    requests = [send.message for send in sends(asks(machine, "c", 100.1), Accept)]
    [ballot] = {request.ballot for request in requests if isinstance(request, Accept)}
    machine.handle(Flushed(2, b"A"), 100.7)
    machine.drain()
    for sender, other, parent_id in (("b", (7, "a"), view_id), ("b", ballot, "another"), ("x", ballot, view_id)):
        effects = give(machine, sender, Accepted(2, parent_id, other, b"wrong"), 100.7)
        assert not sends(effects, Install), (sender, other, parent_id)
        assert machine.view == view_of("abc"), (sender, other, parent_id)
    told = [send.message for send in sends(give(machine, "b", Accepted(2, view_id, ballot, b"B"), 100.8), Install)]
    assert {install.reports for install in told if isinstance(install, Install)} == {Reports.of([b"A", b"B"])}
    assert machine.last_change()["reports"].keys() == {"a", "b"}


def test_where_members_vote_nobody_stands_in_for_a_coordinator_that_nothing_is_held_against() -> None:
    """Two who propose would only outbid each other; if the coordinator is gone, the next one is it."""
    machine = machine_in("abc", "b")
    machine.handle(Checked("c", False, "refused"), 100.1)
    for turn in range(4):
        machine._change.proposer.consider(100.2 + turn * STANDS_IN)
        assert not sends(machine.drain(), Prepare)
