"""Whoever turns out to hold another view than this member: who is asked, who is told, who is left alone."""

from __future__ import annotations

import itertools
import logging
from math import inf
from random import Random

import pytest

from consensus.border import Flushed
from consensus.config import Config, Policy
from consensus.errors import FoundedApartError, OvertakenError
from consensus.member import Member
from consensus.messages import (
    Accepted,
    Chosen,
    Claim,
    Evidence,
    EvidenceKind,
    Gossip,
    Install,
    Introduction,
    JoinReply,
    LeaveRequest,
    Message,
    Overtaken,
    Ping,
    PingRequest,
    Pull,
    Status,
    Stranger,
    Update,
)
from consensus.messages.reports import Reports
from consensus.protocol.agreement.contact import INTRODUCE_EVERY, LOOK_AT_MOST, LOOK_FOR, TELLS, TOLD
from consensus.protocol.machine import Machine
from consensus.protocol.state.effects import Ask, Note
from consensus.protocol.state.inputs import Checked
from consensus.store_requests import ReadViews
from consensus.view import Delta, View

from .people import machine_in, member, sends, view_of
from .test_machine import about_to_install

NOW = 100.1
FIRST = view_of("abc")
NEXT = view_of("ab", 2, FIRST.view_id, FIRST.cluster)


def answers(machine: Machine, *kinds: type[Message]) -> list[tuple[str, type[Message]]]:
    """To whom it has said something of these kinds, and what."""
    effects = machine.drain()
    return [(chr(send.address[1] - 1000), kind) for kind in kinds for send in sends(effects, kind)]


def pointed(machine: Machine, view: View | None, coordinator: Member | None) -> list[tuple[str, type[Message]]]:
    machine.drain()
    machine._change.contact.pointed(view, coordinator, NOW)
    return answers(machine, Pull, Introduction)


def test_a_newer_view_of_its_cluster_is_asked_for() -> None:
    assert pointed(machine_in("abc", "b"), NEXT, member("a")) == [("a", Pull)]


def test_its_own_view_or_an_older_one_is_no_news() -> None:
    machine = machine_in("abc", "b")
    assert pointed(machine, FIRST, member("a")) == []
    machine._change.adopt(NEXT, "a", NOW)
    assert pointed(machine, FIRST, member("a")) == []


@pytest.mark.parametrize("other", [view_of("xy"), view_of("xb"), view_of("ac", 2, FIRST.view_id, FIRST.cluster)], ids=str)
def test_who_acts_in_another_chain_or_without_it_is_told_who_it_is(other: View) -> None:
    assert pointed(machine_in("abc", "b"), other, member("x")) == [("x", Introduction)]


def test_who_leads_a_view_that_it_is_not_in_has_nothing_to_say_about_that() -> None:
    """It leaves, and brings the others to their feet first."""
    machine = machine_in("abc", "c")
    machine._change.adopt(NEXT, "c", NOW)
    assert pointed(machine, NEXT, member("a")) == []


@pytest.mark.parametrize(("view", "coordinator"), [(None, member("a")), (NEXT, None), (NEXT, member("b")), (None, None)])
def test_without_a_view_and_somebody_else_in_it_nothing_is_said(view: View | None, coordinator: Member | None) -> None:
    assert pointed(machine_in("abc", "b"), view, coordinator) == []


def test_who_has_no_view_has_nothing_to_compare() -> None:
    machine = Machine(Config(), member("x"), machine_in("a", "a")._core.rng, founder=False, introducers=())
    machine.start(NOW)
    assert pointed(machine, NEXT, member("a")) == []


def test_a_ping_alone_tells_who_is_ahead() -> None:
    """It comes before any answer to a ping of its own."""
    machine = machine_in("abc", "b")
    machine.receive("a", member("a").address, Ping(1, "b", 2, NEXT.view_id), NOW)
    assert answers(machine, Pull) == [("a", Pull)]


@pytest.mark.parametrize(
    "report",
    [
        Evidence("elsewhere", "c", EvidenceKind.HINT),
        PingRequest(7, member("c"), ()),
        Gossip((Update("c", Status.SUSPECT, 0, "x"),), direct=True),
    ],
    ids=lambda report: type(report).__name__,
)
def test_who_reports_from_outside_is_told_of_this_view(report: Message) -> None:
    """Members of the view are not."""
    machine = machine_in("abc", "b")
    machine.receive("x", member("x").address, report, NOW)
    assert answers(machine, Introduction) == [("x", Introduction)]
    machine.receive("a", member("a").address, report, NOW)
    assert answers(machine, Introduction) == []


