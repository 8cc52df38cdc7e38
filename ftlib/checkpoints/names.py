"""The names of checkpoints: which is the newest, and which are left over. Directory names only; no torch.

    step-000000000400-epoch-00000003                   complete, as its name was given to it by one ``rename``
    .step-000000000500-epoch-00000003-57dbaa.part      being written by member 57dbaa, or left over by it

The highest step is the newest; of one step, the highest epoch is. Not the other way round: a job that was restarted as a
whole counts its epochs from 1 again, and goes on from the step it had. Within one run both orders are the same, since a newer
epoch never goes back before a step that could be written.

Where replicas have several processes, each shard has a directory of its own, with checkpoints named like that:

    shard-0-of-2
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

_COMPLETE = re.compile(r"step-(\d{12,})-epoch-(\d{8,})", re.ASCII)
_SHARD = re.compile(r"shard-(\d+)-of-(\d+)", re.ASCII)
_PART = re.compile(r"\.step-(\d{12,})-epoch-(\d{8,})-([0-9A-Za-z]+)\.part", re.ASCII)


class Name(NamedTuple):
    """The name of one checkpoint; the highest is the newest."""

    step: int
    epoch: int

    def __str__(self) -> str:
        return f"step-{self.step:012d}-epoch-{self.epoch:08d}"

    @classmethod
    def parse(cls, text: str) -> Name | None:
        """The inverse of ``str``; None for anything else."""
        match = _COMPLETE.fullmatch(text)
        return None if match is None else cls(int(match[1]), int(match[2]))


class ShardOf(NamedTuple):
    """Which shard a process has, of how many."""

    shard: int
    shards: int

    def __str__(self) -> str:
        return f"shard {self.shard} of {self.shards}"

    @property
    def folder(self) -> str:
        """The name of the folder with its checkpoints, in the job's place; empty if there is one shard."""
        return "" if self.shards == 1 else f"shard-{self.shard}-of-{self.shards}"

    @classmethod
    def parse(cls, text: str) -> ShardOf | None:
        """The inverse of ``folder``; None for anything else."""
        match = _SHARD.fullmatch(text)
        return None if match is None else cls(int(match[1]), int(match[2]))


ALONE = ShardOf(0, 1)


class Part(NamedTuple):
    """The name of a checkpoint that is not complete, and may never be."""

    name: Name
    writer: str

    def __str__(self) -> str:
        return f".{self.name}-{self.writer}.part"

    @classmethod
    def of(cls, name: Name, member_id: str) -> Part:
        """Return the name for the writer ``member_id``."""
        return cls(name, "".join(letter for letter in member_id if letter.isascii() and letter.isalnum()))

    @classmethod
    def parse(cls, text: str) -> Part | None:
        """The inverse of ``str``; None for anything else."""
        match = _PART.fullmatch(text)
        return None if match is None else cls(Name(int(match[1]), int(match[2])), match[3])


def complete(path: Path) -> list[Name]:
    """List complete checkpoints, the newest first; none if there is no such directory. Raises OSError if it cannot be read."""
    return sorted({name for text in _entries(path) if (name := Name.parse(text)) is not None}, reverse=True)


def parts(path: Path) -> list[Part]:
    """List all checkpoints that are not complete."""
    return sorted(part for text in _entries(path) if (part := Part.parse(text)) is not None)


def shard_folder(shard: int, shards: int) -> str:
    """See ``ShardOf.folder``."""
    return ShardOf(shard, shards).folder


def shards_in(path: Path) -> set[int]:
    """Numbers of shards for which there are complete checkpoints in ``path``; several if jobs of different ones wrote there."""
    found = {own.shards for text in _entries(path) if (own := ShardOf.parse(text)) is not None and complete(path / text)}
    return found | ({1} if complete(path) else set())


def whole_names(shards: Iterable[Iterable[Name]]) -> list[Name]:
    """Those that all shards have completed, the newest first. ``shards``: those of each.

    One step in different epochs is not the same: it may have been computed again, by other members.
    """
    return sorted(set.intersection(*(set(names) for names in shards)), reverse=True)


def of_shards(path: Path, shards: int) -> Iterator[list[Name]]:
    """The complete checkpoints of each shard in ``path``. Raises OSError."""
    return (complete(path / shard_folder(shard, shards)) for shard in range(shards))


def _entries(path: Path) -> Iterator[str]:
    try:
        yield from [entry.name for entry in path.iterdir()]
    except FileNotFoundError:
        return
