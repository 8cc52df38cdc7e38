"""The end of a recovery: the inline part comes again, and digests show that the replayed part equals the others'.

Both are as of one moment: the entry to the call that is to become the joiner's own. They are requested calls ahead. Donors and
joiner read their state while that call is under way; the joiner waits for the answers when the call has ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch
import xxhash

from ...core.calls.learner import NoFollowing
from ...core.calls.session import Session
from ..layout.flat_state import FlatState
from ..layout.manifest import refresh
from .http_transport import FetchError, Later
from .round import Round

T = TypeVar("T")
_UNIT = 8 << 20
_PAUSE = 0.05
"""Seconds before a request that was answered "ask again" is repeated."""


class Verification:
    """The verification as of entry to call ``number``. Owned by the training thread."""

    def __init__(self, round_: Round, session: Session, number: int, go_on: Callable[[], bool], turn: int = 0) -> None:
        """Sends the requests at once. ``go_on``: returns False to end them. ``turn``: chooses the sender of the inline part."""
        self.number = number
        self.session = session
        self._round = round_
        self._go_on = go_on
        self._over = threading.Event()
        self._begun = False
        self._own: list[Future[list[bytes]]] = []
        holders = [session.view.member(holder) for holder in session.plan.holders]
        self._shares = _shares(round_, len(holders))
        self._pool = ThreadPoolExecutor(1 + 2 * len(holders), "ftlib-verify")
        transport, state_id = round_.transport, round_.state_id
        teller = holders[turn % len(holders)]
        self._rest = self._pool.submit(self._until_told, transport.inline, teller, number, state_id, self._wanted)
        self._theirs = [
            self._pool.submit(self._until_told, transport.digest, holder, number, share, state_id, self._wanted)
            for holder, share in zip(holders, self._shares, strict=False)
        ]

    @property
    def begun(self) -> bool:
        """True once this member's state is being read, as of entry to that call."""
        return self._begun  # even if there is nothing to compare: the whole state may be inline

    def begin(self) -> None:
        """Begin to read this member's state: it is as on entry to the call, and stays so until ``holds`` has returned."""
        flat = self._round.flat
        assert flat is not None, "all stripes are here"
        self._own = [self._pool.submit(_digests, flat, share) for share in self._shares]
        self._begun = True

    def holds(self) -> bool:
        """Wait for all digests; True if they are equal. FetchError or Later if a donor did not answer."""
        theirs = [future.result() for future in self._theirs]
        equal = theirs == [future.result() for future in self._own]
        self._rest.result()
        return equal

    def load(self) -> None:
        """Take over the inline part, once the rest is known to be equal. ConfigError if it does not fit."""
        flat, now = self._round.flat, refresh(self._round.registered, self._rest.result())
        assert flat is not None
        if (now.paths, now.nbytes) != (flat.paths, flat.nbytes):
            raise NoFollowing("the optimizer's state has grown since the state was asked for")

    def close(self) -> None:
        """Drop the requests. Idempotent."""
        self._over.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _wanted(self) -> bool:
        return not self._over.is_set() and self._go_on()

    def _until_told(self, ask: Callable[..., T], *arguments: object) -> T:
        """The answer, once the donor is inside the call. FetchError if ``go_on`` returns False before."""
        while True:
            try:
                return ask(*arguments)
            except Later:
                if not self._wanted():
                    raise FetchError("nobody waits for it any more") from None
                self._over.wait(_PAUSE)


def _shares(round_: Round, count: int) -> list[list[tuple[int, int]]]:
    """The shards' ranges, dealt out to ``count`` holders."""
    ranges = [(shard.start, shard.stop) for shard in round_.shards]
    return [share for start in range(count) if (share := ranges[start::count])]


def _digests(flat: FlatState, ranges: list[tuple[int, int]]) -> list[bytes]:
    found = []
    buffer = torch.empty(min(_UNIT, flat.nbytes), dtype=torch.uint8, device="cpu")
    for start, stop in ranges:
        digest = xxhash.xxh3_128()
        for begin in range(start, stop, _UNIT):
            end = min(begin + _UNIT, stop)
            views = flat.views(begin, end)
            if views is None:
                piece = buffer[: end - begin]
                flat.copy_out(begin, end, piece)
                views = [piece.numpy().data]
            for view in views:
                digest.update(view)
        found.append(digest.digest())
    return found
