"""The joiner's requests over HTTP (``group_transport``: shards through the process group).

Every method raises one of three errors: ``Later`` (ask again), ``Refused`` (this donor has no such thing, and never will) or
``FetchError`` (anything else; bytes that have arrived count). ``go_on`` is polled: once it returns False, FetchError ends the
request.
"""

from __future__ import annotations

import functools
import http.client
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgpack
import torch

from consensus import Answer, CarefulLogger, KeyRing, Member, SecretError, get

from ...common.refusals import Refusal
from ...common.threads import SYSTEM, Threads
from ...core.calls.session import Session
from ...core.plane.plane import Plane
from ...core.tensors.layout import Layout
from ...errors import FTLibError
from ..layout import call_layouts
from ..layout.flat_state import FlatState
from ..layout.requests import ANY, PATH
from ..layout.shards import BLOCK, DIGEST, ChunkRequest, Shard, blocks, digest_of
from .limits import RateLimit

logger = CarefulLogger("ftlib")

SILENCE = 15.0
"""Seconds without a byte after which a donor is given up."""
_FAREWELL = 2.0
"""The same for the release at the end, which may get lost."""
RETRY = 0.5
"""Seconds to wait for a view change if no donor answered; and between two requests to one that is too busy."""
_PAUSE = 0.05
"""Seconds before a request of ``HTTPTransport`` that was answered "ask again" is repeated."""
_NUMBERS = itertools.count(1)
"""Of this process's requests to pin something, or to release it: a release that comes late releases nothing asked for since."""
_MOST = 1 << 30
"""Maximum bytes of an answer that is held as a whole: the inline part, a layout."""

GoOn = Callable[[], bool]


class FetchError(FTLibError):
    """Nothing, or not everything, came from a donor; the text names the donor."""


class Refused(FetchError):
    """This donor has no such thing, and never will: a version that is over, a pin that was dropped."""


class Over(Refused):
    """The request came too late: the donor has finished the call that it names."""


class Nothing(Refused):
    """The donor has registered no state."""


class Unfit(Refused):
    """The donor's state holds a value that cannot be transferred."""


class Later(FTLibError):
    """The donor is not ready yet: ask again. It kept the request waiting for a while, unless it is too busy."""


class Midway(FTLibError):
    """The donor is in a call in the middle of its loop: only after that the state can be had for the beginning of the loop."""


class StillReading(Later):
    """The donor is reading a checkpoint, which may take long."""


@dataclass(frozen=True, slots=True)
class SnapshotOffer:
    """What the donors have pinned."""

    nbytes: int
    """Bytes of the flat state."""
    shards: int
    """Number of shards of the chunk."""
    packed: bytes
    """The manifest; empty if no donor was asked for it."""
    chunks: tuple[tuple[int, int], ...]
    """Begin and end of each chunk; together they make up the flat state."""
    failed: Mapping[str, FetchError] = field(default_factory=dict)
    """By id: the holders that pinned nothing, and why."""


def pinned_shards(offer: SnapshotOffer, shards: Sequence[Shard]) -> tuple[Shard, ...]:
    """The shards, each with the donors that pinned it.

    FetchError if the donors split the state differently, or if no donor pinned some shard. Over if the request came too late
    for one of that shard's donors: asked earlier, it might have pinned it.
    """
    if len(shards) != offer.shards:
        raise FetchError(
            f"the donors cut the state in {offer.shards} stripes, not in {len(shards)}: run one release everywhere"
        )
    pinned = []
    for shard in shards:
        names = tuple(name for name in shard.donors if name not in offer.failed)
        if not names:
            late = next((error for name in shard.donors if isinstance(error := offer.failed[name], Over)), None)
            raise late or FetchError(f"stripe {shard.index} of the state was pinned by nobody")
        pinned.append(replace(shard, donors=names))
    return tuple(pinned)


