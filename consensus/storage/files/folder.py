"""One job's part of a directory that several hosts share. Everything here may block: ``FileStore`` calls it from threads.

    DIRECTORY/JOB/id                     the ID below, new with each founding of the store
    DIRECTORY/JOB/ID/keys/views/7        a value (see record)
    DIRECTORY/JOB/ID/floors/views/0...5  a number that only rises (see compactions)
    DIRECTORY/JOB/ID/temp/...            files in the making

The member that opens the job first draws ``ID``. So if the directory is wiped while the job runs, and perhaps founded again, an
old member cannot write into the new one: all its paths lead nowhere. A directory that is not mounted is told from a removed one
by the device on which its place is.

A value is whole when it gets its name: it is written to a file in ``temp``, made durable there, and then linked to its name
(which fails if the name exists, also on NFS) or renamed to it. Temporary files are in ``temp``, not beside the values: so
listings do not show them, and those that dead processes left are all in one place.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from ...logs import CarefulLogger
from ..store import MOST_PARTS, PASSING, Created, Unreadable, Value
from . import compactions, record
from .os_errors import DirectoryState, OSErrorMapper
from .probe import advice, probe, sync_directory

_LOG = CarefulLogger()

LEFT_OVER = 3600.0
"""Seconds, by the file server's timestamps, after which a temporary file or a lease is left over from a dead process."""

_PLAIN = re.compile(r"[a-z0-9_-][a-z0-9._-]*")
_NAME = re.compile(r"[a-z0-9_-][a-z0-9._-]{0,199}")
_ID = re.compile(r"[0-9a-f]{32}")
_MOUNTS = Path("/proc/self/mountinfo")
_TRIES = 20
"""The most tries of an operation that changes of other members disturb."""

Wanted = Callable[[], bool]


