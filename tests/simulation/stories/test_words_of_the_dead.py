"""A joiner that tells of a cluster which another knows to be dead: that one asks no more often for it."""

from __future__ import annotations

from consensus.simulation import Scenario, play

STORM = """
seed=2266 size=1 fences=0 trust_refused=1 mesh_limit=32 skew=100000 drift=0.5 early=0 policy=storage leases=0 files=0 notices=1 alone=0 rest=0.02
0 start j0 m0
0 start j2 j0 m0 j1
0.01 start j1 m0 j0
0.01 start j3 m0 j0 j1
0.01 store_slow 0.02
0.01 kill m0
0.03 pause j3
0.31 duplication 0.5
0.61 isolate j0
1.62 split j1,j2 j0 j3
"""  # noqa: E501 - a script's first line is one
"""The founder dies when j0 has heard of its view, and j1 has found out that nobody is left: each answer made j1 ask again."""


def test_joiners_do_not_keep_each_other_asking() -> None:
    result = play(Scenario.parse(STORM))
    assert result.violation == ""
    assert result.world.messages < 2_000
