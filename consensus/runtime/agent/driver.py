"""Drives a protocol core: the only clock, the order of effects, and one timer.

Only the driver calls the core, on the loop's thread, one step at a time: an input (message, timer, report), then its effects,
in order. Orders for the data plane are sent to it together. An input that comes meanwhile is queued until the earlier effects
are carried out. An exception in the core or in a callback ends this member's lifetime: a member that half works would cost the
others more than one that is gone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from ...border import Order, PeerProgress, Stopped
from ...errors import JobEndedError, JoinError, LeftError, StoppedError
from ...logs import CarefulLogger
from ...messages import Envelope
from ...progress import Progress
from ...protocol.state.effects import Ask, Check, Effect, Fence, KeepConnections, Note, Quit, Send
from ...protocol.state.inputs import Died, Input
from .clock import now
from .ports import Carrier, DrivenMachine
from .snapshot import Snapshot

_LOG = CarefulLogger()
_NOTES = 500
_HELD_POLL = 0.02
_PLACES = 0.2
"""Seconds by which the progress of peers may reach the data plane late: it should not wake that process for every ping."""


class Driver:
    """Owns the core. All methods belong to the loop's thread."""

    def __init__(
        self,
        core: DrivenMachine,
        carrier: Carrier,
        tell: Callable[[list[Snapshot | Order]], None],
        progress: Callable[[], Progress],
        held: Callable[[], bool] = lambda: False,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """``tell`` gets the snapshots and orders, each new snapshot before the orders that belong to it.

        ``progress``: where the data plane is. ``held``: whether the training process of this agent is stopped. Then the agent
        behaves as if stopped, too: it drops what arrives, sends nothing, and handles no timer. ``labels``: fields of every log
        record.
        """
        self._core = core
        self._progress = progress
        self._held = held
        self._carrier = carrier
        self._tell = tell
        self._labels = dict(labels or {})
        self._snapshot = Snapshot()
        self._inbox: deque[Input | Envelope | Callable[[float], object]] = deque()
        self._orders: list[Snapshot | Order] = []
        """Snapshots and orders among the effects being carried out."""
        self._places: dict[str, PeerProgress] = {}
        """The progress of peers that was not sent to the data plane yet."""
        self._busy = False
        self._stopped: StoppedError | None = None
        self._crashed = False
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._deadline: float | None = None
        self._release: asyncio.TimerHandle | None = None
        self._arming = False
        self._telling: asyncio.TimerHandle | None = None
        self._notes: deque[dict[str, Any]] = deque(maxlen=_NOTES)
        self._latest_tick = 0.0
        self._ticks = 0
        self._ticks_late = 0.0

    @property
    def core(self) -> DrivenMachine:
        """The protocol core, for reading."""
        return self._core

    def start(self) -> None:
        """Start the core, which looks for its cluster."""
        self.handle(self._core.start)

    def receive(self, envelope: Envelope) -> None:
        """A decoded packet."""
        if not self._held():
            self.handle(envelope)

    def stop(self, error: StoppedError) -> None:
        """The core has ended this lifetime, and ``error`` explains more than the core knew."""
        self.handle(lambda _now: self._stop(error))

    def end(self, error: StoppedError) -> None:
        """This lifetime is over for a reason outside the core: inform the core, which informs the other members."""
        self.stop(error)
        self.handle(Died(str(error), error))

    def handle(self, what: Input | Envelope | Callable[[float], object], *, even_held: bool = False) -> None:
        """Give ``what`` to the core, or call ``what(now)``, then carry out the effects. Called from an effect: after earlier
        ones.

        While the process is held, the input waits, as everything in a stopped process does, unless ``even_held``.
        """
        if self._crashed:
            return
        self._inbox.append(what)
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

    def note(self, level: int, kind: str, text: str) -> None:
        """Add a line to the log and to ``explain``."""
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
        """From now on no timer fires and no effect is carried out."""
        self._crashed = True
        for timer in (self._timer, self._telling):
            if timer is not None:
                timer.cancel()

    def _pump(self) -> None:
        self._busy = True
        core, inbox = self._core, self._inbox
        try:
            while inbox and not self._crashed:
                while inbox:
                    # A trailer that promised to leave before this input binds the effects of this input.
                    core.set_progress(self._progress())
                    what = inbox.popleft()
                    if isinstance(what, Envelope):
                        core.receive(what.sender, what.address, what.message, now())
                    elif callable(what):
                        what(now())
                    else:
                        core.handle(what, now())
                self._renew_snapshot()
                for effect in core.drain():
                    self._carry_out(effect)
                if self._orders:
                    self._tell_all()
        except Exception as error:  # noqa: BLE001 - whatever it was, this lifetime is over
            self._crash(error)
        finally:
            self._busy = False
        if not self._crashed and not self._arming:  # once for a burst of packets
            self._arming = True
            self._loop.call_soon(self._arm)

    def _tell_all(self) -> None:
        """Send all waiting orders to the data plane at once."""
        orders, self._orders = [*self._places.values(), *self._orders], []
        self._places.clear()
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        self._tell(orders)

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

        self.handle(self._core.tick)

    def _renew_snapshot(self) -> None:
        core, last = self._core, self._snapshot
        same = core.known_view is last.known and core.installed_view is last.installed and core.active_view is last.active
        same = same and core.changing == last.changing and core.applicants_waiting == last.applicants_waiting
        if same and self._stopped is last.stopped and core.reasons is last.reasons and core.driver == last.driver:
            return  # the usual case; this runs after every packet
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
            self._orders.append(snapshot)

    def _carry_out(self, effect: Effect) -> None:  # noqa: PLR0912 - one case an effect
        """Carry out an effect that leaves this process or ends it; all others are orders for the data plane."""
        carrier = self._carrier
        match effect:
            case Send(address, message):
                carrier.send(address, message)
            case Ask(request):
                carrier.ask(request)
            case Check(member):
                carrier.check(member)
            case KeepConnections(members):
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
                    carrier.explain_join(error)
                else:
                    self._stop(error)
            case PeerProgress():
                self._places[effect.member_id] = effect
                if self._telling is None:
                    self._telling = self._loop.call_later(_PLACES, self._tell_all)
            case _:
                self._orders.append(effect)

    def _stop(self, error: StoppedError) -> None:
        if self._stopped is not None:
            return
        self._stopped = error
        if isinstance(error, (LeftError, JobEndedError)):
            # A worker that leaves at the end of its program asked for that itself: one such line a worker would be noise.
            self.note(logging.DEBUG if isinstance(error, LeftError) else logging.INFO, "stopped", str(error))
        else:
            self.note(logging.WARNING, "stopped", f"{type(error).__name__}: {error}")
        self._renew_snapshot()
        self._orders.append(Stopped(error))

    def _crash(self, error: Exception) -> None:
        extra = {**self._labels, "ftlib_event": "crash"}
        _LOG.critical("the agent failed and ends this member's lifetime", exc_info=error, extra=extra)
        self.close()
        self._carrier.let_go()
        if self._stopped is None:
            self._stopped = StoppedError(f"the agent failed: {type(error).__name__}: {error}")
            try:
                self._tell([Snapshot(stopped=self._stopped), Stopped(self._stopped)])
            except Exception:  # noqa: BLE001 - no one is left to inform
                _LOG.exception("the data plane failed while it was told so")
