"""Maps a failed system call to an error of the store, with the remedy. The only place that does so."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from enum import Enum
from types import TracebackType
from typing import Self

from ...errors import AmbiguousWriteError, StoreAwayError, StoreError, StoreRefusedError
from .probe import UnfitError
from .record import TornError


class DirectoryState(Enum):
    """Whether a job's directory is still the one that was opened."""

    HERE = "here"
    WIPED = "wiped"
    AWAY = "away"
    """Perhaps not mounted."""


_RUN_AS_ONE = "run all workers of a job as one user (this one is uid {uid}), or give each user a directory"
_FOREVER = {
    errno.EACCES: _RUN_AS_ONE,
    errno.EPERM: _RUN_AS_ONE,
    errno.EROFS: "mount it for writing",
    errno.EISDIR: "this name is the beginning of other keys",
    errno.ENOTDIR: "the beginning of this name is a key of its own",
    errno.ENAMETOOLONG: "choose a shorter path, or a shorter name of the job",
    errno.ELOOP: "there are symbolic links in a circle, or within the store",
    errno.EMLINK: "choose another file system",
    errno.EXDEV: "something is mounted within the store: unmount it",
}
"""Errors that waiting does not cure; nothing was done."""

_FOR_NOW = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space, or raise the quota",
    errno.EMFILE: "raise ulimit -n",
    errno.ENFILE: "raise the sysctl fs.file-max",
    errno.ENOMEM: "free some memory",
}
"""Errors that may pass; nothing was done."""

_BROKEN = "look at the disk, or the file server and the way to it (dmesg tells more)"
_GONE = "is not there: mount the file system again, or stop the job if the directory was removed"
_WIPED = "was wiped, or removed: what was decided there is gone; stop the job and start it again"
_LOST = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE, 0})


class OSErrorMapper:
    """A context in which ``OSError`` becomes ``StoreError``."""

    def __init__(self, store: str, what: str, standing: Callable[[], DirectoryState], *, opening: bool) -> None:
        """``store``, ``what``: the beginning of the error text. ``opening``: a missing directory is refused, not waited for."""
        self._about = f"{store}: {what}"
        self._standing = standing
        self._opening = opening
        self.begun = False
        """Whether the change may have been done and be visible to others."""

    def __enter__(self) -> Self:
        return self

    def begin(self) -> None:
        """From now on the change may have been done, and others may see it."""
        self.begun = True

    def undo(self) -> None:
        """The change is certainly not done, or not any more."""
        self.begun = False

    @contextlib.contextmanager
    def doubt(self) -> Iterator[None]:
        """Wraps the one call that makes the change: an error of it may leave open whether the change was done."""
        try:
            yield
        except OSError as error:
            self.begun = error.errno not in _LOST | _FOREVER.keys() | _FOR_NOW.keys()
            raise

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if isinstance(error, TornError):
            raise StoreRefusedError(f"{self._about}: {error}") from None
        if isinstance(error, UnfitError):
            raise StoreRefusedError(f"{self._about}: {error}") from None
        if isinstance(error, OSError):
            raise self._judge(error) from error

    def _judge(self, error: OSError) -> StoreError:
        number = error.errno or 0
        if isinstance(error, PermissionError):
            number = errno.EACCES
        if number in _LOST and (lost := self._judge_place()) is not None:
            return lost
        said = f"{self._about}: {error.strerror or error}{f' ({error.filename})' if error.filename else ''}"
        remedy = (_FOREVER.get(number) or _FOR_NOW.get(number, _BROKEN)).format(uid=os.geteuid())
        if self.begun:
            return AmbiguousWriteError(f"{said}: it may have been done; {remedy}")
        return (StoreRefusedError if number in _FOREVER else StoreAwayError)(f"{said}: {remedy}")

    def _judge_place(self) -> StoreError | None:
        """The error if the directory is wiped or away; None if it is as it was."""
        if self._opening:
            return StoreRefusedError(
                f"{self._about}: there is no such directory: make it on the shared file system, or mount that"
            )
        try:
            standing = self._standing()
        except OSError:
            standing = DirectoryState.AWAY
        if standing is DirectoryState.WIPED:
            return StoreRefusedError(f"{self._about}: its directory {_WIPED}")
        if standing is DirectoryState.AWAY:
            return (AmbiguousWriteError if self.begun else StoreAwayError)(f"{self._about}: its directory {_GONE}")
        return None
