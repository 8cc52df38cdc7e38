"""The dashboard in a real browser: a job of four, workers killed and drained from the page, the asked member dies."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.basics import TIMEOUT, eventually
from tests.harness.program import ROOT
from tests.launch.helpers import Run, command, environment, running
from tests.launch.test_orders import TRAINS

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not shutil.which("chromium"), reason="chromium is not installed: apt-get install chromium"),
    pytest.mark.skipif(not shutil.which("chromedriver"), reason="no chromedriver: apt-get install chromium-driver"),
]
QUIET = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")
SHOTS = ROOT / "out" / "dashboard"


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for option in (*QUIET, "--disable-component-update", "--disable-quic", f"--user-data-dir={tmp_path / 'profile'}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    driver = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
    driver.set_window_size(1400, 1000)
    driver.set_page_load_timeout(TIMEOUT)
    driver.set_script_timeout(TIMEOUT)
    try:
        yield driver
    finally:
        driver.quit()


class Page:
    """The open page."""

    def __init__(self, driver: Any, launched: Run, runtime: Path) -> None:
        self.driver = driver
        self._launched = launched
        self._environ = environment(XDG_RUNTIME_DIR=str(runtime))
        del self._environ["FTLIB_SECRET"]

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
        done = subprocess.run(
            command(*arguments),
            cwd=self._launched.directory,
            env=self._environ,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=True,
        )
        return done.stdout

    def picture(self, name: str) -> None:
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.driver.save_screenshot(str(SHOTS / f"{name}.png"))

    def asked(self) -> set[str]:
        """The origins of all that was loaded over a network."""
        found = set()
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                found |= set(re.findall(r"^(?:https?|wss?)://[^/]*", message["params"]["request"]["url"]))
        return found


def test_a_job_is_seen_and_ordered_about(tmp_path: Path, browser: Any) -> None:
    runtime = tmp_path / "runtime"
    with running(tmp_path, "-n", 4, script=TRAINS, XDG_RUNTIME_DIR=str(runtime), FTLIB_SECRET="") as launched:
        page = Page(browser, launched, runtime)
        launched.wait_events("announced", 4)
        workers = json.loads(page.ftlib("ps", "--json"))[0]["workers"]
        serving = subprocess.Popen(
            command("dashboard", workers[0]["address"]), cwd=tmp_path, env=page._environ, stdout=subprocess.PIPE, text=True
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
            [ended] = launched.wait_events("ended", 1)
            assert (ended["worker"], ended["code"]) == (2, -9)
            eventually(lambda: page.member("worker 2") not in (None, former), lambda: f"it is back: {page.rows()}")
            text = "return [...document.querySelectorAll('#changes summary')].map(each => each.textContent).join('\\n')"
            eventually(lambda: "without worker 2 (proof)" in page.js(text), lambda: f"why it went: {page.js(text)}")
            page.js("for (const each of document.querySelectorAll('#changes details')) each.open = true")
            eventually(lambda: page.js("return document.querySelectorAll('#changes pre').length") > 1, "whole changes")
            epoch = int(page.js("return page.epoch"))
            pre = "return (document.querySelector(`#changes li[data-epoch='${arguments[0]}'] pre`) || {}).textContent || '[{}]'"

            def same() -> bool:
                """The page and the command line tell the same of that change, whose last phases may have come just now."""
                [shown], [told] = json.loads(page.js(pre, epoch)), json.loads(page.ftlib("explain", "--json", "--epoch", epoch))
                return bool(shown) and all(shown[name] == told[name] for name in ("view_id", "phases"))

            eventually(same, lambda: f"the change of epoch {epoch}: {page.js(pre, epoch)}")
            page.picture("killed")

            page.click("stack", "worker 1")
            eventually(lambda: "MainThread" in page.js("return document.getElementById('show-text').textContent"), "its stacks")
            page.js("document.getElementById('show-close').click()")

            page.click("drain", "worker 1")
            page.agree()
            assert launched.wait_events("ended", 2)[-1]["code"] == 0
            eventually(lambda: "worker 1" not in page.rows(), lambda: f"it has left: {page.rows()}")

            os.kill(workers[0]["pid"], signal.SIGKILL)  # the one that was asked
            launched.wait_events("ended", 3)
            step = page.js("return page.step")
            eventually(lambda: page.js("return page.step") > step, "another member answers")

            assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
            assert page.asked() == {url.partition("/?")[0]}
            look_at_access(page)
        finally:
            serving.send_signal(signal.SIGTERM)
            serving.communicate(timeout=TIMEOUT)
        assert serving.returncode == 0
        os.kill(launched.process.pid, signal.SIGTERM)
        launched.finish()


def look_at_access(page: Page) -> None:
    """What axe-core finds, in light and in dark."""
    from axe_core_python.selenium import Axe

    for scheme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        found = Axe().run(page.driver)["violations"]
        assert not found, [(rule["id"], rule["help"], [each["html"] for each in rule["nodes"]]) for rule in found]
        page.picture(scheme)
