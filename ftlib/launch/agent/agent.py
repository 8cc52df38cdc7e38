"""The agent of one host: does what the caller says, and tells what happens. It decides one thing: when the caller is gone.

Its stdin is the leash: when it ends, or nothing was received for the caller's ``agent_timeout``, all workers here are killed.
Three processes, guard, keeper and steward, outlive each other (see ``guard``): nothing stays, whichever of them are killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import shutil
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...common.apart import apart
from ...common.releases import release_of
from ..parcel import HEAD, written
from ..processes import guard, places
from ..processes.inherited import OTHERS, OURS
from ..processes.output import write_all
from ..processes.process import Fate, require_linux
from ..processes.sockets import ControlSockets, address_of, bind_control, listen
from ..processes.steward import Steward
from ..processes.worker import Worker
from ..stream.channel import Channel
from ..stream.deadline import Deadline
from ..stream.messages import (
    PIECE,
    Again,
    Announced,
    Bind,
    Bound,
    Bye,
    Ended,
    Here,
    Message,
    Order,
    Piece,
    Secrets,
    Start,
    Started,
    Stop,
    Trouble,
    greeting,
    release,
)  # fmt: skip
from .births import WARM, Nursery
from .fences import Fences
from .outbox import Outbox
from .records import Records

_OPENING = 60.0
"""Seconds that the caller may take for its first word."""
_LOOKUP = 20.0
"""Seconds that the lookup of this host's own name may take, and the count of its GPUs."""
_LAST_WORDS = 2.0
"""Seconds that what was said at last may take to get out."""
_GRACE, _ENDS = 10.0, 5.0
"""Seconds that workers of an interrupted agent may take at most, and their ends once they are killed. Slurm waits for 30."""
_SPAWN_FAILED = 71
"""EX_OSERR of sysexits.h: the code of a worker that could not be started."""
LATER = ("+ftlib.ftlib", "+ftlib.frameworks.gloo", "+torch.optim", "+torch._dynamo")
"""What a worker that trains imports besides torch, which takes longer than to join: imported beforehand for replacements."""
_STALE = {*OURS, *OTHERS}
"""Variables of the host's own that no worker may inherit: what the caller gives comes after them."""


def main() -> int:
    """Be an agent until the caller is done or gone; returns the exit code."""
    require_linux()
    fd_in, fd_out = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)  # whatever prints here must not stand in the stream

    def steward(guards: guard.Guards) -> int:
        os.write(fd_out, greeting())
        return asyncio.run(_run(fd_in, fd_out, guards))

    def only_guard() -> None:
        os.close(fd_in)
        os.close(fd_out)

    return guard.guarded(steward, only_guard)


async def _run(fd_in: int, fd_out: int, guards: guard.Guards) -> int:
    return await Agent(fd_in, fd_out, guards).run()


@dataclass(slots=True)
class Running:
    """One worker and what belongs to it."""

    worker: Worker
    start: int
    """Which of its starts."""
    records: Records | None = None
    outcome: int = -1


@dataclass(frozen=True, slots=True)
class Coming:
    """A start of a worker that is wanted, and does not run yet."""

    start: Start
    founder: ControlSockets | None
    """Its sockets, if it founds."""


