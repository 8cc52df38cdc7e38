"""The secrets of the tests' members, and what a member says that it threw away for want of one."""

from __future__ import annotations

from collections.abc import Mapping

from consensus import Gossip, KeyRing

SECRET = "a secret of these tests"
OTHER = "another secret, also long enough"
RING = KeyRing([SECRET])


def dropped(member: Gossip) -> Mapping[str, int]:
    return {kind: entry["messages"] for kind, entry in member.status()["messages"]["dropped"].items()}
