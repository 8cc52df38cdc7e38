"""The donor's end over HTTP: what a joiner may ask of a member that holds the state, and what it is answered.

Whoever asks has shown that it knows the secret, where there is one (``consensus.serve``). Questions that have to wait, for the
training thread to be inside a call or for a copy to be complete, wait ``POLL`` at most and are then told to ask again; what is
wrong or over is refused in a sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import msgpack
import torch

from ..bucket import Layout
from ..call import Call
from ..errors import ConfigError
from ..phase import Phase
from ..plane import Plane
from ..registry import Registered
from ..session import Session
from ..threads import stand_back
from ..transfer import POLL, Transfer
from . import layouts
from .blocks import blocks, digest_of
from .fetch import LATER, OVER, PATH
from .flat import Ground
from .hold import Hold
from .live import nbytes_of_parameters, stepping
from .manifest import Manifest, split
from .pins import Digest, Pins
from .sending import Sending
from .stripes import LARGE, SMALLEST, Stripe, Wave, cut, portions
from .tutor import Tutor, Wish

__all__ = ["Donor"]

PIECE = 1 << 20
"""Bytes that are handed to the connection at a time, so that a slow reader is not taken for a dead one."""
PATIENCE = 10.0
"""Seconds for digests; less than a joiner's patience with silence."""
_MOST_RANGES = 4096
"""Ranges that one question may name."""

Query = Mapping[str, str]
Chunks = Iterator[bytes | memoryview]


