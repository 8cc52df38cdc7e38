"""Carries out what the ledger decides: the thread of one launch, with a loop of its own. The caller is never forked.

The only state here is what the ledger has no use for: agents' streams and sockets' addresses, and how workers ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from ...errors import ConfigError
from ..hosts.watch import Watch
from ..run.restarts import WorkerPhase
from ..stream.messages import (
    PIECE,
    Again,
    Announced,
    Bind,
    Bound,
    Drained,
    Ended,
    Here,
    Lines,
    Logged,
    Message,
    Order,
    Piece,
    Secrets,
    Start,
    Started,
    Stop,
    Trouble,
    release,
)  # fmt: skip
from .actions import Action, BindHost, CallHost, DropHost, StartWorker, StopWorker
from .addresses import bind_address
from .deliveries import Deliveries
from .endings import Ending, failure_of, result_of
from .events import EventLog
from .hosts import HostPhase, Loss
from .ledger import Ledger, Stage
from .lines import Desk
from .link import Link
from .panel import HostFacts, LaunchFacts
from .plan import Plan
from .pump import Pump
from .variables import worker_variables

_OPENING = 60.0
"""Seconds that an agent may take from its command to its first word, at least."""
_STUCK = 30.0
"""Seconds without any progress after which lines and results that are still under way are given up."""
_SHOWN = 0.5
"""Seconds between two drawings of the live view, at least."""
_KILLED = 10.0
"""Seconds that killed workers may take to be reaped."""
_AWAY = re.compile(
    "timed out|no route|unreachable|connection (refused|reset|closed)|temporary failure|nothing came",
    re.IGNORECASE,
)
"""In the words of ssh and of ``Link``: nobody answered, or nobody who had the time to say no."""
_ENDED = re.compile("slurm job \\S+ has expired|invalid job id|job/step already complet", re.IGNORECASE)
"""In the words of srun: the allocation is no more."""


@dataclass(slots=True)
class Agent:
    """One host's agent, in its present lifetime."""

    link: Link
    here: Here | None = None
    address: str = ""
    supervisor: str = ""
    master: int = 0
    owed: Deliveries = field(default_factory=Deliveries)


