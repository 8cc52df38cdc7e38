"""One member's data plane by itself: what it reports where it is frozen, and what its sampler is told of views and calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from unittest.mock import ANY, Mock, patch

import pytest
import torch

from consensus import View
from consensus.border import Freeze
from ftlib.core.calls.call import Call, Kind, Results
from ftlib.core.calls.follow import Declined, Followed
from ftlib.core.calls.salvage import Report, SalvagePlan, plan
from ftlib.core.calls.session import Session
from ftlib.core.plane.data_accounting import DataAccounting
from ftlib.core.plane.failures import Failures
from ftlib.core.plane.news import News
from ftlib.core.plane.orders import FINISHED, Order
from ftlib.core.plane.phase import Phase
from ftlib.core.plane.plane import Plane
from ftlib.core.plane.rebuild import Rebuilder, RebuildError
from ftlib.core.tensors.trailer import Trailer
from ftlib.data.sampling import Share
from ftlib.errors import Excluded, GroupError
from tests.ftlib.plane.sessions import AFTER_SEVEN, GROUP, LAYOUT, MEMBERS, session


def test_every_question_of_one_epoch_gets_the_same_report() -> None:
    """Its program may have entered a call since the first one; of the next epoch's report that is a part."""
    plane = Plane("a")
    assert plane.activate(session(3, SalvagePlan(7, 7, current_state_id="a", holders=("a",)), "a"))
    first = plane.freeze(Order(4, None))
    assert first is not None
    plane.enter(Call(Kind.AVERAGE, LAYOUT, [torch.ones(3)], weight=1.0, divide=True))
    assert plane.freeze(Order(4, None)) == plane.freeze(Order(4, 7)) == (first[0], None)
    following = plane.freeze(Order(5, None))
    assert following is not None
    assert [Report.decode(data).current for data in (first[0], following[0])] == [0, 8]


@pytest.mark.parametrize("comes_to", ["nothing", "its end", "an exception", "a result to hold", "a result of another member's"])
def test_a_call_that_has_failed_or_was_frozen_is_not_under_way(comes_to: str) -> None:
    """Else a coordinator would wait for its end, and let nobody in."""
    told: list[bool] = []
    plane = Plane("a", lambda _finished, _current, *, busy=False, **_: told.append(busy))
    here = session(3, SalvagePlan(7, 7, current_state_id="a", holders=("a",)), "a")
    assert plane.activate(here)
    plane.request_boundary(wanted=True)  # somebody waits to be let in: only then is every call told
    plane.enter(call := Call(Kind.AVERAGE, LAYOUT, [torch.ones(3)], weight=1.0, divide=True))
    assert plane.begin(here) and told[-1]
    results = Results(8, LAYOUT, (), 3.0)
    match comes_to:
        case "nothing":
            assert plane.failed(here) == (True, None)
        case "its end":
            assert plane.freeze(Order(4, None)) and not plane.finish(here, call, Trailer.of(()), results)
        case "an exception":
            assert plane.abandon() == (here, None)
        case "a result to hold":
            assert plane.freeze(Order(4, None)) and not plane.hold(here, results)
        case _:
            assert plane.freeze(Order(4, None)) and not plane.adopt(here, call, results)
    assert plane.running is None and not told[-1]
    assert (plane.finished, plane.held) == (7, None)


@pytest.mark.parametrize("behind", [0, 1])
def test_who_is_behind_its_backup_worker_says_so(behind: int) -> None:
    """By however little: it is the last to be asked for the state, which it does not have yet."""
    plane = Plane("a")
    assert plane.activate(session(3, SalvagePlan(7, 7, current_state_id="a", holders=("a",)), "a"))
    for _ in range(behind):
        plane.lag.grow(1)
    answer = plane.freeze(Order(4, None))
    assert answer is not None
    assert Report.decode(answer[0]).late is bool(behind)


def test_a_program_that_is_behind_its_backup_worker_is_at_no_border() -> None:
    """It is not where the calls are: whoever got the state there would lack what it has yet to take over."""
    plane = Plane("a")
    assert plane.activate(session(3, SalvagePlan(7, 7, current_state_id="a", holders=("a",)), "a"))
    plane.lag.grow(1)
    plane.at_border()
    assert not plane.settled(8)
    plane.lag.shrink(1)
    with patch.object(plane.changed, "notify_all") as wakes:
        plane.at_border()
    assert plane.settled(8) and not plane.settled(9)
    wakes.assert_called_once_with()  # a donor waits for that


