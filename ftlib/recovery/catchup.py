"""A joiner catches up: it follows the others' calls while it gets their state, until its own contribution counts.

Requests name a call before the donors enter it, so that nobody waits for the requests. A ``Round`` fetches the shards and
replays the averages beside the training thread. If this cannot work, ``NoFollowing`` is raised: then the member loads the whole
state while the others wait (``whole_state``).
"""

from __future__ import annotations

import contextlib
import functools
import random
import zlib
from collections.abc import Callable, Iterator, Sequence

from consensus import CarefulLogger, Member

from ..common.device_waits import settle
from ..common.memory import room
from ..common.traces import RecoveryRecord
from ..common.units import size
from ..core.calls.call import Call, Kind, Results
from ..core.calls.learner import NoFollowing
from ..core.calls.session import Session
from ..core.plane.plane import Plane
from ..core.tensors.layout import Layout
from ..core.tensors.staging import Allocate, Slot
from ..errors import ConfigError, GroupError
from ..state.live import separable
from ..state.registry import Registered
from ..state.replay import why_not
from .joiner.http_transport import FetchError, HTTPTransport, Later, Over, SnapshotOffer, pinned_shards
from .joiner.limits import RecoveryLimits
from .joiner.prefetch import Prefetch
from .joiner.round import Round
from .joiner.slot_pool import SlotPool
from .joiner.verification import Verification
from .layout.requests import in_words, is_short
from .layout.shards import LARGE, ChunkRequest, Shard, cut
from .warm_standby import WarmStandby

logger = CarefulLogger("ftlib")

_PAUSE = 0.05
"""Seconds between two requests while the others wait."""
_GRACE = 0.02
"""Seconds that the others may wait for the last bytes of a small state, which saves this member one more call."""
_TRIES = 3
"""Number of times that requests to the donors may fail."""
_FURTHEST = 256
"""How many calls ahead a request may name, if calls end before a request arrives."""


