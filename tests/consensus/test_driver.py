from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from consensus.errors import ConsensusError, JoinError, LeftError, StoppedError
from consensus.member import Member
from consensus.messages import Envelope, Nack
from consensus.progress import NOWHERE
from consensus.protocol.effects import Activated, Freeze, Installed, Note, PeerProgress, Stopped, Wish
from consensus.runtime.background import Background
from consensus.runtime.clock import now
from consensus.runtime.snapshot import Snapshot
from consensus.view import View

from .fake_core import PROGRESS, RecordingPlane, rig, until

VIEW = View(1, "", (Member("a" * 16, "127.0.0.1", 1),))


def refused(address: tuple[str, int]) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(address) != 0


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(main())


def test_effects_reach_the_data_plane_in_order() -> None:
    async def main() -> None:
        async with rig() as a:
            a.ask(
                Freeze(2, 7),
                Installed(VIEW, {"a": b"report"}),
                Activated(VIEW),
                Wish(True),
                PeerProgress("b", 3, 4),
            )
            assert a.plane.calls == [
                ("freeze", 2, 7),
                ("install", VIEW, {"a": b"report"}),
                ("activate", VIEW),
                ("wish", True),
                ("peer_progress", "b", 3, 4),
            ]

    run(main)


def test_what_a_callback_says_is_heard_after_the_effects_before_it() -> None:
    class Answering(RecordingPlane):
        def freeze(self, epoch: int, after_call: int | None) -> None:
            self.calls.append(("freeze", epoch))
            a.agent.driver.perform(lambda at: a.core.flushed(epoch, b"", at))
            assert not a.core.named("flushed")

    async def main() -> None:
        nonlocal a
        async with rig(plane=Answering()) as a:
            a.ask(Freeze(2, None), Wish(False))
            assert a.plane.calls == [("freeze", 2), ("wish", False)]
            assert a.core.named("flushed")

    a: Any = None
    run(main)


def test_one_timer_follows_the_next_deadline() -> None:
    async def main() -> None:
        async with rig() as a:
            began = now()

            def arm(seconds: float) -> None:
                a.agent.driver.perform(lambda _at: setattr(a.core, "deadline", began + seconds))

            arm(5.0)
            arm(0.03)
            await until(lambda: a.core.named("tick"))
            assert 0.03 <= a.core.named("tick")[0][1] - began < 5.0
            assert a.core.progress == PROGRESS
            await asyncio.sleep(0.05)
            assert len(a.core.named("tick")) == 1  # no deadline, no timer
            arm(0.01)  # it lies in the past
            await until(lambda: len(a.core.named("tick")) == 2)

    run(main)


def test_whatever_the_core_is_told_it_knows_first_what_the_data_plane_has_promised() -> None:
    """A proof may come by a check, a tether or the data plane's own words, and not in a packet: it must not outrun that."""

    async def main() -> None:
        async with rig() as a:
            a.core.progress, seen = NOWHERE, []
            a.agent.driver.perform(lambda _now: seen.append(a.core.progress))
            assert seen == [PROGRESS]

    run(main)


def test_snapshots_are_published_before_the_effects_and_only_when_they_differ() -> None:
    async def main() -> None:
        async with rig() as a:
            before = len(a.snapshots)
            a.ask()
            assert len(a.snapshots) == before
            a.core.known_view = a.core.installed_view = a.core.active_view = VIEW
            a.plane.activate = lambda view: a.plane.calls.append(a.snapshots[-1])  # type: ignore[attr-defined]
            a.ask(Activated(VIEW))
            assert a.plane.calls == [Snapshot(VIEW, VIEW, VIEW)]
            assert a.snapshots[-1].confirmed
            a.core.changing = True
            a.ask()
            assert not a.snapshots[-1].confirmed

    run(main)


def test_notes_are_logged_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with rig() as a:
            a.ask(*(Note(logging.INFO, "kind", f"text {index}") for index in range(600)))
            notes = a.agent.driver.status()["notes"]
            assert len(notes) == 500
            assert notes[-1]["text"] == "text 599"
            assert notes[-1]["level"] == "INFO"

    with caplog.at_level(logging.INFO, "ftlib.consensus"):
        run(main)
    assert "kind: text 599" in caplog.text


