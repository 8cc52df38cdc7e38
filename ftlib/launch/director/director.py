"""Carries out what the ledger decides: the thread of one launch, with a loop of its own. The caller is never forked.

The only state here is what the ledger has no use for: streams, sockets' addresses, bytes of results, lines under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import IO, Any

from ...errors import ConfigError
from ..stream.messages import (
    PIECE,
    Announced,
    Bind,
    Bound,
    Credit,
    Drained,
    Ended,
    Here,
    Lines,
    Logged,
    Message,
    Order,
    Piece,
    Start,
    Started,
    Stop,
    Trouble,
    release,
)  # fmt: skip
from .addresses import bind_address
from .endings import Ending, failure_of, result_of
from .ledger import Action, BindHost, CallHost, DropHost, HostPhase, Ledger, Stage, StartWorker, StopWorker
from .link import Link
from .plan import Plan
from .pump import Entry, Pump, Source
from .variables import worker_variables

_OPENING = 60.0
"""Seconds that an agent may take from its command to its first word, at least."""
_STUCK = 30.0
"""Seconds without any progress after which lines and results that are still under way are given up."""
_KILLED = 10.0
"""Seconds that killed workers may take to be reaped."""
_REFRESH = 1.0
_AWAY = re.compile("timed out|no route|unreachable|refused|nothing came", re.IGNORECASE)
"""In the words of ssh and of ``Link``: nobody answered at all."""


@dataclass(slots=True)
class Agent:
    """One host's agent, in its present lifetime."""

    link: Link
    here: Here | None = None
    address: str = ""
    supervisor: str = ""
    master: int = 0
    pending: dict[int, list[bytes]] = field(default_factory=dict)
    """Results under way, by worker."""
    awaited: dict[int, Ended] = field(default_factory=dict)
    """Ends of workers whose result is not whole yet."""
    undrained: set[int] = field(default_factory=set)
    """Workers that ended and whose lines are not all here yet."""


