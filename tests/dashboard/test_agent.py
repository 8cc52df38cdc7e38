"""The page that the agent of each member serves, against a real job: who is let in, what is shown, which orders are taken."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

import psutil
import pytest

from consensus import Config, Gossip, KeyRing, Mount, format_address
from ftlib.cli.dashboard import link
from ftlib.cli.status import fetch_status
from ftlib.errors import FTLibError
from tests.harness.basics import TIMEOUT, eventually
from tests.harness.nursery import Nursery
from tests.harness.program import ROOT
from tests.launch.helpers import SECRET, Run, command, environment, forked, running
from tests.launch.test_orders import TRAINS

pytestmark = pytest.mark.process
LIGHT = """
import os, signal, sys, time
from consensus import Gossip, KeyRing, format_address
from ftlib.lifecycle.supervisor_client import announce
from ftlib.settings.config import resolve

settings = resolve({}, environment=os.environ, backend=Gossip)
member = Gossip(settings.consensus)
member.start(meta={"name": settings.name, "pid": str(os.getpid()), "supervisor": settings.supervisor})
while member.view is None:
    if member.stopped is not None:
        sys.exit(str(member.stopped))
    time.sleep(0.01)
address = format_address(member.member.address)
print(address, flush=True)
if settings.supervisor:
    vouch = KeyRing([os.environ["FTLIB_SECRET"]]).first.vouch
    facts = {"job": settings.consensus.job, "member": member.member.id, "address": address}
    announce(settings.supervisor, vouch, **facts, epoch=member.view.epoch, timeout=60.0)
