"""When a silent member is asked to be killed, which turns silence into proof before it is believed."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from consensus.config import Config
from consensus.messages import Gossip, Status, Update
from consensus.protocol.detection.fences import FENCE_EVERY, Fences
from consensus.protocol.state.effects import Fence
from consensus.protocol.state.inputs import Checked
from consensus.protocol.state.lifeguard import Suspicion
from consensus.protocol.state.member_table import Peer

from .people import CONFIG, T_EXCL, machine_in, member, view_of


def peer(*, supervised: bool) -> Peer:
    meta = (("supervisor", "10.0.0.1:9"),) if supervised else ()
    found = machine_in("abc", "b")._core.table.get("c")
    assert found is not None
    found.member = replace(member("c"), meta=meta)
    return found


def test_a_supervised_member_is_killed_after_its_share_of_the_time_and_again_while_that_is_of_no_use() -> None:
    fences = Fences(machine_in("abc", "b")._core)
    silent = peer(supervised=True)
    due = fences.due(silent, 100.0, 1)
    assert due == pytest.approx(100.0 + CONFIG.fence_after * T_EXCL)
    fences.fence(silent, 100.0, due)
    assert fences.due(silent, 100.0, 1) == pytest.approx(due + FENCE_EVERY)


def test_without_a_supervisor_or_a_command_nobody_could() -> None:
    assert Fences(machine_in("abc", "b")._core).due(peer(supervised=False), 100.0, 1) == inf


@pytest.mark.parametrize(
    ("suspects", "dead", "first"), [(1, 0, True), (2, 0, True), (3, 0, False), (1, 1, True), (2, 1, False)]
)
def test_of_two_sides_that_shoot_at_each_other_the_larger_one_comes_first(suspects: int, dead: int, first: bool) -> None:
    """Five members: whoever has three that nothing is held against runs its command sooner."""
    core = machine_in("abcde", "b", config=Config(fence_command="true"))._core
    for name in "de"[:dead]:
        core.evidence.prove(name, "it is gone", 99.0, 100.0)
    share = CONFIG.fence_after if first else (CONFIG.fence_after + 1) / 2
    assert Fences(core).due(peer(supervised=False), 100.0, suspects) == pytest.approx(100.0 + share * T_EXCL)


@pytest.mark.parametrize("supervised", [True, False])
def test_of_a_death_that_came_too_late_to_count_the_supervisor_is_asked_and_kills_nobody(supervised: bool) -> None:
    """It may know that the member was dead long before: then the quorum may do without its vote."""
    machine = machine_in("abc", "b")
    found = machine._core.table.get("c")
    assert found is not None
    found.member = peer(supervised=supervised).member
    machine.handle(Checked("c", False, "refused"), 100.0 + 2 * T_EXCL)
    told = [effect for effect in machine.drain() if isinstance(effect, Fence)]
    assert [(each.member.id, each.command) for each in told] == ([("c", False)] if supervised else [])


@pytest.mark.parametrize("senior", [True, False])
def test_of_two_halves_that_with_the_most_senior_member_comes_first(senior: bool) -> None:
    """It alone is a quorum, so the other one cannot go on in any case."""
    core = machine_in("abcd", "b", config=Config(fence_command="true"))._core
    for name in "cd" if senior else "ac":
        suspected = core.table.get(name)
        assert suspected is not None
        core.table.suspect(suspected, Suspicion("b", 3, 1.0, 5.0, 100.0))
    share = CONFIG.fence_after if senior else (CONFIG.fence_after + 1) / 2
    assert Fences(core).due(peer(supervised=False), 100.0, 2) == pytest.approx(100.0 + share * T_EXCL)


def test_what_was_asked_for_holds_in_the_next_view_for_its_members_alone() -> None:
    fences, silent = Fences(machine_in("abc", "b")._core), peer(supervised=True)
    due = fences.due(silent, 100.0, 1)
    fences.fence(silent, 100.0, due)
    fences.adopt(view_of("bc", 2))
    assert fences.due(silent, 100.0, 1) == pytest.approx(due + FENCE_EVERY), "it has just been asked for"
    fences.adopt(view_of("ab", 3))
    assert fences.due(silent, 100.0, 1) == due, "nothing is kept of who has gone"


def test_a_suspect_is_killed_at_the_very_moment_for_which_its_member_asked_to_be_woken() -> None:
    """It would be woken again and again until its clock has moved."""
    machine = machine_in("abc", "b")
    found = machine._core.table.get("c")
    assert found is not None
    found.member = peer(supervised=True).member
    machine.receive("a", member("a").address, Gossip((Update("c", Status.SUSPECT, 0, "a"),)), 100.5)
    due = 100.0 + CONFIG.fence_after * T_EXCL
    machine.tick(due - 0.01)
    assert not [effect for effect in machine.drain() if isinstance(effect, Fence)]
    assert machine.next_deadline() <= due  # type: ignore[operator]
    machine.tick(due)
    assert [effect.member.id for effect in machine.drain() if isinstance(effect, Fence)] == ["c"]
