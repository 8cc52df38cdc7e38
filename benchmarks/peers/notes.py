"""What the workers of one run wrote down, read as it grows."""

from __future__ import annotations

import bisect
import json
from collections import defaultdict
from pathlib import Path
from typing import Any


def _time(line: dict[str, Any]) -> float:
    return float(line["t"])


class Notes:
    """All lines of all workers. A look costs only what has come since the one before: who is measured does not feel it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._lines: list[dict[str, Any]] = []
        self._steps: dict[int, list[dict[str, Any]]] = defaultdict(list)
        """By slot, in the order of their times."""
        self._pids: dict[int, tuple[float, int]] = {}
        """By slot: the newest line's time, and the process that wrote it."""
        self._members: tuple[float, list[str]] = (0.0, [])
        """The newest view that anybody noted: when, and its members' addresses."""

    @property
    def lines(self) -> list[dict[str, Any]]:
        """All that was read, in the order of their times."""
        return sorted(self._lines, key=_time)

    def refresh(self) -> None:
        """Take in what was written since."""
        for path in self._folder.glob("*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                text = file.read()
            whole = text.rfind(b"\n") + 1
            self._read[path] = self._read.get(path, 0) + whole
            for line in map(json.loads, text[:whole].splitlines()):
                self._take(line)

    def steps(self, slot: int, since: float = 0.0) -> list[dict[str, Any]]:
        """The steps that this slot committed from that moment on."""
        steps = self._steps[slot]
        return steps[bisect.bisect_left(steps, since, key=_time) :]

    def pid(self, slot: int) -> int:
        """The newest process of this slot."""
        return self._pids[slot][1]

    def heard(self, slot: int) -> float:
        """When this slot wrote its newest line."""
        return self._pids[slot][0]

    def addresses(self, since: float) -> list[str]:
        """Where ftlib's members listen, as far as they have noted it from that moment on."""
        self.refresh()
        when, addresses = self._members
        return addresses if when >= since else []

    def _take(self, line: dict[str, Any]) -> None:
        self._lines.append(line)
        slot = line["slot"]
        self._pids[slot] = max(self._pids.get(slot, (0.0, 0)), (line["t"], line["pid"]))
        if line["kind"] == "step":
            bisect.insort(self._steps[slot], line, key=_time)
        elif line["kind"] == "members":
            self._members = max(self._members, (line["t"], line["addresses"]))
