"""The end of a recovery: what is small comes anew, and what was replayed is compared with what the others have.

All of it is of one moment: the entry to the call that is about to become the joiner's own. The donors are inside it and cannot
finish it before the joiner takes part; digests of large states are computed on both sides while the call is under way.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch
import xxhash

from ..follower import NoFollowing
from ..session import Session
from .fetch import Armed, FetchError, Later
from .flat import Ground
from .manifest import refresh
from .round import Round

__all__ = ["Proof"]

T = TypeVar("T")
_UNIT = 8 << 20


class Proof:
    """For one call, ``number``. Owned by the training thread."""

    def __init__(self, round_: Round, session: Session, number: int, go_on: Callable[[], bool], *, compare: bool) -> None:
        """``compare``: digests too. ``go_on``: whether the session is the active one."""
        self.number = number
        self._round = round_
        self._session = session
        self._go_on = go_on
        self._compare = compare
        self._own: list[Future[list[bytes]]] = []
        self._theirs: list[Armed] = []
        self._pool = ThreadPoolExecutor(1 + 2 * len(session.plan.holders), "ftlib-proof")

    def arm(self) -> None:
        """Returns once the small part is loaded, and every donor's next optimizer step would wait for its digests.

        FetchError, Later; ConfigError where the small part does not fit.
        """
        holders = [self._session.view.member(holder) for holder in self._session.plan.holders]
        shares = self._shares(len(holders)) if self._compare else []
        source, origin = self._round.source, self._round.origin
        rest = self._pool.submit(self._until_told, source.inline, holders[0], self.number, origin, self._go_on)
        armed = [
            self._pool.submit(self._until_told, source.digest, holder, self.number, share, origin, self._go_on)
            for holder, share in zip(holders, shares, strict=False)
        ]
        errors = []
        for future in armed:
            try:
                self._theirs.append(future.result())
            except FetchError as error:
                errors.append(error)
        packed = rest.result()
        if errors:
            raise errors[0]
        ground = self._round.ground
        assert ground is not None
        now = refresh(self._round.registered, packed)
        if (now.paths, now.nbytes) != (ground.paths, ground.nbytes):
            raise NoFollowing("the optimizer's state has grown since the state was asked for")
        self._own = [self._pool.submit(_digests, ground, share) for share in shares]

    def _until_told(self, ask: Callable[..., T], *arguments: object) -> T:
        """The answer, once the donor is inside the call; ``go_on`` ends it."""
        while True:
            try:
                return ask(*arguments)
            except Later:
                if not self._go_on():
                    raise FetchError("the view has changed") from None

    def holds(self) -> bool:
        """Whether all digests are equal: waits for them. FetchError where a donor did not tell its own."""
        theirs = [armed.result() for armed in self._theirs]
        equal = theirs == [future.result() for future in self._own]
        self.close()
        return equal

    def close(self) -> None:
        """Nothing is wanted any more. Idempotent."""
        for armed in self._theirs:
            armed.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _shares(self, count: int) -> list[list[tuple[int, int]]]:
        """The stripes' ranges, dealt out."""
        ranges = [(stripe.start, stripe.stop) for stripe in self._round.stripes]
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
