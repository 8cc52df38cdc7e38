"""Where a process that this one starts is to import from."""

from __future__ import annotations

import contextlib
import os
import sys


def import_path() -> list[str]:
    """Where this process imports from, to which ``site`` has already contributed. As Python does it, skip all but texts."""
    entries = []
    for entry in sys.path:
        if isinstance(entry, str):
            with contextlib.suppress(FileNotFoundError):  # the working directory was removed
                entries.append(entry or os.getcwd())  # noqa: PTH109 - as text
    return entries
