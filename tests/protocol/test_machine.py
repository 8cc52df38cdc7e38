"""One machine and its messages: what it answers, when it waits, and what it ignores."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from consensus.border import Boundary, BoundaryRequest, Built, Flushed, Freeze, Hint, Installed, Leave, PeerProgress, Stopped
from consensus.errors import ExcludedError, StoppedError
from consensus.messages import (
    MAX_DETAIL,
    Accept,
    Accepted,
    Ack,
    Activate,
    Chosen,
    Evidence,
    EvidenceKind,
    Gossip,
    Install,
    JoinRequest,
    LeaveRequest,
    Message,
    Nack,
    Ping,
    Prepare,
    Promise,
    Promised,
    Pull,
    Ready,
    Status,
    Stranger,
    Update,
)
from consensus.messages.reports import Reports
from consensus.progress import Progress
from consensus.protocol.machine import Machine
from consensus.protocol.state.effects import Check, Effect, KeepConnections, Note, Quit, Send
from consensus.protocol.state.inputs import Accusation, Checked, Died
from consensus.view import Cause, Delta, Proposal, Removal

from .people import CONFIG, T_EXCL, machine_in, member, sends, view_of


def accept_without(names: str, out: str, cause: Cause, ballot: tuple[int, str]) -> Accept:
    view = view_of(names)
    return Accept(2, view.view_id, ballot, Proposal(view.view_id, 2, (Removal(out, cause),)))


def give(machine: Machine, sender: str, message: Message, now: float) -> list[Effect]:
    machine.receive(sender, member(sender).address, message, now)
    return machine.drain()


def test_a_ping_is_acked_and_one_for_another_lifetime_is_not() -> None:
    machine = machine_in("abc", "b")
    [ack] = sends(give(machine, "a", Ping(7, "b", 1, view_of("abc").view_id), 100.1), Ack)
    assert ack.address == member("a").address
    assert ack.message == Ack(7, "b", 1, view_of("abc").view_id)
    effects = give(machine, "a", Ping(8, "former", 1, ""), 100.1)
    assert [send.message for send in sends(effects, Stranger)] == [Stranger(8, "former")]
    assert not sends(effects, Ack)


def test_a_vote_freezes_first_and_carries_the_report() -> None:
    machine = machine_in("abc", "b")
    request = accept_without("abc", "c", Cause.PROOF, (0, "a"))
    effects = give(machine, "a", request, 100.1)
    assert Freeze(2, None) in effects
    assert not sends(effects, Accepted)
    machine.handle(Flushed(2, b"R"), 100.2)
    [vote] = sends(machine.drain(), Accepted)
    assert vote.message == Accepted(2, view_of("abc").view_id, (0, "a"), b"R")
    [again] = sends(give(machine, "a", request, 100.3), Accepted)
    assert again == vote, "a repeated request gets the same answer, and freezes nothing again"


def test_a_vote_waits_for_the_lease_and_the_excluded_is_acked_no_more() -> None:
    machine = machine_in("abc", "b")
    give(machine, "c", Ping(1, "b", 1, ""), 100.5)
    request = accept_without("abc", "c", Cause.SILENCE, (0, "a"))
    assert Freeze(2, None) not in give(machine, "a", request, 101.0), "not even frozen: it may come to nothing"
    assert not sends(give(machine, "c", Ping(2, "b", 1, ""), 101.1), Ack)
    assert machine.next_deadline() <= 100.5 + T_EXCL  # type: ignore[operator]
    machine.tick(100.5 + T_EXCL)
    assert Freeze(2, None) in machine.drain()


def test_a_vote_comes_at_the_very_end_of_the_lease_though_nothing_else_happens_then() -> None:
    machine = machine_in("abc", "b")
    give(machine, "c", Ping(1, "b", 1, ""), 100.53)
    effects, now = give(machine, "a", accept_without("abc", "c", Cause.SILENCE, (0, "a")), 101.0), 101.0
    while Freeze(2, None) not in effects:
        due = machine.next_deadline()
        assert due is not None
        machine.tick(now := due)
        effects = machine.drain()
    assert now == pytest.approx(100.53 + T_EXCL)


@pytest.mark.parametrize("asleep", [0.0, 3600.0])
def test_a_suspicion_runs_only_while_its_owner_is_awake(asleep: float) -> None:
    machine = machine_in("ab", "a")
    now = 100.0

    def held_against_b() -> str | None:
        evidence: str | None = machine.status()["members"][1]["evidence"]
        return evidence

    while machine.status()["members"][1]["status"] == "alive":  # nobody answers
        deadline = machine.next_deadline()
        assert deadline is not None
        now = deadline
        machine.tick(now)
    assert machine.next_deadline() is not None
    now += asleep
    machine.tick(now)
    assert held_against_b() is None, "what nobody was awake to hear is held against nobody"
    while held_against_b() is None:
        deadline = machine.next_deadline()
        assert deadline is not None
        now = deadline
        machine.tick(now)
    assert T_EXCL - 0.1 <= now - asleep - 100.0 <= T_EXCL + 1.0


def test_nothing_follows_the_word_of_ones_own_death() -> None:
    machine = machine_in("abc", "b")
    give(machine, "a", accept_without("abc", "c", Cause.PROOF, (0, "a")), 100.1)  # a vote is due, once the report is there
    machine.handle(Died("stalled", StoppedError("stalled")), 100.0)
    effects = machine.drain()
    assert {send.message for send in sends(effects, Evidence)} == {
        Evidence(view_of("abc").view_id, "b", EvidenceKind.PROOF, "stalled")
    }
    assert isinstance(effects[-1], Quit)
    machine.handle(Flushed(2, b"R"), 100.2)
    machine.tick(101.0)
    give(machine, "a", Ping(7, "b", 1, ""), 101.1)
    machine.handle(Leave(3), 101.2)
    machine.handle(Hint(("a",)), 101.3)
    assert machine.drain() == []


def test_the_last_words_say_whether_it_has_voted() -> None:
    """Here it has not: no vote is due, however many questions came."""
    machine = machine_in("abc", "b")
    give(machine, "c", Prepare(2, view_of("abc").view_id, (4, "c")), 100.1)
    machine.handle(Died("killed", StoppedError("killed")), 100.2)
    said = [send.message for send in sends(machine.drain(), Evidence)]
    assert said == [Evidence(view_of("abc").view_id, "b", EvidenceKind.PROOF, "killed", no_vote=True)] * 2


def test_a_lower_ballot_is_told_the_higher() -> None:
    machine = machine_in("abc", "b")
    view_id = view_of("abc").view_id
    [promise] = sends(give(machine, "c", Prepare(2, view_id, (4, "c")), 100.1), Promise)
    assert promise.message == Promise(2, view_id, (4, "c"))
    [no] = sends(give(machine, "a", accept_without("abc", "c", Cause.PROOF, (0, "a")), 100.2), Promised)
    assert no.message == Promised(2, view_id, (0, "a"), (4, "c"))


def test_an_ack_brings_rumours_of_others_though_nobody_waits_for_it() -> None:
    machine = machine_in("abc", "a")
    suspicion = Update("c", Status.SUSPECT, 0, "b")
    machine.receive("b", member("b").address, Ack(4711, "b", 1, machine._core.view_id, (suspicion,)), 100.1)
    assert machine.belief("c") is Status.SUSPECT


def test_an_ack_tells_where_the_data_plane_is() -> None:
    machine = machine_in("abc", "a")
    machine.tick(100.5)
    [ping] = [send.message for send in sends(machine.drain(), Ping) if send.message.target == "b"][:1]  # type: ignore[attr-defined]
    effects = give(machine, "b", Ack(ping.seq, "b", 1, machine._core.view_id, (), Progress(4, 5).pack(100.5)), 100.51)
    assert [(e.member_id, e.finished, e.current) for e in effects if isinstance(e, PeerProgress)] == [("b", 4, 5)]


@pytest.mark.parametrize("late", [0.0, 3600.0])
def test_whoever_is_woken_by_a_packet_knows_that_it_slept(late: float) -> None:
    machine = machine_in("abc", "a")
    machine.tick(100.0)
    machine.drain()
    deadline = machine.next_deadline()
    assert deadline is not None
    effects = give(machine, "b", Ack(4711, "b", 1, machine._core.view_id), deadline + late)
    assert any(isinstance(effect, Note) and effect.kind == "late" for effect in effects) is (late > 0.0)


@pytest.mark.parametrize("size", [3, 4, 5])
def test_applicants_wait_where_there_is_room(size: int) -> None:
    machine = machine_in("abc", "a", config=replace(CONFIG, max_size=size))
    assert not machine.applicants_waiting
    joiner = member("x", 77)
    machine.receive("x", joiner.address, JoinRequest(joiner, True, machine._core.config.terms), 100.1)
    assert machine.applicants_waiting is (size > 3)


def test_a_boundary_is_requested_for_an_applicant_as_soon_as_it_has_acked() -> None:
    """That ack was all that was missing: the boundary that its join waits for should not pass by meanwhile."""
    machine, joiner = machine_in("abc", "a"), member("x", 77)
    machine.receive("x", joiner.address, JoinRequest(joiner, True, CONFIG.terms), 100.1)
    effects = machine.drain()
    [ping] = [send.message for send in sends(effects, Ping) if send.address == joiner.address]
    assert isinstance(ping, Ping) and BoundaryRequest(True) not in effects
    machine.receive("x", joiner.address, Ack(ping.seq, "x", 0, ""), 100.11)
    assert BoundaryRequest(True) in machine.drain()


def test_what_is_suspected_is_passed_on() -> None:
    machine = machine_in("abc", "a")
    give(machine, "b", Gossip((Update("c", Status.SUSPECT, 0, "b"),), direct=True), 100.1)
    told = []
    for step in range(10):
        machine.tick(100.1 + 0.1 * step)
        told += [update for send in sends(machine.drain(), Gossip) for update in send.message.updates]  # type: ignore[attr-defined]
    assert any(update.member_id == "c" and update.status is Status.SUSPECT for update in told)


def test_a_higher_promise_is_outbid_after_a_short_pause() -> None:
    machine = machine_in("abcde", "b")
    machine.handle(Checked("a", False, "refused"), 100.1)
    proposer, core = machine._change.proposer, machine._core
    machine.tick(100.2)
    first = proposer.attempt
    assert first is not None
    give(machine, "c", Promised(first.epoch, core.view_id, first.ballot, (7, "c")), 100.2)
    assert proposer.attempt is None
    machine.tick(100.2 + 0.49 * core.config.resend)
    assert proposer.attempt is None
    machine.tick(100.2 + 1.51 * core.config.resend)
    assert proposer.attempt is not None and proposer.attempt.ballot == (8, "b")


@pytest.mark.parametrize("ballot", [(0, "c"), (1, "a")])
def test_illegitimate_ballots_get_no_answer(ballot: tuple[int, str]) -> None:
    machine = machine_in("abc", "b")
    assert give(machine, "c", accept_without("abc", "a", Cause.PROOF, ballot), 100.1) == []


def test_laggards_pull_and_are_told() -> None:
    machine = machine_in("abc", "b")
    effects = give(machine, "a", Prepare(5, "unknown", (1, "a")), 100.1)
    assert [send.message for send in sends(effects, Pull)] == [Pull(1, view_of("abc").view_id)]
    effects = give(machine, "a", Pull(0), 100.1)
    assert [send.message for send in sends(effects, Chosen)] == [Chosen(view_of("abc"), "a")]
    assert not sends(give(machine, "a", Pull(1), 100.1), Chosen)


def test_who_is_asked_to_decide_on_the_epoch_after_the_next_pulls() -> None:
    """It has missed the view in between, and its vote may be needed."""
    machine = machine_in("abc", "b")
    for request in (
        Prepare(3, "unknown", (1, "a")),
        Accept(3, "unknown", (0, "a"), Proposal("unknown", 3, (Removal("c", Cause.PROOF),))),
    ):
        effects = give(machine, "a", request, 100.1)
        assert [effect.message for effect in effects if isinstance(effect, Send)] == [Pull(1, view_of("abc").view_id)]


def test_who_asks_for_votes_on_a_view_that_is_decided_is_told_so() -> None:
    """It would ask for ever else; only what comes after the view that it has, if that is known."""
    machine, first = machine_in("abc", "b"), view_of("abc")
    second = view_of("ab", 2, first.view_id, first.cluster)
    give(machine, "a", Chosen(second, "a"), 100.1)
    delta = Delta.between(first, second)
    for parent_id, told in (
        (first.view_id, Chosen(None, "a", delta)),
        ("unknown", Chosen(second, "a", None, (first.view_id,))),
    ):
        for request in (
            Prepare(2, parent_id, (1, "c")),
            Accept(2, parent_id, (1, "c"), Proposal(parent_id, 2, (Removal("a", Cause.PROOF),))),
        ):
            assert sends(give(machine, "c", request, 100.2), Message) == [Send(member("c").address, told)]


def test_whoever_is_not_in_a_chosen_view_is_out() -> None:
    machine = machine_in("abc", "b")
    newer = view_of("ac", 2, view_of("abc").view_id)
    effects = give(machine, "a", Chosen(newer, "a"), 100.1)
    [stopped] = [effect for effect in effects if isinstance(effect, Stopped)]
    assert isinstance(stopped.error, ExcludedError)
    assert machine.next_deadline() is None
    assert give(machine, "a", Ping(1, "b", 2, ""), 100.2) == [], "it is silent from then on"


def test_a_view_whose_id_is_not_its_hash_is_ignored() -> None:
    machine = machine_in("abc", "b")
    forged = replace(view_of("ac", 2), view_id="0" * 16)
    assert give(machine, "a", Chosen(forged, "a"), 100.1) == []


def about_to_install() -> tuple[Machine, Install]:
    machine = machine_in("abc", "b")
    parent = view_of("abc")
    view = Proposal(parent.view_id, 2, (Removal("c", Cause.PROOF),)).apply(parent)
    give(machine, "a", accept_without("abc", "c", Cause.PROOF, (0, "a")), 100.1)
    machine.handle(Flushed(2, b"B"), 100.1)
    machine.drain()
    return machine, Install(view, None, (0, "a"), Reports.of([b"A", b"B"]))


def test_install_ready_activate() -> None:
    machine, install = about_to_install()
    effects = give(machine, "a", install, 100.2)
    assert Installed(install.view, {"a": b"A", "b": b"B"}) in effects
    assert give(machine, "a", Activate(2, install.view.view_id), 100.2) == [], "not ready yet"
    machine.handle(Built(install.view.view_id), 100.3)
    assert [send.message for send in sends(machine.drain(), Ready)] == [Ready(2, install.view.view_id)]
    give(machine, "a", Activate(2, install.view.view_id), 100.4)
    assert machine.active_view == install.view
    assert not machine.changing
    assert not [e for e in give(machine, "a", install, 100.5) if isinstance(e, Installed)], "once"


def test_who_has_built_its_group_says_so_until_all_have() -> None:
    """A word of it or of the answer may be lost, and all others wait for this member."""
    machine, install = about_to_install()
    assert install.view is not None
    give(machine, "a", install, 100.2)
    machine.handle(Built(install.view.view_id), 100.3)
    assert sends(machine.drain(), Ready)
    now, times = 100.3, list[float]()
    while now < 100.3 + 4.5 * CONFIG.resend:
        due = machine.next_deadline()
        assert due is not None
        machine.tick(now := due)
        times += [now for _ in sends(machine.drain(), Ready)]
    assert times[:4] == pytest.approx([100.3 + turn * CONFIG.resend for turn in range(1, 5)])
    give(machine, "a", Activate(2, install.view.view_id), now)
    machine.tick(now + 2 * CONFIG.resend)
    assert not sends(machine.drain(), Ready)


def test_a_boundary_is_requested_for_who_asked_to_join_during_a_change_as_soon_as_that_is_over() -> None:
    """The calls go on from that moment, and the next boundary should not pass by."""
    machine, view_id = machine_in("abc", "a"), view_of("abc").view_id
    machine.handle(Checked("c", False, "refused"), 100.1)
    machine.tick(100.2)
    machine.handle(Flushed(2, b"A"), 100.2)
    give(machine, "b", Accepted(2, view_id, (0, "a"), b"B"), 100.2)
    view = machine.view
    assert view is not None and view.ids == ("a", "b")
    machine.handle(Built(view.view_id), 100.3)
    joiner = member("x", 77)
    machine.receive("x", joiner.address, JoinRequest(joiner, True, CONFIG.terms), 100.3)
    [ping] = [send.message for send in sends(machine.drain(), Ping) if send.address == joiner.address]
    assert isinstance(ping, Ping)
    machine.receive("x", joiner.address, Ack(ping.seq, "x", 0, ""), 100.31)
    assert BoundaryRequest(True) not in machine.drain()
    effects = give(machine, "b", Ready(2, view.view_id), 100.32)
    assert machine.active_view == view and BoundaryRequest(True) in effects


def test_a_group_of_another_view_is_no_group_of_this_one() -> None:
    """It may have been built for a view that a newer one overtook."""
    machine, install = about_to_install()
    give(machine, "a", install, 100.2)
    machine.handle(Built("another"), 100.3)
    assert not sends(machine.drain(), Ready)
    give(machine, "a", Activate(2, install.view.view_id), 100.4)
    assert machine.active_view == view_of("abc")


def test_an_install_with_another_report_of_ours_or_below_a_promise_is_ignored() -> None:
    machine, install = about_to_install()
    wrong = Install(install.view, None, install.ballot, Reports.of([b"A", b"other"]))
    assert not [e for e in give(machine, "a", wrong, 100.2) if isinstance(e, Installed)]
    without = Install(install.view, None, install.ballot, Reports.of([b"A"]))
    assert not [e for e in give(machine, "a", without, 100.2) if isinstance(e, Installed)]
    give(machine, "c", Prepare(2, view_of("abc").view_id, (3, "c")), 100.2)
    assert not [e for e in give(machine, "a", install, 100.2) if isinstance(e, Installed)]


def test_a_hint_only_checks() -> None:
    machine = machine_in("abc", "b")
    machine.handle(Accusation("c", EvidenceKind.HINT, "connection closed by peer"), 100.1)
    effects = machine.drain()
    assert effects == [Check(member("c"))]
    machine.handle(Accusation("c", EvidenceKind.HINT, "again"), 100.1)
    assert machine.drain() == [], "one check at a time"
    machine.handle(Checked("c", True, ""), 100.2)
    assert machine.status()["members"][2]["evidence"] is None
    machine.drain()
    machine.handle(Accusation("c", EvidenceKind.HINT, "closed once more"), 100.3)
    assert machine.drain() == [Check(member("c"))], "what it answered before says nothing about now"


def test_nobody_is_told_of_the_death_of_a_stranger() -> None:
    """As of a member of the last view, whose end this member's agent sees only now."""
    machine = machine_in("abc", "b")
    machine.handle(Accusation("x", EvidenceKind.PROOF, "its training process ended"), 100.1)
    machine.tick(100.2)
    assert not sends(machine.drain(), Evidence)


