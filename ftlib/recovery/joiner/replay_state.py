"""The state of a round's replay: the averages that wait, and the version of each chunk of the state."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from ...core.calls.call import Results
from ...core.calls.learner import NoFollowing
from ...core.tensors.staging import Slot
from ...state.registry import Registered
from ..layout.flat_state import FlatState
from ..layout.manifest import by_chunk, take_over
from ..layout.shards import ChunkRequest, Shard
from .http_transport import SnapshotOffer


class PendingAverages:
    """Averages that wait to be replayed, in the order of their calls. The round's lock guards it."""

    def __init__(self, position: int) -> None:
        """``position``: the first call whose average has to be replayed."""
        self.position = position
        """The part of the state that has arrived is as on entry to this call."""
        self.held = 0
        """Bytes of the averages that wait."""
        self.replayed = 0
        self._averages: dict[int, tuple[Results | None, int]] = {}
        """By call, each with the steps granted by then."""
        self._spare: list[Slot] = []

    def __len__(self) -> int:
        return len(self._averages)

    @property
    def there(self) -> bool:
        """True if the next average is here."""
        return self.position in self._averages

    @property
    def next(self) -> Results | None:
        """The next average, which must be here; None if there is nothing to apply."""
        return self._averages[self.position][0]

    @property
    def step(self) -> int:
        """The steps granted when the call of the next average had finished, itself included."""
        return self._averages[self.position][1]

    def keep(self, number: int, results: Results | None, step: int) -> Sequence[Slot] | None:
        """Keep the average of call ``number``, the newest of ``step`` steps. Returns buffers to use instead of those of
        ``results``.
        """
        self._averages[number] = results, step
        if results is None:
            return None
        self.held += results.layout.nbytes
        spare, self._spare = self._spare, []
        return spare

    def done(self) -> None:
        """The next average has been applied."""
        results, _ = self._averages.pop(self.position)
        self.position += 1
        if results is not None:
            self.held -= results.layout.nbytes
            self._spare += results.slots
            self.replayed += 1


class Chunks:
    """The pinned chunks, with their versions and parameters. The round's lock guards everything except ``take_over``."""

    def __init__(self, offer: SnapshotOffer, version: int) -> None:
        """The first chunk is pinned as of ``version``."""
        self._offer = offer
        self._versions = [version]
        self._fresh: list[tuple[int, bytes]] = []
        """Chunks that were pinned since the last ``pop_fresh``, with the manifest of their version."""
        self._parameters: list[list[torch.Tensor]] = []

    @property
    def all_pinned(self) -> bool:
        """True if all chunks have been pinned."""
        return len(self._versions) == len(self._offer.chunks)

    @property
    def fresh(self) -> bool:
        """True if there are chunks to take over."""
        return bool(self._fresh)

    def settle(self, registered: Registered, flat: FlatState) -> None:
        """Find the parameters of each chunk in ``flat``. ConfigError if a parameter is in no chunk."""
        self._parameters = by_chunk(registered, flat, self._offer.chunks)

    def next(self, shards: Sequence[Shard], have: Collection[int]) -> ChunkRequest | None:
        """The chunk to ask for next; None if none is left, or two are on their way."""
        missing = {shard.version for shard in shards if shard.index not in have}
        if self.all_pinned or len(missing) > 1:
            return None
        return ChunkRequest(len(self._versions), len(shards), min(missing, default=self._versions[-1] + 1))

    def add(self, offer: SnapshotOffer, version: int) -> None:
        """The next chunk was pinned as of ``version``. NoFollowing if size or chunks of the donors' state have changed."""
        if (offer.nbytes, offer.chunks) != (self._offer.nbytes, self._offer.chunks):
            raise NoFollowing("the optimizer's state has grown since the state was asked for")
        self._fresh.append((len(self._versions), offer.packed))
        self._versions.append(version)

    def pop_fresh(self) -> list[tuple[int, bytes]]:
        """Chunks to be taken over before anything is replayed."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def take_over(self, registered: Registered, fresh: Sequence[tuple[int, bytes]]) -> None:
        """Take over the inline optimizer state of these chunks' parameters, which is of the same version."""
        for number, packed in fresh:
            take_over(registered, packed, {id(parameter) for parameter in self._parameters[number]})

    def without(self, position: int) -> list[torch.Tensor]:
        """Parameters to which the average of call ``position`` must not be applied: their chunks already include it."""
        later = [number for number, version in enumerate(self._versions) if version > position]
        later += range(len(self._versions), len(self._offer.chunks))
        return [parameter for number in later for parameter in self._parameters[number]]
