"""The thread of one launch, with a loop and a clock of its own. The caller is never forked.

What happens comes to the ledger, and what it decides goes to the agents (``Agents``); this owns the thread, the timers and the
end.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from ...errors import ConfigError
from ..hosts.watch import Watch
from .agents import Agents
from .decisions.actions import Action
from .decisions.launch_state import LaunchState, Stage
from .endings import Ending, failure_of, result_of
from .events import EventLog
from .facts import launch_facts, worker_facts
from .output.desk import Desk
from .output.pump import Pump
from .plan import Plan

_STUCK = 30.0
"""Seconds without any progress after which lines and results that are still under way are given up."""
_HASTE = 2.0
"""Seconds that those may take whose reader is waited for, once a signal has come; or a reader that was given up before."""
_TELL = 1.0
"""Seconds for saying what was lost: stderr may have that very reader."""
_SHOWN = 0.5
"""Seconds between two drawings of the live view, at least."""
_KILLED = 10.0
"""Seconds that killed workers may take to be reaped."""


class Director:
    """One launch. Made on any thread; all but the constructor and the named calls happen on its own."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.future: Future[Any] = Future()
        """Set once, when everything is over."""
        self.future.set_running_or_notify_cancel()  # only ``cancel`` ends a launch: whoever gives the future up does not
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._ended_at = 0.0
        self._cancelled = False
        self._timer: asyncio.TimerHandle | None = None
        self._showing: asyncio.TimerHandle | None = None
        self._secrets = plan.secrets() if plan.secrets is not None else ""
        self._events = EventLog(plan.events)
        self._pump = Pump(plan.handlers, plan.log_dir, live=plan.live, sole=plan.sole)
        self._ledger = LaunchState(plan.rules, list(plan.hosts), time.monotonic())
        self._thread = threading.Thread(target=self._main, name=f"ftlib-launch-{plan.job}"[:40], daemon=True)

    # From any thread.

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def cancel(self, said: str = "") -> None:
        """End the launch: SIGTERM, and SIGKILL after the grace; at the second call at once. Handlers of signals may call it.

        ``said``: a line for whoever reads stderr, which the thread of lines writes.
        """

        def cancel() -> None:
            self._cancelled = True
            self._moved.set()
            self._do(self._ledger.cancel("it was cancelled"))
            if said:
                self._desk.say_aloud(said)

        self._ask(cancel)

    def add_hosts(self, hosts: Mapping[str, int | None]) -> None:
        """Hosts more."""

        def add() -> None:
            for name, slots in hosts.items():
                self._do(self._ledger.add_host(name, slots, time.monotonic()))

        self._ask(add)

    def remove_hosts(self, names: Sequence[str]) -> None:
        """These drain."""

        def remove() -> None:
            for name in names:
                self._do(self._ledger.remove_host(name, time.monotonic()))

        self._ask(remove)

    def workers(self) -> list[dict[str, Any]]:
        """The facts about each worker."""
        found: Future[list[dict[str, Any]]] = Future()
        if not self._ask(lambda: found.set_result(worker_facts(self._ledger))):
            return worker_facts(self._ledger)
        with contextlib.suppress(TimeoutError):
            return found.result(5.0)
        return worker_facts(self._ledger)  # the launch has ended meanwhile

    def _ask(self, what: Callable[[], Any]) -> bool:
        if not self._ready.is_set():  # without a lock: a handler of signals may have interrupted another call of this
            self._ready.wait(10.0)
        if self._loop is None or self.future.done():
            return False
        try:
            self._loop.call_soon_threadsafe(what)
        except RuntimeError:
            return False
        return True

    # The thread.

    def _main(self) -> None:
        try:
            endings = {index: ending.read(self.plan.results) for index, ending in asyncio.run(self._run()).items()}
            failure = self._ledger.failure
            if failure is None:
                self.future.set_result(result_of(self._ledger, endings, self.plan))
            else:
                self.future.set_exception(failure_of(failure, self._ledger, endings))
        except BaseException as error:  # noqa: BLE001 - whoever waits must be told
            self._ready.set()
            self.future.set_exception(error)

    async def _run(self) -> dict[int, Ending]:
        """The whole launch; returns how each worker ended last."""
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._loop.set_exception_handler(self._failed)
        self._moved = asyncio.Event()
        self._desk = Desk(self._pump, self._ledger, self._loop, self._moved.set)
        self._agents = Agents(
            self.plan, self._ledger, self._desk, self._events, secrets=self._secrets, do=self._do, moved=self._moved.set
        )
        self._ready.set()
        self._events.write("run", job=self.plan.job, hosts=[name for name, _ in self.plan.hosts])
        watches: list[Watch[Any]] = []
        if self.plan.refresh is not None:
            watches.append(Watch(self.plan.refresh, dict(self.plan.hosts), self._loop, self._hosts_are))
        if self.plan.secrets is not None:
            watches.append(Watch(self.plan.secrets, self._secrets, self._loop, self._secrets_are))
        try:
            self._do(self._ledger.begin(time.monotonic()))
            await self._over
            await self._progressing(lambda: self._agents.complete, held=lambda: self._pump.busy)
        finally:
            for watch in watches:
                watch.close()
            owing, held = self._agents.undrained, self._pump.busy
            await self._agents.close()
            self._pump.close(self._moved_from_elsewhere)
            # Whoever has held up the lines of the agents until they were given up has had its time.
            await self._progressing(lambda: self._pump.ended, held=lambda: True, hurried=bool(owing) and held)
            self._tell_lost(self._pump.give_up() if not self._pump.ended else {}, owing)
            self._events.write("over")
            self._events.close()
        return self._agents.endings

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What was to be done on the loop failed: nobody shall wait for what may never come now."""
        error = context.get("exception")
        if error is None or self._over.done():
            loop.default_exception_handler(context)
        else:
            error.add_note("the launcher itself has failed, and ended the launch")
            self._over.set_exception(error)

    async def _progressing(self, reached: Callable[[], bool], *, held: Callable[[], bool], hurried: bool = False) -> None:
        """Wait until something is ``reached``, as long as lines and results keep coming.

        Where this process is the command's alone, also for as long as whoever reads its output has ``held`` them up (no
        deadline: ``| less`` may stand for hours), but not long after a signal has come. ``hurried``: only a moment.
        """
        until = math.inf
        while not reached():
            self._moved.clear()
            if self.plan.sole and self._cancelled and until == math.inf:
                until = time.monotonic() + _HASTE
            try:
                async with asyncio.timeout(max(0.0, min(_HASTE if hurried else _STUCK, until - time.monotonic()))):
                    await self._moved.wait()
            except TimeoutError:
                if hurried or until != math.inf or not (self.plan.sole and held()):
                    return

    def _tell_lost(self, lines: Mapping[str, int], owing: Sequence[str]) -> None:
        """Say which lines nobody will see. ``lines``: how many of each source; ``owing``: workers that had more to send."""
        if not lines and not owing:
            return
        parts = [f"{sum(lines.values())} lines of {', '.join(sorted(lines))}"] if lines else []
        parts += [f"what {', '.join(owing)} had not sent yet"] if owing else []
        text = f"output is lost, as whoever takes it stands still (a handler, a file, a reader): {' and '.join(parts)}"
        thread = threading.Thread(target=self._pump.warn, args=(text,), name="ftlib-lost", daemon=True)
        thread.start()
        thread.join(_TELL)

    def _moved_from_elsewhere(self) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed: it was given up
            self._loop.call_soon_threadsafe(self._moved.set)

    # What changes from outside.

    def _hosts_are(self, hosts: Mapping[str, int | None] | ConfigError) -> None:
        """The list of hosts has changed, or cannot be read."""
        if isinstance(hosts, ConfigError):
            self._desk.say(f"{hosts}; the hosts stay as they are")
            return
        now = time.monotonic()
        known = self._ledger.hosts
        there = {name for name, host in known.items() if host.staying}
        for name in there - set(hosts):
            self._desk.say("it was removed from the list: it drains", name)
            self._do(self._ledger.remove_host(name, now))
        for name, slots in hosts.items():
            if name not in there or known[name].asked != slots:
                self._do(self._ledger.add_host(name, slots, now))

    def _secrets_are(self, text: str | ConfigError) -> None:
        """The user's file of secrets has changed, or cannot be used."""
        if isinstance(text, ConfigError):
            self._desk.say(f"{text}; the hosts keep the secrets that they have")
            return
        self._agents.keep(text)
        self._events.write("secrets")

    # What the ledger decides.

    def _do(self, actions: list[Action]) -> None:
        """Carry out decisions, and those that follow from what fails at once."""
        assert self._loop is not None
        for action in actions:
            self._agents.carry_out(action)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._showing is None and self._pump.has_panel:
            self._showing = self._loop.call_later(_SHOWN, self._show)
        if self._ledger.over:
            self._end()
            return
        if self._ledger.stage is Stage.ENDING and not self._ended_at:
            self._ended_at = time.monotonic()
            self._loop.call_later(self.plan.rules.grace + _KILLED, self._end)
        due = self._ledger.next_at()
        if due is not None:
            self._timer = self._loop.call_later(max(0.0, due - time.monotonic()), self._tick)

    def _show(self) -> None:
        self._showing = None
        self._pump.show(launch_facts(self.plan.job, self._ledger))

    def _end(self) -> None:
        if not self._over.done():
            self._over.set_result(None)

    def _tick(self) -> None:
        self._timer = None
        self._do(self._ledger.tick(time.monotonic()))
