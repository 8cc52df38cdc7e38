"""One recovery under way while the others train: fetch shards from the donors, and replay the averages since then.

``position`` is the progress of the replay: the part of the state that has arrived is as on entry to call ``position``. The
shards of a chunk are of one version. An average is replayed once all shards of its version or an older one have arrived, and is
applied to their chunks. The other chunks come later, in a version that already includes the average.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence

from consensus import CarefulLogger, Member

from ...common.device_waits import settle
from ...common.devices import thread_device
from ...common.threads import stand_back
from ...common.traces import FetchRecord
from ...core.calls.call import Call, Results
from ...core.calls.learner import NoFollowing
from ...core.calls.session import Session
from ...core.plane.plane import Plane
from ...core.plane.progress import Progress
from ...core.tensors.staging import Slot
from ...errors import ConfigError, FTLibError, RebuildTimeout
from ...state.registry import Registered
from ...state.replay import replay
from ..layout.flat_state import FlatState
from ..layout.manifest import prepare
from ..layout.requests import in_words, is_short
from ..layout.shards import LARGE, ChunkRequest, Shard, surviving
from .group_transport import Tainted
from .http_transport import FetchError, HTTPTransport, Later, SnapshotOffer
from .limits import RecoveryLimits
from .program_gradients import ProgramGradients
from .progress_log import Meter, ProgressLog
from .replay_state import Chunks, PendingAverages

logger = CarefulLogger("ftlib")

FETCHERS = 3
"""Number of shards under way at a time."""
LOOK = 0.05
"""Seconds between checks whether a session has ended, while the others wait for this member."""
PATIENCE = 8
"""Number of calls within which the waiting averages must become fewer; else the others wait until none is left."""
_TRIES = 3
"""Number of times that a donor may fail to give a shard."""
_PATIENCE = 10.0
"""Seconds within which a dead donor is excluded; then its shards come from other donors."""
_SPARE_PATIENCE = 1.0
"""The same for a spare, which can start again at any time."""
_END = 60.0
"""Seconds that a replay under way may take to end."""


class Broken(NoFollowing):
    """A round has ended by an error that would come again: of the program's code that applies an average, or of ftlib's."""


class Round:
    """One recovery, shared by the training thread and the round's own threads, under one condition."""

    def __init__(
        self,
        plane: Plane,
        registered: Registered,
        own: Call,
        transport: HTTPTransport,
        session: Session | None,
        members: Sequence[Member],
        state_id: str,
        number: int,
        shards: Sequence[Shard],
        offer: SnapshotOffer,
        allowed: RecoveryLimits,
    ) -> None:
        """``number``: the call on entry to which the state is requested.

        ``members``: the donors, among others. ``session``: None for a spare, for which no view waits.
        """
        self.transport = transport
        self.registered = registered
        self.session = session
        self.state_id = state_id
        self.begins = number
        self.flat: FlatState | None = None
        self._plane = plane
        self._own = own
        self._offer = offer
        self._limit = allowed.pending
        self._patience = allowed.patience
        self._changed = threading.Condition()
        # Guarded by the condition:
        self.shards = tuple(shards)
        self._have: set[int] = set()
        self._taken: set[int] = set()
        self._offsets: dict[int, int] = {}
        self._failures: Counter[tuple[int, str]] = Counter()
        """How often a donor failed to give a shard."""
        self._donors = {member.id: member for member in members}
        self._pending = PendingAverages(number)
        self._chunks = Chunks(offer, number)
        self._fewest, self._since = math.inf, 0
        self._backpressure = False
        self._warned: set[str] = set()
        """Why the others had to wait, as far as it was logged."""
        self._error: Exception | None = None
        self._over = False
        self._meter = Meter(offer.nbytes, plane.threads.now)
        self.progress_log = ProgressLog(plane, self.progress)
        self._gradients: ProgramGradients | None = None
        """The program's own, once an average was put in their place. The replaying thread's."""
        self._threads: list[threading.Thread] = []
        self._share_device = thread_device()

    # --- the training thread -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the round's threads. Any thread. If one cannot be started, none is left."""
        self._plane.recovers(self.progress)
        work = [("ftlib-recovery", self._run), *((f"ftlib-fetch-{number}", self._fetch_all) for number in range(FETCHERS))]
        try:
            for name, function in work:
                thread = threading.Thread(target=self._guarded, args=(function,), name=name, daemon=True)
                thread.start()
                self._threads.append(thread)
        except RuntimeError:
            self.end()
            raise

    def end(self) -> None:
        """Stop: nothing writes the state once this has returned, and the program's gradients are as they were. Idempotent.
        RebuildTimeout if a thread does not end, or if an operation of an aborted group did not.
        """
        if self._plane.recovery == self.progress:
            self._plane.recovers(None)
        with self._changed:
            self._over = True
            self._changed.notify_all()
        deadline = self._plane.threads.now() + _END
        for thread in self._threads:
            thread.join(max(0.0, deadline - self._plane.threads.now()))
            if thread.is_alive():
                raise RebuildTimeout(f"thread {thread.name} still writes the state after {_END:g} s: start this worker anew")
        error = self.error
        if isinstance(error, Tainted):
            raise error

    def keep(self, number: int, results: Results | None, step: int) -> Sequence[Slot] | None:
        """Keep the results of call ``number``; None: nothing to replay. Returns buffers to use instead of theirs.

        ``step``: the steps that the job had been granted when that call had finished, its own included.
        """
        with self._changed:
            self._changed.notify_all()
            return self._pending.keep(number, results, step)

    @property
    def next_chunk(self) -> ChunkRequest | None:
        """The chunk to ask for now; None if there is none."""
        with self._changed:
            return self._chunks.next(self.shards, self._have)

    def add(self, offer: SnapshotOffer, shards: Sequence[Shard], version: int) -> None:
        """The next chunk was pinned on entry to call ``version``, whose average has not been kept yet."""
        with self._changed:
            self._chunks.add(offer, version)
            self.shards += tuple(shards)
            self._changed.notify_all()

    def apply_backpressure(self, session: Session, number: int, *, level: bool, grace: float = 0.0) -> None:
        """Wait while this member cannot hold more averages, or cannot keep pace. The others then wait for this member.

        ``level``: wait also for the replay of the last average; the others apply theirs in the same time. ``grace``: seconds
        to wait for the last shards. Raises the round's error.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._arrived() or self._error is not None, grace)
            self._check()
            full = self._pending.held + self._own.layout.nbytes > self._limit and self._pending.held > 0
            near = self._arrived() and self._pending.position >= number - 1
            last = near and level
            slow = self._arrived() and not near and self._falls_behind(number)
            if full or slow:
                self._warn(number - self._pending.position, full=full)
            self._backpressure = full or slow

            def ready() -> bool:
                if self._error is not None or self._pending.position == number:
                    return True
                return not last and not slow and self._pending.held + self._own.layout.nbytes <= self._limit

            if full or slow or last:
                deadline = self._plane.threads.now() + self._patience
                while not ready() and self._plane.acting_in(session) and not self._plane.leaving():
                    if self._plane.threads.now() > deadline:
                        raise NoFollowing(
                            f"{number - self._pending.position} averages were not replayed within {self._patience:g} s"
                        )
                    self._changed.wait(LOOK)
            self._backpressure = False
            self._check()

    def level_with(self, number: int, *, but: int = 0) -> bool:
        """True if all shards have arrived, and all averages before call ``number`` are replayed except the last ``but``."""
        with self._changed:
            return self._arrived() and self._pending.position >= number - but

    @property
    def error(self) -> Exception | None:
        """The round's error, if any."""
        with self._changed:
            return self._error

    def wait_room(self, seconds: float) -> bool:
        """Wait at most ``seconds`` until another average may be held; True if it may."""
        with self._changed:
            return self._changed.wait_for(lambda: self._pending.held <= max(0, self._limit - self._own.layout.nbytes), seconds)

    def check_fit(self) -> None:
        """Wait until the job's state was compared with this program's. ConfigError if it does not fit."""
        with self._changed:
            self._changed.wait_for(lambda: self.flat is not None or self._error is not None or self._over)
            self._check()

    def move(self, session: Session, number: int) -> bool:
        """A new view: go on with the donors that are left. False if both donors of a missing shard are gone, or an average
        before call ``number`` was missed.

        Then the recovery starts again, as parameters and their optimizer state must be of one version.
        """
        with self._changed:
            self._check()
            left = tuple(surviving(shard, session.plan.holders) for shard in self.shards)
            lost = any(not shard.donors and shard.index not in self._have for shard in left)
            if lost or self._pending.position + len(self._pending) != number:
                return False
            self.session = session
            self._donors = {member.id: member for member in session.view.members}
            self.shards = left
            self._failures.clear()
            self._changed.notify_all()
            return True

    def progress(self) -> Progress:
        """The round's progress. Any thread."""
        with self._changed:
            return self._meter.progress(len(self._pending), braking=self._backpressure, replayed=self._pending.replayed)

    # --- within the lock -----------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _arrived(self) -> bool:
        return self.flat is not None and self._complete()

    def _complete(self) -> bool:
        return self._chunks.all_pinned and len(self._have) == len(self.shards)

    def _warn(self, pending: int, *, full: bool) -> None:
        """Log why the others wait; once, as it may be so in every call."""
        why = "cannot hold more averages (recovery_pending_mb)" if full else "cannot replay averages as quickly as they come"
        if why in self._warned:
            return
        self._warned.add(why)
        text = "the others wait for this worker: it %s; %d wait to be replayed"
        logger.warning(text, why, pending, extra=self._plane.about("recovery_brakes", pending=pending))

    def _falls_behind(self, number: int) -> bool:
        waiting = number - self._pending.position
        if waiting < self._fewest:
            self._fewest, self._since = waiting, number
        return number - self._since >= PATIENCE

    def _next_shard(self) -> Shard | None:
        for shard in self.shards:
            free = self.flat is not None and shard.index not in self._have and shard.index not in self._taken
            if free and self._donor_of(shard) is not None:
                return shard
        return None

    def _donor_of(self, shard: Shard) -> Member | None:
        able = [name for name in shard.donors if name in self._donors and self._failures[shard.index, name] < _TRIES]
        return self._donors[min(able, key=lambda name: self._failures[shard.index, name])] if able else None

    # --- its own threads -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Prepare the tensors, then replay."""
        flat = prepare(self.registered, self._offer.packed)
        if flat.nbytes != self._offer.nbytes:
            raise ConfigError(
                f"the job's state has {self._offer.nbytes} bytes, this worker's {flat.nbytes}: build the same everywhere"
            )
        self._chunks.settle(self.registered, flat)
        with self._changed:
            self.flat = flat
            self._changed.notify_all()
        self._replay_all()

    def _guarded(self, work: Callable[[], None]) -> None:
        """Run ``work`` on this thread, at low priority if the state is large: training comes first."""
        if self._offer.nbytes >= LARGE:
            stand_back()
        try:
            self._share_device()
            work()
        except Exception as error:  # noqa: BLE001 - the training thread raises it
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        told = error
        if not isinstance(error, (ConfigError, NoFollowing, Tainted)):
            with self._changed:
                passing = self._over or isinstance(error, FTLibError) or is_short(error)
            if not passing:
                logger.error("getting the state has failed", exc_info=error, extra=self._plane.about("recovery_failed"))
            told = (NoFollowing if passing else Broken)(in_words(error))
        with self._changed:
            if self._error is None or isinstance(error, Tainted):  # after any other error the state may be loaded as a whole
                self._error = told
            self._changed.notify_all()

    def _replay_all(self) -> None:
        try:
            self._replay_until_over()
        finally:
            gradients, self._gradients = self._gradients, None
            if gradients is not None:
                gradients.put_back()
                settle(set(self._own.layout.places))

    def _replay_until_over(self) -> None:
        chunks = self._chunks
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._over or self._error is not None or chunks.fresh or self._can_replay())
                if self._over or self._error is not None:
                    return
                fresh, due = chunks.pop_fresh(), self._can_replay()
                results, step = (self._pending.next, self._pending.step) if due else (None, None)
                without = chunks.without(self._pending.position)
            chunks.take_over(self.registered, fresh)
            if not due:
                continue
            if results is not None:
                if self._gradients is None:
                    self._gradients = ProgramGradients(self._own)
                self._own.reattach()
                self._own.deliver(results)
                replay(self.registered, without, step=step)
                # Now other threads may read it, and the program go on with it.
                settle({*self._plane.state_places, *self._own.layout.places})
            with self._changed:
                self._pending.done()
                self._changed.notify_all()
            self.progress_log.update()

    def _can_replay(self) -> bool:
        if self.flat is None or not self._pending.there:
            return False
        return all(shard.index in self._have for shard in self.shards if shard.version <= self._pending.position)

    def _fetch_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._finished_fetching() or self._next_shard() is not None)
                if self._finished_fetching():
                    return
                shard = self._next_shard()
                assert shard is not None
                donor = self._donor_of(shard)
                assert donor is not None
                self._taken.add(shard.index)
            whole = False
            try:
                whole = self._fetch(shard, donor)
            finally:
                with self._changed:
                    self._taken.discard(shard.index)
                    if whole and self._wants(shard):
                        self._have.add(shard.index)
                    self._changed.notify_all()

    def _finished_fetching(self) -> bool:
        return self._over or self._error is not None or self._complete()

    def _fetch(self, shard: Shard, donor: Member) -> bool:
        """Fetch ``shard``. True if all of it is here; else it is tried again from the last offset, perhaps at another donor."""
        with self._changed:
            offset = self._offsets.get(shard.index, 0)
        flat = self.flat
        assert flat is not None

        def got(count: int) -> None:
            with self._changed:
                if self._wants(shard):
                    self._offsets[shard.index] = self._offsets.get(shard.index, 0) + count
                    self._meter.got(count)
                    self._plane.counters.state_bytes += count
            self.progress_log.update()

        began = self._plane.threads.now()
        try:
            self.transport.shard(donor, shard, flat, offset, got, lambda: self._wants(shard))
        except Later:  # the donor kept the request waiting, unless it is too busy
            with self._changed:
                self._changed.wait(LOOK)
            return False
        except FetchError as error:
            text = "stripe %d did not come from %s: %s"
            extra = self._plane.about("stripe_failed", donor=donor.id, stripe=shard.index)
            logger.info(text, shard.index, donor, error, extra=extra)
            with self._changed:
                if self._wants(shard):
                    self._failures[shard.index, donor.id] += 1
            self._trace(shard, donor, began, str(error))
            self._none_left(shard)
            return False
        self._trace(shard, donor, began)
        return True

    def _trace(self, shard: Shard, donor: Member, began: float, error: str = "") -> None:
        if (traces := self._plane.traces) is not None:
            name, nbytes = donor.fact("name") or donor.id, shard.stop - shard.start
            traces.add(FetchRecord(name, shard.index, began, self._plane.threads.now(), nbytes, error))

    def _wants(self, shard: Shard) -> bool:
        return (
            not self._over
            and self._error is None
            and any(shard.index == other.index and shard.version == other.version for other in self.shards)
        )

    def _none_left(self, shard: Shard) -> None:
        """NoFollowing if no donor can give this shard, and no new view brings another donor in time."""
        deadline = self._plane.threads.now() + (_PATIENCE if self.session is not None else _SPARE_PATIENCE)
        with self._changed:
            while self._wants(shard) and self._donor_of(self.shards[shard.index]) is None:
                if self._plane.threads.now() > deadline:
                    raise NoFollowing(f"nobody is left who could give stripe {shard.index} of the state")
                self._changed.wait(LOOK)
