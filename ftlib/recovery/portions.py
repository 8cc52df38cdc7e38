"""How far the portions of a state are: which are pinned, of which version, and which parameters they hold (see ``stripes``)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from ..follower import NoFollowing
from ..registry import Registered
from .fetch import Offer
from .flat import Ground
from .manifest import portioned, take_over
from .stripes import Stripe, Wave

__all__ = ["Portions"]


class Portions:
    """Of one recovery. Its owner sees to it that one thread at a time is here, but for ``take_over``."""

    def __init__(self, offer: Offer, version: int) -> None:
        """The first is pinned as of ``version``."""
        self._offer = offer
        self._versions = [version]
        self._fresh: list[tuple[int, bytes]] = []
        """Those that were pinned since, with the manifest of their version."""
        self._parameters: list[list[torch.Tensor]] = []

    @property
    def all_pinned(self) -> bool:
        """Whether none is left to ask for."""
        return len(self._versions) == len(self._offer.portions)

    @property
    def fresh(self) -> bool:
        """Whether there is something to take over."""
        return bool(self._fresh)

    def settle(self, registered: Registered, ground: Ground) -> None:
        """This is where they lie. ConfigError where a parameter lies nowhere."""
        self._parameters = portioned(registered, ground, self._offer.portions)

    def next(self, stripes: Sequence[Stripe], have: Collection[int]) -> Wave | None:
        """What is to be asked for next; None where all was, or where two are on their way."""
        missing = {stripe.version for stripe in stripes if stripe.index not in have}
        if self.all_pinned or len(missing) > 1:
            return None
        return Wave(len(self._versions), len(stripes), min(missing, default=self._versions[-1] + 1))

    def add(self, offer: Offer, version: int) -> None:
        """The next one was pinned as of ``version``. NoFollowing where the donors' state is another than it was."""
        if (offer.nbytes, offer.portions) != (self._offer.nbytes, self._offer.portions):
            raise NoFollowing("the optimizer's state has grown since the state was asked for")
        self._fresh.append((len(self._versions), offer.packed))
        self._versions.append(version)

    def pop_fresh(self) -> list[tuple[int, bytes]]:
        """What is to be taken over before anything is replayed."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def take_over(self, registered: Registered, fresh: Sequence[tuple[int, bytes]]) -> None:
        """Of the parameters of these portions, what optimizers keep inline, which is of the same version."""
        for number, packed in fresh:
            take_over(registered, packed, {id(parameter) for parameter in self._parameters[number]})

    def without(self, position: int) -> list[torch.Tensor]:
        """The parameters to which the average of call ``position`` is not to be applied: it is, in what comes of them."""
        later = [number for number, version in enumerate(self._versions) if version > position]
        later += range(len(self._versions), len(self._offer.portions))
        return [parameter for number in later for parameter in self._parameters[number]]
