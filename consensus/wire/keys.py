"""The key ring: the secrets that members share, and the keys derived from them.

The first key seals, all of them open. So keys rotate without a stop: add the new one as the last everywhere, then promote it
everywhere, then drop the old one. A ring from a file follows the file (``follow``); an unusable file leaves the ring unchanged.

Every key used on the wire is derived by HKDF (RFC 5869) for one purpose; a secret's *id*, four derived bytes, says which
secret was used. Secrets appear in no text that this module makes.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
import threading
from collections.abc import Sequence
from pathlib import Path

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ..config import Config, check_secret
from ..errors import ConfigError

KEY_ID = 4
"""Bytes of a key's id."""

MOST_KEYS = 16
"""The most keys in a ring."""
_MAX_FILE = 1 << 16
_LABEL = b"ftlib 1 "
_PATIENCE = 0.5
"""Seconds to wait for a look at the file: a file system may hang, for minutes or for good."""

_Stamp = tuple[int, int, int, int]


class Key:
    """One shared secret."""

    __slots__ = ("_secret", "id")

    def __init__(self, secret: str) -> None:
        """``secret``: text of at least 16 bytes."""
        self._secret = secret.encode("utf-8", "surrogateescape")
        self.id = self.derive("key id", size=KEY_ID)

    def derive(self, purpose: str, salt: bytes = b"", context: bytes = b"", *, size: int = 32) -> bytes:
        """``size`` bytes for one ``purpose``, bound to ``salt`` and ``context``; they reveal nothing about the secret."""
        info = b"%s%s\0%s" % (_LABEL, purpose.encode(), context)
        return HKDF(SHA256(), size, salt, info).derive(self._secret)

    def bearer(self, purpose: str) -> str:
        """A token to send as it is, for clients that cannot do better (``metrics``, ``workers``)."""
        return self.derive(f"bearer {purpose}").hex()

    def vouch(self, purpose: str, *facts: object) -> str:
        """A MAC over ``facts``, as proof that a holder of the secret states them."""
        text = "\0".join(map(str, facts)).encode("utf-8", "surrogateescape")
        return hmac.digest(self.derive(f"vouch {purpose}"), text, hashlib.sha256).hex()

    def __repr__(self) -> str:
        return f"Key({self.id.hex()})"


class KeyRing:
    """One or several keys. Each member of a job must hold the first key of every other member."""

    def __init__(self, secrets: Sequence[str], path: str | os.PathLike[str] | None = None) -> None:
        """From ``secrets``, or from the file ``path`` if given. Raises ConfigError that says what is wrong with it."""
        self._path = Path(path) if path else None
        self._stamp: _Stamp | None = None
        self._complained: object = None
        self._lock = threading.Lock()
        """Guards ``_looking`` and ``_line``."""
        self._looking: threading.Thread | None = None
        self._line: str | None = None
        """What a look had to say that nobody has heard yet."""
        if self._path is not None:
            secrets, self._stamp = read_secrets(self._path)
        self._fill(secrets)

    @classmethod
    def of(cls, config: Config) -> KeyRing | None:
        """The ring of a member's settings; None if they name no secret."""
        return cls(config.secrets, config.secret_file or None) if config.secured else None

    @property
    def first(self) -> Key:
        """The key that seals."""
        return self.keys[0]

    def find(self, key_id: bytes) -> Key | None:
        """The key with that id."""
        return self._by_id.get(key_id)

    def bearers(self, purpose: str) -> list[str]:
        """The bearer tokens that are accepted for ``purpose``."""
        return [key.bearer(purpose) for key in self.keys]

    def vouched(self, mac: str, purpose: str, *facts: object) -> Key | None:
        """The key under which ``mac`` vouches for ``facts``; None if no key of this ring fits."""
        shown = mac.encode(errors="replace")
        return next((key for key in self.keys if hmac.compare_digest(shown, key.vouch(purpose, *facts).encode())), None)

    def follow(self, within: float = _PATIENCE) -> str | None:
        """As ``renew``, which may hang: waits for it half a second at most, and not longer than ``within``. Any thread.

        Where it takes longer, or no thread can be started for it, the keys stay as they are; one look is made at a time.
        """
        if self._path is None:
            return None
        with self._lock:
            looking = self._looking
            if looking is None or not looking.is_alive():
                looking = threading.Thread(target=self._look, name="ftlib-keys", daemon=True)
                try:
                    looking.start()
                except RuntimeError:
                    return None
                self._looking = looking
        looking.join(min(within, _PATIENCE))
        with self._lock:
            line, self._line = self._line, None
        return line

    def _look(self) -> None:
        line = self.renew()
        if line is not None:
            with self._lock:
                self._line = line

    def renew(self) -> str | None:
        """Follow the file. Returns a line for the log if the ring changed or cannot follow (once per reason), else None.

        Blocks for as long as its file system does.
        """
        if self._path is None:
            return None
        try:
            if _stamp(self._path.stat()) == self._stamp:
                return None
            secrets, stamp = read_secrets(self._path)
            before = [key.id for key in self.keys]
            self._fill(secrets)
        except OSError as error:
            return self._complain(f"{self._path} cannot be read: {error.strerror}")
        except ConfigError as error:
            return self._complain(str(error))
        self._complained = None
        self._stamp = stamp
        if [key.id for key in self.keys] == before:
            return None
        return f"the key ring has changed: seals with {self.first.id.hex()}, accepts {len(self.keys)}"

    def _complain(self, text: str) -> str | None:
        if text == self._complained:
            return None
        self._complained = text
        return f"{text}; the keys stay as they were"

    def _fill(self, secrets: Sequence[str]) -> None:
        if not 1 <= len(secrets) <= MOST_KEYS:
            raise ConfigError(f"a key ring takes 1 to {MOST_KEYS} secrets, not {len(secrets)}")
        self.keys = tuple(Key(secret) for secret in dict.fromkeys(secrets))
        self._by_id = {key.id: key for key in self.keys}

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(key.id.hex() for key in self.keys)})"


def read_secrets(path: Path, most: int | None = MOST_KEYS) -> tuple[list[str], _Stamp]:
    """The secrets in a file (one a line; # starts a comment) and the file's state; ConfigError with the remedy.

    The file's group may read it (Kubernetes mounts secrets so with ``fsGroup``), others must have no access. ``most``: the most
    secrets, None for any number.
    """
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            data = file.read(_MAX_FILE + 1)
    except OSError as error:
        raise ConfigError(f"secret_file={path} cannot be read: {error.strerror}") from None
    if stat.S_IMODE(found.st_mode) & 0o027:
        raise ConfigError(f"secret_file={path} is open to other users (mode {stat.S_IMODE(found.st_mode):o}): chmod 600 {path}")
    try:
        lines = [line.strip() for line in data.decode().splitlines()]
    except UnicodeDecodeError:
        raise ConfigError(f"secret_file={path} is no text: write one secret a line, as ftlib keys new prints it") from None
    secrets = [line for line in lines if line and not line.startswith("#")]
    if not secrets or len(data) > _MAX_FILE:
        raise ConfigError(f"secret_file={path} must hold 1 to {MOST_KEYS} secrets, one a line: ftlib keys new > {path}")
    for secret in secrets:
        check_secret(f"secret_file={path}", secret)
    if most is not None and len(secrets) > most:
        raise ConfigError(f"secret_file={path} holds {len(secrets)} secrets, {most} are the most: ftlib keys drop {path}")
    return secrets, _stamp(found)


def _stamp(found: os.stat_result) -> _Stamp:
    return (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)
