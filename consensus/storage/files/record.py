"""A value as a file: one line with its checksum and length, then the value.

So a reader can tell a value from a file that a power failure tore, or that is not ours.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import zlib
from pathlib import Path

from ..store import MAX_VALUE

_HEAD = re.compile(rb"ftlib 1 ([0-9a-f]{8}) ([0-9]{1,7})\n")
_MOST = MAX_VALUE + 32


_NO_FILE = (errno.ELOOP, errno.ENXIO)
"""The errors of opening a symbolic link or a socket."""

_CLOSED = {
    errno.EACCES: "run all workers of a job as one user, or remove it",
    errno.EPERM: "run all workers of a job as one user, or remove it",
    errno.EAGAIN: "end the process that holds it, or remove it",
}
_DAMAGED = "look at the disk, or remove it"
"""The remedies of errors that are a file's own; the second is that of all others."""

NOT_ITS_OWN = frozenset(
    {
        *(errno.ENOMEM, errno.EMFILE, errno.ENFILE),
        *(errno.ENOTCONN, errno.ETIMEDOUT, errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED),
        *(errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ESHUTDOWN),
    }
)
"""Errors of this process, or of the way to the file server: they say nothing about the file at which they occur."""


class TornError(Exception):
    """A file that holds no whole value. ``args``: one text that names it and the remedy."""


def pack(value: bytes) -> bytes:
    """The file's bytes."""
    return b"ftlib 1 %08x %d\n" % (zlib.crc32(value), len(value)) + value


def read(path: Path) -> bytes | None:
    """The value in the file ``path``; None if nothing is there, or a directory (of longer keys).

    Raises ``TornError`` and ``OSError``.
    """
    data = _content(path)
    if data is None:
        return None
    head = _HEAD.match(data)
    if head is None:
        raise _torn(path)
    value = data[head.end() :]
    if len(value) != int(head[2]) or zlib.crc32(value) != int(head[1], 16):
        raise _torn(path)
    return value


def closed(path: Path, error: OSError) -> str:
    """What is wrong with the file ``path``, and the remedy, if reading it raised ``error`` and that is the file's own."""
    return f"{path} cannot be opened ({error.strerror or error}): {_CLOSED.get(error.errno or 0, _DAMAGED)}"


def _content(path: Path) -> bytes | None:
    """The whole file; None if there is none. Raises ``TornError`` if it is too long, or no plain file."""
    for last in (False, False, True):
        try:
            # O_NONBLOCK: do not wait for a pipe that somebody left there. O_NOFOLLOW: a symbolic link may lead anywhere.
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                return _all(path, file)
            finally:
                os.close(file)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno in _NO_FILE:
                break
            if error.errno != errno.ESTALE or last:
                raise
            # NFS: the file was replaced between opening and reading, and the old one is gone. So look again.
    raise _torn(path)


def _all(path: Path, file: int) -> bytes | None:
    found = os.fstat(file)
    if stat.S_ISDIR(found.st_mode):
        return None
    if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST:
        raise _torn(path)
    data = b""
    while piece := os.read(file, _MOST):
        data += piece
        if len(data) > _MOST:
            raise _torn(path)
    return data


def _torn(path: Path) -> TornError:
    return TornError(f"{path} holds no value of ftlib's: remove it")
