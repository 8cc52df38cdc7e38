"""One member's part in the dealing: what it has drawn and not used up, what it reports to the others, what it may draw next.

Pure: no lock, clock or permutation. Between calls a member draws from its sequence (see ``deal``) as far as its loader looks
ahead, and sends nothing. If there is nothing to draw, it hands out a *filler*: a batch that counts nothing.

*When a dealt batch may be drawn.* A member may learn of a view that another member never learns of, because a third dies too
soon. So the deal of a view change is a proposal until a call has finished in that view: this proves that every member knows
it. Until then a member draws only what it holds: the batches that it reported as taken, a little more than it had taken. The
next view change starts from the last state that every member has (``_base``), as if the one in between had never happened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import ConfigError
from .dealing.ledger import Ledger
from .dealing.ranges import Ranges, length
from .dealing.replica import FAR, DrawnReport, Replica, code_of
from .drawn import Drawn
from .mates import Ahead, agreed_ahead
from .sampling import Share

FILLER: Ranges = ()
"""Drawn where there is nothing to draw."""
_ALONE = "alone"
_MOST = 0xFFFF
"""The highest value of a share's 16-bit fields."""


@dataclass(slots=True)
class _Call:
    """A call of the program's that has begun."""

    batches: int
    until: int | None
    """The value of ``attempts`` once all is drawn that the program draws meanwhile, for calls to come; None: it draws none."""
    kept: bool = False
    """Whether its batches are used up by a later call, should it end unfinished."""
    share: Share | None = None


