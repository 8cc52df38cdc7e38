"""Fixtures of the tests of stores."""

from __future__ import annotations

import pytest

from .scripted_store import ScriptedStore


@pytest.fixture
def store() -> ScriptedStore:
    return ScriptedStore()