def test_a_refused_check_is_proof_and_is_told_to_the_seniors() -> None:
    machine = machine_in("abcde", "d")
    machine.handle(Checked("e", False, "refused"), 100.1)
    told = sends(machine.drain(), Evidence)
    assert [send.address for send in told] == [member(name).address for name in "abc"]
    assert machine.status()["members"][4]["evidence"] == "proof"
    machine.tick(100.2)
    assert sends(machine.drain(), Evidence), "again and again until the view changes"


def test_an_undecided_check_proves_nothing() -> None:
    machine = machine_in("abc", "b")
    machine.handle(Checked("c", None, "timed out"), 100.1)
    assert machine.drain() == []


def test_evidence_of_another_view_or_from_a_stranger_or_against_oneself_is_ignored() -> None:
    machine = machine_in("abc", "b")
    view_id = view_of("abc").view_id
    for sender, evidence in [
        ("a", Evidence("another", "c", EvidenceKind.PROOF)),
        ("x", Evidence(view_id, "c", EvidenceKind.PROOF)),
        ("a", Evidence(view_id, "b", EvidenceKind.PROOF)),
        ("a", Evidence(view_id, "x", EvidenceKind.PROOF)),
    ]:
        give(machine, sender, evidence, 100.1)
    assert [entry["evidence"] for entry in machine.status()["members"]] == [None] * 3


