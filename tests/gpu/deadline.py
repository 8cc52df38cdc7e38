"""A plugin of pytest for a machine that is lent for minutes: ``-p tests.gpu.deadline --seconds=200``.

A test that would begin later is left out, and said so. The tests of this folder begin first.
"""

from __future__ import annotations

import time

import pytest

LEFT_OUT = "left out: no time was left"
_until = pytest.StashKey[float]()
_BEGAN = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seconds", type=float, default=0.0, metavar="S", help="begin no test later than that (0: any time)")


def pytest_configure(config: pytest.Config) -> None:
    seconds = config.getoption("seconds")
    config.stash[_until] = _BEGAN + seconds if seconds else float("inf")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith("tests/gpu/"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.monotonic() > item.config.stash[_until]:
        pytest.skip(LEFT_OUT)
