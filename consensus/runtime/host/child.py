"""The agent's side of a host: carries values from the training process to the agent, and back.

As a process of its own (``main``, started by ``process_host``) it ends with its training process, however that ends. It first
announces the death to the other members: the message arrives before they could notice a closed connection.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import gc
import itertools
import logging
import logging.handlers
import os
import queue
import random
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...errors import ConsensusError, StoppedError
from ...logs import CarefulLogger
from ...progress import Progress
from ...protocol.machine import Machine
from ...protocol.state.inputs import Died
from ...wire.slices import short_slices
from ..agent.agent import Agent, TrainingProcess
from ..agent.traffic import Direction
from ..net.sockets import SocketPair, receive_fds
from ..net.sources import Request
from ..net.web import load
from .exchange import Asked, CutOff, FactsAsked, FactsReply, Failed, Question, ReadStatus, Reply, Serve, Setup, Started, Stop
from .handoff import Handoff
from .life_lock import watch_life
from .parent_watcher import ParentWatcher
from .pipe import LoopPipe
from .progress_cell import ProgressCell
from .signals import ignored

_LOG = CarefulLogger()
_FACTS_TIMEOUT = 0.3
"""Seconds that the training process gets to send its facts: it may be busy, and status must answer all the same."""

_SWITCH = 0.0005
"""Seconds after which a computing thread yields to the loop: a joiner's agent imports while all wait for its messages."""

_PR_SET_NAME = 15


def main() -> None:
    """``argv``: a name for this process, the parent's pid, and the descriptors of the pipe, the handoff socket, the
    progress cell and the life lock (-1: the system has none). Call it with the garbage collector disabled.
    """
    gc.freeze()
    gc.enable()
    name = sys.argv[1]
    pid, pipe, handoff, cell, life = map(int, sys.argv[2:])
    ignored()
    short_slices()
    sys.setswitchinterval(_SWITCH)
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)
    try:
        parent = ParentWatcher(pid)
    except ProcessLookupError:
        return
    if os.getppid() != pid:  # the parent has ended, and another process may have its number by now
        return
    child = Child(socket.socket(fileno=handoff), ProgressCell.open(cell).read, parent, life)
    asyncio.run(child.run(socket.socket(fileno=pipe)))
    os._exit(0)  # nothing is left to do, and threads of libraries may hang


def make_agent(setup: Setup, sockets: SocketPair, training: TrainingProcess) -> Agent:
    """Make an agent, on its loop's thread."""
    own, size, introducers = setup.member.address, setup.config.initial_size, setup.introducers
    machine = Machine(
        setup.config,
        setup.member,
        random.Random(random.SystemRandom().getrandbits(128)),
        founder=introducers.founder(own, size),
        introducers=tuple(address for address in introducers.addresses if address != own),
        voted=introducers.named,
        refused=introducers.refused(size),
    )
    return Agent(setup.config, setup.member, sockets, machine, training, introducers)