def folder_name(job: str) -> str:
    """The directory name of a job: unique, even on a file system that ignores upper and lower case."""
    if _PLAIN.fullmatch(job):
        return job
    digest = hashlib.sha256(job.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{re.sub('[^a-z0-9]+', '-', job.lower()).strip('-')}~{digest[:32]}"


class Folder:
    """Its methods raise ``StoreError``. Several threads may call them at once, but not to change the same key."""

    def __init__(self, url: str, directory: Path, job: str) -> None:
        """``url``: for the text of errors."""
        self._url = url
        self._directory = directory
        self._job = directory / folder_name(job)
        self._root = self._job
        self._device = 0
        self._listed: dict[str, frozenset[str]] = {}
        self._complained: set[Path] = set()

    # Opening

    def open(self) -> None:
        """Check that the directory is usable, make what is missing in it, and remove what dead processes left."""
        with self._map_os_errors("cannot be opened", opening=True):
            self._device = self._directory.stat().st_dev
            self._job.mkdir(mode=0o700, exist_ok=True)
            self._try_out()
            self._root = self._job / self._identify()
            for path in (self._root, *(self._root / part for part in ("keys", "floors", "temp"))):
                path.mkdir(mode=0o700, exist_ok=True)
            sync_directory(self._root)
            sync_directory(self._job)
            self._clean()
            if hint := advice(self._device, _MOUNTS.read_text(errors="replace")):
                _LOG.warning("the store %s: %s", self._url, hint)

    def _try_out(self) -> None:
        trial = self._job / f"trial-{secrets.token_hex(8)}"
        trial.mkdir(mode=0o700)
        try:
            # Compare files, not the own uid: a file server may map root to nobody.
            ours, theirs = trial.stat().st_uid, self._job.stat().st_uid
            if ours != theirs:
                raise PermissionError(0, f"it belongs to uid {theirs}, what is written here to uid {ours}", str(self._job))
            probe(trial)
        finally:
            trial.rmdir()

    def _identify(self) -> str:
        path = self._job / "id"
        for _ in range(_TRIES):
            found = record.read(path)
            if found is not None and _ID.fullmatch(found.decode("ascii", "replace")):
                return found.decode()
            if found is not None or path.is_dir():
                raise record.TornError(f"{path} holds no value of ftlib's: remove it")
            trial = self._job / f"trial-{secrets.token_hex(8)}"
            try:
                self._fill(trial, secrets.token_hex(16).encode(), durable=True)
                with contextlib.suppress(FileExistsError):
                    path.hardlink_to(trial)
            finally:
                trial.unlink(missing_ok=True)
        raise FileNotFoundError(0, "it comes and goes", str(path))

    def _clean(self) -> None:
        fresh = self._root / "temp" / secrets.token_hex(16)
        try:
            self._fill(fresh, b"", durable=False)
            now = fresh.stat().st_mtime
        finally:
            fresh.unlink(missing_ok=True)
        old, root = now - LEFT_OVER, self._root.name
        self._remove_older(old, root, "temp")
        self._remove_older(old, beginning="trial-")
        # A member that only slept writes its lease again at its next beat. So even if it does so right now, between our look at
        # the file and its removal, nothing is lost but that beat.
        self._remove_older(old, root, "keys", PASSING[:-1], trees=False)

    def _remove_older(self, stamp: float, *below: str, beginning: str = "", trees: bool = True) -> None:
        """Remove what is older in the job's directory ``below``, as far as that works. Directories only if ``trees``."""
        with contextlib.suppress(OSError), _directory(self._job, *below) as directory, os.scandir(directory) as entries:
            for entry in list(entries):
                try:
                    if not entry.name.startswith(beginning) or entry.stat(follow_symlinks=False).st_mtime >= stamp:
                        continue
                    if not entry.is_dir(follow_symlinks=False):
                        os.unlink(entry.name, dir_fd=directory)
                    elif trees:
                        shutil.rmtree(entry.name, dir_fd=directory)
                except OSError:  # another member cleans up, too
                    continue
                except RecursionError:
                    self._complain(self._job.joinpath(*below, entry.name))

    # Values

    def create(self, key: str, value: bytes, number: int | None, series: str, wanted: Wanted) -> Created:
        """See ``Store.create``. Stops before it gives the value its name if ``wanted`` returns False by then."""
        with self._map_os_errors(f"{key} cannot be created") as change:
            if number is not None and number < compactions.compacted(self._compactions(series)):
                return Created.BELOW
            path, temp = self._path(key), self._temp()
            try:
                self._fill(temp, value, durable=True)
                if not wanted():
                    return Created.EXISTS  # nobody waits for the result
                if not self._link(temp, path, change):
                    return Created.EXISTS
                change.begin()
                sync_directory(path.parent)
                if number is not None and number < compactions.compacted(self._compactions(series)):
                    self._take_back(temp, path)
                    change.undo()
                    return Created.BELOW
            finally:
                temp.unlink(missing_ok=True)
            return Created.DONE

    def _link(self, temp: Path, path: Path, change: OSErrorMapper) -> bool:
        """Returns whether ``path`` is now our file. False: another file has that name."""
        for _ in range(_TRIES):
            try:
                path.hardlink_to(temp)
            except OSError as error:
                # On NFS the request may have been done and its answer lost; to the repeated request the server then says that
                # the name is taken: by us. The link count of our file tells. (_links opens the file, so that the client asks
                # the server.)
                change.begin()
                if _links(temp) > 1:
                    return True
                change.undo()
                if isinstance(error, FileExistsError):
                    return False
                if not isinstance(error, FileNotFoundError):
                    raise
                self._make_parents(path)
            else:
                return True
        raise FileNotFoundError(0, "its directory comes and goes", str(path))

    def _take_back(self, temp: Path, path: Path) -> None:
        # Between the comparison and the removal another member may remove our file and create its own. That file is below the
        # compacted revision too: no reader believes it, and its creator takes it back. At worst we remove it for that member.
        with contextlib.suppress(FileNotFoundError):
            if path.samefile(temp):
                path.unlink()

    def read(self, key: str) -> Value | None:
        """See ``Store.read``."""
        with self._map_os_errors(f"{key} cannot be read"):
            value = self._value(key)
            if value is None:
                self._check_mounted()
            return value

    def _value(self, key: str) -> Value | None:
        path = self._path(key)
        try:
            return record.read(path)
        except record.TornError as torn:
            return Unreadable(str(torn))
        except OSError as error:
            if error.errno in record.NOT_ITS_OWN or self._standing() is not DirectoryState.HERE:
                raise
            return Unreadable(record.closed(path, error))

    def write(self, key: str, value: bytes, durable: bool, wanted: Wanted) -> None:
        """See ``Store.write``.

        A value that is not ``durable`` is not forced to disk: if a power failure destroys a heartbeat, the next one follows,
        and forcing each would cost one disk access per member and beat. Such a value may be torn, which is noticed (see
        ``record``).
        """
        with self._map_os_errors(f"{key} cannot be written") as change:
            path, temp = self._path(key), self._temp()
            try:
                self._fill(temp, value, durable=durable)
                for _ in range(_TRIES):
                    if not wanted():
                        return
                    try:
                        with change.doubt():
                            temp.replace(path)
                    except FileNotFoundError:
                        # No directory for it yet. Or (NFS) the rename was done, its answer lost, and at the repeated request
                        # ``temp`` is gone.
                        if not temp.exists() and record.read(path) == value:
                            break
                        self._make_parents(path)
                    else:
                        break
                else:
                    raise FileNotFoundError(0, "its directory comes and goes", str(path))
                if durable:
                    change.begin()
                    sync_directory(path.parent)
            finally:
                temp.unlink(missing_ok=True)

    def delete(self, key: str, wanted: Wanted) -> None:
        """See ``Store.delete``. Not forced to disk: a key that a power failure brings back can be deleted again."""
        with self._map_os_errors(f"{key} cannot be deleted") as change:
            if wanted():
                try:
                    with change.doubt():
                        self._path(key).unlink()
                except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                    self._check_mounted()

    def list(self, prefix: str) -> dict[str, Value]:
        """See ``Store.list``. Logs each file whose name is no key, and each directory that cannot be looked into, once."""
        with self._map_os_errors(f"{prefix} cannot be listed"):
            found: dict[str, Value] = {}
            try:
                names = set(self._names(self._root / "keys" / prefix[:-1], prefix))
            except (FileNotFoundError, NotADirectoryError):
                names = set()
            # A listing is not taken at one instant. On some file systems it may miss a name that another file replaces
            # meanwhile, as each heartbeat does. So the keys of the previous listing are also read by name.
            for key in sorted(names | self._listed.get(prefix, frozenset())):
                value = self._value(key)
                if value is not None:
                    found[key] = value
            self._listed[prefix] = frozenset(found)
            if not found:
                self._check_mounted()
            return found

    def _names(self, directory: Path, prefix: str) -> Iterator[str]:
        with os.scandir(directory) as entries:
            for entry in entries:
                if not _NAME.fullmatch(entry.name):
                    if not entry.name.startswith("."):  # an NFS client's name for a file removed while in use
                        self._complain(Path(entry.path))
                elif _is_directory(entry):
                    yield from self._names_within(Path(entry.path), f"{prefix}{entry.name}/")
                else:
                    yield f"{prefix}{entry.name}"

    def _names_within(self, directory: Path, prefix: str) -> Iterator[str]:
        """The names in a subdirectory. One that cannot be listed, or is deeper than keys are, hides only its own names."""
        if prefix.count("/") >= MOST_PARTS:
            self._complain(directory)
            return
        try:
            yield from self._names(directory, prefix)
        except (FileNotFoundError, NotADirectoryError):
            return  # it is gone, or a file by now
        except OSError as error:
            if error.errno in record.NOT_ITS_OWN:
                raise
            self._complain(directory)

    # Compaction

    def compacted(self, series: str) -> int:
        """See ``Store.compacted``. 0 if the store was wiped, where a read finds nothing either; changes are refused."""
        with self._map_os_errors(f"the floor of {series} cannot be read"):
            try:
                return compactions.compacted(self._compactions(series))
            except FileNotFoundError:
                if self._standing() is DirectoryState.WIPED:
                    return 0
                raise

    def compact(self, series: str, number: int) -> int:
        """See ``Store.compact``."""
        with self._map_os_errors(f"the floor of {series} cannot be raised") as change:
            directory = self._compactions(series)
            if number <= (before := compactions.compacted(directory)):
                return before
            change.begin()
            return compactions.compact(directory, number)

    def _compactions(self, series: str) -> Path:
        directory = self._root / "floors" / series
        self._make_parents(directory / "any")
        return directory

    # Files

    def _path(self, key: str) -> Path:
        return self._root / "keys" / key

    def _temp(self) -> Path:
        return self._root / "temp" / secrets.token_hex(16)

    def _fill(self, path: Path, value: bytes, *, durable: bool) -> None:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            data = memoryview(record.pack(value))
            while data:
                data = data[os.write(file, data) :]
            if durable:
                os.fsync(file)
        finally:
            os.close(file)

    def _make_parents(self, path: Path) -> None:
        """Make the missing directories of ``path``, except ``keys`` and ``floors``: without those the store was wiped."""
        for parent in reversed(path.relative_to(self._root).parents[:-2]):
            try:
                (self._root / parent).mkdir(mode=0o700)
            except FileExistsError:
                continue
            sync_directory((self._root / parent).parent)

    def _complain(self, path: Path) -> None:
        if path not in self._complained and len(self._complained) < 100:
            self._complained.add(path)
            _LOG.warning("the store %s: %s holds no value of ftlib's and is passed over: remove it", self._url, path)

    # What went wrong

    def _map_os_errors(self, what: str, *, opening: bool = False) -> OSErrorMapper:
        return OSErrorMapper(f"the store {self._url}", what, self._standing, opening=opening)

    def _check_mounted(self) -> None:
        """After nothing was found: raises FileNotFoundError if that means nothing because the directory is not there."""
        if self._standing() is DirectoryState.AWAY:
            raise FileNotFoundError(0, "it is not there", str(self._root))

    def _standing(self) -> DirectoryState:
        if self._root.is_dir():
            return DirectoryState.HERE
        above = next(path for path in self._root.parents if path.is_dir())
        return DirectoryState.WIPED if above.stat().st_dev == self._device else DirectoryState.AWAY


def _is_directory(entry: os.DirEntry[str]) -> bool:
    """False also if that cannot be told: then reading it tells why, and its name counts as taken."""
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


@contextlib.contextmanager
def _directory(path: Path, *below: str) -> Iterator[int]:
    """A descriptor of the directory ``below`` in ``path``. No symbolic link there is followed: it may lead anywhere."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    file = os.open(path, flags)
    try:
        for name in below:
            inner = os.open(name, flags | os.O_NOFOLLOW, dir_fd=file)
            os.close(file)
            file = inner
        yield file
    finally:
        os.close(file)


def _links(path: Path) -> int:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.fstat(file).st_nlink
    finally:
        os.close(file)
