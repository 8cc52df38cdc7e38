"""What a round knows of its replay: the averages that wait, and of which version each chunk of the state is."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from ...core.calls.call import Results
from ...core.calls.follower import NoFollowing
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
        """The part of the state that is here is that on entry to this call."""
        self.held = 0
        """Bytes of the averages that wait."""
        self.replayed = 0
        self._averages: dict[int, Results | None] = {}
        self._spare: list[Slot] = []

    def __len__(self) -> int:
        return len(self._averages)

    @property
    def there(self) -> bool:
        """Whether the next one is here."""
        return self.position in self._averages

    @property
    def next(self) -> Results | None:
        """The next one, which is here; None where there is nothing to apply."""
        return self._averages[self.position]

    def keep(self, number: int, results: Results | None) -> Sequence[Slot] | None:
        """Keep that of call ``number``. Returns buffers to use instead of those of ``results``."""
        self._averages[number] = results
        if results is None:
            return None
        self.held += results.layout.nbytes
        spare, self._spare = self._spare, []
        return spare

    def done(self) -> None:
        """The next one has been applied."""
        results = self._averages.pop(self.position)
        self.position += 1
        if results is not None:
            self.held -= results.layout.nbytes
            self._spare += results.slots
            self.replayed += 1


class Chunks:
    """Which chunks are pinned, of which version, with which parameters. The round's lock guards it, but for ``take_over``."""

    def __init__(self, offer: SnapshotOffer, version: int) -> None:
        """The first is pinned as of ``version``."""
        self._offer = offer
        self._versions = [version]
        self._fresh: list[tuple[int, bytes]] = []
        """Chunks that were pinned since, with the manifest of their version."""
        self._parameters: list[list[torch.Tensor]] = []

    @property
    def all_pinned(self) -> bool:
        """Whether none is left to ask for."""
        return len(self._versions) == len(self._offer.chunks)

    @property
    def fresh(self) -> bool:
        """Whether there is something to take over."""
        return bool(self._fresh)

    def settle(self, registered: Registered, flat: FlatState) -> None:
        """Find the parameters of each chunk in ``flat``. ConfigError where one is in none."""
        self._parameters = by_chunk(registered, flat, self._offer.chunks)

    def next(self, shards: Sequence[Shard], have: Collection[int]) -> ChunkRequest | None:
        """The chunk to ask for next; None where none is left, or two are on their way."""
        missing = {shard.version for shard in shards if shard.index not in have}
        if self.all_pinned or len(missing) > 1:
            return None
        return ChunkRequest(len(self._versions), len(shards), min(missing, default=self._versions[-1] + 1))

    def add(self, offer: SnapshotOffer, version: int) -> None:
        """The next one was pinned as of ``version``. NoFollowing where the donors' state is another than it was."""
        if (offer.nbytes, offer.chunks) != (self._offer.nbytes, self._offer.chunks):
            raise NoFollowing("the optimizer's state has grown since the state was asked for")
        self._fresh.append((len(self._versions), offer.packed))
        self._versions.append(version)

    def pop_fresh(self) -> list[tuple[int, bytes]]:
        """Chunks to be taken over before anything is replayed."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def take_over(self, registered: Registered, fresh: Sequence[tuple[int, bytes]]) -> None:
        """Take over what optimizers keep inline of these chunks' parameters: it is of the same version."""
        for number, packed in fresh:
            take_over(registered, packed, {id(parameter) for parameter in self._parameters[number]})

    def without(self, position: int) -> list[torch.Tensor]:
        """Parameters to which the average of call ``position`` must not be applied: their chunks arrive with it applied."""
        later = [number for number, version in enumerate(self._versions) if version > position]
        later += range(len(self._versions), len(self._offer.chunks))
        return [parameter for number in later for parameter in self._parameters[number]]
