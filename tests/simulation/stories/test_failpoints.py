"""A view change in which somebody dies at each of its messages, right before or right after: the others agree all the same."""

from __future__ import annotations

import pytest

from consensus.simulation import Event, Outcome, Scenario, play

KINDS = (
    "Evidence",
    "Accept",
    "Accepted",
    "FlushRequest",
    "FlushReply",
    "Install",
    "Ready",
    "Activate",
    "Chosen",
    "Prepare",
    "Promise",
)
REASONS = {
    "crash": ("1.002 kill m3",),
    "the senior's crash": ("1.002 kill m0",),
    "leave": ("1.002 leave m2",),
    "join": ("1.002 start j0 m1 m2",),
    "two at once": ("1.002 kill m4", "1.003 kill m2"),
}


@pytest.mark.parametrize("reason", REASONS)
def test_whoever_dies_at_whatever_message(reason: str) -> None:
    sprung = 0
    for kind in KINDS:
        for count in (1, 2, 4):
            for when in ("before", "after"):
                events = (Event(1.001, "trap", ("any", kind, str(count), when)), *map(Event.parse, REASONS[reason]))
                result = play(Scenario(seed=count, size=5, rest=1.3, events=events))
                assert result.verdict is not None and result.verdict.outcome is Outcome.AGREED, f"{result}\n{result.scenario}"
                dead = [host for host in result.world.hosts.values() if not host.alive]
                sprung += len(dead) > sum("kill" in line for line in REASONS[reason])
    assert sprung >= 12, "most of these messages are sent in such a change"
