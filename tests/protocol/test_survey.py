"""What a member without a view learns from the store: whom to ask, what is orphaned, who may found, what failed."""

from __future__ import annotations

import itertools
import string
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consensus.config import Config, Liveness
from consensus.errors import JoinError
from consensus.messages import JoinReply, JoinRequest, Lease, ViewRecord
from consensus.protocol.admission.admission import HURRIED
from consensus.protocol.admission.survey import CHECK_EVERY, MEMBERS, MUTE, Survey
from consensus.protocol.machine import Machine
from consensus.protocol.state.effects import Ask, Check, Effect
from consensus.protocol.state.inputs import Answered, Checked, StoreChanged
from consensus.protocol.state.join import Search
from consensus.store_requests import (
    Away,
    CreateView,
    LeaseList,
    ReadLeases,
    ReadViews,
    Recorded,
    StoreOp,
    StoreReply,
    Unread,
    UnreadLease,
    Wiped,
)

from .bench import LEASED, START, Bench, Other
from .people import core_of, member, sends, view_of

PINGED = replace(LEASED, liveness=Liveness.PINGS, introducers=("10.0.0.1:1",))
LEASE = LEASED.lease


class Desk:
    """A survey of ``m``, whose looks are answered as the script says."""

    def __init__(self, config: Config = LEASED) -> None:
        self.core = core_of("m", config)
        self.search = Search(config, self.core.member, (), config is LEASED, START)
        self.survey = Survey(self.core, self.search, START)
        self.now = START
        self.record: ViewRecord | None = None
        self.counters: dict[str, int] = {}
        self.riddles: dict[str, int] = {}
        """What stands in the place of somebody's lease and cannot be read; another number, something else."""
        self.alive: set[str] = set()
        """Who renews its lease by the next look."""
        self.asked: list[tuple[float, object]] = []
        self.checks: list[tuple[float, str]] = []

    def run(self, seconds: float, answer: bool = True) -> None:
        end = self.now + seconds
        while self.now < end:
            self.survey.tick(self.now)
            for effect in self.core.outbox.drain():
                if isinstance(effect, Check):
                    self.checks.append((self.now, effect.member.id))
                elif isinstance(effect, Ask):
                    self.asked.append((self.now, effect.request))
                    if answer and isinstance(effect.request, ReadViews):
                        self.survey.told(effect.request, Recorded(self.record), self.now)
                    elif answer and isinstance(effect.request, ReadLeases):
                        self.counters = {key: count + (key in self.alive) for key, count in self.counters.items()}
                        leases = tuple(Lease(member(key), count) for key, count in self.counters.items())
                        self.riddles = {key: count + (key in self.alive) for key, count in self.riddles.items()}
                        unread = tuple(UnreadLease(member(key).id, str(count)) for key, count in self.riddles.items())
                        self.survey.told(effect.request, LeaseList(leases, unread), self.now)
            self.now += 0.05

    def lease(self, names: str, *, alive: bool = True) -> None:
        self.counters |= dict.fromkeys(names, 1)
        self.alive |= set(names) if alive else set()


def addresses(names: str) -> list[tuple[str, int]]:
    return [member(name).address for name in names]


# Looking


def test_it_looks_at_once_and_then_more_and_more_rarely() -> None:
    desk = Desk()
    desk.run(60.0)
    times = [time for time, request in desk.asked if request == ReadViews()]
    assert times[0] == START and times == [time for time, request in desk.asked if request == ReadLeases(None)]
    pauses = [later - time for time, later in itertools.pairwise(times)]
    assert 0.2 <= pauses[0] <= 0.31 and max(pauses) <= 1.06
    assert len([time for time in times if time < START + 3.0]) >= 7
    pinged = Desk(PINGED)
    pinged.run(5.0)
    assert {request for _, request in pinged.asked} == {ReadViews()}


def test_one_question_at_a_time_and_again_where_its_answer_was_lost() -> None:
    desk = Desk()
    desk.run(2 * LEASED.storage_timeout - 0.1, answer=False)
    assert len(desk.asked) == 2
    desk.run(1.2, answer=False)
    assert len(desk.asked) == 4


