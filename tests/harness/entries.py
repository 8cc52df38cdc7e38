"""Whether open calls are entered in the middle of backward, or at its end."""

from __future__ import annotations

from collections import defaultdict

import pytest

from ftlib.core.calls.open_call import OpenCall
from ftlib.core.engine.engine import Engine


def note_entries(monkeypatch: pytest.MonkeyPatch) -> dict[Engine, list[bool]]:
    """By engine, from now on: for each open call that was asked to begin in backward, whether it did."""
    found: dict[Engine, list[bool]] = defaultdict(list)
    newest: dict[Engine, OpenCall] = {}
    opens = Engine.open

    def note(engine: Engine, call: OpenCall) -> bool:
        entered = opens(engine, call)
        if newest.get(engine) is call:  # it was asked for at an earlier bucket
            found[engine].pop()
        newest[engine] = call
        found[engine].append(entered)
        return entered

    monkeypatch.setattr(Engine, "open", note)
    return found
