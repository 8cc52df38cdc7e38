"""The secret of one run: the user's setting, else one drawn for the run and kept where only this user can read it.

So workers of ``ftlib run`` authenticate each other by default, and ``ftlib status`` still finds the secret that it must show
them: a drawn secret lies in ``<runtime directory>/ftlib/<job>-<pid>-<place>`` (mode 600) until the launcher ends. Other hosts
and containers may share the directory, and the pid means nothing there: ``place`` shows where the pid is valid.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from consensus import ConfigError as ConsensusConfigError
from consensus import Gossip, KeyRing

from ...errors import ConfigError
from ...settings.config import resolve

_MOST = 64
"""Most drawn secrets that are tried."""


def new_secret() -> str:
    """256 random bits as text."""
    return secrets.token_urlsafe(32)


def ring_of_user(environment: Mapping[str, str] | None = None) -> KeyRing | None:
    """Return the key ring that the environment and the settings file name; None if they name none."""
    wanted = {key: value for key, value in (os.environ if environment is None else environment).items() if key in _VARIABLES}
    try:
        # Only these settings matter here; others that must fit together may be given in the program.
        return KeyRing.of(resolve({"policy": "majority"}, environment=wanted, backend=Gossip).consensus)
    except ConsensusConfigError as error:
        raise ConfigError(str(error)) from None


class Credentials:
    """The key ring of one launcher."""

    def __init__(self, job: str, environment: Mapping[str, str]) -> None:
        """Draws a secret if the user gave none."""
        self._job = job
        ring = ring_of_user(environment)
        self._drawn = "" if ring is not None else new_secret()
        self._ring = ring or KeyRing([self._drawn])

    @property
    def drawn(self) -> bool:
        """Whether the user gave none, so that one was drawn, which no other host knows."""
        return bool(self._drawn)

    @property
    def environment(self) -> dict[str, str]:
        """Variables that workers need besides those that they inherit."""
        return {"FTLIB_SECRET": self._drawn} if self._drawn else {}

    @property
    def ring(self) -> KeyRing:
        """The keys, as they are now."""
        self._ring.renew()
        return self._ring

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Keep a drawn secret in a file, while this block runs, so that tools of the same user find it."""
        path = None
        if self._drawn:
            with contextlib.suppress(OSError):  # the file cannot be written: tools need FTLIB_SECRET then
                path = _write(self._job, self._drawn)
        try:
            yield
        finally:
            if path is not None:
                path.unlink(missing_ok=True)

    def __repr__(self) -> str:
        return f"Credentials({self._ring!r})"


def drawn_rings() -> list[KeyRing]:
    """The rings of this user's runs on this host, the latest first."""
    rings = []
    for path in drawn_files():
        with contextlib.suppress(ConsensusConfigError):
            rings.append(KeyRing((), path))
    return rings


def drawn_files() -> list[Path]:
    """The files with the secrets of this user's runs on this host, the latest first."""
    with contextlib.suppress(OSError):
        return sorted(_drawn(alive=True), key=lambda path: path.stat().st_mtime, reverse=True)[:_MOST]
    return []


def remove_lost() -> None:
    """Remove the drawn secrets of launchers here that were killed before they could tidy up."""
    with contextlib.suppress(OSError):
        for path in _drawn(alive=False):
            path.unlink(missing_ok=True)


def _write(job: str, secret: str) -> Path:
    directory = _directory()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    remove_lost()
    path = directory / f"{job}-{os.getpid()}-{_place()}"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as file:
        file.write(f"{secret}\n")
    return path


def _drawn(*, alive: bool) -> list[Path]:
    """Return the files of launchers of this place that are alive, or are not. Launchers elsewhere cannot be checked."""
    pattern = re.compile(rf".+-([0-9]+)-{_place()}")
    found = [(path, match) for path in _directory().iterdir() if (match := pattern.fullmatch(path.name))]
    return [path for path, match in found if _lives(int(match[1])) is alive]


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
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(runtime or cache) / "ftlib"


_VARIABLES = ("FTLIB_SECRET", "FTLIB_SECRET_FILE", "FTLIB_CONFIG")
