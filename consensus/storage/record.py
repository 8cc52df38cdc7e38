"""A value as a file: one line that says how long it is and what it sums up to, then the value.

So a file that was torn by a power failure, or put there by somebody else, is told from a value.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import zlib
from pathlib import Path

from .store import MAX_VALUE

__all__ = ["TornError", "pack", "read"]

_HEAD = re.compile(rb"ftlib 1 ([0-9a-f]{8}) ([0-9]{1,7})\n")
_MOST = MAX_VALUE + 32


class TornError(Exception):
    """A file that holds no whole value. ``args``: its path."""


def pack(value: bytes) -> bytes:
    """The file's bytes."""
    return b"ftlib 1 %08x %d\n" % (zlib.crc32(value), len(value)) + value


def read(path: Path) -> bytes | None:
    """The value in the file ``path``; None where there is no file. Raises ``TornError`` and ``OSError``."""
    data = _content(path)
    if data is None:
        return None
    head = _HEAD.match(data)
    if head is None:
        raise TornError(path)
    value = data[head.end() :]
    if len(value) != int(head[2]) or zlib.crc32(value) != int(head[1], 16):
        raise TornError(path)
    return value


def _content(path: Path) -> bytes | None:
    """The whole file; None where there is no file. Raises ``TornError`` where it is too long, or no plain file."""
    for last in (False, False, True):
        try:
            # A pipe that somebody left there must not be waited for, and a symbolic link leads who knows where.
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                return _all(path, file)
            finally:
                os.close(file)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):  # a symbolic link, a socket
                break
            if error.errno != errno.ESTALE or last:
                raise
            # NFS: it was replaced between opening and reading, and the old one is gone. So look again.
    raise TornError(path)


def _all(path: Path, file: int) -> bytes | None:
    kind = os.fstat(file).st_mode
    if stat.S_ISDIR(kind):
        return None
    data = b""
    while piece := os.read(file, _MOST):
        data += piece
        if len(data) > _MOST:
            raise TornError(path)
    return data
