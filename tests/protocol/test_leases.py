"""Leases: beats, whom to read, what a counter says, the second opinion, standing still, and what all that costs."""

from __future__ import annotations

import itertools
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consensus.border import Hint, PeerProgress, Stalled, Stopped
from consensus.config import Config
from consensus.errors import ExcludedError, LeftError
from consensus.messages import Ack, Evidence, EvidenceKind, Gossip, Lease, Ping, Status, Update
from consensus.progress import Progress
from consensus.protocol.detection.leases import LATE, STEP, STILL
from consensus.protocol.detection.leases import Leases as Book
from consensus.protocol.detection.stall import Stall
from consensus.protocol.machine import Machine
from consensus.protocol.state.core import Core
from consensus.protocol.state.effects import Ask, Send
from consensus.protocol.state.inputs import Accusation, Answered
from consensus.protocol.state.lifeguard import Suspicion
from consensus.protocol.state.links import KEEP
from consensus.protocol.state.member_table import Sign
from consensus.protocol.state.standing import Standing
from consensus.store_requests import Away, Beat, LeaseList, ReadLeases, Withdraw
from consensus.view import Proposal, Removal, View

from .bench import BEAT, LEASED, START, Bench, Other, leased
from .people import core_of, machine_in, member, sends, view_of

SETTLED = 15.0
"""Seconds after which nobody is pinged any more because of the first view."""


def bench(names: str, own: str, config: Config = LEASED, **phases: float) -> Bench:
    others = [Other(name, phases.get(name, 0.1 + 0.03 * index)) for index, name in enumerate(names) if name != own]
    return Bench(machine_in(names, own, START, config), others)


def belief(bench: Bench, name: str) -> Status | None:
    return bench.machine.belief(name)


# Beats and reads


def test_a_lease_is_renewed_every_third_of_its_time_with_a_rising_counter() -> None:
    one = bench("abcd", "b")
    one.run(20.0)
    times, leases = zip(*one.beats()[1:], strict=True)
    assert all(later - time == pytest.approx(BEAT) for time, later in itertools.pairwise(times))
    assert [lease.counter for lease in leases] == list(range(leases[0].counter, leases[0].counter + len(leases)))
    assert {lease.epoch for lease in leases} == {1} and {lease.member for lease in leases} == {member("b")}


def test_who_looks_for_a_cluster_has_a_lease_too() -> None:
    machine = Machine(LEASED, member("a"), core_of().rng, founder=True, introducers=())
    machine.start(START)
    beats = [e.request for e in machine.drain() if isinstance(e, Ask) and isinstance(e.request, Beat)]
    assert beats == [Beat(Lease(member("a"), 1, 0, b""))]


@pytest.mark.parametrize(
    ("names", "own", "watched"),
    [("ab", "a", "b"), ("abcd", "d", "a"), ("abcde", "b", "cd"), ("abcdefg", "g", "ab"), ("abcdefgh", "c", "def")],
)
def test_the_next_successors_are_read(names: str, own: str, watched: str) -> None:
    one = bench(names, own)
    one.run(5.0)
    assert {ids for _, ids in one.reads(START + 0.1)} == {tuple(watched)}


def test_whom_something_is_held_against_the_next_one_stands_in_for() -> None:
    one = bench("abcd", "b")
    one.run(SETTLED)
    one.machine.handle(Accusation("c", EvidenceKind.PROOF, "reaped"), one.now)
    one.run(1.0)
    assert one.reads()[-1][1] == ("d",)
    one.others["d"].renews_until = one.others["d"].answers_until = one.now
    one.run(2.5)
    assert belief(one, "d") is Status.SUSPECT
    assert one.reads()[-1][1] == ("a", "d"), "a suspect may yet renew its lease"


def test_never_a_second_request_of_a_kind_and_none_lost_for_ever() -> None:
    one = bench("abcd", "b")
    one.run(SETTLED)
    one._answer = lambda request: None  # type: ignore[method-assign]  # whoever carries requests out has lost them
    since = one.now + BEAT
    one.run(2 * LEASED.storage_timeout - 2 * BEAT)
    assert not [time for time, _ in one.beats() if time > since] and not one.reads(since)
    one.run(3 * BEAT)
    assert len([time for time, _ in one.beats() if time > since]) == 1 == len(one.reads(since))


