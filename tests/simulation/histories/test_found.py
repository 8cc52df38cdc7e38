"""Histories that random faults found and the shrinker made short. Each failed before the protocol was mended."""

from __future__ import annotations

import pytest

from consensus.config import Config
from consensus.simulation import Outcome, Scenario, play

STALE = """
seed=2050 size=3
0.7 isolate m1
2.703 restart m2 m0
2.813 leave m0
"""
"""m1 is cut off; the others go on without it, then one is restarted and the other leaves: whom m1 knew is dead, and proven so,
and nothing is sent to the dead. Only a later lifetime at such an address can tell it that it is out."""

NOT_FOUNDED = """
seed=10329 size=4 mesh_limit=3 early=1 rest=0.02
0 split m2,m0 m3,m4,m1
1.006 restart m0 m1
"""
"""The founder dies when only m2 has heard of the first view. m1 is next in seniority, alive, and does not know of any view."""

UNTOLD = """
seed=185 size=8 fences=1 drift=0.9 rest=0.02
0.6 split m1,m6,m4,m5,m7 m0,m2,m3
0.603 start j0 m2
3.103 isolate m5
"""
"""The last of the larger side joined through m2 of the smaller: only its beacon reaches m2, which has a view already."""

ASTRAY = """
seed=71017 size=8 fences=1 trust_refused=1 skew=100000 drift=0 rest=0.5
0.6 clog m4
0.9 kill m3
1.1 unclog m4
1.9 pause m7
4.41 isolate m5
4.71 kill m5 m6
7.317 clog m4
7.333 lossy m2 0.5
7.341 lossy m0 0.3
7.392 restart m1 m2 m0
8.583 start j0 m2
"""
"""m0 and m2 choose two epochs, admit m1 anew in the second, and die. m4 is in both and hears of neither: it discounts the dead
and acts in another view of the first epoch. Then m1 tells it of the second, of a view that never can be active."""

READMITTED = """
seed=3719 size=6 trust_refused=1 skew=0 drift=0 early=1 policy=storage files=0 notices=0 alone=0 rest=0.02
0.3 clog m2
2.9 store_slow 0.02
3.3 unclog m2
5.91 heal
"""
"""Nothing from or to m2 arrives for three seconds: it follows the first view by reading the store, and the others go on without
it. Then its requests to join arrive, from before, and with them its answer to a ping: of one that has followed a view."""

AS_FOUND = Config(settle_quiet=0.005)
"""Coordinators waited so long after each proof when these were found: a few milliseconds more or less, and nothing happens."""

HISTORIES = {"stale": STALE, "not founded": NOT_FOUNDED, "untold": UNTOLD, "astray": ASTRAY, "readmitted": READMITTED}


@pytest.mark.parametrize("text", HISTORIES.values(), ids=HISTORIES)
def test_the_living_agree(text: str) -> None:
    result = play(Scenario.parse(text), config=AS_FOUND)
    assert result.verdict is not None, result.violation
    assert result.verdict.outcome is Outcome.AGREED, result
