"""An accelerator that fails again and again is left alone for longer each time."""

from __future__ import annotations

import pytest

from ftlib.frameworks.accelerators import backoff
from ftlib.frameworks.accelerators.backoff import LONG, Backoff


def test_twice_as_long_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(backoff.time, "monotonic", lambda: now[0])
    rest, found = Backoff(), []
    for _ in range(10):
        rest.failed(0.5)
        found.append(rest.left)
        now[0] += rest.left
        assert rest.left == 0.0
    assert found == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 64.0, 64.0]
    rest.failed(LONG + 1)
    assert rest.left == 0.0, "it had worked for long"
    rest.failed(1.0)
    now[0] += 0.25
    assert rest.left == 0.75
