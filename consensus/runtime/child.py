"""The whole life of an agent's process; started by ``process_host``.

It ends with its training process, whichever way that ends, and says so to the others first: its word arrives before anybody
could notice a closed connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import itertools
import logging
import logging.handlers
import os
import pickle
import queue
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import ConsensusError, StoppedError
from ..slices import short_slices
from ..view import View
from .agent import Agent, Outside
from .assembly import make_agent, perform, question
from .host import Descriptors, Setup
from .life_lock import watch_life
from .lifeline import Lifeline
from .pipe import LoopPipe
from .progress_cell import ProgressCell
from .snapshot import Snapshot
from .sockets import SocketPair
from .sources import Request
from .web import load

__all__ = ["main"]

_LOG = logging.getLogger("ftlib.consensus")
_FACTS_TIMEOUT = 0.3
"""Seconds that the training process gets to say where it is: it may be busy, and status must answer all the same."""

_SWITCH = 0.0005
"""Seconds after which a thread that computes lets the loop go on: a joiner's agent imports while all wait for its word."""

_PR_SET_NAME = 15
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What reaches a whole process group is for the training process to decide upon; this one follows it."""


def main() -> None:
    """``argv``: the pipe's descriptor, the parent's pid, a name for this process. To be called with the collector disabled."""
    gc.freeze()
    gc.enable()
    pipe, parent, name = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    short_slices()
    sys.setswitchinterval(_SWITCH)
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)
    try:
        lifeline = Lifeline(parent)
    except ProcessLookupError:
        return
    if os.getppid() != parent:  # it had ended, and the number may be another's by now
        return
    asyncio.run(_Child(lifeline).run(socket.socket(fileno=pipe)))
    os._exit(0)  # nothing is left to be said, and threads of libraries may hang


class _Plane:
    """The data plane, as the agent sees it from here: every callback is a message."""

    def __init__(self, tell: Callable[..., None]) -> None:
        self._tell = tell

    def freeze(self, epoch: int, after_call: int | None) -> None:
        self._tell("freeze", epoch, after_call)

    def expect(self, view: View) -> None:
        self._tell("expect", view)

    def install(self, view: View, reports: Mapping[str, bytes]) -> None:
        self._tell("install", view, dict(reports))

    def activate(self, view: View) -> None:
        self._tell("activate", view)

    def wish(self, wanted: bool) -> None:
        self._tell("wish", wanted)

    def peer_progress(self, member_id: str, finished: int, current: int) -> None:
        self._tell("peer_progress", member_id, finished, current)

    def stalled(self, call: int, waited: float) -> None:
        self._tell("stalled", call, waited)

    def stopped(self, error: StoppedError) -> None:
        self._tell("stopped", error)

    def facts(self) -> Mapping[str, Any]:
        raise NotImplementedError("facts are asked for over the pipe, with a deadline")


class _Child:
    """Carries orders from the pipe to the agent, and the agent's callbacks to the pipe. Everything is on one loop."""

    def __init__(self, lifeline: Lifeline) -> None:
        self._lifeline = lifeline
        self._pipe = LoopPipe(self._received, self._orphaned)
        self._over = asyncio.Event()
        self._agent: Agent | None = None
        self._doors: socket.socket | None = None
        self._served: frozenset[str] = frozenset()
        self._numbers = itertools.count(1)
        self._facts: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        self._latest_facts: Mapping[str, Any] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, sock: socket.socket) -> None:
        """Until the training process says stop, or is gone."""
        await self._pipe.open(sock)
        self._lifeline.watch(self._orphaned)
        await self._over.wait()

    def _orphaned(self) -> None:
        """The training process has ended: say so, and follow it at once."""
        if self._agent is not None:
            driver = self._agent.driver
            error = StoppedError("its training process ended")
            driver.perform(lambda _now: driver.core.die(str(error), error), even_held=True)
        self._lifeline.step_back()
        os._exit(0)

    # Orders

    def _received(self, value: Any) -> None:
        kind, *values = value
        try:
            getattr(self, f"_on_{kind}")(*values)
        except Exception as error:  # noqa: BLE001 - raised from here it would look like the training process's end
            self._fail(kind, error)

    def _fail(self, order: str, error: Exception) -> None:
        """An order could not be carried out: not started, or this lifetime is over, and for that reason."""
        if self._agent is None:
            self._refuse(error)
            return
        text = f"the agent could not carry out {order!r}: {type(error).__name__}: {error}"
        _LOG.error("%s", text, exc_info=error)
        driver = self._agent.driver
        driver.perform(lambda _now: driver.core.die(text, StoppedError(text)), even_held=True)

    def _refuse(self, error: Exception) -> None:
        """Let the training process raise it."""
        known = isinstance(error, ConsensusError)  # others may not be made for a pipe
        said = error if known else ConsensusError(f"the agent could not be started: {type(error).__name__}: {error}")
        self._pipe.send(("failed", said))

    def _on_setup(
        self, setup: Setup, advertised: tuple[str, int], inherited: Descriptors, served: frozenset[str], level: int
    ) -> None:
        root = logging.getLogger()
        root.addHandler(_Forwarding(self._pipe))
        root.setLevel(level)
        self._served = served
        self._doors = socket.socket(fileno=inherited.doors)
        _, (udp, tcp), _, _ = socket.recv_fds(self._doors, 1, 2, socket.MSG_CMSG_CLOEXEC)
        self._doors.setblocking(False)
        sockets = SocketPair(socket.socket(fileno=udp), socket.socket(fileno=tcp), advertised)
        outside = Outside(
            plane=_Plane(lambda method, *arguments: self._pipe.send(("plane", method, arguments))),
            publish=self._publish,
            progress=ProgressCell.open(inherited.cell).read,
            facts=self._ask_facts,
            served=lambda: self._served,
            hand_over=self._hand_over,
            held=self._lifeline.held,
            load_http=load,
        )
        self._agent = make_agent(setup, sockets, outside)
        if inherited.life >= 0:
            loop = asyncio.get_running_loop()
            watch_life(inherited.life, self._lifeline, lambda: loop.call_soon_threadsafe(self._orphaned))
        self._spawn(self._start(self._agent))

    async def _start(self, agent: Agent) -> None:
        try:
            await agent.start()
        except Exception as error:  # noqa: BLE001 - the training process raises it
            self._refuse(error)
        else:
            self._pipe.send(("started",))

    def _on_perform(self, action: str, arguments: tuple[Any, ...]) -> None:
        if self._agent is not None:
            perform(self._agent, action, arguments)

    def _on_ask(self, number: int, name: str, arguments: tuple[Any, ...]) -> None:
        self._spawn(self._answer(number, name, arguments))

    async def _answer(self, number: int, name: str, arguments: tuple[Any, ...]) -> None:
        assert self._agent is not None
        try:
            value = await question(self._agent, name, arguments)
        except ConsensusError as error:
            self._pipe.send(("answer", number, None, error))
        else:
            self._pipe.send(("answer", number, value, None))

    def _on_facts(self, number: int, facts: dict[str, Any]) -> None:
        self._latest_facts = facts
        waiting = self._facts.pop(number, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(facts)

    def _on_serve(self, path: str) -> None:
        self._served |= {path}

    def _on_stop(self) -> None:
        self._spawn(self._stop())

    async def _stop(self) -> None:
        if self._agent is not None:
            await self._agent.close()
        self._over.set()

    # What the agent wants of the training process

    def _publish(self, snapshot: Snapshot) -> None:
        self._pipe.send(("publish", snapshot))

    async def _ask_facts(self) -> Mapping[str, Any]:
        number = next(self._numbers)
        answer = self._facts[number] = asyncio.get_running_loop().create_future()
        self._pipe.send(("facts", number))
        try:
            return await asyncio.wait_for(answer, _FACTS_TIMEOUT)
        except TimeoutError:
            return {**self._latest_facts, "stale": True}
        finally:
            self._facts.pop(number, None)

    def _hand_over(self, connection: socket.socket, request: Request) -> None:
        assert self._doors is not None
        with connection, contextlib.suppress(OSError):  # a full queue of requests: this one is dropped
            socket.send_fds(self._doors, [pickle.dumps(request)], [connection.fileno()])

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Forwarding(logging.handlers.QueueHandler):
    """Has every record logged in the training process, where the user's handlers are."""

    def __init__(self, pipe: LoopPipe) -> None:
        super().__init__(queue.SimpleQueue())
        self._pipe = pipe

    def enqueue(self, record: logging.LogRecord) -> None:
        """Hand over one prepared record."""
        self._pipe.send(("log", record))
