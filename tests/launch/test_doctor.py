"""``ftlib doctor`` against members, things that are none, and networks that lose what they should carry."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from consensus import Config, Gossip, Home, format_address
from consensus.config import PROTOCOL_VERSION
from consensus.runtime.net.pings import TRIES, Pings
from consensus.tools.diagnosis import Diagnosis, Grade
from ftlib.cli.doctor.network import examine
from ftlib.cli.main import main
from ftlib.launch.processes.credentials import Credentials
from tests.consensus.peer import ROOT, spawn
from tests.harness.basics import TIMEOUT
from tests.harness.drip import dripping
from tests.harness.network import Host, Network, needs_filter, needs_network

PATIENT = 20.0
"""Seconds for an answer that comes at once where nothing else runs."""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """With datagrams too. Only what is lost takes so long."""
    monkeypatch.setattr("consensus.runtime.net.pings.WAIT", PATIENT / TRIES)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--timeout", str(PATIENT), *arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def found(address: str, *, job: str | None = None, timeout: float = PATIENT, bind: str = "") -> Diagnosis:
    [diagnosis] = examine(address, job=job, timeout=timeout, environment={"FTLIB_BIND": bind} if bind else {})
    assert "\n" not in diagnosis.verdict
    return diagnosis


def failed(diagnosis: Diagnosis) -> str:
    return next((check.name for check in diagnosis.checks if check.grade is Grade.BAD), "")


@contextmanager
def member(host: Host | None = None, bind: str = "127.0.0.1:0") -> Iterator[str]:
    gossip = Gossip(Config(job="training", bind=bind, agent=Home.THREAD, insecure=True))
    try:
        if host is None:
            gossip.start()
        else:
            with host.inside():
                gossip.start()
        yield format_address(gossip.member.address)
    finally:
        gossip.stop()


def test_all_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    with member() as address, member(bind="[::1]:0") as six:
        assert run(address, "--job", "training") == 0
        line = capsys.readouterr().out
        assert re.fullmatch(
            rf"{address}: all is well \(member \w{{6}} of job 'training', UDP passes both ways in [0-9.]+ ms\)\n", line
        )
        assert run(six, "--verbose") == 0
        names = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line[0] != " "]
        assert names[:-1] == ["route", "tcp", "identity", "clock", "version", "job", "secret", "udp", "mtu"]
        assert run(address.replace("127.0.0.1", "localhost"), "--json") == 0
        record = json.loads(capsys.readouterr().out)
        assert record["ok"] and record["targets"][0]["checks"][0]["found"] == "localhost is 127.0.0.1"


def test_nobody_a_mute_one_and_no_name() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        nobody = found(f"127.0.0.1:{bound.getsockname()[1]}")
        assert failed(nobody) == "tcp" and "nobody listens there: start the worker" in nobody.verdict
    with socket.create_server(("127.0.0.1", 0)) as mute:
        silent = found(f"127.0.0.1:{mute.getsockname()[1]}", timeout=2.0)
        assert failed(silent) == "identity" and "does not answer within 2 s: is that worker stopped" in silent.verdict
    unknown = found("no.such.host.invalid:7000")
    assert failed(unknown) == "name" and "cannot be resolved here" in unknown.verdict
    assert failed(found("[fe80::1]:7000")) == "route"
    assert failed(found("no..name:7000")) == "name"


def test_a_stopped_member() -> None:
    peer = spawn(job="training")
    try:
        assert found(peer.address).healthy
        peer.pause()
        for _ in range(20):  # its agent notices within 10 ms, perhaps only after it said who it is, and later on a busy machine
            stopped = found(peer.address, timeout=2.0)
            if "is that worker stopped (SIGSTOP" in stopped.verdict:
                break
        assert failed(stopped) == "identity" and "is that worker stopped (SIGSTOP" in stopped.verdict
    finally:
        peer.close()


@contextmanager
def answering(data: bytes) -> Iterator[str]:
    """A TCP server that says ``data`` to everybody and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for _ in range(2):
                with server.accept()[0] as client, contextlib.suppress(OSError):  # the first only connects
                    client.sendall(data)
                    client.shutdown(socket.SHUT_WR)
                    while client.recv(4096):
                        pass

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join(TIMEOUT)