class Drawer:
    """See the module. Unbound, it is the only member, and nothing is ever committed."""

    def __init__(
        self,
        fresh: Replica,
        *,
        measure: Callable[[int, Ranges], int],
        ends: Callable[[int, Ranges], int | None],
    ) -> None:
        """``fresh``: the state before any epoch. ``measure``: counts the positions of an epoch's batch that exist.

        ``ends``: returns where a shard was found to end by who has read an epoch's batch; None: nothing new was found.
        """
        self._fresh, self._measure, self._ends = fresh, measure, ends
        self._me = _ALONE
        self._bound = self._together = False
        self._loaded = False
        self._founding: tuple[str, ...] | None = None
        """The founding view, until a call has finished."""
        self._base: Replica | None = fresh.dealt([_ALONE])
        self._now: Replica | None = self._base
        self._proposed = False
        """True while ``_now`` follows from a view change, and no call has finished in the new view yet."""
        self._over = False
        """Whether the lifetime is over."""
        self._report: DrawnReport | None = None
        """While frozen: what was reported."""
        self._queue = Drawn()
        self._early = 0
        """How many of the newest batches in the queue are there because a mate has drawn them; its own loader has yet to."""
        self._drawn = 0
        """Batches of the own sequence under the current deal that were drawn, used up or not."""
        self._loop: int | None = None
        """The epoch of the loop under way or last ended; None: there was none, or it began before the state was here."""
        self._last = -1
        """The epoch of the last loop that was known: a member that gets the state again is still in its old loop."""
        self._looping = False
        """Whether a loop is under way whose loader has not got the end yet."""
        self._asked: int | None = None
        """The epoch that the loop was begun for."""
        self._call: _Call | None = None
        self._halted: tuple[int, int] | None = None
        """A call that ended without being finished: its batches, and the value of ``attempts`` at that moment."""
        self._usual = 1
        """The most batches that a call has used up."""
        self._weight = 1.0
        self._book = self._before = fresh.ledger
        self.loops = 0
        """How many loops have begun."""
        self.attempts = 0
        """How often a loader asked for a batch: once for each batch it delivers, plus its look-ahead at the start."""

    # --- what is known -------------------------------------------------------------------------------------------------

    @property
    def state(self) -> Replica | None:
        """The replicated state; None: a joiner that does not have it yet."""
        return self._now

    @property
    def ledgers(self) -> dict[int, Ledger]:
        """The ledgers of the previous epoch and of the current one, by epoch."""
        return {book.epoch: book for book in (self._before, self._book) if book.epoch >= 0}

    @property
    def bound(self) -> bool:
        """Whether it is a member of a job."""
        return self._bound

    @property
    def calling(self) -> bool:
        """Whether a call of the program's is under way, during which no loop may begin."""
        return self._call is not None

    @property
    def holding(self) -> bool:
        """Whether a call of the program's is under way, during which nothing may be drawn."""
        return self._call is not None and self._call.until is None

    def following(self, now: Replica) -> int:
        """The epoch of a loop that is begun without an epoch: the current one if samples of it are left, else the next."""
        return now.epoch + (now.left == 0 or (now.left is not None and self._loop == now.epoch))

    def upcoming(self) -> int:
        """The epoch that a program going through all epochs begins, or goes on with, now."""
        now = self._now
        if now is None:
            return 0
        return now.epoch + (now.left == 0 or self._loop == now.epoch)

    def batches(self, asked: int | None) -> int:
        """Count the batches that a loop over the epoch ``asked``, or over the one that follows, hands out, as far as known."""
        state = self._now
        if state is None:
            return self._fresh.dealt([_ALONE]).begin(0).steps
        epoch = self.following(state) if asked is None else asked
        if epoch < state.epoch:
            return 0
        return state.steps if epoch == state.epoch else state.begin(epoch).steps

    @property
    def looped(self) -> int:
        """The epoch of the loop under way, or of the last one; -1 if there was none, or if it is not known yet."""
        return self._last if self._loop is None else self._loop

    @property
    def using(self) -> int:
        """Batches that the call under way uses up; 0 if there is none."""
        return 0 if self._call is None else self._call.batches

    # --- the loader ----------------------------------------------------------------------------------------------------

    def start(self, epoch: int | None) -> None:
        """Begin a loop over ``epoch``; None: over the current one, or the next if that is complete. Raises ConfigError."""
        self._early, self._halted = 0, None
        self.loops += 1
        self._queue.discard(len(self._queue.items))
        self._looping, self._asked = True, epoch
        now = self._now
        if now is None:
            self._loop, self._last = None, -1
            return
        if self._together:  # how much goes back would depend on how far each process has drawn: it is drawn again
            self._queue, self._drawn = Drawn(), now.done(self._me)
        if not self._bound:
            now, epoch = self._alone(now, epoch)
        if epoch is None:
            epoch = self.following(now)
        if epoch > now.epoch:
            if now.epoch >= 0 and epoch > now.epoch + FAR:
                raise ConfigError(f"epoch {epoch} after epoch {now.epoch}: at most {FAR} can be skipped at once")
            self._begin(epoch)
        elif self._base is not None and epoch == now.epoch > self._base.epoch:
            self._base = self._base.begin(epoch)  # so far only a view change had begun it; now this program does
        self._loop = epoch

    def draw(self) -> Ranges | None:
        """Return the next batch, ``FILLER``, or None at the loop's end; after None perhaps more, if other members have more."""
        self.attempts += 1
        self._settle()
        if self._early:
            self._early -= 1
            return self._queue.items[-1 - self._early]
        batch = self._next()
        if batch is None and self._call is not None:  # the loop ends with the call: its program makes no other call before
            self._queue.items.append(FILLER)
            batch = FILLER
        self._looping = batch is not None
        return batch

    def _next(self) -> Ranges | None:  # noqa: PLR0911 - each is one reason why a batch is what it is
        if self._loop is None and not self._looping:
            return None  # the loop ended before this process became another member
        now = self._now
        if now is not None and not self._over:
            now = self._join(now)
            if self._loop is not None and self._loop < now.epoch:
                return None
            if now.left is not None:
                if self._queue.waiting >= now.left:
                    return None
            elif self._drawn < min(now.deal.length(self._me), self._limit(now)):
                batch = now.deal.batch(self._me, self._drawn)
                if not self._bound and (end := self._ends(now.epoch, batch)) is not None:
                    self._base = self._now = now.without(end, self._drawn)  # no call tells it
                    self._drawn = 0
                    return self._next()
                self._drawn += 1
                self._queue.items.append(batch)
                return batch
            elif not self._bound:
                return None
        self._queue.items.append(FILLER)
        return FILLER

    # --- the calls -----------------------------------------------------------------------------------------------------

    def begin(self, batches: int, *, beside: int = 0, kept: bool = False) -> Share:
        """See ``Sampling.begin``."""
        self._settle()
        if self._call is None:
            self._call = _Call(batches, None, kept)
            if beside:  # more is drawn: a program that counts more batches than there are must not use up those
                self._call.batches, self._call.until = min(batches, self._queue.waiting), self.attempts + beside
            if batches:  # a call without batches neither repeats the unfinished call, nor ends it
                self._halted = None
        if self._call.share is None:
            self._call.share = self._share(self._call.batches)
            if batches and (used := self._queue.next(batches)):
                self._weight = float(self._existing(used))
        return self._call.share

    def weight(self, batches: int) -> float:
        """See ``Sampling.weight``; without a batch, the weight of the last ones."""
        self._settle()
        used = self._queue.next(batches)
        return float(self._existing(used)) if used else self._weight

    def counts(self, index: int) -> int:
        """Samples of the batch ``index`` since the last call; 0 for a filler, or if none was drawn."""
        self._settle()
        index += self.using
        return self._existing(self._queue.next(index + 1)[index:])

    def follow(self) -> Share:
        """See ``Sampling.follow``."""
        return Share(ahead=min(_MOST, self._queue.waiting))

    def late(self) -> Share:
        """See ``Sampling.late``. The program's next call uses up some waiting batches; its loader may draw as many again.

        The share always has one batch more than that call uses. So if the epoch is complete now, all loops go on beyond that
        call; in the call after it the program itself reports how far its loader is.
        """
        return Share(ahead=min(_MOST, max(self._queue.waiting, self._usual + 1)), late=True)

    @property
    def closing(self) -> bool:
        """See ``Sampling.closing``."""
        return self._now is not None and bool(self._now.left)

    @property
    def complete(self) -> bool:
        """See ``Sampling.complete``."""
        return self._now is not None and self._now.left is not None

    def finished(self, shares: Mapping[str, Share], step: int) -> None:
        """See ``Sampling.finished``."""
        call, own = self._call, shares.get(self._me)
        if own is not None and own.late:  # the program adopts its backup worker's call: its own batches were not used up
            self._halt()
            call = None
        self._call = None
        if call is not None:
            self._usual = max(self._usual, call.batches)
            self._queue.pop(call.batches)
            self._early = min(self._early, len(self._queue.items))
        if self._now is None:
            return
        said = None if call is None else call.share
        apart = said is not None and said.data_epoch > 0 and (own is None or own.use != said.use)
        # Its mates were at another batch, and none of them has used up one; or what it adopts has used up its batch before this
        # one, as the program left that call by an exception which the others had finished.
        apart = apart and (self._together or (own is not None and own.data_epoch > 0))
        if apart:
            self._queue.void()
        self._join(self._now)
        before, self._now = self._now.deal, self._now.finish(shares, step)
        self._base, self._proposed, self._founding = self._now, False, None
        if self._now.deal is not before:
            self._moved(same=self._now.epoch == before.epoch)
        elif apart:
            self._drawn = self._now.done(self._me)

    def ahead(self, own: Share | None = None) -> Ahead:
        """See ``Sampling.ahead``."""
        ahead = self._queue.counting(self.using)
        said = None if self._call is None else self._call.share
        apart = own is not None and said is not None and own.use != said.use
        return (False,) * len(ahead) if apart else ahead

    def level(self, ahead: Sequence[bool]) -> None:
        """See ``Sampling.level``."""
        self._level(ahead, self.using)

    def left_behind(self, shares: Mapping[str, Share], step: int, batches: int) -> bool:
        """See ``Sampling.left_behind``."""
        now = self._now
        if now is None:
            return False
        then = replace(now, ledger=Ledger(now.epoch)).finish(shares, step)
        # As in ``_behind``: a loader that has its last batch does not ask again, so its loop cannot be made longer.
        return then.left is not None and then.left <= batches < self._queue.waiting - then.left

    def unfinished(self) -> None:
        """See ``Sampling.unfinished``."""
        if self._call is not None and self._call.kept:
            self._call = None
        else:
            self._halt()

    # --- membership ----------------------------------------------------------------------------------------------------

    def bind(self, drawer: str, *, together: bool = False) -> None:
        """See ``Sampling.bind``."""
        if self._bound or not self._loaded:
            self._base = self._now = None
        self._last = self.looped
        self._me, self._bound, self._founding, self._loop = drawer, True, None, None
        self._together = together
        self._call = self._report = None  # ``_halted`` stays: the call is repeated or its batches go back in this lifetime too
        self._proposed = self._over = False
        self._queue.void()
        self._drawn = 0

    def found(self, view: Sequence[str]) -> None:
        """See ``Sampling.found``."""
        self._founding = tuple(view)
        self._report, self._proposed = None, False
        before, self._now = self._now, (self._fresh if self._now is None else self._now).dealt(view)
        self._base = self._now
        if before is None or not before.same(self._now):
            self._moved(same=False)

    def report(self) -> bytes:
        """See ``Sampling.report``."""
        base = self._base
        if base is None:
            return b""
        reserve = 2 * self._usual  # so that the loader need not stop during the view change
        taken = base.done(self._me) + self._queue.real + reserve
        self._report = DrawnReport(base.epoch, base.deal.number, taken, self._queue.counting(0))
        return self._report.pack()

    def activated(self, view: Sequence[str], reports: Mapping[str, Sequence[bytes]]) -> None:
        """See ``Sampling.activated``."""
        self._report = None
        if self._base is None or self._now is None:
            return
        read = {member: [DrawnReport.unpack(data) for data in told] for member, told in reports.items()}
        told = {member: [report for report in each if report is not None] for member, each in read.items()}
        if len(told.get(self._me, ())) > 1:
            self._level(agreed_ahead([report.ahead for report in told[self._me]]), 0)
        before = self._now.epoch
        self._proposed = True
        self._now = self._base.activate(view, told)
        self._moved(same=self._now.epoch == before)

    def thawed(self) -> None:
        """See ``Sampling.thawed``: from now on there are only fillers, until ``bind`` is called again."""
        self._over = True

    # --- the state -----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The state that members share as of the last finished call, as plain values; without any view change since then."""
        base = self._fresh if self._base is None else self._base
        return {"state": base.state(), "ledger": base.ledger.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over such a state. Batches drawn under another deal count nothing any more."""
        now = Replica.of(state["state"], self._fresh.deal, Ledger.of(state["ledger"]))
        if not self._bound:
            now = now.dealt([_ALONE])
        elif self._founding is not None and set(self._founding).isdisjoint(now.deal.drawers):  # the state is of an earlier job
            now = now.dealt(self._founding)
        same = self._now is not None and self._now.same(now)
        self._proposed = False
        self._report = None  # its freeze was over before this state was here
        self._base, self._now, self._loaded = now, now, True
        self._last, self._loop = self.looped, None
        if self._call is not None:
            self._call.share = None
        self._book = now.ledger
        if not same:
            self._before = self._fresh.ledger  # the ledger known here may lack what happened meanwhile
            self._moved(same=False)

    # --- inside --------------------------------------------------------------------------------------------------------

    def _halt(self) -> None:
        """The call under way has used up nothing: see ``_settle``."""
        if self._call is not None:
            if self._call.batches or self._halted is None:
                self._halted = (self._call.batches, self.attempts)
            self._call = None

    def _alone(self, now: Replica, epoch: int | None) -> tuple[Replica, int]:
        """Start over: without a job no call commits what a loader hands out. Without ``epoch``, each loop is the next epoch."""
        self._queue = Drawn()
        self._drawn = 0
        target = self.upcoming() if epoch is None else epoch
        if not self._loaded:
            self._base = self._now = now = self._fresh.dealt([_ALONE]).begin(target)
        return now, target

    def _begin(self, epoch: int) -> None:
        assert self._base is not None and self._now is not None
        self._now = self._now.begin(epoch)
        self._base = self._base.begin(epoch) if self._proposed else self._now
        self._moved(same=False)

    def _join(self, now: Replica) -> Replica:
        """Give a loop that began without the state its epoch: the job's, or the next one if the job's epoch has ended.

        The next one only at a member that was in the job before: it has ended the job's epoch already, as all members have.
        """
        if self._loop is None and self._looping and now.epoch >= 0:
            self._loop = now.epoch
            if now.left == 0 and self._asked == now.epoch + 1:
                self._begin(self._asked)
                self._loop = self._asked
        return now if self._now is None else self._now

    def _moved(self, *, same: bool) -> None:
        """Adapt to another deal. ``same``: it is of the same epoch, so the batches drawn are the first ones held."""
        assert self._now is not None
        if self._now.epoch != self._book.epoch:
            self._before = self._book
        self._book = self._now.ledger
        if self._call is not None:
            self._call.share = None
        real = self._queue.real
        if same and real <= len(self._now.deal.held.get(self._me, ())):
            self._drawn = real
        else:
            self._queue.void()
            self._drawn = self._now.done(self._me)

    def _level(self, ahead: Sequence[bool], used: int) -> None:
        """Have in the queue, beyond the next ``used`` batches, what all processes of this replica have agreed on."""
        queue, given = self._queue, len(self._queue.counting(used))
        self._drawn -= queue.refuse(used, ahead)
        for counts in ahead[given:]:
            self._early += 1
            now = self._now
            if counts and now is not None and self._drawn < min(now.deal.length(self._me), self._limit(now)):
                queue.items.append(now.deal.batch(self._me, self._drawn))
                self._drawn += 1
            else:
                queue.items.append(FILLER)

    def _settle(self) -> None:
        """Settle a call that ended without being finished: it is repeated now, or its batches go back."""
        if self._call is None and self._halted is not None:
            batches, attempts = self._halted
            if self.attempts != attempts:
                self._queue.discard(batches)
                self.attempts -= batches  # as if the loader had never asked for them: no call will use them up
                self._halted = None

    def _share(self, batches: int) -> Share:
        now, queue = self._now, self._queue
        # With what is yet to be drawn beside the call: if it completes the epoch, no loader may turn out to be farther ahead.
        ahead = max(0, queue.waiting - batches) + self._coming
        if now is None or self._behind(now, batches):
            return Share(ahead=min(_MOST, ahead))
        used = queue.next(batches)
        real = sum(1 for batch in queue.next(queue.waiting)[batches:] if batch)
        more = now.deal.length(self._me) - self._drawn + real
        # If there is more to draw, only what is kept should the samples be dealt again: what is drawn beside the call is drawn
        # again then. But where shards may turn out to be shorter, this call may be the epoch's last one all the same.
        ahead = real if more and now.deal.bounded else ahead
        found = (end for batch in used if batch and (end := self._ends(now.epoch, batch)) is not None)
        end = next(found, -1) + 1
        samples = sum(length(batch) for batch in used)
        dropped = min(_MOST, queue.dropped)
        return Share(samples, min(_MOST, ahead), dropped, code_of(now.epoch), now.checksum, end=end)

    @property
    def _coming(self) -> int:
        """By how many batches the queue grows yet beside the call under way. Those that a mate has drawn are in it already."""
        until = None if self._call is None else self._call.until
        return 0 if until is None else max(0, until - self.attempts - self._early)

    def _existing(self, batches: Sequence[Ranges]) -> int:
        """Count the samples of the batches that exist: fillers have none."""
        return sum(self._measure(self._now.epoch, batch) for batch in batches if batch and self._now is not None)

    def _behind(self, now: Replica, batches: int) -> bool:
        """Whether the others have left this member's loop, or leave it after this call without waiting for this member.

        A loader that has handed out all it had does not ask again: the others' loops can be made longer only before that.
        """
        if self._loop is not None and self._loop < now.epoch:
            return True
        return now.left is not None and now.left <= batches and self._queue.waiting > now.left

    def _limit(self, now: Replica) -> int:
        """How far the own sequence may be drawn."""
        held = len(now.deal.held.get(self._me, ()))
        if self._report is None:
            return held if self._proposed else now.deal.length(self._me)
        assert self._base is not None
        if (self._report.epoch, self._report.number) != (self._base.epoch, self._base.deal.number):
            return held
        if not self._proposed:
            return self._report.taken
        return min(held, self._report.taken - self._base.done(self._me))
