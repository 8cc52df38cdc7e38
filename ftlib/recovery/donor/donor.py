"""The donor's side: the HTTP requests that a joiner may send to a member with the state, and the answers.

If the job has a secret, only members that know it get here (``consensus.serve``). A request may have to wait for the training
thread to enter a call, or for a copy to be complete: after ``POLL`` seconds the answer is "ask again". A wrong or late request
is refused in a sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgpack
import torch

from ...common.device_waits import Fence
from ...common.memory import room
from ...common.refusals import Refusal
from ...common.threads import stand_back
from ...common.units import whole_number
from ...core.calls.call import Call, Results
from ...core.calls.observer import Observer, Observers
from ...core.calls.session import Session
from ...core.plane.phase import Phase
from ...core.plane.plane import Plane
from ...core.tensors.layout_book import LayoutBook
from ...core.tensors.staging import Allocate, Slot
from ...errors import ConfigError
from ...state.live import nbytes_of_parameters, stepping
from ...state.registry import Registered
from ..layout import call_layouts
from ..layout.flat_state import FlatState
from ..layout.manifest import Manifest, split
from ..layout.requests import ANY, PATH, PIECE, POLL, Body, noted, pieces
from ..layout.shards import LARGE, SMALLEST, ChunkRequest, Shard, blocks, chunks, cut, digest_of
from .group_sender import GroupSender
from .read_hold import ReadHold
from .replication_sender import ReplicationSender, SnapshotRequest
from .snapshots import Digest, Snapshots

PATIENCE = 10.0
"""Seconds to wait for digests; less than a joiner waits in silence."""
_MOST_RANGES = 4096
"""Maximum number of ranges in one request."""

Query = Mapping[str, str]


class Donor(Observer):
    """The donor of one member in one lifetime. ``source`` runs on threads of the agent, several at a time."""

    PATH = PATH

    def __init__(
        self,
        plane: Plane,
        registered: Callable[[], Registered | None],
        layouts: LayoutBook,
        observers: Observers,
        allocate: Allocate = room,
        allocate_copies: Allocate = room,
    ) -> None:
        """``registered``: returns what the program has registered so far. ``observers``: of this member's calls.

        ``layouts``: of the calls that this member made lately. ``allocate``: returns memory for operations (see ``Framework``).
        ``allocate_copies``: returns memory for copies of the state.
        """
        self._observers = observers
        self._plane = plane
        self._registered = registered
        self._layouts = layouts
        self._snapshots = Snapshots(allocate=allocate_copies)
        self._group_sender = GroupSender(plane)
        self._read_hold = ReadHold(plane)
        self._offers: dict[str, object] = {}
        """joiner -> its latest offer, while the offer is being made. Guarded by the plane's lock."""
        self._newest: dict[str, int] = {}
        """joiner -> the number of its newest request to pin something. Guarded by the plane's lock."""
        self._asking = 0
        """Number of requests in progress. Guarded by the plane's lock."""
        self._looking = plane.threads.lock()
        """Held while the state is read, so that one reading serves several joiners that ask at once."""
        self._parts: tuple[Call, tuple[Manifest, FlatState]] | None = None
        """The call in progress and the state on entry to it, once a joiner has asked. Guarded by the plane's lock."""
        self.sender = ReplicationSender(plane, registered, self._snapshots, allocate)
        """The sender for spares."""
        self._asks: dict[str, Callable[[Query], Body]] = {
            "averages": self._averages,
            "begin": self._begin,
            "digest": self._digest,
            "inline": self._inline,
            "layout": self._layout,
            "offer": self._offer,
            "release": self._release,
            "send": self._send,
            "stripe": self._shard,
        }

    def source(self, query: Query) -> Body:
        """Serves ``PATH``. LookupError says why there is no answer, or none yet."""
        answer = self._asks.get(query.get("ask", ""))
        if answer is None:
            raise LookupError(f"expected ask= one of {', '.join(self._asks)}")
        with self._plane.changed:
            self._asking += 1
            self._observers.attach(self)
        try:
            return answer(query)
        finally:
            with self._plane.changed:
                self._asking -= 1

    # --- the training thread, from the first question on ---------------------------------------------------------------

    def entering(self, number: int) -> None:
        """See ``Observer``."""
        call = self._plane.current
        if self._registered() is not None and not (call is not None and call.changes_state):
            self._watch()
            self.sender.entering(number)

    def ended(self, number: int) -> None:
        """See ``Observer``."""
        self._read_hold.ending(number)
        if self._parts is not None:
            with self._plane.changed:
                self._parts = None

    def finished(self, call: Call, results: Results) -> Sequence[Slot] | None:
        """See ``Observer``.

        Ranges pinned within the call must be copied before the next step, even if the first request came during the call.
        """
        if not (call.changes_state or call.by_backup) and self._plane.state_id == self._plane.current_state_id:
            self._watch()  # else another thread may step the optimizers: a late program, or a joiner's replay
        return self.sender.hand_on(call, results)

    def _watch(self) -> None:
        registered = self._registered()
        if registered is not None:
            self._snapshots.watch(stepping(registered))

    # --- any thread ----------------------------------------------------------------------------------------------------

    def activated(self, session: Session) -> None:
        """Drop everything kept for members that are gone."""
        lacking = [member_id for member_id in session.view.ids if member_id not in session.plan.holders]
        self._snapshots.keep_only([*lacking, *self.sender.standbys(session.view)])
        with self._plane.changed:
            if not (self._asking or self._snapshots.nbytes or self.sender.busy):
                self._observers.detach(self)
                self._newest.clear()
                self._parts = None  # ``ended`` will not be called, and it holds that call's tensors
        self._read_hold.forget()
        self._group_sender.forget()

    def forget(self) -> None:
        """Drop everything."""
        self.sender.forget()
        with self._plane.changed:
            self._parts = None
        self._snapshots.forget()
        self._group_sender.forget()

    # --- what may be asked ---------------------------------------------------------------------------------------------

    def _offer(self, query: Query) -> Body:
        joiner, version, state_id = _text(query, "joiner"), _number(query, "version"), _text(query, "origin")
        holders, own = _text(query, "holders").split(","), self._plane.member_id
        turn, wants_inline, apart = (_number(query, name) for name in ("turn", "inline", "apart"))
        chunk = ChunkRequest(*(_number(query, name) for name in ("portion", "first", "keep")))
        if own not in holders:
            raise LookupError(f"holders={','.join(holders)} are others than this member, {own}")
        if apart:
            self._expect(joiner, chunk, len(holders))
        with self._read_hold.asking(version), self._offering(joiner, _number(query, "request")) as offer:
            manifest, flat = self._look(version, state_id)
            parts = chunks(manifest.borders if apart else (), manifest.nbytes)
            if chunk.number >= len(parts):
                raise LookupError(f"portion={chunk.number} is none of {len(parts)}")
            start, stop = parts[chunk.number]
            shards = cut(stop - start, holders, turn + chunk.number, version, start=start, first_index=chunk.first)
            self._arm(joiner, version, [shard for shard in shards if own in shard.donors], flat, chunk.keep, offer)
        found = {
            "nbytes": manifest.nbytes,
            "portions": parts,
            "stripes": len(shards),
            "ground": manifest.fingerprint,
            "packed": manifest.packed if wants_inline else b"",
        }
        return pieces(msgpack.packb(found))

    def _shard(self, query: Query) -> Body:
        data = self._copied(query)
        try:
            spans = list(blocks(_number(query, "offset"), data.numel()))
        except ValueError as error:
            raise LookupError(str(error)) from None
        if self._snapshots.state_bytes >= LARGE:
            stand_back()  # training goes first; this thread serves only this request
        return self._noted(query, self._watched(query, _blocks(data, spans)))

    def _send(self, query: Query) -> Body:
        numbers = [_number(query, name) for name in ("offset", "count", "rank", "tag")]
        view_id = _text(query, "view")
        data = self._copied(query)
        offset, count, rank, tag = numbers
        return self._noted(query, self._group_sender.send(data, offset, count, view_id, rank, tag))

    def _digest(self, query: Query) -> Body:
        version, state_id = _number(query, "version"), _text(query, "origin")
        ranges = _ranges(query)
        with self._read_hold.asking(version):
            manifest, flat = self._look(version, state_id)
            if any(not start < stop <= manifest.nbytes for start, stop in ranges):
                raise LookupError(f"ranges=... is not within the {manifest.nbytes} bytes of the state")
            if sum(stop - start for start, stop in ranges) > manifest.nbytes:  # an optimizer's step waits for it
                raise LookupError(f"ranges=... asks for more than the {manifest.nbytes} bytes of the state")
            with self._plane.changed:
                self._still(version)
                digest = self._snapshots.digest(flat, version, ranges)
        return _digests(digest)

    def _inline(self, query: Query) -> Body:
        version, state_id = _number(query, "version"), _text(query, "origin")
        with self._read_hold.asking(version):
            return pieces(self._look(version, state_id)[0].packed)

    def _begin(self, query: Query) -> Body:
        joiner, state_id, holders = (_text(query, name) for name in ("joiner", "origin", "holders"))
        turn, version, inline, number = (_number(query, name) for name in ("turn", "version", "inline", "request"))
        with self._plane.changed:
            self._pins(joiner, number)
        return pieces(self.sender.begin(SnapshotRequest(joiner, state_id, holders.split(","), turn, version, bool(inline))))

    def _averages(self, query: Query) -> Body:
        return self.sender.averages(_signature(query))

    def _release(self, query: Query) -> Body:
        joiner, number = _text(query, "joiner"), _number(query, "request")
        self._group_sender.forget()
        with self._plane.changed:
            if self._newest.get(joiner, 0) > number:
                return iter((b"something was asked for since",))
            self._newest.pop(joiner, None)
            self._offers.pop(joiner, None)  # the joiner's pending offer is void
            self._snapshots.release(joiner)
            self.sender.released(joiner)
        return iter((b"released",))

    def _layout(self, query: Query) -> Body:
        signature = _signature(query)
        found = self._layouts.like(signature) if query.get("order") == ANY else self._layouts.find(signature)
        if found is None:
            raise LookupError(f"no call with signature {signature.hex():.40} was made here lately")
        return iter((call_layouts.encode(found),))

    # --- inside --------------------------------------------------------------------------------------------------------

    def _watched(self, query: Query, body: Body) -> Body:
        """A spare lives while it reads: one shard may take it longer than it may be silent."""
        joiner = _text(query, "joiner")
        for piece in body:
            yield piece
            self.sender.seen(joiner)

    def _noted(self, query: Query, body: Body) -> Body:
        return noted(body, self._plane.traces, self._plane.threads.now, _text(query, "joiner"), _number(query, "index"))

    @contextmanager
    def _offering(self, joiner: str, number: int) -> Iterator[object]:
        """A new offer, the latest for ``joiner``: an offer still being made for an earlier request becomes void."""
        offer = object()
        with self._plane.changed:
            self._pins(joiner, number)
            self._offers[joiner] = offer
        try:
            yield offer
        finally:
            with self._plane.changed:
                if self._offers.get(joiner) is offer:
                    del self._offers[joiner]

    def _pins(self, joiner: str, number: int) -> None:
        """Request ``number`` of the joiner's may pin something, which no release of an earlier number concerns."""
        self._newest[joiner] = max(number, self._newest.get(joiner, 0))

    def _look(self, version: int, state_id: str) -> tuple[Manifest, FlatState]:
        """The state on entry to call ``version``; LookupError if that call may have ended while the state was read."""
        plane = self._plane
        self._await(version)
        with self._looking:
            with plane.changed:
                registered, call, known = self._held(state_id), plane.current, self._parts
                fence = None if call is None else call.fence
            found = known[1] if known is not None and known[0] is call else _split(registered, plane.step, fence)
            with plane.changed:
                if plane.finished >= version:  # not OVER: the request came in time
                    raise LookupError(f"the state was not read before the end of call {version}: too much of it is inline")
                self._still(version)
                if call is None or plane.current is not call:  # the call was given up, and another one has its number
                    raise Refusal.LATER.error(f"call {version} was entered anew here")
                self._parts = call, found
        return found

    def _expect(self, joiner: str, chunk: ChunkRequest, holders: int) -> None:
        """Prepare memory before the chunk is pinned. Only a lower bound of its size is known yet."""
        registered = self._registered()
        if registered is None:
            return
        known = LARGE if chunk.number else min(LARGE, nbytes_of_parameters(registered))
        if known >= SMALLEST:
            self._snapshots.expect(joiner, chunk.keep, known * min(2, holders) // holders)

    def _await(self, version: int) -> None:
        """Wait until the training thread is inside call ``version``, so that the state is as on entry. LookupError if not."""
        plane = self._plane
        with plane.changed:
            plane.changed.wait_for(
                lambda: plane.in_call(version) or plane.finished >= version or plane.phase is Phase.STOPPED, POLL
            )
            self._still(version)

    def _still(self, version: int) -> None:
        """LookupError unless inside call ``version``, which cannot end while the caller holds the plane's lock."""
        plane = self._plane
        if plane.phase is Phase.STOPPED:
            raise LookupError("this member has left the job")
        if plane.finished >= version:
            raise Refusal.OVER.error(f"call {version} is over here")
        if not plane.in_call(version):
            raise Refusal.LATER.error(f"not inside call {version} yet")
        if plane.current is not None and plane.current.changes_state:
            raise LookupError(f"call {version} is a whole step (execute), whose averages nobody else can apply")

    def _held(self, state_id: str) -> Registered:
        registered = self._registered()
        if registered is None:
            raise LookupError("no state is registered here")
        if self._plane.state_id != state_id:
            why = "this member does not hold that state"
            raise LookupError(why) if self._plane.state_id else Refusal.LATER.error(why)
        return registered

    def _arm(self, joiner: str, version: int, shards: list[Shard], flat: FlatState, keep: int, offer: object) -> None:
        """Pin ``shards`` of call ``version`` for the joiner, in place of its shards of versions before ``keep``.

        LookupError if ``offer`` is not the joiner's latest any more.
        """
        plane = self._plane
        with plane.changed:
            self._still(version)
            if self._offers.get(joiner) is not offer:
                raise LookupError(f"{joiner} has asked for something else since, or for nothing any more")
            if plane.session is None or joiner not in plane.session.view:
                raise Refusal.LATER.error(f"{joiner} is no member of this view yet")
            try:
                self._snapshots.arm(joiner, shards, flat, version, keep)
            except ValueError as error:
                raise LookupError(str(error)) from None

    def _copied(self, query: Query) -> torch.Tensor:
        """A shard's bytes, once its copy is complete."""
        joiner, index, version = _text(query, "joiner"), _number(query, "index"), _number(query, "version")
        self.sender.seen(joiner)
        data = self._snapshots.data(joiner, index, version, POLL)
        if data is None:
            raise Refusal.LATER.error(f"stripe {index} of version {version} is not copied yet")
        return data


def _split(registered: Registered, step: int, fence: Fence | None) -> tuple[Manifest, FlatState]:
    try:
        if fence is not None:
            fence.share_device()  # ``state_dict`` is the program's code
        return split(registered, step, fence)
    except ConfigError as error:
        raise LookupError(str(error)) from error


def _blocks(data: torch.Tensor, spans: list[tuple[int, int]]) -> Body:
    """The blocks of ``data``, each followed by its digest."""
    view = data.numpy().data
    for start, stop in spans:
        digest = digest_of(view[start:stop])
        for begin in range(start, stop, PIECE):
            yield view[begin : min(begin + PIECE, stop)]
        yield digest


def _digests(digest: Digest) -> Body:
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
    number = whole_number(text)
    if number is None:
        raise LookupError(f"expected {name}=NUMBER, not {text!r:.80}")
    return number


def _ranges(query: Query) -> list[tuple[int, int]]:
    """Parse START:STOP pairs, separated by commas."""
    groups = [text.split(":") for text in _text(query, "ranges").split(",", _MOST_RANGES)]
    if len(groups) > _MOST_RANGES:
        raise LookupError(f"ranges=...: at most {_MOST_RANGES} at a time")
    if any(len(group) != 2 for group in groups):
        raise LookupError("ranges=...: expected START:STOP, and commas between such pairs")
    return [(_number({"ranges": start}, "ranges"), _number({"ranges": stop}, "ranges")) for start, stop in groups]
