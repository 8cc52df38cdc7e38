"""stdout and stderr of a process that does nothing but one launch, without Python's buffers.

What such a buffer holds as its reader leaves is tried once more while the interpreter ends, which makes the exit code 120. And
a thread that is blocked in one keeps its lock, which ends the interpreter with SIGABRT.
"""

from __future__ import annotations

import os
import sys

from ...processes.output import Outlets


class Descriptor:
    """A stream of text that goes to a descriptor at once. What it cannot take any more is lost, which is said once."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._outlets = Outlets()

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return os.isatty(self._fd)

    def write(self, text: str, /) -> None:
        """Write it all."""
        self._outlets.write(self._fd, text.encode("utf-8", "replace"))

    def flush(self) -> None:
        """Nothing is kept."""


def own_streams() -> tuple[Descriptor | None, Descriptor | None]:
    """Stdout and stderr. None for one that was closed as the process began: another file may have its number by now."""
    out, err = (Descriptor(fd) if stream is not None else None for fd, stream in ((1, sys.stdout), (2, sys.stderr)))
    return out, err
