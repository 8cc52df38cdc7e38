"""A file on a file system that hangs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def hanging_for(path: Path) -> Iterator[None]:
    """Whoever reads the file at ``path`` from now on waits until the end. There is none after that."""
    part = path.with_suffix(".part")
    os.mkfifo(part, 0o600)
    part.replace(path)
    try:
        yield
    finally:
        writer = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        path.unlink()
        os.close(writer)
