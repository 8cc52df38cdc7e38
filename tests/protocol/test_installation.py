"""INSTALL carries exactly the reports of the continuing members."""

from __future__ import annotations

from random import Random

import pytest

from consensus.border import Flushed, Freeze
from consensus.errors import ExcludedError
from consensus.member import Member
from consensus.messages import (
    Accept,
    Accepted,
    Chosen,
    EvidenceKind,
    FlushReply,
    FlushRequest,
    Install,
    Introduction,
    Message,
    Pull,
    Ready,
)
from consensus.messages.reports import Reports
from consensus.protocol.agreement.installation import PAUSE, RESEND_AT_MOST, Installation
from consensus.protocol.agreement.installer import LEAVERS_WAIT, Installer
from consensus.protocol.machine import Machine
from consensus.protocol.state.core import Core
from consensus.protocol.state.inputs import Checked
from consensus.protocol.state.life import Turn
from consensus.simulation import Host
from consensus.view import Cause, Delta, Proposal, Removal, View

from ..transcripts.script import agree, start_job
from .people import CONFIG, core_of, machine_in, member, sends, view_of

PARENT = view_of("abc")
VIEW_WITH_B = Proposal(PARENT.view_id, 2, (Removal("a", Cause.PROOF),)).apply(PARENT)
VIEW = Proposal(PARENT.view_id, 2, (Removal("b", Cause.PROOF),), (member("j"),)).apply(PARENT)


def installation(reports: dict[str, bytes], parent: View | None = PARENT) -> Installation:
    return Installation(VIEW, parent, (0, "a"), reports, 100.0)


def test_joiners_have_no_report_and_the_removed_ones_do_not_count() -> None:
    one = installation({"a": b"A", "b": b"B"})
    assert one.continuing == ("a", "c")
    assert one.missing_reports() == ("c",)
    delta = Delta(2, VIEW.view_id, PARENT.view_id, (1,), (member("j"),))
    assert one.flush_request() == FlushRequest(delta, None)
    one.reported("c", b"C")
    one.reported("c", b"the first one counts")
    assert one.complete
    reports = Reports.of([b"A", b"C"])
    assert reports.by_id(VIEW) == {"a": b"A", "c": b"C"}
    assert one.message(whole=True) == Install(VIEW, None, (0, "a"), reports)
    assert one.message(whole=False) == Install(None, delta, (0, "a"), reports)


def test_everybody_must_be_ready_joiners_included() -> None:
    one = installation({})
    for member_id in "aca":
        one.readied(member_id)
    assert one.missing_ready() == ("j",)
    assert not one.all_ready


def test_founders_continue_nothing() -> None:
    one = installation({}, None)
    assert one.missing_reports() == ()
    assert one.message(whole=False) == Install(VIEW, None, (0, "a"), Reports.of([])), "nobody holds a parent"


def test_a_joiner_is_told_of_the_views_before() -> None:
    """By their ids it knows later whether a view comes from the one that it acts in."""
    world, members = start_job(3)
    world.kill(members[-1])
    agree(world, members[:2])
    told: list[Install] = []

    def watch(_: Host, message: Message) -> bool:
        told.extend([message] if isinstance(message, Install) and message.view is not None else [])
        return True

    world.watch = watch
    joiner = world.start("x", introducers=(members[0].name,))
    agree(world, [*members[:2], joiner])
    earlier = [view.view_id for view in members[0].activated]
    assert {install.trail for install in told} == {(earlier[1], earlier[0])}


def installing(parent: View | None = PARENT) -> Installer:
    """At "a", which lacks the report of "c"."""
    core = core_of("a")
    core.follow(VIEW)
    one = Installer(core, lambda *_: None, lambda _now: None)
    one.begin(installation({"a": b"A"}, parent), 100.0)
    return one


def lacks(one: Installer) -> tuple[str, ...]:
    assert one._installation is not None
    return one._installation.missing_reports()


