"""A coordinator that alone has lost its way to the store: the others reach it, and the next view must not wait for that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from consensus.protocol.agreement.proposer import STANDS_IN
from consensus.simulation import Scenario, play

SOON = STANDS_IN + 2.0
"""Seconds until the next in seniority has stood in, with room to spare; the way is open again long after that."""


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "cut",
    [
        0.602,  # before it has asked for the record
        0.608,  # the record is made, and its maker is not told
    ],
)
def test_others_go_on_with_it_while_it_cannot_record_the_next_view(cut: float, seed: int) -> None:
    script = f"seed={seed} size=4 policy=storage leases=1\n0.6 kill m3\n{cut} store_away m0\n40.0 store_back\n"
    result = play(replace(Scenario.parse(script), rest=10.0))
    assert result.violation == ""
    for host in result.world.hosts.values():
        if host.name == "m3":
            continue
        assert host.stopped is None
        change = host.machine.last_change()
        assert (change["epoch"], change["size"]) == (2, 3)
        assert change["moments"]["activated"] < SOON
