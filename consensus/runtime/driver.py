"""Drives a protocol core: the sole clock, the order of effects, and one timer.

Everything that happens to the core happens here, on the loop's thread, one thing at a time: an input (message, timer,
local call), then the effects it caused, in order. A call that a ``DataPlane`` callback makes back into the core is
queued until the effects before it are carried out. An exception in the core or in a callback ends this member's
lifetime: a member that half works would cost the others more than one that is gone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import JobEndedError, JoinError, LeftError, StoppedError
from ..interface import DataPlane
from ..messages import Envelope
from ..progress import Progress
from ..protocol.effects import (
    Activated,
    Ask,
    Check,
    Effect,
    Expected,
    Fence,
    Freeze,
    Installed,
    Note,
    PeerProgress,
    Plane,
    Quit,
    Send,
    Stalled,
    Stopped,
    Tether,
    Wish,
)
from .clock import now
from .ports import Carrier, Core
from .snapshot import Snapshot

__all__ = ["Driver"]

_LOG = logging.getLogger("ftlib.consensus")
_NOTES = 500
_HELD_POLL = 0.02


class Driver:
    """Owns the core. All methods belong to the loop's thread."""

    def __init__(
        self,
        core: Core,
        plane: DataPlane,
        carrier: Carrier,
        publish: Callable[[Snapshot], None],
        progress: Callable[[], Progress],
        held: Callable[[], bool] = lambda: False,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """``publish`` gets each new snapshot, before the effects that go with it. ``progress``: where the data plane is.

        ``held``: whether the process that this agent speaks for is stopped. Then the agent plays stopped, too: what
        arrives is lost, nothing is sent, and no time is taken note of. ``labels``: fields of every log record.
        """
        self._core = core
        self._progress = progress
        self._held = held
        self._plane = plane
        self._carrier = carrier
        self._publish = publish
        self._labels = dict(labels or {})
        self._snapshot = Snapshot()
        self._inbox: deque[Callable[[float], object]] = deque()
        self._busy = False
        self._stopped: StoppedError | None = None
        self._crashed = False
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._deadline: float | None = None
        self._release: asyncio.TimerHandle | None = None
        self._arming = False
        self._notes: deque[dict[str, Any]] = deque(maxlen=_NOTES)
        self._latest_tick = 0.0
        self._ticks = 0
        self._ticks_late = 0.0

    @property
    def core(self) -> Core:
        """The protocol core (for tests)."""
        return self._core

    def perform(self, action: Callable[[float], object], *, even_held: bool = False) -> None:
        """Run ``action(now)`` against the core, then its effects; from within an effect: after those before it.

        While held it waits, as everything in a stopped process does, unless ``even_held``.
        """
        if self._crashed:
            return
        self._inbox.append(action)
        if self._busy or self._release is not None:
            if not even_held:
                return
        elif not even_held and self._held():
            self._release = self._loop.call_later(_HELD_POLL, self._released)
            return
        if not self._busy:
            self._pump()

    def _released(self) -> None:
        self._release = None
        if self._crashed or not self._inbox:
            return
        if self._held():
            self._release = self._loop.call_later(_HELD_POLL, self._released)
        else:
            self._pump()

    def receive(self, envelope: Envelope) -> None:
        """A decoded packet."""
        if self._held():
            return

        def deliver(now: float) -> None:
            self._core.set_progress(self._progress())
            self._core.receive(envelope.sender, envelope.address, envelope.message, now)

        self.perform(deliver)

    def end(self, error: StoppedError) -> None:
        """This lifetime is over, for a reason that the core does not know: it is told, and tells the others."""

        def end(_now: float) -> None:
            self._stop(error)
            self._core.die(str(error), error)

        self.perform(end)

    def note(self, level: int, kind: str, text: str) -> None:
        """One line for the log and for ``explain``."""
        self._notes.append({"time": time.time(), "level": logging.getLevelName(level), "kind": kind, "text": text})
        known = self._snapshot.known
        fields = {**self._labels, "ftlib_event": kind, "epoch": 0 if known is None else known.epoch}
        _LOG.log(level, "%s: %s", kind, text, extra=fields)

    def status(self) -> dict[str, Any]:
        """The core's status with this driver's notes. View changes get a wall-clock ``time`` beside the boot clock's ``at``."""
        status = self._core.status()
        ahead = time.time() - now()
        for change in (*status.get("history", ()), *filter(None, [status.get("under_way")])):
            change["time"] = round(ahead + change["at"], 6)
        return {
            **status,
            "stopped": None if self._stopped is None else f"{type(self._stopped).__name__}: {self._stopped}",
            "tick_delay_max": round(self._latest_tick, 6),
            "tick_delay": {"count": self._ticks, "sum": round(self._ticks_late, 6)},
            "notes": list(self._notes),
        }

    def close(self) -> None:
        """No timer fires and nothing is performed any more."""
        self._crashed = True
        if self._timer is not None:
            self._timer.cancel()

    def _pump(self) -> None:
        self._busy = True
        try:
            while not self._crashed:
                while self._inbox:
                    self._inbox.popleft()(now())
                self._renew_snapshot()
                effects = self._core.drain()
                if not effects and not self._inbox:
                    break
                for effect in effects:
                    self._carry_out(effect)
        except Exception as error:  # noqa: BLE001 - whatever it was, this lifetime is over
            self._crash(error)
        finally:
            self._busy = False
        if not self._crashed and not self._arming:  # once for a burst of packets
            self._arming = True
            self._loop.call_soon(self._arm)

    def _arm(self) -> None:
        self._arming = False
        if self._crashed:
            return
        deadline = self._core.next_deadline()
        if deadline == self._deadline and self._timer is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._deadline = deadline
        if deadline is not None:
            self._timer = self._loop.call_later(max(0.0, deadline - now()), self._tick)

    def _tick(self) -> None:
        if self._held():
            self._timer = self._loop.call_later(_HELD_POLL, self._tick)
            return
        self._timer = None
        if self._deadline is not None:
            late = max(0.0, now() - self._deadline)
            self._latest_tick = max(self._latest_tick, late)
            self._ticks += 1
            self._ticks_late += late

        def tick(now: float) -> None:
            self._core.set_progress(self._progress())
            self._core.tick(now)

        self.perform(tick)

    def _renew_snapshot(self) -> None:
        core, last = self._core, self._snapshot
        same = core.known_view is last.known and core.installed_view is last.installed and core.active_view is last.active
        same = same and core.changing == last.changing and core.applicants_waiting == last.applicants_waiting
        if same and self._stopped is last.stopped and core.reasons is last.reasons and core.driver == last.driver:
            return  # the usual case, after every packet
        snapshot = Snapshot(
            core.known_view,
            core.installed_view,
            core.active_view,
            core.changing,
            core.applicants_waiting,
            self._stopped,
            core.reasons,
            core.driver,
        )
        if snapshot != self._snapshot:
            self._snapshot = snapshot
            self._publish(snapshot)

    def _carry_out(self, effect: Effect) -> None:
        """What leaves this process, and what ends it; the rest is the data plane's."""
        carrier = self._carrier
        match effect:
            case Send(address, message):
                carrier.send(address, message)
            case Ask(errand):
                carrier.ask(errand)
            case Check(member):
                carrier.check(member)
            case Tether(members):
                carrier.keep(members)
            case Fence(member, reason, command):
                carrier.fence(member, reason, command=command)
            case Quit():
                self.close()
                carrier.let_go()
            case Note(level, kind, text):
                self.note(level, kind, text)
            case Stopped(error):
                if isinstance(error, JoinError):
                    carrier.explain_join(error, self._stop)
                else:
                    self._stop(error)
            case _:
                self._tell(effect)

    def _tell(self, effect: Plane) -> None:
        """One callback of the data plane."""
        plane = self._plane
        match effect:
            case Freeze(epoch, after_call):
                plane.freeze(epoch, after_call)
            case Expected(view):
                plane.expect(view)
            case Installed(view, reports):
                plane.install(view, dict(reports))
            case Activated(view):
                plane.activate(view)
            case Wish(wanted):
                plane.wish(wanted)
            case PeerProgress(member_id, finished, current):
                plane.peer_progress(member_id, finished, current)
            case Stalled(call, waited):
                plane.stalled(call, waited)

    def _stop(self, error: StoppedError) -> None:
        if self._stopped is not None:
            return
        self._stopped = error
        if isinstance(error, (LeftError, JobEndedError)):
            self.note(logging.INFO, "stopped", str(error))
        else:
            self.note(logging.WARNING, "stopped", f"{type(error).__name__}: {error}")
        self._renew_snapshot()
        self._plane.stopped(error)

    def _crash(self, error: Exception) -> None:
        extra = {**self._labels, "ftlib_event": "crash"}
        _LOG.critical("the agent failed and ends this member's lifetime", exc_info=error, extra=extra)
        self.close()
        self._carrier.let_go()
        if self._stopped is None:
            self._stopped = StoppedError(f"the agent failed: {type(error).__name__}: {error}")
            self._publish(Snapshot(stopped=self._stopped))
            try:
                self._plane.stopped(self._stopped)
            except Exception:  # noqa: BLE001 - there is nobody left to tell
                _LOG.exception("the data plane failed while it was told so")