def test_a_late_vote_brings_a_report_only_if_it_is_for_this_ballot_and_parent() -> None:
    one = installing()
    for ballot, parent_id in (((1, "a"), PARENT.view_id), ((0, "a"), "another"), ((0, "c"), PARENT.view_id)):
        one.on_late_vote("c", Accepted(2, parent_id, ballot, b"wrong"), 100.1)
        assert lacks(one) == ("c",), (ballot, parent_id)
    one.on_late_vote("c", Accepted(2, PARENT.view_id, (0, "a"), b"C"), 100.1)
    assert lacks(one) == ()


def test_reports_of_strangers_are_nothing() -> None:
    one = installing()
    one.on_flush_reply("x", FlushReply(2, VIEW.view_id, b"X"), 100.1)
    assert one._installation is not None
    assert set(one._installation.reports) == {"a"}
    one.on_flush_reply("b", FlushReply(2, VIEW.view_id, b"B"), 100.1)
    assert set(one._installation.reports) == {"a", "b"}, "a removed member was in the parent"
    one.on_flush_reply("c", FlushReply(2, "another", b"C"), 100.1)
    assert lacks(one) == ("c",)


def test_whole_views_only_for_those_who_cannot_know_the_last_one() -> None:
    one = installing()
    one.on_flush_reply("c", FlushReply(2, VIEW.view_id, b"C"), 100.1)
    told = {send.address: send.message.view is not None for send in sends(one._core.outbox.drain(), Install)}  # type: ignore[attr-defined]
    assert told == {member("c").address: False, member("j").address: True}


def test_a_leaver_in_its_last_call_has_a_moment_to_end_it() -> None:
    """Whoever installs the view ends the old group, without which that call cannot end."""
    view = Proposal(PARENT.view_id, 2, (Removal("b", Cause.LEFT),)).apply(PARENT)

    def leaving() -> tuple[Core, Installer]:
        core = core_of("a")
        core.follow(view)
        one = Installer(core, lambda *_: None, lambda _now: None)
        reports, removed = {"a": b"A", "c": b"C"}, (Removal("b", Cause.LEFT),)
        one.begin(Installation(view, PARENT, (0, "a"), reports, 100.0, removed=removed), 100.0)
        return core, one

    core, one = leaving()
    one.tick(100.0 + LEAVERS_WAIT - 0.01)
    assert not sends(core.outbox.drain(), Install)
    one.tick(100.0 + LEAVERS_WAIT + 0.01)
    assert sends(core.outbox.drain(), Install)
    core, one = leaving()
    one.on_flush_reply("b", FlushReply(2, view.view_id, b"B"), 100.1)
    assert sends(core.outbox.drain(), Install), "it has ended"


def test_a_leaving_driver_gives_up_only_once_nobody_of_its_view_lives() -> None:
    core = core_of("b")
    core.turn(Turn.ADMITTED)
    core.follow(VIEW)
    one = Installer(core, lambda *_: None, lambda _now: None)
    one.begin(installation({"a": b"A", "c": b"C"}), 100.0)
    for index, name in enumerate(VIEW.ids):
        assert core.stopped is None, "somebody may still build the group"
        core.evidence.prove(name, "it is gone", 100.0, 100.0)
        one.tick(100.1 + 0.01 * index)
    assert core.stopped is not None


def test_a_joiner_that_pulls_gets_the_whole_view_once_there_is_an_install() -> None:
    one = installing()
    assert one.whole("j") is None, "reports are missing"
    one.on_flush_reply("c", FlushReply(2, VIEW.view_id, b"C"), 100.1)
    install = one.whole("j")
    assert install is not None and install.view == VIEW and install.delta is None
    assert one.whole("b") is None, "it is not in that view"


def test_install_goes_out_again_more_and_more_rarely() -> None:
    one, now, pauses = installation({"a": b"A", "c": b"C"}), 100.0, []
    for _ in range(8):
        one.sent_again(now)
        pauses.append(one.next_send - now)
        now = one.next_send
    assert pauses == pytest.approx([min(2 ** (1 + index) * PAUSE, RESEND_AT_MOST) for index in range(8)])


