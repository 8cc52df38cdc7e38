"""What the calls need of a sampler: the interface between the calls and the dealing of samples.

A sampler's state is *replicated*: every member computes the same state from the rank records of every finished call, and from
the reports of a view change. Nothing is requested over the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Protocol, runtime_checkable

import msgpack

RESIDUES = 255
"""A share has its data epoch modulo that."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one member's rank record says of its samples (see ``trailer.RankRecord``)."""

    samples: int = 0
    """Samples of the real batches that this call uses up."""
    ahead: int = 0
    """Batches drawn beyond this call's, or yet to be drawn beside it, fillers included."""
    dropped: int = 0
    """Batches drawn before this call's that were never used and go back."""
    data_epoch: int = 0
    """The data epoch modulo 255, plus 1; 0: this member draws nothing."""
    deal: int = 0
    """Checksum of the replicated state on entry to the call, 16 bits. Only shares with ``data_epoch`` not 0 have to agree."""
    late: bool = False
    """Whether the share is a backup worker's: this member draws nothing, but no loop ends before this member's own."""
    end: int = 0
    """The position, plus 1, from which on a shard does not exist, as this member has read it to its end; 0: none to tell."""

    @property
    def use(self) -> tuple[int, int, int]:
        """What is used up, and of which epoch: where the shares of two have the same, both were at the same batch."""
        return self.data_epoch, self.samples, self.dropped


@runtime_checkable
class Sampling(Protocol):
    """A sampler as the calls see it. Thread-safe: draws come from other threads."""

    def bind(self, drawer: str, *, patience: float, together: bool = False, blocking: Callable[[], str] = str) -> None:
        """Set the name under which this member draws: its id, or its replica's name. Called again at the beginning of each new
        lifetime, which has no state until it loads one.

        ``patience``: seconds that a draw waits for a call's end. ``together``: several processes draw under that name, all the
        same batches. ``blocking``: returns in words whom a call under way waits for.
        """

    def found(self, drawers: Sequence[str]) -> None:
        """Deal to those in the founding view, or to one alone. Idempotent; not after the first call."""

    def begin(self, batches: int, *, beside: int = 0, kept: bool = False) -> Share:
        """Return the share of a call of the program's: the same for every attempt until the call ends. Draws wait meanwhile;
        ``beside``: they go on, for so many batches of the program's, and no loop ends or begins.

        Should the call end unfinished, and the program draw before its next call, its batches go back; ``kept``: they do not,
        and the next call uses up these and more.
        """

    def weight(self, batches: int) -> float:
        """Count the real samples of the next ``batches`` batches."""

    def follow(self) -> Share:
        """Return the share in a call that is not the program's: nothing used up, data epoch 0."""

    def late(self) -> Share:
        """Return the share in a backup worker's call: nothing used up, and how much longer the program's loop will be."""

    @property
    def loops(self) -> int:
        """How many loops have begun. Of the loop before the newest one no batch can be used up any more."""

    @property
    def closing(self) -> bool:
        """Whether the epoch is complete, and all members go on until their loops end together."""

    @property
    def complete(self) -> bool:
        """Whether the epoch is complete, and no other has begun: a loader may still hold batches of it."""

    def finished(self, shares: Mapping[str, Share], step: int) -> None:
        """Apply a finished call; in the calls' order, once the state is here. ``step``: ``ft.step`` after the call."""

    def unfinished(self) -> None:
        """Note that the program's call ended without being finished."""

    def left_behind(self, shares: Mapping[str, Share], step: int, batches: int) -> bool:
        """Whether the others leave their loop after a call, or the next one, but this member does not. Changes nothing.

        ``batches``: what the call would use up here. The state loaded last is the state on entry to the call.
        """

    def ahead(self, own: Share | None = None) -> Sequence[bool]:
        """Return of each batch that is drawn beyond the call under way whether it counts, or is a filler.

        ``own``: the share of this member, or of its replica, that the call has ended with. None counts if that is not what this
        member has said, since the batches come after one that is not used up.
        """

    def level(self, ahead: Sequence[bool]) -> None:
        """The call under way is about to finish: have drawn beyond it what all processes of the replica have agreed on."""

    def report(self) -> bytes:
        """Return how much is drawn, at most 64 bytes for the flush report. Until ``activated``, no more is drawn than that."""

    def activated(self, drawers: Sequence[str], reports: Mapping[str, Sequence[bytes]]) -> None:
        """Deal again, in a new view. ``reports``: of those that go on, one of each process of a replica; without an entry there
        was none. At a member that adopts a result: called after ``finished``.
        """

    def thawed(self, error: Exception | None) -> None:
        """End the freeze without a new view, since the lifetime is over. Draws raise ``error``; None: they return fillers."""

    def state_dict(self) -> dict[str, Any]:
        """Copy the replicated state as of the last finished call: plain values."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a replicated state, of another member or from a checkpoint."""


def packed_shares(shares: Mapping[str, Share]) -> bytes:
    """Return the shares as bytes, for a member that adopts the call's result."""
    data: bytes = msgpack.packb((list(shares), rows_of(shares.values())))
    return data


def unpacked_shares(data: bytes) -> Mapping[str, Share]:
    """The inverse of :func:`packed_shares`; ValueError for anything else."""
    try:
        names, rows = msgpack.unpackb(data)
        if all(type(name) is str for name in names):
            return dict(zip(names, read_shares(rows), strict=True))
    except Exception as error:  # noqa: BLE001 - msgpack raises many kinds; all mean the same here
        raise ValueError(f"shares are not readable: {error}") from None
    raise ValueError("shares have the wrong shape")


def rows_of(shares: Iterable[Share]) -> list[tuple[int | bool, ...]]:
    """The shares as plain values, for :func:`read_shares`."""
    return [astuple(share) for share in shares]


def read_shares(rows: Iterable[Sequence[Any]]) -> list[Share]:
    """The inverse of :func:`rows_of`; ValueError for anything else."""
    shares = []
    for samples, ahead, dropped, data_epoch, deal, late, end in rows:
        numbers = (samples, ahead, dropped, data_epoch, deal, end)
        if type(late) is not bool or any(type(number) is not int or number < 0 for number in numbers):
            raise ValueError("shares have the wrong shape")
        shares.append(Share(samples, ahead, dropped, data_epoch, deal, late, end))
    return shares
