"""What happened to the communicators of one process, in numbers."""

from __future__ import annotations

import threading

from ftlib.common.counters import PAUSES, Tally


class Figures:
    """Counts of one framework. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(("starts", "troubles", "stops", "frees", "leaks"), 0)
        self._start_seconds = Tally(PAUSES)
        self.last_start = 0.0
        """Seconds that the newest start took; 0 if there was none yet."""

    def count(self, what: str) -> None:
        """Count one of: starts, troubles (starts that failed), stops, frees, leaks (communicators that were never freed)."""
        with self._lock:
            self._counts[what] += 1

    def ready_after(self, seconds: float) -> None:
        """A communicator became ready so long after its group was built."""
        with self._lock:
            self._start_seconds.add(seconds)
            self.last_start = seconds

    def as_dict(self) -> dict[str, object]:
        """All of them: ``accelerator_starts``, ..., and ``accelerator_start_seconds`` (a tally)."""
        with self._lock:
            counts = {f"accelerator_{name}": count for name, count in self._counts.items()}
            seconds = self._start_seconds.as_dict()
            return {**counts, "accelerator_start_seconds": seconds}
