"""What the processes of one replica agree on, so that all of them draw the same batches, however far each loader looks ahead.

Each shard's group has rank records of its own, and the processes of a replica draw at moments of their own. The dealing goes
by what follows from the words of all of them, which is the same everywhere: the *agreed* shares of a call, and which of the
batches that are drawn beyond it count. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import msgpack

from .sampling import RESIDUES, Share, read_shares, rows_of

Ahead = tuple[bool, ...]
"""Of each batch that a process has drawn and not used, oldest first: whether it counts, or is a filler."""
_MOST = 1 << 16


@dataclass(frozen=True, slots=True)
class Drawing:
    """What one process of a replica says of a call that it holds."""

    ahead: Ahead = ()
    """Of the batches that it has drawn beyond the call."""
    shares: tuple[Share, ...] = ()
    """Of every replica, in the order of the ranks, as its own shard's records say; empty if nobody draws there."""

    def pack(self) -> bytes:
        """As bytes; none if nobody draws and nothing is drawn."""
        if not self.ahead and not self.shares:
            return b""
        data: bytes = msgpack.packb((pack_ahead(self.ahead), rows_of(self.shares)))
        return data

    @classmethod
    def unpack(cls, data: bytes) -> Drawing:
        """The inverse of :meth:`pack`; ValueError for anything else."""
        if not data:
            return cls()
        try:
            ahead, rows = msgpack.unpackb(data)
        except Exception as error:  # noqa: BLE001 - msgpack raises many kinds; all mean the same here
            raise ValueError(f"what a mate has drawn is not readable: {error}") from None
        return cls(read_ahead(ahead), tuple(read_shares(rows)))

    @classmethod
    def agreed(cls, said: Sequence[Drawing], own: int | None) -> Drawing:
        """What all processes of the replica come to, whoever of them looks. ``own``: the replica's place in ``shares``; None if
        it is not there.

        Saying it again, in the place of what one of them has said, changes nothing.
        """
        length = max(len(each.ahead) for each in said)
        if len({len(each.shares) for each in said}) > 1:  # in one shard nobody draws
            return cls((False,) * length)
        shares = tuple(_together(column) for column in zip(*(each.shares for each in said), strict=True))
        before = {each.shares[own].use for each in said} if own is not None and shares else set()
        if len(before) > 1:  # they were not at the same batch
            return cls((False,) * length, shares)
        return cls(agreed_ahead([each.ahead for each in said]), shares)

    @staticmethod
    def differ(said: Sequence[Drawing]) -> bool:
        """True if the processes of some replica have not used up the same: then the call has no result."""
        if len({len(each.shares) for each in said}) > 1:
            return any(share.samples for each in said for share in each.shares)
        columns = zip(*(each.shares for each in said), strict=True)
        return any(len({share.use for share in column}) > 1 and any(share.samples for share in column) for column in columns)

    def alike(self, other: Drawing) -> bool:
        """False if a member draws in both, and they deal differently: their datasets, sizes or seeds are not the same."""
        pairs = zip(self.shares, other.shares, strict=False)
        return all(one.deal == two.deal for one, two in pairs if one.data_epoch and one.data_epoch == two.data_epoch)


def agreed_ahead(said: Iterable[Ahead]) -> Ahead:
    """As many batches as the farthest process has drawn. Where two differ, nothing counts from there on: one of them has got a
    filler where the other has got the next batch.
    """
    agreed: list[bool] = []
    differ = False
    for column in zip_longest(*said):
        known = set(column) - {None}
        differ = differ or len(known) > 1
        agreed.append(not differ and True in known)
    return tuple(agreed)


def pack_ahead(ahead: Ahead) -> bytes:
    """The number, then a bit for each."""
    ahead = ahead[:_MOST]
    bits = sum(1 << index for index, counts in enumerate(ahead) if counts)
    return len(ahead).to_bytes(3, "little") + bits.to_bytes((len(ahead) + 7) // 8, "little")


def read_ahead(data: bytes) -> Ahead:
    """The inverse of :func:`pack_ahead`; ValueError for anything else."""
    if not isinstance(data, bytes) or len(data) < 3:
        raise ValueError("what is drawn ahead is not readable")
    count, bits = int.from_bytes(data[:3], "little"), int.from_bytes(data[3:], "little")
    if count > _MOST or len(data) != 3 + (count + 7) // 8 or bits >> count:
        raise ValueError("what is drawn ahead has the wrong length")
    return tuple(bool(bits >> index & 1) for index in range(count))


def _together(column: Sequence[Share]) -> Share:
    """One replica's share. It uses up what all of its processes use up, or nothing.

    It is in the newest epoch that any of them has begun, as that one deals already: nobody may be further than the shares say.
    """
    ahead, late = max(share.ahead for share in column), any(share.late for share in column)
    drawing = [share for share in column if share.data_epoch]
    if not drawing:
        return Share(ahead=ahead, late=late)
    if len({share.use for share in column}) == 1:
        return replace(column[0], ahead=ahead, late=late, end=max(share.end for share in column))
    newest = max(drawing, key=lambda share: (share.data_epoch - drawing[0].data_epoch + RESIDUES // 2) % RESIDUES)
    return Share(ahead=ahead, data_epoch=newest.data_epoch, deal=newest.deal, late=late)