# What a counter says


def book(names: str = "abc") -> tuple[Core, Book]:
    core = core_of("a", LEASED)
    core.follow(view_of(names))
    core.table.adopt(view_of(names), {}, START)
    found = Book(core, Stall(core), START)
    found.adopt(view_of(names), START)
    return core, found


@given(st.lists(st.integers(0, 20), min_size=1, max_size=30))
def test_only_a_counter_higher_than_any_before_is_a_sign_of_life(counters: list[int]) -> None:
    """A store may hold a write back and do it late, after its member has died."""
    _, found = book()
    for index, counter in enumerate(counters):
        lease = Lease(member("b"), counter)
        renewed = found.answered(ReadLeases(("b",)), LeaseList((lease,)), START + index * BEAT)
        assert renewed == ([(lease, True)] if index and counter > max(counters[:index]) else [])


@pytest.mark.parametrize(("pause", "lives"), [(BEAT, True), (2.1 * BEAT, False), (60.0, False)])
def test_a_rise_since_long_ago_says_nothing_about_now(pause: float, lives: bool) -> None:
    """It was renewed once after it was read, and its member may have died right after that. (Seen: a stopped member was
    trusted again by all who had read its lease some time before.)
    """
    _, found = book()
    found.answered(ReadLeases(None), LeaseList((Lease(member("b"), 5),)), START)
    lease = Lease(member("b"), 50)
    assert found.answered(ReadLeases(("b",)), LeaseList((lease,)), START + pause) == [(lease, lives)]


def test_leases_of_strangers_mean_nothing() -> None:
    _, found = book()
    for counter in (1, 2, 3):
        assert found.answered(ReadLeases(None), LeaseList((Lease(member("x"), counter),)), START + counter) == []


def test_a_renewed_lease_is_a_sign_of_life_and_no_contact() -> None:
    one = bench("abc", "a")
    one.run(SETTLED)
    peer = one.machine._core.table.get("b")
    assert peer is not None
    contact = peer.contact
    one.run(10.0)
    assert one.now - peer.last_sign < 1.1 * BEAT
    assert peer.contact == contact < one.now - 10.0, "nothing that discounting could rest on"


def test_a_read_that_misses_a_rise_moves_the_next_ones_by_a_part_of_a_beat() -> None:
    _, found = book()
    for index, (counter, shift) in enumerate([(1, 0.0), (2, 0.0), (2, STEP * BEAT), (3, 0.0)]):
        planned = found._next_read
        found.answered(ReadLeases(("b",)), LeaseList((Lease(member("b"), counter),)), START + index * BEAT)
        assert found._next_read - planned == pytest.approx(shift), index


# The second opinion


def test_a_quiet_cluster_is_not_pinged() -> None:
    one = bench("abcdefgh", "a")
    one.run(SETTLED)
    since = one.now
    one.run(60.0)
    assert not [ping for ping in one.pings if ping[0] > since]


@settings(max_examples=25)
@given(st.floats(0.0, BEAT), st.floats(0.0, 0.05))
def test_reads_that_meet_the_writes_step_aside(phase: float, latency: float) -> None:
    machine = machine_in("ab", "a", START, LEASED)
    one = Bench(machine, [Other("b", phase)], latency=latency)
    one.run(SETTLED)
    since = one.now
    one.run(20.0)
    assert len([ping for ping in one.pings if ping[0] > since]) <= 2


def test_who_did_not_renew_in_time_is_pinged_and_stays_while_it_answers() -> None:
    one = bench("abcd", "a")
    one.run(SETTLED)
    since = one.others["b"].renews_until = one.now
    one.run(30.0)
    times = [time for time, name in one.pings if time > since]
    assert times[0] - since <= (1 + LATE) * BEAT
    assert all(later - time >= BEAT - 0.01 for time, later in itertools.pairwise(times)), "at the beat's pace"
    assert belief(one, "b") is Status.ALIVE
    assert one.machine.status()["members"][1]["evidence"] is None


