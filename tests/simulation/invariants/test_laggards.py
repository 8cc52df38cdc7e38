from __future__ import annotations

import pytest

from consensus.messages import Chosen, FlushRequest, Install
from consensus.simulation import Host
from consensus.simulation.invariants import Laggards, Violation

from .stage import Stage, alone


def one_misses_a_change(stage: Stage) -> None:
    """The last of four is deaf to everything about the new view while it is made."""
    *_, dead, deaf = stage.hosts
    missed = (Chosen, FlushRequest, Install)
    stage.world.watch = lambda host, message: not isinstance(message, missed) or host is deaf
    stage.world.faults.cut |= {(other.id, deaf.id) for other in stage.hosts[:3]}
    stage.world.run(1.0)
    stage.world.kill(dead)
    stage.world.run(0.1)
    stage.world.faults.heal()
    stage.world.watch = None
    stage.world.run(60.0)


def test_a_view_that_nobody_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: one member believes nobody that a view was chosen, and stays in its old one for ever (Rapid's bug)."""
    alone(monkeypatch, Laggards)
    stage = Stage(Laggards, 4)
    deaf = stage.hosts[-1]
    for name in ("on_chosen", "on_install", "on_flush_request"):
        monkeypatch.setattr(deaf.machine._change, name, lambda *_: None)
    monkeypatch.setattr(deaf.machine._contact, "on_introduction", lambda *_: None)
    with pytest.raises(Violation, match=r"m.* still follows view 1 .*, though m.* knows view 2 .* both have been well"):
        one_misses_a_change(stage)


def test_laggards_that_catch_up_are_fine() -> None:
    stage = Stage(Laggards, 4)
    one_misses_a_change(stage)
    living: list[Host] = [host for host in stage.hosts if host.alive and host.stopped is None]
    assert len({host.activated[-1].view_id for host in living}) == 1
