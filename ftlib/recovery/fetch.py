"""The joiner's end: where it gets the state from, and how it does over HTTP (``post``: through the process group).

Every method says in its own words what became of it: ``Later`` (ask again), ``Refused`` (this donor has no such thing, and will
have none), ``FetchError`` (whatever else; what has arrived counts). ``go_on`` is looked at all the time; once it says no,
FetchError ends what is under way.
"""

from __future__ import annotations

import functools
import http.client
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgpack
import torch

from consensus import Answer, KeyRing, Member, SecretError, get

from ..bucket import Layout
from ..errors import FTLibError
from ..threads import SYSTEM, Threads
from . import layouts
from .blocks import BLOCK, DIGEST, blocks, digest_of
from .flat import Ground
from .pace import Pace
from .stripes import Stripe, Wave

__all__ = [
    "LATER",
    "OVER",
    "PATH",
    "SILENCE",
    "FetchError",
    "HttpSource",
    "Later",
    "Offer",
    "Over",
    "Refused",
    "Source",
    "offered",
]

logger = logging.getLogger("ftlib")

PATH = "/recovery"
LATER = "ask again"
"""In a donor's refusal that is none."""
OVER = "is over here"
"""In a donor's refusal of a question that came after the call that it is about."""
SILENCE = 15.0
"""Seconds without a byte after which a donor is given up."""
_FAREWELL = 2.0
"""The same for what is said to it at the end, which it need not hear."""
_PAUSE = 0.05
"""Seconds between two offers asked of a donor that answers at once that it is too busy."""
_MOST = 1 << 30
"""Bytes of what has to be held as a whole: the inline part, a layout."""

GoOn = Callable[[], bool]


class FetchError(FTLibError):
    """Nothing, or not all, came from a donor; the text names it."""


class Refused(FetchError):
    """This donor has no such thing, and will have none: a version that is over, a pin that was dropped."""


class Over(Refused):
    """The question came too late: the donor has finished the call that it is about."""


class Later(FTLibError):
    """The donor is not there yet: ask again. It has kept the question waiting for a while, unless it is too busy."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What the donors have pinned."""

    nbytes: int
    """Of the ground."""
    stripes: int
    """Of the portion."""
    packed: bytes
    """The manifest; empty where nobody was asked for it."""
    portions: tuple[tuple[int, int], ...]
    """Where they begin and end; they make up the ground."""
    failed: Mapping[str, FetchError] = field(default_factory=dict)
    """Holders (ids) who pinned nothing, and why."""


def offered(offer: Offer, stripes: Sequence[Stripe]) -> tuple[Stripe, ...]:
    """The stripes with those donors who pinned them.

    FetchError where one was pinned by nobody (Over where it was too late for one of its donors: it might have pinned it if
    asked earlier), or where they were cut otherwise.
    """
    if len(stripes) != offer.stripes:
        raise FetchError(
            f"the donors cut the state in {offer.stripes} stripes, not in {len(stripes)}: run one release everywhere"
        )
    pinned = []
    for stripe in stripes:
        names = tuple(name for name in stripe.donors if name not in offer.failed)
        if not names:
            late = next((error for name in stripe.donors if isinstance(error := offer.failed[name], Over)), None)
            raise late or FetchError(f"stripe {stripe.index} of the state was pinned by nobody")
        pinned.append(replace(stripe, donors=names))
    return tuple(pinned)


class Source(ABC):
    """Who gives the state. Thread-safe: several stripes come at a time."""

    @abstractmethod
    def offer(
        self,
        holders: Sequence[Member],
        *,
        version: int,
        origin: str,
        turn: int,
        inline_from: str,
        go_on: GoOn,
        wave: Wave | None = None,
    ) -> Offer:
        """Have all ``holders`` pin their stripes, in parallel (see ``stripes.cut``); wait until they are in call ``version``.

        ``wave``: the portion to pin; None for all of the state. ``inline_from``: id of the one that tells the manifest, "" for
        none. FetchError where that one, or all, failed (Over where it was too late for that), or where they do not agree on
        what the state is.
        """

    @abstractmethod
    def stripe(
        self, member: Member, stripe: Stripe, ground: Ground, offset: int, got: Callable[[int], None], go_on: GoOn
    ) -> None:
        """Receive a stripe from ``offset`` bytes (a multiple of ``BLOCK``) in it on, to where it belongs in ``ground``.

        ``got(count)`` after each block that was verified: so many bytes more.
        """

    @abstractmethod
    def digest(self, member: Member, version: int, ranges: Sequence[tuple[int, int]], origin: str, go_on: GoOn) -> list[bytes]:
        """The digests of ranges of the ground as they are at ``version``, in their order."""

    @abstractmethod
    def inline(self, member: Member, version: int, origin: str, go_on: GoOn) -> bytes:
        """The packed inline part at ``version``."""

    @abstractmethod
    def layout(self, member: Member, signature: bytes, go_on: GoOn) -> Layout:
        """That of a call which the member made lately."""

    @abstractmethod
    def release(self, member: Member) -> None:
        """Tell one that nothing more is wanted. It need not be there."""


