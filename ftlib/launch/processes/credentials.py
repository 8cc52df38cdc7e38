"""The secret of one run: the user's setting, else one drawn for the run and kept where only this user can read it.

So workers of ``ftlib run`` authenticate each other by default, and ``ftlib status`` still finds the secret that it must show
them: a drawn secret lies in a file (see ``places``) until the launcher ends.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from consensus import ConfigError as ConsensusConfigError
from consensus import Gossip, KeyRing, SecretError, read_secrets

from ...errors import ConfigError, FTLibError
from ...settings.config import resolve
from . import places

_Ring = TypeVar("_Ring", KeyRing, KeyRing | None)
_Answer = TypeVar("_Answer")


def new_secret() -> str:
    """256 random bits as text."""
    return secrets.token_urlsafe(32)


def ring_of_user(environment: Mapping[str, str] | None = None) -> KeyRing | None:
    """Return the key ring that the environment and the settings file name; None if they name none."""
    try:
        return KeyRing.of(_settings(environment))
    except ConsensusConfigError as error:
        raise ConfigError(str(error)) from None


def _settings(environment: Mapping[str, str] | None) -> Any:
    wanted = {key: value for key, value in (os.environ if environment is None else environment).items() if key in _VARIABLES}
    try:
        # Only these settings matter here; others that must fit together may be given in the program.
        return resolve({"policy": "majority"}, environment=wanted, backend=Gossip).consensus
    except ConsensusConfigError as error:
        raise ConfigError(str(error)) from None


class SecretsFile:
    """The user's file of secrets, for hosts that may not have it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self) -> str:
        """What it holds. ConfigError, as of any ring of keys, for one that cannot be used."""
        try:
            secrets = read_secrets(self._path)[0]
        except ConsensusConfigError as error:
            raise ConfigError(str(error)) from None
        return "".join(f"{secret}\n" for secret in secrets)

    def close(self) -> None:
        """Nothing to end: a look takes no time."""


def given(environment: Mapping[str, str] | None = None) -> str | SecretsFile | None:
    """The secret that the user's environment and settings file give, or the file that holds it; None: there is none."""
    config = _settings(environment)
    if config.secret_file:
        return SecretsFile(Path(config.secret_file))
    return "\n".join(config.secrets) or None


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
        self._ring.follow()
        return self._ring

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Keep a drawn secret in a file, while this block runs, so that tools of the same user find it."""
        path = None
        if self._drawn:
            with contextlib.suppress(OSError):  # the file cannot be written: tools need FTLIB_SECRET then
                path = places.write(self._job, "", f"{self._drawn}\n")
        try:
            yield
        finally:
            if path is not None:
                path.unlink(missing_ok=True)

    def __repr__(self) -> str:
        return f"Credentials({self._ring!r})"


def first_accepted(ask: Callable[[_Ring], _Answer], rings: Iterable[_Ring]) -> _Answer:
    """What ``ask`` returns with the first of ``rings`` that is not refused. FTLibError, with the first refusal, if all are."""
    refused = ""  # a text: the error would keep its connection in a circle with this frame
    for ring in rings:
        try:
            return ask(ring)
        except SecretError as error:
            refused = refused or str(error)
    raise FTLibError(refused)


def rings_to_ask_with() -> Iterator[KeyRing | None]:
    """The user's ring; where the user has none: none at all, and then those of this user's runs here."""
    ring = ring_of_user()
    yield ring
    if ring is None:
        yield from drawn_rings()


def rings_for(what: str) -> list[KeyRing]:
    """The user's ring, else those of this user's runs here, for ``what``, which needs one. ConfigError if there is none."""
    ring = ring_of_user()
    rings = drawn_rings() if ring is None else [ring]
    if not rings:
        raise ConfigError(f"{what} need the job's secret: set FTLIB_SECRET or FTLIB_SECRET_FILE")
    return rings


def drawn_rings() -> list[KeyRing]:
    """The rings of this user's runs on this host, the latest first."""
    rings = []
    for path in drawn_files():
        with contextlib.suppress(ConsensusConfigError):
            rings.append(KeyRing((), path))
    return rings


def drawn_files() -> list[Path]:
    """The files with the secrets of this user's runs on this host, the latest first."""
    return places.found("")


_VARIABLES = ("FTLIB_SECRET", "FTLIB_SECRET_FILE", "FTLIB_CONFIG")
