"""A call at one member's data plane: what the others are told of it, and what is kept after it."""

from __future__ import annotations

import threading
from unittest.mock import Mock, patch

import pytest

from ftlib.core.backup.backup_call import BackupCall
from ftlib.core.calls.call import Results
from ftlib.core.calls.follow import Followed
from ftlib.core.calls.salvage import Report, SalvagePlan
from ftlib.core.calls.session import Session
from ftlib.core.plane.orders import Finish, Order
from ftlib.core.plane.plane import Plane
from ftlib.core.tensors.trailer import Trailer
from ftlib.errors import Excluded
from tests.ftlib.plane.sessions import AFTER_SEVEN, LAYOUT, Clock, Meanwhile, average, session
from tests.harness.basics import TIMEOUT


def watched() -> tuple[Plane, Session, list[tuple[int, int, bool]]]:
    """A plane, its active session, and what it tells of every call, as somebody waits to be let in."""
    told: list[tuple[int, int, bool]] = []
    plane = Plane("a", lambda finished, current, *, busy=False, **_: told.append((finished, current, busy)))
    here = session(3, AFTER_SEVEN, "a")
    assert plane.activate(here)
    plane.request_boundary(wanted=True)
    return plane, here, told


def test_the_others_are_told_of_a_call_but_not_while_the_program_computes_in_it() -> None:
    """They then wait for this member, as if it were outside of calls."""
    plane, here, told = watched()
    plane.enter(call := average())
    assert plane.begin(here)
    for computing in (True, False):
        plane.computes(call, computing)
    assert plane.finish(here, call, Trailer.of(()), Results(8, LAYOUT, (), 3.0))
    assert told == [(7, 0, False), (7, 8, True), (7, 0, True), (7, 8, True), (8, 0, False)]


@pytest.mark.parametrize("founds", [True, False])
def test_the_others_are_told_of_a_place_that_is_not_the_first_one_of_a_job(founds: bool) -> None:
    """Where everybody begins all are taken to be anyway."""
    told: list[tuple[int, int, bool]] = []
    plane = Plane("a", lambda finished, current, *, busy=False, **_: told.append((finished, current, busy)))
    plan = SalvagePlan(0, 0, current_state_id="a", holders=("a",))
    here = session(1, plan, "a") if founds else session(3, AFTER_SEVEN, "a")
    assert plane.activate(here)
    assert told == ([] if founds else [(7, 0, False)])
    plane.enter(call := average())
    assert plane.begin(here) and plane.finish(here, call, Trailer.of(()), Results(call.number, LAYOUT, (), 3.0))
    assert told[-1:] == [(1 if founds else 8, 0, False)]


def test_whoever_waits_for_a_view_or_a_call_hears_that_it_has_begun() -> None:
    """Its call, or a donor that is asked for the state."""
    plane, here = Plane("a"), session(3, AFTER_SEVEN, "a")
    for begins in (lambda: plane.activate(here), lambda: plane.enter(average())):
        with patch.object(plane.changed, "notify_all") as wakes:
            begins()
        wakes.assert_called_once_with()


def test_a_call_goes_on_at_once_in_an_active_session_of_members_enough() -> None:
    plane, here = Plane("a"), session(3, AFTER_SEVEN, "a")
    assert plane.ready(1) is None
    assert plane.activate(here)
    assert [plane.ready(least) for least in (2, 3, 4)] == [here, here, None]
    plane.freeze(Order(4, None))
    assert plane.ready(1) is None


def test_no_deadline_counts_from_before_the_last_moment_with_too_few_members() -> None:
    """Until then no other wait could end."""
    clock = Clock()
    plane = Plane("a", threads=clock)
    assert plane.since(50.0) == 50.0
    plane.lacks()
    assert [plane.since(began) for began in (50.0, 130.0)] == [100.0, 130.0]


