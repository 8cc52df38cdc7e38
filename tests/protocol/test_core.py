"""What a member believes of its view as a whole: who coordinates, who comes next, who may be expected to answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from consensus.border import Leave
from consensus.member import COHORT, COHORT_SIZE
from consensus.messages import Accept, EvidenceKind, Gossip, Introduction, JoinRequest, Nack, Ping, Refused, Status, Update
from consensus.progress import Progress
from consensus.protocol.agreement.contact import LOST
from consensus.protocol.detection.stall import Stall
from consensus.protocol.state.core import TOLD_TRAIL, TRAIL, Core
from consensus.protocol.state.inputs import Accusation
from consensus.view import NO_VIEW_ID, Cause, Proposal, Removal, View

from .people import CONFIG, T_EXCL, core_of, machine_in, member, sends, view_of


def test_whoever_is_heard_of_may_be_expected_to_answer_though_it_does_not_ack() -> None:
    """It may have been asked to vote this member out: then it acks it no more, and is needed all the same."""
    machine = machine_in("abc", "b")
    core: Core = machine._core
    for accused in ("a", "c"):
        machine.handle(Accusation(accused, EvidenceKind.SILENCE, "no ack"), 103.0)
    assert core.present(103.0) == {"b"}
    machine.receive("c", member("c").address, Gossip(()), 103.1)
    assert core.present(103.2) == {"b", "c"}
    assert core.present(103.2 + T_EXCL) == {"b"}
    machine.handle(Accusation("c", EvidenceKind.PROOF, "killed"), 103.3)
    assert core.present(103.3) == {"b"}


def test_nothing_is_proposed_without_enough_members_in_sight_and_not_at_once_with_them() -> None:
    machine = machine_in("abcde", "a")
    for accused in "bcd":
        machine.handle(Accusation(accused, EvidenceKind.SILENCE, "no ack"), 103.0)
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
    machine.handle(Accusation("a", EvidenceKind.UNREADY, "did not build its group"), 100.5)
    assert machine.status()["coordinator"] == "b"


@pytest.mark.parametrize(
    ("cohorts", "dead", "coordinator"),
    [
        (("aef", "bg", "c", "d"), "", "a"),
        (("aef", "bg", "c", "d"), "e", "b"),
        (("aef", "bg", "c", "d"), "eg", "c"),
        (("ae", "bf", "cg", "dh"), "efgh", "a"),
    ],
)
def test_who_is_about_to_go_with_its_cohort_does_not_coordinate(cohorts: tuple[str, ...], dead: str, coordinator: str) -> None:
    """One loss is enough for that. Where no cohort is whole any more all who are left stay."""
    facts = {name: ((COHORT, each), (COHORT_SIZE, str(len(each)))) for each in cohorts for name in each}
    members = tuple(replace(member(name), meta=facts[name]) for name in sorted(facts))
    machine = machine_in("d", "d")
    machine._change.adopt(View(2, machine._core.view_id, members, machine._core.view_id), "a", 100.0)
    for name in dead:
        machine.handle(Accusation(name, EvidenceKind.PROOF, "killed"), 100.1)
    assert machine.status()["coordinator"] == coordinator


def test_the_coordinator_and_the_next_two_stand_by() -> None:
    machine = machine_in("abcde", "d")
    assert not machine._core.stands_by()
    machine.handle(Accusation("a", EvidenceKind.PROOF, "killed"), 100.1)
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


def test_of_lost_members_the_latest_are_looked_for() -> None:
    """However many views removed them."""
    names = "".join(chr(ord("a") + index) for index in range(LOST + 4))
    machine = machine_in(names, "a")
    for epoch, left in ((2, names[:4]), (3, names[:2])):
        machine._change.adopt(view_of(left, epoch, machine._core.view_id), "a", 100.0 + epoch)
    found = [each.id for each in machine._contact.lost]
    assert found == [*names[6:], *names[2:4]]


def chain(count: int) -> list[View]:
    views = [view_of("ab", origin="origin")]
    while len(views) < count:
        views.append(view_of("ab", len(views) + 1, views[-1].view_id, "origin"))
    return views


def test_a_whole_view_is_told_with_those_before_it_as_far_as_they_are_known() -> None:
    core, views = core_of("a"), chain(TOLD_TRAIL + 3)
    for view in views[:4]:
        core.follow(view)
    assert core.ancestors == tuple(view.view_id for view in reversed(views[:3]))
    for view in views[4:]:
        core.follow(view)
    assert core.ancestors == tuple(view.view_id for view in reversed(views[2:-1]))
    latecomer = core_of("b")
    latecomer.follow(views[4], tuple(view.view_id for view in reversed(views[2:4])))
    assert latecomer.ancestors == (views[3].view_id, views[2].view_id), "what it was told, it tells"
    latecomer.follow(views[6])
    assert latecomer.ancestors == (), "it lacks the one before"


def test_who_acts_follows_what_comes_from_there_and_not_from_another_view_of_that_epoch() -> None:
    core, views = core_of("a"), chain(5)
    for view in views[:2]:
        core.follow(view)
    core.active = views[1]
    before = tuple(view.view_id for view in reversed(views[:4]))
    assert core.descends(views[4], before)
    assert not core.descends(views[4], (before[0], before[1], "another", before[3]))
    assert core.descends(views[4], before[:2]), "nobody knows"
    assert core.descends(views[2], ())
    assert not core.descends(view_of("ab", 3, "another", "origin"), ())


def test_in_a_large_view_who_is_about_to_be_taken_for_silent_is_suspected_by_several() -> None:
    machine = machine_in("abcdefgh", "a", config=replace(CONFIG, mesh_limit=4))
    core = machine._core

    def suspect(by: str) -> None:
        machine.receive(by, member(by).address, Gossip((Update("h", Status.SUSPECT, 0, by),), direct=True), 100.5)

    assert core.crowded and not core.unstable
    suspect("b")
    assert not core.unstable
    for by in "cde":
        suspect(by)
    assert core.unstable
    machine.handle(Accusation("h", EvidenceKind.SILENCE, "no ack"), 103.0)
    assert not core.unstable, "it is taken for silent by now"


def test_an_applicant_that_was_acked_is_voted_out_under_the_lease_once_it_is_a_member() -> None:
    """However many views came between: what it heard from us then may make it discount us."""
    machine = machine_in("abc", "b")
    machine.receive("j", member("j").address, Ping(1, "b", 0, NO_VIEW_ID), 100.5)
    first = machine._core.view
    assert first is not None
    second = view_of("abc", 2, first.view_id)
    third = view_of("abcj", 3, second.view_id)
    machine._change.adopt(second, "a", 100.6)
    machine._change.adopt(third, "a", 100.7)
    out = Proposal(third.view_id, 4, (Removal("j", Cause.SILENCE),))
    machine.receive("a", member("a").address, Accept(4, third.view_id, (0, "a"), out), 100.8)
    assert not machine._change.voter.voted
    machine.tick(100.5 + T_EXCL - 0.01)
    assert not machine._change.voter.voted
    machine.tick(100.5 + T_EXCL + 0.01)
    assert machine._change.voter.voted


def test_who_introduces_its_view_says_whether_it_acts_there() -> None:
    """Whoever hears of a view that acts, and cannot come after its own, stops."""
    machine = machine_in("abc", "a")

    def met(now: float) -> Introduction:
        machine.receive("z", member("z").address, Ping(1, "a", 1, "another"), now)
        [sent] = sends(machine.drain(), Introduction)
        assert isinstance(sent.message, Introduction)
        return sent.message

    assert met(100.5).acts
    assert machine.view is not None
    machine._change.adopt(view_of("abc", 2, machine.view.view_id), "a", 101.0)
    machine.drain()
    assert not met(101.5).acts


def test_the_dead_are_gone_once_a_view_is_without_them() -> None:
    """As members of the view they are still asked for what they may have promised."""
    core, old = core_of("a"), view_of("abc")
    core.evidence.prove("b", "refused", 100.0, 100.0)
    core.judge_anew(old, 100.0)
    assert core.gone == frozenset()
    core.judge_anew(view_of("ac", 2, old.view_id), 100.0)
    assert core.gone == frozenset("b")


def test_helpers_are_neither_suspects_nor_the_one_to_be_reached() -> None:
    for crowd in (False, True):
        machine = machine_in("abcdef", "a", config=replace(CONFIG, mesh_limit=4 if crowd else 100))
        core = machine._core
        machine.receive("b", member("b").address, Gossip((Update("f", Status.SUSPECT, 0, "b"),), direct=True), 100.5)
        found = {each.id for _ in range(30) for each in core.some(2, "e")}
        assert found == set("bcd"), crowd
        assert max(len(core.some(2, "e")) for _ in range(10)) == 2


def test_nobody_is_senior_where_there_is_no_view() -> None:
    assert core_of("a").seniors() == []


def test_who_has_ended_a_call_is_not_awaited_in_it() -> None:
    """The others may still be on their way out of it. Nor is one in a call awaited there."""
    core = core_of("a")
    stall = Stall(core)
    stall.received("b", Progress(4, 5))
    stall.received("c", Progress(3, 4))
    for own, awaited in ((Progress(5, 0), False), (Progress(4, 5), False), (Progress(4, 0), True)):
        core.progress = own
        assert stall.awaited is awaited, own


def test_whoever_rests_after_a_call_waits_for_nobody_in_it() -> None:
    """A backup worker may have spoken for this member there, so that the others are ahead, and at work on their next batch."""
    core = core_of("a")
    core.view = core.active = view_of("abc")
    core.progress = Progress(4, 0)
    stall = Stall(core)
    for name, progress in (("b", Progress(5, 5, 100.0)), ("c", Progress(5, 0, 100.0))):
        stall.received(name, progress)
    assert not stall.awaited and stall.since() is None
    stall.received("b", Progress(4, 5, 100.0))
    stall.received("c", Progress(4, 5, 101.0))
    assert stall.awaited and stall.since() == 101.0


@pytest.mark.parametrize(
    ("own", "active", "since"),
    [
        (Progress(4, 0), True, 101.0),
        (Progress(4, 5), True, None),  # in that call, too
        (Progress(4, 0), False, None),  # nobody can enter a call
        (Progress(0, 0), True, None),  # before its first call it may take any time
        (Progress(0, 1), True, None),
    ],
)
def test_only_who_is_outside_of_a_call_of_an_active_view_keeps_the_others_waiting(
    own: Progress, active: bool, since: float | None
) -> None:
    core = core_of("a")
    core.view = view_of("abc")
    core.active = core.view if active else None
    core.progress = own
    stall = Stall(core)
    for number, name in enumerate("bc"):
        stall.received(name, Progress(own.finished, own.finished + 1, 100.0 + number))
    assert stall.since() == since


def test_who_has_sent_its_last_message_tells_itself_nothing_either() -> None:
    core = core_of("a")
    core.outbox.send(core.member, Nack(1))
    core.outbox.close()
    assert core.outbox.take_own() is None


@pytest.mark.parametrize("ended", [False, True])
def test_the_last_member_tells_who_waits_that_the_job_has_ended(ended: bool) -> None:
    """If it only leaves the job has not come to its end: another one may found it anew."""
    machine, joiner = machine_in("a", "a"), member("x")
    machine.receive("x", joiner.address, JoinRequest(joiner, True, CONFIG.terms), 100.1)
    machine.drain()
    machine.handle(Leave(None, ended), 100.2)
    effects = sends(machine.drain(), Refused)
    told = [(effect.address, effect.message.ended) for effect in effects if isinstance(effect.message, Refused)]
    assert told == [(joiner.address, True)] * ended
    assert machine.stopped is not None
