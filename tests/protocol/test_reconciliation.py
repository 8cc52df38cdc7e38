"""Digests first; beliefs only where they differ."""

from __future__ import annotations

from dataclasses import replace

import pytest

from consensus.messages import Beliefs, Chosen, Digest, EvidenceKind, Gossip, Message, Pull, Status, Update
from consensus.protocol.detection.reconciliation import EVERY, Reconciliation
from consensus.protocol.machine import Machine
from consensus.protocol.state.inputs import Accusation

from .people import CONFIG, machine_in, member, sends, view_of

VIEW = view_of("abc")
REFUTED = Update("c", Status.ALIVE, 3, "c")


def give(machine: Machine, sender: str, message: Message) -> list[Message]:
    machine.receive(sender, member(sender).address, message, 100.1)
    effects = machine.drain()
    return [send.message for kind in (Digest, Beliefs) for send in sends(effects, kind)]


def digest(machine: Machine) -> Digest:
    return Digest(1, VIEW.view_id, machine._reconciliation.digest())


def test_equal_tables_send_nothing() -> None:
    one, other = machine_in("abc", "a"), machine_in("abc", "b")
    assert digest(one).digest == b""
    assert give(other, "a", digest(one)) == []
    for machine in (one, other):
        machine.receive("c", member("c").address, Gossip((REFUTED,)), 100.0)
        machine.drain()
    assert len(digest(one).digest) == 8, "a few bytes, however many beliefs differ"
    assert give(other, "a", digest(one)) == []


def test_different_ones_are_equal_after_one_exchange() -> None:
    one, other = machine_in("abc", "a"), machine_in("abc", "b")
    one.receive("c", member("c").address, Gossip((REFUTED,)), 100.0)
    other.receive("c", member("c").address, Gossip((Update("a", Status.ALIVE, 2, "a"),)), 100.0)
    one._core.table.incarnation = 2  # as "a" itself knows
    one.drain(), other.drain()
    [answer] = give(other, "a", digest(one))
    assert answer == Beliefs(VIEW.view_id, (Update("a", Status.ALIVE, 2, "a"),), wants_answer=True)
    [last] = give(one, "b", answer)
    assert last == Beliefs(VIEW.view_id, (REFUTED,), wants_answer=False)
    assert give(other, "a", last) == []
    assert digest(one) == digest(other)


def test_a_digest_tells_which_of_two_members_has_missed_a_view() -> None:
    """A quiet job in a large view may send nothing else between the two."""
    ahead, behind = machine_in("abc", "a"), machine_in("abc", "b")
    newer = view_of("abc", 2, VIEW.view_id)
    ahead._change.adopt(newer, "a", 100.0)
    ahead.drain()
    ahead.receive("b", member("b").address, digest(behind), 100.1)
    [told] = sends(ahead.drain(), Chosen)
    assert told.address == member("b").address
    assert isinstance(told.message, Chosen) and behind._core.resolve(told.message.view, told.message.delta) == newer
    behind.receive("a", member("a").address, Digest(2, newer.view_id, b""), 100.1)
    assert [(send.address, send.message) for send in sends(behind.drain(), Pull)] == [
        (member("a").address, Pull(1, VIEW.view_id))
    ]


def test_somebody_is_asked_every_few_seconds() -> None:
    machine = machine_in("abcdefgh", "a")
    sent = 0
    for step in range(1000):
        machine._reconciliation.tick(100.0 + 0.1 * step)
        sent += len(sends(machine.drain(), Digest))
    assert 0.5 * 100 / EVERY <= sent <= 1.5 * 100 / EVERY


def test_somebody_is_asked_for_the_first_time_as_soon_as_later_and_not_by_all_members_at_once() -> None:
    core = machine_in("abc", "a")._core
    first = [Reconciliation(core, lambda *_: None, 100.0).deadline() - 100.0 for _ in range(100)]
    assert 0.5 * EVERY <= min(first) < 0.6 * EVERY and 1.4 * EVERY < max(first) <= 1.5 * EVERY


@pytest.mark.parametrize("dead", [True, False])
def test_who_is_dead_is_not_asked(dead: bool) -> None:
    machine = machine_in("ab", "a")
    if dead:
        machine.handle(Accusation("b", EvidenceKind.PROOF, "reaped"), 100.0)
    machine.drain()
    asked = 0
    for step in range(20):
        machine._reconciliation.tick(100.0 + 2 * EVERY * step)
        asked += len(sends(machine.drain(), Digest))
    assert bool(asked) is not dead


def test_of_those_who_suspect_a_member_the_first_by_id_is_named() -> None:
    """By everybody the same, once there are two: a suspicion of one is a rumour, which has its own way."""
    machine = machine_in("abcdef", "a")
    machine.receive("d", member("d").address, Gossip((Update("f", Status.SUSPECT, 0, "d"),)), 100.1)
    assert machine._reconciliation.beliefs() == []
    machine.receive("c", member("c").address, Gossip((Update("f", Status.SUSPECT, 0, "c"),)), 100.2)
    assert machine._reconciliation.beliefs() == [Update("f", Status.SUSPECT, 0, "c")]


def test_in_a_large_view_who_has_long_been_suspected_is_told_and_refutes() -> None:
    """As where the refutation was lost: whoever heard it may have died, and this member pings others."""
    config = replace(CONFIG, mesh_limit=3)
    suspects, suspected = machine_in("abcdef", "a", config=config), machine_in("abcdef", "f", config=config)
    suspects.receive("d", member("d").address, Gossip((Update("f", Status.SUSPECT, 0, "d"),)), 100.0)
    suspects.drain()
    table, reconciliation = suspects._core.table, suspects._reconciliation
    told: list[Beliefs] = []
    for step in range(300):
        now = 100.0 + 0.1 * step
        reconciliation.tick(now)
        told += [send.message for send in sends(suspects.drain(), Beliefs) if send.address == member("f").address]
        assert not told or now > 100.0 + EVERY, "a fresh suspicion is a rumour, which has its own way"
    assert 2 <= len(told) <= 10
    assert set(told) == {Beliefs(view_of("abcdef").view_id, (Update("f", Status.SUSPECT, 0, "a"),), wants_answer=True)}
    [answer] = [each for each in give(suspected, "a", told[0]) if isinstance(each, Beliefs)]
    assert not table.trusted("f")
    give(suspects, "f", answer)
    assert table.trusted("f")


def test_digests_of_many_members_do_not_fall_into_step() -> None:
    """The pauses between them are drawn anew each time, from half to one and a half of what they are on average."""
    one, pauses = machine_in("abc", "a")._reconciliation, []
    for _ in range(200):
        now = one.deadline()
        one.tick(now)
        pauses.append(one.deadline() - now)
    assert 0.5 * EVERY <= min(pauses) < 0.6 * EVERY and 1.4 * EVERY < max(pauses) <= 1.5 * EVERY