@pytest.mark.parametrize(("data", "text"), [(b"", "it hangs up"), (b"SSH-2.0-x\r\n", "it speaks no HTTP")])
def test_something_else_listens(data: bytes, text: str) -> None:
    with answering(data) as address:
        other = found(address)
        assert failed(other) == "identity" and text in other.verdict


@pytest.mark.parametrize(
    ("head", "text"),
    [
        (b"HTTP/1.1 200 OK\r\nX-Slow: ", "but it does not answer within 0.5 s"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", "(status 200), but it is no member of ftlib"),
    ],
)
def test_an_answer_without_an_end_is_not_waited_for(head: bytes, text: str) -> None:
    with dripping(head) as address:
        other = found(address, timeout=0.5)
        assert failed(other) == "identity" and text in other.verdict


class Impostor(BaseHTTPRequestHandler):
    """Says at /identity what it is told, and has no UDP: at an address where no other test's socket can have its port."""

    said: ClassVar[dict[str, str]] = {}

    def do_GET(self) -> None:
        self.send_response_only(204)
        for name, value in self.said.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def impostor() -> Iterator[str]:
    with HTTPServer(("127.77.0.1", 0), Impostor) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"127.77.0.1:{server.server_port}"
        server.shutdown()
        thread.join(TIMEOUT)
    Impostor.said = {}


MEMBER = {"X-Ftlib-Member": "abcdef", "X-Ftlib-Job": "training", "X-Ftlib-Version": str(PROTOCOL_VERSION)}


def test_what_an_http_server_may_be(impostor: str) -> None:
    assert "but it is no member of ftlib: check the port" in found(impostor).verdict
    Impostor.said = {**MEMBER, "X-Ftlib-Version": "77"}
    other = found(impostor)
    assert failed(other) == "version"
    assert f"speaks protocol version 77, this ftlib {PROTOCOL_VERSION}: install the same" in other.verdict
    Impostor.said = MEMBER
    other = found(impostor, job="mine")
    assert failed(other) == "job" and "a member of job 'training', not of 'mine'" in other.verdict
    other = found(impostor)
    assert failed(other) == "udp" and "nobody listens at" in other.verdict and "forward UDP too" in other.verdict
    Impostor.said = {**MEMBER, "Date": formatdate(time.time() + 60, usegmt=True)}
    ahead = re.search(r"its clock is (\d+) s ahead of", str(found(impostor).checks[3]))
    assert ahead is not None and 40 <= int(ahead[1]) <= 61, "it says the same however long it is asked later"


def test_own_settings_that_cannot_work() -> None:
    with member() as address:
        assert found(address, bind="127.0.0.1:7000").healthy
    far = found("192.0.2.1:7000", timeout=0.1, bind="127.0.0.1:7000")
    assert failed(far) == "bind" and "FTLIB_BIND=127.0.0.1:7000 is loopback, which 192.0.2.1 cannot reach" in far.verdict


@pytest.mark.parametrize("arguments", [["nonsense"], ["127.0.0.1:0"], ["--listen", "nonsense"]])
def test_a_wrong_command_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_two_doctors() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "ftlib.cli.main", "doctor", "--listen", "127.0.0.1:0"],
        cwd=ROOT,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        heard = re.search(r"ftlib doctor (\S+)", process.stdout.readline())
        assert heard is not None and found(heard[1]).healthy
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT) == 0
    finally:
        process.kill()
        process.communicate()


BLOCKED = [
    ("input: udp dport 7001 drop", "udp", "UDP to {there}:7001 is dropped though TCP passes: open port 7001 for UDP"),
    ("output: meta l4proto udp drop", "udp", "UDP from {there} to 10.77.0.1 is dropped, the other way it passes"),
    ("input: meta l4proto udp drop\noutput: meta l4proto udp drop", "udp", "{there}:7001 is dropped either way though TCP"),
    ("input: udp dport 7001 reject", "udp", "nobody listens at {there}:7001 on UDP"),
    ("input: udp dport 7001 reject with icmp type host-prohibited", "udp", "UDP to {there}:7001 fails: No route to host"),
    ("input: udp length > 1000 drop", "mtu", "those of 1400 bytes do not (lost 4 times): give the whole path"),
    ("input: tcp dport 7001 drop", "tcp", "TCP to {there}:7001 is dropped (no answer within 5 s): open port 7001"),
    ("input: tcp dport 7001 reject with tcp reset", "tcp", "nobody listens there"),
    ("input: tcp dport 7001 reject with icmp type admin-prohibited", "tcp", "fails: No route to host"),
    ("", "", "all is well"),
]
"""At the host that is asked: rules, what fails, and what is said of it."""
HERE = [
    ("output: udp dport 7001 drop", "UDP to {there}:7001 fails: Operation not permitted: open port"),
    ("input: meta l4proto udp drop", "let UDP in at the firewall of this host"),  # it looks like the other's output
]
"""At the host that asks."""


