"""What a member does for spares: those who wait above ``max_size`` get its state, and every average from then on.

Nobody waits for a spare. What it asks for is noted, and the training thread sees to it on entry to its next call: it packs
what is inline and has the stripes pinned. Averages it hands to the feed, while somebody listens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import msgpack

from consensus import View

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
from .stripes import Stripe, cut

__all__ = ["Tutor", "Wish", "given"]

GUEST = 30.0
"""Seconds without a question after which a spare's pins are dropped."""
EVERY = 1.0
"""Seconds between two beats of a feed."""

Chunks = Iterator[bytes | memoryview]


@dataclass(slots=True)
class Wish:
    """What a spare asks for: this member's stripes (see ``stripes``), pinned on entry to a call that it has not entered yet."""

    joiner: str
    origin: str
    holders: Sequence[str]
    turn: int
    version: int
    """That call: the same at all donors, as a parameter and what an optimizer keeps of it have to be of one version."""
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
            wishes = [wish for wish in self._wishes if wish.version <= number]
            self._wishes = [wish for wish in self._wishes if wish.version > number]
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
        if plane.origin != plane.authority or call.stand_in:
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

    def guests(self, view: View) -> list[str]:
        """Whose pins are kept though they are not in ``view``."""
        with self._plane.changed:
            return [joiner for joiner in self._guests if joiner not in view]

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

        The answer: the bytes of the ground and its fingerprint, and the manifest of that version, where it is wanted.
        """
        plane = self._plane
        with plane.changed:
            self._held(wish.origin)
            if plane.member_id not in wish.holders:
                raise LookupError(f"holders={','.join(wish.holders)} are others than this member, {plane.member_id}")
            if max(plane.finished, plane.current.number if plane.current else 0) >= wish.version:
                raise LookupError(f"this member is past the beginning of call {wish.version}")
            self._wishes.append(wish)
            plane.changed.wait_for(lambda: wish.settled or plane.phase is Phase.STOPPED, POLL)
            if wish in self._wishes:
                self._wishes.remove(wish)
                raise LookupError(f"{LATER}: call {wish.version} was not entered here meanwhile")
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
        if not origin or plane.origin != origin or plane.lag.calls:
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
            if plane.origin != wish.origin or wish.version != number:
                wish.refused = f"this member does not hold that state, or is past call {wish.version}"
                continue
            stripes = given(manifest.nbytes, wish.holders, wish.turn, number)
            self._pins.arm(wish.joiner, [each for each in stripes if plane.member_id in each.donors], ground, number)
            with plane.changed:
                self._guests[wish.joiner] = plane.threads.now()
            found = {
                "nbytes": manifest.nbytes,
                "ground": manifest.fingerprint,
                "packed": manifest.packed if wish.wants_inline else b"",
            }
            wish.granted = msgpack.packb(found)

    def _expire(self) -> None:
        now, session = self._plane.threads.now(), self._plane.session
        for joiner in [joiner for joiner, seen in self._guests.items() if now - seen > GUEST]:
            del self._guests[joiner]
            if session is None or joiner not in session.view:
                self._pins.release(joiner)


def given(nbytes: int, holders: Sequence[str], turn: int, version: int) -> list[Stripe]:
    """All stripes of a ground of ``nbytes`` for a spare: of one donor each, as nobody waits for it if that one dies."""
    return [replace(stripe, donors=stripe.donors[:1]) for stripe in cut(nbytes, holders, turn, version)]


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