def test_a_checkpoint_that_is_loaded_between_two_borders_before_one_call_is_no_step() -> None:
    """The program may come to the second one by ``catch_up`` before its first call, and never again."""
    plane = Plane("a")
    here = session(3, SalvagePlan(0, 0, current_state_id="a", holders=("a",)), "a")
    assert plane.activate(here)
    plane.at_border()
    assert plane.resumed(here, "saved", 5)
    plane.at_border()
    assert plane.settled(1) and not plane.borders.told


@pytest.mark.parametrize("left", [False, True])
def test_no_report_is_sent_before_what_failed_has_been_aborted(left: bool) -> None:
    """The training thread aborts the group after it has noted the failure, and may wait there for a device. A change after the
    last call comes meanwhile. That there is no call under way any more does not mean that nothing runs.
    """
    plane = Plane("a")
    here = session(3, SalvagePlan(7, 7, current_state_id="a", holders=("a",)), "a")
    assert plane.activate(here)
    plane.enter(Call(Kind.AVERAGE, LAYOUT, [torch.ones(3)], weight=1.0, divide=True))
    assert plane.begin(here)
    if left:
        assert plane.abandon() == (here, None)
    else:
        assert plane.failed(here) == (True, None)
    assert not plane.acting_in(here), "nor does a call begin in it"
    answer = plane.freeze(Order(4, 7))
    assert answer is not None and answer[1] is here
    there = session(4, SalvagePlan(7, 7, current_state_id="a", holders=("a",)), "a")
    assert plane.activate(there)
    following = plane.freeze(Order(5, 7))
    assert following is not None and following[1] is None, "nothing has failed in that one: who is slower may still end call 7"


@pytest.mark.parametrize("late", [True, False])
def test_a_failure_in_a_session_before_or_of_what_had_not_begun_aborts_no_group(late: bool) -> None:
    """Who is slower may still end the last call in the active one."""
    plane = Plane("a")
    here = active = session(3, AFTER_SEVEN, "a")
    assert plane.activate(here)
    if late:
        plane.freeze(Order(4, None))
        assert plane.activate(active := session(4, AFTER_SEVEN, "a"))
    assert plane.failed(here, begun=late) == (not late, None)
    assert plane.acting_in(active)
    answer = plane.freeze(Order(5, 7))
    assert answer is not None and answer[1] is None


@pytest.mark.parametrize("held", [True, False])
def test_who_is_alone_goes_on_after_an_exception_unless_its_replica_may_finish_the_call(held: bool) -> None:
    """Nobody else has seen anything of it, unless a mate was told that the result is held here."""
    plane, here = Plane("a"), session(3, AFTER_SEVEN, "a", group=None)
    assert plane.activate(here)
    plane.enter(Call(Kind.AVERAGE, LAYOUT, [torch.ones(3)], weight=1.0, divide=True))
    assert plane.begin(here) and (not held or plane.hold(here, Results(8, LAYOUT, (), 3.0)))
    assert plane.abandon() == (here if held else None, None)
    assert plane.acting_in(here) is not held


@pytest.mark.parametrize("newcomer", [True, False])
def test_who_comes_in_reports_no_call_as_that_of_the_others(newcomer: bool) -> None:
    """Its program may be at another place: those whose call is another one would be stopped, or begin by expecting its own."""
    plane, blank = Plane("a"), ("a",) if newcomer else ()
    assert plane.activate(session(3, SalvagePlan(7, 7, blank=blank, current_state_id="b", holders=("b",)), "a"))
    plane.enter(Call(Kind.AVERAGE, LAYOUT, [torch.ones(3)], weight=1.0, divide=True))
    answer = plane.freeze(Order(4, None))
    assert answer is not None
    report = Report.decode(answer[0])
    assert (report.current, report.current_signature) == (8, b"" if newcomer else LAYOUT.signature)
    plan_ = SalvagePlan(7, 7, entered=LAYOUT.signature)
    assert plane.expected_in(plan_) is (None if newcomer else LAYOUT)


@pytest.mark.parametrize("epoch", [2, 3])
def test_who_is_asked_for_the_second_view_is_a_founder_though_it_has_not_seen_the_first(epoch: int) -> None:
    """That was lost on the way, and nobody else is asked then: its initial state is as good as theirs. Not later on."""
    answer = Plane("a").freeze(Order(epoch, None))
    assert answer is not None
    report = Report.decode(answer[0])
    assert (report.founder, report.blank) == (epoch == 2, epoch > 2)