@pytest.mark.parametrize(("entered", "seconds"), [(1.0, 4.0), (7.0, 2.0)])
def test_a_view_change_takes_the_time_of_a_call_for_which_it_waited(entered: float, seconds: float) -> None:
    """From its beginning on, 5 seconds after that of the clock, or since the call was ``entered`` in the middle of it."""
    clock = Clock()
    plane, began = Plane("a", threads=clock), clock.at
    use = plane.counters.time_use
    assert plane.activate(session(3, AFTER_SEVEN, "a"))
    deeds = [(entered, lambda: plane.enter(average())), (5.0, lambda: plane.freeze(Order(4, None)))]
    for at, deed in sorted(deeds, key=lambda each: each[0]):
        clock.at = began + at
        deed()
        if at == entered:
            use.entered(clock.at)
    clock.at = began + 9.0
    assert plane.activate(session(4, AFTER_SEVEN, "a"))
    use.left(clock.at)
    assert use.shown(clock.at)["changing"] == seconds


def test_the_place_of_who_is_not_in_the_view_any_more_is_forgotten() -> None:
    plane = Plane("a")
    for member in "bd":
        plane.peer_progress(member, 7, 8)
    assert plane.activate(session(3, AFTER_SEVEN, "a"))
    assert plane.peers.places == {"b": (7, 8)}


def test_a_backup_worker_hides_that_it_waits_in_a_call_until_an_operation_of_it_has_ended() -> None:
    """Before that nobody may be in it yet, and its waiting would count against the others."""
    plane, here, told = watched()
    plane.enter(BackupCall(0.0, veto=False, awaited=lambda: False, present=plane.present))
    assert plane.begin(here) and told == [(7, 0, False)]
    for _ in range(2):
        plane.entered()
        assert told == [(7, 0, False), (7, 8, True)]


def test_once_all_are_in_a_call_nobody_needs_the_result_before_and_nobody_is_told_unasked() -> None:
    told: list[int] = []
    plane, slot = Plane("a", lambda _finished, current, **_: told.append(current)), Mock()
    here = session(3, AFTER_SEVEN, "a")
    assert plane.activate(here)
    plane.enter(call := average())
    assert plane.begin(here) and plane.finish(here, call, Trailer.of(()), Results(8, LAYOUT, (slot,), 3.0))
    plane.present()
    plane.enter(average())
    assert plane.begin(here) and plane.needed == (slot,)
    plane.entered()
    assert plane.needed == () and not any(told)


@pytest.mark.parametrize("places", [(), ("rehearsal",)])
def test_a_call_remembers_what_a_device_had_to_do_on_entry(places: tuple[str, ...]) -> None:
    """Else a donor would read the state before the device has computed it. In CPU memory there is nothing to wait for. If the
    state comes in that call, it is what was loaded.
    """
    plane, here = Plane("a"), session(3, AFTER_SEVEN, "a")
    plane.registers(places)
    assert plane.activate(here) and plane.loaded(here, "a"), "before the call"
    plane.enter(call := average())
    entry = call.fence
    assert (entry is not None) is bool(places)
    assert plane.loaded(here, "a")
    assert (call.fence is not entry) is bool(places)


@pytest.mark.parametrize("within", [True, False])
def test_the_time_of_a_call_in_which_the_state_comes_is_that_of_the_recovery(within: bool) -> None:
    """Not that of the next call after a load by itself, which has a time of its own."""
    plane, here = Plane("a"), session(3, AFTER_SEVEN, "a")
    assert plane.activate(here)
    if within:
        plane.enter(average())
    assert plane.loaded(here, "a")
    use, now = plane.counters.time_use, plane.threads.now()
    use.entered(now)
    use.left(now + 8.0)
    seconds = use.shown(now + 8.0)
    assert (seconds["recovering"], seconds["averaging"]) == pytest.approx((8.0, 0.0) if within else (0.0, 8.0))


def test_the_time_of_the_programs_code_within_a_call_is_not_the_calls() -> None:
    clock = Clock()
    plane = Plane("a", threads=clock)
    use = plane.counters.time_use
    plane.enter(call := average())
    use.entered(clock.at)
    for seconds, computing in ((1.0, True), (16.0, False)):
        clock.at += seconds
        plane.computes(call, computing=computing)
    clock.at += 2.0
    use.left(clock.at)
    seen = use.shown(clock.at)
    assert (seen["averaging"], seen["computing"]) == (3.0, 16.0)


