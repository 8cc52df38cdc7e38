"""A warm standby: a spare gets the state while its program waits in its first call, and keeps it at the newest version.

A separate thread chooses a member as *sender*, reads the sender's replication stream, and asks the members to pin the state as
of a future call. A ``Round`` does the rest as for a joiner, except that the averages come from the sender. When the sender
goes, another sender continues where it stopped, if it has finished the same calls; else the recovery starts again. The view in
which the newest call was computed shows that: a sender may have died as the only member that had finished the call, and then
the others redo the call without that sender's share. Once the spare is promoted, ``Catchup`` goes on with the round.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from consensus import Answer, CarefulLogger, Member, View

from ..common.devices import thread_device
from ..common.memory import room
from ..common.units import size
from ..core.calls.call import Call, Results
from ..core.calls.learner import NoFollowing
from ..core.plane.phase import Phase
from ..core.plane.plane import Plane
from ..core.tensors.staging import Allocate, Slot
from ..errors import ConfigError, RebuildTimeout
from ..state.registry import Registered
from .joiner.http_transport import FetchError, HTTPTransport, Later, Refused, SnapshotOffer
from .joiner.limits import RecoveryLimits
from .joiner.round import LOOK, Broken, Round
from .layout.replication_log import Hello, ReplicationRecord, read
from .layout.requests import in_words, is_short
from .layout.shards import single_donor_shards

logger = CarefulLogger("ftlib")

SILENCE = 5.0
"""Seconds without a byte, keepalives included, after which a sender is given up."""
PATIENCE = 1.0
"""Seconds that a promoted spare waits for its sender's last records, while the others wait for the spare."""
_FURTHEST = 256
"""How many calls ahead the state may be requested."""
_REST, _LONGEST_REST = 0.2, 10.0
"""Seconds before the recovery starts again, doubled each time; and their maximum."""


class StreamReader:
    """The replication stream of one sender."""

    def __init__(self, answer: Answer, signature: bytes, slots: Callable[[], Sequence[Slot]]) -> None:
        """``slots``: returns buffers for the sums of calls with that ``signature``."""
        self._answer, self._signature, self._slots = answer, signature, slots
        self.hello = Hello.read(answer.readinto)

    def next(self) -> ReplicationRecord | None:
        """The next record; None for a keepalive. Raises what ``http_transport.request`` translates."""
        return read(self._answer.readinto, self._signature, self._slots)