def test_a_store_that_is_away_costs_a_few_pings_and_nobody() -> None:
    one = bench("abcdefgh", "a")
    one.run(SETTLED)
    since = one.now
    one.away = lambda now: now >= since
    one.run(30.0)
    pings = [name for time, name in one.pings if time > since]
    assert set(pings) == set("bcd") and len(pings) <= 3 * (30.0 / BEAT + 1)
    assert [entry["evidence"] for entry in one.machine.status()["members"]] == [None] * 8
    one.away = lambda now: False
    one.run(10.0)
    since = one.now
    one.run(10.0)
    assert not [ping for ping in one.pings if ping[0] > since]


def test_who_was_held_up_gives_the_watched_as_much_more_time() -> None:
    """They may have renewed their leases in time: it is this member that did not read them."""
    one = bench("abcdefgh", "a")
    one.run(SETTLED)
    assert one.machine.next_deadline() is not None
    one.now += 5.0
    since = one.now
    one.run(0.1)
    assert one.reads(since)
    assert not [ping for ping in one.pings if ping[0] >= since]


def excluded_after(stop: float, phase: float) -> float:
    """Seconds from the stop of ``b`` to the evidence, as its only watcher and with nobody to confirm."""
    one = bench("abcd", "a", b=phase)
    one.run(SETTLED + stop)
    at = one.others["b"].renews_until = one.others["b"].answers_until = one.now
    while one.machine.status()["members"][1]["evidence"] is None:
        one.run(0.02)
        assert one.now - at < 5.0
    return one.now - at


@pytest.mark.parametrize("phase", [0.0, 0.13, 0.31, 0.5, 0.66])
def test_silence_is_found_in_time_in_every_phase(phase: float) -> None:
    """The view change and ``settle_silence`` come on top: 0.15 s."""
    found = [excluded_after(step * BEAT / 6, phase) for step in range(6)]
    assert max(found) <= 3.15
    assert min(found) >= LEASED.lease - BEAT - 0.05, "never before T_excl has passed since its last sign of life"


def test_another_ones_word_counts_only_where_the_own_pings_failed_too() -> None:
    one = bench("abcd", "a")
    one.run(SETTLED)
    word = Evidence(view_of("abcd").view_id, "d", EvidenceKind.SILENCE)
    one.machine.receive("c", member("c").address, word, one.now)
    one.take()
    assert one.pings[-1] == (one.now, "d"), "its lease was never read here: so it is asked"
    for _ in range(50):
        one.run(0.1)
        one.machine.receive("c", member("c").address, word, one.now)
    assert one.machine.status()["members"][3]["evidence"] is None
    one.others["d"].answers_until = one.others["d"].renews_until = one.now
    for _ in range(30):
        one.run(0.1)
        one.machine.receive("c", member("c").address, word, one.now)
    assert one.machine.status()["members"][3]["evidence"] == "silence"


def test_who_hears_of_a_suspicion_asks_itself_and_reads_the_lease() -> None:
    one = bench("abcd", "a")
    one.run(SETTLED)
    update = Update("d", Status.SUSPECT, 0, "c")
    one.others["d"].answers_until = one.now  # deaf, but it renews its lease
    one.machine.receive("c", member("c").address, Gossip((update,)), one.now)
    one.take()
    assert one.pings[-1] == (one.now, "d")
    one.run(3 * BEAT)
    assert belief(one, "d") is Status.ALIVE
    assert one.machine.status()["members"][3]["evidence"] is None


def test_after_a_failure_of_the_data_plane_all_are_pinged_and_a_broken_link_is_found() -> None:
    one = bench("abcd", "a")
    one.run(SETTLED)
    one.others["c"].answers_until = one.now  # it does not hear us, and lives by its lease, as others know
    one.run(60.0)
    assert one.machine.status()["members"][2]["evidence"] is None
    since, one.relays = one.now, True
    one.machine.handle(Hint(("c",)), one.now)
    one.take()
    one.run(LEASED.contact_interval)
    assert {name for time, name in one.pings if time >= since} == set("bcd")
    one.run(LEASED.link_timeout + 1.0)
    told = [effect.message for _, effect in one.effects if isinstance(effect, Send) and isinstance(effect.message, Evidence)]
    assert {(each.kind, each.accused) for each in told} == {(EvidenceKind.FROZEN, "a"), (EvidenceKind.SEVERED, "c")}


