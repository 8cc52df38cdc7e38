"""What a plane keeps of the other members' pings, and of the members that were lost."""

from __future__ import annotations

import math

from ftlib.core.plane.progress import Peers


def test_a_place_has_the_time_of_its_last_change() -> None:
    peers = Peers()
    for now, place in enumerate([(3, 0), (3, 4), (3, 4)]):
        peers.note("b", place, float(now))
    assert (peers.places, peers.changes) == ({"b": (3, 4)}, {"b": 1.0})


def test_steps_on_their_own_have_the_time_of_the_newest_one() -> None:
    """Whoever has done none is not noted: nobody waits longer because of it."""
    peers = Peers()
    assert peers.stepped == -math.inf
    for member, inner, now in (("b", 0, 1.0), ("c", 1, 2.0), ("c", 1, 3.0)):
        peers.note(member, (3, 4), now, inner)
    assert (peers.inner, peers.stepped) == ({"c": (1, 2.0)}, 2.0)
    peers.note("b", (3, 4), 4.0, 1)
    peers.note("c", (3, 4), 5.0, 1)
    assert peers.stepped == 4.0
    peers.note("c", (3, 4), 6.0, 2)
    assert (peers.inner, peers.stepped) == ({"b": (1, 4.0), "c": (2, 6.0)}, 6.0)


def test_who_is_not_in_the_view_is_forgotten() -> None:
    """A donor that still waited for the dead would never let go; a member that comes back begins anew."""
    peers = Peers()
    for member in "bc":
        peers.note(member, (3, 4), 1.0, 2)
    peers.keep(("a", "c"))
    assert (peers.places, peers.changes, peers.inner) == ({"c": (3, 4)}, {"c": 1.0}, {"c": (2, 1.0)})


def test_who_was_lost_is_missed_until_somebody_comes_in_its_place() -> None:
    """The first to be lost is replaced first."""
    peers = Peers()
    assert not peers.lost_since(0.0)
    peers.changed(lost=1, joined=0, now=5.0)
    assert peers.lost_since(4.0) and not peers.lost_since(5.0)
    peers.changed(lost=2, joined=0, now=7.0)
    peers.changed(lost=0, joined=2, now=8.0)
    assert peers.lost_since(6.0)
    peers.changed(lost=0, joined=1, now=9.0)
    assert not peers.lost_since(0.0)