class WarmStandby:
    """The warm standby of a spare in its first call: ``begin``, then ``surrender`` if it is promoted, or ``end``."""

    def __init__(
        self,
        plane: Plane,
        registered: Registered,
        own: Call,
        transport: HTTPTransport,
        known: Callable[[], View | None],
        max_size: int,
        allowed: RecoveryLimits,
        allocate: Allocate = room,
    ) -> None:
        """``known``: returns the newest view of the job that this worker knows. ``allocate``: returns memory for the averages,
        which are operations' buffers once this spare is promoted.
        """
        self._allocate = allocate
        self._plane = plane
        self._registered = registered
        self._own = own
        self._transport = transport
        self._known = known
        self._max_size = max_size
        self._allowed = allowed
        self._spare: dict[int, list[Slot]] = {}
        """Buffers for reuse, by the identity of their bucket."""
        self._sender: Member | None = None
        self.asked: dict[str, Member] = {}
        """Members that may have pinned ranges for this spare."""
        self._share_device = thread_device()
        self._ahead = 3
        """How many calls after the newest finished one a request names, so that it arrives in time."""
        self._told = False
        """True once the log says that this spare is level."""
        self._changed = threading.Condition()
        # Guarded by the condition:
        self._over = False
        self._round: Round | None = None
        self._former: Round | None = None
        """The previous round, which may be about to end."""
        self._kept = 0
        """The newest call whose record was passed to the round."""
        self._kept_in = ""
        """The view in which that call was computed."""
        self._base = 0, ""
        """The last call that the round's shards contain, and the view in which that call was computed."""
        self._error: Exception | None = None

    # --- the training thread -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="ftlib-standby", daemon=True).start()

    @property
    def error(self) -> Exception | None:
        """An error for the program: its state does not fit the job's."""
        return self._error

    def await_call(self, number: int, go_on: Callable[[], bool]) -> None:
        """Wait for the record of call ``number``, while it may still come."""
        deadline = self._plane.threads.now() + PATIENCE
        with self._changed:
            while self._round is not None and self._kept < number and go_on() and self._plane.threads.now() < deadline:
                self._changed.wait(LOOK)

    def surrender(self, number: int) -> Round | None:
        """The round, to go on with at call ``number``; None if averages are missing: then the round is dropped."""
        with self._changed:
            self._over = True
            round_, self._round, former = self._round, None, self._former
            fits = round_ is not None and round_.error is None and round_.begins <= number and self._kept == number - 1
            self._changed.notify_all()
        if fits:
            return round_
        for each in (former, round_):
            if each is not None:
                each.end()
        return None

    def end(self) -> bool:
        """Stop; True if the state was written. Nothing writes it once this has returned. Idempotent. RebuildTimeout."""
        with self._changed:
            self._over = True
            ends = [each for each in (self._former, self._round) if each is not None]
            self._round = None
            self._changed.notify_all()
        for each in ends:
            each.end()
        self._farewell()
        return bool(ends)

    # --- its own thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._share_device()
        rest = _REST
        while self._going():
            self._told = gives_up = False
            try:
                self._attend()
            except (FetchError, Later, NoFollowing) as error:
                why, gives_up = str(error), isinstance(error, Broken)
                if gives_up:  # the log has the traceback already
                    extra = self._plane.about("spare_cold", why=why)
                    logger.warning("this spare gives up getting the state: %s", why, extra=extra)
            except (ConfigError, RebuildTimeout) as error:
                self._fail(error)
                return
            except Exception as error:  # a spare without the state is still a spare
                why, gives_up = in_words(error), not is_short(error)
                if gives_up:
                    logger.exception("this spare gives up getting the state", extra=self._plane.about("spare_cold", why=why))
            else:
                why = ""
            if self._going() and why and not gives_up:
                logger.info("this spare has to get the state anew: %s", why, extra=self._plane.about("spare_cold", why=why))
            try:
                self._drop()
            except RebuildTimeout as error:
                self._fail(error)
                return
            if gives_up:
                return
            rest = _REST if self._told else min(_LONGEST_REST, 2 * rest)
            with self._changed:
                self._changed.wait_for(lambda: self._over, rest)

    def _attend(self) -> None:
        """Get the state, and keep pace, until the recovery has to start again."""
        failed: dict[str, str] = {}
        while self._going():
            sender = next((member for member in self._senders() if member.id not in failed), None)
            if sender is None:
                if failed:
                    raise FetchError("; ".join(failed.values()))
                return  # the view has room: this worker is no spare, or not for long
            wrong: ConfigError | None = None
            try:
                with self._averages(sender) as stream:
                    try:
                        self._take_up(sender, stream)
                        self._listen(sender, stream)
                    except ConfigError as error:  # else it would count as a connection error
                        wrong = error
            except (FetchError, Later) as error:
                if self._told:
                    failed.clear()
                failed[sender.id] = str(error)
                logger.debug("no averages any more: %s", error, extra=self._plane.about("spare_tutor", donor=sender.id))
            if wrong is not None:
                raise wrong

    @contextmanager
    def _averages(self, sender: Member) -> Iterator[StreamReader]:
        """Open the replication stream of ``sender``. FetchError, Later."""
        signature = self._own.layout.signature
        query = {"ask": "averages", "joiner": self._plane.member_id, "signature": signature.hex()}
        with self._transport.asked(sender, query, self._going, SILENCE) as answer:
            yield StreamReader(answer, signature, self._slots)

    def _senders(self) -> Sequence[Member]:
        """Members to ask, in this spare's own order; none while there is room in the view."""
        view, own = self._known(), self._plane.member_id
        if view is None or (self._round is None and (len(view) < self._max_size or own in view)):
            return ()
        others = [member for member in view.members if member.id != own]
        first = int(own[-4:], 16) % max(1, len(others))
        return (*others[first:], *others[:first])

    def _take_up(self, sender: Member, stream: StreamReader) -> None:
        """Go on with the present round, or begin one."""
        hello = stream.hello
        with self._changed:
            round_, kept, kept_in = self._round, self._kept, self._kept_in
        # A sender that is one call behind will send that call: see ``_keep``.
        level = (hello.finished, hello.view_id) == (kept, kept_in) or hello.finished == kept - 1
        if round_ is not None and (round_.state_id != hello.state_id or not level):
            self._drop()
            round_ = None
        if round_ is None:
            self._begin(sender, stream)
        self._sender = sender

    def _begin(self, sender: Member, stream: StreamReader) -> None:
        """Ask all donors to pin the state of one version: on entry to a call that none of them has entered yet."""
        self._told = False
        hello, plane = stream.hello, self._plane
        holders = list(hello.holders)
        turn = int(plane.member_id[-4:], 16) % len(holders)
        ask = self._transport.begin
        version = hello.finished + self._ahead
        self.asked = {**self.asked, **{holder.id: holder for holder in holders}}
        with ThreadPoolExecutor(len(holders), "ftlib-begin") as pool:
            futures = [
                pool.submit(ask, holder, hello.state_id, holders, turn, version, self._going, inline=holder.id == sender.id)
                for holder in holders
            ]
        try:
            told = [future.result() for future in futures]
        except Refused:
            self._ahead = min(_FURTHEST, 2 * self._ahead)
            raise
        if len({(begun.nbytes, begun.fingerprint, begun.view_id) for begun in told}) > 1:
            found = ", ".join(f"{begun.nbytes} bytes after a call of view {begun.view_id:.6}" for begun in told)
            raise FetchError(f"the donors disagree on what the state is: {found}")
        first = next(begun for begun, holder in zip(told, holders, strict=True) if holder.id == sender.id)
        shards = single_donor_shards(first.nbytes, [holder.id for holder in holders], turn, version)
        offer = SnapshotOffer(first.nbytes, len(shards), first.packed, ((0, first.nbytes),))
        text = "getting %s of state while this spare waits, as of call %d; averages come from %s"
        extra = plane.about("spare_begins", state_bytes=first.nbytes, version=version, donor=sender.id)
        logger.info(text, size(first.nbytes), version, sender, extra=extra)
        round_ = Round(
            plane,
            self._registered,
            self._own,
            self._transport,
            None,
            holders,
            hello.state_id,
            version,
            shards,
            offer,
            self._allowed,
        )
        with self._changed:
            if self._over:
                return
            self._round, self._kept, self._kept_in = round_, hello.finished, hello.view_id
            self._base = version - 1, first.view_id
            round_.begin()

    def _listen(self, sender: Member, stream: StreamReader) -> None:
        while self._going():
            record = stream.next()
            if record is None:
                view = self._known()
                if view is not None and sender.id not in view:
                    raise FetchError(f"{sender} is in the job's view no more")
            else:
                self._compare(record)
                if not self._keep(record):
                    return
            self._look()

    def _compare(self, record: ReplicationRecord) -> None:
        """NoFollowing if the job averages other tensors than this program; ConfigError if the states differ, which says why."""
        own = self._own.layout
        round_ = self._round
        if record.signature != own.signature and record.kind == own.kind and round_ is not None:
            round_.check_fit()
            if own.same_call(record.signature):
                with self._changed:
                    if self._over:
                        return  # it is the training thread's by now
                    self._own.relay()
                raise NoFollowing("the order in which the others average has become known with their state")
            raise NoFollowing("the others average something else")

    def _keep(self, record: ReplicationRecord) -> bool:
        """Pass ``record`` on to the round; False once the round was surrendered."""
        own = self._own.layout
        with self._changed:
            round_ = self._round
            if self._over or round_ is None:
                return False
            for number, view_id in ((self._kept, self._kept_in), self._base):
                if record.number == number and record.view_id != view_id:
                    raise NoFollowing(f"call {number} was redone by the others, and this spare has what it came to before")
            if record.number <= self._kept:
                self._reuse(record.slots)
                return True
            if record.number != self._kept + 1:
                raise FetchError(f"averages {self._kept + 1} to {record.number - 1} are missing")
            if record.number >= round_.begins:
                results = Results(record.number, own, record.slots, record.weight) if record.slots else None
                self._reuse(round_.keep(record.number, results, record.step) or ())
            else:
                self._reuse(record.slots)
            self._kept, self._kept_in = record.number, record.view_id
            self._changed.notify_all()
        while not round_.wait_room(LOOK) and self._going() and round_.error is None:
            pass
        return True

    def _look(self) -> None:
        """Raise the round's error, if any. Once the round is level, log that and release the donors."""
        with self._changed:
            round_, kept = self._round, self._kept
        if round_ is None:
            return
        if round_.error is not None:
            raise round_.error
        if not self._told and round_.level_with(kept + 1, but=1):
            self._told = True  # the newest average may be in the works, as it is at the members
            text = "this spare has the state as of call %d, and keeps pace with %s"
            logger.info(text, kept + 1, self._sender, extra=self._plane.about("spare_warm", version=kept + 1))
            self._farewell()

    def _slots(self) -> Sequence[Slot]:
        spare, buckets = self._spare, self._own.layout.buckets
        return [spare[id(bucket)].pop() if spare.get(id(bucket)) else Slot(bucket, 0, self._allocate) for bucket in buckets]

    def _reuse(self, slots: Sequence[Slot]) -> None:
        for slot in slots:
            self._spare.setdefault(id(slot.bucket), []).append(slot)

    def _drop(self) -> None:
        """End the round, which is of no use any more."""
        with self._changed:
            if self._over:
                return  # surrendered
            round_, self._round = self._round, None
            self._former = round_ or self._former
            self._changed.notify_all()
        if round_ is not None:
            round_.end()

    def _farewell(self) -> None:
        """Release what members may have pinned for this spare."""
        asked, self.asked = list(self.asked.values()), {}
        self._transport.release_all(asked)

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._error = error
        with self._plane.changed:  # where the program waits
            self._plane.changed.notify_all()

    def _going(self) -> bool:
        return not self._over and self._plane.phase is not Phase.STOPPED