def test_who_is_told_of_a_death_lets_go_of_its_connection_and_asks_nobody() -> None:
    """And says so itself only where the word seems to have been lost."""
    machine = machine_in("abcdefg", "c")
    resend = CONFIG.resend
    word = Evidence(view_of("abcdefg").view_id, "e", EvidenceKind.PROOF, "its training process ended")
    effects = give(machine, "e", word, 100.1)
    assert [effect.members for effect in effects if isinstance(effect, KeepConnections)] == [(member("d"), member("f"))]
    assert not [effect for effect in effects if isinstance(effect, (Check, Send))]
    machine.handle(Checked("e", False, "connection refused"), 100.101)  # a look that was under way
    machine.tick(100.1 + 0.9 * resend)
    assert not sends(machine.drain(), Evidence)
    machine.tick(100.1 + resend)
    assert {send.address for send in sends(machine.drain(), Evidence)} == {member("a").address, member("b").address}


def test_who_holds_no_connection_to_the_dead_says_nothing() -> None:
    machine = machine_in("abcdefg", "f")
    word = Evidence(view_of("abcdefg").view_id, "e", EvidenceKind.PROOF, "its training process ended")
    effects = give(machine, "e", word, 100.1)
    assert not [effect for effect in effects if isinstance(effect, (Check, Send, KeepConnections))]
    machine.tick(100.1 + 2 * CONFIG.resend)
    assert not sends(machine.drain(), Evidence)


