"""A view change that does not move: whom it doubts meanwhile, and when its time begins."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from unittest.mock import Mock

import pytest

from consensus.border import Hint
from consensus.config import Config
from consensus.errors import LeftError, QuorumLostError
from consensus.messages import Pull
from consensus.protocol.agreement.blockage import BLOCKED_EVERY, DOUBT_EVERY, DOUBTED, Blockage
from consensus.protocol.state.core import Core
from consensus.protocol.state.effects import Note
from consensus.protocol.state.life import Turn

from .bench import LEASED
from .people import CONFIG, core_of, machine_in, member, sends, view_of


def blocked(config: Config, names: str = "abcdef", missing: tuple[str, ...] = ()) -> list[str]:
    """Whom "b" doubts when its data plane has stood still for ``DOUBT_EVERY``; "f" is proven dead."""
    core = core_of("b", config)
    core.follow(view_of(names))
    core.table.adopt(view_of(names), {}, 100.0)
    core.judge_anew(view_of(names), 100.0)
    core.evidence.prove("f", "it is gone", 99.0, 100.0)
    doubted: list[str] = []
    proposer = Mock(attempt=None, missing=missing, discounted=frozenset())
    installer = Mock(waits_for=lambda: ())
    one = Blockage(core, proposer, installer, lambda: True, lambda member_id, _: doubted.append(member_id))
    for now in (100.0, 99.9 + DOUBT_EVERY):
        one.tick(now)
        assert not doubted
    one.tick(100.0 + DOUBT_EVERY)
    return doubted


@pytest.mark.parametrize(
    ("config", "doubts"),
    [(CONFIG, False), (replace(CONFIG, mesh_limit=4), True), (LEASED, True), (replace(LEASED, mesh_limit=4), True)],
)
def test_whoever_is_waited_for_is_checked_unless_all_ping_all_anyway(config: Config, doubts: bool) -> None:
    assert blocked(config, missing=("b", "c", "e", "f")) == (["c", "e"] if doubts else [])


def test_if_nobody_is_known_to_be_missing_the_coordinator_is_checked() -> None:
    assert blocked(LEASED) == ["a"]


def test_so_many_are_checked_at_a_time() -> None:
    names = "abcdefghijklmnopqrstuvwxyz"
    assert blocked(LEASED, names, missing=tuple(names[6:])) == list(names[6 : 6 + DOUBTED])


def standing_still(*, goes: bool = False) -> tuple[Core, Blockage]:
    """One of six, whose data plane stands still from 100.0 on; "f" is proven dead. ``goes``: it wants to leave."""
    core = core_of("b")
    core.follow(view_of("abcdef"))
    core.turn(Turn.ADMITTED)
    core.table.adopt(view_of("abcdef"), {}, 100.0)
    core.evidence.prove("f", "it is gone", 99.0, 100.0)
    if goes:
        core.evidence.leave("b", None, 100.0)
    proposer, installer = Mock(attempt=None, missing=("c", "f"), discounted=frozenset()), Mock(waits_for=lambda: ())
    one = Blockage(core, proposer, installer, lambda: True, lambda member_id, now: None)
    one.tick(100.0)
    return core, one


def test_it_says_every_few_seconds_whom_it_waits_for_and_asks_at_the_addresses_of_the_dead() -> None:
    """The others may have gone on without it, and a later lifetime of the dead knows."""
    core, one = standing_still()
    said, asked = [], []
    for _ in range(12):
        one.tick(now := one.deadline())
        effects = core.outbox.drain()
        said += [(now, each.text) for each in effects if isinstance(each, Note) and each.kind == "blocked"]
        asked += [(now, send.address) for send in sends(effects, Pull)]
    times = [100.0 + BLOCKED_EVERY, 100.0 + 2 * BLOCKED_EVERY]
    assert [time for time, _ in said] == times
    assert all(f"waits for {member('c')}, {member('f')} (dead)" in text for _, text in said)
    assert asked == [(time, member("f").address) for time in times]


@pytest.mark.parametrize(
    ("goes", "seconds", "error"), [(True, CONFIG.ready_timeout, LeftError), (False, CONFIG.quorum_timeout, QuorumLostError)]
)
def test_whoever_waits_for_so_long_ends(goes: bool, seconds: float, error: type[Exception]) -> None:
    core, one = standing_still(goes=goes)
    one.tick(100.0 + seconds - 0.001)
    assert core.stopped is None
    one.tick(100.0 + seconds)
    assert isinstance(core.stopped, error)


def test_the_time_of_a_change_begins_anew_with_the_next_view() -> None:
    machine = machine_in("abc", "b")
    machine.handle(Hint(("c",)), 100.1)
    machine.tick(100.2)
    blockage = machine._change._blockage
    assert blockage.deadline() < inf
    parent = view_of("abc")
    machine._change.adopt(view_of("ab", 2, parent.view_id, parent.cluster), "a", 100.3)
    assert blockage.deadline() == inf