def test_no_group_is_built_for_a_view_that_was_there_or_after_the_end() -> None:
    """Such an order may come late; the active view goes on."""
    plane = Plane("a")
    views = {epoch: session(epoch, AFTER_SEVEN, "a") for epoch in (2, 3, 4)}
    assert plane.activate(views[3])
    assert not plane.installing(views[2].view) and not plane.installing(views[3].view)
    assert plane.phase is Phase.ACTIVE
    assert plane.installing(views[4].view) and plane.phase is Phase.FROZEN
    plane.stop(Excluded("out"))
    assert not plane.installing(views[4].view)


def test_no_group_is_built_for_a_view_before_the_one_that_was_reported_for() -> None:
    """The others go on without it by then. Nor does that view begin, if its group was built before the report."""
    plane, late = Plane("a"), session(4, AFTER_SEVEN, "a")
    assert plane.activate(session(3, AFTER_SEVEN, "a"))
    assert plane.freeze(Order(5, None)) and not plane.installing(late.view)
    assert not plane.activate(late) and plane.phase is Phase.FROZEN
    assert plane.installing(session(5, AFTER_SEVEN, "a").view)


def test_a_freeze_that_waits_for_a_call_is_over_once_a_later_one_does_not() -> None:
    """A member has died in that call. Who carried out the old order at the end of a call in the next view would stay frozen."""
    plane, here, results = Plane("a"), session(3, AFTER_SEVEN, "a"), Results(8, LAYOUT, (), 3.0)
    assert plane.activate(here)
    plane.enter(call := Call(Kind.AVERAGE, LAYOUT, [torch.ones(3)], weight=1.0, divide=True))
    assert plane.begin(here) and plane.freeze(Order(4, 8)) is None and plane.ordered
    answer = plane.freeze(Order(5, None))
    assert answer is not None and answer[1] is here and not plane.ordered
    assert plane.finish(here, call, Trailer.of(()), results) is None
    following = session(5, AFTER_SEVEN, "a")
    assert plane.activate(following) and plane.begin(following)
    assert plane.finish(following, call, Trailer.of(()), results) == FINISHED
    assert plane.acting_in(following)


@pytest.mark.parametrize("call", [7, 8])
def test_the_state_that_a_newcomer_has_loaded_is_that_of_its_call_alone(call: int) -> None:
    """It need not come again in the next view, where it may be all that is left; if call 8 has ended elsewhere it is old."""
    plane = Plane("c")
    plan_ = SalvagePlan(7, 7, blank=("c",), newcomers=("c",), current_state_id="a", holders=("a",))
    here = session(3, plan_, "c")
    assert plane.activate(here) and plane.loaded(here, "a")
    plane.freeze(Order(4, None))
    assert plane.activate(session(4, replace(plan_, call=call, step=call), "c"))
    assert plane.level is (call == 7)


def test_what_was_loaded_once_its_view_is_frozen_is_not_the_state() -> None:
    """The next view may have another one."""
    plane, here = Plane("c"), session(3, SalvagePlan(7, 7, blank=("c",), current_state_id="a", holders=("a",)), "c")
    assert plane.activate(here)
    plane.freeze(Order(4, None))
    assert not plane.loaded(here, "a")
    assert not plane.level and plane.counters.state_loads == 0


def test_who_has_stopped_by_itself_still_reports() -> None:
    """Others may need its vote to go on without it. It waits for nothing, as nothing ends here any more."""
    plane, here = Plane("a"), session(3, AFTER_SEVEN, "a", group=GROUP)
    assert plane.activate(here)
    plane.enter(Call(Kind.AVERAGE, LAYOUT, [torch.ones(3)], weight=1.0, divide=True))
    assert plane.begin(here)
    plane.stop(Excluded("broken"))
    answer = plane.freeze(Order(4, 8))
    assert answer is not None and answer[1] is here
    assert Report.decode(answer[0]).finished == 7
    assert plane.freeze(Order(4, 8)) == (answer[0], None) and plane.phase is Phase.STOPPED
    plane.release()
    assert plane.freeze(Order(5, None)) is None