class Catchup:
    """The ``Recovery`` of one lifetime. Used on the training thread."""

    def __init__(
        self,
        plane: Plane,
        registered: Callable[[], Registered | None],
        transport: Callable[[], HTTPTransport],
        allowed: RecoveryLimits,
        standby: Callable[[Registered, Call], WarmStandby] | None = None,
        allocate: Allocate = room,
        known: Callable[[], Sequence[Member]] = lambda: (),
    ) -> None:
        """``registered``: returns what the program has registered so far. ``transport``: makes a new one for each round.
        ``known``: returns the members of the job, as far as this one knows; it may be none itself yet.

        ``standby``: makes the warm standby of a spare that waits; None if there are no spares. ``allocate``: returns memory for
        operations (see ``Framework``).
        """
        self._plane = plane
        self._registered = registered
        self._new_transport = transport
        self._allowed = allowed
        self._new_standby = standby
        self._known = known
        self._standby: WarmStandby | None = None
        self._own: Call | None = None
        """The program's first call, in which this member follows the others."""
        self._round: Round | None = None
        self._slot_pool = SlotPool(allowed.pending, plane.threads, allocate)
        self._prefetch: Prefetch[SnapshotOffer, Round] | None = None
        """The request for an offer: what the donors pin on entry to a future call, or one under way."""
        self._verification: Verification | None = None
        """The verification as of entry to such a call."""
        self._chunk: ChunkRequest | None = None
        """The chunk of the prefetched offer; None for the whole state."""
        self._ahead = 0
        """How many calls ahead requests name: a learner computes nothing, so it enters a call before the others."""
        self._attempted = 0
        """The call that was named in the first call of a view, if a request was: it may come too late for some."""
        self._last_session: Session | None = None
        self._hopes = 0
        """Number of verifications that may still begin before all shards are here, as a small state arrives soon."""
        self._missed = 0
        """Number of verifications whose call turned out to differ from the program's."""
        self._asked: dict[str, Member] = {}
        """Members that may have pinned ranges for this one."""
        self._failures = 0
        self._refused = False
        """True once this member does not follow any more in this lifetime."""

    def stand_by(self, own: Call) -> None:
        """The program waits in its first call for admission, perhaps for long: keep the state level with the others'."""
        registered = self._registered()
        if self._new_standby is None or self._standby is not None:
            return
        if registered is not None and self._may_follow(own, registered):
            self._settle(own)
            standby = self._new_standby(registered, own)
            try:
                standby.begin()
            except RuntimeError as error:  # no thread for it: a spare without the state is still a spare
                why = in_words(error)
                logger.info("this spare does without the state: %s", why, extra=self._plane.about("spare_cold", why=why))
            else:
                self._standby = standby

    def look_ahead(self, own: Call, note: Callable[[Layout], None]) -> None:
        """See ``Recovery``."""
        plane, registered = self._plane, self._registered()
        others = [member for member in self._known() if member.id != plane.member_id]
        if not others or registered is None or not self._may_follow(own, registered):
            return
        transport, asked = self._new_transport(), others[zlib.crc32(plane.member_id.encode()) % len(others)]

        def ask() -> None:
            try:
                note(transport.layout_like(asked, own.layout, lambda: not plane.leaving()))
            except (FetchError, Later) as error:  # the call's first trailer will say what to ask for
                logger.debug("no layout ahead: %s", error, extra=plane.about("no_layout"))

        try:
            plane.threads.thread(ask, "ftlib-ahead").start()
        except RuntimeError as error:  # no thread for it
            logger.debug("no layout ahead: %s", error, extra=plane.about("no_layout"))

    def _may_follow(self, own: Call, registered: Registered) -> bool:
        possible = self._allowed.live and not self._refused and own.kind is Kind.AVERAGE
        return possible and not why_not(registered)

    @property
    def trouble(self) -> Exception | None:
        """The error of a standby whose state does not fit the job's; None if there is none."""
        return None if self._standby is None else self._standby.error

    def wanted(self, own: Call, session: Session) -> bool:
        """See ``Recovery``."""
        wanted = self._wanted(own, session)
        if not wanted and self._standby is not None:
            standby, self._standby = self._standby, None
            if standby.end():
                own.reloaded()  # its gradients were computed with other parameters
        return wanted

    def _wanted(self, own: Call, session: Session) -> bool:
        plane, registered = self._plane, self._registered()
        if self._refused or not self._allowed.live or registered is None or own.kind is not Kind.AVERAGE or plane.founder:
            return False
        if not plane.current_state_id or plane.state_id == plane.current_state_id or not session.plan.holders:
            return False
        reason = why_not(registered)
        if reason:
            self._refused = True
            plane.counters.recovery_fallbacks += 1
            logger.info("the others wait while this worker loads the state: %s", reason, extra=plane.about("no_following"))
            return False
        if self._own is None:
            self._settle(own)
        self._own = own
        plane.counters.time_use.unknown()
        return True

    def _settle(self, own: Call) -> None:
        """Other threads write the state and the gradients from now on: nothing of the program's may still be under way."""
        settle({*self._plane.state_places, *own.layout.places})

    def enter(self, session: Session, number: int) -> bool:
        """See ``Recovery``."""
        try:
            with _following():
                return self._enter(session, number)
        except NoFollowing:
            self._refused = True
            raise

    def finished(self, results: Results) -> bool:
        """See ``Recovery``."""
        verification = self._verification
        alike = self._first.layout.same_call(results.layout.signature)
        if verification is None or verification.number > results.number:
            self._same_kind(results, alike=alike)
            return False
        self._verification = None
        try:
            if not alike or verification.number != results.number:
                self._missed += 1
                self._same_kind(results, alike=alike)
                return False
            return self._looks(verification) and self._verified(verification) and self._caught_up(results.number)
        finally:
            verification.close()

    def kept(self, results: Results) -> Sequence[Slot] | None:
        """See ``Recovery``: keeps the averages that the program would have applied."""
        prefetch = self._prefetch
        if prefetch is not None and prefetch.version == results.number:
            self._prefetch = None
            self._begin(prefetch)
        round_ = self._round
        if round_ is None or self._plane.state_id == round_.state_id:
            return None
        applied = self._first.layout.same_call(results.layout.signature) and not self._first.void(results)
        spare = round_.keep(results.number, results if applied else None, self._plane.step)
        return None if spare is None else [*spare, *self._slot_pool.kept(results.layout, round_.progress().pending)]

    def layout(self, session: Session, start: bytes) -> Layout:
        """See ``Recovery``."""
        transport = self._round.transport if self._round is not None else self._new_transport()
        go_on = self._while_acting(session)
        for holder in session.plan.holders * _TRIES:
            try:
                return transport.layout(session.view.member(holder), start, go_on)
            except (FetchError, Later) as error:
                logger.debug("no layout: %s", error, extra=self._plane.about("no_layout"))
            self._plane.wait_end(session, _PAUSE)
        raise GroupError(f"{session.names(session.plan.holders)} did not say what they are doing")

    def end(self) -> None:
        """See ``Recovery``."""
        standby, self._standby = self._standby, None
        if standby is not None:
            standby.end()
        self._stop()
        self._own = self._last_session = None
        asked, self._asked = list(self._asked.values()), {}
        if asked:
            self._new_transport().release_all(asked)

    # --- before a call -------------------------------------------------------------------------------------------------

    def _enter(self, session: Session, number: int) -> bool:
        plane = self._plane
        fresh, self._last_session = session is not self._last_session, session
        if self._standby is not None:
            self._standby.await_call(number - 1, self._while_acting(session))
            if not plane.acting_in(session):
                return False
            standby, self._standby = self._standby, None
            self._asked.update(standby.asked)
            self._round = standby.surrender(number)
        if self._round is not None and not self._goes_on(self._round, session, number):
            self._stop()
            extra = plane.about("recovery_restarts", version=number)
            logger.info("getting the state begins anew, as of call %d", number, extra=extra)
        if self._prefetch is not None and (self._prefetch.session is not session or self._prefetch.version < number):
            self._drop_prefetch()  # it is requested again
        # The others may be in the first call of a view already: what is under way goes on, and asks about the next one.
        round_, version = self._round, number + max(self._ahead, int(fresh and self._round is not None))
        if self._prefetch is None:
            self._attempted = version if fresh else 0
            self._ask(session, round_, version)
        if round_ is None:
            return plane.acting_in(session)
        round_.progress_log.update()
        round_.apply_backpressure(session, number, level=self._verification is not None and self._verification.number == number)
        if round_.level_with(number, but=1) or self._hopes:
            self._near_the_end(round_, session, number, version)
        return plane.acting_in(session)

    def _goes_on(self, round_: Round, session: Session, number: int) -> bool:
        """True if the round can go on in ``session``."""
        if round_.session is session:
            return True
        behind = self._plane.member_id in session.plan.healed  # if so, averages are missing
        return not behind and round_.state_id == self._plane.current_state_id and round_.move(session, number)

    def _ask(self, session: Session, round_: Round | None, version: int) -> None:
        """Ask the donors to pin the next chunk of the state on entry to call ``version``, if one is due."""
        plane, plan, transport, registered = self._plane, session.plan, self._new_transport(), self._registered()
        assert registered is not None
        if round_ is not None:
            self._chunk = round_.next_chunk
            if self._chunk is None:
                return
        else:
            self._chunk = ChunkRequest(keep=version) if separable(registered) else None
        members = [session.view.member(holder) for holder in plan.holders]
        self._asked.update((member.id, member) for member in members)
        turn = self._turn(session)
        ask = functools.partial(
            transport.offer,
            members,
            version=version,
            state_id=plane.current_state_id,
            turn=turn,
            inline_from=plan.holders[(turn + self._failures) % len(plan.holders)],
            chunk=self._chunk,
        )
        begin = None
        if round_ is None:
            moment = session, plane.current_state_id, turn, version, self._chunk or ChunkRequest()
            allowed, attempt = self._allowed, self._attempted == version
            begin = functools.partial(_open_round, plane, registered, self._first, transport, allowed, *moment, attempt)
        go_on = self._while_acting(session, version)
        self._prefetch = Prefetch(session, version, lambda go_on: ask(go_on=go_on), go_on, begin)

    def _begin(self, prefetch: Prefetch[SnapshotOffer, Round]) -> None:
        """The call that ``prefetch`` names has ended: begin the round, or add the chunk, if the donors have pinned it."""
        session, version = prefetch.session, prefetch.version
        try:
            with _following():
                offer = prefetch.result()
            if self._round is None:
                self._round = prefetch.begun
                self._hopes = _TRIES if offer.nbytes < LARGE and len(offer.chunks) == 1 else 0
            else:
                shards = _shards_of(offer, session, self._turn(session), version, self._chunk or ChunkRequest())
                self._round.add(offer, shards, version)
        except (FetchError, Later) as error:
            if version != self._attempted:
                self._unanswered(session, error)

    def _turn(self, session: Session) -> int:
        return session.view.index(self._plane.member_id) % len(session.plan.holders)

    def _near_the_end(self, round_: Round, session: Session, number: int, version: int) -> None:
        """All but the last average is replayed, or will be soon: ask for the inline part and for digests."""
        verification = self._verification
        if verification is not None and (verification.session is not session or verification.number < number):
            verification.close()
            verification = self._verification = None
        if verification is None:
            # A program may repeat calls of several kinds, one of them its average: a random distance finally meets the average.
            version += random.randrange(self._missed + 1)
            self._hopes = max(0, self._hopes - 1)
            verification = self._verification = Verification(
                round_, session, version, self._while_acting(session, version), self._failures
            )
        if verification.number == number and round_.level_with(number):
            verification.begin()

    def _looks(self, verification: Verification) -> bool:
        """True if this member has the state on entry to the call just followed, or gets it within a moment."""
        round_ = self._round
        if not verification.begun and round_ is not None:
            with contextlib.suppress(ConfigError):  # raised again on entry to the next call, which nobody has finished
                round_.apply_backpressure(verification.session, verification.number, level=True, grace=_GRACE)
            if round_.level_with(verification.number):
                with _following():
                    verification.begin()
        return verification.begun

    def _verified(self, verification: Verification) -> bool:
        """True if this member has the state on entry to the call just followed. NoFollowing if digests differ."""
        try:
            with _following():
                equal = verification.holds()
                if equal:
                    verification.load()
        except (FetchError, Later) as error:
            self._unanswered(verification.session, error)
            return False
        if not equal:
            self._refused = True
            raise NoFollowing(
                "what was replayed is not what the others have: they do more in a step than what was registered with apply= "
                "(by default, the optimizers' step); clipping, schedulers and averages of weights belong into it"
            )
        # If left behind, its loader would go on after the others' last batch: it comes in with the next data epoch.
        return not self._plane.data.left_behind(self._first.batches)

    def _unanswered(self, session: Session, error: Exception) -> None:
        """No answer came: ask again, unless this has happened too often."""
        if isinstance(error, Over) and self._ahead < _FURTHEST:
            self._ahead = max(1, 2 * self._ahead)
            return
        self._plane.wait_end(session, 1.0)  # if a donor has just died, the next view excludes it
        if self._plane.acting_in(session):
            self._failed(str(error))

    def _failed(self, why: str) -> None:
        self._failures += 1
        logger.info("the rest of the state did not arrive: %s", why, extra=self._plane.about("recovery_delayed"))
        if self._failures == _TRIES:
            self._refused = True
            raise NoFollowing(f"the rest of the state did not arrive {_TRIES} times: {why}")

    def _caught_up(self, number: int) -> bool:
        round_ = self._round
        assert round_ is not None, "a round is under way while calls are followed"
        if not self._plane.caught_up(round_.state_id, number):
            return False
        self._plane.counters.recoveries += 1
        self._plane.counters.averages_replayed += round_.progress().replayed
        round_.progress_log.caught_up(number)
        if (traces := self._plane.traces) is not None:
            done, now = round_.progress(), self._plane.threads.now()
            view_id = "" if round_.session is None else round_.session.whole.view_id
            own, began = self._plane.member_id, now - done.seconds
            traces.add(RecoveryRecord(own, began, now, done.total, done.replayed, number + 1, view_id, waited_for=False))
        return True

    def _same_kind(self, results: Results, *, alike: bool) -> None:
        """NoFollowing if the others average other tensors than this program."""
        if not alike and results.layout.kind == self._first.layout.kind:
            self._refused = True
            raise NoFollowing(f"the others average something else ({results.layout.text})")

    def _stop(self) -> None:
        round_, self._round = self._round, None
        verification, self._verification = self._verification, None
        self._failures = 0
        if verification is not None:
            verification.close()
        self._slot_pool.close()
        self._drop_prefetch()
        if round_ is not None:
            round_.end()

    def _drop_prefetch(self) -> None:
        prefetch, self._prefetch = self._prefetch, None
        if prefetch is not None:
            prefetch.close()
            if prefetch.begun is not None:
                prefetch.begun.end()

    def _while_acting(self, session: Session, version: int = 0) -> Callable[[], bool]:
        """Returns a function that is True while ``session`` is active, for as long as the others may have to wait.

        That time begins when call ``version`` has ended: until then nobody waits for requests about it.
        """
        plane, patience = self._plane, self._allowed.patience
        now = plane.threads.now
        deadline = now() + patience

        def go_on() -> bool:
            nonlocal deadline
            if plane.finished < version:
                deadline = now() + patience
            return plane.acting_in(session) and now() < deadline and not plane.leaving()

        return go_on

    @property
    def _first(self) -> Call:
        assert self._own is not None, "a call of the program's is under way while others are followed"
        return self._own


