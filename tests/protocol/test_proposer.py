"""Which ballot a proposer begins with, and when a second one is needed."""

from __future__ import annotations

from consensus.border import Flushed
from consensus.messages import Accept, Accepted, Ack, Ballot, Message, Ping, Prepare, Promise
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
