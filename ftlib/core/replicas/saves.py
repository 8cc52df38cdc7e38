"""Whether a replica's processes still write a checkpoint: its shards leave out the same ones, or no step would be whole."""

from __future__ import annotations

import threading


class Saves:
    """What is known here. ``begin`` and ``agree`` are for the training thread, ``written`` is for the one that writes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._writing = 0
        self.replica = False
        """True if any process of this replica was writing one when it held the newest call's result: known to all of them, and
        the same at all. False where a replica has one process."""

    @property
    def here(self) -> bool:
        """True while this process writes one."""
        return self._writing > 0

    def begin(self) -> None:
        """This process begins to write one."""
        with self._lock:
            self._writing += 1

    def written(self) -> None:
        """One that it wrote is on the disk, or given up."""
        with self._lock:
            self._writing -= 1

    def agree(self, *, writing: bool) -> None:
        """All of this replica have said whether they write."""
        self.replica = writing
