"""Each fault does what it says: on messages, connections and processes of a small world."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from consensus.config import Config
from consensus.messages import Ack, Evidence, Introduction, JoinReply, Message
from consensus.protocol.detection.probe import Prober
from consensus.protocol.state.inputs import Checked, Input
from consensus.simulation import Failpoint, Faults, Host, Observer, Spread, World, judged


class Log(Observer):
    """(sender's name, receiver's name, type, time) of what was sent and what arrived."""

    def __init__(self) -> None:
        self.out: list[tuple[str, str, float]] = []
        self.got: list[tuple[str, str, float]] = []

    def sent(self, host: Host, target: Host | None, message: Message) -> None:
        self.out.append((host.name, target.name if target else "", self.world.now))

    def delivered(self, host: Host, sender: Host, message: Message) -> None:
        self.got.append((sender.name, host.name, self.world.now))

    def clear(self) -> None:
        self.out.clear()
        self.got.clear()


def job(size: int = 3, config: Config | None = None) -> tuple[World, list[Host], Log]:
    world = judged(World(1, config))
    hosts = world.cluster(size)
    world.run(1.0)
    log = Log()
    world.observe(log)
    return world, hosts, log


def links(rows: list[tuple[str, str, float]]) -> Counter[tuple[str, str]]:
    return Counter((one, two) for one, two, _ in rows)


def test_a_cut_has_a_direction() -> None:
    world, (m0, m1, _), log = job()
    world.faults.cut.add((m0.id, m1.id))
    world.run(0.6)
    got = links(log.got)
    assert ("m0", "m1") not in got and got["m1", "m0"]


def test_loss_at_one_member_and_on_one_link() -> None:
    world, (m0, m1, m2), log = job()
    world.faults.lossy[m0.id] = 1.0
    world.faults.lossy_links[m1.id, m2.id] = 1.0
    world.run(0.6)
    assert {link for link in links(log.got) if "m0" in link} == set()
    assert ("m1", "m2") not in links(log.got) and ("m2", "m1") in links(log.got)


def test_losses_multiply() -> None:
    faults = Faults(loss=0.5, lossy={"a": 0.5}, lossy_links={("a", "b"): 0.5})
    assert faults.loss_on("a", "b") == 1 - 0.125
    assert faults.loss_on("b", "a") == 1 - 0.25
    assert faults.loss_on("b", "c") == 0.5


def test_a_clogged_link_releases_everything_in_a_burst_and_in_order() -> None:
    world, (m0, _, _), log = job()
    world.clog(m0)
    world.run(1.2)
    assert not any("m0" in link for link in links(log.got))
    held = [(one, two) for one, two, _ in log.out if "m0" in (one, two)]
    world.unclog(m0)
    began = world.now
    log.got.clear()
    world.run(0.0005)
    burst = [(one, two) for one, two, at in log.got if "m0" in (one, two) and at > began]
    assert held and burst[: len(held)] == held


def test_everything_is_duplicated() -> None:
    world, _, log = job()
    world.faults.duplication = 1.0
    world.run(0.4999)
    world.faults.duplication = 0.0
    sent = len(log.out)
    world.run(0.01)
    assert len(log.got) == 2 * sent


def test_replayed_packets_reach_the_next_lifetime_at_the_address() -> None:
    world, (_, m1, m2), log = job()
    world.faults.replay, world.faults.replay_late = 1.0, 3.0
    world.run(1.0)
    world.kill(m2)
    world.faults.replay = 0.0
    world.run(0.1)
    again = world.start("again", introducers=(m1.name,), port=m2.member.port, wants=False)
    log.got.clear()
    strangers = []
    world.watch = lambda host, message: strangers.append(type(message).__name__) is None if host is again else True
    world.run(2.5)
    assert "Stranger" in strangers, "pings that were meant for the old lifetime"
    assert again.stopped is None


def test_what_is_wrong_with_the_way_to_an_address_stays_wrong_for_the_next_lifetime() -> None:
    world, (m0, _, m2), log = job()
    world.faults.cut_both(m0.id, m2.id)
    world.kill(m2)
    again = world.start("again", introducers=("m0",), port=m2.member.port)
    world.run(1.0)
    assert ("m0", "again") not in links(log.got)
    assert (m0.id, again.id) in world.faults.cut


@pytest.mark.parametrize("spread", list(Spread))
def test_latencies(spread: Spread) -> None:
    rng = Random(1)
    drawn = sorted(spread.draw(0.001, 0.002, rng) for _ in range(4000))
    assert drawn[0] >= 0.001
    assert abs(drawn[2000] - {"uniform": 0.0015, "exponential": 0.00169, "heavy": 0.00159}[spread.value]) < 0.0001
    low, high = {"uniform": (0.0019, 0.002), "exponential": (0.006, 0.03), "heavy": (0.05, 1.001)}[spread.value]
    assert low < drawn[-1] <= high


def test_heal_ends_everything() -> None:
    world, (m0, m1, _), log = job()
    world.faults = Faults(loss=0.5, duplication=0.5, reordering=0.5, replay=0.5, slow={m0.id: 1.0}, lossy={m1.id: 0.8})
    world.faults.cut_groups([[m0.id], [m1.id]])
    world.clog(m0)
    world.delay(Faults(latency=(0.1, 0.2), spread=Spread.HEAVY))
    world.failpoints.append(Failpoint("any", "any", 1000, before=True))
    world.run(1.2)
    world.heal()
    assert world.faults == Faults()
    assert not world.failpoints
    log.clear()
    world.run(0.01)
    assert any("m0" in link for link in links(log.got)), "what was held back"


# Processes


def test_a_stalled_agent_hears_everything_afterwards() -> None:
    world, (m0, m1, _), log = job()
    world.stall(m0, 0.7)
    log.clear()
    world.run(0.69)
    assert not [row for row in log.out if row[0] == "m0"] and m0.running and not m0.awake
    world.run(0.02)
    assert [row for row in log.out if row[0] == "m0"]
    assert any(kind == "late" for _, kind, _ in m0.notes) and m1.machine.view is m1.activated[-1]


def test_a_stall_inside_a_pause_ends_with_the_later_of_both() -> None:
    world, (m0, *_), _ = job()
    world.stall(m0, 0.5)
    world.pause(m0)
    world.run(1.0)
    assert not m0.awake
    world.stall(m0, 0.5)
    world.resume(m0)
    assert not m0.awake
    world.run(0.6)
    assert m0.awake and not m0.backlog


@pytest.mark.parametrize("before", [True, False])
def test_a_trap_kills_the_sender_at_exactly_that_message(before: bool) -> None:
    world, (m0, _, _), log = job()
    log.clear()
    world.failpoints.append(Failpoint("m0", "Ping", 3, before=before))
    pings: list[Message] = []
    world.watch = lambda host, message: (
        pings.append(message) is None if (host, type(message).__name__) == (m0, "Ping") else True
    )
    world.run(1.1)
    assert not m0.alive and len(pings) == (2 if before else 3)
    assert not world.failpoints


# Connections


def alive(world: World, asker: Host, target: Host) -> list[bool | None]:
    """What a check by ``asker`` comes to, and after which time."""
    found: list[bool | None] = []
    honest = asker.machine.handle

    def handle(what: Input, now: float) -> None:
        if isinstance(what, Checked) and what.member_id == target.id:
            found.append(what.alive)
        honest(what, now)

    asker.machine.handle = handle  # type: ignore[method-assign]
    world.connections.check(asker, target.member)
    world.run(0.6)
    return found


def test_checks_of_the_living_the_dead_the_paused_and_the_unreachable() -> None:
    world, (m0, m1, m2), _ = job()
    assert alive(world, m0, m1) == [True]
    world.pause(m1)
    assert set(alive(world, m0, m1)) == {None}
    world.resume(m1)
    world.faults.cut.add((m2.id, m0.id))
    world.run(0.6)
    assert False not in alive(world, m0, m2)
    world.heal()
    world.kill(m2)
    assert False in alive(world, m0, m2)


@pytest.mark.parametrize("trusted", [True, False])
def test_a_firewall_refuses(trusted: bool) -> None:
    """Forged proof where refusals are trusted (documented); where they are not, nothing, even of the dead."""
    world, (m0, m1, m2), _ = job(config=Config(trust_refused=trusted))
    world.faults.refused.add((m0.id, m1.id))
    assert alive(world, m0, m1)[0] is (False if trusted else None)
    world.kill(m2)
    assert (False in alive(world, m0, m2)) == trusted


def test_a_supervisor_beyond_a_cut_hears_nothing() -> None:
    world = judged(World(1, fences=True))
    hosts = world.cluster(3)
    world.run(1.0)
    world.isolate(hosts[:1], hosts[1:])
    world.run(4.0)
    assert all(host.alive for host in hosts)


# Old lifetimes


def contact_from_old_acks() -> float:
    """What a new lifetime takes for contact with m1, which never got a ping of its own but acked many of its predecessor."""
    world = judged(World(1))
    m0, m1, m2 = world.cluster(3)
    old: list[Message] = []
    world.watch = lambda host, message: old.append(message) is None if host is m1 and isinstance(message, Ack) else True
    world.run(4.0)
    world.watch = None
    world.kill(m2)
    again = world.start("again", introducers=("m0",), port=m2.member.port)
    world.faults.cut.add((again.id, m1.id))
    world.run_until(lambda: len(again.activated) == 1, 2.0)
    for _ in range(15):
        for ack in old:
            world.inside(again, lambda ack=ack: again.machine.receive(m1.id, m1.member.address, ack, again.now))  # type: ignore[misc]
        world.run(0.1)
    peer = again.machine._core.table.get(m1.id)
    assert peer is not None and m0.running
    return max(peer.contact, peer.met)


def test_an_ack_for_an_earlier_lifetime_is_no_contact() -> None:
    """Its sender may vote the later one out at any time, since it never acked *it*: counted as contact, it would discount."""
    assert contact_from_old_acks() == float("-inf")


def test_numbers_of_pings_that_begin_at_one_would_make_it_contact(monkeypatch: pytest.MonkeyPatch) -> None:
    def next_seq(self: Prober) -> int:
        self._seq = max(0, self._seq) + 1
        return self._seq

    monkeypatch.setattr(Prober, "next_seq", next_seq)
    assert contact_from_old_acks() > 0


def test_a_beacon_reaches_one_that_was_left_behind() -> None:
    world, members, _ = job(2)
    world.run(1.0)
    stale = members[1]
    asked: list[Message] = []
    world.watch = lambda host, message: asked.append(message) is None
    newer = JoinReply(type(stale.activated[-1])(7, "f" * 16, (members[0].member,)), members[0].member)
    world.inside(stale, lambda: stale.machine.receive("f" * 16, members[0].member.address, newer, stale.now))
    assert any(isinstance(message, Introduction) for message in asked), "the coordinator answers with what became of the job"
    assert not any(isinstance(message, Evidence) for message in asked)
