"""The words of the package's judgement that tests use."""

from __future__ import annotations

from consensus.simulation import World, living, settled
from consensus.simulation import judge as verdict

__all__ = ["judge", "living", "settled"]


def judge(world: World, seconds: float = 30.0) -> None:
    """Heal everything, wait, and expect agreement or a legitimate block."""
    found = verdict(world, seconds)
    assert found.good, found
