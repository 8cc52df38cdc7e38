"""``ElasticSampler``: every sample once an epoch, while members join and leave. A ``batch_sampler=`` for a ``DataLoader``."""

from __future__ import annotations

import zlib
from typing import Any

from ..errors import ConfigError
from .dealing.deal import Rounds
from .dealing.permutation import Permutation
from .dealing.replica import Replica
from .elastic import Elastic, integer

_PROBE = 1024
"""Size of the permutation that shows whether two members shuffle alike."""


class ElasticSampler(Elastic):
    """Deals each sample of a dataset to one member of a job, once an epoch. Register it: ``register_state(sampler=)``.

    Until it is registered, it deals to this process alone, as if that were the whole job, so that a program can be tried.
    Thread-safe. One loop over it at a time.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        batch_size: int,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        global_batch: bool = False,
    ) -> None:
        """Take the same arguments at every member; raises ConfigError if they make no sense.

        ``dataset``: anything with a length. ``batch_size``: of each member; with ``global_batch`` of all members together.
        ``seed``: of the shuffling; each epoch has an order of its own. ``drop_last``: leave out the last samples of every epoch
        that do not fill a batch of ``batch_size``, so that all batches are of one size.
        """
        self.batch_size = integer("batch_size", batch_size, 1)
        size = _length(dataset)
        total = size - size % self.batch_size if drop_last else size
        if not total:
            raise ConfigError(
                f"drop_last leaves nothing of {size} samples with batch_size={self.batch_size}: choose a smaller batch_size"
                if size
                else "the dataset is empty: nothing can be sampled from it"
            )
        seed, shuffle = integer("seed", seed), bool(shuffle)
        probe = Permutation(min(size, _PROBE), seed, 0, shuffle=shuffle).indices(((0, min(size, _PROBE)),))
        made = {
            "size": size,
            "batch_size": self.batch_size,
            "shuffle": shuffle,
            "seed": seed,
            "drop_last": bool(drop_last),
            "global_batch": bool(global_batch),
            "order": zlib.crc32(repr(probe).encode()),
        }
        # Two samples, since batch normalization refuses one; a whole batch if the program wants batches of one size.
        few = self.batch_size if drop_last and not global_batch else min(2, self.batch_size)
        super().__init__(
            Replica.fresh(Rounds(self.batch_size, total, whole=bool(global_batch)).before()),
            made,
            [index % size for index in range(few)],
            lambda epoch: Permutation(size, seed, epoch, shuffle=shuffle),
        )

    def _difference(self, name: str, theirs: Any, own: Any) -> str:
        if name == "order":
            return "the state was made with another order of the samples: use the same version of torch everywhere"
        if name == "size":
            return f"the state is of a dataset of {theirs} samples, this one has {own}: use the same data everywhere"
        return super()._difference(name, theirs, own)


def _length(dataset: Any) -> int:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        raise ConfigError(
            f"a dataset of type {type(dataset).__name__} has no length: ElasticSampler needs one that is indexed, "
            "with __len__ and __getitem__; or an ElasticStream, for what is read in shards"
        ) from None