def test_it_knows_nothing_before_the_store_has_told_all() -> None:
    desk = Desk()
    assert not desk.survey.answered
    desk.survey.told(ReadViews(), Away("no way there"), START)
    desk.survey.told(ReadViews(), Wiped("wiped"), START)
    assert not desk.survey.answered
    desk.survey.told(ReadViews(), Recorded(None), START)
    assert not desk.survey.answered, "the leases may name others"
    desk.survey.told(ReadLeases(None), LeaseList(()), START)
    assert desk.survey.answered and desk.survey.next_epoch == 1 and desk.survey.orphaned(START)


# Who else looks for a cluster


def test_the_first_of_the_living_by_id_founds_and_the_first_few_are_asked() -> None:
    desk = Desk()
    desk.lease("ztnopqrs")
    desk.run(0.1)
    assert desk.search.founder
    assert desk.search.introducers == addresses("nopq")
    desk.lease("ca")
    desk.run(1.0)
    assert not desk.search.founder
    assert desk.search.introducers == addresses("acno")


def test_a_lease_that_nobody_renews_counts_for_as_long_as_it_might() -> None:
    desk = Desk()
    desk.lease("a", alive=False)
    desk.run(LEASE - 0.5)
    assert not desk.search.founder
    desk.run(2.0)
    assert desk.search.founder


def test_a_withdrawn_lease_counts_no_more_even_if_it_was_never_renewed() -> None:
    """Who leaves before its second beat keeps nobody from founding."""
    desk = Desk()
    desk.counters = {"a": 0}
    desk.run(0.1)
    assert not desk.search.founder
    desk.counters.clear()
    desk.run(LEASE / 4)
    assert desk.search.founder


def test_dead_lessees_are_found_out_by_a_check() -> None:
    desk = Desk()
    desk.lease("abcdef", alive=False)
    desk.lease("gh")
    desk.run(MUTE + 0.1)
    assert [name for _, name in desk.checks] == list("abcd"), "those that it asked, and that said nothing"
    for name in "abcd":
        desk.survey.checked(name, False, desk.now)
    assert desk.search.introducers == addresses("efgh")
    desk.run(MUTE + 0.3)
    for name in "ef":
        desk.survey.checked(name, False, desk.now)
    assert desk.search.introducers == addresses("gh") and not desk.search.founder
    assert {name for _, name in desk.checks} <= set("abcdefgh")


def test_who_speaks_to_us_lives_before_the_store_says_so_and_is_not_checked() -> None:
    desk = Desk()
    desk.run(0.1)
    assert desk.search.founder
    desk.survey.met(member("b"), desk.now, alike=True)
    assert not desk.search.founder and desk.search.introducers == addresses("b")
    desk.lease("bc", alive=False)
    desk.run(0.3)
    desk.survey.received("c", desk.now)
    desk.run(1.5)
    assert desk.checks == []


def test_leases_are_no_introducers_where_there_are_introducers() -> None:
    desk = Desk(replace(LEASED, introducers=("10.0.0.1:1",)))
    desk.lease("ab")
    desk.record = ViewRecord(view_of("cd"), "c")
    desk.run(0.5)
    assert desk.search.introducers == addresses("cd")


# The newest record


@pytest.mark.parametrize("config", [LEASED, PINGED])
def test_the_members_of_the_newest_record_are_asked(config: Config) -> None:
    desk = Desk(config)
    desk.record = ViewRecord(view_of("bcd", 7, "parent"), "b")
    desk.run(0.1)
    assert desk.search.introducers == addresses("bcd")
    assert desk.survey.next_epoch == 8 and not desk.survey.orphaned(desk.now)
    assert desk.checks == [], "they have a moment to answer"
    desk.record = ViewRecord(view_of("bce", 8, "next"), "b")
    desk.run(1.0)
    assert set(addresses("bce")) <= set(desk.search.introducers)


@pytest.mark.parametrize("config", [LEASED, PINGED, replace(LEASED, introducers=("10.0.0.1:1",))])
def test_the_members_of_a_record_are_asked_as_soon_as_it_is_read(config: Config) -> None:
    """Whatever the pause between requests has grown to, and again only with the next one."""
    desk = Desk(config)
    desk.record = ViewRecord(view_of("bcd", 7, "parent"), "b")
    desk.search.ask_at(START + 60.0)
    desk.run(0.1)
    assert desk.search.next_send <= desk.now
    desk.search.ask_at(START + 60.0)
    desk.run(0.1)
    assert desk.search.next_send == START + 60.0