def test_a_freeze_that_has_waited_for_a_call_is_answered_when_its_worker_stops() -> None:
    """That call may never end now, and whoever waits in it may hang."""
    plane, consensus, here = Plane("a"), Mock(), session(3, AFTER_SEVEN, "a", group=Mock())
    assert plane.activate(here)
    plane.enter(Call(Kind.AVERAGE, LAYOUT, [torch.ones(3)], weight=1.0, divide=True))
    assert plane.begin(here) and plane.freeze(Order(4, 8)) is None
    Failures(plane, consensus, Rebuilder(plane, consensus, Mock(), Mock())).stop(Excluded("broken"))
    consensus.flushed.assert_called_once_with(4, ANY)
    assert not plane.ordered


def test_a_session_begins_neither_beside_another_one_nor_after_the_end() -> None:
    """The word that it is active may come late. The last one that has begun is the newest, frozen or not, until the end."""
    plane, (here, following) = Plane("a"), [session(epoch, AFTER_SEVEN, "a") for epoch in (3, 4)]
    assert not plane.newest_is(here)
    assert plane.activate(here) and not plane.activate(following)
    assert plane.newest_is(here) and plane.acting_in(here) and not plane.newest_is(following)
    assert plane.freeze(Order(3, None)) is None and plane.acting_in(here), "as a late order for the view that is there"
    plane.freeze(Order(4, None))
    assert plane.newest_is(here)
    plane.stop(Excluded("out"))
    assert not plane.activate(following)
    assert not plane.newest_is(here) and plane.phase is Phase.STOPPED


def test_what_a_replica_does_not_begin_with_is_no_state() -> None:
    """Its next call gets the others'."""
    plane, here = Plane("c"), session(3, SalvagePlan(7, 7, blank=("c",), current_state_id="a", holders=("a",)), "c")
    assert plane.activate(here)
    assert plane.loaded(here, "a") and plane.level
    plane.unload()
    assert not plane.level


def test_who_declines_reports_no_call_of_the_others_as_its_own() -> None:
    """It has heard of one in which a member died; those who live may have given that up by an exception, and be in another one.
    A member that said which one it was would be stopped because the two differ, and so would they.
    """
    plane = Plane("a")
    assert plane.activate(session(3, SalvagePlan(7, 7, current_state_id="a", holders=("a",)), "a"))
    call = Declined(veto=False)
    plane.enter(call)
    call.learn(LAYOUT)
    frozen = plane.freeze(Order(4, None))
    assert frozen is not None
    report = Report.decode(frozen[0])
    assert (report.current, report.current_signature) == (8, b"")


@pytest.mark.parametrize("waited", [True, False])
@pytest.mark.parametrize("has_it", [True, False])
def test_a_newcomer_says_what_it_has_once_it_knows(waited: bool, has_it: bool) -> None:
    """A call has ended with which it may have got the state, and the last who had it leaves after that call. The freeze was
    ordered while the call was under way (``waited``), or comes now: either way its report tells what it has.
    """
    plane, order = Plane("b"), Order(3, 8)
    here = session(2, SalvagePlan(7, 7, blank=("b",), current_state_id="a", holders=("a",)), "b")
    assert plane.activate(here)
    plane.enter(call := Followed(0.0, veto=False, may_give_state=True))
    call.learn(LAYOUT)
    assert plane.begin(here)
    if waited:
        assert plane.freeze(order) is None
    finish = plane.finish(here, call, Trailer.of(()), Results(8, LAYOUT, (), 1.0))
    assert finish is not None and finish.order is None
    if not waited:
        assert plane.freeze(order) is None
    assert plane.ordered and not plane.acting_in(here)
    if has_it:
        assert plane.caught_up("a", 8)
    assert plane.decided() is order
    assert plane.decided() is None
    answer = plane.freeze(order)
    assert answer is not None
    report = Report.decode(answer[0])
    assert (report.finished, report.state_id) == (8, "a" if has_it else "")


def test_a_founder_that_has_loaded_a_checkpoint_holds_its_state_unless_the_session_has_ended() -> None:
    plane = Plane("a")
    here = session(3, SalvagePlan(0, 0, current_state_id="a", holders=("a",)), "a")
    assert plane.activate(here)
    assert plane.resumed(here, "saved", 5)
    assert (plane.state_id, plane.current_state_id, plane.step) == ("saved", "saved", 5)
    plane.freeze(Order(4, None))
    assert not plane.resumed(here, "another", 6)
    assert (plane.state_id, plane.current_state_id) == ("", "saved"), "the others may not have it"
    assert plane.counters.state_loads == 1


