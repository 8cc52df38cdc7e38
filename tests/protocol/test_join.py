"""Applicants, the search for the cluster, founding, and the texts of failure."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from consensus.config import Config
from consensus.errors import JoinError
from consensus.member import Address
from consensus.messages import JoinReply, JoinRequest
from consensus.protocol.machine import Machine
from consensus.protocol.state.effects import Note, Send
from consensus.protocol.state.inputs import Input, Introduced, Listening, Resolved
from consensus.protocol.state.join import FOUNDING_PATIENCE, FRESH, HASTY, MUTE_PATIENCE, RARELY, Applicants, Search
from consensus.simulation import World, judged

from .people import member, sends, view_of

ME = member("a")
B: Address = ("10.0.0.1", 2)
C: Address = ("10.0.0.1", 3)
NOTHING = JoinReply(None, None)


def search(*introducers: Address, founder: bool = False, size: int = 1, patience: float = 60.0) -> Search:
    texts = tuple(f"{host}:{port}" for host, port in introducers)
    config = Config(introducers=texts, initial_size=size, join_timeout=patience)
    return Search(config, ME, introducers, founder, 100.0)


def test_alone_without_introducers_founds_at_once() -> None:
    assert search(founder=True).may_found(0, 100.0)


def test_only_a_founder_founds() -> None:
    assert not search(B).may_found(9, 1000.0)


def test_not_before_initial_size_members_met() -> None:
    one = search(founder=True, size=3)
    assert not one.may_found(1, 100.0)
    assert one.may_found(2, 100.0)


def test_not_before_the_other_introducers_said_that_there_is_no_cluster() -> None:
    one = search(ME.address, B, C, founder=True)
    one.replied("b", B, NOTHING, 100.0)
    assert not one.may_found(0, 100.1)
    one.replied("c", C, NOTHING, 100.1)
    assert one.may_found(0, 100.1)


def test_or_had_time_to_say_so() -> None:
    one = search(ME.address, B, founder=True)
    assert not one.may_found(0, 100.0 + FOUNDING_PATIENCE - 0.01)
    assert one.may_found(0, 100.0 + FOUNDING_PATIENCE + 0.001)


def test_much_time_where_somebody_listens() -> None:
    one = search(ME.address, B, C, founder=True)
    one.attend(B, True)
    assert not one.may_found(0, 100.0 + MUTE_PATIENCE - 0.01)
    assert one.may_found(0, 100.0 + MUTE_PATIENCE)
    one.replied("b", B, NOTHING, 101.0)
    assert one.may_found(0, 101.0)
    brief = search(ME.address, B, founder=True, patience=2.0)
    brief.attend(B, True)
    assert not brief.may_found(0, 100.9) and brief.may_found(0, 101.1), "an error that names nobody would help nobody"
    brief.attend(B, False)
    assert brief.may_found(0, 100.7)


@pytest.mark.parametrize(("listening", "patience"), [(True, MUTE_PATIENCE), (False, FOUNDING_PATIENCE)])
def test_a_founder_waits_for_whoever_is_found_to_listen(listening: bool, patience: float) -> None:
    """It may be a member that is stopped, or has too much to do: its cluster goes on."""
    machine = Machine(Config(introducers=("somewhere:1",)), ME, Random(1), founder=True, introducers=(B,))
    machine.start(100.0)
    machine.handle(Listening(B, listening), 100.1)
    machine.tick(100.0 + patience - 0.01)
    assert machine.view is None
    machine.tick(100.0 + patience + 0.01)
    assert machine.view == view_of("a")


def test_never_where_a_cluster_exists() -> None:
    one = search(ME.address, B, founder=True)
    one.replied("b", B, JoinReply(view_of("bc"), member("b")), 100.1)
    assert not one.may_found(9, 1000.0)


def test_asks_the_coordinator_and_the_members_once_they_are_known() -> None:
    one = search(B, C)
    assert one.targets() == [B, C]
    one.replied("x", B, JoinReply(view_of("xy", 3), member("y")), 100.1)
    asked = []
    for _ in range(4):
        asked.append(one.targets())
        one.interval(0.5)
    x, y = member("x").address, member("y").address
    assert asked == [[y, x], [y], [y, B], [y, C]], "besides the coordinator one of the others, in turn"
    one.replied("z", C, JoinReply(view_of("z", 2), member("z")), 100.1)
    assert one.coordinator == member("y"), "an older view teaches nothing"


def test_added_addresses_are_asked_whatever_the_names_resolve_to() -> None:
    one = search(B)
    one.add((C,))
    one.set((("10.0.0.9", 9),), False, "")
    assert one.targets() == [("10.0.0.9", 9), C]


def test_who_answers_without_the_view_that_is_known_still_says_who_leads_it() -> None:
    one, view = search(B), view_of("bcd")
    one.replied("b", B, JoinReply(view, member("b")), 100.0)
    one.replied("b", B, JoinReply(None, member("c"), None, view.view_id, view.epoch), 100.1)
    assert one.coordinator == member("c")
    one.replied("b", B, JoinReply(None, member("x"), None, "another", view.epoch), 100.2)
    assert one.coordinator == member("c") and one.beacon is None, "no newer than what is known"
    one.replied("b", B, JoinReply(None, member("x"), None, "another", view.epoch + 1), 100.2)
    assert one.coordinator == member("c") and one.beacon == member("x"), "it is asked, too"


def test_the_first_side_that_was_met_is_kept_while_it_answers() -> None:
    one, first, other = search(B), view_of("bc"), view_of("xy")
    for now in (100.0, 100.0 + 0.9 * FRESH):
        one.replied("b", B, JoinReply(first, member("b")), now)
    one.replied("x", C, JoinReply(other, member("x")), 100.0 + 1.8 * FRESH)
    assert one.cluster == first
    one.replied("x", C, JoinReply(other, member("x")), 100.0 + 2.0 * FRESH)
    assert one.cluster == other


def test_requests_grow_rare_as_they_are_repeated() -> None:
    one = search(B, founder=True)
    waits = [one.interval(0.5) for _ in range(HASTY + 5)]
    assert waits[:HASTY] == pytest.approx([0.1] * HASTY)
    assert waits[HASTY:] == pytest.approx([0.15, 0.225, 0.3375, RARELY, RARELY])
    assert one.interval(0.0) == pytest.approx(0.75 * RARELY) and one.interval(1.0) == pytest.approx(1.25 * RARELY)
    assert not one.wants
    one.replied("b", B, JoinReply(view_of("bc"), member("b")), 100.1)
    assert one.interval(0.5) == pytest.approx(0.4), "who only looks has time"


def test_requests_are_frequent_again_where_something_has_changed() -> None:
    """As many as at the beginning. A coordinator that has not answered may be dead: the next one has to hear of us soon."""
    one, leader = search(B), member("b")
    one.wants = True
    one.replied(leader.id, leader.address, JoinReply(view_of("bc"), leader), 100.0)

    def waits(count: int, *, answered: bool) -> list[float]:
        found = []
        for _ in range(count):
            if answered:
                one.replied(leader.id, leader.address, JoinReply(view_of("bc"), leader), 100.0)
            found.append(one.interval(0.5))
        return found

    for change in (lambda: waits(1, answered=False), lambda: one.hurry(101.0), one.impatient):
        assert waits(HASTY + 4, answered=True)[-1] == pytest.approx(RARELY)
        change()
        assert waits(HASTY + 1, answered=True) == pytest.approx([*[0.1] * HASTY, 0.15])


def test_failure_names_who_did_not_answer() -> None:
    one = search(B, C, patience=5.0)
    one.replied("b", B, NOTHING, 101.0)
    assert one.failure(104.9) is None
    assert one.failure(105.0) == "not let in by introducers 10.0.0.1:3 within join_timeout=5 s"


def test_failure_where_all_answered_but_nobody_founded() -> None:
    one = search(B, patience=5.0)
    one.replied("b", B, NOTHING, 101.0)
    assert "belong to no cluster" in str(one.failure(105.0))


def test_failure_of_a_founder() -> None:
    text = search(founder=True, size=4, patience=5.0).failure(105.0)
    assert text == "fewer than initial_size=4 members met within join_timeout=5 s: start the others, or lower initial_size"


def test_a_cluster_that_answers_is_waited_for_without_end_and_one_that_fell_silent_is_not() -> None:
    one = search(B, patience=5.0)
    one.replied("b", B, JoinReply(view_of("bc"), member("b")), 104.0)
    assert one.failure(108.9) is None
    text = one.failure(109.0)
    assert text == "the cluster was found, but no member has answered for 5 s: are they running, and in reach?"


@pytest.mark.parametrize(("later", "asked"), [(0.1, False), (FRESH + 0.1, True)])
def test_whoever_acts_is_asked_once_nobody_answers_for_the_known_side(later: float, asked: bool) -> None:
    """Under ``any`` another side may be at a lower epoch; all members of the one that was found may have died."""
    one = search(B)
    one.replied("b", B, JoinReply(view_of("bc", 6), member("b")), 100.0)
    coordinator = member("d")
    one.replied(coordinator.id, coordinator.address, JoinReply(None, coordinator, view_id="other", epoch=5), 100.0 + later)
    assert (coordinator.address in one.targets()) is asked


@pytest.mark.parametrize(("sender", "confirmed"), [("c", True), ("j", False)])
def test_another_joiner_does_not_confirm_what_it_knows_by_hearsay(sender: str, confirmed: bool) -> None:
    """Two joiners that have found a side whose members have all died would hold each other to it without end."""
    one, view, last = search(B, patience=5.0), view_of("bc", 6), 100.0 + 2 * FRESH
    one.replied("b", B, JoinReply(view, member("b")), 100.0)
    for now in (100.0 + FRESH, last):
        one.replied(sender, C, JoinReply(None, member("c"), view_id=view.view_id, epoch=view.epoch), now)
    assert one.coordinator == member("c" if confirmed else "b")
    acting = member("d")
    one.replied(acting.id, acting.address, JoinReply(None, acting, view_id="other", epoch=5), last)
    assert (acting.address in one.targets()) is not confirmed


def test_the_hearsay_of_joiners_does_not_keep_a_search_alive_whose_cluster_is_silent() -> None:
    one, view = search(B, patience=5.0), view_of("bc")
    for now in (100.0, 102.0, 104.0):
        one.replied("j", B, JoinReply(view if now == 100.0 else None, member("b"), view_id=view.view_id, epoch=1), now)
    assert "no member has answered for 5 s" in str(one.failure(105.0))


def test_applicants_in_order_of_arrival_fresh_and_limited() -> None:
    waiting = Applicants(2)
    assert waiting.received(member("c"), False, 100.0) is not None
    assert waiting.received(member("b"), True, 100.0) is not None
    assert waiting.received(member("d"), True, 100.0) is None, "the queue is full"
    assert [a.member.id for a in waiting.fresh(100.0, wanting=False)] == ["c", "b"]
    assert [a.member.id for a in waiting.fresh(100.0, wanting=True)] == ["b"]
    waiting.expire(100.0 + FRESH + 0.01)
    assert len(waiting) == 0


def test_of_two_lifetimes_at_one_address_the_later_applies() -> None:
    """The earlier one is dead, though its requests are fresh: admitted, it would be waited for."""
    waiting = Applicants(2)
    first = waiting.received(member("c", port=7), True, 100.0)
    waiting.received(member("b", port=8), True, 100.0)
    assert first is not None
    first.contact = 100.0
    assert waiting.admissible(100.1) == [member("c", port=7)]
    assert waiting.received(member("d", port=7), True, 100.1) is not None, "the earlier one has left room in the queue"
    assert waiting.admissible(100.1) == []
    assert {each.member.id for each in waiting} == {"b", "d"}
    waiting.expire(100.1 + FRESH + 0.01)
    assert len(waiting) == 0
    assert waiting.received(member("e", port=7), True, 103.0) is not None


def test_admissible_is_who_acked_us_a_moment_ago() -> None:
    waiting = Applicants(9)
    applicant = waiting.received(member("b"), True, 100.0)
    assert applicant is not None
    assert waiting.admissible(100.0) == []
    applicant.contact = 99.5
    assert waiting.admissible(100.0) == [member("b")]
    assert waiting.admissible(100.6) == []
    assert waiting.contacts == {"b": 99.5}
    waiting.drop("b")
    assert len(waiting) == 0


def test_nobody_there() -> None:
    world = judged(World(1, Config(join_timeout=2.0)))
    other = world.start("gone", introducers=("gone",))
    world.kill(other)
    lost = world.start("j", introducers=("gone",))
    world.run(2.5)
    assert isinstance(lost.stopped, JoinError)
    assert "not let in by introducers 10.0.0.1:1000 within join_timeout=2 s" in str(lost.stopped)


def test_other_terms_are_refused_by_name() -> None:
    world = judged(World(1))
    world.cluster(2)
    world.config = replace(world.config, exclude_after=3.0)
    other = world.start("j", introducers=("m0",))
    world.run(1.0)
    assert isinstance(other.stopped, JoinError)
    assert "exclude_after=3 policy=majority" in str(other.stopped)
    assert "exclude_after=2 policy=majority" in str(other.stopped)


def test_whoever_is_in_no_cluster_refuses_nobody() -> None:
    """Members that introduce each other start together, one of them with other terms: that is the one that has to go."""
    world = judged(World(1, Config(initial_size=3, join_timeout=5.0)))
    hosts, terms = [world.start("m0", introducers=("m0",))], world.config
    world.config = replace(terms, exclude_after=3.0)
    other = world.start("other", introducers=("m0", "other"))
    world.config = terms
    hosts += [world.start(name, introducers=("m0", "other")) for name in ("m1", "m2", "m3")]
    world.run_until(lambda: all(host.activated and len(host.activated[-1].ids) == 4 for host in hosts), 8.0)
    world.run_until(lambda: other.stopped is not None, 2.0)
    assert [host.stopped for host in hosts] == [None] * 4
    assert "the cluster refused this member: its settings are 'exclude_after=3" in str(other.stopped)


def test_whoever_asks_with_other_terms_is_told_what_is_known_and_does_not_count() -> None:
    config = Config(introducers=("somewhere:1",), initial_size=2)
    machine, other = Machine(config, ME, Random(1), founder=True, introducers=(B,)), member("x")
    machine.start(100.0)
    machine.receive("b", B, JoinReply(None, None), 100.0)
    machine.drain()
    request = JoinRequest(other, True, replace(config, exclude_after=3.0).terms)
    effects = []
    for now in (100.1, 100.2):
        machine.receive(other.id, other.address, request, now)
        effects += machine.drain()
    assert [each.message for each in effects if isinstance(each, Send) and each.address == other.address] == [NOTHING] * 2
    [note] = [each for each in effects if isinstance(each, Note)]
    assert "'exclude_after=3 policy=majority', here they are 'exclude_after=2 policy=majority'" in note.text
    assert machine.view is None, "two have not met"
    machine.receive("b", B, JoinReply(view_of("bc"), member("b")), 100.3)
    machine.drain()
    machine.receive(other.id, other.address, request, 100.4)
    [reply] = sends(machine.drain(), JoinReply)
    assert reply.message == JoinReply(view_of("bc"), member("b"), None, view_of("bc").view_id, 1), "that cluster will refuse it"


@pytest.mark.parametrize("size", [1, 2, 7])
def test_founders_that_start_together_make_one_cluster(size: int) -> None:
    world = judged(World(1))
    hosts = world.cluster(size)
    assert len({host.activated[0].view_id for host in hosts}) == 1


def test_the_first_introducer_restarted_joins_instead_of_founding_again() -> None:
    world = judged(World(1))
    m0, m1, m2 = world.cluster(3)
    world.run(1.0)
    world.kill(m0)
    world.run(1.0)
    again = world.start("m0", introducers=("m0", "m1", "m2"), port=m0.machine.member.port)
    world.run_until(lambda: bool(again.activated), 5.0)
    assert set(again.activated[0].ids) == {m1.id, m2.id, again.id}


def test_an_applicant_is_fresh_for_all_of_its_time() -> None:
    """As long as ``any_admissible`` counts it: else a coordinator would request a boundary for a joiner it does not see."""
    applicants = Applicants(10)
    applicant = applicants.received(member("x"), True, 100.0)
    assert applicant is not None
    end = applicant.contact = 100.0 + FRESH
    assert applicants.any_admissible(end) and applicants.admissible(end) == [member("x")]
    assert applicants.fresh(end, wanting=False) == [applicant]
    assert applicants.fresh(end + 0.01, wanting=False) == []


@pytest.mark.parametrize(
    ("news", "asked"),
    [(Resolved((C,), founder=False, refused=""), {C}), (Introduced((C,)), {B, C})],
    ids=["the names lead there now", "there as well"],
)
def test_whoever_turns_out_to_introduce_is_asked_at_once(news: Input, asked: set[Address]) -> None:
    machine = Machine(Config(introducers=("somewhere:1",)), member("x"), Random(1), founder=False, introducers=(B,))
    machine.start(100.0)
    assert {send.address for send in sends(machine.drain(), JoinRequest)} == {B}
    machine.handle(news, 100.01)
    assert {send.address for send in sends(machine.drain(), JoinRequest)} == asked


def test_applicants_that_ask_no_more_are_looked_for_a_few_times_a_second() -> None:
    waiting = Applicants(2)
    waiting.expire(100.0)
    waiting.received(member("b"), True, 98.55)
    waiting.expire(100.24)
    assert len(waiting) == 1
    waiting.expire(100.25)
    assert len(waiting) == 0


def test_introducers_that_are_added_are_asked_at_once() -> None:
    machine = Machine(Config(introducers=("somewhere:1",)), member("x"), Random(1), founder=False, introducers=(B,))
    machine.start(100.0)
    machine.drain()
    machine.handle(Introduced((C,)), 100.01)
    assert {send.address for send in sends(machine.drain(), JoinRequest)} == {B, C}