class HttpSource(Source):
    """Everything over HTTP."""

    def __init__(self, ring: KeyRing | None, own_id: str, *, bandwidth: float = 0.0, threads: Threads = SYSTEM) -> None:
        """``own_id``: this member's. ``bandwidth``: bytes a second at most for all stripes together; 0: no limit."""
        self._ring = ring
        self._own_id = own_id
        self._threads = threads
        self.pace = Pace(bandwidth, threads)
        """What all stripes share, however they come."""

    def offer(
        self,
        holders: Sequence[Member],
        *,
        version: int,
        origin: str,
        turn: int,
        inline_from: str,
        go_on: GoOn,
        wave: Wave | None = None,
    ) -> Offer:
        """See ``Source``: asks each on a thread of its own, until it no longer says "later"."""
        query = {
            "ask": "offer",
            "joiner": self._own_id,
            "version": version,
            "origin": origin,
            "holders": ",".join(member.id for member in holders),
            "turn": turn,
            "apart": int(wave is not None),
            "portion": wave.number if wave is not None else 0,
            "first": wave.first if wave is not None else 0,
            "keep": wave.keep if wave is not None else version,
        }
        told: dict[str, _Told] = {}
        failed: dict[str, FetchError] = {}

        def ask(member: Member) -> None:
            inline = int(member.id == inline_from)
            try:
                told[member.id] = self._until_told(member, {**query, "inline": inline}, go_on)
            except FetchError as error:
                failed[member.id] = error
            except Exception as error:  # noqa: BLE001 - whoever waits for this thread has to learn of it
                failed[member.id] = FetchError(f"{member}: {type(error).__name__}: {error}")

        threads = [self._threads.thread(functools.partial(ask, member), "ftlib-offer") for member in holders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if not told and failed and all(isinstance(error, Over) for error in failed.values()):
            raise next(iter(failed.values()))
        if not told:
            raise FetchError(f"nobody gives the state: {'; '.join(map(str, failed.values())) or 'nobody holds it'}")
        if len({found.ground for found in told.values()}) > 1:
            text = ", ".join(f"{member_id} {found.nbytes} bytes ({found.ground})" for member_id, found in told.items())
            raise FetchError(f"the donors disagree on what the state is: {text}")
        if inline_from in failed:
            raise failed[inline_from]
        one = next(iter(told.values()))
        packed = told[inline_from].packed if inline_from else b""
        return Offer(one.nbytes, one.stripes, packed, one.portions, failed)

    def stripe(
        self, member: Member, stripe: Stripe, ground: Ground, offset: int, got: Callable[[int], None], go_on: GoOn
    ) -> None:
        """See ``Source``: in place wherever the memory is the computer's own."""
        query = {
            "ask": "stripe",
            "joiner": self._own_id,
            "index": stripe.index,
            "version": stripe.version,
            "offset": offset,
        }
        spans = list(blocks(offset, stripe.stop - stripe.start))
        with self.asked(member, query, go_on) as answer:
            for start, stop in spans:
                _continue(member, go_on)
                self._block(member, answer, ground, stripe.start + start, stripe.start + stop, go_on)
                got(stop - start)
            answer.finish()

    def digest(self, member: Member, version: int, ranges: Sequence[tuple[int, int]], origin: str, go_on: GoOn) -> list[bytes]:
        """See ``Source``."""
        text = ",".join(f"{start}:{stop}" for start, stop in ranges)
        with self.asked(member, {"ask": "digest", "version": version, "origin": origin, "ranges": text}, go_on) as answer:
            found = [_exactly(member, answer, DIGEST) for _ in ranges]
            answer.finish()
            return found

    def inline(self, member: Member, version: int, origin: str, go_on: GoOn) -> bytes:
        """See ``Source``."""
        return self._whole(member, {"ask": "inline", "version": version, "origin": origin}, go_on)

    def layout(self, member: Member, signature: bytes, go_on: GoOn) -> Layout:
        """See ``Source``."""
        try:
            found = layouts.decode(self._whole(member, {"ask": "layout", "signature": signature.hex()}, go_on))
        except ValueError as error:
            raise FetchError(f"{member}: {error}") from error
        if not found.signature.startswith(signature):
            raise FetchError(f"{member} answers with another layout than it was asked for")
        return found

    def release(self, member: Member) -> None:
        """See ``Source``."""
        try:
            self._whole(member, {"ask": "release", "joiner": self._own_id}, lambda: True, _FAREWELL)
        except (FetchError, Later) as error:
            logger.debug("%s was not told that its pins are released: %s", member, error)

    # --- for the other kinds of source ---------------------------------------------------------------------------------

    @contextmanager
    def asked(self, member: Member, query: Mapping[str, Any], go_on: GoOn, timeout: float = SILENCE) -> Iterator[Answer]:
        """The answer to ``query``, to be read. What goes wrong, then too, is raised as ``Source`` says."""
        if self._ring is not None and (line := self._ring.renew()) is not None:
            logger.info("%s", line)
        target = f"{PATH}?{urlencode(query)}"
        with _translated(member), get(member.address, target, self._ring, timeout=timeout, go_on=go_on) as answer:
            if answer.status != http.client.OK:
                text = answer.read(1000).decode(errors="replace").strip()
                if LATER in text:
                    raise Later(f"{member}: {text}")
                raise (Over if OVER in text else Refused)(f"{member}: {text or f'status {answer.status}'}")
            yield answer

    # --- inside --------------------------------------------------------------------------------------------------------

    def _whole(self, member: Member, query: Mapping[str, Any], go_on: GoOn, timeout: float = SILENCE) -> bytes:
        """All of a short answer."""
        with self.asked(member, query, go_on, timeout) as answer:
            parts, left = [], _MOST
            while part := answer.read(min(left, BLOCK) or 1):
                parts.append(part)
                left -= len(part)
                if left < 0:
                    raise FetchError(f"{member} answers with more than {_MOST} bytes")
                _continue(member, go_on)
            answer.finish()
            return b"".join(parts)

    def _until_told(self, member: Member, query: Mapping[str, Any], go_on: GoOn) -> _Told:
        while True:
            _continue(member, go_on)
            try:
                return _offered(member, self._whole(member, query, go_on))
            except Later:
                self._threads.sleep(_PAUSE)

    def _block(self, member: Member, answer: Answer, ground: Ground, start: int, stop: int, go_on: GoOn) -> None:
        """Receive bytes ``start`` to ``stop`` of the ground, and what proves them."""
        views = ground.views(start, stop)
        if views is not None:
            for view in views:
                self._fill(member, answer, view, go_on)
            _verify(member, views, _exactly(member, answer, DIGEST))
            return
        buffer = torch.empty(stop - start, dtype=torch.uint8)
        view = buffer.numpy().data
        self._fill(member, answer, view, go_on)
        _verify(member, [view], _exactly(member, answer, DIGEST))
        ground.copy_in(start, buffer)

    def _fill(self, member: Member, answer: Answer, view: memoryview, go_on: GoOn) -> None:
        size = self.pace.piece(BLOCK)
        for start in range(0, len(view), size):
            piece = view[start : start + size]
            if not self.pace.take(len(piece), go_on):
                _continue(member, go_on)
            if answer.readinto(piece) != len(piece):
                raise FetchError(f"{member} broke off")


def _verify(member: Member, views: Sequence[memoryview], digest: bytes) -> None:
    if digest_of(*views) != digest:
        raise FetchError(f"a block arrived damaged from {member}")


def _exactly(member: Member, answer: Answer, count: int) -> bytes:
    data = answer.read(count)
    if len(data) != count:
        raise FetchError(f"{member} broke off")
    return data


def _continue(member: Member, go_on: GoOn) -> None:
    if not go_on():
        raise FetchError(f"what comes from {member} is not wanted any more")


@contextmanager
def _translated(member: Member) -> Iterator[None]:
    """Whatever a connection raises becomes one error."""
    try:
        yield
    except (OSError, EOFError, http.client.HTTPException, ValueError, SecretError) as error:
        raise FetchError(f"{member}: {type(error).__name__}: {error}") from error


class _Told(NamedTuple):
    """One donor's offer. ``ground``: what its streamed tensors are, hashed."""

    nbytes: int
    stripes: int
    ground: str
    packed: bytes
    portions: tuple[tuple[int, int], ...]


def _offered(member: Member, data: bytes) -> _Told:
    try:
        found = msgpack.unpackb(data)
    except Exception as error:
        raise FetchError(f"{member}: its offer is not readable: {error}") from error
    match found:
        case {
            "nbytes": int(nbytes),
            "stripes": int(stripes),
            "ground": str(ground),
            "packed": bytes(packed),
            "portions": list(portions),
        } if all(isinstance(each, list) and [*map(type, each)] == [int, int] for each in portions):
            parts = tuple((start, stop) for start, stop in portions)
            if [0, *(stop for _, stop in parts)] == [*(start for start, _ in parts), nbytes]:
                return _Told(nbytes, stripes, ground, packed, parts)
    raise FetchError(f"{member}: its offer has the wrong shape: run one release everywhere")
