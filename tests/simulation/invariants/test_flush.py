from __future__ import annotations

import pytest

from consensus.messages import Accepted, FlushReply
from consensus.simulation.invariants import Flush, Violation

from .stage import Stage, report


def given(stage: Stage) -> None:
    for host in stage.hosts:
        stage.observers.sent(host, None, FlushReply(2, "", report(host, 2)))


def test_two_reports_for_one_epoch() -> None:
    stage = Stage(Flush)
    a = stage.hosts[0]
    stage.observers.sent(a, None, Accepted(2, stage.view.view_id, (0, a.id), b"one"))
    with pytest.raises(Violation, match="reports b'other' for epoch 2 after b'one'"):
        stage.observers.sent(a, None, FlushReply(2, "", b"other"))


def test_others_than_the_continuing_members_report() -> None:
    stage = Stage(Flush)
    a, b, c = stage.hosts
    given(stage)
    view = stage.after(stage.view, c)
    with pytest.raises(Violation, match=r"reports of m.*, continuing are m.*, m"):
        stage.install(view, a, reports={a.id: report(a, 2)})
    stage = Stage(Flush)
    a, b, c = stage.hosts
    given(stage)
    with pytest.raises(Violation, match="continuing are"):
        stage.install(view, a, reports={host.id: report(host, 2) for host in (a, b, c)})


def test_other_reports_than_elsewhere() -> None:
    stage = Stage(Flush)
    a, b, c = stage.hosts
    given(stage)
    view = stage.after(stage.view, c)
    stage.install(view, a)
    with pytest.raises(Violation, match="with other reports than m"):
        stage.install(view, b, reports={a.id: report(a, 2), b.id: b"other"})


def test_a_report_that_its_writer_never_gave() -> None:
    stage = Stage(Flush)
    a, b, c = stage.hosts
    given(stage)
    with pytest.raises(Violation, match="that it never gave"):
        stage.install(stage.after(stage.view, c), a, reports={a.id: report(a, 2), b.id: b"made up"})
