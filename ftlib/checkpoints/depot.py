"""Where checkpoints are kept: a directory, or any URL that fsspec knows. Both keep the same promises, in different ways.

A checkpoint is *complete* or not there. In a directory its name is given to it by one ``rename``; elsewhere its manifest is
written last, and only if there is none (``remote``).
"""

from __future__ import annotations

import os
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Self

from ..errors import ConfigError
from .checkpoint import Found, Taken, newest, publish, remove
from .manifest import OF_ONE, CheckpointManifest, TornError
from .names import Name, Part, ShardOf, complete, parts, shard_folder, shards_in, whole_names

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class Depot(ABC):
    """One place with checkpoints. ``str`` gives what the user has given. Methods raise OSError unless they say otherwise."""

    @abstractmethod
    def at(self, name: Name | Part) -> str:
        """Where that one is, for people."""

    @abstractmethod
    def complete(self) -> list[Name]:
        """Complete checkpoints, the newest first; none if there is no such place."""

    @abstractmethod
    def parts(self) -> list[Part]:
        """Those that are not complete."""

    @abstractmethod
    def prepare(self) -> None:
        """Make the place, if it has to be made."""

    @abstractmethod
    def write(self, taken: Taken, part: Part) -> int:
        """Write everything but what makes it complete; returns its bytes. Also RuntimeError from torch."""

    @abstractmethod
    def publish(self, part: Part) -> None:
        """Make it complete, under ``part.name``. OSError if there is one of that name, or ``part`` is gone."""

    @abstractmethod
    def remove(self, name: Name | Part) -> None:
        """Remove it, if possible; half of one looks like none at all. Raises nothing."""

    @abstractmethod
    def damage(self, name: Name) -> Exception | None:
        """Why a complete one cannot be loaded; None if it is intact. OSError if the fault is a more general one."""

    @abstractmethod
    def manifest(self, name: Name) -> CheckpointManifest:
        """What a complete one says that it has; its other files are not read. TornError if the manifest is damaged or gone."""

    @abstractmethod
    def newest(self) -> Found | None:
        """The newest intact checkpoint, read, or the one that this place is; None without any. TornError if all are torn."""

    @property
    @abstractmethod
    def single(self) -> Name | None:
        """The checkpoint that this place is, and no place of several; None if it is one of those."""

    @abstractmethod
    def opened(self, name: Name) -> AbstractContextManager[Path]:
        """Within it the checkpoint is in a directory of this host."""

    @property
    @abstractmethod
    def prompt(self) -> bool:
        """Whether ``publish`` takes no longer than a step."""

    @property
    @abstractmethod
    def full(self) -> bool:
        """Whether no space is left there, as far as is known."""

    @abstractmethod
    def shards(self) -> set[int]:
        """Numbers of shards for which there are complete checkpoints here; several if jobs of different ones wrote here."""

    @abstractmethod
    def below(self, folder: str) -> Self:
        """The place of that name in this one; this one if the name is empty."""

    @property
    @abstractmethod
    def parent(self) -> Self:
        """The place that this one lies in."""

    @property
    @abstractmethod
    def shard(self) -> ShardOf | None:
        """Whose checkpoints lie here, by the name of this place; None if it has no such name."""

    def of_shard(self, shard: int, shards: int) -> Self:
        """Where the checkpoints of a shard are; this one if there is one shard."""
        return self.below(shard_folder(shard, shards))

    def whole_names(self, shards: int) -> list[Name]:
        """Checkpoints that all shards have completed here, the newest first."""
        return whole_names(self.of_shard(number, shards).complete() for number in range(shards))

    def check(self, shards: int) -> None:
        """ConfigError if the checkpoints here are of another number of shards."""
        found = set() if self.single is not None else self.shards()
        if found and shards not in found:
            theirs = ", ".join(map(str, sorted(found)))
            raise ConfigError(
                f"load: the checkpoints in {self} are of replicas of {theirs} processes, and these have {shards}: start "
                "as many (ftlib run --shards), or give another directory"
            )


class DirectoryDepot(Depot):
    """A directory."""

    def __init__(self, path: Path) -> None:
        """``path``: absolute."""
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DirectoryDepot) and other._path == self._path

    def __hash__(self) -> int:
        return hash(self._path)

    def at(self, name: Name | Part) -> str:
        """See ``Depot``."""
        return str(self._path / str(name))

    def complete(self) -> list[Name]:
        """See ``Depot``."""
        return complete(self._path)

    def parts(self) -> list[Part]:
        """See ``Depot``."""
        return parts(self._path)

    def prepare(self) -> None:
        """See ``Depot``."""
        self._path.mkdir(parents=True, exist_ok=True)

    def write(self, taken: Taken, part: Part) -> int:
        """See ``Depot``."""
        return taken.write(self._path / str(part))

    def publish(self, part: Part) -> None:
        """See ``Depot``."""
        publish(self._path / str(part), self._path / str(part.name))

    def remove(self, name: Name | Part) -> None:
        """See ``Depot``."""
        remove(self._path / str(name))

    def damage(self, name: Name) -> Exception | None:
        """See ``Depot``."""
        return damage(self._directory(name))

    def manifest(self, name: Name) -> CheckpointManifest:
        """See ``Depot``."""
        return CheckpointManifest.read(self._directory(name))

    def newest(self) -> Found | None:
        """See ``Depot``."""
        return newest(self._path)

    @property
    def single(self) -> Name | None:
        """See ``Depot``."""
        return Name.parse(self._path.name)

    @contextmanager
    def opened(self, name: Name) -> Iterator[Path]:
        """See ``Depot``."""
        yield self._directory(name)

    @property
    def prompt(self) -> bool:
        """See ``Depot``."""
        return True

    @property
    def full(self) -> bool:
        """See ``Depot``."""
        try:
            return shutil.disk_usage(self._path).free < 1 << 20
        except OSError:
            return False

    def shards(self) -> set[int]:
        """See ``Depot``."""
        return shards_in(self._path)

    def below(self, folder: str) -> Self:
        """See ``Depot``."""
        return type(self)(self._path / folder)

    @property
    def parent(self) -> Self:
        """See ``Depot``."""
        return type(self)(self._path.parent)

    @property
    def shard(self) -> ShardOf | None:
        """See ``Depot``."""
        return ShardOf.parse(self._path.name)

    def _directory(self, name: Name) -> Path:
        return self._path if self.single == name else self._path / str(name)


def is_url(path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` is a URL, and no directory of this host."""
    return _URL.match(os.fspath(path)) is not None


def damage(directory: Path) -> Exception | None:
    """Why the checkpoint in ``directory`` cannot be loaded; None if it is intact. Raises OSError if the fault is a more general
    one.
    """
    try:
        CheckpointManifest.read(directory).verify(directory)
    except TornError as error:
        return error
    except OSError as error:
        if error.errno not in OF_ONE:
            raise
        return error
    return None