class Agent:
    """One host's part of one launch."""

    def __init__(self, fd_in: int, fd_out: int, guards: guard.Guards) -> None:
        self._loop = asyncio.get_running_loop()
        self._guards = guards
        self._over: asyncio.Future[str] = self._loop.create_future()
        self._order: Order | None = None
        deadline = Deadline(time.monotonic(), timeout=_OPENING, opening=_OPENING)
        self._channel = Channel(
            self._loop, fd_in, fd_out, deadline, received=self._received, over=self._lost, on_room=self._room
        )
        self._outbox = Outbox(self._channel)
        self._steward = Steward(self._loop, self._reaped)
        self._call = os.memfd_create("ftlib-call")
        self._called = False
        self._nursery: Nursery | None = None
        self._coming: dict[int, Coming] = {}  # by worker
        self._running: dict[int, Running] = {}
        self._founders: list[ControlSockets] = []
        self._master: socket.socket | None = None
        self._address = ""
        self._fences: Fences | None = None
        self._fenced: set[Worker] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._interrupted = False
        self._twins = guard.Twins()
        self._secrets: Path | None = None

    async def run(self) -> int:
        """Until the end; returns the exit code."""
        for number in guard.obeyed_signals():
            self._loop.add_signal_handler(number, self._interrupt, number)
        self._loop.set_exception_handler(self._failed)
        guard.release_signals()
        unwatch = self._guards.on_death(self._loop, lambda: self._lost("guard or keeper was killed"))
        try:
            why = await self._over
            self._steward.kill_all("the launch is over")
            if why == "":
                await self._last_words()
            elif self._order is not None:
                self._lament(why)
        finally:
            unwatch()
            self._channel.close()
            self._steward.close(sweep=True)
            if self._secrets is not None:
                self._secrets.unlink(missing_ok=True)
        return 0

    async def _last_words(self) -> None:
        deadline = time.monotonic() + _LAST_WORDS
        while not self._channel.idle and not self._channel.deadline.state.over and time.monotonic() < deadline:  # noqa: ASYNC110 - no event elsewhere needs it
            await asyncio.sleep(0.005)

    @staticmethod
    def _lament(why: str) -> None:
        """Say to stderr, which may still get through, why this host ends the launch by itself; never wait for that."""
        with contextlib.suppress(OSError):
            os.set_blocking(2, False)
            os.write(2, f"the agent gave its caller up ({why}): all its workers were killed\n".encode())

    def _room(self) -> None:
        self._outbox.room()

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Something here is wrong: a worker might never be started, or its end never be told. Nobody shall wait for that."""
        loop.default_exception_handler(context)
        if not self._over.done():
            self._fail(f"the agent failed: {context.get('exception') or context['message']}")

    def _lost(self, why: str) -> None:
        if not self._over.done():
            self._over.set_result(why)

    def _interrupt(self, number: signal.Signals) -> None:
        """A signal to this host alone: of Slurm, of an administrator. The first one drains, the second one kills."""
        if self._twins.again(number):
            return
        again, self._interrupted = self._interrupted, True
        name = signal.Signals(number).name
        self._channel.send(Trouble(f"it got {name}"))
        grace = self._order.grace if self._order is not None and not again else 0.0
        for index in list(self._coming):
            self._drop(index, f"its agent got {name}")
        for running in self._running.values():
            running.worker.send_away(f"its agent got {name}")
        self._loop.call_later(min(grace, _GRACE), self._grace_over)
        self._leave_if_alone()

    def _grace_over(self) -> None:
        """Kill what an interrupted agent still has. It ends once their ends are told, or after ``_ENDS`` seconds."""
        self._steward.kill_all()
        self._loop.call_later(_ENDS, self._lost, "")

    def _leave_if_alone(self) -> None:
        """End once an interrupted agent has no worker left: what they left is said before."""
        if self._interrupted and not self._running:
            self._lost("")

    # What the caller says.

    def _received(self, message: Message, _size: int = 0) -> None:
        match message:
            case Order():
                self._begin(message)
            case Piece():
                write_all(self._call, message.data)
                if message.last:
                    self._called = True
                    for coming in self._coming.values():
                        self._do(self._bear(coming))
            case Bind():
                self._bind(message)
            case Start():
                self._start(message)
            case Stop():
                self._stop(message)
            case Secrets(text):
                self._keep(text)
            case Bye():
                self._lost("")
            case _:
                self._lost(f"the caller sent a {type(message).__name__}")

    def _begin(self, order: Order) -> None:
        self._order = order
        self._channel.renew(Deadline(time.monotonic(), timeout=order.timeout, opening=order.timeout))
        if order.release != release():  # the caller says so too; who is newer knows best what fits
            self._fail(f"ftlib {release()} is installed there, and {order.release} here: install the same release at both")
            return
        with contextlib.suppress(OSError):
            os.chdir(order.directory)
        if order.secrets:
            self._keep(order.secrets)
        if not order.command:
            environment = self._environment({})
            preload = (*order.preload, *(LATER if order.elastic and "torch" in order.preload else ()))
            self._nursery = Nursery(self._loop, self._steward, self._outbox, environment, preload)
            self._nursery.begin()
        self._do(self._introduce())

    async def _introduce(self) -> None:
        """Say what this host has. What may take long is asked apart: its name, if no login has told its address, and GPUs."""
        reached = _reached()
        addresses: list[str] = []
        gpus = 0
        with contextlib.suppress(TimeoutError):
            if not reached:
                addresses = await apart(_addresses, _LOOKUP)
        with contextlib.suppress(TimeoutError):
            environment = self._environment({})  # which may hide some of them
            if _has_driver(environment):
                gpus = await apart(lambda: _gpus(environment), _LOOKUP)
        self._channel.send(_facts(reached, addresses, gpus))

    def _keep(self, text: str) -> None:
        """Keep the user's secrets where workers here follow them."""
        assert self._order is not None
        try:
            if self._secrets is None:
                self._secrets = places.write(self._order.job, "", text)
            else:
                places.rewrite(self._secrets, text)
        except OSError as error:
            self._outbox.say(f"the job's secrets cannot be kept in a file here, and cannot change: {error.strerror}")

    def _fail(self, text: str) -> None:
        self._channel.send(Trouble(text))
        self._lost("")

    def _bind(self, request: Bind) -> None:
        assert self._order is not None
        try:
            self._close_sockets()
            self._address = request.address
            self._founders = [bind_control(0, request.address) for _ in range(request.founders)]
            self._master = listen(0, request.address) if request.master else None
            if self._fences is None:
                secret = self._order.environment.get("FTLIB_SECRET", self._order.secrets)
                keys = (secret.split("\n"), self._secrets)
                self._fences = Fences(
                    self._order.job, keys, request.address, self._fence, self._announced, self._again, self._condemned
                )
        except OSError as error:
            self._fail(f"nothing can listen at {request.address} there: {error.strerror}")
            return
        addresses = [address_of(request.address, pair.port) for pair in self._founders]
        port = self._master.getsockname()[1] if self._master is not None else 0
        self._channel.send(Bound(request.founding, addresses, self._fences.address, port))

    def _start(self, start: Start) -> None:
        assert self._order is not None
        if self._interrupted:
            return  # the caller finds it lost with this host
        if self._order.command:
            self._spawn(start)
            return
        coming = Coming(start, self._founders[start.founder] if start.founder >= 0 else None)
        self._coming[start.worker] = coming
        if self._called:
            self._do(self._bear(coming))

    def _spawn(self, start: Start) -> None:
        """Start a worker that is a program."""
        assert self._order is not None
        environment = self._environment(start.environment)
        try:
            sockets = self._sockets_of(start)
        except OSError as error:
            self._unborn(start, f"port {start.port} is taken: {error.strerror}")
            return
        if sockets is not None:
            environment["FTLIB_SOCKET_FDS"] = ",".join(map(str, sockets.fds))
        if start.master and self._master is not None:
            self._master.close()  # reserved until now: the program listens there
            self._master = None
        try:
            fds = sockets.fds if sockets is not None else ()
            _require_program(self._order.command, environment)
            worker = Worker.spawn(start.worker, start.name, self._order.command, environment, self._outbox, fds)
        except (OSError, ValueError) as error:
            self._unborn(start, str(error))
            return
        finally:
            if sockets is not None:
                sockets.close()  # this process's copies: "connection refused" must prove that the worker is gone
        self._steward.take(worker)
        self._running[start.worker] = Running(worker, start.start)
        self._channel.send(Started(start.worker, start.start, worker.pid))

    async def _bear(self, coming: Coming) -> None:
        """Start a worker that calls the function, unless it is stopped before that: the warm process may import for long."""
        assert self._order is not None
        assert self._nursery is not None
        order, start = self._order, coming.start

        def wanted() -> bool:
            return self._coming.get(start.worker) is coming

        if not wanted():
            return
        facts = {
            "agent": os.getpid(),
            "environment": self._environment(start.environment),
            "directory": order.directory,
            "path": list(order.path),
            "results": order.results,
            "backend": order.backend,
            "timeout": order.worker_timeout,
        }
        try:
            sockets = bind_control(start.port, self._address) if start.port else coming.founder
        except OSError as error:
            del self._coming[start.worker]
            self._unborn(start, f"port {start.port} is taken: {error.strerror}")
            return
        outcome = os.memfd_create("ftlib-outcome")
        master = self._master.fileno() if start.master and self._master is not None else -1
        control = sockets.fds if sockets is not None else ()
        try:
            call = os.open(f"/proc/self/fd/{self._call}", os.O_RDONLY)
            try:
                joins = order.elastic and not control
                born = await self._nursery.bear(
                    start.worker, start.name, facts, call, outcome, control, master, joins=joins, wanted=wanted
                )
            finally:
                os.close(call)
        except OSError as error:
            os.close(outcome)
            if wanted():
                del self._coming[start.worker]
                self._unborn(start, str(error))
            return
        finally:
            if sockets is not None:
                sockets.close()
            if master >= 0 and self._master is not None:
                self._master.close()
                self._master = None
        if born is None:
            os.close(outcome)
            return
        worker, records = born
        del self._coming[start.worker]
        self._running[start.worker] = Running(worker, start.start, records, outcome)
        self._channel.send(Started(start.worker, start.start, worker.pid))

    def _sockets_of(self, start: Start) -> ControlSockets | None:
        if start.port:
            return bind_control(start.port, self._address)
        return self._founders[start.founder] if start.founder >= 0 else None

    def _unborn(self, start: Start, why: str) -> None:
        self._outbox.say(f"{start.name} could not be started: {why}")
        why = f"it could not be started: {why}"
        self._channel.send(Ended(start.worker, start.start, 0, _SPAWN_FAILED, why, False, False, 0, []))
        self._outbox.drained(start.worker, start.start)

    def _stop(self, stop: Stop) -> None:
        if stop.worker in self._coming:
            self._drop(stop.worker, stop.cause)
            return
        running = self._running.get(stop.worker)
        if running is None:
            return
        if stop.grace > 0:
            running.worker.send_away()
            self._loop.call_later(stop.grace, running.worker.kill, stop.cause)
        else:
            running.worker.dismiss(stop.cause)

    def _drop(self, index: int, cause: str) -> None:
        """A worker is not wanted any more before it runs: it is over at once, whenever the warm process would come to it."""
        coming = self._coming.pop(index)
        start = coming.start
        if coming.founder is not None:
            coming.founder.close()  # "connection refused" must prove that nobody is there
        self._channel.send(Ended(index, start.start, 0, -signal.SIGTERM, cause, True, False, 0, []))
        self._outbox.drained(index, start.start)

    def _environment(self, more: Mapping[str, str]) -> dict[str, str]:
        assert self._order is not None
        env: dict[str, str] = {key: value for key, value in os.environ.items() if key not in _STALE}
        env |= self._order.environment
        if self._secrets is not None:
            env["FTLIB_SECRET_FILE"] = str(self._secrets)
        elif self._order.secrets:
            env["FTLIB_SECRET"] = self._order.secrets
        env.setdefault("PYTHONFAULTHANDLER", "1")
        env["PYTHONUNBUFFERED"] = "1"
        env.update(more)
        return env

    def _do(self, work: Any) -> None:
        task: asyncio.Task[None] = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # What happens here.

    def _reaped(self, worker: Worker, code: int) -> None:
        if worker.index == WARM:
            if not self._over.done() and not self._interrupted and code:
                self._outbox.say(f"the warm process ended with {code}; the next worker starts another one")
            return
        if worker.stuck.done():
            self._outbox.say(f"{worker.name} was killed, and process {worker.pid} is stuck in the kernel: its slot stays empty")
        self._fenced.discard(worker)
        running = self._running.pop(worker.index)
        if running.records is not None:
            running.records.finish()
        size = written(os.pread(running.outcome, HEAD, 0)) if running.outcome >= 0 else 0
        tail = [line[-500:] for line in worker.tail]
        how = (code, worker.cause, worker.sent_away, worker.stuck.done())
        self._channel.send(Ended(worker.index, running.start, worker.pid, *how, size, tail))
        if size:
            self._channel.send_pieces(_pieces(worker.index, running.start, running.outcome, size))
        elif running.outcome >= 0:
            os.close(running.outcome)
        self._outbox.drained(worker.index, running.start)
        self._leave_if_alone()

    async def _fence(self, pid: int, reason: str) -> tuple[Fate, float]:
        """Kill a worker that its peers find silent, with its stacks in its log."""
        worker = self._steward.of_pid(pid)
        if worker is None:
            return self._steward.fate_of(pid)
        if not worker.cause and not worker.ended:
            self._outbox.say(f"{worker.name} is silent to its peers ({reason or 'no reason given'}): killed")
            self._fenced.add(worker)
        return await self._steward.end_hung(worker, "silent to its peers")

    def _condemned(self, pid: int) -> bool:
        worker = self._steward.of_pid(pid)
        return worker is None or worker in self._fenced or worker.ended or worker.stuck.done()

    def _announced(self, pid: int, member: str, address: str, epoch: int) -> bool:
        found = self._lifetime(pid)
        if found is None:
            return False
        self._channel.send(Announced(*found, member, address, epoch))
        return True

    def _again(self, pid: int) -> bool:
        assert self._order is not None
        found = self._lifetime(pid)
        if found is None or not self._order.elastic:
            return False
        self._channel.send(Again(*found))
        return True

    def _lifetime(self, pid: int) -> tuple[int, int] | None:
        """The worker that runs with this pid: its index, and which of its starts it is."""
        worker = self._steward.of_pid(pid)
        running = self._running.get(worker.index) if worker is not None else None
        return (running.worker.index, running.start) if running is not None else None

    def _close_sockets(self) -> None:
        for pair in self._founders:
            pair.close()
        self._founders = []


