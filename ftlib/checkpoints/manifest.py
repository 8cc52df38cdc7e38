"""What is in a checkpoint, as JSON: everything but the tensors themselves, and size and digest of every other file.

The manifest is written last, and has a digest of its own. A checkpoint whose files are not what they were when written is
*torn* (a disk that lied about ``fsync``, a copy that was cut short), and a reader takes the next older one. The digests find
damage, not malice: anyone who can write to the directory can write another manifest.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import math
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from .names import ShardOf

FILE = "manifest.json"
LIMIT = 256 << 20
"""Bytes that a manifest may have."""
_FORMAT = "ftlib checkpoint 1"
_DIGEST = 16


OF_ONE = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.EIO,
        errno.EBADMSG,
        errno.EISDIR,
        errno.ENOTDIR,
        errno.ELOOP,
        errno.ENXIO,
        errno.ENAMETOOLONG,
    }
)
"""Errors of one checkpoint that say nothing of the others: this user may not read it, a bad block, not a file."""


class TornError(ValueError):
    """A checkpoint's files are not what they were when it was written."""


@dataclass(frozen=True, slots=True)
class File:
    """Size and digest of one of the other files."""

    size: int
    digest: str
    """blake2b-128, hexadecimal."""

    @classmethod
    def of(cls, path: Path) -> File:
        """Return size and digest of the file as it is now."""
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=_DIGEST))
            return cls(os.fstat(file.fileno()).st_size, digest.hexdigest())


@dataclass(frozen=True, slots=True)
class CheckpointManifest:
    """The manifest of one checkpoint."""

    step: int
    epoch: int
    size: int
    """Members of the view in which it was written."""
    tensors: tuple[str, ...]
    """Their names in ``torch.distributed.checkpoint``, in the order of their placeholders in ``state``."""
    state: Any
    """The tree, as ``state.flatten`` makes it."""
    files: Mapping[str, File]
    folder: str = ""
    """Where the other files are, beside the manifest; empty: in the same directory."""
    run: str = ""
    """Which founding of a job has written it: equal at all its members, joiners included. Empty: of an older release."""
    shard: ShardOf | None = None
    """Whose state it is. None: of an older release."""

    def within(self, folder: str) -> CheckpointManifest:
        """As this, with its files in another folder."""
        return replace(self, folder=folder)

    @property
    def nbytes(self) -> int:
        """Of all files together."""
        return sum(file.size for file in self.files.values())

    def packed(self) -> bytes:
        """The manifest's text. ConfigError if it is too long to be read."""
        body = {
            "format": _FORMAT,
            "step": self.step,
            "epoch": self.epoch,
            "size": self.size,
            "tensors": list(self.tensors),
            "files": {name: [file.size, file.digest] for name, file in self.files.items()},
            "state": _plain(self.state),
        }
        body |= {key: value for key, value in (("folder", self.folder), ("run", self.run), ("shard", self.shard)) if value}
        data = json.dumps({**body, "digest": _digest(body)}, indent=1, allow_nan=False).encode("ascii")
        if len(data) > LIMIT:
            raise ConfigError(
                f"what is in no tensor takes {len(data)} bytes in {FILE}, and {LIMIT} can be read; keep large values in tensors"
            )
        return data

    def write(self, directory: Path) -> None:
        """Write to ``directory``, synced to the disk. Raises OSError, and ConfigError as ``packed`` does."""
        with (directory / FILE).open("xb") as file:
            file.write(self.packed())
            file.flush()
            os.fsync(file.fileno())

    @classmethod
    def read(cls, directory: Path) -> CheckpointManifest:
        """Read the manifest in ``directory``, but not the other files. Raises TornError; OSError if it cannot be read."""
        try:
            with open(directory / FILE, "rb", opener=_opened) as file:
                data = file.read(LIMIT + 1) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
        except (FileNotFoundError, NotADirectoryError):
            raise TornError(f"{FILE} is missing") from None
        return cls.of(data)

    @classmethod
    def of(cls, data: bytes) -> CheckpointManifest:
        """The inverse of ``packed``. Raises TornError."""
        if len(data) > LIMIT:
            raise TornError(f"{FILE} has more than {LIMIT} bytes")
        try:
            body = json.loads(data)
            digest = body.pop("digest")
            if body["format"] != _FORMAT or digest != _digest(body):
                raise TornError(f"{FILE} is not what was written")
            files = {name: File(size, digest) for name, (size, digest) in body["files"].items()}
            tensors = tuple(body["tensors"])
            folder = body.get("folder", "")
            if any("/" in name or name == ".." for name in (*files, folder)):
                raise TornError(f"{FILE} names files that are elsewhere")
            run, shard = str(body.get("run", "")), ShardOf(*map(int, body["shard"])) if "shard" in body else None
            return cls(body["step"], body["epoch"], body["size"], tensors, _special(body["state"]), files, folder, run, shard)
        except TornError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise TornError(f"{FILE} is not readable: {error!r}") from None

    def verify(self, directory: Path) -> None:
        """Read all files once. Raises TornError naming the first file that was changed; OSError."""
        for name, file in self.files.items():
            path = directory / name
            if not path.is_file():
                raise TornError(f"{name} is missing")
            if path.stat().st_size != file.size:  # without reading the rest
                raise TornError(f"{name} has {path.stat().st_size} bytes instead of {file.size}")
            if File.of(path) != file:
                raise TornError(f"{name} is not what was written")


def _opened(path: str, flags: int) -> int:
    """Open without blocking, in case the file is a pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


def _digest(body: Mapping[str, Any]) -> str:
    data = json.dumps(body, sort_keys=True, separators=(",", ":")).encode("ascii")
    return hashlib.blake2b(data, digest_size=_DIGEST).hexdigest()


def _plain(packed: Any) -> Any:
    """Convert for JSON, which has neither bytes nor inf and nan: they become objects, of which ``packed`` has none."""
    if isinstance(packed, list):
        return [_plain(item) for item in packed]
    if isinstance(packed, bytes):
        return {"bytes": base64.b64encode(packed).decode("ascii")}
    if isinstance(packed, float) and not math.isfinite(packed):
        return {"float": repr(packed)}
    return packed


def _special(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_special(item) for item in plain]
    if isinstance(plain, dict):
        [(kind, text)] = plain.items()
        if kind not in ("bytes", "float"):
            raise TornError(f"{FILE} has a value of kind {kind}")
        return base64.b64decode(text, validate=True) if kind == "bytes" else float(text)
    return plain
