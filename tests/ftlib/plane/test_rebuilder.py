"""A rebuilder by itself: what it logs and notes of a view change, and what becomes of its group."""

from __future__ import annotations

import logging
from unittest.mock import Mock, call

import pytest

from consensus import Cause, Member, Reason, View
from consensus.border import Activated, Freeze, Installed
from ftlib.core.plane.phase import Phase
from ftlib.core.plane.plane import Plane
from ftlib.core.plane.rebuild import Rebuilder, RebuildError
from ftlib.errors import ConfigError
from tests.ftlib.plane.sessions import AFTER_SEVEN, MEMBERS, session
from tests.harness.basics import TIMEOUT


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (None, "gone"),
        (Reason("b", Cause.SILENCE), "silent"),
        (Reason("b", Cause.PROOF, "exit code 9"), "dead: exit code 9"),
        (Reason("b", Cause.PROOF, "exit code 9", "a"), "dead: exit code 9"),
        (Reason("b", Cause.PROOF, "exit code 9", "b"), "dead: exit code 9, as it said itself"),
        (Reason("b", Cause.SEVERED, "no route", "c"), "cut off: no route, says c"),
        (Reason("b", Cause.LEFT, "notice", "b"), "left"),
    ],
)
def test_the_log_says_why_a_member_is_gone_and_who_has_found_so(reason: Reason | None, text: str) -> None:
    """Unless it was this worker, whose log it is."""
    rebuilder = Rebuilder(Plane("a"), Mock(why=Mock(return_value=reason)), Mock(), Mock())
    assert rebuilder._why("b", session(3, AFTER_SEVEN, "a")) == text


SILENT, LEFT = Reason("c", Cause.SILENCE), Reason("c", Cause.LEFT)
FOUR = (*MEMBERS, Member("d", "127.0.0.1", 1003))


@pytest.mark.parametrize(
    ("later", "reason", "text", "missed"),
    [
        pytest.param(["abc"], None, "same members; size 3 -> 3", False, id="nobody is gone"),
        pytest.param(["ab"], SILENT, "without c@127.0.0.1:1002 (silent); size 3 -> 2", True, id="one has died"),
        pytest.param(["ab"], None, "without c@127.0.0.1:1002 (gone); size 3 -> 2", True, id="nobody knows why"),
        pytest.param(["ab"], LEFT, "without c@127.0.0.1:1002 (left); size 3 -> 2", False, id="one has left"),
        pytest.param(["ab", "ab"], SILENT, "same members; size 2 -> 2", True, id="one had died before"),
        pytest.param(["ab", "abd"], SILENT, "with d@127.0.0.1:1003; size 2 -> 3", False, id="one has come in its place"),
    ],
)
def test_a_view_change_is_logged_and_who_was_lost_is_missed(
    later: list[str], reason: Reason | None, text: str, missed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever has left wanted to: nobody is expected in its place."""
    caplog.set_level(logging.INFO, "ftlib")
    plane, consensus = Plane("a"), Mock(driver="a", why=Mock(return_value=reason))
    rebuilder = Rebuilder(plane, consensus, Mock(), lambda view: ({key: rank for rank, key in enumerate(view.ids)}, Mock()))
    view, reports = View(1, "", MEMBERS), {}
    for names in (*later, ""):
        rebuilder._carry_out(Installed(view, reports))
        rebuilder._carry_out(Activated(view))
        rebuilder.handle(Freeze(view.epoch + 1, None))
        reports = dict.fromkeys(set(view.ids) & set(names), consensus.flushed.call_args.args[1])
        view = View(view.epoch + 1, view.view_id, tuple(member for member in FOUR if member.id in names))
    lines = [record.getMessage() for record in caplog.records if getattr(record, "ftlib_event", "") == "view"]
    assert len(lines) == len(later) + 1
    assert lines[-1].startswith(f"epoch {len(lines)}: {text}, rank 0; ") and lines[-1].endswith("; led by a")
    assert plane.peers.lost_since(0.0) is missed


def test_a_result_that_cannot_be_given_ends_the_view_and_the_next_one_gives_the_state() -> None:
    """Reported first: who sees the group fail before that would blame somebody for it."""
    both = Mock()
    rebuilder = Rebuilder(Plane("a"), both.consensus, Mock(), Mock())
    rebuilder._cannot_give(session(3, AFTER_SEVEN, "a", group=both.group), "b", "the result was changed")
    assert both.mock_calls == [call.consensus.average_failure(1, ()), call.group.abort()]


@pytest.mark.parametrize(
    ("error", "worked", "stops"),
    [
        pytest.param(ConfigError("a rank twice"), False, True, id="it would be so in every view"),
        pytest.param(ConfigError("a rank twice"), True, False, id="who is new leaves"),
        pytest.param(RebuildError("no answer", ("b",)), False, False, id="the next view may do"),
    ],
)
def test_a_member_whose_settings_allow_no_group_ends_before_it_has_worked(error: Exception, worked: bool, stops: bool) -> None:
    plane, consensus = Plane("a"), Mock()
    if worked:
        assert plane.activate(session(3, AFTER_SEVEN, "a", group=Mock()))
    rebuilder = Rebuilder(plane, consensus, Mock(), Mock())
    rebuilder.handle(Freeze(4, None))
    rebuilder._failed(session(4, AFTER_SEVEN, "a").view, error)
    assert (plane.phase is Phase.STOPPED, consensus.leave.called, consensus.average_failure.called) == (stops, stops, not stops)


def test_a_group_ends_with_its_rebuilder() -> None:
    """Its threads and sockets would else outlive the lifetime; cut first, so that nobody waits in it for what is under way."""
    group, consensus = Mock(), Mock()
    founding = session(1, AFTER_SEVEN, "a")
    rebuilder = Rebuilder(Plane("a"), consensus, Mock(), lambda _view: (founding.ranks, group))
    rebuilder.start()
    rebuilder.handle(Installed(founding.view, {}))
    rebuilder.close(TIMEOUT)
    consensus.ready.assert_called_once_with(founding.view.view_id)
    assert [each[0] for each in group.method_calls if each[0] in ("abort", "close")] == ["abort", "close"]
