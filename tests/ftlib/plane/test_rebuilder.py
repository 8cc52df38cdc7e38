"""A rebuilder by itself: what it logs and notes of a view change, and what becomes of its group."""

from __future__ import annotations

import logging
import re
import weakref
from dataclasses import replace
from unittest.mock import Mock, call

import pytest
import torch

from consensus import Cause, LeftError, Member, Reason, StoppedError, View
from consensus.border import Activated, Expected, Freeze, Installed, Stalled, Stopped
from consensus.errors import ExcludedError, JobEndedError, JoinError, QuorumLostError, StoreWipedError
from ftlib import errors
from ftlib.core.calls.call import Results
from ftlib.core.calls.salvage import Fault, FaultKind, Report, SalvagePlan
from ftlib.core.calls.session import Session
from ftlib.core.plane.phase import Phase
from ftlib.core.plane.plane import Plane
from ftlib.core.plane.rebuild import Rebuilder, RebuildError, translated
from ftlib.core.replicas.whole import facts_of
from ftlib.core.tensors.staging import StagingPool
from ftlib.core.tensors.trailer import Trailer
from ftlib.errors import ConfigError, Excluded, FTLibError, JobEnded, QuorumLost
from ftlib.settings.replicas import Part
from tests.ftlib.plane.sessions import AFTER_SEVEN, LAYOUT, MEMBERS, Clock, Meanwhile, average, session
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
    records = [record for record in caplog.records if getattr(record, "ftlib_event", "") == "view"]
    lines = [record.getMessage() for record in records]
    assert len(lines) == plane.counters.views == len(later) + 1
    assert [vars(record)["size_before"] for record in records] == [0, *(len(names) for names in ("abc", *later[:-1]))]
    assert re.fullmatch(re.escape(f"epoch {len(lines)}: {text}, rank 0; paused ") + r"\d+ ms; led by a", lines[-1])
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
    group, consensus, framework = Mock(), Mock(), Mock()
    founding = session(1, AFTER_SEVEN, "a")
    rebuilder = Rebuilder(Plane("a"), consensus, framework, lambda _view: (founding.ranks, group))
    rebuilder.start()
    rebuilder.handle(Installed(founding.view, {}))
    rebuilder.close(TIMEOUT)
    consensus.ready.assert_called_once_with(founding.view.view_id)
    [epoch] = framework.cancel.call_args.args
    assert epoch > 1 << 32, "whatever is being built: it would be waited for"
    assert [each[0] for each in group.method_calls if each[0] in ("abort", "close")] == ["abort", "close"]


@pytest.mark.parametrize("fails", [False, True])
def test_the_group_of_a_view_that_is_over_is_closed_once(fails: bool) -> None:
    """Before the next one is built, which may fail: then there is none."""
    groups, consensus = [Mock(), Mock()], Mock(driver="a")
    founding, following = session(1, AFTER_SEVEN, "a"), session(2, AFTER_SEVEN, "a")
    built = iter([groups[0], RebuildError("no answer") if fails else groups[1]])

    def build(_view: View) -> tuple[dict[str, int], Mock]:
        found = next(built)
        if isinstance(found, Exception):
            raise found
        return founding.ranks, found

    rebuilder = Rebuilder(Plane("a"), consensus, Mock(), build)
    rebuilder._carry_out(Installed(founding.view, {}))
    rebuilder._carry_out(Activated(founding.view))
    rebuilder.handle(Freeze(2, None))
    rebuilder._carry_out(Installed(following.view, dict.fromkeys("abc", report())))
    rebuilder.close(TIMEOUT)
    rebuilder._run()
    assert consensus.average_failure.called is fails
    assert [group.close.call_count for group in groups] == [1, 0 if fails else 1]


def report() -> bytes:
    """Of a founder before its first call."""
    return Report(0, 0, 0, b"", b"", "", founder=True, blank=False, has_state=False).encode()


def test_a_freeze_that_waited_for_a_call_is_answered_by_the_thread_that_has_ended_it() -> None:
    """At once: nobody would ask again for a while."""
    plane, consensus, group = Plane("a"), Mock(), Mock()
    assert plane.activate(session(3, AFTER_SEVEN, "a", group=group))
    Rebuilder(plane, consensus, Mock(), Mock()).order(Freeze(4, None))
    consensus.flushed.assert_called_once()
    epoch, data = consensus.flushed.call_args.args
    assert (epoch, Report.decode(data).finished) == (4, 7)
    group.abort.assert_called_once_with()