def test_who_keeps_the_others_waiting_for_too_long_is_unready() -> None:
    """A member that does not report, and later one that does not build its group; never the driver itself."""
    accused: list[tuple[str, EvidenceKind, str]] = []
    core = core_of("a")
    core.follow(VIEW)
    one = Installer(
        core,
        lambda member_id, kind, detail, _: accused.append((member_id, kind, detail.split(" within")[0])),
        lambda _now: None,
    )
    one.begin(installation({"a": b"A"}), 100.0)
    late = 100.0 + core.config.ready_timeout
    one.tick(late - 0.01)
    assert accused == []
    one.tick(late)
    assert accused == [("c", EvidenceKind.UNREADY, "did not report")]
    one.on_flush_reply("c", FlushReply(2, VIEW.view_id, b"C"), late)
    one.on_ready("c", member("c").address, Ready(2, VIEW.view_id), late)
    accused.clear()
    one.tick(late + 0.01)
    assert accused == [("j", EvidenceKind.UNREADY, "did not build its group")]


def test_a_call_that_a_gone_member_was_in_is_not_waited_for() -> None:
    """Those asked for their reports would else stay in it."""
    core = core_of("a")
    core.follow(VIEW)
    one = Installer(core, lambda *_: None, lambda _now: None)
    one.begin(Installation(VIEW, PARENT, (0, "a"), {"a": b"A"}, 100.0, after_call=7), 100.0)
    one.tick(101.0)
    core.evidence.prove("j", "it is gone", 100.0, 101.1)
    one.tick(102.0)
    asked = [send.message.after_call for send in sends(core.outbox.drain(), FlushRequest)]  # type: ignore[attr-defined]
    assert (asked[0], asked[-1]) == (7, None)


def test_who_drove_a_view_that_a_newer_one_overtook_asks_and_accuses_nobody_any_more() -> None:
    """The others have left that view, and would be blamed for it."""
    machine, parent = machine_in("abcd", "a"), view_of("abcd")
    change, timeout = machine._change, machine._core.config.ready_timeout
    machine.handle(Checked("d", False, "refused"), 100.0)
    machine.tick(100.1)
    machine.handle(Flushed(2, b"A"), 100.1)
    machine.receive("b", member("b").address, Accepted(2, parent.view_id, (0, "a"), b"B"), 100.1)
    view = machine.view
    assert view is not None and view.ids == ("a", "b", "c")
    machine.tick(100.2)
    assert {send.address for send in sends(machine.drain(), FlushRequest)} == {member("c").address}
    newer = Proposal(view.view_id, 3, (), (member("j"),)).apply(view)
    machine.receive("b", member("b").address, Chosen(newer, "b"), 100.3)
    change.installer.tick(100.0 + timeout + 1.0)
    assert not sends(machine.drain(), FlushRequest) and not machine._core.evidence.unready
    machine.receive("x", member("x").address, Pull(1, "another"), 100.3)
    assert sends(machine.drain(), Introduction), "what it waited for keeps the newer view from nobody"


def test_a_joiner_is_never_asked_for_a_report() -> None:
    """The request is for b, which has died: the joiner listens where that one did."""
    parent = view_of("abc")
    joiner = Member("d", *member("b").address)
    chosen = Proposal(parent.view_id, 2, joined=(joiner,)).apply(parent)
    delta = Delta.between(parent, chosen)
    assert delta is not None
    machine = Machine(CONFIG, joiner, Random(1), founder=False, introducers=(member("a").address,))
    machine.start(100.0)
    machine.receive("a", member("a").address, Chosen(chosen, "a"), 100.1)
    assert machine.view == chosen
    machine.drain()
    machine.receive("a", member("a").address, FlushRequest(delta), 100.2)
    assert not any(isinstance(effect, Freeze) for effect in machine.drain())


def test_who_voted_itself_out_stops_when_another_list_is_chosen() -> None:
    """It may not follow that one, and all others would wait for its report."""
    machine = machine_in("abc", "b")
    parent = machine.view
    assert parent is not None
    without_us = Proposal(parent.view_id, 2, (Removal("b", Cause.SILENCE),))
    machine.receive("a", member("a").address, Accept(2, parent.view_id, (0, "a"), without_us), 200.0)
    machine.receive("c", member("c").address, Chosen(VIEW_WITH_B, "c"), 200.1)
    assert isinstance(machine.stopped, ExcludedError) and "voted for a list without itself" in str(machine.stopped)
