"""A view change that does not move: whom it doubts meanwhile, and when its time begins."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from unittest.mock import Mock

import pytest

from consensus.border import Hint
from consensus.config import Config
from consensus.protocol.agreement.blockage import DOUBT_EVERY, DOUBTED, Blockage

from .bench import LEASED
from .people import CONFIG, core_of, machine_in, view_of


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


def test_the_time_of_a_change_begins_anew_with_the_next_view() -> None:
    machine = machine_in("abc", "b")
    machine.handle(Hint(("c",)), 100.1)
    machine.tick(100.2)
    blockage = machine._change._blockage
    assert blockage.deadline() < inf
    parent = view_of("abc")
    machine._change.adopt(view_of("ab", 2, parent.view_id, parent.cluster), "a", 100.3)
    assert blockage.deadline() == inf