@contextlib.contextmanager
def _following() -> Iterator[None]:
    """NoFollowing if something is short, or does not work. The program does not see it, as the whole state may come yet."""
    try:
        yield
    except (OSError, RuntimeError, MemoryError) as error:
        if not is_short(error):
            logger.exception("the state cannot be had beside the training")
        raise NoFollowing(in_words(error)) from error


def _shards_of(offer: SnapshotOffer, session: Session, turn: int, version: int, chunk: ChunkRequest) -> tuple[Shard, ...]:
    """The shards of ``chunk``, with the donors that pinned them. FetchError if no donor has pinned one of them."""
    start, stop = offer.chunks[chunk.number]
    holders = session.plan.holders
    return pinned_shards(offer, cut(stop - start, holders, turn + chunk.number, version, start=start, first_index=chunk.first))


def _open_round(
    plane: Plane,
    registered: Registered,
    own: Call,
    transport: HTTPTransport,
    allowed: RecoveryLimits,
    session: Session,
    state_id: str,
    turn: int,
    version: int,
    chunk: ChunkRequest,
    attempt: bool,
    offer: SnapshotOffer,
) -> Round:
    """Begin a round with the first chunk, pinned on entry to call ``version``, which may still be under way. Any thread.

    FetchError as for ``_shards_of``; with ``attempt``, also if anybody has pinned nothing, as all may do so in the next call.
    """
    if attempt and offer.failed:
        raise next(iter(offer.failed.values()))
    shards = _shards_of(offer, session, turn, version, chunk)
    text = "getting %s of state from %s beside the training, as of call %d"
    extra = plane.about("recovery_begins", state_bytes=offer.nbytes, version=version)
    logger.info(text, size(offer.nbytes), session.names(session.plan.holders), version, extra=extra)
    moment = session, session.view.members, state_id, version
    round_ = Round(plane, registered, own, transport, *moment, shards, offer, allowed)
    round_.begin()
    return round_
