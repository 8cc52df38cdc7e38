"""A network cut in two, and a store that both sides reach: leases show everybody alive, and only pings tell who is cut off."""

from __future__ import annotations

from dataclasses import replace

import pytest

from consensus.simulation import Scenario, play

TIME = 12.0
"""Seconds from the cut until one side goes on: ``link_timeout`` and some rounds of pings, with room to spare."""


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("sides", "stays"),
    [
        ("m0 m1", "m0"),
        ("m0 m1,m2,m3", "m1,m2,m3"),
        ("m0,m1 m2,m3", "m0,m1"),
        ("m0,m1,m2 m3,m4,m5", "m0,m1,m2"),
        ("m0,m1 m2,m3,m4,m5", "m2,m3,m4,m5"),
    ],
)
def test_the_larger_side_goes_on_whole_and_of_two_halves_that_of_the_most_senior(sides: str, stays: str, seed: int) -> None:
    names = sides.replace(" ", ",").split(",")
    script = f"seed={seed} size={len(names)} policy=storage leases=1\n0.6 split {sides}\n"
    result = play(replace(Scenario.parse(script), rest=TIME))
    assert result.violation == ""
    world = result.world
    senior_first = [host.name for host in sorted(world.hosts.values(), key=lambda host: host.activated[0].index(host.id))]
    expected = stays.split(",")
    if 2 * len(expected) == len(names):  # the sides are named, seniority is drawn
        expected = next(side.split(",") for side in sides.split() if senior_first[0] in side.split(","))
    assert sorted(host.name for host in world.hosts.values() if host.stopped is None) == sorted(expected)
