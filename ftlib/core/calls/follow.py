"""How a member follows a call of the others: it contributes nothing of its own, and does not know the call beforehand.

A learner does so (see ``learner``), a backup worker, and a member that declines its own call (``Declined``).

Every call begins with an operation whose size all members know: the head of the expected call, or a prelude just as large. So a
member that follows reads in the first trailer what the others are about to do. A layout that is new it gets from one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch

from ...errors import GroupError
from ..tensors.layout import Layout
from ..tensors.staging import Slot, StagingPool
from ..tensors.trailer import Flag, RankRecord, Trailer
from .attempt import UNKNOWN, Attempt, CallDeclined, EnteredObserver, Waits
from .call import Call, Kind, Results
from .learner import NoFollowing
from .session import Session


class NobodyThere(Exception):
    """Every member here follows, some because they are late: no program has entered the call, so it does not begin."""


class Followed(Call):
    """A call of the others, with what a member that follows knows of it."""

    foreign = True

    def __init__(self, began: float, *, veto: bool, may_give_state: bool = False) -> None:
        """``veto``: True if nobody applies averages with inf or nan. ``may_give_state``: see ``Call``."""
        # ``views``: it may turn out to be the program's own call, which then sees the result and may change it at any moment.
        super().__init__(Kind.BARRIER, UNKNOWN, (), weight=0.0, divide=True, views=True)
        self._vetoes = veto
        self.may_give_state = may_give_state
        self.began = began

    @property
    def certain(self) -> bool:
        """False: what is learnt here is true of the others' call in which it was learnt, and they may have given that up since
        and be in another one.
        """
        return False

    def learn(self, layout: Layout) -> None:
        """The call has this layout. NoFollowing if such a call cannot be followed."""
        self.layout, self.nbytes, self.on_devices = layout, layout.nbytes, bool(layout.places)
        self.kind = next((kind for kind in Kind if layout.kind.startswith(kind.value)), Kind.BARRIER)
        self.counts_as_step = self.kind is Kind.AVERAGE
        self.veto = (self.counts_as_step and self._vetoes) or self.kind is Kind.VOTE
        if self.kind is Kind.UNIT:
            raise NoFollowing("the others carry out a whole step (execute), whose averages only they can apply")

    def hear(self, check: bytes) -> None:
        """The others make a call with that ``Layout.check``; empty: nobody makes one."""

    def fill(
        self,
        slot: Slot,
        assumed: float = 1.0,  # noqa: ARG002
        *,
        weighted: bool = True,  # noqa: ARG002
        row: torch.Tensor | None = None,  # noqa: ARG002
        but: Collection[int] = (),  # noqa: ARG002
    ) -> None:
        """Stage values that do not change the result."""
        slot.claim()
        slot.data.fill_(neutral(slot.bucket.op, slot.bucket.dtype))


class Declined(Followed):
    """The program's call in which it has nothing to give, and wants the others' call, whatever that is, to have no result.

    It takes part as a member that follows does, so it need not know what the others are about to do. Its record says that it
    declines, so the call fails at all who finish it. Where all decline there is nothing else to do: with their records the call
    has ended.
    Its batches are used up without a step, as those of any call without a result.
    """

    foreign = False
    declines = True

    def __init__(self, *, veto: bool, batches: int = 0) -> None:
        """``batches``: see ``Call``."""
        super().__init__(0.0, veto=veto)
        self.batches = batches
        self.lacks: Results | None = None
        """The others' result, if they had finished the call with one: it has no place here."""
        self.others = b""
        """The ``Layout.check`` of the call that the others made, as far as this member has heard; empty where nobody did."""
        self.preface = False
        """True if another process of this replica has said that a wrapper makes the call, before one of the program's."""

    def __str__(self) -> str:
        return f"call {self.number}, which this member declines"

    def hear(self, check: bytes) -> None:
        """See ``others``."""
        self.others = check

    def ends_declined(self, *, preface: bool) -> None:
        """See ``Call``."""
        super().ends_declined(preface=preface)
        self.preface = preface

    def deliver(self, results: Results, *, views: bool = False) -> None:  # noqa: ARG002 - there is nothing to deliver to
        """Nobody gets anything."""
        self.lacks = results