@pytest.mark.parametrize("where", ["core", "plane"])
def test_a_failure_ends_this_lifetime_and_is_said(where: str, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(RecordingPlane):
        def wish(self, wanted: bool) -> None:
            raise ValueError("broken plane")

    async def main() -> None:
        async with rig(plane=Failing()) as a:
            if where == "plane":
                a.ask(Wish(True))
            else:
                a.agent.driver.perform(lambda at: 1 / 0)
            [(name, error)] = a.plane.calls
            assert (name, type(error)) == ("stopped", StoppedError)
            assert a.snapshots[-1].stopped is error
            calls = len(a.core.calls)
            a.ask(Wish(False))
            assert len(a.core.calls) == calls
            await until(lambda: refused(a.member.address))

    run(main)
    assert "ends this member's lifetime" in caplog.text


def test_stopped_is_told_once() -> None:
    async def main() -> None:
        async with rig() as a:
            error = LeftError("done")
            a.ask(Stopped(error), Stopped(LeftError("again")))
            assert a.plane.calls == [("stopped", error)]
            assert a.agent.status()["stopped"] == "LeftError: done"

    run(main)


@pytest.mark.usefixtures("patient")
def test_a_failed_join_says_what_was_found_at_the_introducers() -> None:
    async def main() -> None:
        async with rig("b" * 16, job="other") as b:
            other = f"127.0.0.1:{b.member.port}"
            async with rig("c" * 16) as gone:
                nobody = f"127.0.0.1:{gone.member.port}"
            async with rig("a" * 16, job="mine", introducers=(other, nobody)) as a:
                a.ask(Stopped(JoinError("no cluster in 1 s")))
                await until(lambda: a.plane.calls)
                [(_, error)] = a.plane.calls
                assert isinstance(error, JoinError)
                found = f"{other}: a member of job 'other', this is 'mine'; {nobody}: nobody listens there"
                assert str(error) == f"no cluster in 1 s ({found})"

    run(main)


class TestBackground:
    def test_calls_and_stops(self) -> None:
        background = Background("test", lambda error: None)
        background.start()

        async def here() -> bool:
            return background.here()

        assert background.call(here(), 20)
        assert not background.here()
        with pytest.raises(TimeoutError):
            background.call(asyncio.sleep(5), 0.05)
        background.stop()
        background.stop()
        assert not background.running
        assert not background.post(print)
        with pytest.raises(ConsensusError):
            background.call(here(), 1)

    def test_one_that_was_never_started_can_be_stopped(self) -> None:
        Background("test", lambda error: None).stop()

    def test_a_failing_loop_is_told(self) -> None:
        failed: list[BaseException] = []
        told = threading.Event()

        def fail(error: BaseException) -> None:
            failed.append(error)
            told.set()

        background = Background("test", fail)
        background.start()

        def crash() -> None:
            raise SystemExit("out of a callback")

        background.post(crash)
        assert told.wait(20)
        assert isinstance(failed[0], SystemExit)
        deadline = time.monotonic() + 20
        while background.running and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not background.running


def test_held_it_plays_stopped() -> None:
    async def main() -> None:
        async with rig() as a:
            before = len(a.core.calls)
            a.held = True
            driver = a.agent.driver
            driver.perform(lambda _at: a.core.calls.append(("checked",)))
            driver.receive(Envelope("default", "b" * 16, ("127.0.0.1", 9), Nack(1)))
            driver.perform(lambda _at: setattr(a.core, "deadline", now()))
            await asyncio.sleep(0.1)
            assert len(a.core.calls) == before
            driver.perform(lambda _at: a.core.calls.append(("died",)), even_held=True)
            assert a.core.calls[before:] == [("checked",), ("died",)]  # in order, and at once
            driver.perform(lambda _at: a.core.calls.append(("later",)))
            a.held = False
            await until(lambda: ("later",) in a.core.calls)
            assert not a.core.named("receive")  # lost, as in a socket that nobody reads from

    run(main)
