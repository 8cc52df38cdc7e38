"""What the workers of one run wrote down, read as it grows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Notes:
    """All lines of all workers, in the order of their times."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self.lines: list[dict[str, Any]] = []

    def refresh(self) -> None:
        """Take in what was written since."""
        for path in self._folder.glob("*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                text = file.read()
            whole = text.rfind(b"\n") + 1
            self._read[path] = self._read.get(path, 0) + whole
            self.lines += map(json.loads, text[:whole].splitlines())
        self.lines.sort(key=lambda line: line["t"])

    def steps(self, slot: int, since: float = 0.0) -> list[dict[str, Any]]:
        """The steps that this slot committed from that moment on."""
        return [line for line in self.lines if line["kind"] == "step" and line["slot"] == slot and line["t"] >= since]

    def pid(self, slot: int) -> int:
        """The newest process of this slot."""
        return int([line["pid"] for line in self.lines if line["slot"] == slot][-1])

    def addresses(self) -> list[str]:
        """Where workers of ftlib were started to listen."""
        self.refresh()
        return sorted({line["address"] for line in self.lines if line["kind"] == "address" and line["address"]})