def test_what_was_missed_long_ago_breaks_no_link() -> None:
    one = bench("abcd", "a")
    one.run(SETTLED)
    one.machine._core.links.missed("b", one.now)  # the last ping of a while was lost
    one.run(60.0)
    one.machine.handle(Hint(()), one.now)
    one.run(LEASED.link_timeout + 1.0)
    told = [effect.message for _, effect in one.effects if isinstance(effect, Send) and isinstance(effect.message, Evidence)]
    assert {each.kind for each in told} == {EvidenceKind.FROZEN}


# Standing still


def waiting(one: Bench, *names: str) -> None:
    for name in names:
        one.others[name].progress = Progress(6, 7, one.now)


def test_who_hangs_reads_everybodys_lease_and_steps_aside() -> None:
    one = bench("abcd", "a", leased(stall_timeout=4.0))
    one.machine.set_progress(Progress(6, 0))
    one.run(SETTLED)
    since = one.now
    waiting(one, "b", "c")
    one.run(3.9)
    assert one.machine.stopped is None
    one.run(2.2)
    assert isinstance(one.machine.stopped, ExcludedError) and "call 7" in str(one.machine.stopped)
    stalled = [(time, effect) for time, effect in one.effects if isinstance(effect, Stalled)]
    assert 4.0 <= stalled[0][0] - since <= 4.0 + 1.0 + BEAT + 0.1
    assert len([ids for time, ids in one.reads(since) if ids is None]) <= 6


@pytest.mark.parametrize(("inner", "hangs"), [(3, False), (0, True)])
def test_only_who_takes_steps_by_itself_has_time(inner: int, hangs: bool) -> None:
    core = core_of("a", leased(stall_timeout=4.0))
    core.view = core.active = view_of("abc")
    core.progress = Progress(6, 0, START + 9.0, inner=inner)
    found = Stall(core)
    for name in "bc":
        found.received(name, Progress(6, 7, START + 1.0))
    assert found.since() == (START + 1.0 if hangs else START + 9.0)


def test_who_hangs_in_a_call_pings_everybody() -> None:
    """A link that is broken shows by pings alone, and a call that does not end may be due to one."""
    one = bench("abcd", "a")
    one.machine.set_progress(Progress(6, 0))
    one.run(SETTLED)
    all_round = one.machine._detection.leases.all_round
    assert not all_round(one.now)
    one.machine.set_progress(Progress(6, 7))
    one.run(1.0)
    assert not all_round(one.now), "not yet"
    one.run(STILL)
    assert all_round(one.now)
    one.machine.set_progress(Progress(7, 0))
    one.run(1.0)
    assert not all_round(one.now), "it rests"


def test_who_is_still_in_a_call_that_this_member_has_finished_does_not_wait_for_it() -> None:
    one = bench("abcd", "a", leased(stall_timeout=4.0))
    one.machine.set_progress(Progress(6, 0))
    one.run(SETTLED)
    for name in "bcd":
        one.others[name].progress = Progress(5, 6, one.now)
    one.run(30.0)
    assert one.machine.stopped is None


@pytest.mark.parametrize("names", ["abc", "abcd"])
def test_a_single_fast_one_stalls_nobody(names: str) -> None:
    one = bench(names, "a", leased(stall_timeout=4.0))
    one.machine.set_progress(Progress(6, 0))
    one.run(SETTLED)
    waiting(one, "b")
    one.run(30.0)
    assert one.machine.stopped is None


def test_who_has_gone_waits_no_more() -> None:
    """Half of four waited for this member; of the two that are left the other one does not."""
    one = bench("abcd", "a", leased(stall_timeout=4.0))
    one.machine.set_progress(Progress(6, 0))
    one.run(SETTLED)
    waiting(one, "b", "c")
    one.run(3.5)
    assert one.machine._detection.stall.since() is not None
    for name in "bc":
        one.machine.handle(Accusation(name, EvidenceKind.PROOF, "reaped"), one.now)
    next_view(one, "b", "c")
    one.run(30.0)
    assert one.machine.stopped is None


