"""The file of events: one JSON line each."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import IO, Any

from ...errors import ConfigError


class EventLog:
    """Appends to a file; without one it does nothing. What cannot be written is lost: the launch goes on."""

    def __init__(self, path: Path | None) -> None:
        """Raises ConfigError for a path that cannot be written."""
        self._file: IO[str] | None = None
        if path is not None:
            try:
                self._file = path.open("a", encoding="utf-8")
            except OSError as error:
                raise ConfigError(f"events {path}: {error.strerror}: give a path that can be written") from None

    def write(self, kind: str, **facts: Any) -> None:
        """One event, with the times of both clocks."""
        if self._file is not None:
            record = {"event": kind, "t": time.monotonic(), "time": time.time(), **facts}
            with contextlib.suppress(OSError):
                self._file.write(json.dumps(record) + "\n")
                self._file.flush()

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()
