"""What is held against whom, when it is acted on, and which dead a quorum may do without."""

from __future__ import annotations

import pytest

from consensus.protocol.state.evidence import EvidenceBook
from consensus.protocol.state.member_table import NEVER
from consensus.view import Cause, Removal

from .people import CONFIG, T_EXCL, view_of

LIMIT = T_EXCL * (1 - CONFIG.drift)


@pytest.mark.parametrize(
    ("contact", "discounted"),
    [
        (100.0, True),
        (100.0 - LIMIT + 0.001, True),
        (100.0 - LIMIT, False),
        (100.0 - T_EXCL, False),
        (NEVER, False),
    ],
)
def test_discounted_only_under_recent_contact(contact: float, discounted: bool) -> None:
    book = EvidenceBook(CONFIG)
    assert book.prove("b", "refused", contact, 100.0)
    assert book.discounted == (frozenset("b") if discounted else frozenset())


def test_judged_once_and_remembered() -> None:
    book = EvidenceBook(CONFIG)
    book.prove("b", "refused", NEVER, 100.0)
    assert not book.prove("b", "reaped", 100.0, 100.0)
    assert book.discounted == frozenset()
    assert book.proofs["b"].detail == "refused"
    book.prove("c", "refused", 99.0, 100.0)
    assert not book.prove("c", "again", NEVER, 500.0)
    assert book.discounted == frozenset("c")


def test_who_says_at_its_end_that_it_has_not_voted_needs_no_contact() -> None:
    """Others may have told of its death before."""
    book = EvidenceBook(CONFIG)
    book.prove("b", "its training process ended", NEVER, 100.0, no_vote=True)
    book.prove("c", "refused", NEVER, 100.0)
    assert book.discounted == frozenset("b")
    assert not book.prove("c", "its training process ended", NEVER, 100.1, no_vote=True)
    assert book.discounted == frozenset("bc")
    assert not book.late(0.0), "votes from before count beside them"


def test_what_counts_is_when_it_died_and_not_when_that_is_known() -> None:
    """A supervisor says for how long it was gone by then; its clock may be fast, as far as clocks may."""
    book = EvidenceBook(CONFIG)
    contact, least = 100.0, 1 - CONFIG.drift
    book.prove("b", "reaped", contact, contact + LIMIT + 5.0 * least - 0.001, 5.0)
    book.prove("c", "reaped", contact, contact + LIMIT + 5.0 * least, 5.0)
    assert book.discounted == frozenset("b")
    assert not book.prove("c", "reaped", contact + 4.0, contact + LIMIT + 5.0, 5.0), "contact is what it was at the first proof"
    assert book.discounted == frozenset("b")
    assert not book.prove("c", "reaped", contact, contact + LIMIT + 5.0, 6.0), "a second one shows an earlier death"
    assert book.discounted == frozenset("bc")
    assert book.proofs["c"].time == contact + LIMIT + 5.0 * least


def test_proofs_survive_into_the_next_view_and_the_rest_is_judged_anew() -> None:
    book = EvidenceBook(CONFIG)
    book.prove("b", "refused", 100.0, 100.0)
    book.prove("z", "refused", 100.0, 100.0)
    book.silent["c"] = book.unready["c"] = book.leaving["d"] = book.frozen_since = 100.0
    book.checking = {"c": 1.0, "z": 1.0}
    book.adopt(view_of("abcd", 2), None)
    assert set(book.proofs) == {"b"}
    assert (len(book.silent), len(book.unready)) == (0, 0)
    assert str(book.frozen_since) == "None"
    assert set(book.leaving) == {"d"}, "a request to leave is final"
    assert set(book.checking) == {"c"}


def test_the_strongest_reason_counts() -> None:
    book = EvidenceBook(CONFIG)
    book.silent["b"] = 1.0
    assert book.cause("b") is Cause.SILENCE
    book.unready["b"] = 1.0
    assert book.cause("b") is Cause.UNREADY
    book.leaving["b"] = 1.0
    assert book.cause("b") is Cause.LEFT
    book.prove("b", "refused", 1.0, 1.0)
    assert book.cause("b") is Cause.PROOF
    assert book.cause("a") is None


def test_removals_in_seniority_order() -> None:
    book = EvidenceBook(CONFIG)
    book.silent["a"] = 1.0
    book.prove("c", "refused", 1.0, 1.0)
    book.prove("x", "refused", 1.0, 1.0)
    assert book.removals(view_of("cba")) == (Removal("c", Cause.PROOF), Removal("a", Cause.SILENCE))


def test_silence_is_retracted() -> None:
    book = EvidenceBook(CONFIG)
    book.silent["a"] = 1.0
    book.retract_silence("a")
    book.retract_silence("a")
    assert book.due() is None


def test_no_reason_no_proposal() -> None:
    book = EvidenceBook(CONFIG)
    assert book.due() is None
    book.checking["b"] = 100.0
    assert book.due() is None, "a check alone is none"


def test_settle_times() -> None:
    book = EvidenceBook(CONFIG)
    book.silent["b"] = 100.0
    assert book.due() == pytest.approx(100.0 + CONFIG.settle_silence)
    book.prove("c", "refused", 100.0, 100.01)
    assert book.due() == pytest.approx(100.01 + CONFIG.settle_quiet)
    book.leaving["d"] = 100.005
    assert book.due() == pytest.approx(100.005)


def test_unready_settles_like_silence_and_frozen_at_once() -> None:
    book = EvidenceBook(CONFIG)
    book.unready["b"] = 100.0
    assert book.due() == pytest.approx(100.0 + CONFIG.settle_silence)
    book.frozen_since = 100.0
    assert book.due() == 100.0