def test_who_waits_in_a_call_learns_where_the_others_are() -> None:
    one = bench("abcdefgh", "a")
    one.machine.set_progress(Progress(6, 7, one.now))
    waiting(one, *"bcde")
    for name in "fgh":
        one.others[name].progress = Progress(6, 0)
    one.run(2.0 + BEAT + 6.0)
    told = {effect.member_id: effect for _, effect in one.effects if isinstance(effect, PeerProgress)}
    assert {name: told[name].current for name in "bcdefgh"} == {**dict.fromkeys("bcde", 7), **dict.fromkeys("fgh", 0)}


@pytest.mark.parametrize(("patience", "pause"), [(2.0, 1.0), (12.0, 3.0), (60.0, 5.0)])
def test_who_waits_in_a_call_reads_everybodys_lease_four_times_in_the_time_of_a_stall(patience: float, pause: float) -> None:
    """So a stall is noticed in time, and the store is asked for all leases once a second at most."""
    one = bench("abcd", "a", leased(stall_timeout=patience))
    one.machine.set_progress(Progress(6, 7, one.now))
    one.run(SETTLED)
    since = one.now
    one.run(5 * pause)
    times = [time for time, ids in one.reads(since) if ids is None]
    assert [later - time for time, later in itertools.pairwise(times)] == pytest.approx([pause] * (len(times) - 1), abs=0.02)
    assert len(times) >= 4


def test_who_moves_reads_only_its_successors() -> None:
    one = bench("abcd", "a")
    for call in range(1, 60):
        one.machine.set_progress(Progress(call, 0))
        one.run(0.5)
    assert None not in {ids for _, ids in one.reads(START + 0.1)}


# What it costs


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 16, 31, 33, 64])
@pytest.mark.parametrize("finished", [0, 9])
def test_an_idle_member_asks_little_of_the_store(size: int, finished: int) -> None:
    """At most 3 + n / 2 operations a second; ``finished``: before the first call, or long after the last one."""
    names = [f"{index:02d}" for index in range(size)]
    view = View(1, "", tuple(member(name, 2000 + index) for index, name in enumerate(names)))
    machine = Machine(LEASED, view.members[0], core_of().rng, founder=False, introducers=())
    machine.start(START)
    machine._change.adopt(view, "00", START)
    machine._core.installed = machine._core.active = machine._core.view
    machine._core.standing = Standing.ACTIVE
    machine.set_progress(Progress(finished, 0))
    one = Bench(machine, [Other(name, 0.01 * index % BEAT) for index, name in enumerate(names) if index])
    one.run(SETTLED)
    since = one.now
    one.run(60.0)
    assert one.operations(since) / 60.0 <= 3 + size / 2
    assert len([ids for _, ids in one.reads(since)]) >= (60.0 / BEAT - 2) * (size > 1)


# The end


def test_who_stops_withdraws_its_lease_first() -> None:
    one = bench("abc", "b")
    one.machine._core.stop(LeftError("left"))
    effects = one.machine.drain()
    assert effects[0] == Ask(Withdraw(("b",))) and isinstance(effects[1], Stopped)
    machine = machine_in("abc", "b")
    machine._core.stop(LeftError("left"))
    assert not [effect for effect in machine.drain() if isinstance(effect, Ask)], "only where there are leases"


def next_view(one: Bench, *out: str) -> None:
    machine, core = one.machine, one.machine._core
    assert core.view is not None
    removed = tuple(Removal(name, cause) for name in out for cause in [core.evidence.cause(name)] if cause is not None)
    view = Proposal(core.view.view_id, core.epoch + 1, removed).apply(core.view)
    machine._change.adopt(view, "a", one.now)
    core.installed = core.active = core.view
    core.standing = Standing.ACTIVE


