"""A directory as the place of stores, and what a test may do to it."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from consensus.storage.files import folder
from consensus.storage.store import Store

from .place import Place


class Directory(Place):
    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"file://{path}"

    def wipe(self) -> None:
        for path in self.path.iterdir():
            shutil.rmtree(path)

    def root(self, job: str = "job") -> Path:
        """Where an opened job's files are."""
        (root,) = (path for path in (self.path / folder.folder_name(job)).iterdir() if path.is_dir())
        return root

    @contextmanager
    def losing_answers(self, store: Store) -> Iterator[None]:
        lost = False

        def link(*args: Any) -> None:
            nonlocal lost
            really(*args)
            lost = True
            raise error_of(errno.EIO)

        def links(path: Path) -> int:
            if lost:
                raise error_of(errno.EIO)
            return really_links(path)

        really, really_links = os.link, folder._links
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "link", link)
            patch.setattr(folder, "_links", links)
            yield


def error_of(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def files(path: Path) -> list[str]:
    return sorted(str(found.relative_to(path)) for found in path.rglob("*") if not found.is_dir())