class FollowedAttempt(Attempt):
    """One attempt at a call of the others within one session."""

    def __init__(
        self,
        call: Followed,
        session: Session,
        pool: StagingPool,
        waits: Waits,
        layout_of: Callable[[Session, bytes], Layout],
        plane: EnteredObserver | None = None,
    ) -> None:
        """``layout_of``: returns the layout whose signature starts with the bytes; GroupError if no member knows it. The rest:
        see ``Attempt``.
        """
        expected = UNKNOWN if session.expected is None else session.expected
        needed = () if plane is None else plane.needed
        super().__init__(call, session, pool.staging(expected).turn(needed), waits, plane)
        self._followed = call
        self._pool = pool
        self._layout_of = layout_of
        self._expected = expected

    def run(self, record: RankRecord, in_flight: int) -> tuple[Trailer, Results]:
        """See ``Attempt.run``."""
        first = self._first(record)
        assert self._trailer is not None
        said = self._said(self._trailer)
        self._followed.hear(said)
        expected = self._expected is not UNKNOWN and said == self._expected.check
        if not expected and self._trailer.declined:  # the others end it here, too
            self._followed.learn(UNKNOWN)
            raise CallDeclined(f"{self._call} was declined")
        if expected:
            layout, begun = self._expected, [first]
        else:  # that was a prelude
            layout, begun = self._layout_of(self._session, said), []
            self._staging, self._trailer, self._finite = self._pool.staging(layout).turn(()), None, True
        self._followed.learn(layout)
        in_flight = max(in_flight, layout.stages)
        if begun and self._followed.veto:
            self._finite = self._finite and first.check()
        slots = list(begun)
        for number in range(len(begun), len(layout.buckets)):
            if len(self._window) == in_flight:
                self._reap()
            slots.append(self._begin(record, number))
        while self._window:
            self._reap()
        trailer = self._trailer
        assert trailer is not None
        if layout.places:
            self._session.received(accelerated=trailer.accelerated)
        if self._followed.kind is Kind.AVERAGE:  # as the others do
            self._assumed = self._session.divisor if layout.compression is None else trailer.divisor
        return self._ended(slots)

    def _first(self, record: RankRecord) -> Slot:
        """Run the first operation, whose trailer says what the others are about to do; repeat it while nobody is there."""
        while True:
            slot = self._begin(record, 0)
            try:
                self._reap()
            except NobodyThere:
                if self._call.by_backup:
                    raise
                self._trailer = None
            else:
                return slot

    def _begin(self, record: RankRecord, number: int) -> Slot:
        codec = self._session.codec
        slot = self._staging.slot(number, codec.elements)
        self._call.fill(slot)
        if number == 0:
            codec.write(slot.trailer, record, slot.bucket.op)
        self._window.append((self._begin_operations(number, slot), slot))
        return slot

    def _said(self, trailer: Trailer) -> bytes:
        """The check of the members that do not follow; empty if there are none, and some decline. GroupError if theirs differ:
        they find out which of them has to stop.

        NobodyThere if all follow, but late members will come.
        """
        checks = {slot.check for slot in trailer.slots if not slot.flags & Flag.FOLLOWING}
        if not checks and trailer.declined:
            return b""
        if not checks and any(slot.flags & Flag.LATE for slot in trailer.slots):
            raise NobodyThere
        if len(checks) != 1:
            raise GroupError(f"there is no one call to follow: {len(checks)} different ones were entered")
        return next(iter(checks))

    def _check(self, trailer: Trailer) -> None:
        """A member that follows blames nobody; see ``_said``."""
        self._said(trailer)


def neutral(op: str, dtype: torch.dtype) -> int:
    """The neutral element of ``op`` on the wire. Floats are never reduced by MIN or MAX there (see ``dtypes``)."""
    if op == "PRODUCT":
        return 1
    if op == "SUM":
        return 0
    return torch.iinfo(dtype).max if op == "MIN" else torch.iinfo(dtype).min
