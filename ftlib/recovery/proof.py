"""The end of a recovery: what is small comes anew, and what was replayed is compared with what the others have.

All of it is of one moment: the entry to the call that is to become the joiner's own. It is asked for calls ahead. The donors
look at their state while that call is under way, and so does the joiner; answers are waited for when it has ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch
import xxhash

from ..follower import NoFollowing
from ..session import Session
from .fetch import FetchError, Later
from .flat import Ground
from .manifest import refresh
from .round import Round

__all__ = ["Proof"]

T = TypeVar("T")
_UNIT = 8 << 20
_PAUSE = 0.05
"""Seconds between two questions asked of a donor that has kept the first one waiting in vain."""


class Proof:
    """For one call, ``number``. Owned by the training thread."""

    def __init__(self, round_: Round, session: Session, number: int, go_on: Callable[[], bool], turn: int = 0) -> None:
        """Asks at once. ``go_on``: whether anybody waits for it. ``turn``: chooses who tells what is small."""
        self.number = number
        self.session = session
        self._round = round_
        self._go_on = go_on
        self._over = threading.Event()
        self._begun = False
        self._own: list[Future[list[bytes]]] = []
        holders = [session.view.member(holder) for holder in session.plan.holders]
        self._shares = _shares(round_, len(holders))
        self._pool = ThreadPoolExecutor(1 + 2 * len(holders), "ftlib-proof")
        source, origin = round_.source, round_.origin
        teller = holders[turn % len(holders)]
        self._rest = self._pool.submit(self._until_told, source.inline, teller, number, origin, self._wanted)
        self._theirs = [
            self._pool.submit(self._until_told, source.digest, holder, number, share, origin, self._wanted)
            for holder, share in zip(holders, self._shares, strict=False)
        ]

    @property
    def begun(self) -> bool:
        """Whether the state here was looked at on entry to that call."""
        return self._begun  # not whether there is anything to compare: all of the state may be small

    def begin(self) -> None:
        """The state here is that on entry to the call, and stays so until it has ended and ``holds`` has returned."""
        ground = self._round.ground
        assert ground is not None, "all stripes are here"
        self._own = [self._pool.submit(_digests, ground, share) for share in self._shares]
        self._begun = True

    def holds(self) -> bool:
        """Whether all digests are equal: waits for them. FetchError, Later where a donor did not tell what it was asked."""
        theirs = [future.result() for future in self._theirs]
        equal = theirs == [future.result() for future in self._own]
        self._rest.result()
        return equal

    def load(self) -> None:
        """Take over what is small, once all else is known to be the same. ConfigError where it does not fit."""
        ground, now = self._round.ground, refresh(self._round.registered, self._rest.result())
        assert ground is not None
        if (now.paths, now.nbytes) != (ground.paths, ground.nbytes):
            raise NoFollowing("the optimizer's state has grown since the state was asked for")

    def close(self) -> None:
        """Nothing is wanted any more. Idempotent."""
        self._over.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _wanted(self) -> bool:
        return not self._over.is_set() and self._go_on()

    def _until_told(self, ask: Callable[..., T], *arguments: object) -> T:
        """The answer, once the donor is inside the call; ``go_on`` ends it."""
        while True:
            try:
                return ask(*arguments)
            except Later:
                if not self._wanted():
                    raise FetchError("nobody waits for it any more") from None
                self._over.wait(_PAUSE)


def _shares(round_: Round, count: int) -> list[list[tuple[int, int]]]:
    """The stripes' ranges, dealt out."""
    ranges = [(stripe.start, stripe.stop) for stripe in round_.stripes]
    return [share for start in range(count) if (share := ranges[start::count])]


def _digests(ground: Ground, ranges: list[tuple[int, int]]) -> list[bytes]:
    found = []
    buffer = torch.empty(min(_UNIT, ground.nbytes), dtype=torch.uint8)
    for start, stop in ranges:
        digest = xxhash.xxh3_128()
        for begin in range(start, stop, _UNIT):
            end = min(begin + _UNIT, stop)
            views = ground.views(begin, end)
            if views is None:
                ground.copy_out(begin, end, buffer)
                views = [buffer[: end - begin].numpy().data]
            for view in views:
                digest.update(view)
        found.append(digest.digest())
    return found
