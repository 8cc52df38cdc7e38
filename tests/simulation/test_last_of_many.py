"""All but one of many die at once, and a store decides: whoever is left goes on, though nobody is left to watch the dead."""

from __future__ import annotations

from dataclasses import replace

import pytest

from consensus.simulation import Scenario, play

MANY = 16


@pytest.mark.parametrize("leases", [0, 1])
@pytest.mark.parametrize("last", ["m0", "m5", "m11"])
def test_the_last_of_many_goes_on(last: str, leases: int) -> None:
    """Above ``mesh_limit`` each is watched by a few neighbours only; the store needs no quorum."""
    dead = " ".join(f"m{number}" for number in range(MANY) if f"m{number}" != last)
    script = f"seed=1 size={MANY} mesh_limit=4 policy=storage leases={leases}\n0.6 kill {dead}\n"
    result = play(replace(Scenario.parse(script), rest=12.0))
    assert result.violation == ""
    [host] = [host for host in result.world.hosts.values() if host.alive]
    assert host.activated[-1].ids == (host.id,)
