"""Network namespaces, entered by name. Linux only, root only. Imports little: workers use it too."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path

__all__ = ["enter", "inside"]

_CLONE_NEWNET = 0x40000000
_NAMES = Path("/run/netns")


def enter(name: str) -> None:
    """This thread, and what it starts from now on, is in the namespace ``name``."""
    with (_NAMES / name).open() as there:
        _enter(there.fileno())


@contextlib.contextmanager
def inside(name: str) -> Iterator[None]:
    """The same for a while."""
    with Path("/proc/thread-self/ns/net").open() as here:
        enter(name)
        try:
            yield
        finally:
            _enter(here.fileno())


def _enter(descriptor: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")
