"""A process that is in two jobs."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from ftlib import Channel, Collective, PeerLost
from tests.consensus.group import agree, members

from .test_groups import LIMIT


def test_a_process_in_two_jobs() -> None:
    """Names, groups and channels of one job are nothing to the other, and its end is not the other's."""
    with members(2) as first, members(2, job="other") as second, ExitStack() as stack:
        agree(first, 2)
        agree(second, 2)
        jobs = [[stack.enter_context(Collective(each)) for each in found] for found in (first, second)]
        groups = [[each.create_collective_group([m.member for m in found], "weights") for each in made] for made, found in
                  zip(jobs, (first, second), strict=True)]  # fmt: skip
        for number, (a, _) in enumerate(groups):
            a.send(number, async_op=True)
        assert [b.recv(timeout=LIMIT) for _, b in groups] == [0, 1]
        channels = [Channel(made[0], "q") for made in jobs]
        for number, channel in enumerate(channels):
            channel.put(number, timeout=LIMIT)
        far = [Channel(made[1], "q", at=made[0].here) for made in jobs]
        assert [channel.get(timeout=LIMIT) for channel in far] == [0, 1]
        first[0].stop()
        with pytest.raises(PeerLost):
            groups[0][1].recv(timeout=LIMIT)
        groups[1][0].send("it goes on", timeout=LIMIT)
        assert groups[1][1].recv(timeout=LIMIT) == "it goes on"
