"""Fixtures of the tests of members and agents."""

from __future__ import annotations

import pytest

from consensus import membership
from consensus.runtime.agent import discovery
from consensus.runtime.net import liveness_connection


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever listens has time to say who it is, as on a busy machine. For tests in which everybody asked does answer."""
    monkeypatch.setattr(liveness_connection, "CHECK_TIMEOUT", 4.0)
    for module, name in ((discovery, "_LOOK_TIMEOUT"), (membership, "_FIND_TIMEOUT")):
        monkeypatch.setattr(module, name, 20.0)
