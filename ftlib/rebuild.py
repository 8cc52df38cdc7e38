"""The rebuild thread: carries out what the consensus asks of the data plane, in order, off the training thread.

The agent's thread only puts orders into a queue (and cancels a build that has become pointless). Per view: freeze and report,
build the group, say ready, activate, and start donations.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from consensus import Cause, Consensus, LeftError, StoppedError, View

from . import errors
from .donation import donate
from .errors import FTLibError
from .frameworks.base import Framework, Group, Work
from .plane import Order, Plane
from .salvage import FaultKind, plan
from .session import Session
from .stall import log_stall

__all__ = ["RebuildError", "Rebuilder", "translated"]

logger = logging.getLogger("ftlib")

Build = Callable[[View], tuple[Mapping[str, int], Group | None]]
"""From a view to (rank of every member id, group), the group None for a single member. Any exception is a failed rebuild."""


class RebuildError(FTLibError):
    """A group could not be built. ``suspects``: member ids that it may be because of."""

    def __init__(self, text: str, suspects: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.suspects = tuple(suspects)


@dataclass(frozen=True, slots=True)
class _Install:
    view: View
    reports: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class _Activate:
    view: View


@dataclass(frozen=True, slots=True)
class _Stop:
    error: Exception


_CAUSES = {Cause.PROOF: "dead", Cause.LEFT: "left", Cause.SILENCE: "silent", Cause.UNREADY: "never ready"}
_END = None
_ALL = sys.maxsize
"""No epoch is as late."""
_Item = Order | _Install | _Activate | _Stop | None


class Rebuilder:
    """The ``DataPlane`` that a ``Consensus`` drives."""

    def __init__(
        self,
        plane: Plane,
        consensus: Consensus,
        framework: Framework,
        build: Build,
        activated: Callable[[View], None] = lambda _view: None,
        facts: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        """``build``: ``FTLib._rebuild``. ``activated``: told of every view acted in; must return at once. ``facts``: for
        ``DataPlane.facts``.
        """
        self._plane = plane
        self._consensus = consensus
        self._framework = framework
        self._build = build
        self._activated = activated
        self._facts = facts
        self._items: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ftlib-rebuild", daemon=True)
        self._wanted = 0
        """Newest epoch that a freeze was asked for. Guarded by the plane's lock."""
        # The rebuild thread's own:
        self._built: Session | None = None
        self._group: Group | None = None
        self._donations: list[Work] = []

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, timeout: float) -> None:
        """End the thread and give the group back. Idempotent."""
        self._framework.cancel(_ALL)
        self._items.put(_END)
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def order(self, order: Order) -> None:
        """The training thread passes on a freeze that waited for its call."""
        self._items.put(order)

    # --- DataPlane, on the agent's thread ------------------------------------------------------------------------------

    def freeze(self, epoch: int, after_call: int | None) -> None:
        """See ``DataPlane``."""
        with self._plane.changed:
            self._wanted = max(self._wanted, epoch)
        self._framework.cancel(epoch)
        self._items.put(Order(epoch, after_call))

    def install(self, view: View, reports: Mapping[str, bytes]) -> None:
        """See ``DataPlane``."""
        self._items.put(_Install(view, dict(reports)))

    def activate(self, view: View) -> None:
        """See ``DataPlane``."""
        self._items.put(_Activate(view))

    def wish(self, wanted: bool) -> None:
        """See ``DataPlane``."""
        with self._plane.changed:
            self._plane.wished = wanted

    def peer_progress(self, member_id: str, finished: int, current: int) -> None:
        """See ``DataPlane``."""
        self._plane.peer_progress(member_id, finished, current)

    def stalled(self, call: int, waited: float) -> None:
        """See ``DataPlane``."""
        log_stall(self._plane.training_thread, call, waited)

    def facts(self) -> Mapping[str, Any]:
        """See ``DataPlane``."""
        return self._facts()

    def stopped(self, error: StoppedError) -> None:
        """See ``DataPlane``."""
        self._framework.cancel(_ALL)
        self._items.put(_Stop(translated(error)))

    # --- the thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (item := self._items.get()) is not _END:
                self._handle(item)
        except Exception as error:
            logger.exception("the rebuild thread failed")
            crash = FTLibError(f"the rebuild thread failed: {error!r}")
            crash.__cause__ = error
            self._stop(crash)
        finally:
            self._drop_group()

    def _handle(self, item: Order | _Install | _Activate | _Stop) -> None:
        if isinstance(item, Order):
            self._freeze(item)
        elif isinstance(item, _Install):
            self._install(item)
        elif isinstance(item, _Activate):
            self._activate(item.view)
        else:
            self._stop(item.error)

    def _freeze(self, order: Order) -> None:
        answer = self._plane.freeze(order)
        if answer is None:
            return
        report, session = answer
        if session is not None and session.group is not None:
            session.group.abort()
        self._consensus.flushed(order.epoch, report)

    def _install(self, item: _Install) -> None:
        view = item.view
        if not self._plane.installing(view):
            return
        with self._plane.changed:
            if self._wanted > view.epoch:  # a newer change is under way: this group would never be used
                return
        self._drop_group()
        began = time.monotonic()
        try:
            chosen = plan(view, item.reports)
            ranks, self._group = self._build(view)
            self._built = Session(view, chosen, self._plane.member_id, ranks, self._group)
        except Exception as error:  # noqa: BLE001 - whatever it is: this member has no group, and says so
            self._failed(view, error)
            return
        logger.debug("group of %s built in %.1f ms", view, (time.monotonic() - began) * 1e3)
        self._consensus.ready(view.view_id)

    def _failed(self, view: View, error: Exception) -> None:
        """A failed rebuild is never a success: a new epoch is needed, and whoever did not come is looked at."""
        self._plane.counters.rebuild_failures += 1
        with self._plane.changed:
            superseded = self._wanted > view.epoch
        if superseded:
            logger.debug("building the group of %s was given up: %s", view, error)
            return
        logger.warning("building the group of %s failed, waiting for a new view: %s", view, error)
        suspects = error.suspects if isinstance(error, RebuildError) else ()
        self._consensus.average_failure(self._plane.finished + 1, suspects)

    def _activate(self, view: View) -> None:
        session = self._built
        if session is None or session.view.view_id != view.view_id:
            return
        old, results = self._plane.session, self._plane.results
        fault = session.plan.fault
        if fault is not None and self._plane.member_id in fault.blamed:
            kind = errors.StateLost if fault.kind is FaultKind.STATE_LOST else errors.StepMismatch
            self._stop(kind(fault.text))
            self._consensus.leave()
            return
        if not self._plane.activate(session):
            return
        self._log(old, session)
        self._activated(view)
        for adopter in session.plan.adopters_of(self._plane.member_id):
            if results is None or session.group is None or results.number != session.plan.call:
                raise FTLibError(f"the result of call {session.plan.call} is gone, but {session.name(adopter)} needs it")
            logger.info("giving the result of call %d to %s", results.number, session.name(adopter))
            self._donations += donate(session.group, session.ranks[adopter], results)
            self._plane.counters.donated += 1

    def _log(self, old: Session | None, new: Session) -> None:
        before = set(old.view.ids) if old is not None else set()
        gone = [] if old is None else [f"{old.name(m)} ({self._why(m)})" for m in old.view.ids if m not in new.view]
        come = [new.name(m) for m in new.view.ids if m not in before]
        parts = [f"without {', '.join(gone)}"] if gone else []
        parts += [f"with {', '.join(come)}"] if come else []
        why = "; ".join(parts) or "same members"
        pause = self._plane.counters.last_pause * 1e3
        size = f"{old.size} -> {new.size}" if old is not None else f"{new.size}"
        logger.info("epoch %d: %s; size %s, rank %d; paused %.0f ms", new.view.epoch, why, size, new.rank, pause)

    def _why(self, member_id: str) -> str:
        cause = self._consensus.why(member_id)
        return _CAUSES[cause] if cause is not None else "gone"

    def _stop(self, error: Exception) -> None:
        self._plane.stop(error)
        # Who leaves after a call keeps its group until it closes: a slow peer may still be reading that call's last bytes.
        if self._group is not None and (self._plane.running is not None or not isinstance(error, LeftError)):
            self._group.abort()

    def _drop_group(self) -> None:
        self._built = None
        self._donations.clear()
        if self._group is not None:
            self._group.abort()
            self._group.close()
            self._group = None


def translated(error: StoppedError) -> Exception:
    """The consensus's reason to stop as an error of this package."""
    names = {"ExcludedError": errors.Excluded, "QuorumLostError": errors.QuorumLost, "JoinError": errors.JoinError}
    kind = names.get(type(error).__name__)
    if kind is None and not isinstance(error, LeftError):
        kind = FTLibError
    return kind(str(error)) if kind is not None else error