def test_all_proven_dead_is_orphaned() -> None:
    desk = Desk()
    desk.record = ViewRecord(view_of("bcd", 7, "parent"), "b")
    desk.run(1.0)
    for name in "bc":
        desk.survey.checked(name, False, desk.now)
    desk.survey.checked("d", None, desk.now)
    assert not desk.survey.orphaned(desk.now)
    desk.survey.checked("d", False, desk.now)
    assert desk.survey.orphaned(desk.now) and desk.search.introducers == []


def test_checks_are_at_most_one_a_second_each_and_none_of_those_that_answer() -> None:
    desk = Desk(PINGED)
    desk.record = ViewRecord(view_of("bcd", 7, "parent"), "b")
    for _ in range(100):
        desk.run(0.1)
        desk.survey.received("b", desk.now)
    assert {name for _, name in desk.checks} == {"c", "d"}
    times = [time for time, name in desk.checks if name == "c"]
    assert 7 <= len(times) <= 11
    assert min(later - time for time, later in itertools.pairwise(times)) >= CHECK_EVERY - 0.001


def vanished(desk: Desk, *, answers: str = "", renews: str = "") -> float | None:
    """After how many seconds the cluster of b and c is orphaned; nothing proves anything."""
    desk.record = ViewRecord(view_of("bc", 7, "parent"), "b")
    desk.lease("bc", alive=False)
    desk.alive |= set(renews)
    desk.run(0.1)
    while not desk.survey.orphaned(desk.now):
        desk.run(0.1)
        for name in answers:
            desk.survey.received(name, desk.now)
        if desk.now - START > 30.0:
            return None
    return desk.now - START


def test_whose_host_vanished_is_gone_after_twice_the_time_of_its_lease() -> None:
    found = vanished(Desk())
    assert found is not None and 2 * LEASE <= found <= 2 * LEASE + 1.5
    desk = Desk()
    desk.counters.clear()
    assert vanished(desk) is not None


def test_who_answers_or_renews_its_lease_is_not_gone() -> None:
    assert vanished(Desk(), answers="c") is None
    assert vanished(Desk(), renews="c") is None
    assert vanished(Desk(PINGED)) is None, "without leases nothing tells"


@pytest.mark.parametrize(("alive", "listens", "gone"), [(None, True, False), (None, False, True), (True, False, False)])
def test_a_host_that_takes_connections_or_a_member_that_answers_has_not_vanished(
    alive: bool | None, listens: bool, gone: bool
) -> None:
    desk = Desk()
    desk.record = ViewRecord(view_of("bc", 7, "parent"), "b")
    desk.lease("bc", alive=False)
    for _ in range(120):
        desk.run(0.1)
        desk.survey.checked("c", alive, desk.now, listens=listens)
    assert desk.survey.orphaned(desk.now) is gone


def test_who_answered_a_moment_ago_is_not_checked_because_a_newer_record_names_it_too() -> None:
    desk = Desk(PINGED)
    desk.record = ViewRecord(view_of("bcd", 7, "parent"), "b")
    desk.run(0.1)
    desk.survey.received("b", desk.now)
    desk.record = ViewRecord(view_of("bce", 8, "next"), "b")
    desk.run(CHECK_EVERY - 0.1)
    assert [name for _, name in desk.checks] == list("ce")
    desk.run(0.2)
    assert [name for _, name in desk.checks] == list("ceb")


def test_nobody_is_gone_itself() -> None:
    """A record that this member wrote, or is said to have written, names it."""
    desk = Desk()
    desk.record = ViewRecord(view_of("bm", 7, "parent"), "m")
    desk.lease("b", alive=False)
    desk.run(4 * LEASE)
    assert not desk.survey.orphaned(desk.now)


def test_a_lease_that_cannot_be_read_is_a_sign_only_while_it_changes() -> None:
    """By this member's own clock: what never changes keeps nobody out for ever, whoever wrote it."""
    desk = Desk()
    desk.riddles = {"c": 1}
    desk.run(3 * LEASE)
    found = vanished(desk)
    assert found is not None and found <= 3 * LEASE + 2 * LEASE + 1.5
    desk = Desk()
    desk.riddles = {"c": 1, "s": 1}
    assert vanished(desk, renews="c") is None, "it may live, with a secret that we do not have"
    desk = Desk()
    desk.riddles = {"s": 1}
    assert vanished(desk, renews="s") is not None, "a stranger is nobody of the cluster"