@pytest.mark.parametrize("places", [(), ("rehearsal",)])
def test_once_backward_has_ended_the_state_is_as_on_entry_to_its_call(places: tuple[str, ...]) -> None:
    """Backward may change buffers, on a device after the call was entered. Donors may wait for its end."""
    plane = Plane("a")
    plane.registers(places)
    plane.enter(call := average())
    plane.computes(call, computing=True)
    entry = call.fence
    assert not plane.in_call(1)
    with patch.object(plane.changed, "notify_all") as wakes:
        plane.computed(call)
    wakes.assert_called_once_with()
    assert plane.in_call(1) and (call.fence is not entry) is bool(places)


def test_a_call_under_way_is_told_as_soon_as_somebody_waits_to_be_let_in() -> None:
    """For the end of it. Before that, and when nobody waits any more, a call costs no message."""
    told: list[tuple[int, int, bool]] = []
    plane = Plane("a", lambda finished, current, *, busy=False, **_: told.append((finished, current, busy)))
    here = session(3, AFTER_SEVEN, "a")
    assert plane.activate(here)
    plane.enter(call := average())
    assert plane.begin(here) and not any(current for _, current, _ in told)
    told.clear()
    plane.request_boundary(wanted=True)
    assert told == [(7, 8, True)]
    assert plane.finish(here, call, Trailer.of(()), Results(8, LAYOUT, (), 3.0))
    plane.enter(average())
    told.clear()
    plane.request_boundary(wanted=False)
    assert plane.begin(here) and not told


def test_the_others_are_waited_for_until_they_have_entered_the_call() -> None:
    plane, here = Plane("a"), session(3, AFTER_SEVEN, "a")
    assert plane.activate(here)
    all_in = f"the members of {here.view} have all entered the call"
    assert plane.blocking() == all_in, "there is no call"
    plane.enter(average())
    plane.peer_progress("b", 7, 8)
    assert plane.blocking() == f"waiting for {here.names(['c'])}, not in this call yet"
    plane.peer_progress("c", 8, 0)
    assert plane.blocking() == all_in, "one of them has finished it"


@pytest.mark.parametrize("alone", [True, False])
def test_who_is_alone_ends_a_unit_before_it_freezes(alone: bool) -> None:
    """It cannot undo it. In a group a unit is done again, and a freeze that waited for its end would wait for the dead."""
    plane, here = Plane("a"), session(3, AFTER_SEVEN, "a", group=None if alone else Mock())
    assert plane.activate(here)
    plane.enter(call := average())
    call.changes_state = True
    assert plane.begin(here)
    answer = plane.freeze(Order(4, None))
    assert (answer is None) is plane.ordered is plane.acting_in(here) is alone


def test_the_newest_trailer_is_known_until_the_view_changes() -> None:
    """It says who has the state, by rank: in the next view these are others."""
    plane, trailer = Plane("a"), Trailer.of(())
    here = session(3, AFTER_SEVEN, "a")
    assert plane.activate(here)
    plane.enter(call := average())
    assert plane.begin(here) and plane.trailer is None
    assert plane.finish(here, call, trailer, Results(8, LAYOUT, (), 3.0))
    assert plane.trailer is trailer
    plane.freeze(Order(4, None))
    assert plane.activate(session(4, SalvagePlan(8, 8, current_state_id="a", holders=("a",)), "a"))
    assert plane.trailer is None


@pytest.mark.parametrize("foreign", [True, False])
def test_a_held_result_is_known_as_that_of_the_programs_call_or_of_the_others(foreign: bool) -> None:
    """A newcomer has not come in with theirs: in the next view it takes part in that call with nothing of its own again."""
    plane, here = Plane("a"), session(3, AFTER_SEVEN, "a")
    assert plane.activate(here)
    plane.enter(Followed(0.0, veto=False) if foreign else average())
    assert plane.begin(here) and plane.hold(here, Results(8, LAYOUT, (), 3.0))
    assert plane.held_foreign is foreign