def test_others_silence_counts_only_without_own_contact() -> None:
    machine = machine_in("abc", "a")
    evidence = Evidence(view_of("abc").view_id, "c", EvidenceKind.SILENCE)
    give(machine, "b", evidence, 100.0 + T_EXCL - 0.1)
    assert machine.status()["members"][2]["evidence"] is None
    give(machine, "b", evidence, 100.0 + T_EXCL)
    assert machine.status()["members"][2]["evidence"] == "silence"


def test_a_stranger_is_proof_only_from_the_accuseds_own_address() -> None:
    machine = machine_in("abc", "b")
    machine.receive("x", member("a").address, Stranger(1, "c"), 100.1)
    assert machine.status()["members"][2]["evidence"] is None
    machine.receive("x", member("c").address, Stranger(1, "c"), 100.1)
    assert machine.status()["members"][2]["evidence"] == "proof"


def test_a_frozen_member_asks_for_a_new_epoch_after_a_while() -> None:
    machine = machine_in("abc", "b")
    machine._change.frozen(100.0)
    assert machine.changing
    machine.tick(100.19)
    assert not [s for s in sends(machine.drain(), Evidence) if s.message.kind is EvidenceKind.FROZEN]  # type: ignore[union-attr]
    machine.tick(100.21)
    told = [s for s in sends(machine.drain(), Evidence) if s.message.kind is EvidenceKind.FROZEN]  # type: ignore[union-attr]
    assert [send.address for send in told] == [member("a").address, member("c").address]


