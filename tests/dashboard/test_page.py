"""The dashboard in a real browser: a job of four, workers killed and drained from the page, the asked member dies."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from ftlib.dashboard.desk import Means
from ftlib.dashboard.server import Server
from ftlib.dashboard.watch import Sources, Watch
from tests.harness.basics import TIMEOUT, eventually
from tests.harness.nursery import Nursery
from tests.harness.program import ROOT
from tests.launch.helpers import Run, command, environment, forked, running, told
from tests.launch.test_orders import TRAINS

from .chromium import browser as chromium
from .chromium import missing
from .statuses import EVIL, member_id, status
from .test_agent import LIGHT, TOKEN, own_address

pytestmark = [pytest.mark.process, pytest.mark.skipif(bool(missing()), reason=missing() or "all is there")]
SHOTS = ROOT / "out" / "dashboard"


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    with chromium(tmp_path / "profile") as driver:
        yield driver


class Page:
    """The open page."""

    def __init__(self, driver: Any, nursery: Nursery, launched: Run, runtime: Path) -> None:
        self.driver = driver
        self._nursery = nursery
        self._places = (launched.directory / f"command{number}" for number in itertools.count())
        self._launched = launched
        self._environ = environment(XDG_RUNTIME_DIR=str(runtime))
        del self._environ["FTLIB_SECRET"]

    def open_beside(self) -> None:
        """What ``ftlib run --dashboard`` serves."""
        stderr = self._launched.process.stderr
        assert stderr is not None
        said = next(line.decode() for line in iter(stderr.readline, b"") if b"dashboard: open" in line)
        self.driver.get(said.rpartition(" ")[2].strip())

    def js(self, text: str, *arguments: Any) -> Any:
        return self.driver.execute_script(text, *arguments)

    def rows(self) -> dict[str, str]:
        """The id of each member that is shown, by its name."""
        pairs = "return [...document.querySelectorAll('#rows tr')].map(e => [e.cells[0].textContent, e.dataset.member])"
        return {name.removesuffix(" *"): member for name, member in self.js(pairs)}

    def member(self, name: str) -> str | None:
        return self.rows().get(name)

    def click(self, kind: str, name: str) -> None:
        button = f"#rows tr[data-member='{self.member(name)}'] [data-kind={kind}]"
        self.js("document.querySelector(arguments[0]).click()", button)

    def agree(self) -> str:
        """Wait until the dialog has told what it means, agree; returns that text."""
        eventually(lambda: self.js("return !document.getElementById('ask-yes').disabled"), "the dialog is ready")
        text = str(self.js("return document.getElementById('ask-text').textContent"))
        self.js("document.getElementById('ask-yes').click()")
        return text

    def ftlib(self, *arguments: object) -> str:
        code, out, err = told(self._nursery, next(self._places), *arguments, env=self._environ)
        assert code == 0, err
        return out

    def picture(self, name: str) -> None:
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.driver.save_screenshot(str(SHOTS / f"{name}.png"))

    def asked(self) -> dict[str, Any]:
        """The row of the member that the server asks."""
        return dict(self.js("return page.rows[page.asked]"))

    def origins(self) -> set[str]:
        """The origins of all that was loaded over a network."""
        found = set()
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                found |= set(re.findall(r"^(?:https?|wss?)://[^/]*", message["params"]["request"]["url"]))
        return found


def test_a_job_is_seen_and_ordered_about(nursery: Nursery, tmp_path: Path, browser: Any) -> None:
    runtime = tmp_path / "runtime"
    # On a busy machine a worker may be away for seconds: nobody is to be taken for silent here, and killed for it.
    settings = {"FTLIB_EXCLUDE_AFTER": "60", "FTLIB_SECRET": "", "XDG_RUNTIME_DIR": str(runtime)}
    with forked(nursery, tmp_path, "-n", 4, "--max-restarts", 20, script=TRAINS, **settings) as launched:
        page = Page(browser, nursery, launched, runtime)
        launched.wait_events("announced", 4)
        [run] = launched.events("run")
        serving = subprocess.Popen(
            command("dashboard", "--run", run["job"]), cwd=tmp_path, env=page._environ, stdout=subprocess.PIPE, text=True
        )
        try:
            assert serving.stdout is not None
            url = serving.stdout.readline().removeprefix("open ").strip()
            assert url.startswith("http://127.0.0.1:")
            browser.get(url)
            assert "token" not in browser.current_url
            eventually(lambda: len(page.rows()) == 4, lambda: f"four rows: {page.rows()}")
            whole = page.js("return page.step")
            eventually(lambda: page.js("return page.step") > whole, "steps go on before one's eyes")
            page.picture("four")

            former = page.member("worker 2")
            page.click("kill", "worker 2")
            assert "its launcher starts it again" in page.agree()
            assert ends(launched, 2) == -9
            eventually(lambda: page.member("worker 2") not in (None, former), lambda: f"it is back: {page.rows()}")
            text = "return [...document.querySelectorAll('#changes summary')].map(each => each.textContent).join('\\n')"
            eventually(lambda: "without worker 2 (proof)" in page.js(text), lambda: f"why it went: {page.js(text)}")
            epoch = int(page.js("return page.epoch"))
            pre = "return (document.querySelector(`#changes li[data-epoch='${arguments[0]}'] pre`) || {}).textContent || '[{}]'"

            def same() -> bool:
                """The page and the command line tell the same of that change, whose last phases may have come just now."""
                page.js("document.querySelector(`#changes li[data-epoch='${arguments[0]}'] details`).open = true", epoch)
                [shown], [told] = (
                    json.loads(page.js(pre, epoch)),
                    json.loads(page.ftlib("explain", page.asked()["address"], "--json", "--epoch", epoch, "--timeout", 60)),
                )
                return bool(shown) and all(shown[name] == told[name] for name in ("view_id", "phases"))

            eventually(same, lambda: f"the change of epoch {epoch}: {page.js(pre, epoch)}")
            page.picture("killed")

            page.click("stack", "worker 1")
            eventually(lambda: "MainThread" in page.js("return document.getElementById('show-text').textContent"), "its stacks")
            page.js("document.getElementById('show-close').click()")

            page.click("drain", "worker 1")
            page.agree()
            assert ends(launched, 1) == 0
            eventually(lambda: "worker 1" not in page.rows(), lambda: f"it has left: {page.rows()}")

            asked = page.asked()
            os.kill(int(asked["pid"]), signal.SIGKILL)
            assert ends(launched, int(asked["name"].removeprefix("worker "))) == -9
            step = page.js("return page.step")
            eventually(lambda: page.js("return page.step") > step, "another member answers")

            assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
            assert page.origins() == {url.partition("/?")[0]}
            look_at_access(page.driver, page.picture)
        finally:
            serving.send_signal(signal.SIGTERM)
            serving.communicate(timeout=TIMEOUT)
        assert serving.returncode == 0
        os.kill(launched.process.pid, signal.SIGTERM)
        launched.finish()


HELD_BACK = """
const ask = window.fetch;
const mayAsk = new Promise((resolve) => { window.letGo = resolve; });
window.fetch = async (where, ...how) => {
    if (String(where).includes("/consequence/")) await mayAsk;
    return ask(where, ...how);
};
"""
"""It takes until ``letGo()`` to learn what a kill would do."""


def test_an_order_from_an_address_that_is_not_loopback(tmp_path: Path, browser: Any) -> None:
    """Over plain HTTP from another host a browser lacks what it gives to pages of its own host only."""
    script = tmp_path / "script.py"
    script.write_text(LIGHT)
    settings = {"FTLIB_BIND": f"{own_address()}:0", "FTLIB_REMOTE_ORDERS": "1"}
    program = subprocess.Popen(
        [sys.executable, script], cwd=ROOT, env=environment(**settings), stdout=subprocess.PIPE, text=True
    )
    try:
        assert program.stdout is not None
        browser.get(f"http://{program.stdout.readline().strip()}/dashboard?token={TOKEN}")
        assert browser.execute_script("return window.isSecureContext") is False
        eventually(lambda: len(browser.find_elements("css selector", "#rows tr")) == 1, "its row")
        browser.execute_script("document.querySelector('[data-kind=stack]').click()")
        shown = "return document.getElementById('show-text').textContent"
        eventually(lambda: "MainThread" in browser.execute_script(shown), "its stacks")
        browser.execute_script("document.getElementById('show-close').click()")
        browser.execute_script(HELD_BACK)
        browser.execute_script("document.querySelector('[data-kind=kill]').click()")
        field = "return document.getElementById('ask').open && !document.getElementById('ask-name').hidden"
        eventually(lambda: browser.execute_script(field), "as steps would wait, the name is asked for")
        browser.find_element("id", "ask-input").send_keys(browser.execute_script("return Object.values(page.rows)[0].name"))
        assert not browser.find_element("id", "ask-yes").is_enabled(), "nobody agrees to what is not shown yet"
        browser.execute_script("window.letGo()")
        eventually(lambda: browser.find_element("id", "ask-yes").is_enabled(), "the dialog is ready")
        browser.find_element("id", "ask-yes").click()
        assert program.wait(TIMEOUT) == -signal.SIGKILL
    finally:
        program.kill()
        program.communicate()


LARGE = TRAINS.replace(
    "model = torch.nn.Linear(4, 1)",
    "model = torch.nn.Linear(4, 1)\nmodel.table = torch.nn.Parameter(torch.zeros(6_000_000), requires_grad=False)",
)
"""The same with 24 MB that a joiner needs, too."""
WATCHED = """
window.progress = new Set();
setInterval(() => {
    for (const bar of document.querySelectorAll('#rows progress:not([hidden])')) window.progress.add(bar.value);
}, 50);
"""
"""Notes what the bars of joiners show."""


@pytest.mark.soak
def test_a_worker_that_joins(nursery: Nursery, tmp_path: Path, browser: Any) -> None:
    """The state comes to a real joiner, slowly enough to be watched; and what three members look like."""
    runtime = tmp_path / "runtime"
    settings = {"FTLIB_EXCLUDE_AFTER": "60", "FTLIB_RECOVERY_BANDWIDTH": "2000000", "XDG_RUNTIME_DIR": str(runtime)}
    with running(tmp_path, "-n", 3, "--max-restarts", 20, "--dashboard", script=LARGE, **settings) as launched:
        page = Page(browser, nursery, launched, runtime)
        page.open_beside()
        eventually(lambda: len(page.rows()) == 3, lambda: f"three rows: {page.rows()}")
        page.js(WATCHED)
        killed = page.member("worker 2")
        page.click("kill", "worker 2")
        page.agree()
        assert ends(launched, 2) == -9
        eventually(lambda: page.member("worker 2") not in (None, killed), lambda: f"it is back: {page.rows()}")
        eventually(lambda: len(page.js("return [...window.progress]")) >= 3, "its progress moves")
        page.picture("joins")
        eventually(lambda: not page.js("return document.querySelector('#rows progress:not([hidden])')"), "it has the state")
        look_at_access(browser, lambda scheme: page.picture(f"three-{scheme}"))
        os.kill(launched.process.pid, signal.SIGTERM)
        launched.finish()


@pytest.mark.soak
def test_a_worker_that_is_stopped(nursery: Nursery, tmp_path: Path, browser: Any) -> None:
    """SIGSTOP: its row turns, its launcher kills it, and its successor is shown."""
    runtime = tmp_path / "runtime"
    # So many seconds of silence: on a busy machine others than the stopped one are away for two.
    settings = {"FTLIB_EXCLUDE_AFTER": "8", "XDG_RUNTIME_DIR": str(runtime)}
    with running(tmp_path, "-n", 3, "--max-restarts", 20, "--dashboard", script=TRAINS, **settings) as launched:
        page = Page(browser, nursery, launched, runtime)
        page.open_beside()
        eventually(lambda: len(page.rows()) == 3, lambda: f"three rows: {page.rows()}")
        stopped = page.member("worker 2")
        os.kill(int(page.js("return page.rows[arguments[0]].pid", stopped)), signal.SIGSTOP)
        turned = "const row = page.rows[arguments[0]]; return !row || row.status !== 'alive' || row.evidence !== ''"
        eventually(lambda: page.js(turned, stopped), lambda: f"its row turns: {page.rows()}")
        assert ends(launched, 2) == -9, "peers found it silent, and the launcher killed it"
        eventually(lambda: page.member("worker 2") not in (None, stopped), lambda: f"it is back: {page.rows()}")
        os.kill(launched.process.pid, signal.SIGTERM)
        launched.finish()


def ends(launched: Run, worker: int) -> int:
    """Wait until that worker has ended; with which code."""

    def codes() -> list[int]:
        return [int(event["code"]) for event in launched.events("ended") if event["worker"] == worker]

    eventually(lambda: bool(codes()), lambda: f"worker {worker} ends: {launched.events('ended')}")
    return codes()[-1]


def look_at_access(driver: Any, picture: Callable[[str], None]) -> None:
    """What axe-core finds, in light and in dark."""
    from axe_core_python.selenium import Axe

    for scheme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        found = Axe().run(driver)["violations"]
        assert not found, [(rule["id"], rule["help"], [each["html"] for each in rule["nodes"]]) for rule in found]
        picture(scheme)


class Served:
    """A dashboard over statuses that a test gives, on a thread of its own."""

    def __init__(self, statuses: Callable[[int], dict[str, Any]]) -> None:
        self.url = ""
        self._statuses = statuses
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._there = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._there.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(60)
        self._loop.close()

    async def _serve(self) -> None:
        watch = Watch("127.0.0.1:7000", Sources(lambda address, _: self._statuses(int(address.rpartition(":")[2]) - 7000)))
        server = Server(watch, Means(lambda *_: "", lambda *_: "fine", lambda _: EVIL, lambda *_: []), "lab")
        self.url = await server.open()
        self._there.set()
        await self._over.wait()
        await server.close()


def test_names_and_evidence_stay_text(browser: Any) -> None:
    def evil(number: int) -> dict[str, Any]:
        found = status(number, job=EVIL)
        for member in found["members"]:
            member["evidence"], member["meta"] = EVIL, {"name": EVIL, "pid": EVIL}
        return found

    with Served(evil) as served:
        browser.get(served.url)
        eventually(lambda: browser.execute_script("return document.querySelectorAll('#rows tr').length") == 3, "rows")
        browser.execute_script("document.querySelector('[data-kind=stack]').click()")
        eventually(
            lambda: EVIL in browser.execute_script("return document.getElementById('show-text').textContent"), "stacks", 60
        )
        assert browser.execute_script("return document.querySelectorAll('img').length") == 0
        assert browser.execute_script("return document.querySelector('#rows td').textContent").startswith(EVIL)
        assert EVIL in browser.execute_script("return document.getElementById('changes').textContent")


@pytest.mark.soak
def test_a_join_moves_and_only_a_page_of_many_members_is_shown(browser: Any) -> None:
    """The joiner's bytes grow with each sample, as those of a real one do: which may be over before it is looked at twice."""
    got = iter(range(0, 10**9, 1000))

    def joining(number: int) -> dict[str, Any]:
        found = status(number, size=200)
        found["ftlib"]["min_size"] = 200
        found["ftlib"]["peers"].setdefault(member_id(199), {})["following"] = True
        if number == 199:
            found["ftlib"]["recovery"] = {"total": 10**9, "got": next(got), "left": 3.0, "pending": 0}
        return found

    bar = f"document.querySelector(`#rows tr[data-member='{member_id(199)}'] progress`)"
    with Served(joining) as served:
        browser.get(served.url)
        count = "return document.querySelectorAll('#rows tr').length"
        eventually(lambda: browser.execute_script(count) == 65, "64 rows, and the joiner's")
        eventually(lambda: browser.execute_script(f"return {bar}.hidden") is False, "its progress")
        before = browser.execute_script(f"return {bar}.value")
        eventually(lambda: browser.execute_script(f"return {bar}.value") > before, "it moves")

        # With the keyboard alone: the next members, and an order that would make steps wait.
        browser.execute_script("document.getElementById('later').focus()")
        from selenium.webdriver.common.keys import Keys

        browser.switch_to.active_element.send_keys(Keys.ENTER)
        first = "return document.querySelector('#rows td').textContent"
        eventually(lambda: browser.execute_script(first).startswith("worker 64"), "the next page")
        browser.execute_script("document.querySelector('#rows [data-kind=drain]').focus()")
        browser.switch_to.active_element.send_keys(Keys.ENTER)
        eventually(lambda: browser.execute_script("return document.getElementById('ask').open"), "the dialog")
        eventually(
            lambda: "fine" in browser.execute_script("return document.getElementById('ask-text').textContent"), "its text", 60
        )
        assert browser.execute_script("return document.getElementById('ask-yes').disabled"), "the name is asked for"
        field = browser.execute_script("document.getElementById('ask-input').focus(); return document.activeElement")
        field.send_keys("worker 64")
        assert not browser.execute_script("return document.getElementById('ask-yes').disabled")