class Child:
    """The agent's side, on one event loop. Without a ``parent`` that loop runs in the training process itself."""

    def __init__(
        self, handoff: socket.socket, progress: Callable[[], Progress], parent: ParentWatcher | None = None, life: int = -1
    ) -> None:
        """``handoff``: the handoff socket, for connections that the training process answers. ``progress``: its data plane's.

        ``parent``: watches the training process, if that is another process. ``life``: see ``life_lock``.
        """
        self._handoff_socket = handoff
        self._progress = progress
        self._handoff = Handoff(handoff, self._not_handed_over)
        self._parent = parent
        self._life = life
        self._pipe = LoopPipe(self._received, self._orphaned)
        self._over = asyncio.Event()
        self._sockets: SocketPair | None = None
        self.agent: Agent | None = None
        self._served: frozenset[str] = frozenset()
        self._numbers = itertools.count(1)
        self._facts: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        self._latest_facts: Mapping[str, Any] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, sock: socket.socket) -> None:
        """Run until the training process sends ``Stop``, or is gone."""
        await self._pipe.open(sock)
        try:
            if self._parent is not None:
                self._parent.watch(self._orphaned)
            await self._over.wait()
        finally:
            await self._pipe.close()

    def close(self) -> None:
        """Close the remaining sockets. Idempotent."""
        self._handoff.close()
        self._handoff_socket.close()
        if self._sockets is not None:
            self._sockets.close()

    def descriptors(self) -> Iterable[int]:
        """The descriptors of its own sockets. Takes no lock."""
        pair = self._sockets
        return [
            self._handoff_socket.fileno(),
            *self._handoff.descriptors(),
            *(() if pair is None else (pair.udp.fileno(), pair.tcp.fileno())),
        ]

    def _orphaned(self) -> None:
        """The training process has ended: announce that, and end at once."""
        if self._parent is None:  # all threads end with the process; or this agent was given up
            self._over.set()
            return
        ordered = "" if self.agent is None else self.agent.ordered
        self._die(f"its training process ended{f' ({ordered})' if ordered else ''}")
        self._parent.step_back()
        os._exit(0)

    def _die(self, text: str) -> None:
        if self.agent is not None:
            self.agent.driver.handle(Died(text, StoppedError(text)), even_held=True)

    # From the training process

    def _received(self, value: Any) -> None:
        try:
            match value:
                case Setup():
                    self._set_up(value)
                case Asked(number, question):
                    self._spawn(self._answer(number, question))
                case FactsReply(number, facts):
                    self._latest_facts = facts
                    waiting = self._facts.pop(number, None)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(facts)
                case Serve(path):
                    self._served |= {path}
                case CutOff(seconds):
                    if self.agent is not None:
                        self.agent.cut_off(seconds)
                case Stop():
                    self._spawn(self._stop())
                case _:
                    if self.agent is not None:
                        self.agent.driver.handle(value)
        except Exception as error:  # noqa: BLE001 - raised here it would look like the end of the training process
            self._fail(value, error)

    def _fail(self, value: object, error: Exception) -> None:
        """``value`` could not be carried out: the agent was not started, or else this ends the lifetime."""
        if self.agent is None:
            self._refuse(error)
            return
        text = f"the agent could not carry out {type(value).__name__!r}: {type(error).__name__}: {error}"
        _LOG.error("%s", text, exc_info=error)
        self._die(text)

    def _refuse(self, error: Exception) -> None:
        """Make the training process raise ``error``."""
        if not isinstance(error, ConsensusError):  # it may not survive pickling
            error = ConsensusError(f"the agent could not be started: {type(error).__name__}: {error}")
        self._pipe.send([Failed(error)])

    def _set_up(self, setup: Setup) -> None:
        if self._parent is not None:
            root = logging.getLogger()
            root.addHandler(_Forwarding(self._pipe))
            root.setLevel(setup.level)
        self._served = setup.served
        self._handoff_socket.setblocking(True)
        _, (udp, tcp) = receive_fds(self._handoff_socket, 1, 2)
        self._handoff_socket.setblocking(False)
        self._sockets = SocketPair(socket.socket(fileno=udp), socket.socket(fileno=tcp), setup.advertised)
        training = TrainingProcess(
            tell=self._pipe.send,
            progress=self._progress,
            facts=self._ask_facts,
            served=lambda: self._served,
            hand_over=self._handoff.give,
            signal=functools.partial(os.kill, os.getpid()) if self._parent is None else self._parent.signal,
            held=(lambda: False) if self._parent is None else self._parent.held,
            load_http=load,
        )
        self.agent = make_agent(setup, self._sockets, training)
        if self._parent is not None and self._life >= 0:
            loop = asyncio.get_running_loop()
            watch_life(self._life, self._parent, lambda: loop.call_soon_threadsafe(self._orphaned))
        self._spawn(self._start(self.agent))

    async def _start(self, agent: Agent) -> None:
        try:
            await agent.start()
        except Exception as error:  # noqa: BLE001 - the training process raises it
            self._refuse(error)
        else:
            self._pipe.send([Started()])

    async def _answer(self, number: int, question: Question) -> None:
        assert self.agent is not None
        try:
            agent = self.agent
            value = agent.status() if isinstance(question, ReadStatus) else await agent.discovery.find(question.addresses)
        except ConsensusError as error:
            self._pipe.send([Reply(number, error=error)])
        else:
            self._pipe.send([Reply(number, value)])

    async def _stop(self) -> None:
        if self.agent is not None:
            await self.agent.close()
        self._over.set()

    # Requests of the agent to the training process

    async def _ask_facts(self) -> Mapping[str, Any]:
        number = next(self._numbers)
        answer = self._facts[number] = asyncio.get_running_loop().create_future()
        self._pipe.send([FactsAsked(number)])
        try:
            return await asyncio.wait_for(answer, _FACTS_TIMEOUT)
        except TimeoutError:
            return {**self._latest_facts, "stale": True}
        finally:
            self._facts.pop(number, None)

    def _not_handed_over(self, _request: Request) -> None:
        if self.agent is not None:
            self.agent.traffic.count(Direction.DROPPED, "unanswered", 0)

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Forwarding(logging.handlers.QueueHandler):
    """Sends every log record to the training process, where the user's handlers are."""

    def __init__(self, pipe: LoopPipe) -> None:
        super().__init__(queue.SimpleQueue())
        self._pipe = pipe

    def enqueue(self, record: logging.LogRecord) -> None:
        """Send one prepared record."""
        self._pipe.send([record])
