"""The notes that workers take: one JSON line each, in one file a worker lifetime, read while they are written.

A line reaches the file in one ``write``, so a worker may be killed at any time and its file still tells the truth up to
the last whole line. Times are CLOCK_MONOTONIC, which all processes of a host share.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

__all__ = ["Notes", "Tail"]


class Notes:
    """A worker's own file."""

    def __init__(self, directory: Path, worker: int) -> None:
        path = directory / f"worker-{worker}-pid-{os.getpid()}.jsonl"
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, event: str, **facts: Any) -> None:
        """One line; ``t`` and ``pid`` are added unless given."""
        line = {"event": event, "t": time.monotonic(), "pid": os.getpid(), **facts}
        os.write(self._fd, json.dumps(line).encode() + b"\n")


class Tail:
    """Reads what was added to files of JSON lines since the last time."""

    def __init__(self) -> None:
        self._offsets: dict[Path, int] = {}

    def read(self, path: Path) -> list[dict[str, Any]]:
        """The whole new lines of ``path``, none where it does not exist yet."""
        try:
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offsets[path] = self._offsets.get(path, 0) + len(whole)
        return [json.loads(line) for line in whole.splitlines()]

    def read_all(self, directory: Path) -> list[dict[str, Any]]:
        """The same for all ``.jsonl`` files of a directory, in the order of their ``t``."""
        lines = [line for path in sorted(directory.glob("*.jsonl")) for line in self.read(path)]
        return sorted(lines, key=lambda line: float(line["t"]))