@contextmanager
def request(
    ring: KeyRing | None, member: Member, path: str, query: Mapping[str, Any], go_on: GoOn, timeout: float = SILENCE
) -> Iterator[Answer]:
    """The answer of ``member``, to be read. Raises Later, Refused; FetchError for all connection errors, also during reads."""
    if ring is not None and (line := ring.follow()) is not None:
        logger.info("%s", line)
    target = f"{path}?{urlencode(query)}"
    try:
        with get(member.address, target, ring, timeout=timeout, go_on=go_on) as answer:
            if answer.status != http.client.OK:
                text = answer.read(1000).decode(errors="replace").strip()
                raise refusal(member, answer.status, text or f"status {answer.status}")
            yield answer
    except (OSError, EOFError, http.client.HTTPException, ValueError, SecretError) as error:
        raise FetchError(f"{member}: {type(error).__name__}: {error}") from error


def refusal(member: Member, status: int, text: str) -> FTLibError:
    """The error for a refusal of ``member`` with ``status``; ``text`` says why."""
    return _REFUSALS.get(status, Refused)(f"{member}: {text}")


def pause_between_requests(plane: Plane, session: Session, asked: float) -> None:
    """Wait before a member whose answer was ``Later`` is asked once more. Returns early if ``session`` ends.

    A donor keeps a request waiting, here the one sent at ``asked``, so the pause is mostly zero. A donor that is too busy
    answers at once: many ask it, and must not keep it busy.
    """
    plane.wait_end(session, max(0.0, asked + RETRY - plane.threads.now()))


_REFUSALS: Mapping[int, type[FTLibError]] = {
    Refusal.LATER: Later,
    Refusal.READING: StillReading,
    Refusal.NOTHING: Nothing,
    Refusal.UNFIT: Unfit,
    Refusal.MIDWAY: Midway,
    Refusal.OVER: Over,
}


