"""The agents of one launch: what each is told, and what it says. Decides nothing: what happened goes to the ledger.

Kept here is what the ledger has no use for: streams, addresses of sockets, and how workers ended.
"""

from __future__ import annotations

import asyncio
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ...errors import ConfigError
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
from .addresses import bind_address
from .decisions.actions import Action, BindHost, CallHost, DropHost, StartWorker, StopWorker
from .decisions.hosts import HostPhase, Loss
from .decisions.launch_state import LaunchState
from .deliveries import Deliveries
from .endings import Ending
from .events import EventLog
from .link import Link
from .losses import loss_of, with_later_remedy, with_remedy
from .message_checks import fault_of
from .output.desk import Desk
from .plan import Plan
from .variables import worker_variables

_OPENING = 60.0
"""Seconds that an agent may take from its command to its first word, at least."""
_LEFT = 70
"""EX_SOFTWARE of sysexits.h: the code noted for a worker that has left its group without a word, and ended with 0."""
_LEFT_HOW = "it ended with 0, but before its function had returned"


@dataclass(slots=True)
class Agent:
    """One host's agent, in its present lifetime."""

    link: Link
    here: Here | None = None
    address: str = ""
    supervisor: str = ""
    master: int = 0
    asked: Bind | None = None
    """Which sockets it is to bind."""
    dropped: bool = False
    """Whether it only says what its workers have left, and then ends."""
    owed: Deliveries = field(default_factory=Deliveries)