@pytest.mark.parametrize("own", ["a", "b"])
def test_the_coordinator_withdraws_the_leases_of_the_removed(own: str) -> None:
    one = bench("abcd", own)
    one.run(SETTLED)
    for name in "cd":
        one.machine.handle(Accusation(name, EvidenceKind.PROOF, "reaped"), one.now)
    one.away = lambda now: now < START + SETTLED + 8.0
    next_view(one, "c", "d")
    one.run(20.0)
    told = [request.member_ids for _, request in one.asked if isinstance(request, Withdraw)]
    assert (set(told) == {("c", "d")} and 2 <= len(told) <= 4) if own == "a" else not told
    assert one.withdrawn == (set("cd") if own == "a" else set())


def test_an_answer_that_says_nothing_is_no_sign() -> None:
    _, found = book()
    assert found.answered(ReadLeases(("b",)), Away("gone"), START) == []


# What a view change, a slow store or a hold-up leaves behind


def test_while_the_store_answers_nothing_the_watched_have_a_little_more_than_a_beat() -> None:
    """Whoever waits for the deadline has to be woken then: there is no answer of the store that would do it."""
    _, found = book()
    found.tick(START)
    due = START + LATE * BEAT
    assert found.deadline() == pytest.approx(due)
    assert found.overdue(START) == found.overdue(due - 0.01) == []
    assert found.overdue(due + 1e-6) == ["b"]


def test_a_lease_that_was_not_read_for_a_while_says_nothing_about_that_time() -> None:
    """Silence counts from when it is read again: its member may have renewed it in between."""
    core, found = book("abcd")
    view, suspect = view_of("abcd"), core.table.get("b")
    assert suspect is not None
    assert (found.watched_since("b"), found.watched_since("c")) == (START, inf)
    for since in (START + 1.0, START + 3.0):
        core.table.suspect(suspect, Suspicion("d", 3, 1.0, 5.0, since))
        found.adopt(view, since)
        assert (found.watched_since("b"), found.watched_since("c")) == (START, since), "c stands in for b, which is read on"
        suspect.learn(Sign.ANSWERED)
        found.adopt(view, since + 1.0)
        assert (found.watched_since("b"), found.watched_since("c")) == (START, inf)


def test_nothing_is_kept_of_the_leases_of_who_has_gone() -> None:
    _, found = book("abc")
    found.answered(ReadLeases(("b",)), LeaseList((Lease(member("b"), 5),)), START)
    found.adopt(view_of("ac", 2), START + 0.1)
    assert found.answered(ReadLeases(("b",)), LeaseList((Lease(member("b"), 9),)), START + 0.2) == [], "a first value"


def test_while_a_view_change_is_under_way_and_for_a_while_after_it_all_are_pinged() -> None:
    """A change that does not end may be due to a broken link, which nothing else shows."""
    one = bench("abcd", "a")
    one.run(SETTLED)
    since, core = one.now, one.machine._core
    one.machine._change.adopt(view_of("abcd", 2, core.view_id), "b", since)
    one.run(4 * LEASED.contact_interval)
    for name in "bcd":
        assert len([time for time, each in one.pings if each == name and time >= since]) >= 4
    core.installed = core.active = core.view
    core.standing = Standing.ACTIVE
    one.run(LEASED.link_timeout)
    assert {name for time, name in one.pings if time >= one.now - 1.0} == set("bcd")
    one.run(KEEP + 1.0)
    since = one.now
    one.run(10.0)
    assert not [ping for ping in one.pings if ping[0] > since]


def test_a_withdrawal_that_the_store_refuses_is_tried_again_once_a_beat() -> None:
    one = bench("abcd", "a")
    one.run(SETTLED)
    one.machine.handle(Accusation("d", EvidenceKind.PROOF, "reaped"), one.now)
    one._found = one._no_answer  # type: ignore[method-assign]  # at once, unlike a store that does not answer at all
    next_view(one, "d")
    one.run(10 * BEAT)
    assert 9 <= len([request for _, request in one.asked if isinstance(request, Withdraw)]) <= 11


