"""INSTALL carries exactly the reports of the continuing members."""

from __future__ import annotations

from consensus.messages import FlushRequest, Install, Message
from consensus.messages.reports import Reports
from consensus.protocol.agreement.installation import Installation
from consensus.simulation import Host
from consensus.view import Cause, Delta, Proposal, Removal, View

from ..transcripts.script import agree, start_job
from .people import member, view_of

PARENT = view_of("abc")
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