def test_with_a_secret() -> None:
    """Everything is checked as without one; lacking it, or having another, is said."""
    secret, wrong = "the secret of this test", "another secret, long enough"
    gossip = Gossip(Config(job="training", agent=Home.THREAD, secret=secret))
    gossip.start()
    address = format_address(gossip.member.address)
    try:
        for given, text in ((secret, "all is well"), ("", "asks for the job's secret"), (wrong, "uses another secret")):
            environment = {"FTLIB_SECRET": given} if given else {}
            [diagnosis] = examine(address, job=None, timeout=PATIENT, environment=environment)
            assert text in diagnosis.verdict, diagnosis
            assert failed(diagnosis) == ("" if given == secret else "secret")
    finally:
        gossip.stop()


def test_the_secret_of_a_run_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    ours, other = Credentials("ours", {}), Credentials("other", {})
    gossip = Gossip(Config(job="training", agent=Home.THREAD, secret=ours.environment["FTLIB_SECRET"]))
    gossip.start()
    address = format_address(gossip.member.address)
    try:
        with other.kept():
            assert failed(found(address)) == "secret"
            with ours.kept():
                assert "all is well" in found(address).verdict
                [wrong] = examine(
                    address, job=None, timeout=PATIENT, environment={"FTLIB_SECRET": "another secret, long enough"}
                )
                assert failed(wrong) == "secret", "a secret that was given is not replaced"
    finally:
        gossip.stop()


def test_a_firewall_that_rejects_later_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The member still answers over TCP: it is not said to have gone."""

    def rejected(pings: Pings) -> bool:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(Pings, "exchange", lambda pings, size=0: None)
    monkeypatch.setattr(Pings, "introduced", rejected)
    with member() as address:
        diagnosis = found(address)
        assert failed(diagnosis) == "udp" and f"UDP to {address} fails: Operation not permitted" in diagnosis.verdict


@needs_network
@needs_filter
def test_between_two_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way to be blocked is at a host of its own, and all are asked at once."""
    monkeypatch.setattr("consensus.runtime.net.pings.WAIT", 1.0)
    places, asks = len(BLOCKED), 1 + len(HERE)
    with Network(asks + places) as hosts, contextlib.ExitStack() as stack, ThreadPoolExecutor(2 * places) as pool:
        (here, *odd), others = hosts[:asks], hosts[asks:]
        addresses = [stack.enter_context(member(there, f"{there.v4}:7001")) for there in others]

        def ask(asking: Host, address: str, timeout: float = 5.0) -> Future[Diagnosis]:
            def inside() -> Diagnosis:
                with asking.inside():
                    return found(address, timeout=timeout)

            return pool.submit(inside)

        for host, (rules, *_) in zip([*others, *odd], [*BLOCKED, *HERE], strict=True):
            host.block(rules)
        asked = [ask(here, address) for address in addresses]
        asked_oddly = [ask(asking, addresses[-1]) for asking in odd]
        elsewhere, nobody = ask(here, "10.99.0.1:7001"), ask(here, "10.77.0.99:7001", 0.2)

        for there, (rules, name, text), asking in zip(others, BLOCKED, asked, strict=True):
            diagnosis = asking.result(TIMEOUT)
            assert failed(diagnosis) == name and text.format(there=there.v4) in diagnosis.verdict, (rules, diagnosis)
        assert diagnosis.checks[0].found == f"from {here.v4} on eth0 (MTU 1500)", "where nothing is blocked"
        for (rules, text), asking in zip(HERE, asked_oddly, strict=True):
            diagnosis = asking.result(TIMEOUT)
            assert text.format(there=others[-1].v4) in diagnosis.verdict, (rules, diagnosis)
        assert "this host has no way to 10.99.0.1" in elsewhere.result(TIMEOUT).verdict
        assert failed(nobody.result(TIMEOUT)) == "tcp"
