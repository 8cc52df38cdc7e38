"""Debian's Chromium, driven by selenium: its profile is empty, and it asks nobody for updates."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.harness.basics import TIMEOUT

_QUIET = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")


def missing() -> str:
    """What is not installed, with the remedy; empty if all is there."""
    if not shutil.which("chromium"):
        return "chromium is not installed: apt-get install chromium"
    if not shutil.which("chromedriver"):
        return "no chromedriver: apt-get install chromium-driver"
    return ""


@contextlib.contextmanager
def browser(profile: Path, height: int = 1000) -> Iterator[Any]:
    """A driver, whose logs have all that is loaded over a network."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for option in (*_QUIET, "--disable-component-update", "--disable-quic", f"--user-data-dir={profile}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    driver = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
    try:
        driver.set_window_size(1400, height)
        driver.set_page_load_timeout(TIMEOUT)
        driver.set_script_timeout(TIMEOUT)
        yield driver
    finally:
        driver.quit()
