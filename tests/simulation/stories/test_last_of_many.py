"""All but one of many die at once, and none has to agree: whoever is left goes on, though nobody is left to watch the dead."""

from __future__ import annotations

from dataclasses import replace

import pytest

from consensus.simulation import Scenario, play

MANY = 16


@pytest.mark.parametrize("decides", ["any", "storage leases=0", "storage leases=1"])
@pytest.mark.parametrize("last", ["m0", "m5", "m11"])
def test_the_last_of_many_goes_on(last: str, decides: str) -> None:
    """Above ``mesh_limit`` each is watched by a few neighbours only; no quorum is needed."""
    dead = " ".join(f"m{number}" for number in range(MANY) if f"m{number}" != last)
    script = f"seed=1 size={MANY} mesh_limit=4 policy={decides}\n0.6 kill {dead}\n"
    result = play(replace(Scenario.parse(script), rest=12.0))
    assert result.violation == ""
    [host] = [host for host in result.world.hosts.values() if host.alive]
    assert host.activated[-1].ids == (host.id,)


UNHEARD = """seed=5226 size=4 fences=1 trust_refused=0 mesh_limit=3 skew=100000 drift=0.9 early=0 policy=storage leases=1 \
files=0 notices=0 alone=0
0.6 stall m0 0.1
0.62 lossy m0 0.5
0.62 lossy m2 0.8
0.623 slow m0 0.05
0.626 isolate m0
0.726 split m0,m1,m2 m3
0.736 lossy_link m1 m0 0.8
0.736 lossy_link m2 m1 0.8
0.736 lossy_link m2 m3 0.8
0.736 lossy_link m1 m2 0.8
0.756 heal
0.759 trap any Promise 3 before
0.761 kill m1
0.859 isolate m3
0.869 lossy m2 0.8
3.059 rejoin m3
"""
"""A member dies of four just above ``mesh_limit``, and each of the others drops its neighbour's word, as the lease is fresh."""


def test_what_nobody_heard_is_said_again() -> None:
    result = play(replace(Scenario.parse(UNHEARD), rest=0.5))
    assert result.violation == ""
    alive = [host for host in result.world.hosts.values() if host.alive]
    assert {len(host.activated[-1].ids) for host in alive} == {3}