class Director:
    """One launch. Made on any thread; all but the constructor and the named calls happen on its own."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.future: Future[Any] = Future()
        """Set once, when everything is over."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._agents: dict[str, Agent] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._endings: dict[int, Ending] = {}
        self._said: dict[str, str] = {}  # by host: why it was lost last, so that nothing is said twice
        self._ended_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._showing: asyncio.TimerHandle | None = None
        self._secrets = plan.secrets() if plan.secrets is not None else ""
        self._events = EventLog(plan.events)
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
        self._moved = asyncio.Event()
        self._desk = Desk(self._pump, self._ledger, self._loop, self._moved.set)
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
            await self._progressing(lambda: all(agent.owed.complete for agent in self._agents.values()))
        finally:
            for watch in watches:
                watch.close()
            for agent in list(self._agents.values()):
                self._part(agent)
            while self._closing:
                await asyncio.wait(self._closing)
            self._pump.close(self._moved_from_elsewhere)
            await self._progressing(lambda: self._pump.ended)
            self._events.write("over")
            self._events.close()

    async def _progressing(self, reached: Callable[[], bool]) -> None:
        """Wait until something is ``reached``, as long as lines and results keep coming."""
        while not reached():
            self._moved.clear()
            try:
                async with asyncio.timeout(_STUCK):
                    await self._moved.wait()
            except TimeoutError:
                return

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
        there = {name for name, host in known.items() if host.phase not in (HostPhase.GONE, HostPhase.DRAINING)}
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
        self._secrets = text
        for agent in self._agents.values():
            agent.link.channel.send(Secrets(text))
        self._events.write("secrets")

    # What the ledger decides.

    def _do(self, actions: list[Action]) -> None:
        """Carry out decisions, and those that follow from what fails at once."""
        assert self._loop is not None
        for action in actions:
            self._carry_out(action)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._showing is None and self._pump.has_panel:
            self._showing = self._loop.call_later(_SHOWN, self._show)
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

    def _show(self) -> None:
        self._showing = None
        self._pump.show(launch_facts(self.plan.job, self._ledger))

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
                if gone is not None and gone.owed.complete:
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
                said=lambda lines: self._desk.spoken(host, lines),
            )
        except OSError as error:
            assert self._loop is not None
            why = f"{command[0]} cannot be run: {error.strerror}"
            self._loop.call_soon(lambda: self._do(self._ledger.host_lost(host, why, time.monotonic(), Loss.REFUSED)))
            return
        if host in self._agents:  # one that was removed, whose last lines never came
            self._part(self._agents.pop(host))
        self._agents[host] = Agent(link)
        self._events.write("called", host=host)
        plan = self.plan
        link.channel.send(
            Order(
                release=release(),
                job=plan.job,
                host=host,
                environment={**plan.variables, **({} if self._secrets else {"FTLIB_SECRET": plan.secret})},
                directory=plan.directory,
                path=plan.path,
                preload=plan.preload,
                command=plan.command,
                results=plan.results,
                grace=plan.rules.grace,
                timeout=plan.agent_timeout,
                backend=plan.backend,
                worker_timeout=plan.worker_timeout,
                elastic=plan.rules.elastic,
                secrets=self._secrets,
            )
        )
        if not plan.command:
            call = plan.call
            cuts = range(0, len(call), PIECE)
            link.channel.send_pieces(Piece(-1, 0, call[at : at + PIECE], at + PIECE >= len(call)) for at in cuts)

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
        agent.link.channel.send(
            Start(action.index, action.start, place.local_rank, variables, action.founder, again, master, name)
        )

    def _part(self, agent: Agent) -> None:
        assert self._loop is not None
        self._events.write("parted", host=agent.link.host, longest_gap=agent.link.channel.deadline.longest)
        task = self._loop.create_task(agent.link.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    # What agents say.

    def _received(self, host: str, link: Link, message: Message, size: int) -> None:
        agent = self._agents.get(host)
        if agent is None or agent.link is not link:
            return
        now = time.monotonic()
        self._moved.set()
        match message:
            case Lines() | Logged():
                self._desk.take(host, link.channel, message, size)
            case Here():
                self._greeted(host, agent, message)
            case Bound(founding, addresses, supervisor, master):
                agent.supervisor, agent.master = supervisor, master
                self._do(self._ledger.host_bound(host, founding, list(addresses), now))
            case Started(index, start, pid):
                self._ledger.started(index, start, pid)
                self._events.write("started", worker=index, host=host, pid=pid, start=start)
            case Announced(index, start, member, address, epoch):
                self._do(self._ledger.announced(index, start, member, address, epoch, now))
            case Again(index, start):
                self._ledger.again(index, start)
            case Ended():
                self._ended(agent, message)
            case Piece():
                self._piece(host, agent, message)
            case Drained():
                agent.owed.drained(message)
                self._dropped(host, agent)
            case Trouble(text):
                link.blame(text)
                self._desk.say(f"the agent ends: {text}", host)
            case _:
                link.blame(f"it sent a {type(message).__name__}")

    def _greeted(self, host: str, agent: Agent, here: Here) -> None:
        agent.here = here
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
        self._events.write("up", host=host, hostname=here.hostname, python=here.python, cpus=here.cpus, gpus=here.gpus)
        try:
            agent.address = bind_address(host, here, self.plan)
        except ConfigError as error:
            self._refuse(host, str(error))
            return
        self._do(self._ledger.host_up(host, slots, agent.address, now))

    def _refuse(self, host: str, why: str) -> None:
        self._part(self._agents.pop(host))
        self._complain(host, f"it cannot be used: {why}")
        self._do(self._ledger.host_lost(host, why, time.monotonic(), Loss.REFUSED))

    def _complain(self, host: str, text: str) -> None:
        """Say what is wrong with a host, once."""
        if self._said.get(host) != text:
            self._said[host] = text
            self._desk.say(text, host)

    def _ended(self, agent: Agent, message: Ended) -> None:
        agent.owed.ended(message)
        facts = {"worker": message.index, "start": message.start, "pid": message.pid}
        self._events.write("ended", **facts, code=message.code, cause=message.cause)
        tail = [bytes(line) for line in message.tail]
        self._endings[message.index] = Ending(message.start, message.code, message.cause, message.pid, tail)
        if not message.result or message.code:
            self._over_with(message)  # else it has finished once its result is here

    def _over_with(self, message: Ended) -> None:
        index, start, code = message.index, message.start, message.code
        self._do(self._ledger.ended(index, start, code, message.cause, time.monotonic(), sent_away=message.sent_away))

    def _piece(self, host: str, agent: Agent, piece: Piece) -> None:
        """A part of a result; with the last one it is here."""
        whole = agent.owed.piece(piece)
        if whole is None:
            return
        message, pieces = whole
        ending = self._endings.get(message.index)
        if ending is not None and ending.start == message.start:  # else it has begun again: this is of no interest any more
            self._endings[message.index] = replace(ending, pieces=pieces)
        if message.code == 0:
            self._over_with(message)
        self._dropped(host, agent)

    def _dropped(self, host: str, agent: Agent) -> None:
        """Whether a host that was to be dropped has nothing left to tell."""
        gone = self._ledger.hosts[host].phase is HostPhase.GONE
        if gone and agent.owed.complete and self._agents.get(host) is agent:
            self._part(self._agents.pop(host))

    def _lost(self, host: str, link: Link, why: str) -> None:
        agent = self._agents.get(host)
        if agent is None or agent.link is not link:
            return
        self._part(self._agents.pop(host))
        self._events.write("lost", host=host, why=why, longest_gap=agent.link.channel.deadline.longest)
        self._complain(host, f"lost: {why}")
        loss = Loss.ENDED if agent.here is not None else _loss_of(why)
        self._do(self._ledger.host_lost(host, why, time.monotonic(), loss))


def _loss_of(why: str) -> Loss:
    """What the words of a command say that led to no agent."""
    return Loss.OVER if _ENDED.search(why) else Loss.AWAY if _AWAY.search(why) else Loss.REFUSED


def launch_facts(job: str, ledger: Ledger) -> LaunchFacts:
    """What the live view shows."""
    hosts = []
    for host in ledger.hosts.values():
        records = [ledger.policy.records[index] for index in host.workers]
        if host.phase is HostPhase.GONE and not any(record.phase is WorkerPhase.RUNNING for record in records):
            continue
        hosts.append(
            HostFacts(
                host.name,
                str(host.phase.value),
                sum(record.phase is WorkerPhase.RUNNING for record in records),
                host.slots,
                sum(ledger.policy.holds_view(record) and record.epoch > 0 for record in records),
                sum(max(0, record.starts - 1) for record in records),
                "" if host.phase is HostPhase.UP else host.why,
            )
        )
    return LaunchFacts(job, hosts)