def test_status_is_plain_values() -> None:
    status = machine_in("abc", "b").status()
    assert {key: status[key] for key in ("id", "epoch", "active_epoch", "changing", "coordinator", "policy", "stopped")} == {
        "id": "b",
        "epoch": 1,
        "active_epoch": 1,
        "changing": False,
        "coordinator": "a",
        "policy": "majority",
        "stopped": None,
    }
    assert [entry["id"] for entry in status["members"]] == list("abc")
    assert status["members"][0]["address"] == "10.0.0.1:1097"
    assert status["members"][0]["status"] == "alive"


def test_who_has_no_view_says_that_it_is_in_no_epoch() -> None:
    machine = Machine(CONFIG, member("x"), Random(1), founder=False, introducers=(("10.0.0.1", 1),))
    machine.start(100.0)
    status = machine.status()
    assert (status["epoch"], status["active_epoch"], status["coordinator"], status["members"]) == (0, 0, None, [])


def test_nonsense_changes_nothing() -> None:
    machine = machine_in("abc", "b")
    before = machine.status()
    nonsense: list[Message] = [
        Ack(99, "a", 1, "x"),
        Nack(99),
        Promise(2, "x", (1, "b")),
        Promised(2, "x", (1, "b"), (2, "c")),
        Accepted(2, "x", (0, "a"), b""),
        Ready(1, "x"),
        Activate(1, "x"),
        LeaveRequest("x", "c"),
    ]
    for message in nonsense:
        give(machine, "a", message, 100.1)
    assert machine.status() == before