def _require_program(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Raise OSError, with the remedy, if a program or its script is not at this host."""
    program, script = command[0], next((word for word in command[1:2] if word.endswith(".py")), "")
    if shutil.which(program, path=environment.get("PATH")) is None:
        missing = program
    elif script and not Path(script).exists():
        missing = script
    else:
        return
    where = f"{missing} is not there (the directory is {Path.cwd()})"
    raise FileNotFoundError(
        f"{where}: programs do not travel, as functions do: put it there, or on a disk that all hosts share"
    )


def _pieces(index: int, start: int, fd: int, size: int) -> Iterator[Message]:
    at = 0
    try:
        while at < size:
            data = os.pread(fd, min(PIECE, size - at), HEAD + at)
            at += len(data)
            yield Piece(index, start, data, at >= size)
    finally:
        os.close(fd)


def _facts(reached: str, addresses: list[str], gpus: int) -> Here:
    return Here(
        hostname=socket.gethostname(),
        pid=os.getpid(),
        python=platform.python_version(),
        cloudpickle=release_of("cloudpickle", ""),
        torch=release_of("torch", ""),
        cpus=len(os.sched_getaffinity(0)),
        gpus=gpus,
        reached=reached,
        addresses=addresses,
    )


def _has_driver(environment: Mapping[str, str]) -> bool:
    if os.path.exists("/proc/driver/nvidia") or os.path.exists("/dev/nvidiactl"):  # noqa: PTH110 - a Path takes longer
        return True
    return shutil.which("nvidia-smi", path=environment.get("PATH")) is not None  # Windows' Linux has neither of them


def _gpus(environment: Mapping[str, str]) -> int:
    from ..processes.gpus import GpuFinder  # noqa: PLC0415 - only where there is a driver

    return GpuFinder(environment).find().count


def _reached() -> str:
    """Sshd says at which address the connection came in."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    return words[2] if len(words) == 4 else ""


def _addresses() -> list[str]:
    """Addresses of this host's own name, as it resolves it; loopback left out."""
    found = []
    with contextlib.suppress(OSError, UnicodeError):
        for *_, place in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM):
            address = str(place[0])
            if not address.startswith(("127.", "::1", "fe80:")) and address not in found:
                found.append(address)
    return found
