"""What a member does for spares: those who wait above ``max_size`` get its state, and every average from then on.

Nobody waits for a spare. What it asks for is noted, and the training thread sees to it on entry to its next call: it packs
what is inline and has the stripes pinned. Averages it hands to the feed, while somebody listens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgpack

from ..call import Call, Kind, Results
from ..errors import ConfigError
from ..phase import Phase
from ..plane import Plane
from ..registry import Registered
from ..staging import Slot
from ..transfer import POLL, Transfer
from .feed import Feed, Lesson, Listener
from .fetch import LATER
from .lesson import BEAT, Hello, encode
from .manifest import split
from .pins import Pins
from .stripes import Stripe, cut, spread

__all__ = ["Tutor", "Wish", "given"]

GUEST = 30.0
"""Seconds without a question after which a spare's pins are dropped."""
EVERY = 1.0
"""Seconds between two beats of a feed."""

Chunks = Iterator[bytes | memoryview]


@dataclass(slots=True)
class Wish:
    """What a spare asks for: this member's stripes, pinned on entry to its next call (see ``stripes``)."""

    joiner: str
    origin: str
    holders: Sequence[str]
    turn: int
    window: int
    wants_inline: bool
    """The manifest too."""
    granted: bytes = b""
    refused: str = ""

    @property
    def settled(self) -> bool:
        """Whether the training thread has seen to it."""
        return bool(self.granted or self.refused)


