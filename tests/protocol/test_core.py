"""What a member believes of its view as a whole: who coordinates, who comes next, who may be expected to answer."""

from __future__ import annotations

from consensus.messages import EvidenceKind, Gossip
from consensus.protocol.contact import LOST
from consensus.protocol.core import TRAIL, Core

from .people import T_EXCL, core_of, machine_in, member, view_of


def test_whoever_is_heard_of_may_be_expected_to_answer_though_it_does_not_ack() -> None:
    """It may have been asked to vote this member out: then it acks it no more, and is needed all the same."""
    machine = machine_in("abc", "b")
    core: Core = machine._core
    for accused in ("a", "c"):
        machine.evidence(accused, EvidenceKind.SILENCE, "no ack", 103.0)
    assert core.present(103.0) == {"b"}
    machine.receive("c", member("c").address, Gossip(()), 103.1)
    assert core.present(103.2) == {"b", "c"}
    assert core.present(103.2 + T_EXCL) == {"b"}
    machine.evidence("c", EvidenceKind.PROOF, "killed", 103.3)
    assert core.present(103.3) == {"b"}


def test_nothing_is_proposed_without_enough_members_in_sight_and_not_at_once_with_them() -> None:
    machine = machine_in("abcde", "a")
    for accused in "bcd":
        machine.evidence(accused, EvidenceKind.SILENCE, "no ack", 103.0)
    machine.tick(104.0)
    assert machine._change.proposer.attempt is None
    assert machine.changing, "it cannot act on its view with confidence"
    under_way = machine.status()["under_way"]
    assert under_way["waits_for"] == ["b", "c", "d"]
    assert "bring their hosts back" in under_way["text"]
    machine.receive("c", member("c").address, Gossip(()), 104.1)
    machine.tick(104.2)
    assert machine._change.proposer.attempt is None, "others may be on their way back, too"
    machine.tick(105.0)
    assert machine._change.proposer.attempt is not None


def test_an_unready_member_does_not_coordinate() -> None:
    machine = machine_in("abc", "b")
    assert machine.status()["coordinator"] == "a"
    machine.evidence("a", EvidenceKind.UNREADY, "did not build its group", 100.5)
    assert machine.status()["coordinator"] == "b"


def test_the_coordinator_and_the_next_two_stand_by() -> None:
    machine = machine_in("abcde", "d")
    assert not machine._core.stands_by()
    machine.evidence("a", EvidenceKind.PROOF, "killed", 100.1)
    assert machine._core.stands_by()


def test_the_trail_of_views_is_bounded() -> None:
    core = core_of("a")
    for epoch in range(1, 3 * TRAIL):
        core.follow(view_of("ab", epoch, f"{epoch}", "origin"))
    assert len(core.trail) == TRAIL and max(core.trail) == 3 * TRAIL - 1


def test_lost_members_are_bounded_and_forgotten_where_another_lives() -> None:
    names = "".join(chr(ord("a") + index) for index in range(2 * LOST))
    machine = machine_in(names, "a")
    view = view_of("ab", 2, machine._core.view_id)
    machine._change.adopt(view, "a", 101.0)
    lost = machine._contact.lost
    assert len(lost) == LOST
    machine._contact.gone(lost[0].id)
    assert lost[0] not in machine._contact.lost