def test_a_newest_record_that_cannot_be_read_is_a_cluster() -> None:
    desk = Desk()
    desk.lease("b")
    desk.run(1.0)
    assert desk.survey.orphaned(desk.now)
    desk.survey.told(ReadViews(), Unread("views/7 is sealed"), desk.now)
    assert desk.survey.answered and not desk.survey.orphaned(desk.now)
    assert desk.search.introducers == addresses("b"), "those who live are asked all the same"
    failure = desk.survey.failure(60.0, desk.now)
    assert failure is not None and failure.endswith("views/7 is sealed")
    desk.survey.told(ReadViews(), Recorded(None), desk.now)
    assert desk.survey.orphaned(desk.now) and desk.survey.failure(60.0, desk.now) is None


def test_a_place_that_is_taken_is_named_where_nothing_can_be_founded() -> None:
    desk = Desk()
    desk.run(1.0)
    record = ViewRecord(view_of("m", 1, ""), "m")
    desk.survey.told(CreateView(record), Unread("views/1 is garbage"), desk.now)
    failure = desk.survey.failure(60.0, desk.now)
    assert failure is not None and failure.startswith("nothing can be founded") and failure.endswith("views/1 is garbage")


def test_a_store_that_is_away_is_no_observation() -> None:
    desk = Desk()
    desk.record = ViewRecord(view_of("bc", 7, "parent"), "b")
    desk.lease("bc", alive=False)
    desk.run(1.0)
    desk.run(30.0, answer=False)
    assert not desk.survey.orphaned(desk.now)


@given(st.lists(st.sampled_from("bcd?"), max_size=12))
def test_never_orphaned_while_one_is_not_proven(proofs: list[str]) -> None:
    desk = Desk(PINGED)
    desk.record = ViewRecord(view_of("bcd", 3, "parent"), "b")
    desk.run(0.1)
    for name in proofs:
        desk.survey.checked(name, False, desk.now)
    assert desk.survey.orphaned(desk.now) == ({"b", "c", "d"} <= set(proofs))


# Founding


def founder(names: str = "", *, size: int = 1, record: ViewRecord | None = None, back: float = START) -> Bench:
    """``back``: from when on the store answers."""
    config = replace(LEASED, initial_size=size)
    machine = Machine(config, member("b"), core_of().rng, founder=True, introducers=())
    one = Bench(machine, [Other(name) for name in names], record=record)
    one.away = lambda now: now < back
    machine.start(START)
    one.take()
    return one


def searching(config: Config) -> Machine:
    """A founder whose questions to the store have no answers yet."""
    machine = Machine(config, member("b"), core_of().rng, founder=True, introducers=())
    machine.start(START)
    return machine


def created(bench: Bench) -> list[ViewRecord]:
    return [request.record for _, request in bench.asked if isinstance(request, CreateView)]


def test_alone_it_founds_as_soon_as_the_store_has_answered() -> None:
    one = founder()
    assert created(one) == []
    one.run(0.01)
    [record] = created(one)
    assert record.view == view_of("b") and record.proposal is None and record.driver == "b"


def ask(bench: Bench, name: str, terms: str = "") -> None:
    request = JoinRequest(member(name), True, terms or bench.machine._core.config.terms)
    bench.machine.receive(name, member(name).address, request, bench.now)
    bench.machine.receive(name, member(name).address, JoinReply(None, None), bench.now)
    bench.take()


def test_it_founds_with_those_that_ask_once_they_are_enough() -> None:
    one = founder("cd", size=3)
    one.run(0.3)
    ask(one, "c")
    one.run(0.3)
    assert created(one) == []
    ask(one, "d")
    one.run(0.1)
    assert set(created(one)[0].view.ids) == set("bcd")


def test_not_where_another_one_comes_first() -> None:
    one = founder("acd", size=3)
    one.run(0.3)
    for _ in range(20):
        for name in "acd":
            ask(one, name)
        one.run(0.2)
    assert created(one) == []


def test_whoever_comes_first_with_other_terms_does_not_keep_it_from_founding() -> None:
    one = founder("acd", size=3)
    one.run(0.3)
    ask(one, "a", "other terms")
    for name in "cd":
        ask(one, name)
    one.run(0.2)
    assert set(created(one)[0].view.ids) == set("bcd")