class Agents:
    """All of them. Use on the launch's loop only."""

    def __init__(
        self,
        plan: Plan,
        ledger: LaunchState,
        desk: Desk,
        events: EventLog,
        *,
        secrets: str,
        do: Callable[[list[Action]], None],
        moved: Callable[[], None],
    ) -> None:
        """``do``: carries out what the ledger has decided. ``moved``: told whenever an agent says anything."""
        self._loop = asyncio.get_running_loop()
        self._plan, self._ledger, self._desk, self._events = plan, ledger, desk, events
        self._secrets = secrets
        self._do, self._moved = do, moved
        self._agents: dict[str, Agent] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._greetings: set[asyncio.Task[None]] = set()
        self._again: set[str] = set()
        """Hosts that are called again as soon as their agents that were dropped have ended."""
        self._said: dict[str, str] = {}  # by host: why it was lost last, so that nothing is said twice
        self.endings: dict[int, Ending] = {}
        """How the newest start of each worker ended, by its index."""

    @property
    def complete(self) -> bool:
        """Whether nothing that ended workers left is still under way."""
        return all(agent.owed.complete for agent in self._agents.values())

    @property
    def undrained(self) -> list[str]:
        """The ended workers of whose lines some are still to come."""
        places = self._ledger.places
        return [
            f"{places[index].host}:{places[index].local_rank}"
            for agent in self._agents.values()
            for index in sorted(agent.owed.undrained)
        ]

    async def close(self) -> None:
        """End all of them, within a deadline."""
        for greeting in list(self._greetings):
            greeting.cancel()
        for agent in list(self._agents.values()):
            self._part(agent)
        while self._closing:
            await asyncio.wait(self._closing)

    def keep(self, secrets: str) -> None:
        """The user's file of secrets has changed."""
        self._secrets = secrets
        for agent in self._agents.values():
            agent.link.channel.send(Secrets(secrets))

    # What they are told.

    def carry_out(self, action: Action) -> None:
        """One decision of the ledger."""
        match action:
            case CallHost(host):
                if host in self._agents:
                    self._again.add(host)
                else:
                    self._call(host)
            case BindHost(host, founding, founders, master):
                agent = self._agents[host]
                agent.asked = Bind(agent.address, founding, founders, master)
                agent.link.channel.send(agent.asked)
            case StartWorker():
                self._start(action)
            case StopWorker(index, grace, cause):
                held = self._agents.get(self._ledger.places[index].host)
                if held is not None:
                    held.link.channel.send(Stop(index, grace, cause))
            case DropHost(host):
                gone = self._agents.get(host)
                if gone is not None:
                    gone.dropped = True
                    self._dropped(host, gone)

    def _call(self, host: str) -> None:
        plan = self._plan
        again = self._ledger.hosts[host].strikes > 0
        command = plan.transport.command(host, os.environ, again=again)
        try:
            link = Link(
                host,
                command,
                timeout=plan.agent_timeout,
                opening=max(_OPENING, plan.agent_timeout),
                received=lambda message, size: self._on_message(host, link, message, size),
                over=lambda why: self._lost(host, link, why),
                said=lambda lines: self._desk.spoken(host, lines),
            )
        except OSError as error:
            why = with_remedy(host, f"{command[0]} cannot be run: {error.strerror}")
            self._loop.call_soon(lambda: self._do(self._ledger.host_lost(host, why, time.monotonic(), Loss.REFUSED)))
            return
        self._agents[host] = Agent(link)
        self._events.write("called", host=host)
        link.channel.send(self._order(host))
        if not plan.command:
            call = plan.call
            cuts = range(0, len(call), PIECE)
            link.channel.send_pieces(Piece(-1, 0, call[at : at + PIECE], at + PIECE >= len(call)) for at in cuts)

    def _order(self, host: str) -> Order:
        plan = self._plan
        return Order(
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

    def _start(self, action: StartWorker) -> None:
        place = self._ledger.places[action.index]
        agent = self._agents[place.host]
        self.endings.pop(action.index, None)
        master = place.rank == 0
        head = self._agents[self._ledger.places[0].host] if not self._plan.rules.elastic else agent
        gpus = agent.here.gpus if agent.here is not None else 0
        variables = worker_variables(
            self._plan, self._ledger, action, agent.address, agent.supervisor, head.address, head.master, gpus
        )
        name = f"worker {action.index}"
        again = int(action.address.rpartition(":")[2]) if action.address and action.founder < 0 else 0
        agent.link.channel.send(
            Start(action.index, action.start, place.local_rank, variables, action.founder, again, master, name)
        )

    def _part(self, agent: Agent) -> None:
        self._events.write("parted", host=agent.link.host, longest_gap=agent.link.channel.deadline.longest)
        task = self._loop.create_task(agent.link.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    # What they say.

    def _on_message(self, host: str, link: Link, message: Message, size: int) -> None:
        agent = self._agents.get(host)
        if agent is None or agent.link is not link:
            return
        self._moved()
        # The workers of one that was dropped may be another one's by now.
        wrong = "" if agent.dropped else fault_of(message, host, self._ledger.places, agent.asked)
        if wrong:
            self._lost(host, link, f"it sent {wrong}")
        else:
            self._received(host, agent, message, size)

    def _received(self, host: str, agent: Agent, message: Message, size: int) -> None:
        link, now = agent.link, time.monotonic()
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
                self._lost(host, link, f"it sent a {type(message).__name__}, which is the caller's to send")

    def _greeted(self, host: str, agent: Agent, here: Here) -> None:
        agent.here = here
        if agent.link.release != release():
            why = f"ftlib {agent.link.release} is installed there, and {release()} here: install the same release at both"
            self._refuse(host, why)
            return
        if not self._plan.command and not here.cloudpickle:
            self._refuse(host, "the package cloudpickle is not installed there: pip install cloudpickle")
            return
        ours = platform.python_version()
        if not self._plan.command and here.python.split(".")[:2] != ours.split(".")[:2]:
            why = f"Python {here.python} runs there, and {ours} here: functions are code of one release: name it (python=)"
            self._refuse(host, why)
            return
        slots = self._plan.slots_of(here)
        if isinstance(slots, str):
            self._refuse(host, slots)
            return
        self._events.write("up", host=host, hostname=here.hostname, python=here.python, cpus=here.cpus, gpus=here.gpus)
        greeting = self._loop.create_task(self._placed(host, agent, here, slots))
        self._greetings.add(greeting)
        greeting.add_done_callback(self._greetings.discard)

    async def _placed(self, host: str, agent: Agent, here: Here, slots: int) -> None:
        """Once it is known at which address the workers of a host listen."""
        try:
            address, why = await bind_address(host, here, self._plan), ""
        except ConfigError as error:
            address, why = "", str(error)
        if self._agents.get(host) is not agent:
            return  # it was lost, or removed, meanwhile
        if why:
            self._refuse(host, why)
            return
        agent.address = address
        self._do(self._ledger.host_up(host, slots, address, time.monotonic()))

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
        facts = {"worker": message.worker, "start": message.start, "pid": message.pid}
        self._events.write("ended", **facts, code=message.code, cause=message.cause)
        tail = [bytes(line) for line in message.tail]
        self.endings[message.worker] = Ending(message.start, message.code, message.cause, message.pid, tail)
        if self._plan.backend and not message.result and not message.code:
            message = message._replace(code=_LEFT, cause=message.cause or _LEFT_HOW)
            self.endings[message.worker] = Ending(message.start, message.code, message.cause, message.pid, tail)
        if not message.result or message.code:
            self._over_with(message)  # else it has finished once its result is here

    def _over_with(self, message: Ended) -> None:
        index, start, code = message.worker, message.start, message.code
        how = {"sent_away": message.sent_away, "stuck": message.stuck}
        self._do(self._ledger.ended(index, start, code, message.cause, time.monotonic(), **how))

    def _piece(self, host: str, agent: Agent, piece: Piece) -> None:
        """A part of a result; with the last one it is here."""
        whole = agent.owed.piece(piece)
        if whole is None:
            return
        message, pieces = whole
        ending = self.endings.get(message.worker)
        if ending is not None and ending.start == message.start:  # else it has begun again: this is of no interest any more
            self.endings[message.worker] = replace(ending, pieces=pieces)
        if message.code == 0:
            self._over_with(message)
        self._dropped(host, agent)

    def _dropped(self, host: str, agent: Agent) -> None:
        """Whether an agent that was to be dropped has nothing left to tell."""
        if agent.dropped and agent.owed.complete and self._agents.get(host) is agent:
            self._leave(host)

    def _leave(self, host: str) -> None:
        """Part with the agent of a host, which may be wanted again."""
        self._part(self._agents.pop(host))
        if host in self._again:
            self._again.discard(host)
            self._call(host)

    def _lost(self, host: str, link: Link, why: str) -> None:
        agent = self._agents.get(host)
        if agent is None or agent.link is not link:
            return
        self._events.write("lost", host=host, why=why, longest_gap=agent.link.channel.deadline.longest)
        self._leave(host)
        if agent.dropped:
            return
        loss = Loss.ENDED
        if agent.here is None:
            loss, why = loss_of(why), with_remedy(host, why)
        else:
            why = with_later_remedy(host, why)
        decided = self._ledger.host_lost(host, why, time.monotonic(), loss)
        again = " (it is called again)" if self._ledger.hosts[host].phase is HostPhase.RESTING else ""
        self._complain(host, f"lost: {why}{again}")
        self._do(decided)