class Director:
    """One launch. Made on any thread; all but the constructor and the named calls happen on its own."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.future: Future[Any] = Future()
        """Set once, when everything is over."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._agents: dict[str, Agent] = {}
        self._heres: dict[str, Here] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._endings: dict[int, Ending] = {}
        self._said: dict[str, str] = {}  # by host: why it was lost last, so that nothing is said twice
        self._progress = time.monotonic()
        self._ended_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._events: IO[str] | None = None
        self._pump = Pump(plan.handlers, plan.log_dir, live=plan.live)
        self._ledger = Ledger(plan.rules, list(plan.hosts), time.monotonic())
        self._thread = threading.Thread(target=self._main, name=f"ftlib-launch-{plan.job}"[:40], daemon=True)

    # From any thread.

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def cancel(self, why: str = "it was cancelled") -> None:
        """End the launch: SIGTERM, and SIGKILL after the grace; at the second call at once."""
        self._ask(lambda: self._do(self._ledger.cancel(why)))

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
        if not self._ask(lambda: found.set_result(self._facts())):
            return self._facts()
        with contextlib.suppress(TimeoutError):
            return found.result(5.0)
        return self._facts()  # the launch has ended meanwhile

    def _ask(self, what: Callable[[], Any]) -> bool:
        self._ready.wait(10.0)
        if self._loop is None or self.future.done():
            return False
        try:
            self._loop.call_soon_threadsafe(what)
        except RuntimeError:
            return False
        return True

    def _facts(self) -> list[dict[str, Any]]:
        found = []
        for place, record in zip(self._ledger.places, self._ledger.policy.records, strict=True):
            found.append(
                {**record.facts(), "code": record.code, "host": place.host, "local_rank": place.local_rank, "rank": place.rank}
            )
        return found

    # The thread.

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
            for index in list(self._endings):
                self._endings[index] = self._endings[index].read(self.plan.results)
            failure = self._ledger.failure
            if failure is None:
                self.future.set_result(result_of(self._ledger, self._endings, self.plan))
            else:
                self.future.set_exception(failure_of(failure, self._ledger, self._endings))
        except BaseException as error:  # noqa: BLE001 - whoever waits must be told
            self._ready.set()
            self.future.set_exception(error)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        if self.plan.events is not None:
            try:
                self._events = self.plan.events.open("a", encoding="utf-8")
            except OSError as error:
                raise ConfigError(f"events {self.plan.events}: {error.strerror}: give a path that can be written") from None
        self._ready.set()
        self._event("run", job=self.plan.job, hosts=[name for name, _ in self.plan.hosts])
        refresh = self._loop.create_task(self._refresh()) if self.plan.refresh is not None else None
        try:
            self._do(self._ledger.begin())
            await self._over
            await self._settle()
        finally:
            if refresh is not None:
                refresh.cancel()
            for agent in list(self._agents.values()):
                self._part(agent)
            while self._closing:
                await asyncio.wait(self._closing)
            self._pump.close()
            await self._flush()
            self._event("over")
            if self._events is not None:
                self._events.close()

    async def _settle(self) -> None:
        """Wait for the lines and results of those that ended, as long as they keep coming."""
        self._progress = time.monotonic()
        while any(agent.undrained or agent.awaited for agent in self._agents.values()):
            if time.monotonic() - self._progress > _STUCK:
                break
            await asyncio.sleep(0.002)

    async def _flush(self) -> None:
        self._progress = time.monotonic()
        while not self._pump.ended and time.monotonic() - self._progress < _STUCK:  # noqa: ASYNC110 - a thread's end
            await asyncio.sleep(0.001)

    async def _refresh(self) -> None:
        """Follow a list of hosts that changes."""
        assert self.plan.refresh is not None
        assert self._loop is not None
        said = ""
        while True:
            await asyncio.sleep(_REFRESH)
            try:
                wanted = await self._loop.run_in_executor(None, self.plan.refresh)
            except ConfigError as error:
                if str(error) != said:
                    said = str(error)
                    self._say(f"{said}; the hosts stay as they are")
                continue
            said = ""
            now = time.monotonic()
            there = {
                name for name, host in self._ledger.hosts.items() if host.phase not in (HostPhase.GONE, HostPhase.DRAINING)
            }
            for name in there - set(wanted):
                self._say(f"{name} was removed: it drains", name)
                self._do(self._ledger.remove_host(name, now))
            for name, slots in wanted.items():
                if name not in there:
                    self._do(self._ledger.add_host(name, slots, now))

    # What the ledger decides.

    def _do(self, actions: list[Action]) -> None:
        """Carry out decisions, and those that follow from what fails at once."""
        assert self._loop is not None
        for action in actions:
            self._carry_out(action)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._ledger.over:
            if not self._over.done():
                self._over.set_result(None)
            return
        if self._ledger.stage is Stage.ENDING and not self._ended_at:
            self._ended_at = time.monotonic()
            self._loop.call_later(self.plan.rules.grace + _KILLED, self._give_up)
        due = self._ledger.next_at()
        if due is not None:
            self._timer = self._loop.call_later(max(0.0, due - time.monotonic()), self._tick)

    def _carry_out(self, action: Action) -> None:
        match action:
            case CallHost(host):
                self._call(host)
            case BindHost(host, founding, founders, master):
                agent = self._agents[host]
                agent.link.channel.send(Bind(agent.address, founding, founders, master))
            case StartWorker():
                self._start(action)
            case StopWorker(index, grace, cause):
                held = self._agents.get(self._ledger.places[index].host)
                if held is not None:
                    held.link.channel.send(Stop(index, grace, cause))
            case DropHost(host):
                gone = self._agents.get(host)
                if gone is not None and not gone.undrained and not gone.awaited:
                    self._part(self._agents.pop(host))

    def _give_up(self) -> None:
        if not self._over.done():
            self._over.set_result(None)

    def _tick(self) -> None:
        self._timer = None
        self._do(self._ledger.tick(time.monotonic()))

    def _call(self, host: str) -> None:
        again = self._ledger.hosts[host].strikes > 0
        command = self.plan.transport.command(host, os.environ, again=again)
        opening = max(_OPENING, self.plan.agent_timeout)
        try:
            link = Link(
                host,
                command,
                timeout=self.plan.agent_timeout,
                opening=opening,
                received=lambda message, size: self._received(host, link, message, size),
                over=lambda why: self._lost(host, link, why),
                said=lambda lines: self._pump.put(Entry(self._source(host, -1), "stderr", lines)),
            )
        except OSError as error:
            assert self._loop is not None
            why = f"{command[0]} cannot be run: {error.strerror}"
            self._loop.call_soon(lambda: self._do(self._ledger.host_lost(host, why, time.monotonic())))
            return
        self._agents[host] = Agent(link)
        self._event("called", host=host)
        plan = self.plan
        link.channel.send(
            Order(
                release=release(),
                job=plan.job,
                host=host,
                environment={**plan.variables, "FTLIB_SECRET": plan.secret},
                directory=plan.directory,
                path=plan.path,
                preload=plan.preload,
                command=plan.command,
                results=plan.results,
                grace=plan.rules.grace,
                timeout=plan.agent_timeout,
                backend=plan.backend,
                worker_timeout=plan.worker_timeout,
            )
        )
        if not plan.command:
            call = plan.call
            cuts = range(0, len(call), PIECE)
            link.channel.send_pieces(Piece(-1, call[at : at + PIECE], at + PIECE >= len(call)) for at in cuts)

    def _start(self, action: StartWorker) -> None:
        place = self._ledger.places[action.index]
        agent = self._agents[place.host]
        self._endings.pop(action.index, None)
        master = place.rank == 0
        head = self._agents[self._ledger.places[0].host] if not self.plan.rules.elastic else agent
        gpus = agent.here.gpus if agent.here is not None else 0
        variables = worker_variables(
            self.plan, self._ledger, action, agent.address, agent.supervisor, head.address, head.master, gpus
        )
        name = f"worker {action.index}"
        again = int(action.address.rpartition(":")[2]) if action.address and action.founder < 0 else 0
        agent.link.channel.send(Start(action.index, place.local_rank, variables, action.founder, again, master, name))

    def _part(self, agent: Agent) -> None:
        assert self._loop is not None
        task = self._loop.create_task(agent.link.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    # What agents say.

    def _received(self, host: str, link: Link, message: Message, size: int) -> None:
        agent = self._agents.get(host)
        if agent is None or agent.link is not link:
            return
        now = self._progress = time.monotonic()
        match message:
            case Lines() | Logged():
                self._handle(host, link, message, size)
            case Here():
                self._greeted(host, agent, message)
            case Bound(founding, addresses, supervisor, master):
                agent.supervisor, agent.master = supervisor, master
                self._do(self._ledger.host_bound(host, founding, list(addresses), now))
            case Started(index, pid):
                self._ledger.started(index, pid)
                self._event("started", worker=index, host=host, pid=pid, start=self._ledger.policy.records[index].starts)
            case Announced(index, member, address, epoch):
                self._do(self._ledger.announced(index, member, address, epoch, now))
            case Ended():
                self._ended(agent, message)
            case Piece(index, data, last):
                agent.pending.setdefault(index, []).append(data)
                if last:
                    self._whole(agent, index)
            case Drained(index):
                agent.undrained.discard(index)
                self._dropped(host, agent)
            case Trouble(text):
                link.blame(text)
                self._say(f"the agent ends: {text}", host)
            case _:
                link.blame(f"it sent a {type(message).__name__}")

    def _handle(self, host: str, link: Link, message: Lines | Logged, size: int) -> None:
        """Have lines handled, and grant credit for them then."""

        def handled() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for credit any more
                assert self._loop is not None
                self._loop.call_soon_threadsafe(grant)

        def grant() -> None:
            self._progress = time.monotonic()
            link.channel.send(Credit(size))

        source = self._source(host, message.index)
        if isinstance(message, Lines):
            self._pump.put(Entry(source, "stderr" if message.error else "stdout", message.lines, then=handled))
        else:
            texts = [(int(level), str(name), float(at), str(text)) for level, name, at, text in message.records]
            self._pump.put(Entry(source, "logging", records=texts, then=handled))

    def _greeted(self, host: str, agent: Agent, here: Here) -> None:
        agent.here = self._heres[host] = here
        now = time.monotonic()
        if agent.link.release != release():
            why = f"ftlib {agent.link.release} is installed there, and {release()} here: install the same release at both"
            self._refuse(host, why)
            return
        if not self.plan.command and not here.cloudpickle:
            self._refuse(host, "the package cloudpickle is not installed there: pip install cloudpickle")
            return
        slots = self.plan.slots_of(here)
        if isinstance(slots, str):
            self._refuse(host, slots)
            return
        self._event("up", host=host, hostname=here.hostname, python=here.python, cpus=here.cpus, gpus=here.gpus)
        try:
            agent.address = bind_address(host, here, self.plan)
        except ConfigError as error:
            self._refuse(host, str(error))
            return
        self._do(self._ledger.host_up(host, slots, agent.address, now))

    def _refuse(self, host: str, why: str) -> None:
        self._part(self._agents.pop(host))
        self._do(self._ledger.host_lost(host, why, time.monotonic()))

    def _ended(self, agent: Agent, message: Ended) -> None:
        index = message.index
        agent.undrained.add(index)
        self._event("ended", worker=index, pid=message.pid, code=message.code, cause=message.cause)
        self._endings[index] = Ending(message.code, message.cause, message.pid, [bytes(line) for line in message.tail])
        if message.result:
            agent.awaited[index] = message
            if message.code == 0:
                return  # it has finished once its result is here
        self._do(self._ledger.ended(index, message.code, message.cause, time.monotonic(), sent_away=message.sent_away))

    def _whole(self, agent: Agent, index: int) -> None:
        """A result is here."""
        message = agent.awaited.pop(index, None)
        pieces = agent.pending.pop(index)
        if message is None:
            return
        self._endings[index] = replace(self._endings[index], pieces=pieces)
        if message.code == 0:
            self._do(self._ledger.ended(index, 0, message.cause, time.monotonic(), sent_away=message.sent_away))
        self._dropped(agent.link.host, agent)

    def _dropped(self, host: str, agent: Agent) -> None:
        """Whether a host that was to be dropped has nothing left to tell."""
        known = self._ledger.hosts[host].phase is HostPhase.GONE
        if known and not agent.undrained and not agent.awaited and self._agents.get(host) is agent:
            self._part(self._agents.pop(host))

    def _lost(self, host: str, link: Link, why: str) -> None:
        agent = self._agents.get(host)
        if agent is None or agent.link is not link:
            return
        self._part(self._agents.pop(host))
        self._event("lost", host=host, why=why)
        if self._said.get(host) != why:
            self._said[host] = why
            self._say(f"lost: {why}", host)
        away = agent.here is None and _AWAY.search(why) is not None
        self._do(self._ledger.host_lost(host, why, time.monotonic(), away=away))

    # Words.

    def _source(self, host: str, index: int) -> Source:
        if index < 0 or index >= len(self._ledger.places):
            return Source(host, None, None, 0)
        place = self._ledger.places[index]
        return Source(place.host, place.local_rank, place.rank, index)

    def _say(self, text: str, host: str = "") -> None:
        name = host or "ftlib"
        self._pump.put(Entry(Source(name, None, None, 0), "stderr", [f"[ftlib] {text}".encode()]))

    def _event(self, kind: str, **facts: Any) -> None:
        if self._events is not None:
            record = {"event": kind, "t": time.monotonic(), "time": time.time(), **facts}
            with contextlib.suppress(OSError):
                self._events.write(json.dumps(record) + "\n")
                self._events.flush()
