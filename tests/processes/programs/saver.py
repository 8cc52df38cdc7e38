"""A worker that saves now and then, for tests that only want checkpoints to be written: imports next to nothing."""

from __future__ import annotations

from ftlib import FTLib
from tests.harness.worker import Lines


class Saver:
    """A habit: save every ``every`` steps."""

    def __init__(self, ft: FTLib, _lines: Lines, directory: str, every: int) -> None:
        self._ft, self._directory, self._every = ft, directory, every

    def __call__(self) -> None:
        if self._ft.step and self._ft.step % self._every == 0:
            self._ft.save(self._directory)


class FirstOnly(Saver):
    """A habit: save once, in step ``every``."""

    def __call__(self) -> None:
        if self._ft.step == self._every:
            self._ft.save(self._directory)
