"""The hosts that one can log in to, with plain ``ssh``: what the launcher's tests stand on."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.basics import TIMEOUT, eventually
from tests.harness.logins import ONLY_SSH, Logins, needs_sshd
from tests.harness.network import Network, needs_bridge_filter, needs_network

pytestmark = [needs_network, needs_bridge_filter, needs_sshd, pytest.mark.process, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    network = Network(4)
    with network:
        yield network


@pytest.fixture(scope="module")
def secluded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that h4 does not have."""
    folder = tmp_path_factory.mktemp("secluded")
    (folder / "here").touch()
    return folder


@pytest.fixture(scope="module")
def logins(network: Network, secluded: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logins]:
    with Logins(tmp_path_factory.mktemp("logins"), network.hosts, noise=[3], hidden={4: secluded}) as logins:
        yield logins


def test_each_host_has_a_name_of_its_own(logins: Logins) -> None:
    assert [logins.run(name, "hostname").stdout.splitlines()[-1] for name in ("h2", "h4")] == ["h2", "h4"]
    assert socket.gethostname() not in logins.names
    assert logins.run("h2", "getent hosts h3").stdout.split() == [logins.hosts["h3"].v4, "h3"]


def test_exit_codes_and_streams_come_back(logins: Logins) -> None:
    done = logins.run("h2", "echo out; echo err >&2; exit 7")
    assert (done.stdout, done.stderr, done.returncode) == ("out\n", "err\n", 7)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("h2-stranger", "Permission denied"),
        ("h2-unknown", "Host key verification failed"),
        ("h2-changed", "REMOTE HOST IDENTIFICATION HAS CHANGED"),
    ],
)
def test_a_way_in_that_is_shut(logins: Logins, name: str, words: str) -> None:
    done = logins.run(name, "true")
    assert done.returncode == 255
    assert words in done.stderr


def test_noise_comes_before_the_command(logins: Logins) -> None:
    done = logins.run("h3", "echo done")
    assert done.stdout.startswith("Welcome") and done.stdout.endswith("enddone\n")
    assert done.stderr == "and with errors\n"


def test_a_jump_host_leads_where_the_caller_cannot_go(logins: Logins, network: Network) -> None:
    network.split([logins.caller], [logins.hosts["h4"]])
    try:
        assert logins.run("h4-by-h2", "hostname").stdout == "h4\n"
        assert logins.run("h4", "hostname", options=["ConnectTimeout=3"]).returncode == 255
    finally:
        network.heal()


def test_a_folder_is_missing_at_one_host(logins: Logins, secluded: Path) -> None:
    assert logins.run("h2", f"ls {secluded}").stdout == "here\n"
    assert logins.run("h4", f"ls {secluded}").stdout == ""
    assert (secluded / "here").exists()


def test_only_ssh_passes(logins: Logins) -> None:
    host = logins.hosts["h2"]
    with host.inside(), socket.create_server((host.v4, 0)) as server:
        address = server.getsockname()

        def reached() -> bool:
            with contextlib.suppress(TimeoutError), logins.caller.inside():
                socket.create_connection(address, timeout=0.3).close()
                return True
            return False

        eventually(reached, "a busy machine may take longer")
        host.block(ONLY_SSH)
        try:
            assert not reached()
            own = f"bash -c 'exec 3<>/dev/tcp/{address[0]}/{address[1]} && hostname'"
            assert logins.run("h2", own).stdout == "h2\n", "the host itself gets there"
        finally:
            host.block("")
        eventually(reached, "the block is gone")


def test_a_host_is_cut_off_and_heals(logins: Logins, network: Network) -> None:
    line = logins.command("h2", "echo in; exec cat", options=("ServerAliveInterval=1", "ServerAliveCountMax=2"))
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as login:
        assert login.stdin is not None and login.stdout is not None
        assert login.stdout.readline() == b"in\n"
        network.isolate(logins.hosts["h2"])
        began = time.monotonic()
        try:
            assert login.wait(TIMEOUT) == 255
            assert time.monotonic() - began > 1.0, "not at once: nobody tells it"
            assert "cat" in logins.processes("h2").values(), "nobody told that host either"
        finally:
            network.heal()
    assert logins.run("h2", "hostname").stdout == "h2\n"


def test_an_sshd_that_ends_takes_its_logins_along(logins: Logins) -> None:
    with subprocess.Popen(logins.command("h2", "exec sleep 300"), stdin=subprocess.DEVNULL) as login:
        eventually(lambda: "sleep 300" in logins.processes("h2").values(), logins.processes("h2"))
        logins.stop("h2")
        assert login.wait(TIMEOUT) == 255
    assert "sleep 300" not in logins.processes("h2").values()
    assert logins.run("h2", "true").returncode == 255
    logins.start("h2")
    assert logins.run("h2", "hostname").stdout == "h2\n"
