"""A second member dies while the others agree on the view without the first one, or have just agreed."""

from __future__ import annotations

import pytest

from consensus.border import Hint
from consensus.config import Config, Policy
from consensus.simulation import Host, World
from tests.transcripts.script import agree, start_job

STORE = "simulated://store"


def tell(world: World, members: list[Host]) -> None:
    """Every program's operation fails, as soon as the sockets of the one who died are closed."""

    def hint() -> None:
        for each in members:
            if each.running:
                world.inside(each, lambda each=each: each.machine.handle(Hint(()), each.now))  # type: ignore[misc]

    world.at(0.0015, hint)


@pytest.mark.parametrize("policy", [Policy.MAJORITY, Policy.ANY, Policy.STORAGE])
@pytest.mark.parametrize(("size", "first", "second"), [(4, 2, 1), (6, 4, 0), (7, 0, 1)])
def test_the_second_change_follows_the_first_one_at_once(size: int, first: int, second: int, policy: Policy) -> None:
    """Its driver knows of both deaths, and asks for the second change before all have heard of the first."""
    config = Config(policy=policy, storage=STORE if policy is Policy.STORAGE else "")
    took = []
    for quarter in range(4, 40, 2):  # quarters of a millisecond
        world, members = start_job(size, seed=quarter, config=config)
        world.kill(members[first])
        tell(world, members)
        world.run(quarter / 4000)
        world.kill(members[second])
        tell(world, members)
        took.append(agree(world, [each for each in members if each.running]))
    assert max(took) < world.config.resend / 2, took
