"""A change that waits for the end of a call, and somebody who never ends it: the others do not wait for that."""

from __future__ import annotations

import pytest

from consensus.border import Boundary, Freeze, Order
from consensus.config import Config
from consensus.progress import Progress
from consensus.simulation import Host

from ..transcripts.script import agree, start_job

ENDS = 17


def held(host: Host) -> list[int | None]:
    """It is inside call ``ENDS``, which waits for the last bytes of somebody: what it was asked to freeze after."""
    asked: list[int | None] = []
    handle = host.plane.handle

    def only_at_once(order: Order) -> None:
        if isinstance(order, Freeze):
            asked.append(order.after_call)
            if order.after_call is not None:
                return
        handle(order)

    host.plane.handle = only_at_once  # type: ignore[method-assign]
    return asked


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize("dies", [True, False])
def test_who_is_gone_within_the_last_call_is_not_waited_for(size: int, dies: bool) -> None:
    """Of four the view is chosen without the one that waits; of three it is not even that."""
    world, members = start_job(size, config=Config(boundary_wait=30.0))
    *_, waiting, gone = members
    for host in members:
        host.machine.set_progress(Progress(ENDS - 1, ENDS))
    joiner = world.start("j", introducers=(members[0].name,))
    world.run_until(lambda: members[0].boundary_requested, 1.0)
    asked = held(waiting)
    ended = [host for host in members if host not in (waiting, gone)]
    (world.kill if dies else world.pause)(gone)
    for host in ended:
        host.machine.set_progress(Progress(ENDS, 0))
        world.inside(host, lambda host=host: host.machine.handle(Boundary(ENDS, ()), world.now))  # type: ignore[misc]
    there = [*ended, waiting]
    world.run_until(lambda: all(host.activated[-1].epoch > 1 and gone.id not in host.activated[-1] for host in there), 10.0)
    assert None in asked
    agree(world, [*there, joiner])
