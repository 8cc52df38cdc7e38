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
from collections.abc import Iterator
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


def shard_directory(path: Path, shard: int, shards: int) -> Path:
    """Where the checkpoints of a shard are, in the directory ``path`` of the job's; ``path`` itself if there is one shard."""
    return path if shards == 1 else path / f"shard-{shard}-of-{shards}"


def shards_in(path: Path) -> set[int]:
    """Numbers of shards for which there are checkpoints in ``path``: several if jobs of different ones have written there."""
    found = {int(match[2]) for text in _entries(path) if (match := _SHARD.fullmatch(text)) is not None}
    return found | ({1} if complete(path) else set())


def of_all_shards(path: Path, shard: int, shards: int) -> Path | None:
    """The newest checkpoint of ``shard`` in ``path`` for whose step each shard has a complete one; None if there is none."""
    steps = [{name.step for name in complete(shard_directory(path, number, shards))} for number in range(shards)]
    common = set.intersection(*steps)
    own = shard_directory(path, shard, shards)
    return next((own / str(name) for name in complete(own) if name.step in common), None)


def _entries(path: Path) -> Iterator[str]:
    try:
        yield from [entry.name for entry in path.iterdir()]
    except FileNotFoundError:
        return
