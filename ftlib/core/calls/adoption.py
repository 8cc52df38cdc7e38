"""Sends a finished call's result to a survivor that was still in that call: the sums in staging, and the data that every member
used up. Verified by digest.

The donor's rebuild thread only starts the sends. Its slots stay untouched until an operation of the next call has finished,
which cannot happen without the adopter. If a transfer fails, the adopter notices, and the next epoch's plan starts over.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence

import torch

from ...data.sampling import packed_shares, unpacked_shares
from ...errors import GroupError, StepMismatch
from ...frameworks.base import Group, Work
from ..tensors.staging import Slot, Staging, land
from .call import Call, CallOutcome, Results

_HEADER = struct.Struct("<4sIQdd??I8s16s16s")
_MAGIC = b"ftl6"
_SHARES_LIMIT = 1 << 20
"""Limit on the size of the members' shares, in bytes."""


class Spoilt(Exception):
    """The results are not those of the call any more."""


def donate(group: Group, rank: int, results: Results) -> None:
    """Start sending ``results`` to ``rank``. ``Spoilt`` if the program has changed them by now."""
    shares = bytearray(packed_shares(results.shares))
    land(results.slots)
    declined = results.outcome is CallOutcome.DECLINED_HERE
    slots = [] if declined else [slot for slot in results.slots if slot.bucket.count]
    rows = [slot.data for slot in slots]
    if results.views:
        rows = [row.clone() for row in rows]  # the program may write there from any moment on, seen yet or not
        if not results.same(dict(zip(slots, rows, strict=True))):
            raise Spoilt(f"the program has changed the result of call {results.number} in place")
    digest, signature = _digest(shares, rows), results.layout.signature
    view_id = bytes.fromhex(results.view_id)
    found = (results.weight, results.assumed, declined, results.outcome is CallOutcome.INTACT)
    header = _HEADER.pack(_MAGIC, len(results.slots), results.number, *found, len(shares), view_id, signature, digest)
    tensors = [torch.frombuffer(data, dtype=torch.uint8) for data in (bytearray(header), shares)]
    tensors += rows
    results.give([group.send(tensor, rank, _tag(results.number, number)) for number, tensor in enumerate(tensors)])


class Adoption:
    """The adopter's side, on the training thread: receive, then verify."""

    def __init__(self, call: Call, group: Group, donor: int, staging: Staging) -> None:
        self._call, self._group, self._donor = call, group, donor
        slots = [staging.slot(number, 0) for number in range(len(call.layout.buckets))]
        self._slots = slots
        self._header = torch.zeros(_HEADER.size, dtype=torch.uint8, device="cpu")

    def receive(self, wait: Callable[[Work, Slot | None], None]) -> Results:
        """The verified results; ``wait`` blocks until a work has ended. GroupError if they do not arrive intact."""
        call = self._call
        wait(self._group.recv(self._header, self._donor, _tag(call.number, 0)), None)
        head = _HEADER.unpack(self._header.numpy().tobytes())
        magic, count, number, weight, assumed, declined, finite, told, view_id, signature, digest = head
        if magic != _MAGIC or number != call.number or told > _SHARES_LIMIT:
            raise GroupError(f"rank {self._donor} donated something else than {call}", (self._donor,))
        if not declined and (signature != call.layout.signature or count != len(self._slots)):
            raise another_call(call)
        row = torch.zeros(told, dtype=torch.uint8, device="cpu")
        wait(self._group.recv(row, self._donor, _tag(call.number, 1)), None)
        filled = [] if declined else [slot for slot in self._slots if slot.bucket.count]
        for index, slot in enumerate(filled, start=2):
            slot.claim()
            wait(self._group.recv(slot.data, self._donor, _tag(call.number, index)), slot)
        shares = row.numpy().tobytes()
        if _digest(shares, [slot.data for slot in filled]) != digest:
            raise GroupError(f"the result of {call} arrived damaged from rank {self._donor}", (self._donor,))
        intact = declined or not call.veto or all(slot.check(norms=call.norms) for slot in self._slots)
        given = (call.number, call.layout, self._slots, weight, intact)
        results = Results(*given, assumed=assumed, view_id=view_id.hex(), declined=declined, views=call.views)
        if not finite:  # perhaps for a reason that is not in the sums: another shard has no result, or it was drawn apart
            results.refuse()
        try:
            results.share(unpacked_shares(shares))
        except ValueError as error:
            raise GroupError(f"rank {self._donor} donated {call} with nonsense: {error}", (self._donor,)) from None
        return results


def another_call(call: Call) -> StepMismatch:
    """The error of a member that is in ``call`` where the others have finished a call with other tensors."""
    return StepMismatch(
        f"{call} was finished by the others with other tensors or another operation: call the same things in the same order "
        "everywhere"
    )


def _digest(shares: bytes | bytearray, rows: Sequence[torch.Tensor]) -> bytes:
    digest = hashlib.blake2b(shares, digest_size=16)
    for row in rows:
        digest.update(row.view(torch.uint8).numpy().data)
    return digest.digest()


def _tag(call: int, index: int) -> int:
    return call % 4096 * 65536 + index + 1