def test_who_is_given_up_as_its_program_hangs_is_told_of_it(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody else can end its process."""
    given_up = Mock()
    Rebuilder(Plane("a"), Mock(), Mock(), Mock(), given_up=given_up).handle(Stalled(8, 60.0))
    given_up.assert_called_once_with()
    assert "the others have waited in call 8 for 60.0 s" in caplog.text


def test_nothing_is_built_ahead_for_a_view_that_is_over_or_was_built() -> None:
    """What is said of a view may come late. Each such group costs an address, and threads that wait for members."""
    plane, prepare = Plane("a"), Mock()
    rebuilder = Rebuilder(plane, Mock(), Mock(), lambda _view: (session(2, AFTER_SEVEN, "a").ranks, Mock()), prepare)
    views = {epoch: session(epoch, AFTER_SEVEN, "a").view for epoch in (1, 3, 4, 5, 6)}
    rebuilder._carry_out(Expected(views[1]))
    prepare.assert_called_once_with(views[1])
    prepare.reset_mock()
    assert plane.activate(session(4, AFTER_SEVEN, "a"))
    for epoch in (3, 4, 5):
        rebuilder._carry_out(Expected(views[epoch]))
    prepare.assert_called_once_with(views[5])
    rebuilder._carry_out(Installed(views[5], dict.fromkeys("abc", report())))
    for epoch in (5, 6):
        rebuilder._carry_out(Expected(views[epoch]))
    assert [each.args for each in prepare.call_args_list] == [(views[5],), (views[6],)]


@pytest.mark.parametrize(("wanted", "stopped", "built"), [(5, False, True), (6, False, False), (5, True, False)])
def test_nothing_is_built_ahead_for_a_view_that_will_not_come(wanted: int, stopped: bool, built: bool) -> None:
    """A later change is under way already, or this lifetime is over."""
    plane, prepare, view = Plane("a"), Mock(), session(5, AFTER_SEVEN, "a").view
    assert plane.activate(session(3, AFTER_SEVEN, "a", group=Mock()))
    rebuilder = Rebuilder(plane, Mock(), Mock(), Mock(), prepare)
    rebuilder.handle(Freeze(wanted, None))
    if stopped:
        plane.stop(Excluded("out"))
    rebuilder._carry_out(Expected(view))
    assert prepare.called is built


def test_who_has_stopped_builds_no_group_and_says_so_at_once() -> None:
    """A view that still has it would be given up only after ``ready_timeout``."""
    plane, consensus, build = Plane("a"), Mock(), Mock()
    plane.stop(Excluded("broken"))
    Rebuilder(plane, consensus, Mock(), build)._carry_out(Installed(session(1, AFTER_SEVEN, "a").view, {}))
    assert not build.called and not consensus.ready.called
    consensus.average_failure.assert_called_once_with(1, ("a",))


def test_it_is_known_when_the_consensus_has_ended_this_lifetime() -> None:
    """Whatever has stopped it before."""
    plane = Plane("a")
    plane.stop(Excluded("broken"))
    assert not plane.released
    Rebuilder(plane, Mock(), Mock(), Mock()).handle(Stopped(LeftError("left")))
    assert plane.released


def test_only_the_view_whose_group_was_built_begins() -> None:
    """The word that it is active may come where the build failed, or late."""
    plane, founding = Plane("a"), session(1, AFTER_SEVEN, "a")
    rebuilder = Rebuilder(plane, Mock(driver="a"), Mock(), lambda _view: (founding.ranks, Mock()))
    rebuilder._carry_out(Activated(founding.view))
    rebuilder._carry_out(Installed(founding.view, {}))
    rebuilder._carry_out(Activated(session(2, AFTER_SEVEN, "a").view))
    assert plane.session is None
    rebuilder._carry_out(Activated(founding.view))
    assert plane.session is not None and plane.session.view == founding.view


def test_a_view_whose_group_was_closed_for_the_next_one_does_not_begin() -> None:
    """Though the next one could not be built."""
    plane, founding, group = Plane("a"), session(1, AFTER_SEVEN, "a"), Mock()
    build = Mock(side_effect=[(founding.ranks, group), RebuildError("no answer")])
    rebuilder = Rebuilder(plane, Mock(driver="a"), Mock(), build)
    rebuilder._carry_out(Installed(founding.view, {}))
    rebuilder._carry_out(Installed(session(2, AFTER_SEVEN, "a").view, dict.fromkeys("abc", report())))
    group.close.assert_called_once_with()
    rebuilder._carry_out(Activated(founding.view))
    assert plane.session is None


def test_the_end_interrupts_what_is_being_built() -> None:
    """The thread that builds comes to the order only then."""
    framework = Mock()
    Rebuilder(Plane("a"), Mock(), framework, Mock()).handle(Stopped(ExcludedError("out")))
    [epoch] = framework.cancel.call_args.args
    assert epoch > 1 << 32, "whatever it is"


def test_who_has_not_started_can_be_closed() -> None:
    """As where the start of the agent fails: that error is to be seen, and no other."""
    Rebuilder(Plane("a"), Mock(), Mock(), Mock()).close(TIMEOUT)


@pytest.mark.parametrize(
    ("place", "call", "told"), [("healed", 20, True), ("healed", 8, True), ("healed", 7, False), ("blank", 20, False)]
)
def test_who_was_behind_is_told_that_it_gets_the_others_state(
    place: str, call: int, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """What it has computed since counts nothing: a warning. Not who joins, and has nothing to lose, nor who gets the state as a
    mate in its replica lacks it.
    """
    plane = Plane("a")
    rebuilder = Rebuilder(plane, Mock(driver="", why=Mock(return_value=None)), Mock(), Mock())
    before, healed = session(3, AFTER_SEVEN, "a"), ("a",) if place == "healed" else ()
    assert plane.activate(before)
    plane.freeze(Freeze(4, None))
    plan = SalvagePlan(call, call, blank=("a",), healed=healed, current_state_id="b", holders=("b",))
    rebuilder._built = session(4, plan, "a")
    rebuilder._activate(rebuilder._built.view)
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    text = f"this worker was {call - 7} calls behind the others: it gets their state, and counts again from the call after that"
    assert lines == ([text] if told else [])


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ExcludedError("so it is"), Excluded),
        (QuorumLostError("so it is"), QuorumLost),
        (StoreWipedError("so it is"), QuorumLost),
        (JoinError("so it is"), errors.JoinError),
        (JobEndedError("so it is"), JobEnded),
        (StoppedError("so it is"), Excluded),
    ],
)
def test_programs_see_errors_of_this_package(error: StoppedError, kind: type[Exception]) -> None:
    """One that is not known here means that the others go on: then another lifetime may begin."""
    found = translated(error)
    assert type(found) is kind and str(found) == str(error)


def test_who_has_left_sees_that() -> None:
    assert translated(left := LeftError("it is done")) is left


@pytest.mark.parametrize(("waited", "text"), [(0.5, "paused 250 ms after 0.5 s of waiting"), (0.05, "paused 250 ms")])
def test_who_has_waited_in_a_call_before_the_view_changed_is_told_for_how_long(
    waited: float, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """For the member that is gone, say: that is more than the pause."""
    caplog.set_level(logging.INFO, "ftlib")
    clock = Clock()
    plane = Plane("a", threads=clock)
    rebuilder = Rebuilder(plane, Mock(driver="", why=Mock(return_value=None)), Mock(), Mock())
    assert plane.activate(session(3, AFTER_SEVEN, "a"))
    plane.enter(average())
    clock.at += waited
    plane.freeze(Freeze(4, None))
    clock.at += 0.25
    rebuilder._built = session(4, AFTER_SEVEN, "a")
    rebuilder._activate(rebuilder._built.view)
    assert caplog.messages[-1].endswith(f"; {text}")


@pytest.mark.parametrize(
    ("kind", "error"),
    [(FaultKind.MISMATCH, errors.StepMismatch), (FaultKind.STATE_LOST, errors.StateLost)],
)
@pytest.mark.parametrize("blamed", [("a",), ("b",)])
def test_who_cannot_go_on_in_a_view_stops_and_leaves_it(
    kind: FaultKind, error: type[Exception], blamed: tuple[str, ...]
) -> None:
    """At once: the others wait until it is gone, and go on without it."""
    plane, consensus = Plane("a"), Mock(driver="", why=Mock(return_value=None))
    rebuilder = Rebuilder(plane, consensus, Mock(), Mock())
    rebuilder._built = session(4, replace(AFTER_SEVEN, fault=Fault(kind, blamed, "so it is")), "a")
    rebuilder._activate(rebuilder._built.view)
    assert isinstance(plane.error, error) is consensus.leave.called is (blamed == ("a",))
    assert plane.phase is (Phase.STOPPED if consensus.leave.called else Phase.ACTIVE)


@pytest.mark.parametrize(
    ("plan", "keeps"),
    [
        pytest.param(replace(AFTER_SEVEN, call=8), True, id="somebody has finished the call"),
        pytest.param(AFTER_SEVEN, False, id="nobody has: it is done again"),
        pytest.param(replace(AFTER_SEVEN, call=8, adoptions=(("a", "b"),)), False, id="a donor gives it"),
        pytest.param(replace(AFTER_SEVEN, call=8, blank=("a",)), False, id="its replica gets the state"),
        pytest.param(replace(AFTER_SEVEN, call=8, blank=("a",), healed=("a",)), False, id="so does it"),
    ],
)
def test_a_held_result_is_kept_where_all_finish_its_call(plan: SalvagePlan, keeps: bool) -> None:
    plane, here = Plane("a"), session(3, AFTER_SEVEN, "a")
    assert plane.activate(here)
    plane.enter(average())
    assert plane.begin(here) and plane.hold(here, Results(8, LAYOUT, (), 3.0), Trailer.of(()))
    rebuilder = Rebuilder(plane, Mock(), Mock(), Mock())
    following = session(4, plan, "a")
    assert rebuilder._session(following.view, following.view, plan, following.ranks).keeps is keeps


@pytest.mark.parametrize("leaves", [True, False])
def test_who_leaves_ends_the_call_that_all_can_still_end(leaves: bool) -> None:
    """The others wait for that, too. Who was excluded can end nothing."""
    threads, consensus = Meanwhile(), Mock()
    plane = Plane("a", threads=threads)
    here = session(3, AFTER_SEVEN, "a")
    assert plane.activate(here)
    plane.enter(eighth := average())
    assert plane.begin(here) and plane.freeze(Freeze(4, 8)) is None
    threads.happens.append(lambda: plane.finish(here, eighth, Trailer.of(()), Results(8, LAYOUT, (), 3.0)))
    plane.release()  # as ``handle`` does, before the thread comes to it
    Rebuilder(plane, consensus, Mock(), Mock())._carry_out(Stopped(LeftError("bye") if leaves else ExcludedError("out")))
    assert plane.phase is Phase.STOPPED
    assert plane.finished == (8 if leaves else 7)


@pytest.mark.parametrize("alone", [True, False])
def test_who_is_alone_gives_up_the_group_that_it_has_built_ahead(alone: bool) -> None:
    """With those that are gone; else its threads would wait for them."""
    framework = Mock()
    rebuilder = Rebuilder(Plane("a"), Mock(), framework, lambda view: ({key: n for n, key in enumerate(view.ids)}, None))
    rebuilder._carry_out(Installed(View(3, "parent", MEMBERS[:1] if alone else MEMBERS), {"a": report()}))
    assert framework.cancel.mock_calls == ([call(4)] if alone else [])


def test_who_cannot_carry_out_what_is_ordered_leaves_the_others_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """An error of ours, say. Its agent answers the others' pings: they would wait for its reports, which nobody makes."""
    plane, consensus, group = Plane("a"), Mock(driver="", why=Mock(return_value=None)), Mock()
    fails = Mock(side_effect=KeyError("planted"))
    rebuilder = Rebuilder(plane, consensus, Mock(), lambda _view: (session(1, AFTER_SEVEN, "a").ranks, group), activated=fails)
    founding = session(1, AFTER_SEVEN, "a").view
    for order in (Installed(founding, {}), Activated(founding)):
        rebuilder.handle(order)
    rebuilder._run()
    assert isinstance(plane.error, Excluded) and "rebuild thread failed: KeyError('planted')" in str(plane.error)
    assert isinstance(plane.error.__cause__, KeyError), "whose traceback says where"
    consensus.leave.assert_called_once_with()
    group.close.assert_called_once_with()
    assert "the rebuild thread failed" in caplog.text


@pytest.mark.parametrize(("ended", "error"), [(True, JobEnded), (False, errors.StateLost)])
def test_a_process_that_nobody_is_left_to_act_with_stops_and_leaves(ended: bool, error: type[Exception]) -> None:
    """Of its replica a process is gone, and of all others: the view has members, but no shard a group."""
    plane, consensus, part = Plane("b0"), Mock(), Part("b", 0, 2)
    rebuilder = Rebuilder(plane, consensus, Mock(), Mock(), part=part)
    own = Member("b0", "127.0.0.1", 1000, tuple(facts_of(part).items()))
    done = Report(4, 0, 4, b"x", b"", "b0", founder=True, blank=False, has_state=True)
    rebuilder._carry_out(Installed(View(7, "before", (own,)), {"b0": done.encode()}, ended))
    assert type(plane.error) is error and (ended or "no replica is whole any more: start anew" in str(plane.error))
    consensus.leave.assert_called_once_with()
    consensus.ready.assert_not_called()


@pytest.mark.parametrize(("ended", "error"), [(True, JobEnded), (False, errors.StateLost)])
def test_joiners_whose_donors_are_gone_before_they_had_the_state_stop_and_leave(ended: bool, error: type[Exception]) -> None:
    """Where the programs of those have come to their end that is no failure."""
    plane, consensus = Plane("b"), Mock(driver="", why=Mock(return_value=None))
    view = View(3, "before", MEMBERS[1:])
    rebuilder = Rebuilder(plane, consensus, Mock(), lambda _view: ({"b": 0, "c": 1}, Mock()))
    joined = Report(7, 0, 7, b"", b"", "", founder=False, blank=True, has_state=True, newcomer=True)
    rebuilder._carry_out(Installed(view, dict.fromkeys("bc", joined.encode()), ended))
    assert plane.phase is not Phase.STOPPED
    rebuilder._carry_out(Activated(view))
    assert type(plane.error) is error
    consensus.leave.assert_called_once_with()


def test_a_process_acts_with_those_of_its_shard_by_the_plan_of_all() -> None:
    """It holds the result of call 8, which its mate in its replica has finished, and nobody else of its own shard."""
    members = tuple(
        Member(f"{replica}{shard}", "127.0.0.1", 1000 + shard, tuple(facts_of(Part(replica, shard, 2)).items()))
        for replica in "ab"
        for shard in range(2)
    )
    view = View(3, "parent", members)
    acting, ranks = replace(view, members=members[::2]), {"a0": 0, "b0": 1}
    plane, before = Plane("a0"), SalvagePlan(7, 7, current_state_id="a0", holders=("a0", "b0"))
    here = Session(acting, before, "a0", ranks, Mock())
    assert plane.activate(here)
    plane.enter(average())
    assert plane.begin(here) and plane.hold(here, Results(8, LAYOUT, (), 3.0), Trailer.of(()))
    frozen = plane.freeze(Freeze(4, None))
    assert frozen is not None
    own = Report.decode(frozen[0])
    finished = replace(own, finished=8, current=0, step=8, held=0, last_signature=LAYOUT.signature, current_signature=b"")
    reports = {"a0": own, "a1": finished, "b0": own, "b1": finished}
    rebuilder = Rebuilder(plane, Mock(), Mock(), lambda _view: (ranks, Mock()), part=Part("a", 0, 2))
    following = replace(view, epoch=4, parent_id=view.view_id)
    rebuilder._carry_out(Installed(following, {key: each.encode() for key, each in reports.items()}))
    assert rebuilder._built is not None
    built = rebuilder._built
    assert (built.view.ids, built.whole, built.plan.call) == (("a0", "b0"), following, 8)
    assert built.keeps and built.donor is None


class Sending:
    """A group that sends for as long as its operations are kept, and what it sends."""

    def __init__(self) -> None:
        self.sent: list[weakref.ref[torch.Tensor]] = []

    def send(self, tensor: torch.Tensor, _rank: int, _tag: int) -> list[torch.Tensor]:
        self.sent.append(weakref.ref(tensor))
        return [tensor]


def test_who_gives_a_result_keeps_no_copy_of_it_once_all_have_it() -> None:
    """The program may change the result, as its gradients are views of it, so a copy is sent: as large as the model."""
    plane, group = Plane("a"), Sending()
    here = session(3, AFTER_SEVEN, "a")
    assert plane.activate(here)
    plane.enter(eighth := average())
    slot = StagingPool(2).staging(LAYOUT).slot(0, 0)
    results = Results(8, LAYOUT, (slot,), 3.0, view_id=here.view.view_id)
    assert plane.begin(here) and plane.finish(here, eighth, Trailer.of(()), results)
    plane.freeze(Freeze(4, None))
    rebuilder = Rebuilder(plane, Mock(driver="", why=Mock(return_value=None)), Mock(), Mock())
    plan = SalvagePlan(8, 8, adoptions=(("b", "a"),), current_state_id="a", holders=("a",))
    following = rebuilder._built = session(4, plan, "a", group=group)
    rebuilder._activate(following.view)
    del results
    assert len(group.sent) == 3 and all(each() is not None for each in group.sent), "until then it is sent"
    plane.enter(average())
    assert plane.begin(following)
    plane.entered()
    assert all(each() is None for each in group.sent)


@pytest.mark.parametrize(
    ("results", "group"),
    [
        pytest.param(None, Mock(), id="it has none"),
        pytest.param(Results(7, LAYOUT, (), 3.0), Mock(), id="it has that of another call"),
        pytest.param(Results(8, LAYOUT, (), 3.0), None, id="nobody is there"),
    ],
)
def test_who_cannot_give_what_the_plan_says_gives_nothing_else(results: Results | None, group: Mock | None) -> None:
    """The adopter would take it for the result of that call."""
    plane = Plane("a")
    plane.results = results
    rebuilder = Rebuilder(plane, Mock(driver="", why=Mock(return_value=None)), Mock(), Mock())
    plan = SalvagePlan(8, 8, adoptions=(("b", "a"),), current_state_id="a", holders=("a",))
    rebuilder._built = session(4, plan, "a", group=group)
    with pytest.raises(FTLibError, match=r"the result of call 8 is gone, but .* needs it"):
        rebuilder._activate(rebuilder._built.view)
    assert group is None or not group.send.called


@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("left", [True, False])
def test_who_has_left_after_a_call_cuts_nobody_off(left: bool, running: bool) -> None:
    """A slow peer may still read that call's last bytes; what is under way ends."""
    plane, group = Plane("a"), Mock()
    founding = session(1, AFTER_SEVEN, "a")
    rebuilder = Rebuilder(plane, Mock(driver="a"), Mock(), lambda _view: (founding.ranks, group))
    rebuilder._carry_out(Installed(founding.view, {}))
    rebuilder._carry_out(Activated(founding.view))
    if running:
        plane.enter(average())
        assert plane.session is not None and plane.begin(plane.session)
    rebuilder._carry_out(Stopped(LeftError("bye") if left else ExcludedError("out")))
    assert group.abort.called is (running or not left)


@pytest.mark.parametrize("reason", [None, Reason("c", Cause.PROOF, "exit code 9", "b")])
def test_a_record_says_who_is_gone_and_why(reason: Reason | None, caplog: pytest.LogCaptureFixture) -> None:
    """For programs that read the log."""
    caplog.set_level(logging.INFO, "ftlib")
    rebuilder = Rebuilder(Plane("a"), Mock(driver="a", why=Mock(return_value=reason)), Mock(), Mock())
    old = session(3, AFTER_SEVEN, "a")
    new = Session(View(4, "parent", MEMBERS[:2]), AFTER_SEVEN, "a", {"a": 0, "b": 1}, Mock())
    rebuilder._log(old, new)
    [record] = caplog.records
    more = {} if reason is None else {"cause": reason.cause.value, "detail": "exit code 9", "source": "b"}
    assert record.removed == [{"id": "c", **more}]  # type: ignore[attr-defined]
