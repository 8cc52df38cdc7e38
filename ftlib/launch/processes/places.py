"""Files that a launcher keeps while it runs, so that tools of the same user on the same host find it: its secret, its address.

They lie in ``<runtime directory>/ftlib/`` as ``<job>-<pid>-<place>`` with an ending. Other hosts and containers may share the
directory, and the pid means nothing there: ``place`` shows where the pid is valid.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import socket
from pathlib import Path

MOST = 64
"""Most files that are looked at."""


def write(job: str, ending: str, text: str) -> Path:
    """Write a file of this launcher that only this user can read; raises OSError if that is not possible."""
    directory = _directory()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    remove_lost()
    path = directory / f"{job}-{os.getpid()}-{_place()}{ending}"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as file:
        file.write(text)
    return path


def rewrite(path: Path, text: str) -> None:
    """Put another text into such a file, whole at every moment; raises OSError if that is not possible."""
    part = path.with_name(f".{path.name}.new")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w") as file:
        file.write(text)
    part.rename(path)


def found(ending: str) -> list[Path]:
    """Those of launchers that live here, the latest first."""
    with contextlib.suppress(OSError):
        return sorted(_files(ending, alive=True), key=lambda path: path.stat().st_mtime, reverse=True)[:MOST]
    return []


def remove_lost() -> None:
    """Remove the files of launchers here that were killed before they could tidy up."""
    with contextlib.suppress(OSError):
        for path in _files(r"(\.[a-z]+)?", alive=False, literally=False):
            path.unlink(missing_ok=True)


def _files(ending: str, *, alive: bool, literally: bool = True) -> list[Path]:
    """Files of launchers of this place that are alive, or are not. Launchers elsewhere cannot be checked."""
    pattern = re.compile(rf".+-([0-9]+)-{_place()}{re.escape(ending) if literally else ending}")
    matches = [(path, match) for path in _directory().iterdir() if (match := pattern.fullmatch(path.name))]
    return [path for path, match in matches if _lives(int(match[1])) is alive]


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _place() -> str:
    """Return a digest of the scope in which a pid is valid: this boot of this host, this pid namespace."""
    facts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        facts += [Path("/proc/sys/kernel/random/boot_id").read_text(), str(Path("/proc/self/ns/pid").stat().st_ino)]
    return hashlib.blake2b("\0".join(facts).encode(), digest_size=6).hexdigest()


def _directory() -> Path:
    """OSError if the environment names no place, and this user has no home directory."""
    place = os.environ.get("XDG_RUNTIME_DIR") or os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(place) if place else Path.home() / ".cache") / "ftlib"
    except RuntimeError:
        raise FileNotFoundError(errno.ENOENT, "this user has no home directory", "~/.cache") from None