@pytest.mark.parametrize("over", [True, False])
def test_a_founder_that_cannot_load_the_others_checkpoint_lacks_their_state_unless_the_session_has_ended(over: bool) -> None:
    """Then they may have another one by now."""
    plane, here = Plane("a"), session(3, SalvagePlan(0, 0, current_state_id="a", holders=("a",)), "a")
    plane.data.register(Mock(report=lambda: b"drawn"))
    assert plane.activate(here) and plane.loaded(here, "a")
    if over:
        plane.freeze(Order(4, None))
    plane.not_resumed(here, "b@5", 5)
    assert (plane.step, plane.current_state_id, plane.level) == ((0, "a", True) if over else (5, "b@5", False))
    assert plane.data.report() == (LATER + b"drawn" if over else b"")


def test_before_the_first_view_a_log_record_is_of_no_epoch_and_no_rank() -> None:
    record = Plane("a").about("joining")
    assert (record["epoch"], record["rank"], record["size"]) == (0, -1, 0)


def test_a_job_of_many_views_remembers_the_newest_ones_alone() -> None:
    """A held result may be of one of them."""
    plane = Plane("a")
    for epoch in range(2, 300):
        assert plane.activate(session(epoch, AFTER_SEVEN, "a"))
        plane.freeze(Order(epoch + 1, None))
    assert {298, 299} <= set(plane._epochs.values()) and len(plane._epochs) < 150


LATER = bytes(4)
"""Of a report, where no founder says over which members the first deal is."""


