"""``ftlib keys``: make secrets and exchange them in a file, in steps that never leave two members without a common key.

Files are replaced as a whole, so a reader sees the old ring or the new one, and stay readable by their owner only.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from consensus import ConfigError as ConsensusConfigError
from consensus import KeyRing

from ..errors import ConfigError
from .credentials import new_secret, ring_of_user

__all__ = ["add_key", "drop_keys", "metrics_token", "promote_key"]


def add_key(path: Path) -> None:
    """Append a new secret as the last: accepted from now on, used by nobody."""
    keys = _read(path) if path.exists() else []
    _write(path, [*keys, new_secret()])


def promote_key(path: Path) -> None:
    """Make the last secret the first: members seal with it from now on."""
    keys = _several(path)
    _write(path, [keys[-1], *keys[:-1]])


def drop_keys(path: Path) -> None:
    """Leave only the first secret."""
    _write(path, _several(path)[:1])


def metrics_token(path: Path | None) -> str:
    """The bearer token for ``GET /metrics``, of the secret in ``path`` or in the user's settings."""
    try:
        ring = KeyRing((), path) if path is not None else ring_of_user()
    except ConsensusConfigError as error:
        raise ConfigError(str(error)) from None
    if ring is None:
        raise ConfigError("there is no secret: give its file, or set FTLIB_SECRET or FTLIB_SECRET_FILE")
    return ring.first.bearer("metrics")


def _several(path: Path) -> list[str]:
    keys = _read(path)
    if len(keys) < 2:
        raise ConfigError(f"{path} holds a single secret: add the next one first, ftlib keys rotate {path}")
    return keys


def _read(path: Path) -> list[str]:
    try:
        KeyRing((), path)  # complains where members would
        lines = [line.strip() for line in path.read_text().splitlines()]
    except ConsensusConfigError as error:
        raise ConfigError(str(error)) from None
    return list(dict.fromkeys(line for line in lines if line and not line.startswith("#")))


def _write(path: Path, keys: list[str]) -> None:
    text = "# ftlib: the first secret seals, all are accepted\n" + "".join(f"{key}\n" for key in keys)
    try:
        handle, temporary = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