class Tutor:
    """Of one member in one lifetime. Wishes and guests are guarded by the plane's lock."""

    def __init__(self, plane: Plane, transfer: Transfer, pins: Pins) -> None:
        """Nobody asks yet."""
        self._plane = plane
        self._transfer = transfer
        self._pins = pins
        self._feed = Feed(plane.threads)
        self._wishes: list[Wish] = []
        self._guests: dict[str, float] = {}
        """Spares with pins, and when they asked last."""

    # --- the training thread -------------------------------------------------------------------------------------------

    def entering(self, number: int) -> None:
        """It has entered call ``number``, and the pins were told."""
        if not self._wishes and not self._guests:
            return
        with self._plane.changed:
            wishes, self._wishes = self._wishes, []
            self._expire()
        if not wishes:
            return
        try:
            self._grant(wishes, number)
        except Exception as error:  # noqa: BLE001 - whoever asked is told; the training goes on
            for wish in wishes:
                wish.refused = wish.refused or f"{type(error).__name__}: {error}"
        with self._plane.changed:
            self._plane.changed.notify_all()

    def hand_on(self, call: Call, results: Results) -> Sequence[Slot] | None:
        """``call`` has finished. None: the results' slots stay the caller's; else others to use instead of them."""
        if not self._feed.heard:
            return None
        plane = self._plane
        if plane.origin != plane.authority:
            self._feed.end("this member lacks the state itself")
            return None
        layout = results.layout
        applied = call.kind is Kind.AVERAGE and not call.void(results)
        slots, weight = results.slots if applied else (), results.weight
        if applied and not slots:  # alone: what this member did is the result
            slots, weight = tuple(_staged(call)), 1.0
        spare = self._feed.hand(Lesson(results.number, layout.signature, layout.kind, float(weight), slots))
        return spare if results.slots else None

    # --- other threads -------------------------------------------------------------------------------------------------

    def guests(self) -> frozenset[str]:
        """Whose pins are kept though they are in no view."""
        with self._plane.changed:
            return frozenset(self._guests)

    def seen(self, joiner: str) -> None:
        """It asked for something."""
        with self._plane.changed:
            if joiner in self._guests:
                self._guests[joiner] = self._plane.threads.now()

    def released(self, joiner: str) -> None:
        """Its pins are gone."""
        with self._plane.changed:
            self._guests.pop(joiner, None)

    def forget(self) -> None:
        """End all this."""
        with self._plane.changed:
            self._guests.clear()
        self._feed.end("this member has left the job")

    # --- what may be asked (see ``donor``) -----------------------------------------------------------------------------

    def begin(self, wish: Wish) -> bytes:
        """``ask=begin``: see ``Wish``. LookupError says why not, or not yet.

        The answer: the version, the bytes of the ground and its fingerprint, the versions of this member's stripes by index,
        and the manifest of that version, where it is wanted.
        """
        plane = self._plane
        with plane.changed:
            self._held(wish.origin)
            if plane.member_id not in wish.holders:
                raise LookupError(f"holders={','.join(wish.holders)} are others than this member, {plane.member_id}")
            self._wishes.append(wish)
            plane.changed.wait_for(lambda: wish.settled or plane.phase is Phase.STOPPED, POLL)
            if wish in self._wishes:
                self._wishes.remove(wish)
                raise LookupError(f"{LATER}: no call was entered here meanwhile")
            plane.changed.wait_for(lambda: wish.settled, POLL)
        if not wish.granted:
            raise LookupError(wish.refused or f"{LATER}: it takes longer")
        return wish.granted

    def averages(self, signature: bytes) -> Chunks:
        """``ask=averages``: what every call comes to from now on, with the sums of those with that signature."""
        plane = self._plane
        with plane.changed:
            self._held(plane.authority)
            session = plane.session
            if session is None:
                raise LookupError(f"{LATER}: this member is in no view")
            ids = dict.fromkeys((*session.plan.holders, plane.member_id))
            listener = self._feed.listen(signature)
            hello = Hello(plane.finished, plane.origin, tuple(session.view.member(m) for m in ids if m in session.view))
        return _told(listener, hello)

    # --- inside --------------------------------------------------------------------------------------------------------

    def _held(self, origin: str) -> Registered:
        plane, registered = self._plane, self._transfer.registered
        if plane.phase is Phase.STOPPED:
            raise LookupError("this member has left the job")
        if registered is None:
            raise LookupError("no state is registered here")
        if not origin or plane.origin != origin:
            raise LookupError(f"{LATER}: this member does not hold that state")
        return registered

    def _grant(self, wishes: Sequence[Wish], number: int) -> None:
        plane, registered = self._plane, self._transfer.registered
        assert registered is not None
        try:
            manifest, ground = split(registered, plane.step)
        except ConfigError as error:
            for wish in wishes:
                wish.refused = str(error)
            return
        for wish in wishes:
            if plane.origin != wish.origin:
                wish.refused = f"{LATER}: this member does not hold that state"
                continue
            mine = given(wish.holders, wish.turn, plane.member_id, manifest.nbytes)
            pinned = spread(mine, number, wish.window)
            self._pins.release(wish.joiner)  # it begins anew
            self._pins.arm(wish.joiner, pinned, ground, number)
            with plane.changed:
                self._guests[wish.joiner] = plane.threads.now()
            found = {
                "version": number,
                "nbytes": manifest.nbytes,
                "ground": manifest.fingerprint,
                "stripes": [[stripe.index, stripe.version] for stripe in pinned],
                "packed": manifest.packed if wish.wants_inline else b"",
            }
            wish.granted = msgpack.packb(found)

    def _expire(self) -> None:
        now, session = self._plane.threads.now(), self._plane.session
        for joiner in [joiner for joiner, seen in self._guests.items() if now - seen > GUEST]:
            del self._guests[joiner]
            if session is None or joiner not in session.view:
                self._pins.release(joiner)


def given(holders: Sequence[str], turn: int, giver: str, nbytes: int) -> list[Stripe]:
    """The stripes of a ground of ``nbytes`` that ``giver`` gives a spare: of one donor each, as nobody waits for it."""
    return [stripe for stripe in cut(nbytes, holders, turn, 0, 0) if stripe.donors[0] == giver]


def _staged(call: Call) -> Iterator[Slot]:
    """The call's inputs, unweighted."""
    weight, call.weight = call.weight, 1.0
    try:
        for bucket in call.layout.buckets:
            slot = Slot(bucket, 0)
            call.fill(slot)
            yield slot
    finally:
        call.weight = weight


def _told(listener: Listener, hello: Hello) -> Chunks:
    try:
        yield from hello.encode()
        while True:
            lesson = listener.next(EVERY)
            if lesson is None:
                yield BEAT
            else:
                yield from encode(lesson, listener.signature)
    finally:
        listener.close()