def test_not_before_the_store_answered() -> None:
    one = founder(back=START + 20.0)
    one.run(19.0)
    assert created(one) == []
    one.run(8.0)
    assert created(one)


VIEWS: tuple[StoreOp, StoreReply] = ReadViews(), Recorded(None)
LEASES: tuple[StoreOp, StoreReply] = ReadLeases(None), LeaseList(())


@pytest.mark.parametrize(
    ("config", "answers"),
    [(LEASED, [VIEWS, LEASES]), (LEASED, [LEASES, VIEWS]), (replace(PINGED, introducers=()), [VIEWS])],
    ids=["views first", "leases first", "no leases"],
)
def test_not_before_the_store_answered_all_that_was_asked(config: Config, answers: list[tuple[StoreOp, StoreReply]]) -> None:
    """There may be a cluster, or another member that comes first."""
    machine, founded = searching(config), [False]
    for number, (request, answer) in enumerate(answers, 1):
        machine.tick(START + number)
        machine.handle(Answered(request, answer), START + number)
        effects = machine.drain()
        founded.append(any(isinstance(each, Ask) and isinstance(each.request, CreateView) for each in effects))
    assert founded == [False] * len(answers) + [True]


def test_nobody_has_vanished_before_the_leases_are_read() -> None:
    """Whoever names the cluster of the record may be right."""
    machine, record = searching(LEASED), ViewRecord(view_of("xyz", 41, "parent"), "x")
    machine.handle(Answered(ReadViews(), Recorded(record)), START)
    machine.receive("w", member("w").address, JoinReply(record.view, member("x")), START + 20 * LEASE)
    assert machine.known_view == record.view


def test_founding_is_tried_again_but_not_in_a_storm() -> None:
    one = founder()
    usual = one._answer

    def refuse(request: StoreOp) -> None:
        if isinstance(request, CreateView):
            one.later(0.0001, lambda: one.machine.handle(Answered(request, Away("refused", ambiguous=True)), one.now))
        else:
            usual(request)

    one._answer = refuse  # type: ignore[method-assign]
    one.run(10.0)
    assert 10 <= len(created(one)) <= 41


def test_the_epoch_of_an_orphaned_cluster_goes_on() -> None:
    one = founder(record=ViewRecord(view_of("xyz", 41, "parent"), "x"))
    one.run(1.0)
    assert created(one) == [] and {name for _, name in one.checks} == set("xyz")
    for name in "xyz":
        one.machine.handle(Checked(name, False, "refused"), one.now)
    one.run(1.0)
    view = created(one)[0].view
    assert (view.epoch, view.parent_id, view.ids) == (42, "", ("b",))


def test_a_cluster_that_was_found_may_be_orphaned_later() -> None:
    record = ViewRecord(view_of("xy", 41, "parent"), "x")
    one = founder(record=record)
    one.run(0.5)
    one.machine.receive("x", member("x").address, JoinReply(record.view, member("x")), one.now)
    one.run(2.0)
    assert one.machine.known_view == record.view
    for name in "xy":
        one.machine.handle(Checked(name, False, "refused"), one.now)
    one.run(1.0)
    assert created(one)[0].view.epoch == 42


@pytest.mark.parametrize(("leads", "lost"), [("y", True), ("z", False)])
def test_a_cluster_led_by_another_than_the_record_names_is_not_lost_with_those(leads: str, lost: bool) -> None:
    """It goes on from there, or is another one: the store has not told of it yet, and nobody may found beside it."""
    one = founder(record=ViewRecord(view_of("xy", 41, "parent"), "x"))
    one.run(0.5)
    beacon = JoinReply(None, member(leads), None, "a newer view", 42)
    one.machine.receive(leads, member(leads).address, beacon, one.now)
    for name in "xy":
        one.machine.handle(Checked(name, False, "refused"), one.now)
    one.run(3.0)
    assert bool(created(one)) is lost


# Failure


def end(bench: Bench) -> str:
    bench.run(bench.machine._core.config.join_timeout + 1.0)
    assert isinstance(bench.machine.stopped, JoinError)
    return str(bench.machine.stopped)


def test_a_store_that_was_away_all_the_time_is_named() -> None:
    text = end(founder(back=float("inf")))
    assert text.startswith("the store did not answer within join_timeout=60 s: no answer to ")


