"""Reading the records that a stream deals: in the loader's process, or in its workers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.utils.data

from ...errors import ConfigError

Record = tuple[int, int]
"""A shard's number, and the record's number in it."""
FILLER = -1
"""Instead of a shard's number: any record will do."""
_FEW = 2
"""Records of a filler: batch normalization refuses one."""


class Records(torch.utils.data.Dataset[Any]):
    """The dataset of a stream's loader. Keeps a few shards open, to go on where it stopped."""

    def __init__(self, shards: Sequence[Any], opened: Callable[[Any, int], Iterable[Any]], most: int) -> None:
        """``opened``: yields a shard's records from a given one on. ``most``: shards kept open in one process."""
        self._shards, self._opened, self._most = shards, opened, most
        self.ends = torch.full((len(shards),), -1, dtype=torch.int64, device="cpu").share_memory_()  # type: ignore[no-untyped-call]
        """The sizes of the shards that this process and its loader's workers have read to the end; -1: not yet."""
        self._readers: dict[Record, _Reader] = {}
        """By the record that comes next, the one used last at the end."""
        self._last: list[Any] = []

    def __len__(self) -> int:
        """Count the shards: how many records they hold is known when they have been read."""
        return len(self._shards)

    def __getitem__(self, record: Record) -> Any:
        """Return one record; IndexError if its shard ends before."""
        return self._read(*record, 1)[0]

    def __getitems__(self, records: Sequence[Record]) -> list[Any]:
        """Return the records of a batch that exist; if none does, two records that were read before."""
        batch: list[Any] = []
        groups = itertools.groupby(enumerate(records), lambda item: (item[1][0], item[1][1] - item[0]))
        for (shard, _), group in groups:
            wanted = [record for _, (_, record) in group]
            if shard != FILLER:
                batch.extend(self._read(shard, wanted[0], len(wanted)))
        if batch:
            self._last = [*self._last, *batch[:_FEW]][-_FEW:]
        return batch or self._filler()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is open: a loader's worker opens what it reads."""
        return {**self.__dict__, "_readers": {}}

    def _read(self, shard: int, first: int, count: int) -> list[Any]:
        end = int(self.ends[shard])
        if 0 <= end <= first:
            return []
        reader = self._readers.pop((shard, first), None) or _Reader(self._opened(self._shards[shard], first))
        records = reader.take(count)
        if reader.ended:
            self.ends[shard] = first + len(records) if records else self._count(shard, first)
        else:
            self._readers[shard, first + count] = reader
            while len(self._readers) > self._most:
                self._readers.pop(next(iter(self._readers))).close()
        return records

    def _count(self, shard: int, most: int) -> int:
        """Count the records of a shard that has none from record ``most`` on: who has read its end may have died with that."""
        if not most:
            return 0
        records = iter(self._opened(self._shards[shard], 0))
        count = sum(1 for _ in itertools.islice(records, most))
        _close(records)
        return count

    def _filler(self) -> list[Any]:
        for shard in self._shards if not self._last else ():
            reader = _Reader(self._opened(shard, 0))
            self._last = reader.take(_FEW)
            reader.close()
            if self._last:
                break
        if not self._last:
            raise ConfigError(f"none of the {len(self._shards)} shards of this stream holds a record")
        return list(self._last)


class _Reader:
    """An open shard. It has always looked one record ahead, so that its end is known with its last record."""

    def __init__(self, records: Iterable[Any]) -> None:
        self._records = iter(records)
        self._ahead: list[Any] = []
        self.ended = False

    def take(self, count: int) -> list[Any]:
        """Return the next ``count`` records, or as many as there are."""
        taken = [*self._ahead, *itertools.islice(self._records, count + 1 - len(self._ahead))]
        self._ahead = taken[count:]
        self.ended = not self._ahead
        if self.ended:
            self.close()
        return taken[:count]

    def close(self) -> None:
        """Close the source, if it can be closed."""
        _close(self._records)


def _close(records: Iterator[Any]) -> None:
    close = getattr(records, "close", None)
    if close is not None:
        close()