class Heard:
    """A sampler that notes what it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, object]] = []

    def bind(self, drawer: str, *, patience: float, together: bool, blocking: Callable[[], str]) -> None:
        pass

    def begin(self, batches: int, *, beside: int = 0, kept: bool = False) -> Share:
        return Share()

    def unfinished(self) -> None:
        self.events.append(("unfinished", None))

    def report(self) -> bytes:
        return b""

    def found(self, view_ids: Sequence[str]) -> None:
        self.events.append(("found", tuple(view_ids)))

    def finished(self, shares: Mapping[str, Share], step: int) -> None:
        self.events.append(("finished", step))

    def activated(self, view_ids: Sequence[str], reports: Mapping[str, Sequence[bytes]]) -> None:
        self.events.append(("activated", *reports["a"]))


def test_a_view_in_which_no_call_finished_is_told_to_nobody_who_gets_the_state() -> None:
    """A joiner loses the result of call 8, and the next view fails at once. It adopts that call in the one after, and then has
    the state on entry to it. Those who were there dealt the samples of call 8 as the first view said, and not as the second.
    """
    plane, sampler = Plane("c"), Heard()
    plane.data.register(sampler)  # type: ignore[arg-type]
    plan = SalvagePlan(7, 7, blank=("c",), current_state_id="a", holders=("a", "b"), drawn=(("a", LATER + b"two"),))
    plane.activate(session(2, plan, "c"))
    call = Followed(0.0, veto=False)
    plane.enter(call)
    plane.freeze(Order(3, None))
    for epoch, drawn in ((3, b"three"), (4, b"four")):
        lost = SalvagePlan(
            8, 8, adoptions=(("c", "a"),), current_state_id="a", holders=("a", "b"), drawn=(("a", LATER + drawn),)
        )
        newest = session(epoch, lost, "c")
        assert plane.activate(newest)
        if epoch == 3:
            plane.freeze(Order(4, None))
    call.learn(LAYOUT)
    assert plane.begin(newest)
    assert plane.adopt(newest, call, Results(8, LAYOUT, (), 2.0))
    assert not sampler.events, "it does not have the state yet"
    assert plane.caught_up("a", 8)
    assert sampler.events == [("activated", b"two"), ("finished", 8), ("activated", b"four")]


@pytest.mark.parametrize("donated", [True, False])
def test_a_call_is_of_the_view_that_has_computed_it_wherever_it_is_finished(donated: bool) -> None:
    """Two processes of a replica hold its result; one of them finishes it before the view changes, and the other one after
    that, with what it has held or with a donor's. They name the checkpoint of this step alike.
    """
    epochs = []
    for changed in (False, True):
        plane = Plane("a")
        newest = here = session(3, SalvagePlan(7, 7, current_state_id="a", holders=("a",)), "a")
        assert plane.activate(here)
        plane.enter(call := Call(Kind.AVERAGE, LAYOUT, [torch.ones(3)], weight=1.0, divide=True))
        assert plane.begin(here)
        results = Results(8, LAYOUT, (), 2.0, view_id=here.view.view_id)
        assert plane.hold(here, results, Trailer.of(()))
        if changed:
            plane.freeze(Order(4, None))
            adoptions = (("a", "b"),) if donated else ()
            newest = session(4, SalvagePlan(8, 8, adoptions=adoptions, current_state_id="a", holders=("a",)), "a")
            assert plane.activate(newest) and plane.begin(newest)
        assert plane.adopt(newest, call, results)
        epochs.append(plane.finished_epoch)
    assert epochs == [3, 3]


def test_a_call_of_a_view_that_was_not_seen_here_is_of_the_view_in_which_it_is_adopted() -> None:
    plane, here = Plane("a"), session(4, SalvagePlan(8, 8, adoptions=(("a", "b"),), current_state_id="b", holders=("b",)), "a")
    assert plane.activate(here)
    plane.enter(call := Call(Kind.AVERAGE, LAYOUT, [torch.ones(3)], weight=1.0, divide=True))
    assert plane.begin(here) and plane.adopt(here, call, Results(8, LAYOUT, (), 3.0, view_id="of others"))
    assert plane.finished_epoch == 4


@pytest.mark.parametrize("healed", [True, False])
def test_a_founder_reports_what_it_has_finished_unless_it_gets_the_others_state(healed: bool) -> None:
    """Then neither its own call nor its own initial state is any that the job could go on from."""
    plane, founding = Plane("b"), session(1, SalvagePlan(0, 0, current_state_id="a", holders=("a",)), "b")
    assert plane.installing(founding.view) and plane.activate(founding)
    plane.enter(call := Call(Kind.BARRIER, LAYOUT, ()))
    assert plane.begin(founding) and plane.finish(founding, call, Trailer.of(()), Results(1, LAYOUT, (), 3.0))
    plane.freeze(Order(2, None))
    number, behind = (2, ("b",)) if healed else (1, ())
    plan_ = SalvagePlan(number, 0, blank=behind, newcomers=behind, healed=behind, current_state_id="a", holders=("a",))
    assert plane.activate(session(2, plan_, "b"))
    answer = plane.freeze(Order(3, None))
    assert answer is not None
    report = Report.decode(answer[0])
    assert (report.founder, report.blank) == (not healed, healed)
    assert (report.finished, report.last_signature) == (number, b"" if healed else LAYOUT.signature)


def test_a_founder_that_registers_late_is_told_what_was_used_up_before() -> None:
    """Calls in which nobody drew are not kept for it: there may be any number before the first step."""
    plane, sampler = Plane("b"), Heard()
    view = View(1, "", MEMBERS)
    assert plane.installing(view)
    founding = Session(view, SalvagePlan(0, 0, current_state_id="a", holders=("a",)), "b", {"a": 0, "b": 1, "c": 2}, GROUP)
    assert plane.activate(founding)
    for number in range(1, 5):
        call = Call(Kind.BARRIER, LAYOUT, (), weight=0.0, divide=True)
        results = Results(number, LAYOUT, (), 0.0)
        results.shares = {"a": Share(dropped=1, data_epoch=1)} if number == 3 else {}
        plane.enter(call)
        assert plane.adopt(founding, call, results)
    plane.data.register(sampler)  # type: ignore[arg-type]
    assert plane.loaded(founding, "a")
    assert sampler.events == [("found", ("a", "b", "c")), ("finished", 0)]


def test_a_founder_that_registers_late_is_told_of_an_adopted_call_before_the_view_that_gave_it() -> None:
    """In the order in which the others have heard it, who were in the call."""
    plane, sampler = Plane("b"), Heard()
    view = View(1, "", MEMBERS)
    assert plane.installing(view)
    founding = SalvagePlan(0, 0, current_state_id="a", holders=("a",))
    assert plane.activate(Session(view, founding, "b", {"a": 0, "b": 1, "c": 2}, GROUP))
    plane.enter(call := Call(Kind.BARRIER, LAYOUT, (), weight=0.0, divide=True))
    plane.freeze(Order(3, None))
    drawn = (("a", plane.data.report() + b"drawn"),)
    later = SalvagePlan(1, 0, adoptions=(("b", "a"),), current_state_id="a", holders=("a",), drawn=drawn)
    newest = Session(View(3, "parent", MEMBERS[:2]), later, "b", {"a": 0, "b": 1}, GROUP)
    assert plane.activate(newest)
    results = Results(1, LAYOUT, (), 0.0)
    results.shares = {"a": Share(dropped=1, data_epoch=1)}
    assert plane.begin(newest) and plane.adopt(newest, call, results)
    plane.data.register(sampler)  # type: ignore[arg-type]
    assert plane.loaded(newest, "a")
    assert sampler.events == [("found", ("a", "b", "c")), ("finished", 0), ("activated", b"drawn")]


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("early", [True, False])
def test_founders_whose_first_deals_differ_begin_again(alike: bool, early: bool) -> None:
    """One of them has missed a view before the first call: it would deal to those who had died before. Also where a sampler is
    there only later (not ``early``).
    """
    plane, sampler = Plane("b"), Heard()
    assert plane.installing(View(1, "", MEMBERS))
    view = View(1, "", MEMBERS)
    founding = SalvagePlan(0, 0, current_state_id="a", holders=("a",))
    first = Session(view, founding, "b", {"a": 0, "b": 1, "c": 2}, GROUP)
    assert plane.activate(first)
    if early:
        plane.data.register(sampler)  # type: ignore[arg-type]
        assert plane.loaded(first, "a")
    own = plane.data.report()
    assert len(own) == len(LATER) and own != LATER
    plane.freeze(Order(3, None))
    other = own if alike else b"else"
    drawn = (("a", other + b"drawn"), ("b", own))
    agreed = SalvagePlan(0, 0, current_state_id="a", holders=("a",), drawn=drawn)
    newest = Session(View(3, "parent", MEMBERS[:2]), agreed, "b", {"a": 0, "b": 1}, GROUP)
    assert plane.activate(newest)
    if not early:
        plane.data.register(sampler)  # type: ignore[arg-type]
        assert plane.loaded(newest, "a")
    before, again = [("found", ("a", "b", "c"))], [("found", ("a", "b"))]
    assert sampler.events == ([*before, ("activated", b"drawn")] if alike else [*before, *again] if early else again)
    assert (plane.data.report() == own) is alike


def test_a_call_that_is_left_by_an_exception_uses_nothing_up() -> None:
    """Its batches are drawn again by the next call, or go back."""
    plane, sampler = Plane("a"), Heard()
    plane.data.register(sampler)  # type: ignore[arg-type]
    plane.enter(Call(Kind.AVERAGE, LAYOUT, [torch.ones(3)], weight=1.0, divide=True))
    plane.abandon()
    assert sampler.events == [("unfinished", None)]


def test_a_healed_member_goes_on_with_a_joiner_where_the_others_die() -> None:
    """Both have loaded the state on entry to the same call; what either did before is forgotten, and nothing to differ in."""
    reports = {}
    for name in "bc":
        plane = Plane(name)
        plane.has_state = True
        if name == "b":
            before = session(3, SalvagePlan(7, 7, current_state_id="a", holders=("a", "b")), name)
            plane.activate(before)
            call = Call(Kind.AVERAGE, LAYOUT, [torch.ones(3)], weight=1.0, divide=True)
            plane.enter(call)
            assert plane.adopt(before, call, Results(8, LAYOUT, (), 2.0))
            plane.lag.grow(1)  # its program had yet to take over a call of its backup worker's
            plane.freeze(Order(4, None))
        healed = session(4, SalvagePlan(20, 20, blank=("b", "c"), healed=("b",), current_state_id="a", holders=("a",)), name)
        assert plane.activate(healed)
        assert plane.loaded(healed, "a")
        answer = plane.freeze(Order(5, None))
        assert answer is not None
        reports[name] = answer[0]
    chosen = plan(View(5, "parent", MEMBERS[1:]), reports)
    assert chosen.fault is None
    assert (chosen.call, chosen.holders) == (20, ("b", "c"))


def test_a_sampler_that_is_taken_over_is_bound_again_by_the_first_call() -> None:
    """Its program registers it once: a new lifetime has another id, and no state yet."""
    sampler, plane = Mock(), Mock(step=0, state_id="", member_id="b", changed=threading.Condition())
    first = DataAccounting(Mock(step=0, state_id="", member_id="a", changed=threading.Condition()))
    first.register(sampler)
    sampler.reset_mock()
    second = DataAccounting(plane, first, patience=7.0)
    for _ in range(2):
        second.entered(Call(Kind.AVERAGE, LAYOUT, [torch.ones(3)], weight=1.0, divide=True))
    assert [call[0] for call in sampler.method_calls] == ["bind", "begin", "begin"]
    sampler.bind.assert_called_once_with("b", patience=7.0, together=False, blocking=ANY)


def test_a_view_is_wanted_until_a_freeze_for_a_later_one_or_the_end() -> None:
    plane = Plane("a")
    rebuilder = Rebuilder(plane, Mock(), Mock(), Mock())
    rebuilder.handle(Freeze(4, None))
    assert [rebuilder.wants(epoch) for epoch in (3, 4, 5)] == [False, True, True]
    plane.stop(None)
    assert [rebuilder.wants(epoch) for epoch in (3, 4, 5)] == [False] * 3


@pytest.mark.parametrize(("adopts", "told"), [((True, True, True), 0), ((True, False, True), 2), ((False, True, True), 1)])
def test_who_adopts_a_call_is_told_of_the_views_that_were_active_when_it_was_finished(
    adopts: tuple[bool, ...], told: int
) -> None:
    """Of those from the first one on in which it has to adopt that call it is told after its next one."""
    news = News()
    views = [View(epoch, "parent", MEMBERS) for epoch in range(1, 4)]
    for view, each in zip(views, adopts, strict=True):
        news.activated(view, adopts=each)
    news.adopted()
    assert (news.due, news.changes) == (views[:told], views[told:])
    news.finished()
    assert (news.due, news.changes) == (views, [])


def test_a_later_average_of_a_unit_has_the_weight_of_the_one_before() -> None:
    """It draws nothing: the samples behind it are those of the unit's first average, not those of the last step."""
    sampler = Mock()
    sampler.weight.side_effect = lambda batches: 100.0 + 10.0 * batches
    data = DataAccounting(Mock(step=0, state_id="", member_id="a", changed=threading.Condition()))
    data.register(sampler)
    calls = [Call(Kind.AVERAGE, LAYOUT, [torch.ones(3)], weight=0.0, divide=True, by_samples=True) for _ in range(3)]
    calls[0].uses(2)
    calls[1].uses(0)
    calls[2].uses(1)
    former, weights = None, []
    for call, before in zip(calls, (0, 2, 2), strict=True):
        former = data.weigh(call, before, former)
        weights.append(call.weight)
    assert weights == [120.0, 120.0, 10.0], "the third one draws a batch more than the first two"
    assert former == 10.0