@pytest.mark.parametrize("keeps", [True, False])
def test_a_held_result_is_kept_if_the_next_view_goes_on_with_it(keeps: bool) -> None:
    """Else the call is done again, and whoever still held the old result could give it to others."""
    plane, results = Plane("a"), Results(8, LAYOUT, (), 3.0)
    here = session(3, AFTER_SEVEN, "a")
    assert plane.activate(here)
    plane.enter(average())
    assert plane.begin(here) and plane.hold(here, results, Trailer.of(()))
    plane.freeze(Order(4, None))
    plan = SalvagePlan(8, 8, current_state_id="a", holders=("a",)) if keeps else AFTER_SEVEN
    assert plane.activate(session(4, plan, "a", keeps=keeps))
    answer = plane.freeze(Order(5, None))
    assert answer is not None
    report = Report.decode(answer[0])
    assert (report.finished, report.held) == (7, 8 if keeps else 0)


def test_a_member_that_leaves_waits_for_the_call_after_which_all_freeze() -> None:
    """As long as it is let: whoever ends the call cannot do so before the lock is free, that is, before it is waited for."""
    plane = Plane("a")
    here = session(3, AFTER_SEVEN, "a")
    assert plane.activate(here)
    plane.enter(call := average())
    assert plane.begin(here) and plane.freeze(Order(4, 8)) is None
    plane.let_end(0.0)
    assert plane.ordered
    results = Results(8, LAYOUT, (), 3.0)
    ends = threading.Thread(target=lambda: plane.finish(here, call, Trailer.of(()), results))
    with plane.changed:
        ends.start()
        plane.let_end(TIMEOUT)
        assert plane.finished == 8 and not plane.ordered
    ends.join()


def test_who_ends_a_call_that_a_freeze_waits_for_hears_of_the_freeze() -> None:
    """Else nobody would carry it out."""
    plane, order = Plane("a"), Order(4, 8)
    here = session(3, AFTER_SEVEN, "a")
    assert plane.activate(here)
    plane.enter(call := average())
    assert plane.begin(here)
    with patch.object(plane.changed, "notify_all") as wakes:
        assert plane.freeze(order) is None
    wakes.assert_called_once_with()  # who parts may wait for it in that call
    assert plane.finish(here, call, Trailer.of(()), Results(8, LAYOUT, (), 3.0)) == Finish(order)
    assert not plane.ordered and not plane.acting_in(here)


def test_so_does_who_adopts_it() -> None:
    """The others have finished that call before, and one of them leaves now: they wait for this member's report."""
    plane, order, call = Plane("a"), Order(4, 8), average()
    here = session(3, SalvagePlan(8, 8, adoptions=(("a", "b"),), current_state_id="a", holders=("a", "b")), "a")
    plane.enter(call)
    assert plane.activate(here) and plane.begin(here) and plane.freeze(order) is None
    assert plane.adopt(here, call, Results(8, LAYOUT, (), 3.0)) == Finish(order)
    assert not plane.ordered and not plane.acting_in(here)


@pytest.mark.parametrize("held", [True, False])
def test_who_finishes_a_call_after_the_others_is_told_of_the_views_before_with_it(held: bool) -> None:
    """As the others were, with that call; of the view in which it finishes it with the next one, as they are. Whether its
    result comes from a donor, or was ``held`` here: a learning rate that depends on the view would else differ in a step.
    """
    plane, first = Plane("a"), session(3, AFTER_SEVEN, "a")
    results = Results(8, LAYOUT, (), 3.0)
    assert plane.activate(first)
    plane.enter(call := average())
    assert plane.begin(first) and (not held or plane.hold(first, results, Trailer.of(())))
    assert plane.freeze(Order(4, None))
    plan = SalvagePlan(8, 8, adoptions=() if held else (("a", "b"),), current_state_id="a", holders=("a", "b"))
    second = session(4, plan, "a", keeps=held)
    assert plane.activate(second) and plane.begin(second)
    assert plane.adopt(second, call, results)
    assert (plane.news.due, plane.news.changes) == ([first.view], [second.view])
    plane.enter(following := average())
    assert plane.begin(second) and plane.finish(second, following, Trailer.of(()), Results(9, LAYOUT, (), 3.0))
    assert (plane.news.due, plane.news.changes) == ([first.view, second.view], [])


