"""``ftlib keys``: make secrets and exchange them in a file, in steps that never leave two members without a common key.

Files are replaced as a whole, so a reader sees the old ring or the new one; where a name is a symbolic link, the file that it
leads to. The same users can read them as before: the owner, at most the owner's group.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from consensus import MOST_KEYS, KeyRing, read_secrets
from consensus import ConfigError as ConsensusConfigError

from ..errors import ConfigError
from ..launch.processes.credentials import drawn_files, new_secret, ring_of_user


def add_key(path: Path) -> None:
    """Append a new secret as the last: members accept it from now on, and none seals with it."""
    if not path.exists():
        make = f"umask 077; ftlib keys new > {path}"
        raise ConfigError(f"{path} is not there: give the file that the members read, or make one: {make}")
    keys = _read(path)
    _write(path, [*keys, new_secret()])


def promote_key(path: Path) -> None:
    """Make the last secret the first: members seal with it from now on."""
    keys = _several(path)
    _write(path, [keys[-1], *keys[:-1]])


def drop_keys(path: Path) -> None:
    """Leave only the first secret."""
    _write(path, _several(path)[:1])


def metrics_token(path: Path | None) -> str:
    """Return the bearer token for ``GET /metrics``: of the secret in ``path``, the user's settings, or the only run here."""
    ring = ring_of_user() if path is None else None
    if ring is None:
        ring = _ring_in(_only_drawn() if path is None else path)
    return ring.first.bearer("metrics")


def _only_drawn() -> Path:
    drawn = drawn_files()
    if not drawn:
        raise ConfigError("there is no secret: give its file, or set FTLIB_SECRET or FTLIB_SECRET_FILE")
    if len(drawn) > 1:
        raise ConfigError(f"{len(drawn)} runs here have drawn a secret: give the file of one, {', '.join(map(str, drawn))}")
    return drawn[0]


def _ring_in(path: Path) -> KeyRing:
    try:
        return KeyRing((), path)
    except ConsensusConfigError as error:
        raise ConfigError(str(error)) from None


def _several(path: Path) -> list[str]:
    keys = _read(path)
    if len(keys) < 2:
        raise ConfigError(f"{path} holds a single secret: add the next one first, ftlib keys rotate {path}")
    return keys


def _read(path: Path) -> list[str]:
    try:
        keys, _ = read_secrets(path, most=None)  # refuses what members refuse, but not too many: ``drop`` is the remedy
    except ConsensusConfigError as error:
        raise ConfigError(str(error)) from None
    return list(dict.fromkeys(keys))


def _write(path: Path, keys: list[str]) -> None:
    if len(keys) > MOST_KEYS:
        raise ConfigError(f"{path} would hold {len(keys)} secrets, {MOST_KEYS} are the most: ftlib keys drop {path} first")
    text = "# ftlib: the first secret seals, all are accepted\n" + "".join(f"{key}\n" for key in keys)
    try:
        place = path.resolve()  # a link leads to the file that all hosts read: in its place it would be this host's alone
        handle, temporary = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.")
        try:
            with os.fdopen(handle, "w") as file:
                _keep_access(handle, place)
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(place)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None


def _keep_access(handle: int, path: Path) -> None:
    """Give the new file the readers of the old one, who otherwise could not follow it. A first file is its owner's."""
    try:
        old = path.stat()
    except FileNotFoundError:
        return
    shared = old.st_mode & stat.S_IRGRP
    os.fchown(handle, old.st_uid, old.st_gid if shared else -1)
    os.fchmod(handle, stat.S_IRUSR | stat.S_IWUSR | shared)