class HTTPTransport:
    """One member's requests to its donors over HTTP. Thread-safe: several shards come at a time."""

    def __init__(self, ring: KeyRing | None, own_id: str, *, bandwidth: float = 0.0, threads: Threads = SYSTEM) -> None:
        """``own_id``: this member's. ``bandwidth``: bytes a second at most for all shards together; 0: no limit."""
        self._ring = ring
        self._own_id = own_id
        self._threads = threads
        self.rate_limit = RateLimit(bandwidth, threads)
        """The limit that all shards share."""

    def offer(
        self,
        holders: Sequence[Member],
        *,
        version: int,
        state_id: str,
        turn: int,
        inline_from: str,
        go_on: GoOn,
        chunk: ChunkRequest | None = None,
    ) -> SnapshotOffer:
        """Ask all ``holders`` in parallel to pin their shards (see ``shards.cut``); wait until they are in call ``version``.

        ``chunk``: the chunk to pin; None for the whole state. ``inline_from``: id of the holder that sends the manifest, "" for
        none. FetchError if that holder failed, if all did (Over if all requests came too late), or if the holders disagree on
        what the state is.
        """
        query = {
            "ask": "offer",
            "joiner": self._own_id,
            "request": next(_NUMBERS),
            "version": version,
            "origin": state_id,
            "holders": ",".join(member.id for member in holders),
            "turn": turn,
            "apart": int(chunk is not None),
            "portion": chunk.number if chunk is not None else 0,
            "first": chunk.first if chunk is not None else 0,
            "keep": chunk.keep if chunk is not None else version,
        }
        offers: dict[str, _OneOffer] = {}
        failed: dict[str, FetchError] = {}

        def ask(member: Member) -> None:
            inline = int(member.id == inline_from)
            try:
                offers[member.id] = _offered(member, self._until_told(member, {**query, "inline": inline}, go_on))
            except FetchError as error:
                failed[member.id] = error
            except Exception as error:  # noqa: BLE001 - the waiting thread raises it
                failed[member.id] = FetchError(f"{member}: {type(error).__name__}: {error}")

        threads = [self._threads.thread(functools.partial(ask, member), "ftlib-offer") for member in holders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if not offers and failed and all(isinstance(error, Over) for error in failed.values()):
            raise next(iter(failed.values()))
        if not offers:
            raise FetchError(f"nobody gives the state: {'; '.join(map(str, failed.values())) or 'nobody holds it'}")
        if len({found.fingerprint for found in offers.values()}) > 1:
            text = ", ".join(f"{member_id} {found.nbytes} bytes ({found.fingerprint})" for member_id, found in offers.items())
            raise FetchError(f"the donors disagree on what the state is: {text}")
        if inline_from in failed:
            raise failed[inline_from]
        one = next(iter(offers.values()))
        packed = offers[inline_from].packed if inline_from else b""
        return SnapshotOffer(one.nbytes, one.shards, packed, one.chunks, failed)

    def begin(
        self, member: Member, state_id: str, holders: Sequence[Member], turn: int, version: int, go_on: GoOn, *, inline: bool
    ) -> Begun:
        """For a spare: ask ``member`` to pin its shards on entry to call ``version``, and wait for that without limit.

        Refused if the member is past that entry.
        """
        query = {
            "ask": "begin",
            "joiner": self._own_id,
            "request": next(_NUMBERS),
            "origin": state_id,
            "holders": ",".join(holder.id for holder in holders),
            "turn": turn,
            "version": version,
            "inline": int(inline),
        }
        return _begun(member, self._until_told(member, query, go_on))

    def shard(
        self, member: Member, shard: Shard, flat: FlatState, offset: int, got: Callable[[int], None], go_on: GoOn
    ) -> None:
        """Receive a shard from byte ``offset`` (a multiple of ``BLOCK``) on, into its place in ``flat``.

        In place if the memory is the computer's own. Calls ``got(count)`` after each verified block of ``count`` bytes.
        """
        query = {
            "ask": "stripe",
            "joiner": self._own_id,
            "index": shard.index,
            "version": shard.version,
            "offset": offset,
        }
        spans = list(blocks(offset, shard.stop - shard.start))
        with self.asked(member, query, go_on) as answer:
            for start, stop in spans:
                _continue(member, go_on)
                self._block(member, answer, flat, shard.start + start, shard.start + stop, go_on)
                got(stop - start)
            answer.finish()

    def digest(
        self, member: Member, version: int, ranges: Sequence[tuple[int, int]], state_id: str, go_on: GoOn
    ) -> list[bytes]:
        """The digests of ``ranges`` of the flat state at ``version``, in order."""
        text = ",".join(f"{start}:{stop}" for start, stop in ranges)
        with self.asked(member, {"ask": "digest", "version": version, "origin": state_id, "ranges": text}, go_on) as answer:
            found = [_exactly(member, answer, DIGEST) for _ in ranges]
            answer.finish()
            return found

    def inline(self, member: Member, version: int, state_id: str, go_on: GoOn) -> bytes:
        """The packed inline part at ``version``."""
        return self._whole(member, {"ask": "inline", "version": version, "origin": state_id}, go_on)

    def layout(self, member: Member, signature: bytes, go_on: GoOn) -> Layout:
        """The layout with that signature, of a call that the member made lately."""
        try:
            found = call_layouts.decode(self._whole(member, {"ask": "layout", "signature": signature.hex()}, go_on))
        except ValueError as error:
            raise FetchError(f"{member}: {error}") from error
        if not found.signature.startswith(signature):
            raise FetchError(f"{member} answers with another layout than it was asked for")
        return found

    def layout_like(self, member: Member, own: Layout, go_on: GoOn) -> Layout:
        """The layout with which the member made such a call as that of ``own`` last; the order may differ."""
        query = {"ask": "layout", "signature": own.signature.hex(), "order": ANY}
        try:
            found = call_layouts.decode(self._whole(member, query, go_on))
        except ValueError as error:
            raise FetchError(f"{member}: {error}") from error
        if not found.same_call(own.signature):
            raise FetchError(f"{member} answers with the layout of another call than it was asked for")
        return replace(found, compression=own.compression)

    def release(self, member: Member, number: int) -> None:
        """Ask ``member`` to drop what it has pinned for requests before that ``number``. The member may be gone."""
        query = {"ask": "release", "joiner": self._own_id, "request": number}
        try:
            self._whole(member, query, lambda: True, _FAREWELL)
        except (FetchError, Later) as error:
            logger.debug("%s was not told that its pins are released: %s", member, error)

    def release_all(self, members: Sequence[Member]) -> None:
        """``release`` of all so far at ``members``, on a separate thread. Without one to be had they drop it by and by."""
        number = next(_NUMBERS)

        def tell() -> None:
            for member in members:
                self.release(member, number)

        if not members:
            return
        try:
            threading.Thread(target=tell, name="ftlib-release", daemon=True).start()
        except RuntimeError as error:
            logger.debug("nobody was told that pins are released: %s", error)

    @contextmanager
    def asked(self, member: Member, query: Mapping[str, Any], go_on: GoOn, timeout: float = SILENCE) -> Iterator[Answer]:
        """The answer to ``query``, to be read (see ``request``)."""
        with request(self._ring, member, PATH, query, go_on, timeout) as answer:
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
            return b"".join(parts)

    def _until_told(self, member: Member, query: Mapping[str, Any], go_on: GoOn) -> bytes:
        """All of a short answer, once the donor no longer answers "ask again"."""
        while True:
            _continue(member, go_on)
            try:
                return self._whole(member, query, go_on)
            except Later:
                self._threads.sleep(_PAUSE)

    def _block(self, member: Member, answer: Answer, flat: FlatState, start: int, stop: int, go_on: GoOn) -> None:
        """Receive bytes ``start`` to ``stop`` of the flat state, and their digest."""
        views = flat.views(start, stop)
        if views is not None:
            for view in views:
                self._fill(member, answer, view, go_on)
            _verify(member, views, _exactly(member, answer, DIGEST))
            return
        buffer = torch.empty(stop - start, dtype=torch.uint8, device="cpu")
        view = buffer.numpy().data
        self._fill(member, answer, view, go_on)
        _verify(member, [view], _exactly(member, answer, DIGEST))
        flat.copy_in(start, buffer)

    def _fill(self, member: Member, answer: Answer, view: memoryview, go_on: GoOn) -> None:
        size = self.rate_limit.piece(BLOCK)
        for start in range(0, len(view), size):
            piece = view[start : start + size]
            if not self.rate_limit.take(len(piece), go_on):
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


class Begun(NamedTuple):
    """What one member has pinned for a spare."""

    nbytes: int
    fingerprint: str
    packed: bytes
    view_id: str
    """The view in which the last call contained in this state was computed."""


class _OneOffer(NamedTuple):
    """One donor's offer. ``fingerprint``: that of the manifest."""

    nbytes: int
    shards: int
    fingerprint: str
    packed: bytes
    chunks: tuple[tuple[int, int], ...]


def _begun(member: Member, data: bytes) -> Begun:
    match _unpacked(member, data):
        case {"nbytes": int(nbytes), "ground": str(fingerprint), "packed": bytes(packed), "view": str(view_id)}:
            return Begun(nbytes, fingerprint, packed, view_id)
    raise FetchError(f"{member}: what it has pinned has the wrong shape: run one release everywhere")


def _offered(member: Member, data: bytes) -> _OneOffer:
    match _unpacked(member, data):
        case {
            "nbytes": int(nbytes),
            "stripes": int(shards),
            "ground": str(fingerprint),
            "packed": bytes(packed),
            "portions": list(chunks),
        } if all(isinstance(each, list) and [*map(type, each)] == [int, int] for each in chunks):
            parts = tuple((start, stop) for start, stop in chunks)
            if [0, *(stop for _, stop in parts)] == [*(start for start, _ in parts), nbytes]:
                return _OneOffer(nbytes, shards, fingerprint, packed, parts)
    raise FetchError(f"{member}: its offer has the wrong shape: run one release everywhere")


def _unpacked(member: Member, data: bytes) -> object:
    try:
        return msgpack.unpackb(data)
    except Exception as error:
        raise FetchError(f"{member}: its offer is not readable: {error}") from error
