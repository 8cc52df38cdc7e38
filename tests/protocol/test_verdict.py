"""Who may judge a suspect: whoever has pinged it in vain, and in a large view only once enough others have, too."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from consensus.config import Config, Liveness, Policy
from consensus.member import Member
from consensus.messages import Evidence, EvidenceKind, Gossip, Ping, Status, Update
from consensus.protocol.detection.leases import Leases
from consensus.protocol.detection.stall import Stall
from consensus.protocol.detection.verdict import Verdicts
from consensus.protocol.detection.watch import Watch, watchers
from consensus.protocol.machine import Machine
from consensus.protocol.state.core import Core
from consensus.protocol.state.inputs import Accusation
from consensus.protocol.state.lifeguard import Suspicion
from consensus.view import NO_VIEW_ID, View

from .bench import LEASED
from .people import T_EXCL, core_of, machine_in, sends

PINGED = replace(LEASED, liveness=Liveness.PINGS, mesh_limit=4)
NOW = 100.0 + 2 * T_EXCL


def verdicts(core: Core) -> Verdicts:
    leases = Leases(core, Stall(core), 100.0) if core.config.liveness is Liveness.LEASES else None
    return Verdicts(core, leases, lambda *_: None)


def suspect(machine: Machine, name: str, *, confirmed: bool = False, unanswered: float | None = None) -> None:
    """As ``a`` told it."""
    peer = machine._core.table.get(name)
    assert peer is not None
    suspicion = Suspicion("a", 3, 1.0, 5.0, 100.0)
    for by in "cd" if confirmed else "":
        suspicion.confirm(by)
    suspicion.unanswered = unanswered
    machine._core.table.suspect(peer, suspicion)


@pytest.mark.parametrize(
    ("leases", "crowded", "confirmed", "unanswered", "judges"),
    [
        (False, False, False, False, True),  # all ping all: it will have missed an answer, too
        (True, False, False, False, False),  # nobody pings without a reason
        (True, False, False, True, True),
        (False, True, True, False, False),
        (False, True, False, True, False),
        (False, True, True, True, True),
        (True, True, True, False, False),
        (True, True, False, True, False),
        (True, True, True, True, True),
    ],
)
def test_who_may_judge(leases: bool, crowded: bool, confirmed: bool, unanswered: bool, judges: bool) -> None:
    liveness = Liveness.LEASES if leases else Liveness.PINGS
    config = replace(LEASED, liveness=liveness, mesh_limit=4 if crowded else 32)
    machine = machine_in("abcdefgh", "b", config=config)
    assert machine._core.crowded is crowded
    suspect(machine, "h", confirmed=confirmed, unanswered=100.5 if unanswered else None)
    peer = machine._core.table.get("h")
    assert peer is not None
    assert verdicts(machine._core).judges(peer) is judges


@pytest.mark.parametrize(
    ("policy", "left", "judges"), [(Policy.STORAGE, 2, True), (Policy.STORAGE, 3, False), (Policy.MAJORITY, 2, False)]
)
def test_the_last_of_a_large_view_judge_without_others_where_a_store_decides(policy: Policy, left: int, judges: bool) -> None:
    """Nobody is left to confirm. Without a store they could not go on anyway."""
    machine = machine_in("abcdefgh", "a", config=PINGED if policy is Policy.STORAGE else Config(mesh_limit=4))
    for name in "abcdefgh"[left:]:
        suspect(machine, name, unanswered=100.5)
    peer = machine._core.table.get("h")
    assert peer is not None
    assert verdicts(machine._core).judges(peer) is judges


def test_with_leases_who_is_proven_dead_is_not_called_silent_as_well() -> None:
    """Others may say so for a while: they have not heard yet that it is dead."""
    machine = machine_in("abcd", "a", config=LEASED)
    machine.handle(Accusation("d", EvidenceKind.PROOF, "reaped"), NOW)
    machine.drain()
    word = Evidence(machine._core.view_id, "d", EvidenceKind.SILENCE, "no answer")
    machine.receive("c", machine._core.view.member("c").address, word, NOW)  # type: ignore[union-attr]
    told = [(each["kind"], each["accused"]) for each in machine.status()["under_way"]["findings"]]
    assert told == [("proof", "d")]


@pytest.mark.parametrize(
    ("policy", "confirmed", "unanswered", "waits"),
    [
        (Policy.STORAGE, False, 100.0, True),
        (Policy.STORAGE, True, 100.0, False),
        (Policy.STORAGE, False, None, False),
        (Policy.STORAGE, False, NOW - T_EXCL, False),  # not for long
        (Policy.ANY, False, 100.0, True),
        (Policy.MAJORITY, False, 100.0, False),
    ],
)
def test_what_nobody_confirms_for_long(policy: Policy, confirmed: bool, unanswered: float | None, waits: bool) -> None:
    config = PINGED if policy is Policy.STORAGE else Config(mesh_limit=4, policy=policy)
    machine = machine_in("abcdefgh", "b", config=config)
    assert not verdicts(machine._core).unconfirmed(NOW)
    suspect(machine, "h", confirmed=confirmed, unanswered=unanswered)
    assert [peer.member.id for peer in verdicts(machine._core).unconfirmed(NOW)] == ["h"] * waits


@pytest.mark.parametrize("alone", [True, False])
def test_who_may_be_alone_pings_others_than_its_neighbour_as_well(alone: bool) -> None:
    machine = machine_in("abcdefghijkl", "b", config=PINGED)
    suspect(machine, "h", unanswered=100.0 if alone else NOW)
    machine.drain()
    machine._detection._begin_round(NOW)
    pinged = {send.message.target for send in sends(machine.drain(), Ping)}  # type: ignore[attr-defined]
    assert "h" not in pinged - {machine._detection._watch.slots[machine._detection._watch._turn]}
    assert (2 <= len(pinged) <= 4) if alone else (len(pinged) <= 1)


@pytest.mark.parametrize("policy", [Policy.STORAGE, Policy.ANY, Policy.MAJORITY])
def test_who_may_be_alone_asks_others_to_ping_its_suspect(policy: Policy) -> None:
    machine = machine_in("abcdefghijkl", "b", config=replace(PINGED, policy=policy))
    suspect(machine, "h", unanswered=100.0)
    machine.drain()
    machine._detection._begin_round(NOW)
    asked = [send.message for send in sends(machine.drain(), Gossip)]
    expected = Gossip((Update("h", Status.SUSPECT, 0, "b"),), direct=True)
    assert asked == [expected] * (0 if policy is Policy.MAJORITY else len(asked))
    assert policy is Policy.MAJORITY or 1 <= len(asked) <= 3


@pytest.mark.parametrize("direct", [True, False])
def test_who_is_asked_pings_a_suspect_that_it_does_not_watch(direct: bool) -> None:
    names = "abcdefghijklmnopqrstuvwxyz"
    machine = machine_in(names, "h", config=PINGED)
    detection = machine._detection
    stranger = next(key for key in names if not detection._verdicts.concerns(key, detection._watch))
    message = Gossip((Update(stranger, Status.SUSPECT, 0, "e"),), direct=direct)
    machine.drain()
    machine.receive("e", machine._core.view.member("e").address, message, NOW)  # type: ignore[union-attr]
    assert (stranger in {send.message.target for send in sends(machine.drain(), Ping)}) is direct  # type: ignore[attr-defined]


@pytest.mark.parametrize("policy", [Policy.STORAGE, Policy.ANY, Policy.MAJORITY])
@pytest.mark.parametrize("unanswered", [None, 100.0])
def test_who_is_asked_again_says_again_that_it_pinged_in_vain(policy: Policy, unanswered: float | None) -> None:
    """The asker may not have heard it the first time, and wait for one accuser more."""
    machine = machine_in("abcdefghijkl", "b", config=replace(PINGED, policy=policy))
    suspect(machine, "h", confirmed=True, unanswered=unanswered)
    machine.drain()
    asker = machine._core.view.member("e")  # type: ignore[union-attr]
    machine.receive("e", asker.address, Gossip((Update("h", Status.SUSPECT, 0, "e"),), direct=True), NOW)
    told = [send.message for send in sends(machine.drain(), Gossip) if send.address == asker.address]
    says = unanswered is not None and policy is not Policy.MAJORITY
    assert told == [Gossip((Update("h", Status.SUSPECT, 0, "b"),))] * says


def large_view() -> View:
    rng = Random(1)
    return View(1, NO_VIEW_ID, tuple(Member(f"{rng.getrandbits(64):016x}", "10.0.0.1", 1 + n) for n in range(60)))


def core_in(view: View, member: Member) -> Core:
    core = Core(replace(LEASED, mesh_limit=4), member, Random(1))
    core.follow(view)
    core.table.adopt(view, {}, 100.0)
    core.judge_anew(view, 100.0)
    return core


def test_of_a_large_view_with_leases_a_suspects_neighbours_probe_it_at_once() -> None:
    view = large_view()
    suspected, beside = view.ids[30], set(watchers(view.ids[30], view))
    for member in view.members:
        if member.id == suspected:
            continue
        senior = member.id in view.ids[:3]
        assert verdicts(core_in(view, member)).concerns(suspected, Watch(member.id)) is (senior or member.id in beside)


def test_of_a_suspicion_in_a_large_view_the_suspect_its_neighbours_its_accuser_and_the_seniors_are_told() -> None:
    """The seniors as well: one of them has to lead a change without it."""
    view = large_view()
    suspected, accuser = view.ids[30], view.ids[40]
    told = {suspected, accuser, *watchers(suspected, view), *view.ids[:3]}
    for own in (view.members[20], view.members[40], view.members[1]):
        word = Update(suspected, Status.SUSPECT, 0, accuser)
        assert {each.id for each in verdicts(core_in(view, own)).concerned(word)} == told - {own.id}


def test_of_a_small_view_with_leases_everybody_probes_a_suspect() -> None:
    machine = machine_in("abcdefgh", "f", config=LEASED)
    assert verdicts(machine._core).concerns("h", Watch("f"))
    assert not verdicts(core_of("f", PINGED)).concerns("h", Watch("f"))


@pytest.mark.parametrize(("liveness", "share"), [(Liveness.PINGS, 2), (Liveness.LEASES, 4)])
def test_the_shortest_suspicion_is_a_share_of_the_time_to_exclusion(liveness: Liveness, share: int) -> None:
    """Less with leases: whoever is pinged because of its lease has been silent for a while."""
    assert verdicts(core_of("a", replace(LEASED, liveness=liveness))).shortest() == T_EXCL / share


@pytest.mark.parametrize(
    ("liveness", "mesh_limit", "unanswered", "since"),
    [
        (Liveness.PINGS, 32, None, 100.0),
        (Liveness.PINGS, 32, 107.0, 100.0),  # each round may bring an answer
        (Liveness.PINGS, 4, None, 100.0),
        (Liveness.PINGS, 4, 107.0, 107.0),
        (Liveness.LEASES, 32, None, 100.0),
        (Liveness.LEASES, 32, 107.0, 107.0),
    ],
)
def test_who_pings_only_for_a_reason_has_seen_silence_only_since_that_ping(
    liveness: Liveness, mesh_limit: int, unanswered: float | None, since: float
) -> None:
    """Its last sign of life may be hours old, as nobody asked it for one: it has T_excl from then on to answer."""
    machine = machine_in("abcdefgh", "a", config=replace(LEASED, liveness=liveness, mesh_limit=mesh_limit))
    suspect(machine, "h", confirmed=True, unanswered=unanswered)
    peer = machine._core.table.get("h")
    assert peer is not None
    found = verdicts(machine._core)
    assert found.silent_since(peer) == since
    if unanswered is not None:
        assert found.time(peer) >= since + T_EXCL
