"""A worker that trains locally between averages, on private state: a ``program`` of ``worker.Task``.

Its orders: ``every`` inner steps before an average, ``width`` of its model, ``dies``: the first donor to give the state in the
middle of a round kills itself on the way.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ftlib.recovery.border import Border
from tests.ftlib.recovery.local import Local
from tests.harness.worker import Lines, Task, joined, place

PIECES = 3
"""After so many pieces of the state it dies."""


def train(task: Task, lines: Lines) -> int:
    """Train until it is killed."""
    orders = dict(task.given)
    if orders.pop("dies", False):
        _dies(Path(task.log).parent / "dead", lines)
    with joined(task, lines) as ft:
        local = Noted(ft, os.getpid(), lines, **orders)
        lines.write(event="came", came=local.came, private=local.private_digest(), shared=local.shared_digest())
        while True:
            while local.done < local.every:
                local.inner_step()
            local.average()
            lines.write(hash=local.hashes.get(ft.step), **place(ft))


class Noted(Local):
    """It tells its digests, and how long its steps take."""

    def __init__(self, ft: Any, seed: int, lines: Lines, **orders: Any) -> None:
        self._lines = lines
        self._last = time.monotonic()
        super().__init__(ft, seed, **orders)

    def inner_step(self) -> None:
        super().inner_step()
        now, self._last = time.monotonic() - self._last, time.monotonic()
        self._lines.write(event="border", private=self.privates[-1], seconds=now)

    def average(self) -> None:
        super().average()
        self._lines.write(event="border", private=self.privates[-1])
        self._last = time.monotonic()


def _dies(mark: Path, lines: Lines) -> None:
    """Whoever gives its state first dies in the middle of it: beside its program's steps, or, on a busy machine, in a call."""
    gives = Border.source

    def dying(border: Border, query: Mapping[str, str]) -> Iterator[Any]:
        return until_dead(gives(border, query))

    def until_dead(body: Iterator[Any]) -> Iterator[Any]:
        for number, piece in enumerate(body):
            yield piece
            if number == PIECES:
                try:
                    os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    continue
                lines.write(event="dies")
                os.kill(os.getpid(), signal.SIGKILL)

    Border.source = dying  # type: ignore[method-assign]
