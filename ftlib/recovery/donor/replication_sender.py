"""The replication sender: serves warm standbys, the spares that wait above ``max_size``.

A spare gets the state once, and from then on a record of every call. No member waits for a spare: its request is noted, and the
training thread grants the request on entry to the call that it names, by packing the inline part and pinning the shards.
Finished calls go to the stream while it has subscribers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import msgpack

from consensus import View

from ...common.memory import room
from ...common.refusals import Refusal
from ...core.calls.call import Call, Kind, Results
from ...core.plane.phase import Phase
from ...core.plane.plane import Plane
from ...core.tensors.device_copies import under_way
from ...core.tensors.staging import Allocate, Slot
from ...errors import ConfigError
from ...state.registry import Registered
from ..layout.manifest import split
from ..layout.replication_log import KEEPALIVE, Hello, ReplicationRecord, encode
from ..layout.requests import POLL, Body
from ..layout.shards import single_donor_shards
from .replication_stream import ReplicationStream, Subscriber
from .snapshots import Snapshots

STANDBY_SILENCE = 30.0
"""Seconds without a request after which a spare's copies are dropped."""
STREAMS = 16
"""Streams at a time: half of the requests that a member serves at a time. Each lasts as long as its spare waits, and joiners,
checkpoints and the spares' other requests need the rest. A spare that gets none here asks another member.
"""
EVERY = 1.0
"""Seconds without a record after which a stream sends a keepalive."""


@dataclass(frozen=True, slots=True, eq=False)
class SnapshotRequest:
    """A spare's request for this member's shards (see ``shards``), as of a call that this member has not entered yet."""

    joiner: str
    state_id: str
    holders: Sequence[str]
    turn: int
    version: int
    """The number of that call: equal at all donors, as a parameter and its optimizer state must be of one version."""
    wants_inline: bool
    """True if the manifest is wanted, too."""
    answer: Future[bytes] = field(default_factory=Future)
    """Set by the training thread, which grants or refuses the request; a LookupError says why not."""


