"""Operations that one member holds back: the others have launched theirs, and their kernels spin, until it comes or dies."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ftlib import FTLib
from ftlib.frameworks.accelerators.group import HybridGroup
from ftlib.frameworks.gloo_group import GlooGroup
from ftlib.frameworks.isolated.group import IsolatedGroup

from .cluster import Cluster, Worker
from .moments import wrapped
from .worker import Lines

_LIMIT = 10.0
"""Seconds that an operation is held back at most."""
_LOOK = 0.001
"""Seconds between two looks whether it still is."""
SPINNING = 0.03
"""Seconds until the kernels of all others are surely launched."""
_OWNERS: dict[str, tuple[type[Any], str]] = {"gloo": (GlooGroup, "submit"), "isolated:gloo": (IsolatedGroup, "submit")}
"""Where an operation begins, if there is no accelerator."""


class Holding:
    """A worker's habit (see ``Task.habit``); ``directory``: where ``held`` leaves its orders."""

    def __init__(self, _ft: FTLib, lines: Lines, directory: str, framework: str) -> None:
        self._lines = lines
        self._order = _order(Path(directory), os.getpid())
        owner, name = _OWNERS.get(framework, (HybridGroup, "submit_bulk"))
        setattr(owner, name, wrapped(getattr(owner, name), self._hold, before=True))

    def __call__(self) -> None:
        """Before a call: nothing."""

    def _hold(self, *_: object, **__: object) -> None:
        """The member is about to launch."""
        if not self._order.exists():
            return
        self._lines.write(event="holding")
        until = time.monotonic() + _LIMIT
        while self._order.exists() and time.monotonic() < until:
            time.sleep(_LOOK)


@contextlib.contextmanager
def held(cluster: Cluster, worker: Worker) -> Iterator[None]:
    """Until the end of the block, ``worker`` launches nothing; when it begins, the others' kernels spin."""

    def count() -> int:
        return sum(event.get("event") == "holding" for event in worker.events)

    order, before = _order(cluster.directory, worker.pid), count()
    order.touch()
    try:
        cluster.until(f"{worker.task.name} holds back an operation", lambda: count() > before)
        time.sleep(SPINNING)  # the others launch at once, and nothing says when they have
        yield
    finally:
        order.unlink(missing_ok=True)


def _order(directory: Path, pid: int) -> Path:
    return directory / f"{pid}.hold"