@pytest.mark.parametrize("ends", [True, False])
def test_who_parts_in_a_call_waits_for_the_word_whether_the_others_end_it(ends: bool) -> None:
    """They may do it again without it. Then what was computed here counts nowhere."""
    threads = Meanwhile()
    plane = Plane("a", threads=threads)
    here = session(3, AFTER_SEVEN, "a")
    assert plane.activate(here)
    plane.enter(call := average())
    assert plane.begin(here) and plane.part() is None
    threads.happens.append(lambda: plane.freeze(Order(4, 8 if ends else None)))
    results = Results(8, LAYOUT, (), 3.0, view_id=here.view.view_id)
    finish = plane.finish(here, call, Trailer.of(()), results)
    assert not threads.happens
    assert finish == (Finish(Order(4, 8)) if ends else None)
    assert plane.part() == (8 if ends else None)
    if ends:
        plane.freeze(Order(4, 8))
        plan = SalvagePlan(20, 20, blank=("a",), newcomers=("a",), healed=("a",), current_state_id="b", holders=("b",))
        assert plane.activate(session(4, plan, "a")) and plane.part() is None, "it has seen no end of call 20"


def test_who_waits_for_the_end_of_a_session_goes_on_with_its_freeze() -> None:
    """As after a failed answer of a donor: if that has died, the next view says so."""
    threads = Meanwhile()
    plane, here = Plane("a", threads=threads), session(3, AFTER_SEVEN, "a")
    assert plane.activate(here)
    threads.happens.append(lambda: plane.freeze(Order(4, None)))
    plane.wait_end(here, TIMEOUT)
    assert not threads.happens and not plane.acting_in(here)


@pytest.mark.parametrize(("state_id", "number", "over"), [("b", 8, False), ("a", 7, False), ("a", 8, True), ("a", 8, False)])
def test_who_has_caught_up_has_the_state_that_is_valid_after_the_newest_call(state_id: str, number: int, over: bool) -> None:
    """Else it goes on following: it would count with another state than the others have."""
    plane = Plane("c")
    here = session(2, SalvagePlan(7, 7, blank=("c",), newcomers=("c",), current_state_id="a", holders=("a",)), "c")
    assert plane.activate(here)
    plane.enter(call := Followed(0.0, veto=False))
    assert plane.begin(here) and plane.finish(here, call, Trailer.of(()), Results(8, LAYOUT, (), 3.0))
    if over:
        plane.stop(Excluded("out"))
    fits = (state_id, number, over) == ("a", 8, False)
    assert plane.caught_up(state_id, number) is plane.level is fits
    assert plane.newcomer is not fits and plane.counters.state_loads == fits


@pytest.mark.parametrize("accelerated", [True, False])
@pytest.mark.parametrize("alone", [True, False])
def test_a_finished_call_is_counted_by_what_has_carried_it(alone: bool, accelerated: bool) -> None:
    plane, here = Plane("a"), session(3, AFTER_SEVEN, "a")
    counters = plane.counters
    assert plane.activate(here)
    plane.enter(call := average())
    results = Results(8, LAYOUT, () if alone else (Mock(),), 3.0).carried(accelerated=accelerated)
    assert plane.begin(here) and plane.finish(here, call, Trailer.of(()), results)
    assert (counters.calls, counters.alone, counters.accelerated) == (1, alone, accelerated)
    assert counters.bytes_averaged == call.nbytes == 12


def test_nothing_is_begun_in_a_session_that_is_over() -> None:
    """Neither once it is frozen, nor when another one is active by then."""
    plane, here = Plane("a"), session(3, AFTER_SEVEN, "a")
    assert plane.activate(here)
    plane.enter(average())
    plane.freeze(Order(4, None))
    assert not plane.begin(here)
    following = session(4, AFTER_SEVEN, "a")
    assert plane.activate(following)
    assert not plane.begin(here) and plane.running is None
    assert plane.begin(following)
