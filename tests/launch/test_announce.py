"""What workers tell the launcher: under the key that it has by then, and a refusal is said once."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from consensus import KeyRing
from ftlib.launch.processes import endpoint
from ftlib.launch.processes.process import Fate
from ftlib.launch.processes.sockets import HOST, listen
from ftlib.lifecycle.supervisor_client import announce, ask_again
from tests.ftlib.crews.workers import TIMEOUT, Job

OLD, NEW = "the secret of before", "the secret of now, another one"


class Listening:
    """A launcher that only listens."""

    job = "default"

    def __init__(self, *secrets: str) -> None:
        self.ring = KeyRing(secrets)
        self.heard: list[str] = []

    async def fence(self, pid: int, member: str, reason: str, by: str) -> Fate:
        raise AssertionError((pid, member, reason, by))

    def announced(self, pid: int, member: str, address: str, epoch: int) -> bool:
        self.heard.append(f"{pid} {member} {address} {epoch}")
        return True

    def wanted_again(self, pid: int) -> bool:
        self.heard.append(f"again {pid}")
        return True

    def report(self) -> dict[str, Any]:
        return {}


def serving(launcher: Listening, use: Callable[[str], None]) -> None:
    """``use`` its endpoint's address on another thread."""

    async def main() -> None:
        listener = listen()
        runner = await endpoint.serve(launcher, listener)
        try:
            await asyncio.to_thread(use, f"{HOST}:{listener.getsockname()[1]}")
        finally:
            await runner.cleanup()

    asyncio.run(main())


def keep(path: Path, *secrets: str) -> None:
    part = path.with_suffix(".part")
    part.touch(0o600)
    part.write_text("\n".join(secrets))
    part.replace(path)


def heard(launcher: Listening, count: int) -> None:
    deadline = time.monotonic() + TIMEOUT
    while len(launcher.heard) < count:
        assert time.monotonic() < deadline, launcher.heard
        time.sleep(0.005)


def test_they_follow_the_rotated_key(tmp_path: Path) -> None:
    path, launcher, started, over = tmp_path / "secret", Listening(OLD), threading.Event(), threading.Event()
    keep(path, OLD)

    def use(address: str) -> None:
        with Job(1, secret_file=str(path)) as job:
            worker = job.start("w0", lambda _: started.set() or over.wait(TIMEOUT))
            assert started.wait(TIMEOUT)
            ft, view = worker.ft, worker.ft.view
            assert view is not None
            life = ft._lives.life
            settings = replace(ft.settings, supervisor=address)  # comes by the environment alone
            life._means = replace(life._means, settings=settings)
            life._activated(view)
            heard(launcher, 1)
            keep(path, NEW)
            launcher.ring = KeyRing([NEW])
            life._activated(view)
            heard(launcher, 2)
            over.set()
            worker.join()

    serving(launcher, use)
    assert launcher.heard[0] == launcher.heard[1]


def test_a_refusal_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    launcher = Listening(NEW)

    def use(address: str) -> None:
        facts: dict[str, Any] = {"job": "default", "member": "m", "address": "127.0.0.1:1"}
        assert announce(address, KeyRing([NEW]).first.vouch, **facts, epoch=1)
        for epoch in (2, 3):
            assert not announce(address, KeyRing([OLD]).first.vouch, **facts, epoch=epoch)

    with caplog.at_level(logging.INFO, "ftlib"):
        serving(launcher, use)
    [line] = caplog.messages
    assert "does not believe this worker" in line
    assert "another secret" in line
    assert "FTLIB_SECRET_FILE" in line
    assert len(launcher.heard) == 1


def test_to_be_started_again_takes_the_secret() -> None:
    launcher = Listening(NEW)

    def use(address: str) -> None:
        assert not ask_again(address, KeyRing([OLD]).first.vouch, job="default", member="m")
        assert not ask_again(address, KeyRing([NEW]).first.vouch, job="another", member="m")
        assert not launcher.heard
        assert ask_again(address, KeyRing([NEW]).first.vouch, job="default", member="m")

    serving(launcher, use)
    assert launcher.heard == [f"again {os.getpid()}"]
    assert not ask_again(f"{HOST}:1", KeyRing([NEW]).first.vouch, job="default", member="m", timeout=1.0), "nobody there"
