"""INSTALL carries exactly the reports of the continuing members."""

from __future__ import annotations

from consensus.messages import FlushRequest, Install
from consensus.protocol.installation import Installation
from consensus.view import Cause, Proposal, Removal, View

from .people import member, view_of

PARENT = view_of("abc")
VIEW = Proposal(PARENT.view_id, 2, (Removal("b", Cause.PROOF),), (member("j"),)).apply(PARENT)


def installation(reports: dict[str, bytes], parent: View | None = PARENT) -> Installation:
    return Installation(VIEW, parent, (0, "a"), reports, 100.0)


def test_joiners_have_no_report_and_the_removed_ones_do_not_count() -> None:
    one = installation({"a": b"A", "b": b"B"})
    assert one.continuing == ("a", "c")
    assert one.missing_reports() == ("c",)
    assert one.flush_request() == FlushRequest(VIEW, None)
    one.reports["c"] = b"C"
    assert one.message() == Install(VIEW, (0, "a"), (("a", b"A"), ("c", b"C")))


def test_everybody_must_be_ready_joiners_included() -> None:
    one = installation({})
    one.ready = {"a", "c"}
    assert one.missing_ready() == ("j",)


def test_founders_continue_nothing() -> None:
    one = installation({}, None)
    assert one.missing_reports() == ()
    assert one.message() == Install(VIEW, (0, "a"), ())