@pytest.mark.parametrize(("suspects", "wait"), [(("b",), 0.0), (("b", "c"), 0.0), (("c",), CONFIG.frozen_wait)])
def test_a_member_that_blames_itself_asks_for_a_new_epoch_at_once(suspects: tuple[str, ...], wait: float) -> None:
    """Others may be dead: it waits for a change without them before it asks."""
    machine = machine_in("abc", "b")
    machine.tick(100.0)
    machine.drain()
    machine.handle(Hint(suspects), 100.0)
    machine.tick(100.0)
    effects = machine.drain()
    assert [check.member.id for check in effects if isinstance(check, Check)] == (["c"] if wait else [])
    kinds = {send.message.kind for send in sends(effects, Evidence) if isinstance(send.message, Evidence)}
    assert kinds == (set() if wait else {EvidenceKind.FROZEN})
    machine.tick(100.0 + wait + 0.001)
    assert bool(sends(machine.drain(), Evidence)) == bool(wait)


def test_who_kept_its_deadline_is_not_late_before_it_has_said_the_next_one() -> None:
    """Its driver may hand in several packets before it asks again when to come back."""
    machine = machine_in("abc", "a")
    deadline = machine.next_deadline()
    assert deadline is not None
    machine.tick(deadline)
    effects = give(machine, "b", Ack(4711, "b", 1, machine._core.view_id), deadline + 10.0)
    assert not any(isinstance(effect, Note) and effect.kind == "late" for effect in effects)


