"""Rounds of pings, what their helpers say of oneself, answers over TCP, and rumours: when they go out, and which."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from consensus.border import Freeze, Leave
from consensus.messages import Ack, Evidence, EvidenceKind, Gossip, Install, Message, Nack, Ping, PingRequest, Status, Update
from consensus.progress import Progress
from consensus.protocol.machine import Machine
from consensus.protocol.state.inputs import Checked
from consensus.simulation import Host

from ..transcripts.script import agree, start_job
from .people import CONFIG, T_EXCL, machine_in, member, sends, view_of

START = 100.0
HELP = START + CONFIG.ping_timeout
"""When others are asked about whom does not answer the first pings."""
OVER = START + CONFIG.contact_interval
"""When these pings have failed."""


def give(machine: Machine, sender: str, message: Message, now: float) -> None:
    machine.receive(sender, member(sender).address, message, now)


def ping_all(machine: Machine, *, answers: str = "") -> None:
    """The first round, in which only ``answers`` answer."""
    machine.tick(START)
    for send in sends(machine.drain(), Ping):
        ping = send.message
        assert isinstance(ping, Ping)
        if ping.target in answers:
            give(machine, ping.target, Ack(ping.seq, ping.target, 1, machine._core.view_id), START + 0.01)
    machine.drain()


@pytest.mark.parametrize(("mesh_limit", "pause"), [(32, CONFIG.contact_interval), (4, CONFIG.watch_interval)])
def test_the_next_round_comes_after_the_interval_of_a_view_of_that_size(mesh_limit: int, pause: float) -> None:
    """In a small view the contact that discounting rests on has to be fresh; in a large one a suspicion has a longer way."""
    machine = machine_in("abcdefgh", "a", config=replace(CONFIG, mesh_limit=mesh_limit))
    rounds: list[float] = []
    seen: set[int] = set()
    for step in range(100):
        now = START + 0.01 * step
        machine.tick(now)
        pings = {send.message.seq for send in sends(machine.drain(), Ping) if isinstance(send.message, Ping)}
        rounds += [now] if pings - seen else []
        seen |= pings
    assert rounds[1] - rounds[0] == pytest.approx(pause, abs=0.011)


@pytest.mark.parametrize("nacks", [0, 1, 3])
def test_each_helper_of_whom_nothing_is_heard_speaks_against_oneself(nacks: int) -> None:
    """They live, as they have just answered: so it is this member that hears too little."""
    machine = machine_in("abcde", "a")
    ping_all(machine, answers="cde")
    machine.tick(HELP)
    asked = sends(machine.drain(), PingRequest)
    assert sorted(send.address for send in asked) == [member(name).address for name in "cde"]
    for name, send in zip("cde"[:nacks], asked, strict=False):
        assert isinstance(send.message, PingRequest)
        give(machine, name, Nack(send.message.seq), HELP + 0.01)
    machine.tick(OVER)
    assert machine.status()["awareness"] == 3 - nacks


def test_a_member_that_has_never_acked_a_ping_is_pinged_again_in_the_same_round() -> None:
    """If it dies before its first ack, the others cannot do without it: so one lost packet must not take a whole round."""
    machine = machine_in("abc", "a")
    ping_all(machine, answers="c")
    machine.tick(HELP)
    again = [send.message for send in sends(machine.drain(), Ping)]
    assert [ping.target for ping in again if isinstance(ping, Ping)] == ["b"]
    give(machine, "b", Ack(again[0].seq, "b", 1, machine._core.view_id), HELP + 0.01)
    machine.tick(OVER)
    pings = sends(machine.drain(), Ping)
    assert sorted(send.address for send in pings) == [member(name).address for name in "bc"]
    machine.tick(OVER + CONFIG.ping_timeout)
    assert not sends(machine.drain(), Ping), "it has acked one by now"


@pytest.mark.parametrize(
    ("answers", "names", "pinged"),
    [("bc", "ab", ""), ("c", "ab", "b"), ("bc", "abd", "bd")],
    ids=["all have acked a moment ago", "one has not", "a newcomer"],
)
def test_in_a_new_view_all_are_pinged_at_once_unless_each_has_acked_a_moment_ago(answers: str, names: str, pinged: str) -> None:
    """Who dies before its first ack cannot be discounted; and pings would take processor time from the recovery."""
    machine = machine_in("abc", "a")
    ping_all(machine, answers=answers)
    soon = START + 0.1
    machine._change.adopt(view_of(names, 2, machine._core.view_id), "a", soon)
    machine.tick(soon)
    asked = [send.message for send in sends(machine.drain(), Ping)]
    targets = [ping.target for ping in asked if isinstance(ping, Ping)]
    assert "".join(target for target in targets if target in names) == pinged, "c, which may live, is asked in any round"
    machine.tick(OVER if not pinged else soon + CONFIG.contact_interval)
    assert {member(name).address for name in names if name != "a"} <= {send.address for send in sends(machine.drain(), Ping)}


def test_the_last_of_three_goes_on_where_two_die_within_a_moment() -> None:
    """The second one dies as soon as it is in a view without the first: nobody has pinged in it yet."""
    world, (first, second, last) = start_job(3)
    world.kill(first)
    world.run_until(lambda: second.installed[-1][0].epoch == last.installed[-1][0].epoch == 2, 1.0)
    world.kill(second)
    assert agree(world, [last]) < 0.1


def test_all_hear_of_a_view_that_waits_for_a_leaver() -> None:
    """If its driver dies meanwhile, and the leaver hangs, they are past the view in which they needed its vote."""
    world, (driver, *others, leaver) = start_job(4)
    carry_out = leaver.plane.handle
    leaver.plane.handle = lambda order: None if isinstance(order, Freeze) else carry_out(order)  # type: ignore[method-assign]
    for host in (driver, *others, leaver):
        host.machine.set_progress(Progress(16, 17, world.now, busy=True))
    world.inside(leaver, lambda: leaver.machine.handle(Leave(17), world.now))
    world.run_until(lambda: driver.machine.view is not None and driver.machine.view.epoch == 2, 3.0)
    world.run(0.1)
    assert not any(host.installed[-1][0].epoch == 2 for host in others), "INSTALL waits for the leaver's last call"
    world.pause(leaver)
    world.kill(driver)
    assert agree(world, others) < 0.1


@pytest.mark.parametrize("size", [6, 9])
def test_who_alone_has_a_view_hears_of_the_death_of_its_driver(size: int) -> None:
    """The others find that death, and speak of it in the view before: who is in the new one must not pass over that."""
    world, members = start_job(size)
    driver, *others, junior = members
    sent = 0

    def watch(host: Host, message: Message) -> bool:
        nonlocal sent
        sent += host is driver and isinstance(message, Install)
        if sent > 1 and host.alive and host is driver:
            world.kill(driver)
        return sent <= 1 or host is not driver

    world.watch = watch
    world.kill(junior)
    world.run_until(lambda: not driver.alive, 1.0)
    world.run(0.002)
    assert [host.machine.view.epoch for host in others if host.machine.view is not None].count(2) == 1
    assert agree(world, others) < 0.1


def test_who_answers_over_tcp_is_not_suspected_for_the_ping_that_it_did_not_ack() -> None:
    machine = machine_in("abc", "a")
    ping_all(machine)
    machine.tick(HELP)
    machine.handle(Checked("b", True, ""), HELP + 0.01)
    machine.tick(OVER)
    assert (machine.belief("b"), machine.belief("c")) == (Status.ALIVE, Status.SUSPECT)


def test_a_suspicion_that_nobody_confirms_lasts_for_the_whole_time_to_exclusion() -> None:
    """Each further accuser shortens that, down to half of it."""
    machine = machine_in("abc", "a")
    since = START + T_EXCL / 2
    give(machine, "c", Gossip((Update("b", Status.SUSPECT, 0, "c"),)), since)
    machine.tick(since + T_EXCL - 0.01)
    assert machine.status()["members"][1]["evidence"] is None
    machine.tick(since + T_EXCL)
    assert machine.status()["members"][1]["evidence"] == "silence"


def test_rumours_go_out_once_an_interval_however_often_there_is_something_to_do() -> None:
    """Each is sent a few times only, and not all of them at once: packets are lost in bursts."""
    machine = machine_in("abcdefghij", "a")
    ping_all(machine, answers="bcdefghij")
    give(machine, "b", Gossip((Update("c", Status.SUSPECT, 0, "b"),)), START + 0.02)
    told: list[int] = []
    for share in (0.5, 0.9, 1.0, 1.1, 1.9, 2.01):
        machine.tick(START + share * CONFIG.gossip_interval)
        told.append(len(sends(machine.drain(), Gossip)))
    assert told == [0, 0, CONFIG.gossip_fanout, 0, 0, CONFIG.gossip_fanout]


@pytest.mark.parametrize("direct", [True, False])
def test_a_refutation_is_passed_on_unless_its_source_itself_sent_it(direct: bool) -> None:
    """The source tells all that it concerns."""
    machine = machine_in("abcd", "a")
    ping_all(machine)
    refutation = Update("c", Status.ALIVE, 3, "c")
    give(machine, "c", Gossip((refutation,), direct=direct), START + 0.02)
    machine.tick(START + CONFIG.gossip_interval)
    told = {update for send in sends(machine.drain(), Gossip) for update in send.message.updates}  # type: ignore[attr-defined]
    assert told == (set() if direct else {refutation})


def test_members_of_a_large_view_do_not_ping_in_step() -> None:
    """Each begins at any time in the first interval after it has adopted the view."""
    firsts: list[float] = []
    for seed in range(40):
        machine = Machine(
            replace(CONFIG, mesh_limit=4), member("a"), Random(seed), founder=False, introducers=(("10.0.0.1", 1),)
        )
        machine.start(START)
        machine._change.adopt(view_of("abcdefgh"), "a", START)
        machine.drain()
        now = START
        while not sends(machine.drain(), Ping):
            now += 0.01
            machine.tick(now)
        firsts.append(now - START)
    assert min(firsts) < 0.1 * CONFIG.watch_interval
    assert 0.9 * CONFIG.watch_interval < max(firsts) < CONFIG.watch_interval + 0.011


@pytest.mark.parametrize(("mesh_limit", "told"), [(32, "bc"), (4, "b")])
def test_a_further_accuser_is_told_to_all_of_a_small_view(mesh_limit: int, told: str) -> None:
    """Each one shortens the suspicion. In a large view the accusers tell those whom it concerns, and all once it is enough."""
    machine = machine_in("abcdefgh", "a", config=replace(CONFIG, mesh_limit=mesh_limit))
    ping_all(machine, answers="bcdefgh")
    for name in "bc":
        give(machine, name, Gossip((Update("h", Status.SUSPECT, 0, name),)), START + 0.02)
    machine.tick(START + CONFIG.gossip_interval)
    updates = {update for send in sends(machine.drain(), Gossip) for update in send.message.updates}  # type: ignore[attr-defined]
    assert updates == {Update("h", Status.SUSPECT, 0, name) for name in told}


@pytest.mark.parametrize("by", ["b", "c"])
def test_a_slow_link_is_not_broken_and_one_that_only_others_have_is(by: str) -> None:
    """Late answers count if they come from the member itself; those that others pass on show only that it lives."""
    machine = machine_in("abc", "a")
    severed: set[str] = set()
    for step in range(20):
        now = START + step * CONFIG.contact_interval
        machine.tick(now)
        pings = {send.message.target: send.message.seq for send in sends(machine.drain(), Ping)}  # type: ignore[attr-defined]
        give(machine, "c", Ack(pings["c"], "c", 1, machine._core.view_id), now + 0.01)
        machine.tick(now + CONFIG.ping_timeout)
        give(machine, by, Ack(pings["b"], "b", 1, machine._core.view_id), now + CONFIG.ping_timeout + 0.1)
        told = [send.message for send in sends(machine.drain(), Evidence)]
        severed |= {each.accused for each in told if isinstance(each, Evidence) and each.kind is EvidenceKind.SEVERED}
        if machine.changing:
            break
    assert severed == (set() if by == "b" else {"b"})


def test_a_ping_that_went_unanswered_in_a_large_view_breaks_no_link_in_a_small_one() -> None:
    """Nobody has pinged that member since: its neighbours may be others."""
    machine = machine_in("abcdefgh", "a", config=replace(CONFIG, mesh_limit=4))
    now, pings = START, []
    while not pings:
        now += 0.01
        machine.tick(now)
        pings = sends(machine.drain(), Ping)
    ping = pings[0].message
    assert isinstance(ping, Ping)
    machine.tick(now + CONFIG.ping_timeout)
    helper = sends(machine.drain(), PingRequest)[0]
    [by] = [name for name in "bcdefgh" if member(name).address == helper.address]
    give(machine, by, Ack(ping.seq, ping.target, 1, machine._core.view_id), now + CONFIG.ping_timeout + 0.01)
    later = now + CONFIG.link_timeout + 1.0
    machine._change.adopt(view_of("".join(sorted({"a", "b", ping.target})), 2, machine._core.view_id), "a", later)
    machine.tick(later)
    told = [send.message for send in sends(machine.drain(), Evidence)]
    assert not [each for each in told if isinstance(each, Evidence) and each.kind is EvidenceKind.SEVERED]


def test_silence_says_since_when_and_who_else_suspects() -> None:
    machine = machine_in("abc", "a")
    since = START + T_EXCL / 2
    give(machine, "c", Gossip((Update("b", Status.SUSPECT, 0, "c"),)), since)
    machine.tick(since + T_EXCL)
    told = [each["detail"] for each in machine.status()["under_way"]["findings"] if each["kind"] == "silence"]
    assert told == [f"no answer for {1.5 * T_EXCL:.2f} s, suspected by 1"]


def test_a_helper_pings_for_another_member_and_passes_the_answer_on_or_says_that_there_is_none() -> None:
    machine = machine_in("abc", "b")
    ping_all(machine, answers="ac")
    for seq, answers in ((7, True), (8, False)):
        give(machine, "a", PingRequest(seq, member("c")), HELP)
        [sent] = sends(machine.drain(), Ping)
        ping = sent.message
        assert isinstance(ping, Ping) and (sent.address, ping.target) == (member("c").address, "c")
        if answers:
            give(machine, "c", Ack(ping.seq, "c", 1, machine._core.view_id), HELP + 0.01)
            told = [(send.address, send.message) for send in sends(machine.drain(), Ack)]
            assert told == [(member("a").address, Ack(seq, "c", 1, machine._core.view_id))]
    machine.tick(HELP + CONFIG.nack_share * CONFIG.ping_timeout)
    assert [(send.address, send.message) for send in sends(machine.drain(), Nack)] == [(member("a").address, Nack(8))]


def test_a_suspicion_that_is_not_confirmed_lasts_as_long_whether_its_owner_sleeps_meanwhile_or_not() -> None:
    """Time in which no answer could be heard is held against nobody."""
    machine, asleep = machine_in("abc", "a"), 10.0
    ping_all(machine, answers="c")
    machine.tick(OVER)
    assert machine.belief("b") is Status.SUSPECT
    deadline = machine.next_deadline()
    assert deadline is not None
    machine.tick(deadline + asleep)
    machine.tick(OVER + T_EXCL + asleep - 0.01)
    assert machine.status()["members"][1]["evidence"] is None
    machine.tick(OVER + T_EXCL + asleep + 0.01)
    assert machine.status()["members"][1]["evidence"] == "silence"


def test_who_was_silent_to_others_alone_and_answers_is_no_reason_for_a_change_any_more() -> None:
    """``ftlib explain`` would call a change under way, though nobody wants one."""
    machine, now = machine_in("abc", "a"), START + T_EXCL + 0.1
    give(machine, "b", Evidence(machine._core.view_id, "c", EvidenceKind.SILENCE, "no answer"), now)
    assert machine.status()["members"][2]["evidence"] == "silence" and machine.belief("c") is Status.ALIVE
    machine.tick(now + 0.01)
    [ping] = [send.message for send in sends(machine.drain(), Ping) if send.address == member("c").address]
    assert isinstance(ping, Ping)
    give(machine, "c", Ack(ping.seq, "c", 1, machine._core.view_id), now + 0.02)
    assert machine.status()["members"][2]["evidence"] is None
    assert not (machine.status()["under_way"] or {}).get("findings")