@pytest.mark.parametrize("abandoned", [False, True])
def test_a_call_that_fails_here_fails_at_once_for_those_who_wait_in_it(abandoned: bool) -> None:
    """Its group is aborted, where there is one: a member alone has none."""
    for group in (None, Mock()):
        plane, consensus = Plane("a"), Mock()
        plan_ = SalvagePlan(7, 7, current_state_id="a", holders=("a",))
        here = Session(View(3, "parent", MEMBERS), plan_, "a", {"a": 0, "b": 1, "c": 2}, group)
        failures = Failures(plane, consensus, Mock())
        assert plane.activate(here)
        plane.enter(call := Call(Kind.AVERAGE, LAYOUT, [torch.ones(3)], weight=1.0, divide=True))
        assert plane.begin(here)
        if abandoned:
            failures.abandon()
        else:
            failures.report(call, here, GroupError("it broke", (1,)))
        if group is not None:
            consensus.average_failure.assert_called_once_with(8, () if abandoned else ("b",))
            group.abort.assert_called_once_with()


def test_a_lifetime_that_fails_leaves_and_aborts_its_group() -> None:
    plane, consensus, group = Plane("a"), Mock(), Mock()
    assert plane.activate(Session(View(3, "parent", MEMBERS), SalvagePlan(7, 7), "a", {"a": 0, "b": 1, "c": 2}, group))
    Failures(plane, consensus, Mock()).stop(Excluded("so it is"))
    group.abort.assert_called_once_with()
    consensus.leave.assert_called_once_with()
    assert plane.phase is Phase.STOPPED


def test_a_group_that_cannot_be_built_is_reported_counted_and_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever may have caused it is checked, so that there is a new view; unless one has been ordered by then."""
    plane, consensus = Plane("a"), Mock()
    view = View(4, "parent", MEMBERS)
    error = RebuildError("b did not come", ("b",))
    rebuilder = Rebuilder(plane, consensus, Mock(), Mock())
    rebuilder._failed(view, error)
    consensus.average_failure.assert_called_once_with(1, ("b",))
    assert plane.counters.rebuild_failures == 1
    assert caplog.messages == [f"building the group of {view} failed, waiting for a new view: b did not come"]
    rebuilder.handle(Freeze(5, None))
    rebuilder._failed(view, error)
    consensus.average_failure.assert_called_once_with(1, ("b",))
    assert plane.counters.rebuild_failures == 2