class Donor:
    """One member's, in one lifetime. ``source`` runs on threads of the agent, several at a time."""

    PATH = PATH

    def __init__(self, plane: Plane, transfer: Transfer, layouts_of: Callable[[bytes], Layout | None]) -> None:
        """``layouts_of``: the layout with a signature, of a call that this member made lately."""
        self._plane = plane
        self._transfer = transfer
        self._layout_of = layouts_of
        self._pins = Pins()
        self._sending = Sending(plane)
        self._hold = Hold(plane)
        self._offers: dict[str, object] = {}
        """joiner -> its latest offer, while that is being made. Guarded by the plane's lock."""
        self._looking = plane.threads.lock()
        """Held while the state is looked at: several ask for the same at once, and one answer does for them."""
        self._parts: tuple[Call, tuple[Manifest, Ground]] | None = None
        """A call in progress, and the state on entry to it, where somebody has looked at that. Guarded by the plane's lock."""
        self.tutor = Tutor(plane, transfer, self._pins)
        """What it does for those who wait above ``max_size``."""
        self._asks: dict[str, Callable[[Query], Chunks]] = {
            "averages": self._averages,
            "begin": self._begin,
            "digest": self._digest,
            "inline": self._inline,
            "layout": self._layout,
            "offer": self._offer,
            "release": self._release,
            "send": self._send,
            "stripe": self._stripe,
        }

    def source(self, query: Query) -> Chunks:
        """Serves ``PATH``. LookupError says why there is nothing, or nothing yet."""
        answer = self._asks.get(query.get("ask", ""))
        if answer is None:
            raise LookupError(f"expected ask= one of {', '.join(self._asks)}")
        return answer(query)

    def entering(self, call_number: int) -> None:
        """The training thread has entered a call, or begins it anew."""
        registered, call = self._transfer.registered, self._plane.current
        if registered is not None and not (call is not None and call.changes_state):
            self._pins.watch(stepping(registered))
            self.tutor.entering(call_number)

    def ending(self, call_number: int) -> None:
        """The operations of a call have ended, and whoever carries it out is about to leave it."""
        self._hold.ending(call_number)
        if self._parts is not None:
            with self._plane.changed:
                self._parts = None

    def activated(self, session: Session) -> None:
        """Drop what is kept for members that are gone."""
        lacking = [member_id for member_id in session.view.ids if member_id not in session.plan.holders]
        self._pins.keep_only([*lacking, *self.tutor.guests(session.view)])
        self._hold.forget()
        self._sending.forget()

    def forget(self) -> None:
        """Drop everything."""
        self.tutor.forget()
        with self._plane.changed:
            self._parts = None
        self._pins.forget()
        self._sending.forget()

    # --- what may be asked ---------------------------------------------------------------------------------------------

    def _offer(self, query: Query) -> Chunks:
        joiner, version, origin = _text(query, "joiner"), _number(query, "version"), _text(query, "origin")
        holders, own = _text(query, "holders").split(","), self._plane.member_id
        turn, wants_inline, apart = (_number(query, name) for name in ("turn", "inline", "apart"))
        wave = Wave(*(_number(query, name) for name in ("portion", "first", "keep")))
        if own not in holders:
            raise LookupError(f"holders={','.join(holders)} are others than this member, {own}")
        if apart:
            self._expect(joiner, wave, len(holders))
        with self._hold.asking(version), self._offering(joiner) as offer:
            manifest, ground = self._look(version, origin)
            parts = portions(manifest.borders if apart else (), manifest.nbytes)
            if wave.number >= len(parts):
                raise LookupError(f"portion={wave.number} is none of {len(parts)}")
            start, stop = parts[wave.number]
            stripes = cut(stop - start, holders, turn + wave.number, version, start=start, first_index=wave.first)
            self._arm(joiner, version, [stripe for stripe in stripes if own in stripe.donors], ground, wave.keep, offer)
        found = {
            "nbytes": manifest.nbytes,
            "portions": parts,
            "stripes": len(stripes),
            "ground": manifest.fingerprint,
            "packed": manifest.packed if wants_inline else b"",
        }
        return _pieces(msgpack.packb(found))

    def _stripe(self, query: Query) -> Chunks:
        data = self._pinned(query)
        try:
            spans = list(blocks(_number(query, "offset"), data.numel()))
        except ValueError as error:
            raise LookupError(str(error)) from None
        if self._pins.state_bytes >= LARGE:
            stand_back()  # training goes first; this thread answers nothing else
        return _blocks(data, spans)

    def _send(self, query: Query) -> Chunks:
        numbers = [_number(query, name) for name in ("offset", "count", "rank", "tag")]
        view_id = _text(query, "view")
        data = self._pinned(query)
        offset, count, rank, tag = numbers
        return self._sending.send(data, offset, count, view_id, rank, tag)

    def _digest(self, query: Query) -> Chunks:
        version, origin = _number(query, "version"), _text(query, "origin")
        ranges = _ranges(query)
        with self._hold.asking(version):
            manifest, ground = self._look(version, origin)
            if any(not start < stop <= manifest.nbytes for start, stop in ranges):
                raise LookupError(f"ranges=... is not within the {manifest.nbytes} bytes of the state")
            if sum(stop - start for start, stop in ranges) > manifest.nbytes:  # an optimizer's step waits for it
                raise LookupError(f"ranges=... asks for more than the {manifest.nbytes} bytes of the state")
            with self._plane.changed:
                self._still(version)
                digest = self._pins.digest(ground, version, ranges)
        return _digests(digest)

    def _inline(self, query: Query) -> Chunks:
        version, origin = _number(query, "version"), _text(query, "origin")
        with self._hold.asking(version):
            return _pieces(self._look(version, origin)[0].packed)

    def _begin(self, query: Query) -> Chunks:
        joiner, origin, holders = (_text(query, name) for name in ("joiner", "origin", "holders"))
        turn, version, inline = (_number(query, name) for name in ("turn", "version", "inline"))
        return _pieces(self.tutor.begin(Wish(joiner, origin, holders.split(","), turn, version, bool(inline))))

    def _averages(self, query: Query) -> Chunks:
        return self.tutor.averages(_signature(query))

    def _release(self, query: Query) -> Chunks:
        joiner = _text(query, "joiner")
        with self._plane.changed:
            self._offers.pop(joiner, None)  # what it asked for meanwhile is not wanted any more
        self._pins.release(joiner)
        self._sending.forget()
        self.tutor.released(joiner)
        return iter((b"released",))

    def _layout(self, query: Query) -> Chunks:
        signature = _signature(query)
        found = self._layout_of(signature)
        if found is None:
            raise LookupError(f"no call with signature {signature.hex():.40} was made here lately")
        return iter((layouts.encode(found),))

    # --- inside --------------------------------------------------------------------------------------------------------

    @contextmanager
    def _offering(self, joiner: str) -> Iterator[object]:
        """An offer, from now on the latest for ``joiner``: whatever is still being made for an earlier question is void."""
        offer = object()
        with self._plane.changed:
            self._offers[joiner] = offer
        try:
            yield offer
        finally:
            with self._plane.changed:
                if self._offers.get(joiner) is offer:
                    del self._offers[joiner]

    def _look(self, version: int, origin: str) -> tuple[Manifest, Ground]:
        """The state on entry to call ``version``. Nothing has changed while it was read."""
        plane = self._plane
        self._inside(version, origin)
        with self._looking:
            with plane.changed:
                registered, call, known = self._held(origin), plane.current, self._parts
            found = known[1] if known is not None and known[0] is call else _split(registered, plane.step)
            with plane.changed:
                if plane.finished >= version:  # other words than for a question that came too late: this one did not
                    raise LookupError(f"the state was not read before the end of call {version}: too much of it is inline")
                self._still(version)
                if call is None or plane.current is not call:  # one that was given up, and whose number another has now
                    raise LookupError(f"{LATER}: call {version} was entered anew here")
                self._parts = call, found
        return found

    def _expect(self, joiner: str, wave: Wave, holders: int) -> None:
        """See that there is memory before the portion is pinned: its size is not known before, but for what it is at least."""
        registered = self._transfer.registered
        if registered is None:
            return
        known = LARGE if wave.number else min(LARGE, nbytes_of_parameters(registered))
        if known >= SMALLEST:
            self._pins.expect(joiner, wave.keep, known * min(2, holders) // holders)

    def _inside(self, version: int, origin: str) -> Registered:
        """What is registered, once the training thread is inside call ``version``: the state is what it was on entry."""
        plane = self._plane
        with plane.changed:
            plane.changed.wait_for(
                lambda: plane.in_call(version) or plane.finished >= version or plane.phase is Phase.STOPPED, POLL
            )
            self._still(version)
            return self._held(origin)

    def _still(self, version: int) -> None:
        """LookupError unless inside call ``version``. Under the plane's lock: it stays so while that is held."""
        plane = self._plane
        if plane.phase is Phase.STOPPED:
            raise LookupError("this member has left the job")
        if plane.finished >= version:
            raise LookupError(f"call {version} {OVER}")
        if not plane.in_call(version):
            raise LookupError(f"{LATER}: not inside call {version} yet")
        if plane.current is not None and plane.current.changes_state:
            raise LookupError(f"call {version} is a whole step (execute), whose averages nobody else can apply")

    def _held(self, origin: str) -> Registered:
        registered = self._transfer.registered
        if registered is None:
            raise LookupError("no state is registered here")
        if self._plane.origin != origin:
            later = "" if self._plane.origin else f"{LATER}: "
            raise LookupError(f"{later}this member does not hold that state")
        return registered

    def _arm(self, joiner: str, version: int, stripes: list[Stripe], ground: Ground, keep: int, offer: object) -> None:
        """Pin what was looked at inside call ``version``, instead of what it had of versions before ``keep``.

        LookupError where ``offer`` is not its latest any more.
        """
        plane = self._plane
        with plane.changed:
            self._still(version)
            if self._offers.get(joiner) is not offer:
                raise LookupError(f"{joiner} has asked for something else since, or for nothing any more")
            if plane.session is None or joiner not in plane.session.view:
                raise LookupError(f"{LATER}: {joiner} is no member of this view yet")
            try:
                self._pins.arm(joiner, stripes, ground, version, keep)
            except ValueError as error:
                raise LookupError(str(error)) from None

    def _pinned(self, query: Query) -> torch.Tensor:
        """A stripe's bytes, once its copy is complete."""
        joiner, index, version = _text(query, "joiner"), _number(query, "index"), _number(query, "version")
        self.tutor.seen(joiner)
        data = self._pins.data(joiner, index, version, POLL)
        if data is None:
            raise LookupError(f"{LATER}: stripe {index} of version {version} is not copied yet")
        return data


def _split(registered: Registered, step: int) -> tuple[Manifest, Ground]:
    try:
        return split(registered, step)
    except ConfigError as error:
        raise LookupError(str(error)) from error


def _pieces(data: bytes) -> Chunks:
    view = memoryview(data)
    return iter([view[start : start + PIECE] for start in range(0, len(data), PIECE)])


def _blocks(data: torch.Tensor, spans: list[tuple[int, int]]) -> Chunks:
    """In each block's turn: it is hashed while it is sent."""
    view = data.numpy().data
    for start, stop in spans:
        digest = digest_of(view[start:stop])
        for begin in range(start, stop, PIECE):
            yield view[begin : min(begin + PIECE, stop)]
        yield digest


def _digests(digest: Digest) -> Chunks:
    found = digest.result(PATIENCE)
    if found is None:
        raise ConnectionAbortedError(f"no digests within {PATIENCE:g} s")
    yield from found


def _text(query: Query, name: str) -> str:
    text = query.get(name, "")
    if not text:
        raise LookupError(f"expected {name}=...")
    return text


def _signature(query: Query) -> bytes:
    text = _text(query, "signature")
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise LookupError(f"signature={text!r:.80}: expected hexadecimal digits") from None


def _number(query: Query, name: str) -> int:
    text = query.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise LookupError(f"expected {name}=NUMBER, not {text!r:.80}")
    return int(text)


def _ranges(query: Query) -> list[tuple[int, int]]:
    """START:STOP, with commas between them."""
    groups = [text.split(":") for text in _text(query, "ranges").split(",", _MOST_RANGES)]
    if len(groups) > _MOST_RANGES:
        raise LookupError(f"ranges=...: at most {_MOST_RANGES} at a time")
    if any(len(group) != 2 for group in groups):
        raise LookupError("ranges=...: expected START:STOP, and commas between such pairs")
    return [(_number({"ranges": start}, "ranges"), _number({"ranges": stop}, "ranges")) for start, stop in groups]