def test_of_what_others_say_of_a_death_a_few_words_are_kept_and_passed_on() -> None:
    machine = machine_in("abcd", "c")
    view = view_of("abcd")
    give(machine, "b", Evidence(view.view_id, "d", EvidenceKind.PROOF, "x" * 4000), 100.1)
    told = machine._core.evidence.proofs["d"].detail
    assert told == f"{'x' * MAX_DETAIL} (says b)"
    machine._change.adopt(Proposal(view.view_id, 2, (Removal("b", Cause.SILENCE),)).apply(view), "a", 100.2)
    words = [send.message.detail for send in sends(machine.drain(), Evidence)]  # type: ignore[attr-defined]
    assert words and set(words) == {"x" * MAX_DETAIL}, "d is still in the next view"
    give(machine, "a", Evidence(machine._core.view_id, "a", EvidenceKind.UNREADY, "y" * 4000), 100.3)
    assert [len(each["detail"]) for each in machine.status()["under_way"]["findings"] if each["accused"] == "a"] == [MAX_DETAIL]


def test_who_acks_from_no_view_yet_lives_and_has_contact_once_all_are_in() -> None:
    """Its vote on the next view is bound by that ack only if it has followed this one."""
    machine = machine_in("abc", "a")
    machine.tick(100.5)
    [ping] = [send.message for send in sends(machine.drain(), Ping) if send.message.target == "b"][:1]  # type: ignore[attr-defined]
    peer = machine._core.table.get("b")
    assert peer is not None
    before = peer.contact
    give(machine, "b", Ack(ping.seq, "b", 0, ""), 100.51)
    assert peer.last_sign == 100.5 and peer.contact == before
    machine._core.table.all_in(1)
    assert peer.contact == 100.5


@pytest.mark.parametrize("voted", [False, True])
def test_whoever_voted_itself_out_follows_no_other_view_of_that_epoch(voted: bool) -> None:
    """Both may be chosen once all who voted for one are dead, and the members of the one without it rely on being alone."""
    machine, parent = machine_in("abc", "c"), view_of("abc")
    if voted:
        give(machine, "a", accept_without("abc", "c", Cause.LEFT, (0, "a")), 100.1)
    other = Proposal(parent.view_id, 2, (Removal("b", Cause.PROOF),)).apply(parent)
    give(machine, "a", Chosen(other, "a"), 100.2)
    assert machine.view == (parent if voted else other)


def test_a_pause_before_the_next_proposal_ends_with_the_view_that_it_was_about() -> None:
    machine, parent = machine_in("abc", "a"), view_of("abc")
    machine._change.proposer.refused(100.1, 900.0)
    machine._change.adopt(Proposal(parent.view_id, 2, (Removal("b", Cause.LEFT),)).apply(parent), "a", 100.2)
    machine.handle(Checked("c", False, "refused"), 100.3)
    machine.tick(100.3 + 2 * CONFIG.settle_max)
    assert machine._change.proposer.attempt is not None


def test_who_leaves_after_a_call_is_a_finding_of_the_change() -> None:
    machine = machine_in("abc", "b")
    machine.handle(Boundary(7, ("c", "x")), 100.1)
    told = [(each["kind"], each["accused"], each["detail"]) for each in machine.status()["under_way"]["findings"]]
    assert told == [("leave", "c", "leaves after call 7")], "x is a stranger"


def test_a_silence_is_told_again_until_the_silent_one_answers() -> None:
    machine = machine_in("abcd", "c")
    machine.handle(Accusation("d", EvidenceKind.SILENCE, "no answer"), 100.1)
    machine.drain()
    machine.tick(100.2)
    assert {send.address for send in sends(machine.drain(), Evidence)} == {member("a").address, member("b").address}
    give(machine, "d", Gossip((Update("d", Status.ALIVE, 1, "d"),)), 100.21)
    machine.tick(101.3)
    assert not sends(machine.drain(), Evidence)


