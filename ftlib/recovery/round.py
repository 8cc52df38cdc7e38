"""One recovery under way: the stripes come from the donors, and the averages since then are replayed, beside the training.

``position`` says how far the replay is: what is here of the state is that on entry to call ``position``. The stripes of a
portion are of one version. An average is replayed once all stripes of its version or an older one have arrived, and is applied
to the portions that they make up: the others come later, of a version in which it is applied already.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence

import torch

from consensus import Member

from ..call import Call, Results
from ..errors import ConfigError, RebuildTimeout
from ..follower import NoFollowing
from ..logs import about
from ..plane import Plane
from ..registry import Registered
from ..session import Session
from ..staging import Slot
from ..threads import stand_back
from .bulletin import Bulletin
from .fetch import FetchError, Later, Offer, Source
from .flat import Ground
from .manifest import prepare
from .meter import Meter
from .pending import Pending
from .portions import Portions
from .post import Tainted
from .progress import Progress
from .replay import replay
from .stripes import LARGE, Stripe, Wave, surviving

__all__ = ["Round"]

logger = logging.getLogger("ftlib")

FETCHERS = 3
"""Stripes under way at a time."""
LOOK = 0.05
"""Seconds between looks whether a session has ended, while the others wait for this member."""
PATIENCE = 8
"""Calls in which the averages that wait must become fewer, before the others wait until none is left."""
_TRIES = 3
"""Times that a donor may fail to give a stripe."""
_PATIENCE = 10.0
"""Seconds in which a dead donor is excluded, so that its stripes are asked for anew."""
_SPARE_PATIENCE = 1.0
"""The same for a spare, which begins anew: it may be promoted, and stripes be asked for anew, meanwhile."""
_END = 60.0
"""Seconds that a replay under way may still take."""


class Round:
    """Shared by the training thread and its own threads, under one condition."""

    def __init__(
        self,
        plane: Plane,
        registered: Registered,
        own: Call,
        source: Source,
        session: Session | None,
        members: Sequence[Member],
        origin: str,
        number: int,
        stripes: Sequence[Stripe],
        offer: Offer,
        pending_limit: int,
        patience: float,
    ) -> None:
        """``number``: the call on entry to which the state is asked for. ``pending_limit``: bytes of averages held.

        ``members``: the donors, among others. ``session``: None for a spare, which no view is waiting for.
        ``patience``: seconds for which the others may have to wait for the replay.
        """
        self.source = source
        self.registered = registered
        self.session = session
        self.origin = origin
        self.begins = number
        self.ground: Ground | None = None
        self._plane = plane
        self._own = own
        self._offer = offer
        self._limit = pending_limit
        self._patience = patience
        self._changed = threading.Condition()
        # Guarded by the condition:
        self.stripes = tuple(stripes)
        self._have: set[int] = set()
        self._taken: set[int] = set()
        self._offsets: dict[int, int] = {}
        self._failures: Counter[tuple[int, str]] = Counter()
        """How often a donor failed to give a stripe."""
        self._donors = {member.id: member for member in members}
        self._pending = Pending(number)
        self._portions = Portions(offer, number)
        self._fewest, self._since = math.inf, 0
        self._braking = False
        self._error: Exception | None = None
        self._over = False
        self._meter = Meter(offer.nbytes, plane.threads.now)
        self.bulletin = Bulletin(plane, self.progress)
        self._threads: list[threading.Thread] = []
        self._device = torch.cuda.current_device() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]

    # --- the training thread -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start. Any thread."""
        self._plane.recovery = self.progress
        work = [("ftlib-recovery", self._run), *((f"ftlib-fetch-{number}", self._fetch_all) for number in range(FETCHERS))]
        self._threads = [
            threading.Thread(target=self._guarded, args=(function,), name=name, daemon=True) for name, function in work
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Stop, so that nothing writes the state any more. Idempotent. RebuildTimeout."""
        if self._plane.recovery == self.progress:
            self._plane.recovery = None
        with self._changed:
            self._over = True
            self._changed.notify_all()
        deadline = self._plane.threads.now() + _END
        for thread in self._threads:
            thread.join(max(0.0, deadline - self._plane.threads.now()))
            if thread.is_alive():
                raise RebuildTimeout(f"thread {thread.name} still writes the state after {_END:g} s: start this worker anew")

    def keep(self, number: int, results: Results | None) -> Sequence[Slot] | None:
        """What call ``number`` led to, None for nothing to replay. Returns buffers to use instead of those of ``results``."""
        with self._changed:
            self._changed.notify_all()
            return self._pending.keep(number, results)

    @property
    def wave(self) -> Wave | None:
        """The portion that is to be asked for now; None where there is none."""
        with self._changed:
            return self._portions.next(self.stripes, self._have)

    def add(self, offer: Offer, stripes: Sequence[Stripe], version: int) -> None:
        """The next portion was pinned on entry to call ``version``, of which the average has not been kept yet."""
        with self._changed:
            self._portions.add(offer, version)
            self.stripes += tuple(stripes)
            self._changed.notify_all()

    def brake(self, session: Session, number: int, *, level: bool, grace: float = 0.0) -> None:
        """Wait where this member cannot hold more averages, or cannot keep pace; the others wait for it meanwhile.

        ``level``: also for the replay of the last average; the others apply theirs in the same time. ``grace``: seconds for
        the last stripes. Raises what went wrong.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._arrived() or self._error is not None, grace)
            self._check()
            full = self._pending.held + self._own.layout.nbytes > self._limit and self._pending.held > 0
            near = self._arrived() and self._pending.position >= number - 1
            last = near and level
            slow = self._arrived() and not near and self._falls_behind(number)
            if (full or slow) and not self._braking:
                slowly = "cannot replay averages as quickly as they come"
                why = "cannot hold more averages (recovery_pending_mb)" if full else slowly
                text = "the others wait for this worker: it %s; %d wait to be replayed"
                extra = about(self._plane, "recovery_brakes", pending=number - self._pending.position)
                logger.warning(text, why, number - self._pending.position, extra=extra)
            self._braking = full or slow

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
            self._braking = False
            self._check()

    def level_with(self, number: int, *, but: int = 0) -> bool:
        """Whether everything has arrived, and every average before call ``number`` was replayed, ``but`` for so many."""
        with self._changed:
            return self._arrived() and self._pending.position >= number - but

    @property
    def error(self) -> Exception | None:
        """What went wrong."""
        with self._changed:
            return self._error

    def wait_room(self, seconds: float) -> bool:
        """Whether another average may be held; waits so long for room."""
        with self._changed:
            return self._changed.wait_for(lambda: self._pending.held <= max(0, self._limit - self._own.layout.nbytes), seconds)

    def check_fit(self) -> None:
        """Wait until the job's state was compared with this program's. ConfigError where it does not fit."""
        with self._changed:
            self._changed.wait_for(lambda: self.ground is not None or self._error is not None or self._over)
            self._check()

    def move(self, session: Session, number: int) -> bool:
        """A new view: go on with the donors that are left. False where both donors of something missing are gone, or where
        an average before call ``number`` was missed.

        Then all begins anew: parameters and what belongs to them in the optimizer have to be of one version.
        """
        with self._changed:
            self._check()
            left = tuple(surviving(stripe, session.plan.holders) for stripe in self.stripes)
            lost = any(not stripe.donors and stripe.index not in self._have for stripe in left)
            if lost or self._pending.position + len(self._pending) != number:
                return False
            self.session = session
            self._donors = {member.id: member for member in session.view.members}
            self.stripes = left
            self._failures.clear()
            self._changed.notify_all()
            return True

    def progress(self) -> Progress:
        """How far it is. Any thread."""
        with self._changed:
            return self._meter.progress(len(self._pending), braking=self._braking, replayed=self._pending.replayed)

    # --- within the lock -----------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _arrived(self) -> bool:
        return self.ground is not None and self._complete()

    def _complete(self) -> bool:
        return self._portions.all_pinned and len(self._have) == len(self.stripes)

    def _falls_behind(self, number: int) -> bool:
        waiting = number - self._pending.position
        if waiting < self._fewest:
            self._fewest, self._since = waiting, number
        return number - self._since >= PATIENCE

    def _next_stripe(self) -> Stripe | None:
        for stripe in self.stripes:
            free = self.ground is not None and stripe.index not in self._have and stripe.index not in self._taken
            if free and self._donor_of(stripe) is not None:
                return stripe
        return None

    def _donor_of(self, stripe: Stripe) -> Member | None:
        able = [name for name in stripe.donors if name in self._donors and self._failures[stripe.index, name] < _TRIES]
        return self._donors[min(able, key=lambda name: self._failures[stripe.index, name])] if able else None

    # --- its own threads -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Make ready, then replay."""
        ground = prepare(self.registered, self._offer.packed)
        if ground.nbytes != self._offer.nbytes:
            raise ConfigError(
                f"the job's state has {self._offer.nbytes} bytes, this worker's {ground.nbytes}: build the same everywhere"
            )
        self._portions.settle(self.registered, ground)
        with self._changed:
            self.ground = ground
            self._changed.notify_all()
        self._replay_all()

    def _guarded(self, work: Callable[[], None]) -> None:
        """``work`` on a thread of its own; training goes first where the state is large."""
        if self._offer.nbytes >= LARGE:
            stand_back()
        try:
            if self._device is not None:
                torch.cuda.set_device(self._device)
            work()
        except Exception as error:  # noqa: BLE001 - the training thread raises it
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        known = isinstance(error, (ConfigError, NoFollowing, Tainted))
        with self._changed:
            self._error = self._error or (error if known else NoFollowing(f"{type(error).__name__}: {error}"))
            self._changed.notify_all()

    def _replay_all(self) -> None:
        portions = self._portions
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._over or self._error is not None or portions.fresh or self._can_replay())
                if self._over or self._error is not None:
                    return
                fresh, due = portions.pop_fresh(), self._can_replay()
                results = self._pending.next if due else None
                without = portions.without(self._pending.position)
            portions.take_over(self.registered, fresh)
            if not due:
                continue
            if results is not None:
                self._own.reattach()
                self._own.deliver(results)
                replay(self.registered, without)
            with self._changed:
                self._pending.done()
                self._changed.notify_all()
            self.bulletin.tell()

    def _can_replay(self) -> bool:
        if self.ground is None or not self._pending.there:
            return False
        return all(stripe.index in self._have for stripe in self.stripes if stripe.version <= self._pending.position)

    def _fetch_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._finished_fetching() or self._next_stripe() is not None)
                if self._finished_fetching():
                    return
                stripe = self._next_stripe()
                assert stripe is not None
                donor = self._donor_of(stripe)
                assert donor is not None
                self._taken.add(stripe.index)
            whole = False
            try:
                whole = self._fetch(stripe, donor)
            finally:
                with self._changed:
                    self._taken.discard(stripe.index)
                    if whole and self._wants(stripe):
                        self._have.add(stripe.index)
                    self._changed.notify_all()

    def _finished_fetching(self) -> bool:
        return self._over or self._error is not None or self._complete()

    def _fetch(self, stripe: Stripe, donor: Member) -> bool:
        """Whether all of it is here; else it is tried again, from where it was and from whoever else has it."""
        with self._changed:
            offset = self._offsets.get(stripe.index, 0)
        ground = self.ground
        assert ground is not None

        def got(count: int) -> None:
            with self._changed:
                if self._wants(stripe):
                    self._offsets[stripe.index] = self._offsets.get(stripe.index, 0) + count
                    self._meter.got(count)
                    self._plane.counters.state_bytes += count
            self.bulletin.tell()

        try:
            self.source.stripe(donor, stripe, ground, offset, got, lambda: self._wants(stripe))
        except Later:  # the donor has kept the question waiting, unless it is too busy
            with self._changed:
                self._changed.wait(LOOK)
            return False
        except FetchError as error:
            text = "stripe %d did not come from %s: %s"
            extra = about(self._plane, "stripe_failed", donor=donor.id, stripe=stripe.index)
            logger.info(text, stripe.index, donor, error, extra=extra)
            with self._changed:
                if self._wants(stripe):
                    self._failures[stripe.index, donor.id] += 1
            self._none_left(stripe)
            return False
        return True

    def _wants(self, stripe: Stripe) -> bool:
        return (
            not self._over
            and self._error is None
            and any(stripe.index == other.index and stripe.version == other.version for other in self.stripes)
        )

    def _none_left(self, stripe: Stripe) -> None:
        """Where all donors of a view that stays are unable to give a stripe there is nothing to wait for."""
        deadline = self._plane.threads.now() + (_PATIENCE if self.session is not None else _SPARE_PATIENCE)
        with self._changed:
            while self._wants(stripe) and self._donor_of(self.stripes[stripe.index]) is None:
                if self._plane.threads.now() > deadline:
                    raise NoFollowing(f"nobody is left who could give stripe {stripe.index} of the state")
                self._changed.wait(LOOK)
