"""A spare's way to the state while its program waits in its first call: level with the members before it is one of them.

A thread of its own finds a *tutor*, listens to its averages, has the members pin the state as of a call not yet entered, and
leaves the rest to a ``Round``: that of a joiner, but for the averages, which come from the tutor. Should the tutor go, another
one goes on where it stopped, if it has not gone further; else all begins anew. Once the spare is promoted, ``Catchup`` goes on
with the round.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from consensus import Member, View

from ..call import Call, Results
from ..errors import ConfigError, RebuildTimeout
from ..follower import NoFollowing
from ..logs import about
from ..phase import Phase
from ..plane import Plane
from ..registry import Registered
from ..staging import Slot
from ..units import size
from .feed import Lesson
from .fetch import FetchError, HttpSource, Later, Offer, Refused
from .lessons import Lessons, Stream
from .round import LOOK, Round
from .tutor import given

__all__ = ["Warmth"]

logger = logging.getLogger("ftlib")

PATIENCE = 1.0
"""Seconds that a promoted spare waits for what its tutor still has to send, while the others wait for it."""
_FURTHEST = 256
"""Calls ahead that the state may be asked for."""
_REST, _LONGEST_REST = 0.2, 10.0
"""Seconds before it begins anew, doubled each time; at most so long."""


class Warmth:
    """Of one call of a spare: ``begin``, then ``surrender`` where it is promoted, or ``end``."""

    def __init__(
        self,
        plane: Plane,
        registered: Registered,
        own: Call,
        lessons: Lessons,
        known: Callable[[], View | None],
        max_size: int,
        pending: int,
        patience: float,
    ) -> None:
        """``known``: the job's newest view, as far as this worker knows. ``pending``, ``patience``: see ``catchup.Allowed``."""
        self._plane = plane
        self._registered = registered
        self._own = own
        self._lessons = lessons
        self._known = known
        self._max_size = max_size
        self._pending = pending
        self._patience = patience
        self._spare: dict[int, list[Slot]] = {}
        """Buffers to be used again, by the identity of their bucket."""
        self._tutor: Member | None = None
        self.asked: dict[str, Member] = {}
        """Who may have pinned something for this spare."""
        self._device: int | None = None
        self._ahead = 3
        """Calls after the newest one that was finished: so many are enough for a question."""
        self._told = False
        """Whether the log says that this spare is level."""
        self._changed = threading.Condition()
        # Guarded by the condition:
        self._over = False
        self._round: Round | None = None
        self._former: Round | None = None
        """The one before, which may be about to end."""
        self._kept = 0
        """The newest call of which the round knows what it came to."""
        self._error: Exception | None = None

    # --- the training thread -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start."""
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            self._device = torch.cuda.current_device()
        threading.Thread(target=self._run, name="ftlib-warmth", daemon=True).start()

    @property
    def error(self) -> Exception | None:
        """What the program has to be told: its state does not fit the job's."""
        return self._error

    def await_call(self, number: int, go_on: Callable[[], bool]) -> None:
        """Wait until what call ``number`` came to is here, for as long as it may still come."""
        deadline = self._plane.threads.now() + PATIENCE
        with self._changed:
            while self._round is not None and self._kept < number and go_on() and self._plane.threads.now() < deadline:
                self._changed.wait(LOOK)

    def surrender(self, number: int) -> Round | None:
        """The round, to go on with at call ``number``; None where averages are missing: what there was is given up."""
        with self._changed:
            self._over = True
            round_, self._round, former = self._round, None, self._former
            fits = round_ is not None and round_.error is None and round_.begins <= number and self._kept >= number - 1
            self._changed.notify_all()
        if fits:
            return round_
        for each in (former, round_):
            if each is not None:
                each.end()
        return None

    def end(self) -> bool:
        """Nothing writes the state any more once this returns. Idempotent. Whether it has been written. RebuildTimeout."""
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
        if self._device is not None:
            torch.cuda.set_device(self._device)
        rest = _REST
        while self._going():
            self._told = False
            try:
                self._attend()
            except (FetchError, Later, NoFollowing) as error:
                why = str(error)
            except (ConfigError, RebuildTimeout) as error:
                self._fail(error)
                return
            except Exception as error:  # a spare without the state is one all the same
                extra = about(self._plane, "spare_cold", why=str(error))
                logger.exception("this spare gives up getting the state", extra=extra)
                self._drop()
                return
            else:
                why = ""
            if self._going() and why:
                logger.info("this spare has to get the state anew: %s", why, extra=about(self._plane, "spare_cold", why=why))
            try:
                self._drop()
            except RebuildTimeout as error:
                self._fail(error)
                return
            rest = _REST if self._told else min(_LONGEST_REST, 2 * rest)
            with self._changed:
                self._changed.wait_for(lambda: self._over, rest)

    def _attend(self) -> None:
        """Get the state, and keep pace, until it has to begin anew."""
        failed: dict[str, str] = {}
        while self._going():
            tutor = next((member for member in self._tutors() if member.id not in failed), None)
            if tutor is None:
                if failed:
                    raise FetchError("; ".join(failed.values()))
                return  # there is room: this is no spare, or not for long
            wrong: ConfigError | None = None
            try:
                with self._lessons.averages(tutor, self._own.layout.signature, self._slots, self._going) as stream:
                    try:
                        self._take_up(tutor, stream)
                        self._listen(tutor, stream)
                    except ConfigError as error:  # else it would be taken for what the connection may raise
                        wrong = error
            except (FetchError, Later) as error:
                if self._told:
                    failed.clear()
                failed[tutor.id] = str(error)
                logger.debug("no averages any more: %s", error, extra=about(self._plane, "spare_tutor", donor=tutor.id))
            if wrong is not None:
                raise wrong

    def _tutors(self) -> Sequence[Member]:
        """Whom to ask, in this spare's own order; nobody while there is room in the view."""
        view, own = self._known(), self._plane.member_id
        if view is None or (self._round is None and (len(view) < self._max_size or own in view)):
            return ()
        others = [member for member in view.members if member.id != own]
        first = int(own[-4:], 16) % max(1, len(others))
        return (*others[first:], *others[:first])

    def _take_up(self, tutor: Member, stream: Stream) -> None:
        """Go on with the round there is, or begin one."""
        hello = stream.hello
        with self._changed:
            round_, kept = self._round, self._kept
        if round_ is not None and (round_.origin != hello.origin or hello.finished > kept):
            self._drop()
            round_ = None
        if round_ is None:
            self._begin(tutor, stream)
        self._tutor = tutor

    def _begin(self, tutor: Member, stream: Stream) -> None:
        """Have one version of the state pinned at all donors: that of a call which none of them has entered yet."""
        self._told = False
        hello, plane = stream.hello, self._plane
        holders = list(hello.holders)
        turn = int(plane.member_id[-4:], 16) % len(holders)
        ask = self._lessons.begin
        version = hello.finished + self._ahead
        self.asked = {**self.asked, **{holder.id: holder for holder in holders}}
        with ThreadPoolExecutor(len(holders), "ftlib-begin") as pool:
            futures = [
                pool.submit(ask, holder, hello.origin, holders, turn, version, self._going, inline=holder.id == tutor.id)
                for holder in holders
            ]
        try:
            told = [future.result() for future in futures]
        except Refused:
            self._ahead = min(_FURTHEST, 2 * self._ahead)
            raise
        if len({(begun.nbytes, begun.ground) for begun in told}) > 1:
            sizes = ", ".join(str(begun.nbytes) for begun in told)
            raise FetchError(f"the donors disagree on what the state is: {sizes} bytes")
        first = next(begun for begun, holder in zip(told, holders, strict=True) if holder.id == tutor.id)
        stripes = given(first.nbytes, [holder.id for holder in holders], turn, version)
        offer = Offer(first.nbytes, len(stripes), first.packed, ((0, first.nbytes),))
        text = "getting %s of state while this spare waits, as of call %d; averages come from %s"
        extra = about(plane, "spare_begins", state_bytes=first.nbytes, version=version, donor=tutor.id)
        logger.info(text, size(first.nbytes), version, tutor, extra=extra)
        round_ = Round(
            plane,
            self._registered,
            self._own,
            self._lessons.source,
            None,
            holders,
            hello.origin,
            version,
            stripes,
            offer,
            self._pending,
            self._patience,
        )
        with self._changed:
            if self._over:
                return
            self._round, self._kept = round_, hello.finished
            round_.begin()

    def _listen(self, tutor: Member, stream: Stream) -> None:
        while self._going():
            lesson = stream.next()
            if lesson is None:
                view = self._known()
                if view is not None and tutor.id not in view:
                    raise FetchError(f"{tutor} is in the job's view no more")
            else:
                self._compare(lesson)
                if not self._keep(lesson):
                    return
            self._look()

    def _compare(self, lesson: Lesson) -> None:
        """Whoever averages other tensors than the others will never do the same as they. A difference in the state says why."""
        own = self._own.layout
        round_ = self._round
        if lesson.signature != own.signature and lesson.kind == own.kind and round_ is not None:
            round_.check_fit()
            raise NoFollowing("the others average something else")

    def _keep(self, lesson: Lesson) -> bool:
        """Pass it on to the round; False once that is somebody else's."""
        own = self._own.layout
        with self._changed:
            round_ = self._round
            if self._over or round_ is None:
                return False
            if lesson.number <= self._kept:
                self._reuse(lesson.slots)
                return True
            if lesson.number != self._kept + 1:
                raise FetchError(f"averages {self._kept + 1} to {lesson.number - 1} are missing")
            if lesson.number >= round_.begins:
                results = Results(lesson.number, own, lesson.slots, lesson.weight) if lesson.slots else None
                self._reuse(round_.keep(lesson.number, results) or ())
            else:
                self._reuse(lesson.slots)
            self._kept = lesson.number
            self._changed.notify_all()
        while not round_.wait_room(LOOK) and self._going() and round_.error is None:
            pass
        return True

    def _look(self) -> None:
        """Raise what went wrong with the round; say so, and free the donors, once it is level."""
        with self._changed:
            round_, kept = self._round, self._kept
        if round_ is None:
            return
        if round_.error is not None:
            raise round_.error
        if not self._told and round_.level_with(kept + 1, but=1):
            self._told = True  # the newest average may be in the works, as it is at the members
            text = "this spare has the state as of call %d, and keeps pace with %s"
            logger.info(text, kept + 1, self._tutor, extra=about(self._plane, "spare_warm", version=kept + 1))
            self._farewell()

    def _slots(self) -> Sequence[Slot]:
        spare, buckets = self._spare, self._own.layout.buckets
        return [spare[id(bucket)].pop() if spare.get(id(bucket)) else Slot(bucket, 0) for bucket in buckets]

    def _reuse(self, slots: Sequence[Slot]) -> None:
        for slot in slots:
            self._spare.setdefault(id(slot.bucket), []).append(slot)

    def _drop(self) -> None:
        """The round is of no use any more."""
        with self._changed:
            if self._over:
                return  # somebody else's
            round_, self._round = self._round, None
            self._former = round_ or self._former
            self._changed.notify_all()
        if round_ is not None:
            round_.end()

    def _farewell(self) -> None:
        """Tell whoever may have pinned something that it is not wanted any more, on a thread of its own."""
        asked, self.asked = list(self.asked.values()), {}
        if asked:
            release = functools.partial(_release, self._lessons.source, asked)
            threading.Thread(target=release, name="ftlib-release", daemon=True).start()

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._error = error
        with self._plane.changed:  # where the program waits
            self._plane.changed.notify_all()

    def _going(self) -> bool:
        return not self._over and self._plane.phase is not Phase.STOPPED


def _release(source: HttpSource, donors: Sequence[Member]) -> None:
    for donor in donors:
        source.release(donor)