class ReplicationSender:
    """The sender of one member in one lifetime. The plane's lock guards requests and standbys."""

    def __init__(
        self, plane: Plane, registered: Callable[[], Registered | None], snapshots: Snapshots, allocate: Allocate = room
    ) -> None:
        """No requests yet. ``allocate``: returns memory for operations (see ``Framework``): the stream exchanges buffers."""
        self._allocate = allocate
        self._plane = plane
        self._registered = registered
        self._snapshots = snapshots
        self._stream = ReplicationStream(plane.threads)
        self._requests: list[SnapshotRequest] = []
        self._standbys: dict[str, float] = {}
        """Spares with pinned shards, and the time of each spare's last request."""

    # --- the training thread -------------------------------------------------------------------------------------------

    def entering(self, number: int) -> None:
        """The training thread entered call ``number``, and ``Snapshots`` watches its optimizers: grant that call's requests."""
        if not self._requests and not self._standbys:
            return
        with self._plane.changed:
            requests = [request for request in self._requests if request.version <= number]
            self._requests = [request for request in self._requests if request.version > number]
            self._expire()
        if not requests:
            return
        try:
            self._grant(requests, number)
        except Exception as error:  # noqa: BLE001 - the spare gets the error as a refusal; the training goes on
            _refuse([request for request in requests if not request.answer.done()], f"{type(error).__name__}: {error}")
        with self._plane.changed:
            self._plane.changed.notify_all()

    def hand_on(self, call: Call, results: Results) -> Sequence[Slot] | None:
        """``call`` has finished. None: the results' slots stay the caller's. Else the slots to use instead of them."""
        if not self._stream.has_subscribers:
            return None
        plane = self._plane
        if plane.state_id != plane.current_state_id or call.by_backup:
            self._stream.end("this member lacks the state itself")
            return None
        layout = results.layout
        applied = call.kind is Kind.AVERAGE and not call.void(results)
        slots, weight = results.slots if applied else (), results.divisor
        if applied and not slots:  # a view of one: this member's own input is the result
            slots, weight = tuple(_staged(call, self._allocate)), 1.0
        step = self._plane.step
        record = ReplicationRecord(results.number, step, layout.signature, layout.kind, float(weight), results.view_id, slots)
        spare = self._stream.append(record)
        return spare if results.slots else None

    @property
    def asked(self) -> bool:
        """True while a spare gets copies of the state, or wants some. Any thread."""
        return bool(self._requests or self._standbys)

    @property
    def busy(self) -> bool:
        """True while this sender serves a spare. Under the plane's lock."""
        return self.asked or self._stream.has_subscribers

    # --- other threads -------------------------------------------------------------------------------------------------

    def standbys(self, view: View) -> list[str]:
        """Spares whose copies are kept though they are not in ``view``."""
        with self._plane.changed:
            return [joiner for joiner in self._standbys if joiner not in view]

    def seen(self, joiner: str) -> None:
        """``joiner`` has sent a request, or has taken a part of what it asked for."""
        if joiner not in self._standbys:
            return  # a member: nothing is counted, and no lock taken for each block
        with self._plane.changed:
            if joiner in self._standbys:
                self._standbys[joiner] = self._plane.threads.now()

    def released(self, joiner: str) -> None:
        """The copies for ``joiner`` are gone."""
        with self._plane.changed:
            self._standbys.pop(joiner, None)

    def forget(self) -> None:
        """End the stream, and drop all requests."""
        with self._plane.changed:
            self._standbys.clear()
        self._stream.end("this member has left the job")

    # --- what may be asked (see ``donor``) -----------------------------------------------------------------------------

    def begin(self, request: SnapshotRequest) -> bytes:
        """``ask=begin``: see ``SnapshotRequest``. LookupError says why not, or not yet.

        The answer: size and fingerprint of the flat state, the view in which its last call was computed, and the manifest of
        that version, if wanted.
        """
        plane = self._plane
        with plane.changed:
            self._check(request.state_id)
            if plane.member_id not in request.holders:
                raise LookupError(f"holders={','.join(request.holders)} are others than this member, {plane.member_id}")
            if max(plane.finished, plane.current.number if plane.current else 0) >= request.version:
                raise LookupError(f"this member is past the beginning of call {request.version}")
            self._requests.append(request)
            plane.changed.wait_for(lambda: request.answer.done() or plane.phase is Phase.STOPPED, POLL)
            if request in self._requests:
                self._requests.remove(request)
                raise Refusal.LATER.error(f"call {request.version} was not entered here meanwhile")
            plane.changed.wait_for(request.answer.done, POLL)
        if not request.answer.done():
            raise Refusal.LATER.error("it takes longer")
        return request.answer.result()

    def averages(self, signature: bytes) -> Body:
        """``ask=averages``: a record of every call from now on, with the sums of calls that have this ``signature``."""
        plane = self._plane
        with plane.changed:
            self._check(plane.current_state_id)
            session = plane.session
            if session is None:
                raise Refusal.LATER.error("this member is in no view")
            if self._stream.subscribers >= STREAMS:
                raise Refusal.LATER.error(f"this member sends averages to as many spares as it can, {STREAMS}")
            ids = dict.fromkeys((*session.plan.holders, plane.member_id))
            subscriber = self._stream.subscribe(signature)
            holders = tuple(session.view.member(each) for each in ids if each in session.view)
            hello = Hello(plane.finished, plane.finished_in, plane.state_id, holders)
        return _told(subscriber, hello)

    # --- inside --------------------------------------------------------------------------------------------------------

    def _check(self, state_id: str) -> None:
        """LookupError unless this member holds that state."""
        plane = self._plane
        if plane.phase is Phase.STOPPED:
            raise LookupError("this member has left the job")
        if self._registered() is None:
            raise LookupError("no state is registered here")
        if not state_id or plane.state_id != state_id or plane.lag.calls:
            raise Refusal.LATER.error("this member does not hold that state")

    def _grant(self, requests: Sequence[SnapshotRequest], number: int) -> None:
        plane, registered = self._plane, self._registered()
        assert registered is not None
        try:
            manifest, flat = split(registered, plane.step, None if plane.current is None else plane.current.fence)
        except ConfigError as error:
            _refuse(requests, str(error))
            return
        for request in requests:
            if plane.state_id != request.state_id or request.version != number:
                _refuse([request], f"this member does not hold that state, or is past call {request.version}")
                continue
            if plane.session is not None and request.joiner in plane.session.view:  # it may have asked as a joiner since
                _refuse([request], f"{request.joiner} is no spare any more, but a member")
                continue
            shards = single_donor_shards(manifest.nbytes, request.holders, request.turn, number)
            self._snapshots.arm(request.joiner, [each for each in shards if plane.member_id in each.donors], flat, number)
            with plane.changed:
                self._standbys[request.joiner] = plane.threads.now()
            found = {
                "nbytes": manifest.nbytes,
                "ground": manifest.fingerprint,
                "packed": manifest.packed if request.wants_inline else b"",
                "view": plane.finished_in,
            }
            request.answer.set_result(msgpack.packb(found))

    def _expire(self) -> None:
        now, session = self._plane.threads.now(), self._plane.session
        for joiner in [joiner for joiner, seen in self._standbys.items() if now - seen > STANDBY_SILENCE]:
            del self._standbys[joiner]
            if session is None or joiner not in session.view:
                self._snapshots.release(joiner)


def _refuse(requests: Sequence[SnapshotRequest], why: str) -> None:
    for request in requests:
        request.answer.set_exception(LookupError(why))


def _staged(call: Call, allocate: Allocate) -> list[Slot]:
    """The call's inputs, unweighted. Excluded if a device hangs."""
    slots = [Slot(bucket, 0, allocate) for bucket in call.layout.buckets]
    for slot in slots:
        call.fill(slot, weighted=False)
    for copies in under_way(call.layout.places):
        copies.end()
    return slots


def _told(subscriber: Subscriber, hello: Hello) -> Body:
    try:
        yield from hello.encode()
        while True:
            record = subscriber.next(EVERY)
            if record is None:
                yield KEEPALIVE
            else:
                yield from encode(record, subscriber.signature)
    finally:
        subscriber.close()