signal.pause()
"""
"""A member that trains nothing: it starts in a tenth of the time."""
PATIENT = {"FTLIB_EXCLUDE_AFTER": "60"}
"""On a busy machine a worker may be away for seconds: nobody is to be taken for silent here, and killed for it."""
RING = KeyRing([SECRET])
TOKEN = RING.first.bearer(Mount.PURPOSE)


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


class Browser:
    """As much of one as is needed: it keeps cookies, and sends the headers that a page would."""

    def __init__(self, address: str, host: str = "") -> None:
        self.address = address
        self.base = f"http://{address}/dashboard"
        self._jar = CookieJar()
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self._jar), NoRedirect())

    def ask(self, path: str = "", body: Any = None, **headers: str) -> tuple[int, str, Any]:
        data = None if body is None else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(f"{self.base}{path}", data, named)
        try:
            with self._opener.open(request, timeout=60) as answer:
                return answer.status, answer.read().decode(), answer.headers
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode(), error.headers

    def enter(self, token: str = TOKEN) -> int:
        return self.ask(f"?token={token}")[0]

    def order(self, kind: str, member: str, epoch: int, key: str, origin: str | None = None) -> tuple[int, str]:
        body = {"kind": kind, "member": member, "epoch": epoch, "key": key}
        code, text, _ = self.ask("/order", body, Origin=f"http://{self.address}" if origin is None else origin)
        return code, text

    def snapshot(self) -> dict[str, Any]:
        """The first event of the stream."""
        request = urllib.request.Request(f"{self.base}/events")
        with self._opener.open(request, timeout=60) as answer:
            kind, began = b"", time.monotonic()
            for line in answer:
                assert time.monotonic() - began < TIMEOUT, f"no snapshot: {line!r}"
                if line.startswith(b"data: ") and kind == b"event: snapshot\n":
                    return dict(json.loads(line[6:]))
                kind = line
        raise AssertionError("the stream ended")


def own_address() -> str:
    """One of this host that is not loopback: there a browser takes a page for one that came over a network."""
    found = [each.address for name, there in psutil.net_if_addrs().items() if name != "lo" for each in there]
    outside = next((each for each in found if each.count(".") == 3), None)
    if outside is None:
        pytest.skip("this machine has loopback alone")
    return outside


def addresses(launched: Run, count: int) -> list[str]:
    """Where the workers answer, by their number; once all are in one view."""

    def found() -> list[str]:
        workers = {event["pid"]: int(event["worker"]) for event in launched.events("started")}
        there = {workers[event["pid"]]: str(event["address"]) for event in launched.events("announced")}
        return [there[worker] for worker in sorted(there)]

    def together() -> bool:
        try:
            return len(there := found()) == count == len(fetch_status(there[0], 30.0, [RING])["members"])
        except FTLibError:
            return False

    eventually(together, lambda: f"all are in the view: {launched.events()}")
    return found()


def test_a_page_at_every_agent(nursery: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FTLIB_SECRET", SECRET)
    with forked(nursery, tmp_path, "-n", 2, script=TRAINS, **PATIENT) as launched:
        zero, one = addresses(launched, 2)
        port = zero.rpartition(":")[2]
        assert link(zero) == link(f"127.1:{port}") == f"http://{zero}/dashboard?token={TOKEN}", "a name becomes an address"
        assert link(f"localhost:{port}") == f"http://localhost:{port}/dashboard?token={TOKEN}"
        browser = Browser(zero)

        # Nobody is let in without the token, and nothing that looks like it is one.
        assert browser.ask()[0] == 401
        assert browser.ask("/events")[0] == 401
        assert browser.enter("") == browser.enter("wrong") == browser.enter(RING.first.bearer("metrics")) == 401
        assert browser.ask("/events", Cookie="ftlib_x_1=; ftlib=1")[0] == 401
        code, _, headers = browser.ask(f"?token={TOKEN}")
        assert (code, headers["Location"]) == (303, "/dashboard")
        cookie = headers["Set-Cookie"]
        assert all(word in cookie for word in ("HttpOnly", "SameSite=Strict", "Path=/dashboard", "ftlib_job-"))
        assert TOKEN not in cookie
        code, text, headers = browser.ask()
        assert code == 200
        assert 'BASE = "/dashboard"' in text
        assert headers["Content-Security-Policy"].startswith("default-src 'none'")

        # A name that leads here and a foreign page are refused even with the cookie; what is no name is as well.
        assert browser.ask(Host="[")[0] == browser.ask(Host="[::1")[0] == 403
        assert browser.ask(Host="evil.example")[0] == browser.ask(Host=f"evil.example:{port}")[0] == 403
        assert browser.ask("/events", Origin="http://evil.example")[0] == 403
        page = browser.snapshot()
        assert [row["name"] for row in page["rows"].values()]
        assert page["min_size"] == 1
        ids = {row["address"]: member for member, row in page["rows"].items()}
        victim, epoch = ids[one], page["view"]
        assert browser.order("kill", victim, epoch, "key number 1", origin="http://evil.example")[0] == 403
        assert browser.order("kill", victim, epoch, "key number 2", origin="")[0] == 403
        assert browser.ask("/order")[0] == 404
        assert browser.order("reboot", victim, epoch, "key number 3")[0] == 400
        refused = fetch_status(zero, 30.0, [RING])["dashboard"]["refused"]
        assert refused >= 10

        # A stale page kills nobody; an order is given to the agent of the member that it names, once.
        keys = (f"stale key {number}" for number in itertools.count())

        def stale() -> str:
            code, text = browser.order("kill", victim, epoch + 7, next(keys))
            assert code == 409
            return text

        eventually(lambda: "epoch" in stale(), "the agent that is named answers in time, and refuses")
        assert not launched.events("ended")
        assert "its launcher starts it again" in browser.ask(f"/consequence/kill/{victim}")[1]
        assert "MainThread" in browser.ask(f"/stack/{victim}")[1]
        code, text = browser.order("kill", victim, epoch, "key number 5")
        assert code == 200, text
        [ended] = launched.wait_events("ended", 1)
        assert (ended["worker"], ended["code"]) == (1, -9)
        assert browser.order("kill", victim, epoch, "key number 5") == (200, f"{text.strip()} (done before)\n")
        eventually(lambda: len(rows := browser.snapshot()["rows"]) == 2 and victim not in rows, "it is back")
        assert browser.order("kill", victim, epoch, "key number 6")[0] == 404
        told = json.loads(browser.ask(f"/explain/{epoch + 1}")[1])[0]
        assert told["epoch"] == epoch + 1
        words = [found["detail"] for found in told["findings"] if "its training process ended" in found["detail"]]
        assert all("(kill, ordered from 127.0.0.1" in word for word in words), "unless another proof was quicker"

        # Another agent has the same token and another cookie.
        other = Browser(next(row["address"] for row in browser.snapshot()["rows"].values() if row["address"] != zero))
        assert other.ask()[0] == 401
        assert other.enter() == 303
        assert other.ask()[0] == 200
        os.kill(launched.process.pid, signal.SIGTERM)
        launched.finish()


@pytest.mark.parametrize("allowed", [False, True])
def test_orders_come_from_this_host_unless_a_setting_says_otherwise(tmp_path: Path, allowed: bool) -> None:
    """A browser at an address of this host that is not loopback stands for one at another host."""
    outside = own_address()
    script = tmp_path / "script.py"
    script.write_text(LIGHT)
    settings = {"FTLIB_BIND": f"{outside}:0", "FTLIB_REMOTE_ORDERS": str(int(allowed))}
    program = subprocess.Popen(
        [sys.executable, script], cwd=ROOT, env=environment(**settings), stdout=subprocess.PIPE, text=True
    )
    try:
        assert program.stdout is not None
        browser = Browser(program.stdout.readline().strip())
        assert browser.address.startswith(outside)
        assert browser.enter() == 303
        page = browser.snapshot()
        [member] = page["rows"]
        try:
            code, text = browser.order("drain", member, page["view"], "key number 1")
        except (http.client.HTTPException, OSError):  # an URLError is one
            code, text = 200, "the member that is to end answers itself: it may be gone before its answer is read"
        if allowed:
            assert code == 200, text
            assert program.wait(60) == -signal.SIGTERM
        else:
            assert code == 403
            assert "remote_orders" in text
            assert program.poll() is None
    finally:
        program.kill()
        program.communicate()


def test_a_browser_in_the_terminal_is_answered_while_it_is_open(tmp_path: Path) -> None:
    """It is waited for as long as it is open, beside the server. Ctrl-C ends the server all the same."""
    browser, seen = tmp_path / "browser.py", tmp_path / "seen"
    browser.write_text(
        "import http.client, pathlib, sys\n"
        "_, _, where, path = sys.argv[1].split('/')\n"
        f"connection = http.client.HTTPConnection(where, timeout={TIMEOUT})\n"
        "connection.request('GET', '/' + path)\n"
        f"pathlib.Path({str(seen)!r}).write_text(str(connection.getresponse().status))\n"
        "sys.stdin.read()\n"
    )
    alone = Gossip(Config(secret=SECRET))
    alone.start()
    settings = environment(BROWSER=f"{sys.executable} {browser} %s")
    serving = subprocess.Popen(
        command("dashboard", format_address(alone.member.address), "--open"), env=settings, cwd=ROOT, stdin=subprocess.PIPE
    )
    try:
        eventually(lambda: seen.exists() and seen.read_text(), "the page is answered")
        assert seen.read_text() == "303", "it is let in"
        serving.send_signal(signal.SIGINT)
        assert serving.wait(TIMEOUT) == 0
    finally:
        serving.kill()
        serving.communicate()  # its end is that of the browser's input, too
        alone.stop()


def test_without_a_secret_there_is_no_page() -> None:
    alone = Gossip(Config(pages="ftlib.cli.dashboard:mount"))
    alone.start()
    try:
        code, text, _ = Browser(format_address(alone.member.address)).ask("?token=x")
    finally:
        alone.stop()
    assert code == 404
    assert "nothing is served" in text


@pytest.mark.soak
def test_a_launcher_serves_a_page_beside_its_workers(tmp_path: Path) -> None:
    """Whoever dies: with ``--dashboard`` all workers may be others than at first."""
    with running(
        tmp_path, "-n", 2, "--max-restarts", 9, "--dashboard", script=LIGHT, FTLIB_JOIN_TIMEOUT="20", **PATIENT
    ) as launched:
        assert launched.process.stderr is not None
        lines = iter(launched.process.stderr.readline, b"")
        url = next(re.search(rb"http://\S+", line)[0].decode() for line in lines if b"dashboard: open" in line)  # type: ignore[index]
        page = Browser("127.0.0.1:0")
        page.base, _, token = url.partition("/?token=")
        assert page.ask(f"/?token={token}")[0] == 303
        launched.wait_events("announced", 2)
        first = page.snapshot()
        assert {row["name"] for row in first["rows"].values()} <= {"worker 0", "worker 1"}
        for event in launched.events("started"):
            os.kill(event["pid"], signal.SIGKILL)
        # One that is started again before the other's death is known looks for that one for ``join_timeout`` first.
        eventually(lambda: not set(page.snapshot()["rows"]) & set(first["rows"]), lambda: f"new ones: {launched.events()}")
        os.kill(launched.process.pid, signal.SIGTERM)
        for _ in lines:
            pass
        launched.finish()