def test_checks_under_way_hold_back_at_most_settle_max() -> None:
    book = EvidenceBook(CONFIG)
    book.prove("b", "refused", 100.0, 100.0)
    book.checking["c"] = 100.0
    assert book.due() == pytest.approx(100.0 + CONFIG.settle_max)
    book.checking["d"] = 100.4
    assert book.due() == pytest.approx(100.0 + CONFIG.settle_max), "later ones do not prolong it"
    book.checking.clear()
    assert book.due() == pytest.approx(100.0 + CONFIG.settle_quiet)


def test_what_comes_while_checks_run_does_not_prolong_the_wait_for_them() -> None:
    """Members that fall silent one after another would put the change off for as long as they do."""
    book = EvidenceBook(CONFIG)
    book.silent["b"] = 100.0
    book.checking["c"] = 100.0
    for number in range(1, 10):
        book.silent[str(number)] = 100.0 + 0.04 * number
        book.unready[f"u{number}"] = 100.0 + 0.04 * number
        assert book.due() == pytest.approx(100.0 + CONFIG.settle_max)


def test_as_long_as_proofs_come_they_are_waited_for_but_not_for_long() -> None:
    book, step = EvidenceBook(CONFIG), 0.9 * CONFIG.settle_quiet
    now = 100.0
    for number in range(10):
        book.prove(str(number), "refused", 100.0, now)
        due = book.due()
        assert due is not None
        if now + CONFIG.settle_quiet < 100.0 + CONFIG.settle_proof:
            assert due == pytest.approx(now + CONFIG.settle_quiet)
        else:
            assert due == pytest.approx(100.0 + CONFIG.settle_proof)
        now += step


def test_a_proof_ends_its_check() -> None:
    book = EvidenceBook(CONFIG)
    book.checking["b"] = 100.0
    book.prove("b", "refused", 100.0, 100.0)
    assert book.checking == {}


def test_leavers_name_the_call_that_everybody_can_still_end() -> None:
    book = EvidenceBook(CONFIG)
    assert EvidenceBook(CONFIG).last_call is None
    book.leave("b", 7, 100.0)
    book.leave("c", 8, 100.0)
    book.leave("c", None, 101.0)
    assert book.last_call == 8
    assert book.leaving == {"b": 100.0, "c": 100.0}, "the first request counts"
    book.prove("d", "refused", 100.0, 101.0)
    assert book.last_call is None, "nobody waits for a call that may have lost a member"


def test_dead_newcomers_need_no_contact_in_the_view_that_admitted_them() -> None:
    old = view_of("ab", 1)
    new = view_of("abcd", 2, old.view_id)
    book = EvidenceBook(CONFIG)
    book.adopt(new, old)
    for name in "bc":
        book.prove(name, "refused", NEVER, 100.0)
    assert book.discounted == frozenset("c"), "b was there before: it may have voted us out"
    book.adopt(view_of("abcd", 3, new.view_id), new)
    assert book.discounted == frozenset(), "now c may have, too"


def test_newcomers_of_a_view_whose_parent_is_unknown_need_contact() -> None:
    book = EvidenceBook(CONFIG)
    book.adopt(view_of("abc", 3), view_of("ab", 1))
    book.prove("c", "refused", NEVER, 100.0)
    assert book.discounted == frozenset()


def test_newcomers_that_are_more_than_half_need_contact() -> None:
    """They are a quorum without those who were there before, who may have been voted out by them."""
    old = view_of("ab", 1)
    book = EvidenceBook(CONFIG)
    book.adopt(view_of("abcde", 2, old.view_id), old)
    book.prove("c", "refused", NEVER, 100.0)
    book.prove("d", "refused", 100.0, 100.0)
    assert book.discounted == frozenset("d")


def test_old_votes_are_no_help_with_a_newcomer_that_died_later_and_with_nobody_else() -> None:
    old = view_of("ab", 1)
    book = EvidenceBook(CONFIG)
    book.adopt(view_of("abcd", 2, old.view_id), old)
    book.prove("c", "refused", NEVER, 100.0)
    book.prove("d", "refused", 101.9, 102.0)
    assert book.late(99.0) == frozenset("c"), "d was in touch"
    assert book.late(100.0) == book.late(101.0) == frozenset()


def test_who_has_ended_is_remembered_for_the_view_without_it() -> None:
    """The reasons that go with that view are told after it was adopted."""
    book = EvidenceBook(CONFIG)
    first, second, third = view_of("abc"), view_of("a", 2), view_of("ad", 3)
    book.adopt(first, None)
    book.leave("b", None, 100.0, ended=True)
    book.leave("c", None, 100.0)
    book.adopt(second, first)
    assert book.ended == {"b"}
    book.adopt(third, second)
    assert not book.ended


def test_a_leavers_last_call_is_known_until_it_has_left() -> None:
    book = EvidenceBook(CONFIG)
    book.leave("b", 7, 100.0)
    book.leave("c", 8, 100.0)
    old, new = view_of("abc", 1), view_of("ab", 2, view_of("abc", 1).view_id)
    book.adopt(new, old)
    assert book.last_call == 7 and book.leaving == {"b": 100.0}
    book.adopt(view_of("a", 3, new.view_id), new)
    assert book.last_call is None


def test_only_the_first_who_needs_a_new_epoch_is_news() -> None:
    book = EvidenceBook(CONFIG)
    assert book.freeze(100.0)
    assert not book.freeze(101.0)
    assert book.frozen_since == 100.0