def test_members_that_neither_answer_nor_are_dead_are_named() -> None:
    one = founder("xy", record=ViewRecord(view_of("xy", 41, "parent"), "x"))
    text = end(one)
    assert "view 41" in text and "10.0.0.1:1120, 10.0.0.1:1121" in text and "join_timeout" in text


def test_of_many_members_that_do_not_answer_a_few_are_named() -> None:
    desk = Desk(PINGED)
    desk.record = ViewRecord(view_of("bcdefg", 41, "parent"), "b")
    desk.run(1.0)
    text = str(desk.survey.failure(60.0, desk.now))
    assert "its members at 10.0.0.1:1098, 10.0.0.1:1099, 10.0.0.1:1100, 10.0.0.1:1101 neither" in text


def test_too_few_is_said_as_ever() -> None:
    assert "initial_size=3" in end(founder(size=3))


def test_nothing_is_looked_for_once_there_is_a_view() -> None:
    one = founder()
    one.run(0.01)
    one.record = created(one)[0]
    one.machine.handle(Answered(CreateView(one.record), Recorded(one.record)), one.now)
    assert one.machine.view == one.record.view
    effects: list[Effect] = one.machine.drain()
    assert sends(effects, JoinRequest) == []
    since = one.now
    one.run(5.0)
    assert not [request for time, request in one.asked if time > since and request in (ReadViews(), ReadLeases(None))]


def test_a_first_counter_of_zero_is_a_counter() -> None:
    """Its next rise is seen, so its member lives: nobody has to check that."""
    desk = Desk()
    desk.counters, desk.alive = {"b": -1}, {"b"}
    desk.run(2.0)
    assert desk.counters["b"] > 1 and desk.checks == []


def test_a_crowd_of_lessees_is_checked_a_part_at_a_time() -> None:
    desk = Desk()
    names = string.ascii_letters[:44].replace("m", "")
    desk.lease(names, alive=False)
    desk.run(1.2)
    first, *later = [[name for _, name in each] for _, each in itertools.groupby(desk.checks, lambda check: check[0])]
    assert first == sorted(names)[:4], "those that were asked"
    assert [len(each) for each in later] == [2 * MEMBERS, len(names) - 4 - 2 * MEMBERS]
    assert set(names) == {name for _, name in desk.checks}


def test_whoever_speaks_lives_though_a_check_has_called_it_dead() -> None:
    """A firewall may refuse connections. Its cluster goes on, and nobody founds another beside it."""
    one = founder(record=ViewRecord(view_of("xyz", 41, "parent"), "x"))
    one.run(1.0)
    one.machine.handle(Checked("x", False, "refused"), one.now)
    one.machine.receive("x", member("x").address, JoinReply(None, None), one.now)
    for name in "yz":
        one.machine.handle(Checked(name, False, "refused"), one.now)
    one.run(1.0)
    assert created(one) == []
    one.machine.handle(Checked("x", False, "refused"), one.now)
    one.run(1.0)
    assert created(one), "nobody is left"


def test_a_cluster_that_is_found_lost_and_found_again_is_asked_at_once_only_the_first_time() -> None:
    """Else members that tell of a cluster that has just died would make this one ask without a pause."""
    one = founder(record=ViewRecord(view_of("xyz", 41, "parent"), "x"))
    one.run(1.0)
    machine, search = one.machine, one.machine._admission.search
    asks = []
    for moment in (0.0, HURRIED / 2, HURRIED + 0.001):
        search.lost(one.now)
        search.ask_at(one.now + 10.0)
        machine.drain()
        machine.receive("x", member("x").address, JoinReply(view_of("xyz", 41, "parent"), member("x")), one.now + moment)
        asks.append(bool(sends(machine.drain(), JoinRequest)))
    assert asks == [True, False, True]


def test_whoever_hears_that_something_has_changed_in_the_store_looks_soon() -> None:
    """Not at once: several words about one change may arrive."""
    one = founder(size=3)
    one.run(20.0)

    def looks() -> list[float]:
        return [time for time, request in one.asked if isinstance(request, ReadViews)]

    while one.now - looks()[-1] > 0.1:  # the next regular look is far away
        one.run(0.05)
    changed, before = one.now, len(looks())
    one.machine.handle(StoreChanged(), changed)
    one.run(0.2)
    assert [time - changed for time in looks()[before:]] == pytest.approx([0.1])
