"""Policy ``storage``: what a member asks of the store, and what follows from the answers."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from consensus.border import Built, Flushed, Freeze, Hint, Stopped
from consensus.config import Config, Policy
from consensus.errors import ConfigError, ExcludedError, QuorumLostError, StoreWipedError
from consensus.messages import Accept, Activate, Chosen, FlushReply, FlushRequest, Install, Lease, Prepare, Ready, ViewRecord
from consensus.protocol.agreement.proposer import SMALLER_WAITS, STANDS_IN
from consensus.protocol.agreement.register import AGAIN_AT_MOST, SELDOM, SOON, WIPED_FOR
from consensus.protocol.machine import Machine
from consensus.protocol.state.effects import Ask, Effect, Note
from consensus.protocol.state.inputs import Answered, Checked, StoreChanged
from consensus.store_requests import (
    Away,
    Beat,
    Clean,
    CreateView,
    Done,
    LeaseList,
    ReadLeases,
    ReadViews,
    Recorded,
    StoreOp,
    StoreReply,
    Unread,
    Wiped,
)
from consensus.view import Delta, View

from .people import machine_in, member, sends, view_of

CONFIG = Config(policy=Policy.STORAGE, storage="file:///nowhere")
AWAY = Away("the store does not answer", ambiguous=True)


def machine_of(names: str, own: str) -> Machine:
    return machine_in(names, own, config=CONFIG)


def asked(effects: list[Effect], kind: type[StoreOp]) -> list[StoreOp]:
    return [effect.request for effect in effects if isinstance(effect, Ask) and isinstance(effect.request, kind)]


def drained(machine: Machine, now: float) -> list[Effect]:
    """All effects, the clock moved to what is due by ``now``."""
    effects = machine.drain()
    while (due := machine.next_deadline()) is not None and due <= now:
        machine.tick(due)
        effects += machine.drain()
    return effects


def proposed(machine: Machine, dead: str, now: float) -> CreateView:
    """What ``machine`` has recorded once ``dead`` is proven so."""
    machine.handle(Checked(dead, False, "refused"), now)
    [create] = asked(drained(machine, now + 0.05), CreateView)
    assert isinstance(create, CreateView)
    return create


def answer(machine: Machine, request: StoreOp, what: StoreReply, now: float) -> list[Effect]:
    machine.handle(Answered(request, what), now)
    return machine.drain()


def successor(of: View, names: str, driver: str, epoch: int | None = None) -> ViewRecord:
    epoch = of.epoch + 1 if epoch is None else epoch
    return ViewRecord(View(epoch, of.view_id, tuple(member(name) for name in names), of.cluster), driver)


def test_the_coordinator_records_and_nobody_is_asked_to_vote() -> None:
    machine = machine_of("abc", "a")
    machine.handle(Checked("c", False, "refused"), 100.1)
    effects = drained(machine, 100.15)
    [create] = asked(effects, CreateView)
    assert isinstance(create, CreateView)
    assert create.record.view.ids == ("a", "b") and create.record.driver == "a"
    assert create.record.view.parent_id == view_of("abc").view_id == create.record.trail[0]
    assert not sends(effects, Accept) and not sends(effects, Prepare)
    assert not any(isinstance(effect, Freeze) for effect in effects), "frozen before it is decided"


def test_whoever_created_the_record_drives_it_as_ever() -> None:
    machine = machine_of("abc", "a")
    create = proposed(machine, "c", 100.1)
    effects = answer(machine, create, Recorded(create.record), 100.2)
    assert any(isinstance(effect, Freeze) and effect.epoch == 2 for effect in effects)
    effects += drained(machine, 100.3)
    assert {send.address for send in sends(effects, FlushRequest)} == {member("b").address}
    machine.handle(Flushed(2, b"A"), 100.31)
    machine.receive("b", member("b").address, FlushReply(2, create.record.view.view_id, b"B"), 100.32)
    [install] = [send.message for send in sends(machine.drain(), Install)]
    assert isinstance(install, Install)
    machine.handle(Built(create.record.view.view_id), 100.33)
    machine.receive("b", member("b").address, Ready(2, create.record.view.view_id), 100.34)
    assert sends(machine.drain(), Activate)
    assert machine.active_view == create.record.view


def test_what_others_have_read_of_its_own_record_will_do() -> None:
    """The store took it, and its answer was lost: whoever tells of that view has read it there."""
    machine = machine_of("abc", "a")
    create = proposed(machine, "c", 100.1)
    assert not any(isinstance(effect, Freeze) for effect in answer(machine, create, AWAY, 100.2))
    machine.receive("b", member("b").address, Chosen(create.record.view, "a"), 100.3)
    assert any(isinstance(effect, Freeze) and effect.epoch == 2 for effect in machine.drain())
    assert machine.view == create.record.view


def test_a_view_that_it_is_said_to_drive_and_never_proposed_is_looked_up() -> None:
    machine = machine_of("abc", "a")
    machine.receive("b", member("b").address, Chosen(successor(view_of("abc"), "ab", "a").view, "a"), 100.3)
    assert asked(machine.drain(), ReadViews) and machine.view == view_of("abc")


def test_what_another_one_has_recorded_is_believed_at_once() -> None:
    machine = machine_of("abc", "a")
    record = successor(view_of("abc"), "ab", "b")
    machine.receive("b", member("b").address, Chosen(record.view, "b"), 100.3)
    assert machine.view == record.view


def test_who_is_told_by_the_driver_freezes() -> None:
    machine = machine_of("abc", "b")
    record = successor(view_of("abc"), "ab", "a")
    delta = Delta.between(view_of("abc"), record.view)
    assert delta is not None
    machine.receive("a", member("a").address, FlushRequest(delta), 100.1)
    assert any(isinstance(effect, Freeze) for effect in machine.drain())
    assert machine.view == record.view


def test_a_record_that_somebody_else_was_first_with_is_followed() -> None:
    machine = machine_of("abcd", "a")
    create = proposed(machine, "d", 100.1)
    theirs = successor(view_of("abcd"), "abc", "b")
    effects = answer(machine, create, Recorded(theirs), 100.2)
    assert machine.view == theirs.view and machine.driver == "b"
    assert not sends(effects, FlushRequest), "its creator installs it"


def test_a_record_without_this_member_ends_its_lifetime() -> None:
    machine = machine_of("abc", "a")
    create = proposed(machine, "c", 100.1)
    effects = answer(machine, create, Recorded(successor(view_of("abc"), "bc", "b")), 100.2)
    [stopped] = [effect for effect in effects if isinstance(effect, Stopped)]
    assert isinstance(stopped.error, ExcludedError)


def test_a_cluster_founded_after_ours_was_taken_for_dead_goes_on_without_us() -> None:
    machine = machine_of("abc", "a")
    anew = ViewRecord(View(2, "", (member("x"),)), "x")
    machine.handle(StoreChanged(), 100.1)
    [read] = asked(drained(machine, 100.15), ReadViews)
    effects = answer(machine, read, Recorded(anew), 100.2)
    assert [type(effect.error) for effect in effects if isinstance(effect, Stopped)] == [ExcludedError]


def test_nothing_follows_from_a_failure_and_the_next_proposal_is_made_anew() -> None:
    machine = machine_of("abcd", "a")
    first = proposed(machine, "d", 100.1)
    effects = answer(machine, first, AWAY, 100.6)
    assert machine.view == view_of("abcd") and not any(isinstance(effect, Freeze) for effect in effects)
    machine.handle(Checked("c", False, "refused"), 100.6)
    [second] = asked(drained(machine, 100.9), CreateView)
    assert isinstance(second, CreateView)
    assert second.record.view.ids == ("a", "b"), "what is needed now"
    # The store has the first after all: it was done, though nobody was told.
    answer(machine, second, Recorded(first.record), 101.0)
    assert machine.view == first.record.view and machine.driver == "a"
    machine.handle(Flushed(2, b"A"), 101.01)
    [third] = asked(drained(machine, 101.1), CreateView)
    assert isinstance(third, CreateView)
    assert third.record.view.epoch == 3 and third.record.view.ids == ("a", "b")


def test_the_pauses_grow_while_the_store_is_away_and_are_short_again_once_it_has_answered() -> None:
    machine = machine_of("abcd", "a")
    register = machine._change.register
    request, now = proposed(machine, "d", 100.1), 100.6
    for _ in range(4):
        answer(machine, request, AWAY, now)
        [again] = asked(drained(machine, now := now + AGAIN_AT_MOST * 1.25), CreateView)
        request = again  # type: ignore[assignment]
    assert register._pause() > CONFIG.resend * 2.0**4 * 0.74
    answer(machine, Beat(Lease(member("a"), 1, 1, b"")), Done(), now)
    assert register._pause() <= CONFIG.resend * 1.25


def test_a_store_that_was_wiped_is_asked_less_and_less_often_too() -> None:
    machine = machine_of("abcd", "a")
    for _ in range(3):
        answer(machine, Beat(Lease(member("a"), 1, 1, b"")), Wiped("nothing is left"), 100.0)
    assert machine._change.register._pause() > CONFIG.resend * 2.0**3 * 0.74


def test_a_store_that_is_away_changes_nothing_and_is_told_of() -> None:
    machine = machine_of("ab", "a")
    machine.handle(StoreChanged(), 100.1)
    [read] = asked(drained(machine, 100.15), ReadViews)
    notes = [effect for effect in answer(machine, read, AWAY, 105.1) if isinstance(effect, Note) and effect.kind == "store"]
    assert [note.level for note in notes] == [logging.WARNING] and "training goes on" in notes[0].text
    assert machine.stopped is None and machine.view == view_of("ab")
    [again] = asked(drained(machine, 105.2 + CONFIG.storage_poll), ReadViews)
    notes = [effect for effect in answer(machine, again, Recorded(None), 110.0) if isinstance(effect, Note)]
    assert [(note.level, note.kind) for note in notes] == [(logging.INFO, "store")]


def test_what_is_gone_from_the_store_ends_this_lifetime() -> None:
    machine = machine_of("ab", "a")
    machine.handle(StoreChanged(), 100.1)
    [read] = asked(drained(machine, 100.15), ReadViews)
    assert read == ReadViews(1, view_of("ab").view_id)
    gone = Wiped("file:///nowhere was wiped")
    assert not any(isinstance(effect, Stopped) for effect in answer(machine, read, gone, 100.2)), "believed too soon"
    now = 100.2
    while machine.stopped is None:
        now += 0.05
        for each in asked(drained(machine, now), ReadViews):
            machine.handle(Answered(each, gone), now)
        assert now < 100.2 + WIPED_FOR + SELDOM + 0.1
    assert isinstance(machine.stopped, StoreWipedError) and "start it anew" in str(machine.stopped)


def test_a_wiped_store_is_believed_after_exactly_its_time() -> None:
    gone = Wiped("file:///nowhere was wiped")
    for seconds, stops in ((WIPED_FOR - 0.01, False), (WIPED_FOR, True)):
        machine = machine_of("ab", "a")
        for now in (100.0, 100.0 + seconds):
            assert machine.stopped is None
            answer(machine, Beat(Lease(member("a"), 1)), gone, now)
        assert (machine.stopped is not None) is stops, seconds


def test_what_a_slow_file_system_did_not_show_for_a_moment_is_not_gone() -> None:
    machine = machine_of("a", "a")
    machine.handle(StoreChanged(), 100.1)
    [read] = asked(drained(machine, 100.15), ReadViews)
    machine.handle(Answered(read, Wiped("file:///nowhere was wiped")), 100.2)
    [again] = asked(drained(machine, 100.7), ReadViews)
    machine.handle(Answered(again, Recorded(ViewRecord(view_of("a"), "a"))), 100.7)
    now = 101.0
    while now < 120.0:
        now += 0.5
        for each in asked(drained(machine, now), ReadViews):
            machine.handle(Answered(each, Recorded(ViewRecord(view_of("a"), "a"))), now)
    assert machine.stopped is None


def test_a_wiped_store_that_takes_leases_as_ever_ends_this_lifetime() -> None:
    machine = machine_of("ab", "a")
    machine.handle(StoreChanged(), 100.1)
    now = 100.1
    while machine.stopped is None:
        for each in asked(drained(machine, now), ReadViews):
            machine.handle(Answered(each, Wiped("file:///nowhere was wiped")), now)
        machine.handle(Answered(Beat(Lease(member("a"), 7)), Done()), now)
        machine.handle(Answered(ReadLeases(("b",)), LeaseList((Lease(member("b"), 7),))), now)
        now += 0.05
        assert now < 100.2 + WIPED_FOR + SELDOM + 0.1
    assert isinstance(machine.stopped, StoreWipedError)


def test_a_full_store_is_away_until_it_takes_leases_again() -> None:
    """It can be read all the while: one line says that it is away, and one that it is back."""
    machine = machine_of("ab", "a")
    beat, read = Beat(Lease(member("a"), 7)), ReadViews(1, view_of("ab").view_id)
    stands = Recorded(ViewRecord(view_of("ab"), "a"))
    notes: list[Note] = []
    for what in (AWAY, AWAY, Done()):
        for request, said in ((beat, what), (read, stands)):
            notes += [effect for effect in answer(machine, request, said, 101.0) if isinstance(effect, Note)]
    assert [note.level for note in notes] == [logging.WARNING, logging.INFO]


def test_a_place_that_is_taken_by_something_unreadable_is_told_of_and_tried_again() -> None:
    """Nothing follows from it, however often the store is read meanwhile; and one line says so, not one a try."""
    machine = machine_of("abc", "a")
    taken = Unread("views/2 cannot be read: it is garbage")
    stands = Recorded(ViewRecord(view_of("abc"), "a"))
    create = proposed(machine, "c", 100.1)
    now, notes, tries = 100.2, list[Note](), 0
    effects = answer(machine, create, taken, now)
    while now < 109.0:
        notes += [effect for effect in effects if isinstance(effect, Note) and effect.kind == "store"]
        assert not any(isinstance(effect, Freeze) for effect in effects)
        now += 0.05
        effects = drained(machine, now)
        for request in [*asked(effects, CreateView), *asked(effects, ReadViews)]:
            tries += isinstance(request, CreateView)
            effects += answer(machine, request, taken if isinstance(request, CreateView) else stands, now)
    assert [note.level for note in notes] == [logging.WARNING] and tries > 3
    assert "views/2 cannot be read: it is garbage; membership cannot change until that can be read" in notes[0].text
    assert machine.view == view_of("abc") and machine.stopped is None


def test_the_smaller_side_leaves_the_decision_to_the_larger_for_a_moment() -> None:
    machine = machine_of("abcde", "a")
    for other in "cde":
        machine._core.evidence.silent[other] = 103.0
        machine._core.table.get(other).last_received = 90.0  # type: ignore[union-attr]
    machine._change.proposer.consider(103.2)
    assert not asked(machine.drain(), CreateView)
    machine._change.proposer.consider(103.2 + SMALLER_WAITS)
    [create] = asked(machine.drain(), CreateView)
    assert isinstance(create, CreateView) and create.record.view.ids == ("a", "b")


def test_one_that_survives_all_others_goes_on() -> None:
    machine = machine_of("abcd", "d")
    for other in "abc":
        machine.handle(Checked(other, False, "refused"), 100.1)
    [create] = asked(drained(machine, 100.2), CreateView)
    assert isinstance(create, CreateView) and create.record.view.ids == ("d",)


def test_looks_are_seldom_and_frequent_while_something_is_awaited() -> None:
    machine = machine_of("a", "a")
    machine.handle(StoreChanged(), 100.0)
    now, looks = 100.0, []
    while now < 130.0:
        for read in asked(drained(machine, 100.15), ReadViews):
            looks.append(now)
            machine.handle(Answered(read, Recorded(None)), now)
        now += 0.01
        machine.tick(now)
        if 110.0 < now < 110.02:
            machine._core.active = None  # a view is on its way
    calm = [time for time in looks if time < 110.0]
    assert 2 <= len(calm) <= 1 + 10 / CONFIG.storage_poll
    assert 3 <= len([time for time in looks if 110.0 < time < 112.0]) <= 12


def test_which_of_two_clusters_goes_on_is_asked_of_the_store() -> None:
    machine = machine_of("abc", "b")
    foreign = view_of("xy", 3, "founded apart")
    drained(machine, 100.0)
    machine.receive("x", member("x").address, Chosen(foreign, "x"), 100.1)
    assert asked(machine.drain(), ReadViews) and machine._core.stopped is None


def test_a_question_that_comes_up_while_another_is_open_is_asked_once_that_is_answered() -> None:
    """The answer may be older than what gave rise to the second one."""
    machine = machine_of("abc", "b")
    machine.handle(StoreChanged(), 100.1)
    [read] = asked(drained(machine, 100.15), ReadViews)
    machine.receive("x", member("x").address, Chosen(view_of("xy", 3, "founded apart"), "x"), 100.16)
    assert not asked(machine.drain(), ReadViews), "one at a time"
    stands = Recorded(ViewRecord(view_of("abc"), "a"))
    assert asked(answer(machine, read, stands, 100.2), ReadViews) == [read]
    assert not asked(answer(machine, read, stands, 100.3), ReadViews), "both are answered"


def test_who_has_given_up_asks_the_store_nothing_more() -> None:
    """Not even what was due at that very moment."""
    machine = machine_in("abc", "b", config=replace(CONFIG, quorum_timeout=3.0))
    machine.handle(Hint(("b",)), 100.0)
    effects, now = drained(machine, 100.0), 100.0
    while machine.stopped is None:
        for read in asked(effects, ReadViews):
            machine.handle(Answered(read, Recorded(ViewRecord(view_of("abc"), "a"))), now)
        machine.handle(StoreChanged(), now)
        machine.drain()
        machine.tick(now := now + 0.1)
        effects = machine.drain()
    assert isinstance(machine.stopped, QuorumLostError)
    assert not asked(effects, ReadViews)


def test_old_records_are_cleaned_once_a_view_is_active() -> None:
    machine = machine_in("ab", "a", config=CONFIG)
    view = view_of("ab")
    for epoch in (2, 3):
        record = successor(view, "ab", "a", epoch)
        machine._change.adopt(record.view, "a", 100.0 + epoch)
        machine.handle(Flushed(epoch, b"A"), 100.0 + epoch)
        view = record.view
    machine._core.installed = view
    machine._core.standing = machine._core.standing.READY
    machine._change._is_ready = True
    machine.drain()
    machine._change.on_activate(Activate(3, view.view_id), 104.0)
    assert asked(machine.drain(), Clean) == [Clean(2)]


def test_a_policy_without_a_store_is_refused() -> None:
    with pytest.raises(ConfigError, match="storage="):
        Config(policy=Policy.STORAGE)


def test_a_store_that_answers_again_is_not_away() -> None:
    """Whoever takes it for away leaves the next view to others."""
    machine = machine_of("abc", "a")
    machine._change.register.look()
    [read] = asked(machine.drain(), ReadViews)
    answer(machine, read, AWAY, 100.1)
    assert machine._core.store_away
    answer(machine, read, Recorded(ViewRecord(view_of("abc"), "a")), 100.2)
    assert not machine._core.store_away


def considers(machine: Machine, now: float) -> list[StoreOp]:
    """Which records it asks for when it looks at ``now`` whether it has to propose."""
    machine.drain()
    machine._change.proposer.consider(now)
    return asked(machine.drain(), CreateView)


@pytest.mark.parametrize(("own", "turns"), [("b", 1), ("c", 2)])
def test_the_next_ones_stand_in_for_a_coordinator_that_records_nothing_one_after_the_other(own: str, turns: int) -> None:
    """Perhaps only the coordinator cannot reach the store."""
    machine = machine_of("abcd", own)
    machine.handle(Checked("d", False, "refused"), 100.0)
    assert not considers(machine, 100.0 + turns * STANDS_IN - 0.01)
    [create] = considers(machine, 100.0 + turns * STANDS_IN)
    assert isinstance(create, CreateView) and create.record.driver == own and create.record.view.ids == ("a", "b", "c")


def test_whom_the_store_does_not_answer_stands_in_for_nobody() -> None:
    """It knows no better than the coordinator; and the time of that does not count once the store is back."""
    machine = machine_of("abc", "b")
    machine._change.register.look()
    [read] = asked(machine.drain(), ReadViews)
    answer(machine, read, AWAY, 100.0)
    machine.handle(Checked("c", False, "refused"), 100.0)
    assert not considers(machine, 100.0) and not considers(machine, 100.0 + 2 * STANDS_IN)
    back = 100.0 + 3 * STANDS_IN
    answer(machine, read, Recorded(ViewRecord(view_of("abc"), "a")), back)
    assert not considers(machine, back) and not considers(machine, back + STANDS_IN - 0.01)
    assert considers(machine, back + STANDS_IN)


def test_a_coordinator_has_its_time_in_each_view_anew() -> None:
    """It has just shown that it reaches the store."""
    machine = machine_of("abcd", "b")
    machine.handle(Checked("c", False, "refused"), 100.0)
    assert not considers(machine, 100.0)
    chosen = 100.0 + 0.8 * STANDS_IN
    machine.handle(Checked("d", False, "refused"), chosen)
    machine.receive("a", member("a").address, Chosen(successor(view_of("abcd"), "abd", "a").view, "a"), chosen)
    assert not considers(machine, chosen) and not considers(machine, chosen + STANDS_IN - 0.01)
    [create] = considers(machine, chosen + STANDS_IN)
    assert isinstance(create, CreateView) and create.record.view.ids == ("a", "b")


def looks(machine: Machine, now: float, answered: ViewRecord) -> None:
    """It reads, at ``now`` and not before, and is told what stands."""
    register = machine._change.register
    assert register.deadline() == pytest.approx(now)
    machine.drain()
    register.tick(register.deadline())
    [read] = asked(machine.drain(), ReadViews)
    machine.handle(Answered(read, Recorded(answered)), now)


def test_a_view_that_is_needed_is_looked_for_soon_and_then_less_and_less_often_in_each_epoch_anew() -> None:
    """Else a member that waited for one record for long would come late to the next one."""
    machine, view = machine_of("abc", "b"), view_of("abc")
    register, stands, now = machine._change.register, ViewRecord(view, "a"), 100.0
    machine.handle(StoreChanged(), now)
    looks(machine, now := register.deadline(), stands)
    assert register.deadline() == pytest.approx(now + CONFIG.storage_poll), "nothing is awaited"
    machine.handle(Checked("c", False, "refused"), now)
    register.tick(now)
    for pause in (SOON, SOON, 2 * SOON, 4 * SOON, 8 * SOON, SELDOM, SELDOM):
        looks(machine, now := now + pause, stands)
    record = successor(view, "ab", "a")
    machine.receive("a", member("a").address, Chosen(record.view, "a"), now)
    looks(machine, now + SOON, record)
    looks(machine, now + 3 * SOON, record)


def test_nothing_is_planned_while_a_read_is_under_way() -> None:
    """It may take long, and whoever asked again meanwhile would ask twice for each answer."""
    machine = machine_of("abc", "b")
    register, stands = machine._change.register, Recorded(ViewRecord(view_of("abc"), "a"))
    machine.handle(Checked("c", False, "refused"), 100.0)
    register.look()
    [read] = asked(machine.drain(), ReadViews)
    for step in range(10):
        register.tick(100.0 + step * SOON)
    assert not asked(machine.drain(), ReadViews)
    assert not asked(answer(machine, read, stands, 103.0), ReadViews)