def test_whoever_renews_its_lease_and_acks_nothing_has_a_broken_link_though_no_ping_ever_fails() -> None:
    """Its lease excuses each before others are asked to help: so it counts that none of the rounds was answered."""
    machine = machine_in("abc", "a", START, LEASED)
    machine.handle(Hint(()), START)
    severed: set[str] = set()
    for step in range(20):
        now = START + step * LEASED.contact_interval
        for written, time in ((2 * step, now - 0.01), (2 * step + 1, now + 0.01)):
            lease = Lease(member("c"), written)
            machine.handle(Answered(ReadLeases(("c",)), LeaseList((lease,))), time)
            machine.tick(max(time, now))
            effects = machine.drain()
            for ping in [send.message for send in sends(effects, Ping)]:
                assert isinstance(ping, Ping)
                if ping.target == "b":
                    machine.receive("b", member("b").address, Ack(ping.seq, "b", 1, machine._core.view_id), max(time, now))
            told = [send.message for send in sends(effects, Evidence)]
            severed |= {each.accused for each in told if isinstance(each, Evidence) and each.kind is EvidenceKind.SEVERED}
    assert severed == {"c"}


def test_whom_others_reach_lives_though_its_lease_is_not_renewed() -> None:
    """So it is the link that is broken: with two that cannot reach each other, or the store, nobody could work."""
    one = bench("abcd", "a")
    one.run(SETTLED)
    one.others["c"].answers_until = one.others["c"].renews_until = one.now
    one.relays = True
    one.machine.handle(Hint(()), one.now)
    one.run(LEASED.link_timeout + 1.0)
    told = [effect.message for _, effect in one.effects if isinstance(effect, Send) and isinstance(effect.message, Evidence)]
    assert {each.accused for each in told if each.kind is EvidenceKind.SEVERED} == {"c"}


def test_in_a_large_view_a_suspicion_is_told_again_until_enough_have_confirmed_it() -> None:
    """Those who were told may just have seen the suspect's lease renewed, and have dropped it."""
    one = bench("abcdefgh", "a", leased(mesh_limit=4))
    one.run(SETTLED)
    one.others["b"].renews_until = one.others["b"].answers_until = one.now

    def told() -> set[float]:
        """When suspicions of b were sent."""
        word = Gossip((Update("b", Status.SUSPECT, 0, "a"),), direct=True)
        return {time for time, effect in one.effects if isinstance(effect, Send) and effect.message == word}

    one.run(4.0)
    assert len(told()) >= 3
    for name in "cd":
        word = Gossip((Update("b", Status.SUSPECT, 0, name),), direct=True)
        one.machine.receive(name, member(name).address, word, one.now)
    one.take()
    since = one.now
    one.run(3.0)
    assert max(told()) <= since


def test_whoever_is_being_pinged_is_not_pinged_again_for_a_further_word_about_it() -> None:
    machine = machine_in("abcdef", "a", START, LEASED)
    for name in "cde":
        machine.receive(name, member(name).address, Gossip((Update("f", Status.SUSPECT, 0, name),)), START + 0.1)
    assert [send.address for send in sends(machine.drain(), Ping)] == [member("f").address]


def test_who_has_given_up_its_call_waits_no_more() -> None:
    """This member would call itself hung, and go."""
    core = core_of("a", leased(stall_timeout=4.0))
    core.view = core.active = view_of("abc")
    core.progress = Progress(6, 0)
    found = Stall(core)
    for name in "bc":
        found.received(name, Progress(6, 7, START + 1.0))
    assert found.since() == START + 1.0 and found.awaited
    found.received("b", Progress(6, 0))
    assert found.since() is None and found.awaited
    found.received("c", Progress(6, 0))
    assert not found.awaited


def test_who_was_held_up_itself_has_the_whole_time_again() -> None:
    """Its data plane was held up with it, as by a host that slept."""
    one = bench("abcd", "a", leased(stall_timeout=4.0))
    one.machine.set_progress(Progress(6, 0))
    one.run(SETTLED)
    waiting(one, "b", "c")
    one.run(3.0)
    assert one.machine.next_deadline() is not None
    one.now += 10.0
    one.run(3.9)
    assert one.machine.stopped is None
    one.run(0.2)
    assert isinstance(one.machine.stopped, ExcludedError)
