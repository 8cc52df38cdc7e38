"""The agent's HTTP side comes up beside its start: what needs it waits, and what does not goes on."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import aiohttp
import pytest

from consensus import Config, ConfigError, Gossip, Home
from consensus.messages import Accepted, Message, Nack
from consensus.protocol.effects import Send
from consensus.runtime import web

from .fake_core import Rig, rig, until
from .test_gossip import TIMEOUT, eventually

BIG = Accepted(1, "parent", (0, "a"), bytes(300_000))
"""Too large for a datagram."""


def imported(statement: str) -> set[str]:
    """The packages that come with it, in a new interpreter."""
    code = f"{statement}; import sys; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("module", ["child", "process_host"])
def test_no_http_library_is_waited_for(module: str) -> None:
    found = imported(f"import consensus.runtime.{module}")
    assert "consensus" in found
    assert not found & {"aiohttp", "torch", "prometheus_client", "email"}


def test_datagrams_are_answered_before_and_the_rest_afterwards() -> None:
    async def main() -> None:
        released = threading.Event()

        def prepare() -> None:
            assert released.wait(TIMEOUT)
            web.load()

        async with rig("b" * 16) as b, rig("a" * 16, load_http=prepare) as a:
            asked = asyncio.create_task(_status(a.member.port))
            a.ask(Send(b.member.address, BIG), Send(b.member.address, Nack(1)))
            await until(lambda: b.core.named("receive"))
            assert received(b) == [Nack(1)] and not asked.done()
            released.set()
            await until(lambda: len(received(b)) == 2)
            assert received(b) == [Nack(1), BIG]
            assert await asked == 200

    asyncio.run(main())


def received(rig: Rig) -> list[Message]:
    return [message for _, _, _, message in rig.core.named("receive")]


async def _status(port: int) -> int:
    limit = aiohttp.ClientTimeout(total=TIMEOUT)
    async with aiohttp.ClientSession(timeout=limit) as session, session.get(f"http://127.0.0.1:{port}/status") as response:
        return response.status


def test_an_agent_that_ends_before_refuses_connections() -> None:
    async def main() -> None:
        released = threading.Event()

        def prepare() -> None:
            released.wait(TIMEOUT)

        async with rig(load_http=prepare) as a:
            address = a.member.address
        released.set()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=TIMEOUT)

    asyncio.run(main())


def test_without_http_a_lifetime_ends() -> None:
    async def main() -> None:
        def broken() -> None:
            raise ModuleNotFoundError("No module named 'aiohttp'")

        async with rig(load_http=broken) as a:
            await until(lambda: a.core.named("die"))
            [(_, text, *_)] = a.core.named("die")
            assert text == "the agent cannot answer HTTP: ModuleNotFoundError: No module named 'aiohttp'"
            assert any(call[0] == "stopped" for call in a.plane.calls)

    asyncio.run(main())


def test_the_environment_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[ssl.DefaultVerifyPaths] = []
    monkeypatch.setattr(web, "load", lambda: seen.append(ssl.get_default_verify_paths()))
    monkeypatch.setenv("SSL_CERT_FILE", "/mine")
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    web.load_alone()
    assert [(paths.cafile, paths.capath) for paths in seen] == [(None, None)]
    assert os.environ["SSL_CERT_FILE"] == "/mine"
    assert "SSL_CERT_DIR" not in os.environ


@pytest.mark.process
def test_what_was_only_bound_is_given_back() -> None:
    member = Gossip(Config(job="test"))
    member.bind()
    place = member._begun
    assert place is not None
    pid = place.pid  # type: ignore[attr-defined]
    assert Path(f"/proc/{pid}").exists()
    member.stop()
    eventually(lambda: not Path(f"/proc/{pid}").exists(), "its agent's process is gone")


@pytest.mark.process
def test_no_process_is_left_where_nothing_can_be_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    popen = subprocess.Popen

    def noted(*args: object, **options: object) -> subprocess.Popen[bytes]:
        begun.append((process := popen(*args, **options)).pid)  # type: ignore[call-overload]
        return process  # type: ignore[no-any-return]

    monkeypatch.setattr(subprocess, "Popen", noted)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        member = Gossip(Config(job="test", agent=Home.PROCESS, bind=f"127.0.0.1:{taken.getsockname()[1]}"))
        with pytest.raises(ConfigError, match="in use"):
            member.bind()
    [pid] = begun
    eventually(lambda: not Path(f"/proc/{pid}").exists(), "its agent's process is gone")