@pytest.mark.parametrize(("policy", "told"), [(Policy.MAJORITY, [("c", Introduction)]), (Policy.ANY, [])])
def test_of_two_lists_for_one_epoch_only_one_can_be_active(
    policy: Policy, told: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who installs the other one is told which this member follows; under ``any`` both may be."""
    machine, install = about_to_install()
    view = install.view
    assert view is not None
    machine.receive("a", member("a").address, Chosen(view, "a"), NOW)
    machine.drain()
    monkeypatch.setattr(machine._core, "config", Config(policy=policy))
    other = View(2, FIRST.view_id, (member("b"), member("c")), view.cluster)
    machine.receive("c", member("c").address, Install(other, None, (9, "c"), Reports.of([b"B", b"C"])), NOW)
    assert answers(machine, Introduction) == told


def test_of_another_cluster_for_the_same_epoch_nothing_is_said() -> None:
    machine, install = about_to_install()
    assert install.view is not None
    machine.receive("a", member("a").address, Chosen(install.view, "a"), NOW)
    machine.drain()
    other = View(2, FIRST.view_id, (member("b"), member("c")), "another cluster")
    machine.receive("c", member("c").address, Install(other, None, (9, "c"), Reports.of([b"B", b"C"])), NOW)
    assert answers(machine, Introduction) == []


def test_who_was_left_behind_in_silence_is_looked_for_for_a_while() -> None:
    """It may live on the other side of a cut, and would not look itself."""
    machine = machine_in("abc", "a")
    machine._change.adopt(NEXT, "a", NOW)
    contact, now, asked = machine._change.contact, NOW, []
    while now < NOW + 2 * LOOK_FOR:
        contact.tick(now)
        asked += [now for send in sends(machine.drain(), Ping) if send.message.target == "c"]  # type: ignore[union-attr]
        now += 1.0
    assert asked[0] <= NOW + INTRODUCE_EVERY + 1.0
    assert LOOK_FOR / 2 <= asked[-1] - NOW <= LOOK_FOR
    assert max(later - former for former, later in itertools.pairwise(asked)) <= LOOK_AT_MOST + 1.0


def test_whom_it_acked_a_moment_ago_is_remembered_though_a_view_is_without_it() -> None:
    """Its lease runs on, should another list for that epoch turn out to be the one that can act."""
    machine = machine_in("abc", "a")
    machine._core.acked = {"b": 0.0, "c": NOW, "x": NOW - 3 * machine._core.config.exclude_after}
    machine._change.adopt(NEXT, "a", NOW)
    assert machine._core.acked == {"b": 0.0, "c": NOW}


def test_only_the_coordinator_looks_for_whom_silence_left_behind() -> None:
    machine = machine_in("abc", "b")
    machine._change.adopt(NEXT, "a", NOW)
    contact = machine._change.contact
    assert contact.lost and contact.deadline() == inf
    contact.tick(NOW + INTRODUCE_EVERY + 1.0)
    assert not sends(machine.drain(), Ping)


def test_whoever_died_or_left_is_not_looked_for() -> None:
    """It is on no other side."""
    machine = machine_in("abcde", "a")
    machine.handle(Checked("c", False, "refused"), NOW)
    machine.receive("d", member("d").address, LeaveRequest(machine._core.view_id, "d"), NOW)
    machine._change.adopt(view_of("ab", 2, FIRST.view_id, FIRST.cluster), "a", NOW)
    machine.drain()
    machine.tick(NOW + INTRODUCE_EVERY)
    pinged = {send.address for send in sends(machine.drain(), Ping)}
    assert pinged == {member(name).address for name in "be"}


def test_the_dead_introduce_nobody() -> None:
    """A word that is underway for long: what they acted in has ended with them."""
    machine = machine_in("abc", "b")
    machine._core.gone = frozenset("c")
    ahead = view_of("ac", 2, FIRST.view_id, FIRST.cluster)
    machine._change.contact.on_introduction("c", Introduction(ahead, member("a"), Claim(0, 2, "a"), True), NOW)
    assert machine._core.stopped is None
    machine._core.gone = frozenset()
    machine._change.contact.on_introduction("c", Introduction(ahead, member("a"), Claim(0, 2, "a"), True), NOW)
    assert machine._core.stopped is not None


def behind(claims: Claim, own: str = "abcd") -> Machine:
    """Under ``any``, one of four whom "a" and "d" have left behind, as it hears from them."""
    machine = machine_in(own, "b", config=Config(policy=Policy.ANY))
    view = view_of("ad", 2, machine._core.view_id, view_of(own).cluster)
    machine._change.contact.on_introduction("a", Introduction(view, member("a"), claims, True), NOW)
    return machine


def test_where_all_go_on_the_larger_part_does_not_give_way() -> None:
    larger, smaller = behind(Claim(0, 1, "a")), behind(Claim(0, 2, "a"))
    assert larger._core.stopped is None
    assert set(larger._core.evidence.unready) == set("ad"), "they have gone, and the others go on without them"
    assert smaller._core.stopped is not None


def test_more_steps_weigh_more_than_more_members() -> None:
    assert behind(Claim(1, 1, "a"))._core.stopped is not None


def test_under_any_whom_it_cannot_reach_does_not_count_as_its_part() -> None:
    machine = machine_in("abcd", "b", config=Config(policy=Policy.ANY))
    machine.receive("d", member("d").address, Gossip((Update("c", Status.SUSPECT, 0, "d"),), direct=True), NOW)
    view = view_of("ad", 2, machine._core.view_id, view_of("abcd").cluster)
    machine._change.contact.on_introduction("a", Introduction(view, member("a"), Claim(0, 1, "a"), True), NOW)
    assert machine._core.stopped is not None


def test_a_member_in_a_view_that_never_was_here_is_removed_only_where_all_go_on() -> None:
    for policy, accused in ((Policy.ANY, {"c"}), (Policy.MAJORITY, set())):
        machine = machine_in("abc", "b", config=Config(policy=policy))
        machine._change.adopt(View(2, FIRST.view_id, FIRST.members, FIRST.cluster), "a", NOW)
        machine.drain()
        machine._change.contact.compare("c", member("c").address, 2, "of another chain", NOW)
        assert set(machine._core.evidence.unready) == accused
        assert answers(machine, Introduction) == [("c", Introduction)]


def test_two_views_that_act_in_one_epoch_are_a_fork_and_said_so() -> None:
    machine = machine_in("abc", "b")
    other = view_of("cd", 1, origin=FIRST.cluster)
    machine._change.contact._acts_elsewhere(other)
    assert [(each.level, each.kind) for each in machine.drain() if isinstance(each, Note)] == [(logging.CRITICAL, "fork")]
    assert machine._core.stopped is None


@pytest.mark.parametrize(
    ("names", "out"),
    [("ac", True), ("abc", False), ("cd", False)],
    ids=["without this member", "with it", "with nobody of its view"],
)
def test_who_hears_of_a_view_that_acts_where_its_own_never_can(names: str, out: bool) -> None:
    machine = machine_in("abc", "b")
    machine._change.adopt(NEXT, "a", NOW)
    machine.drain()
    acts = Introduction(view_of(names, 2, FIRST.view_id, FIRST.cluster), member(names[0]), Claim(0, 2, "a"), True)
    machine._change.contact.on_introduction("d", acts, NOW)
    assert (machine._core.stopped is not None) is out
    assert not [each for each in machine.drain() if isinstance(each, Note) and each.level == logging.CRITICAL]


def test_another_cluster_hears_from_us_by_its_first_two() -> None:
    machine = machine_in("abc", "b")
    machine.drain()
    machine._change.contact.left_out(view_of("xyz", 2, "elsewhere"), NOW)
    assert answers(machine, Introduction) == [("x", Introduction), ("y", Introduction)]


def test_where_a_store_decides_two_sides_do_not_contest() -> None:
    config = Config(policy=Policy.STORAGE, storage="file:///nowhere")
    machine = machine_in("abc", "b", config=config)
    rival = Introduction(view_of("xy", 2, "elsewhere"), member("x"), Claim(5, 9, "x"), True)
    machine._change.contact.on_introduction("x", rival, NOW)
    asked = [effect.request for effect in machine.drain() if isinstance(effect, Ask)]
    assert any(isinstance(request, ReadViews) for request in asked)
    assert machine._core.stopped is None and machine._change.contact._giving_in is None


def test_a_view_whose_parent_is_not_here_is_pulled() -> None:
    machine = machine_in("abc", "b")
    later = view_of("ac", 3, NEXT.view_id, FIRST.cluster)
    delta = Delta.between(NEXT, later)
    assert delta is not None
    machine.drain()
    machine.receive("a", member("a").address, Chosen(None, "a", delta), NOW)
    assert answers(machine, Pull) == [("a", Pull)]
    delta = Delta.between(FIRST, NEXT)
    machine.receive("a", member("a").address, Chosen(None, "a", delta), NOW)
    assert answers(machine, Pull) == [], "it can tell that one itself"


def test_of_another_list_for_its_own_epoch_nothing_is_pulled() -> None:
    """Whoever sent it could tell of nothing newer."""
    machine = machine_in("abc", "b")
    machine._change.adopt(NEXT, "a", NOW)
    machine.drain()
    parent = view_of("abd")
    delta = Delta.between(parent, view_of("ab", 2, parent.view_id, FIRST.cluster))
    assert delta is not None
    machine.receive("a", member("a").address, Chosen(None, "a", delta), NOW)
    assert answers(machine, Pull) == []


@pytest.mark.parametrize(
    ("policy", "other", "kind", "says"),
    [
        (Policy.ANY, view_of("c", 2, FIRST.view_id, FIRST.cluster), OvertakenError, "cut in two"),
        (Policy.ANY, view_of("xy"), OvertakenError, "two clusters of the job met"),
        (Policy.MAJORITY, view_of("xy"), FoundedApartError, "were founded apart"),
    ],
)
def test_the_side_that_stops_says_why(policy: Policy, other: View, kind: type[Exception], says: str) -> None:
    machine = machine_in("abc", "b", config=Config(policy=policy))
    machine._change.adopt(NEXT, "a", NOW)
    machine.receive("a", member("a").address, Overtaken(machine._core.view_id, other), NOW)
    assert isinstance(machine.stopped, kind) and says in str(machine.stopped)


def test_a_joiner_that_meets_two_sides_tells_each_of_the_other() -> None:
    machine = Machine(Config(), member("j"), Random(1), founder=False, introducers=(("10.0.0.1", 1),))
    machine.start(NOW)

    def told(view: View) -> list[tuple[str, type[Message]]]:
        machine.drain()
        machine.receive(view.ids[0], member(view.ids[0]).address, JoinReply(view, view.members[0]), NOW)
        return answers(machine, JoinReply)

    assert told(FIRST) == [] == told(NEXT), "the same side, further on"
    assert sorted(told(view_of("xy"))) == [("a", JoinReply), ("x", JoinReply)]


@pytest.mark.parametrize("own", ["a", "b"])
def test_only_the_coordinator_calls_where_the_cluster_may_not_be_known(own: str) -> None:
    machine, told = machine_in("abc", own), 0
    for step in range(5):  # before the others seem silent
        machine.tick(NOW + 0.1 * step)
        told += sum(send.address == ("10.0.0.1", 1) for send in sends(machine.drain(), JoinReply))
    assert (told > 0) is (own == "a")


def test_the_coordinator_calls_at_the_addresses_of_the_dead() -> None:
    """Perhaps the others went on without it: a new lifetime there asks it, and so tells it."""
    machine, told = machine_in("abc", "a"), set()
    machine.handle(Checked("c", False, "refused"), NOW)
    for step in range(5):
        machine.tick(NOW + 0.1 * step)
        told |= {send.address for send in sends(machine.drain(), JoinReply)}
    assert told == {("10.0.0.1", 1), member("c").address}


def stranger_hears(machine: Machine, now: float) -> bool:
    """Whether somebody who pings from another view is told of this member's."""
    machine.drain()
    machine.receive("z", member("z").address, Ping(1, machine.member.id, 1, "another"), now)
    return answers(machine, Introduction) == [("z", Introduction)]


def test_a_side_that_gives_way_says_so_a_few_times_before_it_ends_and_claims_nothing_meanwhile() -> None:
    """Each time has its pause: words may be lost, and whoever heard the claim might stop for a side that is none."""
    machine = machine_in("abc", "a", config=Config(policy=Policy.ANY))
    resend, said = machine._core.config.resend, []
    assert stranger_hears(machine, NOW - INTRODUCE_EVERY)
    machine._change.contact.on_introduction("x", Introduction(view_of("xyz"), member("x"), Claim(5, 3, "x"), True), NOW)
    now = NOW
    while machine.stopped is None:
        said += [(send.address, now) for send in sends(machine.drain(), Overtaken)]
        assert not stranger_hears(machine, now)
        due = machine.next_deadline()
        assert due is not None
        machine.tick(now := due)
    assert isinstance(machine.stopped, OvertakenError) and now == pytest.approx(NOW + TELLS * resend)
    for name in "bc":
        times = [time for address, time in said if address == member(name).address]
        assert times == pytest.approx([NOW + turn * resend for turn in range(TELLS)])


def test_a_view_that_lacks_reports_is_told_to_nobody() -> None:
    """A leaver in its last call would hear of it, and end the group in which the others still are."""
    machine = machine_in("abc", "a")
    view_id = FIRST.view_id
    machine.receive("c", member("c").address, LeaveRequest(view_id, "c"), NOW)
    machine.handle(Flushed(2, b"A"), NOW)
    machine.receive("c", member("c").address, Accepted(2, view_id, (0, "a"), b"C"), NOW)
    assert machine.view == NEXT and not stranger_hears(machine, NOW)
    machine.receive("b", member("b").address, Accepted(2, view_id, (0, "a"), b"B"), NOW)
    assert stranger_hears(machine, NOW)


@pytest.mark.parametrize("names", ["bc", "ac"])
def test_an_install_of_a_view_that_does_not_come_from_ours_is_not_followed(names: str) -> None:
    """With this member in it its sender is told so, as that view can never be active; without this member it is out."""
    machine = machine_in("abc", "b")
    other = View(3, "an unknown parent", tuple(map(member, names)), FIRST.cluster)
    install = Install(other, None, (9, "c"), Reports.of([b"1", b"2"]), trail=(other.parent_id, "another first view"))
    machine.receive("c", member("c").address, install, NOW)
    assert machine.view == FIRST
    told = answers(machine, Introduction)
    assert (told, machine.stopped is None) == (([("c", Introduction)], True) if "b" in names else ([], False))


@pytest.mark.parametrize(("policy", "told"), [(Policy.MAJORITY, ["x"]), (Policy.ANY, [])])
def test_who_follows_another_list_for_this_epoch_is_told_of_ours(policy: Policy, told: list[str]) -> None:
    """Only one of the two can ever be active: each side may learn that it is not its own."""
    machine = machine_in("abcd", "b", config=Config(policy=policy))
    parent = view_of("abcd")
    machine._change.adopt(view_of("abc", 2, parent.view_id, parent.cluster), "a", NOW)
    machine.drain()
    twin = view_of("cd", 2, parent.view_id, parent.cluster)
    met = Introduction(twin, member("x"), Claim(0, 2, "c"), acts=False)
    machine._change.contact.on_introduction("d", met, NOW)
    assert [name for name, _ in answers(machine, Introduction)] == told


def test_who_was_left_behind_is_looked_for_no_more_once_another_lifetime_has_its_address() -> None:
    machine = machine_in("abc", "a")
    machine._change.adopt(NEXT, "a", NOW)
    machine.drain()

    def looks(now: float) -> list[Ping]:
        machine.tick(now)
        pings = [send.message for send in sends(machine.drain(), Ping)]
        return [ping for ping in pings if isinstance(ping, Ping) and ping.target == "c"]

    [ping] = looks(NOW + INTRODUCE_EVERY)
    machine.receive("x", member("c").address, Stranger(ping.seq, "c"), NOW + INTRODUCE_EVERY + 0.01)
    assert not [each for step in range(1, 40) for each in looks(NOW + INTRODUCE_EVERY + 0.5 * step)]


def test_of_the_addresses_that_it_told_who_it_is_it_remembers_the_latest() -> None:
    """So many strangers take no more memory; whoever is forgotten is only told once more."""
    machine = machine_in("abc", "b")
    machine.drain()
    addresses = [("10.0.0.2", 1 + number) for number in range(TOLD + 1)]

    def tells(number: int) -> bool:
        machine._change.contact.introduce(addresses[number], NOW)
        return [send.address for send in sends(machine.drain(), Introduction)] == [addresses[number]]

    assert all(tells(number) for number in range(TOLD))
    assert not tells(0), "there was room for all of them"
    assert tells(TOLD)
    assert tells(0)
    assert not tells(2), "one is forgotten for each new one"


def test_a_stranger_that_pulls_is_told_who_acts_here_and_gets_no_view() -> None:
    machine = machine_in("abc", "b")
    machine._change.adopt(NEXT, "a", NOW)
    machine.drain()
    for name, told in (("x", Introduction), ("c", Introduction), ("a", Chosen)):
        machine.receive(name, member(name).address, Pull(1, FIRST.view_id), NOW)
        assert answers(machine, Introduction, Chosen) == [(name, told)]


def test_of_two_views_of_one_chain_the_older_one_is_caught_up() -> None:
    """Whoever introduces itself with a newer view is asked for it, and told of ours if its own is the older one."""
    machine = machine_in("abc", "b")
    machine.drain()
    machine.receive("a", member("a").address, Introduction(NEXT, member("a"), Claim(0, 2, "a"), True), NOW)
    assert answers(machine, Pull, Introduction) == [("a", Pull)]
    joiner = Machine(Config(), member("j"), Random(1), founder=False, introducers=(("10.0.0.1", 1),))
    joiner.start(NOW)
    joiner._change.adopt(view_of("abj", 2, FIRST.view_id, FIRST.cluster), "a", NOW, (FIRST.view_id,))
    joiner.drain()
    joiner.receive("c", member("c").address, Introduction(FIRST, member("b"), Claim(0, 3, "a"), True), NOW)
    assert answers(joiner, Pull, Introduction) == [("b", Introduction)]


def test_a_side_that_gives_way_ends_when_it_said_whomever_it_meets_meanwhile() -> None:
    """Else it would go on beside the other side for as long as somebody of that calls; and its members know one reason."""
    machine = machine_in("abc", "a", config=Config(policy=Policy.ANY))
    contact, resend = machine._change.contact, machine._core.config.resend
    winner, now = view_of("xyz"), NOW
    contact.on_introduction("x", Introduction(winner, member("x"), Claim(5, 3, "x"), True), NOW)
    for _ in range(TELLS):
        assert machine.stopped is None
        for other in (winner, view_of("uvw")):
            met = Introduction(other, other.members[0], Claim(9, 3, other.ids[0]), True)
            contact.on_introduction(other.ids[0], met, now)
        now = contact.deadline()
        machine.tick(now)
    assert isinstance(machine.stopped, OvertakenError) and now == pytest.approx(NOW + TELLS * resend)
    assert {send.message for send in sends(machine.drain(), Overtaken)} == {Overtaken(FIRST.view_id, winner)}


@pytest.mark.parametrize("policy", [Policy.ANY, Policy.MAJORITY])
def test_who_meets_another_side_sends_it_on_to_its_coordinator(policy: Policy) -> None:
    """Only that one may say that the side stops. Again after a while, as words may be lost; never for each packet."""
    machine = machine_in("abc", "b", config=Config(policy=policy))
    met = Introduction(view_of("xyz"), member("x"), Claim(5, 3, "x"), True)
    told = []
    for step in range(4):
        machine.drain()
        machine._change.contact.on_introduction("x", met, NOW + 0.4 * step * INTRODUCE_EVERY)
        told.append([(send.address, send.message) for send in sends(machine.drain(), Introduction)])
    assert told == [[(member("a").address, met)], [], [], [(member("a").address, met)]]
    assert machine.stopped is None


@pytest.mark.parametrize("policy", [Policy.ANY, Policy.MAJORITY])
@pytest.mark.parametrize("known", [True, False])
def test_who_missed_views_follows_a_later_one_of_its_own_chain(policy: Policy, known: bool) -> None:
    """Under ``any`` it may be of another side's chain, unless the views before it are told."""
    machine = machine_in("abc", "b", config=Config(policy=policy))
    second = view_of("abc", 2, FIRST.view_id, FIRST.cluster)
    third = view_of("ab", 3, second.view_id, FIRST.cluster)
    trail = (second.view_id, FIRST.view_id) if known else (second.view_id,)
    machine.receive("a", member("a").address, Chosen(third, "a", None, trail), NOW)
    assert machine.known_view == (third if known or policy is Policy.MAJORITY else FIRST)


def test_a_side_does_not_follow_the_other_one() -> None:
    """This member's second view is not the one before the third: it would be on two sides."""
    machine = machine_in("abc", "b", config=Config(policy=Policy.ANY))
    ours, theirs = view_of("bc", 2, FIRST.view_id, FIRST.cluster), view_of("ab", 2, FIRST.view_id, FIRST.cluster)
    machine._change.adopt(ours, "b", NOW)
    third = view_of("ab", 3, theirs.view_id, FIRST.cluster)
    machine.receive("a", member("a").address, Chosen(third, "a", None, (theirs.view_id, FIRST.view_id)), NOW)
    assert machine.known_view == ours
