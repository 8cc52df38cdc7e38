from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

import pytest

from consensus.border import Activated, BoundaryRequest, Flushed, Freeze, Installed, Order, PeerProgress, Stalled, Stopped
from consensus.errors import JoinError, LeftError, StoppedError
from consensus.member import Member
from consensus.messages import Envelope, Nack
from consensus.progress import NOWHERE
from consensus.protocol.state.effects import Note
from consensus.protocol.state.inputs import Checked, Died, StoreChanged
from consensus.runtime.agent.clock import now
from consensus.runtime.agent.snapshot import Snapshot
from consensus.view import View

from .fake_core import PROGRESS, RecordingPlane, rig, until

VIEW = View(1, "", (Member("a" * 16, "127.0.0.1", 1),))


def refused(address: tuple[str, int]) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(address) != 0


async def test_effects_reach_the_data_plane_in_order() -> None:
    async with rig() as a:
        orders = [Freeze(2, 7), Installed(VIEW, {"a": b"report"}), Activated(VIEW), BoundaryRequest(True), Stalled(7, 2.0)]
        a.ask(*orders)
        assert a.plane.orders == orders


async def test_what_a_callback_says_is_heard_after_the_effects_before_it() -> None:
    class Answering(RecordingPlane):
        def handle(self, order: Order) -> None:
            super().handle(order)
            if isinstance(order, Freeze):
                a.agent.driver.handle(Flushed(order.epoch, b""))
            assert not a.core.told(Flushed)

    async def main() -> None:
        nonlocal a
        async with rig(plane=Answering()) as a:
            a.ask(Freeze(2, None), BoundaryRequest(False))
            assert a.plane.orders == [Freeze(2, None), BoundaryRequest(False)]
            assert a.core.told(Flushed)

    a: Any = None
    await main()


async def test_one_timer_follows_the_next_deadline() -> None:
    async with rig() as a:
        began = now()

        def arm(seconds: float) -> None:
            a.core.deadline = began + seconds
            a.ask()

        arm(5.0)
        arm(0.03)
        await until(lambda: a.core.named("tick"))
        assert 0.03 <= a.core.named("tick")[0][1] - began < 5.0
        assert a.core.progress == PROGRESS
        await asyncio.sleep(0.05)
        assert len(a.core.named("tick")) == 1  # no deadline, no timer
        arm(0.01)  # it lies in the past
        await until(lambda: len(a.core.named("tick")) == 2)


async def test_whatever_the_core_is_told_it_knows_first_what_the_data_plane_has_promised() -> None:
    """A proof may come by a check, a liveness connection or the data plane, not in a packet: it must not outrun that."""
    async with rig() as a:
        a.core.progress, seen = NOWHERE, []
        a.core.on_input = lambda _what: seen.append(a.core.progress)
        a.ask()
        assert seen == [PROGRESS]


async def test_snapshots_are_published_before_the_effects_and_only_when_they_differ() -> None:
    async with rig() as a:
        before = len(a.snapshots)
        a.ask()
        assert len(a.snapshots) == before
        a.core.known_view = a.core.installed_view = a.core.active_view = VIEW
        seen: list[Snapshot] = []
        a.plane.handle = lambda _order: seen.append(a.snapshots[-1])  # type: ignore[method-assign]
        a.ask(Activated(VIEW))
        assert seen == [Snapshot(VIEW, VIEW, VIEW)]
        assert a.snapshots[-1].confirmed
        a.core.changing = True
        a.ask()
        assert not a.snapshots[-1].confirmed


async def test_notes_are_logged_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with rig() as a:
            a.ask(*(Note(logging.INFO, "kind", f"text {index}") for index in range(600)))
            notes = a.agent.driver.status()["notes"]
            assert len(notes) == 500
            assert notes[-1]["text"] == "text 599"
            assert notes[-1]["level"] == "INFO"

    with caplog.at_level(logging.INFO, "ftlib.consensus"):
        await main()
    assert "kind: text 599" in caplog.text


@pytest.mark.parametrize("where", ["core", "plane"])
async def test_a_failure_ends_this_lifetime_and_is_said(where: str, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(RecordingPlane):
        def handle(self, order: Order) -> None:
            if isinstance(order, BoundaryRequest):
                raise ValueError("broken plane")  # noqa: TRY004
            super().handle(order)

    async def main() -> None:
        async with rig(plane=Failing()) as a:
            if where == "plane":
                a.ask(BoundaryRequest(True))
            else:
                a.core.on_input = lambda _what: 1 / 0
                a.ask()
            [stopped] = a.plane.orders
            assert isinstance(stopped, Stopped) and type(stopped.error) is StoppedError
            assert a.snapshots[-1].stopped is stopped.error
            inputs = len(a.core.inputs)
            a.ask(BoundaryRequest(False))
            assert len(a.core.inputs) == inputs
            await until(lambda: refused(a.member.address))

    await main()
    assert "ends this member's lifetime" in caplog.text


async def test_stopped_is_told_once() -> None:
    async with rig() as a:
        error = LeftError("done")
        a.ask(Stopped(error), Stopped(LeftError("again")))
        assert a.plane.orders == [Stopped(error)]
        assert a.agent.status()["stopped"] == "LeftError: done"


@pytest.mark.usefixtures("patient")
async def test_a_failed_join_says_what_was_found_at_the_introducers() -> None:
    async with rig("b" * 16, job="other") as b:
        other = f"127.0.0.1:{b.member.port}"
        async with rig("c" * 16) as gone:
            nobody = f"127.0.0.1:{gone.member.port}"
        async with rig("a" * 16, job="mine", introducers=(other, nobody)) as a:
            a.ask(Stopped(JoinError("no cluster in 1 s")))
            await until(lambda: a.plane.orders)
            [stopped] = a.plane.orders
            error = stopped.error  # type: ignore[union-attr]
            assert isinstance(error, JoinError)
            found = f"{other}: a member of job 'other', this is 'mine'; {nobody}: nobody listens there"
            assert str(error) == f"no cluster in 1 s ({found})"


async def test_where_others_are_does_not_wake_the_data_plane_for_every_ping() -> None:
    async with rig() as a:
        a.ask(PeerProgress("b", 3, 4))
        a.ask(PeerProgress("c", 3, 4))
        a.ask(PeerProgress("b", 4, 5))
        assert not a.plane.orders
        await until(lambda: a.plane.orders)
        assert a.plane.orders == [PeerProgress("b", 4, 5), PeerProgress("c", 3, 4)]
        a.ask(PeerProgress("b", 5, 6), Freeze(2, None))
        assert a.plane.orders[2:] == [PeerProgress("b", 5, 6), Freeze(2, None)], "it rides on what goes anyway"


async def test_held_it_plays_stopped() -> None:
    checked, died = Checked("b", True, ""), Died("it ended", StoppedError("it ended"))

    async with rig() as a:
        a.held = True
        driver = a.agent.driver
        driver.handle(checked)
        driver.receive(Envelope("default", "b" * 16, ("127.0.0.1", 9), Nack(1)))
        a.core.deadline = now()
        await asyncio.sleep(0.1)
        assert not a.core.inputs
        driver.handle(died, even_held=True)
        assert a.core.inputs == [checked, died]  # in order, and at once
        driver.handle(StoreChanged())
        a.held = False
        await until(lambda: a.core.told(StoreChanged))
        assert not a.core.named("receive")  # lost, as in a socket that nobody reads from
