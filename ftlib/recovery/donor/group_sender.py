"""The donor's end of sending shards through the process group; the joiner's end is ``joiner.group_transport``."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import torch

from ...common.refusals import Refusal
from ...core.plane.plane import Plane
from ...frameworks.base import Work
from ..layout.requests import FIRST_TAG, RUN
from ..layout.shards import blocks, digest_of


class GroupSender:
    """Starts sends and keeps them until they have ended. Thread-safe."""

    def __init__(self, plane: Plane) -> None:
        """Nothing is under way."""
        self._plane = plane
        self._lock = threading.Lock()
        self._kept: list[tuple[Work, torch.Tensor]] = []

    def send(self, data: torch.Tensor, offset: int, count: int, view_id: str, rank: int, tag: int) -> Iterator[bytes]:
        """Start sending ``count`` blocks of a shard's ``data``, from ``offset`` bytes on, to ``rank``; yields their digests.

        The blocks have the tags ``tag``, ``tag + 1``, ... All sends are under way when this returns, even if the request then
        fails. LookupError if they cannot be sent.
        """
        if not (1 <= count <= RUN and tag >= FIRST_TAG):
            raise LookupError(f"expected count of 1 to {RUN}, and tag of at least {FIRST_TAG}")
        try:
            spans = [span for span, _ in zip(blocks(offset, data.numel()), range(count), strict=False)]
        except ValueError as error:
            raise LookupError(str(error)) from None
        if len(spans) != count:
            raise LookupError(f"the stripe ends before {count} blocks from {offset} on")
        session = self._plane.session
        if session is None or session.view.view_id != view_id or not self._plane.acting_in(session):
            raise Refusal.LATER.error(f"this member does not act in view {view_id}")
        group = session.group
        if group is None or not 0 <= rank < session.size or rank == session.rank:
            raise LookupError(f"rank={rank} is no other member of {session.view}")
        pieces = [data[start:stop] for start, stop in spans]
        works = [(group.send(piece, rank, tag + number), piece) for number, piece in enumerate(pieces)]
        with self._lock:
            self._kept = [kept for kept in self._kept if not kept[0].done()] + works
        return _told(pieces)

    def forget(self) -> None:
        """Drop the sends that have ended."""
        with self._lock:
            self._kept = [kept for kept in self._kept if not kept[0].done()]


def _told(pieces: Sequence[torch.Tensor]) -> Iterator[bytes]:
    for piece in pieces:
        yield digest_of(piece.numpy().data)
