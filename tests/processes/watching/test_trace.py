"""The phases that are timed in a recovery are methods that exist: a renamed one would only be missed when figures are due."""

from __future__ import annotations

import pytest

from tests.harness.moments import _AFTER, _BEFORE


@pytest.mark.parametrize(("label", "owner", "name"), [*_BEFORE, *_AFTER])
def test_what_marks_a_phase_is_there(label: str, owner: object, name: str) -> None:
    assert callable(getattr(owner, name, None)), f"{label} is marked by {name} of {owner}, which has none"
