"""``ElasticStream``: every record of sharded data once an epoch, while members join and leave."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import torch.utils.data

from ...errors import ConfigError
from ..dealing.ranges import Ranges
from ..dealing.replica import Replica
from ..elastic import Elastic, integer
from . import sources
from .reading import FILLER, Record, Records
from .shards import MOST_SHARDS, SPAN, ShardDeal, Shards


class ElasticStream(Elastic):
    """Deals shards to the members of a job: each record is used up once an epoch. Register it: ``register_state(sampler=)``.

    A shard is read by one member, from its beginning to its end. If that member goes, another one goes on at the record after
    the last one that was used up. Until it is registered, it deals to this process alone. Thread-safe. One loop at a time.
    """

    def __init__(
        self,
        shards: Iterable[Any],
        open: Callable[[Any, int], Iterable[Any]],  # noqa: A002 - what it is
        *,
        batch_size: int,
        sizes: Iterable[int] | None = None,
        lanes: int = 1,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        """Take the same arguments at every member; raises ConfigError if they make no sense.

        ``shards``: names, paths, URLs: whatever ``open`` takes. ``open(shard, start)`` yields the shard's records from number
        ``start`` on, the same ones in the same order each time. ``batch_size``: records of each member's batch; the last batch
        of a shard may be smaller. ``sizes``: records of each shard, if known. ``lanes``: shards that a member reads in turn: as
        many as its loader has workers. ``shuffle``: the shards have another order in every epoch; records stay in theirs.
        """
        self.batch_size = integer("batch_size", batch_size, 1)
        lanes, seed, shuffle = integer("lanes", lanes, 1), integer("seed", seed), bool(shuffle)
        if isinstance(shards, str | bytes | os.PathLike):  # else its letters are the shards
            raise ConfigError(f"{shards!r} is one shard: pass a list of them")
        names = list(shards)
        if not 0 < len(names) <= MOST_SHARDS:
            raise ConfigError(f"a stream needs between 1 and {MOST_SHARDS} shards, not {len(names)}")
        counts = None if sizes is None else tuple(integer("sizes", size, 0) for size in sizes)
        if counts is not None and (len(counts) != len(names) or not sum(counts) or max(counts) >= SPAN):
            raise ConfigError(f"sizes= has to tell the records of each of the {len(names)} shards, and not 0 of all")
        made = {
            "shards": len(names),
            "names": zlib.crc32(repr([str(name) for name in names]).encode()),
            "sizes": None if counts is None else zlib.crc32(repr(counts).encode()),
            "batch_size": self.batch_size,
            "lanes": lanes,
            "shuffle": shuffle,
            "seed": seed,
        }
        plan = Shards(len(names), counts, self.batch_size, lanes, shuffle, seed, zlib.crc32(repr(made).encode()))
        self._plan = plan
        self.records = Records(names, open, 2 * lanes)
        """The dataset for a loader: ``DataLoader(stream.records, batch_sampler=stream)``."""
        few = min(2, self.batch_size)
        super().__init__(
            Replica.fresh(plan.before()),
            made,
            [(FILLER, index) for index in range(few)],
            lambda epoch: _Order(plan, epoch, self),
        )

    @classmethod
    def tar(cls, paths: Iterable[str], **options: Any) -> ElasticStream:
        """Return a stream of tar files as WebDataset has them: a record is a dict of the files whose names begin alike.

        ``{"__key__": "dir/0001", "jpg": bytes, "cls": bytes}`` for ``dir/0001.jpg`` and ``dir/0001.cls``, one after the other.
        ``options``: as in the constructor.
        """
        return cls(paths, sources.tar_records, **options)

    @classmethod
    def hugging_face(cls, dataset: Any, **options: Any) -> ElasticStream:
        """Return a stream of a ``datasets.IterableDataset``, as ``load_dataset(..., streaming=True)`` gives it: by its shards.

        ``options``: as in the constructor. Raises ConfigError for a dataset that was shuffled, or mixed from several, without
        a seed: its order is another one at each worker. With one, each epoch has the same order within a shard.
        """
        source = sources.HuggingFace(dataset)
        return cls(range(source.count), source.records, **options)

    def loader(self, **options: Any) -> torch.utils.data.DataLoader[Any]:
        """Return a loader of this stream. ``options``: those of ``torch.utils.data.DataLoader``, as ``num_workers=``."""
        return torch.utils.data.DataLoader(self.records, batch_sampler=self, **options)

    def __len__(self) -> int:
        """Count the batches of a loop, as far as that is known now. Raises TypeError while sizes of shards are not known."""
        with self._changed:
            deal = self._plan.before() if self._drawer.state is None else self._drawer.state.deal
            if not (isinstance(deal, ShardDeal) and deal.counted):
                raise TypeError("how many batches this ElasticStream has is not known before it was read once: give it sizes=")
            return self._drawer.batches(self._asked)

    def _existing(self, epoch: int, batch: Ranges) -> int:
        return len(_Order(self._plan, epoch, self).indices(batch))

    def _ended(self, epoch: int, batch: Ranges) -> int | None:
        order, known = self._plan.order(epoch), self.shard_sizes
        for start, stop in batch:
            rank = start // SPAN
            end = int(self.records.ends[order[rank]])
            if 0 <= end <= stop - rank * SPAN and end < self._plan.size(order[rank], known):
                return rank * SPAN + end
        return None

    @property
    def shard_sizes(self) -> dict[int, int]:
        """Return the sizes of the shards that a member has told of, by number."""
        state = self._drawer.state
        return state.deal.ends if state is not None and isinstance(state.deal, ShardDeal) else {}

    def _difference(self, name: str, theirs: Any, own: Any) -> str:
        if name in ("names", "sizes"):
            return "the state was made with other shards: pass the same list, in the same order, with the same sizes everywhere"
        return super()._difference(name, theirs, own)


class _Order:
    """The records of an epoch, in its order. See ``Order``."""

    def __init__(self, plan: Shards, epoch: int, stream: ElasticStream) -> None:
        self.epoch = epoch
        self._plan, self._stream = plan, stream

    def indices(self, positions: Ranges) -> list[Record]:
        order, known, ends = self._plan.order(self.epoch), self._stream.shard_sizes, self._stream.records.ends
        records: list[Record] = []
        for start, stop in positions:
            rank = start // SPAN
            shard, base = order[rank], rank * SPAN
            size, seen = self._plan.size(shard, known), int(ends[shard])
            last = min(stop - base, size if seen < 0 else min(size, seen))
            records.extend((shard, number) for number in range(start - base, last))
        return records