def test_what_was_told_of_one_view_is_not_repeated_in_the_next() -> None:
    """Nobody would heed it there."""
    machine, parent = machine_in("abcd", "c"), view_of("abcd")
    machine.handle(Accusation("d", EvidenceKind.UNREADY, "its group is not built"), 100.1)
    assert sends(machine.drain(), Evidence)
    machine._change.adopt(Proposal(parent.view_id, 2, (Removal("b", Cause.PROOF),)).apply(parent), "a", 100.2)
    for step in range(20):
        machine.tick(100.2 + 0.1 * step)
        assert not [send for send in sends(machine.drain(), Evidence) if send.message.view_id == parent.view_id]  # type: ignore[union-attr]


def test_who_is_in_no_view_or_out_of_it_accuses_nobody() -> None:
    """Its agent may still find that a process has ended or a group is stuck."""
    machine = machine_in("abc", "b")
    give(machine, "a", Chosen(view_of("ac", 2, view_of("abc").view_id), "a"), 100.1)
    assert machine.stopped is not None
    machine.handle(Accusation("c", EvidenceKind.PROOF, "reaped"), 100.2)
    assert machine.drain() == []
    alone = Machine(CONFIG, member("x"), Random(1), founder=False, introducers=(("10.0.0.1", 1),))
    alone.start(100.0)
    alone.drain()
    alone.handle(Accusation("x", EvidenceKind.FROZEN, "frozen"), 100.1)
    assert not sends(alone.drain(), Evidence)


@pytest.mark.parametrize("alive", [True, None])
def test_a_change_that_waited_for_a_check_begins_as_soon_as_that_has_ended(alive: bool | None) -> None:
    machine = machine_in("abcde", "a")
    machine.handle(Accusation("c", EvidenceKind.HINT, "connection closed by peer"), 100.0)
    machine.handle(Checked("e", False, "refused"), 100.0)
    machine.tick(100.1)
    assert not sends(machine.drain(), Accept), "c may be dead, too"
    machine.handle(Checked("c", alive, ""), 100.11)
    assert sends(machine.drain(), Accept)


def test_a_sleep_counts_once_however_many_packets_waited_for_its_end() -> None:
    """Else each of them would put off what is held against others, and count against this member itself."""
    machine = machine_in("abc", "a")
    machine.tick(100.0)
    machine.drain()
    deadline = machine.next_deadline()
    assert deadline is not None
    notes: list[Effect] = []
    for number, sender in enumerate("bcb"):
        effects = give(machine, sender, Gossip(()), deadline + 10.0 + 0.001 * number)
        notes += [effect for effect in effects if isinstance(effect, Note) and effect.kind == "late"]
    assert len(notes) == 1
    assert machine.status()["awareness"] == 1


@pytest.mark.parametrize(("ended", "says"), [(False, "asked to leave"), (True, "its program has ended")])
@pytest.mark.parametrize("own", ["b", "c"])
def test_why_a_member_leaves_is_said_by_itself_and_by_whom_it_asks(own: str, ended: bool, says: str) -> None:
    machine = machine_in("abc", own)
    if own == "c":
        machine.handle(Leave(None, ended=ended), 100.1)
    else:
        give(machine, "c", LeaveRequest(view_of("abc").view_id, "c", None, ended), 100.1)
    told = [(each["kind"], each["accused"], each["detail"]) for each in machine.status()["under_way"]["findings"]]
    assert told == [("leave", "c", says)]


def test_who_leaves_asks_again_and_again_though_nothing_else_is_due() -> None:
    """Words may be lost, and it waits for the answer."""
    machine, resend = machine_in("abc", "c"), CONFIG.resend
    asked, now = [], 100.0
    machine.handle(Leave(None), now)
    while now < 100.0 + 3.5 * resend:
        asked += [(send.address, now) for send in sends(machine.drain(), LeaveRequest)]
        due = machine.next_deadline()
        assert due is not None
        machine.tick(now := due)
    assert {address for address, _ in asked} == {member("a").address}
    assert [time for _, time in asked] == pytest.approx([100.0 + turn * resend for turn in range(4)])


@pytest.mark.parametrize("ended", [False, True])
def test_a_coordinator_that_leaves_proposes_that_at_once(ended: bool) -> None:
    machine = machine_in("abc", "a")
    machine.handle(Leave(None, ended=ended), 100.1)
    asked = {send.address: send.message for send in sends(machine.drain(), Accept)}
    request = accept_without("abc", "a", Cause.LEFT, (0, "a"))
    assert asked == {member(name).address: request for name in "bc"}
