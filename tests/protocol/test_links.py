"""Broken links: who has to go, and for how long a word about a link holds."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from math import inf

import pytest

from consensus.config import Config, Policy
from consensus.messages import Ack, Evidence, EvidenceKind, Ping, Prepare, Promise
from consensus.protocol.agreement.attempt import AttemptPhase
from consensus.protocol.state.inputs import Accusation
from consensus.protocol.state.links import KEEP, Links, Pair, cut_off, pair
from consensus.protocol.state.quorum import is_quorum
from consensus.view import View

from .people import CONFIG, machine_in, sends, view_of

NOBODY: frozenset[str] = frozenset()
VIEW = view_of("abcde")


def gone(*pairs: str, view: View = VIEW, dead: str = "", discounted: str = "") -> str:
    broken = [pair(*both) for both in pairs]
    return "".join(cut_off(view, broken, frozenset(dead), frozenset(discounted)))


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ("", ""),
        ("cd", "d"),
        ("ae", "e"),
        ("ab", "b"),
        ("bc bd", "b"),  # who lacks most
        ("bd be cd ce", "de"),  # two halves; a reaches all
        ("ad ae bd be", "de"),  # c is the bridge
        ("ab ac", "bc"),  # a still leads a majority
        ("ab ac ad", "a"),  # it does not: b leads
        ("ab ac bc", "bc"),
        ("ab bc cd de", "bd"),
        ("cd de ce", "de"),
    ],
)
def test_who_has_to_go(pairs: str, expected: str) -> None:
    assert gone(*pairs.split()) == expected


def test_nobody_goes_where_nobody_could_lead() -> None:
    assert gone(*(f"{one}{other}" for one, other in itertools.combinations("abcde", 2))) == ""


def test_half_with_the_most_senior_leads() -> None:
    four = view_of("abcd")
    assert gone("ab", "ac", view=four) == "bc"
    assert gone("bc", "bd", "ad", view=four) == "cd"  # a leads, and does not reach d; then b and c lack one each


def test_the_dead_lead_nobody_and_have_no_links() -> None:
    assert gone("ab", "ac", "ad", dead="a") == ""
    assert gone("bc", dead="ad") == "c"
    assert gone("bc", dead="ade") == ""  # b alone is no quorum of five
    assert gone("bc", dead="ade", discounted="ade") == ""  # nor is it with the dead discounted: c may be in another one


@pytest.mark.parametrize("seed", range(200))
def test_those_who_stay_reach_each_other(seed: int) -> None:
    chance = random.Random(seed)
    size = chance.randint(2, 9)
    view = view_of("abcdefghi"[:size])
    share = chance.choice([0.05, 0.2, 0.5])
    broken = [both for both in itertools.combinations(view.ids, 2) if chance.random() < share]
    out = cut_off(view, broken, NOBODY, NOBODY)
    stay = [each for each in view.ids if each not in out]
    if not out and broken:
        leads = [[each for each in view.ids if pair(leader, each) not in broken] for leader in view.ids]
        assert not any(is_quorum(view, frozenset(reached), NOBODY) for reached in leads)
    else:
        assert not any(both in broken for both in itertools.combinations(stay, 2))
    shuffled = broken[:]
    chance.shuffle(shuffled)
    assert cut_off(view, shuffled, NOBODY, NOBODY) == out


def links() -> Links:
    return Links("a", patience=2.0)


def test_a_link_is_broken_after_its_patience() -> None:
    mine = links()
    assert mine.silent_for("b", 100.0) == 0.0
    mine.missed("b", 100.0)
    mine.missed("b", 100.5)
    assert mine.silent_for("b", 101.9) == 0.0
    assert mine.silent_for("b", 102.0) == 2.0


def test_an_answer_to_a_later_ping_outweighs_an_earlier_one_that_is_missing() -> None:
    mine = links()
    mine.answered("b", 100.2)
    mine.missed("b", 100.0)
    assert mine.silent_for("b", 110.0) == 0.0
    mine.missed("b", 100.5)
    mine.answered("b", 101.0)
    assert mine.silent_for("b", 110.0) == 0.0


def test_who_overslept_counts_from_its_waking() -> None:
    mine = links()
    mine.missed("b", 100.0)
    mine.overslept(3.0, 104.0)
    assert mine.silent_for("b", 104.9) == 0.0
    assert mine.silent_for("b", 105.0) == 2.0


def test_answers_that_were_lost_in_its_sleep_do_not_count() -> None:
    """Those to pings that were under way when it fell asleep; told only after it woke, and all the same not from before."""
    mine = links()
    mine.asked(["b"], 100.0)
    mine.overslept(9.0, 110.0)
    mine.asked(["b"], 110.0)
    mine.missed("c", 99.9)
    assert mine.silent_for("b", 111.9) == mine.silent_for("c", 111.9) == 0.0
    assert mine.silent_for("b", 112.0) == mine.silent_for("c", 112.0) == 2.0


def test_who_wakes_accuses_nobody_before_they_can_answer() -> None:
    machine = machine_in("abcd", "d", config=replace(CONFIG, exclude_after=10.0))
    machine.tick(100.0)
    assert sends(machine.drain(), Ping), "these are under way in its sleep"
    machine.next_deadline()
    machine.tick(106.0)
    told = [effect.message for effect in sends(machine.drain(), Evidence)]
    assert not [each for each in told if isinstance(each, Evidence) and each.kind is EvidenceKind.SEVERED]


def test_pings_of_an_earlier_time_with_pings_break_no_link() -> None:
    """Between two such times nobody was pinged, so nobody could answer."""
    mine = links()
    mine.asked(["b", "c"], 100.0)
    mine.begin()
    mine.asked(["b", "c"], 200.0)
    assert mine.silent_for("b", 200.0) == mine.silent_for("c", 200.5) == 0.0
    mine.asked(["b", "c"], 201.0)
    assert mine.silent_for("b", 202.0) == 2.0, "that one was missed"
    mine.begin()
    assert mine.silent_for("b", 202.0) == 0.0


def test_no_patience_is_endless_patience() -> None:
    never = Links("a", patience=0.0)
    never.missed("b", 100.0)
    assert never.silent_for("b", 1e6) == 0.0


def test_a_word_of_others_is_forgotten_and_the_own_one_holds() -> None:
    mine = links()
    assert mine.reported("b", "c", 100.0)
    assert not mine.reported("c", "b", 101.0)  # the same link, from its other end
    assert mine.reported("a", "d", 100.5)
    assert not mine.reported("a", "d", 101.0)
    both: dict[Pair, float] = {("b", "c"): 100.0, ("a", "d"): 100.5}
    assert mine.known(101.0 + KEEP - 0.01) == both
    assert mine.deadline() == 101.0 + KEEP
    assert mine.known(101.0 + KEEP) == {("a", "d"): 100.5}
    mine.answered("d", 110.0)
    assert not mine.broken("d")
    assert mine.known(110.0) == {}


def test_of_several_words_the_oldest_is_forgotten_first() -> None:
    """In time: whoever goes only because of that link stays."""
    mine = links()
    mine.reported("b", "c", 100.0)
    mine.reported("d", "e", 101.0)
    for kept, due in (([("b", "c"), ("d", "e")], 100.0 + KEEP), ([("d", "e")], 101.0 + KEEP)):
        assert sorted(mine.known(due - 0.01)) == kept
        assert mine.deadline() == due
        mine.known(due)
    assert mine.deadline() == inf


def test_a_new_view_asks_for_every_word_anew() -> None:
    mine = links()
    mine.missed("b", 100.0)
    mine.missed("f", 100.0)
    mine.reported("a", "b", 102.0)
    mine.reported("c", "d", 102.0)
    mine.adopt(VIEW)
    assert mine.known(102.0) == {}
    assert mine.silent_for("b", 102.0) == 2.0, "its own pings are still unanswered"
    assert mine.silent_for("f", 110.0) == 0.0


def test_a_crowded_view_judges_no_link_by_a_ping_that_was_missing_before() -> None:
    mine = links()
    mine.missed("b", 100.0)
    mine.adopt(VIEW, crowded=True)
    mine.adopt(VIEW)
    assert mine.silent_for("b", 110.0) == 0.0, "nobody has pinged it meanwhile"


def test_a_view_that_becomes_crowded_severs_nobody() -> None:
    """A ping went unanswered in the small view; in the large one only neighbours ping each other."""
    machine = machine_in("abcd", "a", config=Config(mesh_limit=4))
    for member_id in "bcd":
        machine._core.links.missed(member_id, 100.0)
    machine._change.adopt(view_of("abcdefgh", 2, machine._core.view_id), "a", 101.0)
    assert machine._core.crowded
    machine.drain()
    for tenth in range(1020, 1100):
        machine.tick(tenth / 10)
        told = [effect.message for effect in sends(machine.drain(), Evidence)]
        assert not [each for each in told if isinstance(each, Evidence) and each.kind is EvidenceKind.SEVERED]


def test_acks_of_strangers_leave_no_trace() -> None:
    machine = machine_in("abc", "a")
    for number in range(50):
        stranger = f"stranger{number}"
        machine.receive(stranger, ("10.0.0.9", number + 1), Ack(number, stranger, 0, ""), 100.1)
    assert not machine._core.links._answered


def test_under_any_nobody_waits_for_the_promise_of_whom_the_proposer_does_not_reach() -> None:
    """b leads, as a lacks all but e; and b, which is not the most senior, has to ask for promises."""
    machine = machine_in("abcde", "b", config=Config(policy=Policy.ANY, settle_silence=1e-9))
    core = machine._core
    for witness in "bcd":
        evidence = Evidence(core.view_id, "a", EvidenceKind.SEVERED, "no answer")
        if witness == "b":
            machine.handle(Accusation("a", EvidenceKind.SEVERED, "no answer"), 100.0)
        else:
            machine.receive(witness, core.view.member(witness).address, evidence, 100.0)  # type: ignore[union-attr]
    machine.tick(100.6)
    assert list(core.evidence.cut_off) == ["a"]
    attempt = machine._change.proposer.attempt
    assert attempt is not None and attempt.phase is AttemptPhase.PREPARE
    assert sends(machine.drain(), Prepare)
    for voter in "cde":
        address = attempt.parent.member(voter).address
        machine.receive(voter, address, Promise(attempt.epoch, core.view_id, attempt.ballot), 100.6)
    assert attempt.phase is AttemptPhase.ACCEPT
    assert machine._change.proposer.discounted == frozenset(), "a value may have been proposed that keeps it: it has to vote"


def test_whoever_had_to_go_because_of_a_link_stays_once_nobody_says_any_more_that_it_is_broken() -> None:
    """It works again, or whoever said so has gone: a healthy member would be lost, and a wrong reason told."""
    machine = machine_in("abcde", "c")
    word = Evidence(machine._core.view_id, "e", EvidenceKind.SEVERED, "no answer")
    machine.receive("d", view_of("abcde").member("d").address, word, 100.0)
    assert machine.status()["members"][4]["evidence"] == "severed"
    assert {(each["kind"], each["accused"]) for each in machine.status()["under_way"]["findings"]} == {
        ("severed", "e"),
        ("severed", "d"),
    }
    machine.tick(100.0 + KEEP)
    assert machine.status()["members"][4]["evidence"] is None
    assert not machine.status()["under_way"]["findings"]


def test_a_broken_link_is_no_longer_told_though_nobody_had_to_go_because_of_it() -> None:
    """As nobody could have led the others; ``ftlib explain`` would call a change under way, maybe for ever."""
    machine = machine_in("abc", "c")
    view = view_of("abc")
    for accused in "ab":
        machine.handle(Accusation(accused, EvidenceKind.SEVERED, "no answer"), 100.0)
    word = Evidence(machine._core.view_id, "b", EvidenceKind.SEVERED, "no answer")
    machine.receive("a", view.member("a").address, word, 100.0)
    assert machine.status()["under_way"]["findings"]
    for answering in "ab":
        machine._core.links.answered(answering, 101.0)
    machine.tick(110.0)
    assert not machine._core.links.known(110.0)
    assert not (machine.status()["under_way"] or {}).get("findings")


def test_a_link_to_whom_the_view_is_without_costs_nobody() -> None:
    """A leaver may drive a view that it is not in, and be the one that reaches a member of it no more."""
    assert gone("cx") == ""
    assert gone("ex", "ax", "cd") == "d"


def test_an_answer_that_came_before_a_new_view_still_outweighs_an_earlier_ping() -> None:
    """Else a healthy link would count as broken since then."""
    mine = links()
    mine.answered("b", 100.2)
    mine.adopt(VIEW)
    mine.missed("b", 100.0)
    assert mine.silent_for("b", 110.0) == 0.0


def test_a_short_patience_is_no_endless_one() -> None:
    hasty = Links("a", patience=0.5)
    hasty.missed("b", 100.0)
    assert (hasty.silent_for("b", 100.25), hasty.silent_for("b", 100.5)) == (0.0, 0.5)
