"""Carries out the orders of the consensus to the data plane, off the training thread.

The agent's thread freezes and reports. Longer work runs in order on the rebuild thread: build the group of a view and send
ready, activate the view, and start donations.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import Any

from consensus import CarefulLogger, Cause, Consensus, LeftError, StoppedError, View
from consensus.border import (
    Activated,
    BoundaryRequest,
    Expected,
    Freeze,
    Installed,
    Order,
    PeerProgress,
    Stalled,
    Stopped,
)

from ... import errors
from ...errors import ConfigError, FTLibError
from ...frameworks.base import Framework, Group
from ...frameworks.staged.group import StagedGroup
from ...frameworks.staged.rows import HostRows
from ...settings.replicas import LONE, Part
from ..calls.adoption import Spoilt, donate
from ..calls.salvage import FaultKind, SalvagePlan, plan
from ..calls.session import Session
from ..calls.shard_salvage import plan_across
from ..replicas.whole import shard_view
from .hang import log_stall
from .phase import Phase
from .plane import Plane

logger = CarefulLogger("ftlib")

Build = Callable[[View], tuple[Mapping[str, int], Group | None]]
"""From a view to (rank of every member id, group), the group None for a single member. Any exception is a failed rebuild; a
ConfigError ends this lifetime, if it has not been in a group yet.
"""


class RebuildError(FTLibError):
    """A group could not be built. ``suspects``: ids of the members that may have caused it."""

    def __init__(self, text: str, suspects: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.suspects = tuple(suspects)


_CAUSES = {
    Cause.PROOF: "dead",
    Cause.LEFT: "left",
    Cause.SILENCE: "silent",
    Cause.UNREADY: "never ready",
    Cause.SEVERED: "cut off",
    Cause.COHORT: "its replica is not whole",
}
_LAST_CALL = 0.25
"""Seconds that a member that has left gets to end the call that all can still end: so long the others wait for it, too."""
_ENDED = "the members that held the state have left, as their programs have ended"
_END = None
_ALL = sys.maxsize
"""Later than any epoch."""
_Item = Installed | Expected | Activated | Stopped | None


class Rebuilder:
    """The ``DataPlane`` that a ``Consensus`` drives."""

    def __init__(
        self,
        plane: Plane,
        consensus: Consensus,
        framework: Framework,
        build: Build,
        prepare: Callable[[View], None] = lambda _view: None,
        activated: Callable[[View], None] = lambda _view: None,
        facts: Callable[[], Mapping[str, Any]] = dict,
        given_up: Callable[[], None] = lambda: None,
        *,
        part: Part = LONE,
        named: Callable[[Exception], Exception] = lambda error: error,
    ) -> None:
        """``build``: ``Lifetime._rebuild``. ``prepare``: begins a build that ``build`` may be asked for; returns at once.
        ``activated``: called with every activated view; must return at once. ``facts``: for ``DataPlane.facts``.
        ``given_up``: called when the others have given up this worker because its program hangs; must return at once.
        ``part``: of which replica this member is a part, if that has several processes. ``named``: returns the error to raise
        where the consensus ended this lifetime with one.
        """
        self._plane = plane
        self._consensus = consensus
        self._framework = framework
        self._rows = HostRows(framework.allocate)
        """For the program's own operations on tensors on devices."""
        self._build = build
        self._prepare = prepare
        self._activated = activated
        self._facts = facts
        self._given_up = given_up
        self._part = part
        self._named = named
        self._items: SimpleQueue[_Item] = plane.threads.queue()
        self._thread = plane.threads.thread(self._run, "ftlib-rebuild")
        self._wanted = 0
        """Newest epoch for which a freeze was ordered. Guarded by the plane's lock."""
        # Used by the rebuild thread only:
        self._newest = 0
        """Newest epoch for which a group was ordered."""
        self._built: Session | None = None
        self._group: Group | None = None
        self._ended_unacted = False
        """True after a member left because its program had ended, until the view without that member is activated here."""
        self._ended_after = -1
        """The newest call when a member last left because its program had ended; -1: none has."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, timeout: float) -> None:
        """End the thread, which closes the group. Idempotent."""
        self._framework.cancel(_ALL)
        self._items.put(_END)
        if self._thread.ident is not None and self._thread is not self._plane.threads.current():
            self._thread.join(timeout)

    def wants(self, epoch: int) -> bool:
        """True while no freeze for a later view than that of ``epoch`` was ordered. Any thread."""
        with self._plane.changed:
            return self._wanted <= epoch and self._plane.phase is not Phase.STOPPED

    def order(self, order: Freeze) -> None:
        """The training thread passes on a freeze that waited for its call."""
        self._freeze(order)

    # --- DataPlane, on the agent's thread ------------------------------------------------------------------------------

    def handle(self, order: Order) -> None:
        """See ``DataPlane``. A freeze takes place on this thread: it must not wait for a build that it makes useless."""
        match order:
            case Freeze(epoch, _):
                with self._plane.changed:
                    self._wanted = max(self._wanted, epoch)
                self._framework.cancel(epoch)
                self._freeze(order)
            case BoundaryRequest(wanted):
                self._plane.request_boundary(wanted)
            case PeerProgress(member_id, finished, current, inner):
                self._plane.peer_progress(member_id, finished, current, inner)
            case Stalled(call, waited):
                log_stall(self._plane, call, waited)
                self._given_up()
            case Stopped():
                self._framework.cancel(_ALL)
                self._plane.release()
                self._items.put(order)
            case _:
                self._items.put(order)

    def facts(self) -> Mapping[str, Any]:
        """See ``DataPlane``."""
        return self._facts()

    # --- the thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._plane.threads.hurry()
        try:
            while (item := self._items.get()) is not _END:
                self._carry_out(item)
        except Exception as error:
            extra = self._plane.about("crash")
            crash = errors.Excluded(f"this worker's rebuild thread failed: {error!r}")
            crash.__cause__ = error
            self._stop(crash)  # before it is logged, which may take long
            self._consensus.leave()  # or the others would wait for its reports
            logger.exception("the rebuild thread failed", extra=extra)
        finally:
            self._drop_group()

    def _carry_out(self, order: Installed | Expected | Activated | Stopped) -> None:
        match order:
            case Installed(view, reports, ended):
                self._ended_unacted = self._ended_unacted or ended
                self._install(view, reports)
            case Expected(view):
                self._expect(view)
            case Activated(view):
                self._activate(view)
            case Stopped(error):
                if isinstance(error, LeftError):
                    self._plane.let_end(_LAST_CALL)
                self._stop(self._named(translated(error)))

    def _freeze(self, order: Freeze) -> None:
        answer = self._plane.freeze(order)
        if answer is None:
            return
        report, session = answer
        if session is not None and session.group is not None:
            session.group.abort()
        self._consensus.flushed(order.epoch, report)

    def _expect(self, view: View) -> None:
        """Begin to build the group of ``view`` ahead, while the current session goes on."""
        with self._plane.changed:
            session, phase = self._plane.session, self._plane.phase
            newest = 0 if session is None else session.view.epoch
            wanted = phase is not Phase.STOPPED and self._wanted <= view.epoch
        if wanted and view.epoch > max(newest, self._newest):
            try:
                self._prepare(view)
            except Exception as error:  # noqa: BLE001 - only a hint: the real build meets the error again, and reports it
                logger.debug("nothing is built ahead for %s: %r", view, error, extra=self._plane.about("not_built_ahead"))

    def _install(self, view: View, reports: Mapping[str, bytes]) -> None:
        acting = self._acting(view)
        if not self._plane.installing(acting):
            if self._plane.phase is Phase.STOPPED:  # the view without this member comes at once, not after ``ready_timeout``
                self._consensus.average_failure(self._plane.finished + 1, (self._plane.member_id,))
            return
        with self._plane.changed:
            if self._wanted > view.epoch:  # a newer change is under way: this group would never be used
                return
        self._newest = view.epoch
        self._drop_group()
        began = self._plane.threads.now()
        try:
            chosen = self._plan(view, reports)
            if self._plane.member_id not in acting:
                self._unfit(chosen)
                return
            if len(acting) == 1:
                self._framework.cancel(view.epoch + 1)  # a group built ahead with others, which are gone
            ranks, self._group = self._build(view)
            self._built = self._session(view, acting, chosen, ranks)
        except Exception as error:  # noqa: BLE001 - after any error this member has no group, and reports it
            self._failed(view, error)
            return
        built = self._plane.threads.now() - began
        extra = self._plane.about("built", view_id=view.view_id, build_seconds=built)
        logger.debug("group of %s built in %.1f ms", view, built * 1e3, extra=extra)
        with self._plane.changed:  # or the answer to the next change's freeze might come first
            if self._wanted <= view.epoch:
                self._consensus.ready(view.view_id)

    def _acting(self, view: View) -> View:
        """``view`` with the members of this one's group alone: those with the same shard, of whole replicas."""
        return view if self._part.shards == 1 else shard_view(view, self._part.shard)

    def _plan(self, view: View, reports: Mapping[str, bytes]) -> SalvagePlan:
        return plan(view, reports) if self._part.shards == 1 else plan_across(view, reports, self._part.shard)

    def _unfit(self, chosen: SalvagePlan) -> None:
        """This member's replica is not whole in a view that has it: then none is."""
        text = "no replica is whole any more" if chosen.fault is None else chosen.fault.text
        self._stop(errors.JobEnded(_ENDED) if self._ended_unacted else errors.StateLost(text))
        self._consensus.leave()

    def _session(self, view: View, acting: View, chosen: SalvagePlan, ranks: Mapping[str, int]) -> Session:
        group = self._group
        own = None if group is None else StagedGroup(group, self._framework.place, self._rows)
        own_id, held = self._plane.member_id, self._plane.held
        kept = held is not None and held.number == chosen.call and own_id not in (*chosen.blank, *chosen.healed)
        keeps = kept and chosen.donor_of(own_id) is None
        expected = self._plane.expected_in(chosen)
        return Session(acting, chosen, own_id, ranks, group, own, whole=view, keeps=keeps, expected=expected)

    def _failed(self, view: View, error: Exception) -> None:
        """A failed rebuild is never a success: report it, so that a new epoch comes and the missing members are checked."""
        self._plane.counters.rebuild_failures += 1
        text = str(error)  # not the error, which holds frames: a log handler may keep its arguments
        with self._plane.changed:
            superseded = self._wanted > view.epoch
        if superseded:
            logger.debug("building the group of %s was given up: %s", view, text, extra=self._plane.about("build_given_up"))
            return
        if isinstance(error, ConfigError) and self._plane.session is None:
            # It would be so in the next view, too. Those that have worked together go on trying: who is new leaves them.
            self._stop(error)
            self._consensus.leave()
            return
        extra = self._plane.about("build_failed", view_id=view.view_id)
        logger.warning("building the group of %s failed, waiting for a new view: %s", view, text, extra=extra)
        suspects = error.suspects if isinstance(error, RebuildError) else ()
        self._consensus.average_failure(self._plane.finished + 1, suspects)

    def _activate(self, view: View) -> None:
        session = self._built
        if session is None or session.view.view_id != view.view_id:
            return
        old, results = self._plane.session, self._plane.held or self._plane.results
        fault = session.plan.fault
        if fault is not None and self._plane.member_id in fault.blamed:
            lost, call = fault.kind is FaultKind.STATE_LOST, self._plane.current
            if lost and (self._ended_unacted or self._ended_after >= self._plane.finished):  # it may lack that call, too
                self._stop(errors.JobEnded(_ENDED))
                self._consensus.leave()
                return
            entered = "" if lost or call is None else f" (this is what {self._plane.member_id} entered: {call}{call.remark()})"
            self._stop((errors.StateLost if lost else errors.StepMismatch)(fault.text + entered))
            self._consensus.leave()
            return
        behind = session.plan.call - self._plane.finished  # stays as it is while frozen
        self._count_lost(old, session)
        if not self._plane.activate(session):
            return
        if self._ended_unacted:  # no newer state than the ended member's exists until another call finishes
            self._ended_after, self._ended_unacted = session.plan.call, False
        self._log(old, session)
        if self._plane.member_id in session.plan.healed and behind > 0:  # else a mate in its replica lacks the state
            text = "this worker was %d calls behind the others: it gets their state, and counts again from the call after that"
            logger.warning(text, behind, extra=self._plane.about("healed", behind=behind))
        self._activated(view)
        for adopter in session.plan.adopters_of(self._plane.member_id):
            if results is None or session.group is None or results.number != session.plan.call:
                raise FTLibError(f"the result of call {session.plan.call} is gone, but {session.name(adopter)} needs it")
            try:
                donate(session.group, session.ranks[adopter], results)
            except Spoilt as reason:
                self._cannot_give(session, adopter, str(reason))
                return
            extra = self._plane.about("donation", call=results.number, to=adopter)
            logger.info("giving the result of call %d to %s", results.number, session.name(adopter), extra=extra)
            self._plane.counters.donated += 1

    def _cannot_give(self, session: Session, adopter: str, why: str) -> None:
        """A donation fails here: the next view's plan takes that into account, and gives the adopter the state instead."""
        extra = self._plane.about("cannot_give", to=adopter)
        logger.info("%s: %s gets the state instead of it", why, session.name(adopter), extra=extra)
        self._consensus.average_failure(self._plane.finished + 1, ())  # before any thread can see the group fail
        if session.group is not None:
            session.group.abort()

    def _count_lost(self, old: Session | None, new: Session) -> None:
        """Note how many members were lost, before any call of ``new`` can ask."""
        if old is None:
            return
        removed = [member_id for member_id in old.view.ids if member_id not in new.view]
        lost = [m for m in removed if (reason := self._consensus.why(m)) is None or reason.cause is not Cause.LEFT]
        with self._plane.changed:
            joined = sum(member_id not in old.view for member_id in new.view.ids)
            self._plane.peers.changed(len(lost), joined, self._plane.threads.now())

    def _log(self, old: Session | None, new: Session) -> None:
        """Log the one INFO line of a view change: which members, why, the new size, the pause, and the driver."""
        before = set(old.view.ids) if old is not None else set()
        removed = [] if old is None else [member_id for member_id in old.view.ids if member_id not in new.view]
        joined = [member_id for member_id in new.view.ids if member_id not in before]
        gone = [] if old is None else [f"{old.name(m)} ({self._why(m, old)})" for m in removed]
        parts = [f"without {', '.join(gone)}"] if gone else []
        parts += [f"with {new.names(joined)}"] if joined else []
        why = "; ".join(parts) or "same members"
        pause = self._plane.counters.last_pause
        size = f"{old.size} -> {new.size}" if old is not None else f"{new.size}"
        driver = self._consensus.driver
        led = f"; led by {(old if old is not None and driver in old.view else new).short(driver)}" if driver else ""
        fields = {
            "view_id": new.view.view_id,
            "size_before": 0 if old is None else old.size,
            "removed": [self._removed(member_id) for member_id in removed],
            "joined": joined,
            "driver": driver,
            "pause_seconds": pause,
            "wait_seconds": self._plane.counters.last_wait,
        }
        wait = self._plane.counters.last_wait
        waited = f" after {wait - pause:.1f} s of waiting" if wait > pause + 0.1 else ""
        text, extra = "epoch %d: %s; size %s, rank %d; paused %.0f ms%s%s", self._plane.about("view", **fields)
        logger.info(text, new.view.epoch, why, size, new.rank, pause * 1e3, waited, led, extra=extra)

    def _why(self, member_id: str, old: Session) -> str:
        """In a few words why the member is gone: the cause, the finding, and the worker that found it, if another one."""
        reason = self._consensus.why(member_id)
        if reason is None:
            return "gone"
        text = _CAUSES[reason.cause]
        if reason.detail and reason.cause is not Cause.LEFT:
            text += f": {reason.detail}"
            if reason.source == member_id:
                text += ", as it said itself"
            elif reason.source not in ("", self._plane.member_id):
                text += f", says {old.short(reason.source)}"
        return text

    def _removed(self, member_id: str) -> dict[str, str]:
        reason = self._consensus.why(member_id)
        if reason is None:
            return {"id": member_id}
        return {"id": member_id, "cause": reason.cause.value, "detail": reason.detail, "source": reason.source}

    def _stop(self, error: Exception) -> None:
        self._plane.stop(error)
        # A member that leaves after a call keeps its group until it closes: a slow peer may still read that call's last bytes.
        if self._group is not None and (self._plane.running is not None or not isinstance(error, LeftError)):
            self._group.abort()
        order = self._plane.unpark()
        if order is not None:
            self._freeze(order)

    def _drop_group(self) -> None:
        self._built = None
        if self._group is not None:
            self._group.abort()
            self._group.close()
            self._group = None


def translated(error: StoppedError) -> Exception:
    """The consensus's reason to stop as an error of this package; Excluded for an unknown one: the others go on without us.

    After a wiped store no member goes on, so there is nothing to rejoin: that is QuorumLost.
    """
    names = {"ExcludedError": errors.Excluded, "QuorumLostError": errors.QuorumLost, "JoinError": errors.JoinError}
    names |= {"StoreWipedError": errors.QuorumLost, "JobEndedError": errors.JobEnded}
    kind = names.get(type(error).__name__)
    if kind is None and not isinstance(error, LeftError):
        kind = errors.Excluded
    return kind(str(error)) if kind is not None else error
