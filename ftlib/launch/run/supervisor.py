"""The loop that decides for all workers of one host: it starts them and carries out the restart policy's decisions.

Who owns their processes, and learns of every exit at once, is the ``Steward``.

One thread, one loop, no locks: processes, timers and requests are all events here. Every wait has a deadline, except
the one for the workers' own work.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any

from consensus import KeyRing, format_address

from ...common.processes import describe_exit
from ...errors import ConfigError
from ..processes import guard
from ..processes.credentials import Credentials
from ..processes.places import remove_lost
from ..processes.process import Fate, require_linux, shell_code
from ..processes.registry import recorded
from ..processes.sockets import HOST, ControlSockets, bind_control, listen
from ..processes.steward import Steward
from ..processes.worker import REAP_TIMEOUT, Worker
from .console import Console, outcome, table, traceback_of
from .environment import Start, worker_environment
from .place import MeetingPlace
from .plan import StartPlan
from .restarts import RestartPolicy, RunAction, StartMode, WorkerPhase, WorkerRecord

MATES_GRACE = 0.5
"""Seconds from the end of one process of a replica until the launcher kills the rest, which cannot go on without it."""

PAGE = -1
"""The index of the dashboard's process among the workers."""

_FLUSH = 2.0
"""Seconds that the reader of the output has once the run is to end."""
_LOOK = 0.05
"""Seconds between two looks whether the reader has taken all."""

_SPAWN_FAILED = 71
"""EX_OSERR of sysexits.h: the code noted for a worker that could not be started."""

_BIND_PATIENCE = 600.0
"""Seconds for which binding a worker's sockets is tried again. What is lacking, an address or descriptors, may come back."""
_BIND_AGAIN = 0.5
"""Seconds between two attempts, at least."""


def launch(plan: StartPlan) -> int:
    """Run ``plan`` to its end; returns the shell's exit code. Call on the main thread of a process without others."""
    require_linux()

    def supervise(guards: guard.Guards) -> int:
        try:
            return asyncio.run(Supervisor(plan, guards=guards).run())
        except ConfigError as error:
            sys.stderr.write(f"ftlib: error: {error}\n")
            return 2
        except OSError as error:
            sys.stderr.write(f"ftlib: error: the run could not be started: {error}\n")
            return 1

    code = guard.guarded(supervise)
    remove_lost()  # a supervisor that was killed could not
    return code


class RunStage(Enum):
    """How far the run is."""

    RUNNING = "running"
    DRAINING = "draining"
    """SIGTERM was sent; ``StartPlan.grace`` runs."""
    KILLING = "killing"


class Supervisor:
    """One run. Everything happens on the loop of :meth:`run`, which must be the main thread's."""

    def __init__(
        self, plan: StartPlan, *, guards: guard.Guards | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self.policy = RestartPolicy(plan)
        self.stage = RunStage.RUNNING
        self._plan = plan
        self._guards = guards
        self._base = dict(os.environ if environment is None else environment)
        self._credentials = Credentials(plan.job, self._base)
        self._spared: set[int] = set()  # those that were accused, and not killed
        self._place: MeetingPlace | None = None  # where workers of other hosts are met, once it is known
        self._tails: dict[int, deque[bytes]] = {}
        self._due: set[int] = set()  # slots that wait for their start, and whose delay is over
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._unbound: dict[int, float] = {}  # slots whose sockets could not be bound: since when
        self._addresses: list[str] = []  # of the present founding, in the same order for all workers
        self._ports: dict[int, int] = {}
        self._interrupted = 0  # the signal that ended the run, if one did
        self._broken = False  # whether an error of the launcher's own ended it
        self._twins = guard.Twins()
        self._born = time.monotonic()

    # The run's life.

    async def run(self) -> int:
        """Start the workers, watch them, and clean up; returns the shell's exit code."""
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._loop.set_exception_handler(self._failed)
        plan = self._plan
        self._console = Console(self._loop, workers=plan.workers, log_dir=plan.log_dir, events=plan.events)
        try:
            with self._credentials.kept():
                await self._live()
            code = self._conclude()
            if not self._interrupted:
                await self._written_out()
        finally:
            self._console.close(_FLUSH)
        return code

    async def _written_out(self) -> None:
        """Wait as long as the reader of the output takes; no longer once a signal comes, or the launcher is killed."""
        hurry = asyncio.Event()
        for number in guard.obeyed_signals():
            self._loop.add_signal_handler(number, hurry.set)
        unwatch = self._watch(hurry.set)
        try:
            while not hurry.is_set() and not self._console.close(_LOOK):
                with contextlib.suppress(TimeoutError):  # signals are handled between two looks
                    await asyncio.wait_for(hurry.wait(), _LOOK)
        finally:
            unwatch()

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback has failed: what it was to start or to end may never come now. So the run ends, and nobody waits for that.

        Only callbacks are the launcher's own; what fails in a connection to its endpoint is the caller's affair.
        """
        loop.default_exception_handler(context)  # it prints the traceback
        error = context.get("exception")
        if error is None or "handle" not in context or self._over.done():
            return
        self._broken = True
        self.policy.end(f"the launcher itself has failed: {error!r}")
        if self.stage is RunStage.RUNNING:
            self._end()
        else:  # what failed may have been the end itself
            self._loop.call_later(self._plan.grace, self._kill_all, "the launcher itself has failed")

    async def _live(self) -> None:
        listener = self._listen()
        unwatch = self._take_signals()
        runner = None
        try:
            self._greet()
            self._found(range(self._plan.workers))
            from ..processes.endpoint import serve  # noqa: PLC0415 - aiohttp takes 0.2 s to import: the workers start beside it

            runner = await serve(self, listener)
            with recorded(self._plan.job, self._supervisor, self._plan.command):
                if self._plan.dashboard:
                    self._serve_page()
                await self._over
        finally:
            self._steward.kill_all()
            if runner is not None:
                await runner.cleanup()
            listener.close()
            unwatch()
            left = self._steward.close(sweep=self._guards is not None)
            if left:
                self._console.say(f"still there after SIGKILL, stuck in the kernel: processes {sorted(left)}")

    def _listen(self) -> socket.socket:
        """The endpoint's socket: on loopback, or where peers on other hosts reach it."""
        if self._plan.meeting is None:
            listener, host = listen(), HOST
        elif self._credentials.drawn:
            raise ConfigError(
                "--meet: workers of several hosts need a secret that all know: FTLIB_SECRET_FILE=FILE on every host, with the "
                "same FILE there (ftlib keys new > FILE), or FTLIB_SECRET"
            )
        else:
            self._place = MeetingPlace(self._plan.meeting, self._plan.workers)
            listener, host = self._place.listen(), self._place.host
        self._supervisor = format_address((host, listener.getsockname()[1]))
        return listener

    def _take_signals(self) -> Callable[[], None]:
        self._steward = Steward(self._loop, self._reaped)
        for number in guard.obeyed_signals():
            self._loop.add_signal_handler(number, self._interrupt, number)
        guard.release_signals()
        return self._watch(self._abandon)

    def _watch(self, then: Callable[[], None]) -> Callable[[], None]:
        """Call ``then`` once guard or keeper is killed. Returns a function that stops watching."""
        return (lambda: None) if self._guards is None else self._guards.on_death(self._loop, then)

    def _greet(self) -> None:
        plan = self._plan
        self._console.event(
            "run", job=plan.job, supervisor=self._supervisor, workers=plan.workers, gpus=plan.gpus, command=plan.command
        )
        where = ""
        if plan.meeting is not None:
            where = f" here of {plan.size}, which meet at {', '.join(plan.meeting.introducers[:4])} ({plan.meeting.by})"
        of = "" if plan.shards == 1 else f" in {plan.workers // plan.shards} replicas of {plan.shards}"
        self._console.say(f"job {plan.job}: {plan.workers} workers{of}{where}, supervisor at {self._supervisor}")
        if plan.resume is not None:
            self._console.say(f"the job begins from {plan.beginning}")
        if plan.gpus and plan.workers > plan.gpus:
            self._console.say(
                f"{plan.workers} workers share {plan.gpus} GPU{'s' * (plan.gpus > 1)} (FTLIB_GPU): NCCL takes no two members "
                "on one GPU, so everything goes by Gloo; -n gpu starts one worker for each GPU"
            )
        if plan.workers > 1 and "OMP_NUM_THREADS" not in self._base:
            self._console.say("OMP_NUM_THREADS=1 for each worker, so that they share the cores; set it to change that")

    # Starting workers.

    def _found(self, slots: Iterable[int]) -> None:
        """Start ``slots`` as the founders of one cluster, each at an address that all of them know."""
        if self._place is not None:
            for index in slots:
                self._start_to_meet(index, self._place)
            return
        sockets: dict[int, ControlSockets] = {}
        try:
            for index in slots:
                sockets[index] = bind_control()
            self.policy.refound()  # not before: until then nobody may start at the addresses of the last founding
            self._ports = {index: pair.port for index, pair in sockets.items()}
            self._addresses = [f"{HOST}:{port}" for port in self._ports.values()]
            for index in list(sockets):
                self._start(index, self._founder(index, sockets[index]), sockets.pop(index))
            self._console.say(f"to look inside: ftlib status {self._addresses[0]}")
        finally:
            for pair in sockets.values():
                pair.close()

    def _founder(self, index: int, sockets: ControlSockets) -> Start:
        return Start(index, self._addresses, len(self._addresses), sockets.port, sockets.fds)

    def _start_due(self) -> None:
        """Start all waiting workers that may start; called after every event that could allow a start."""
        while self.stage is RunStage.RUNNING and self._due:
            if self._place is not None:
                index = self._due.pop()
                try:
                    self._start_to_meet(index, self._place)
                except (OSError, ConfigError) as error:
                    self._bind_later([index], error)
                continue
            start_mode = self.policy.start_mode()
            if start_mode is StartMode.HOLD:
                return
            if start_mode is StartMode.REFOUND:
                self._refound("no member of the view is left")
                return
            index = self._due.pop()
            if start_mode is StartMode.FOUND and index in self._ports:
                self._start_at_its_address(index)
            else:
                self._start(index, Start(index, self.policy.introducers(), len(self._addresses)))

    def _start_to_meet(self, index: int, place: MeetingPlace) -> None:
        """Start a worker that meets those of all hosts: whether it founds or joins is the meeting's business."""
        start, sockets = place.start(index, self.policy.introducers())
        self._start(index, start, sockets)
        if sockets is not None and self.policy.records[index].starts == 1:
            self._console.say(f"to look inside: ftlib status {start.bind}")
        elif sockets is not None and start.port != place.port:
            self._console.say(
                f"port {place.port} is taken by another program: {start.name} is at {start.bind}, whoever comes meets others"
            )

    def _start_at_its_address(self, index: int) -> None:
        try:
            sockets = bind_control(self._ports[index])
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                self._bind_later([index], error)
                return
            # Another process took the port meanwhile: meet the others at their ports.
            others = [record.address for record in self.policy.in_phase(WorkerPhase.RUNNING) if record.address]
            if others:
                self._console.say(f"port {self._ports[index]} is taken by now: worker {index} meets the others at theirs")
                self._start(index, Start(index, others, len(self._addresses)))
            else:
                self._refound(f"port {self._ports[index]} is taken")
        else:
            self._start(index, self._founder(index, sockets), sockets)

    def _refound(self, why: str) -> None:
        """Start all waiting workers as the founders of a new cluster, at new addresses."""
        everyone = [record.index for record in self.policy.in_phase(WorkerPhase.WAITING)]
        if not self._unbound.keys() & set(everyone):  # else it was said at the first attempt
            self._console.say(f"{why}: {len(everyone)} workers begin anew, from {self._plan.beginning}")
        for index in everyone:
            self._cancel_timer(index)
        self._due.clear()
        try:
            self._found(everyone)
        except (OSError, ConfigError) as error:
            self._bind_later([index for index in everyone if self.policy.records[index].phase is WorkerPhase.WAITING], error)

    def _bind_later(self, slots: list[int], error: OSError | ConfigError) -> None:
        """Try again after the delay: sockets of ``slots`` could not be bound, and so no lifetime has begun that could fail.

        Where that has failed for ``_BIND_PATIENCE`` seconds, it counts as a start that failed, so that restarts run out.
        """
        delay, now = max(self._plan.restart_delay, _BIND_AGAIN), self._loop.time()
        fresh = [index for index in slots if index not in self._unbound]
        if fresh:
            where = HOST if self._place is None else format_address((self._place.host, self._place.port))
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            self._console.say(
                f"worker {', '.join(map(str, fresh))}: nothing can listen at {where} ({reason}): "
                f"trying again every {delay:g} s, for at most {_BIND_PATIENCE:g} s"
            )
        for index in slots:
            if now - self._unbound.setdefault(index, now) < _BIND_PATIENCE:
                self._timers[index] = self._loop.call_later(delay, self._delay_over, index)
            else:
                self._unborn(index)

    def _unborn(self, index: int) -> None:
        """A start has failed before there was a process: it counts as a lifetime."""
        self._unbound.pop(index, None)
        self.policy.started(index, 0, "", founder=False)
        self._loop.call_soon(self._ended, index, _SPAWN_FAILED)

    def _start(self, index: int, start: Start, sockets: ControlSockets | None = None) -> None:
        record = self.policy.records[index]
        start = dataclasses.replace(start, life=record.starts + 1)
        env = worker_environment(self._base, self._plan, start, self._supervisor, self._credentials.environment)
        try:
            fds = start.socket_fds or ()
            worker = Worker.spawn(index, start.name, self._plan.command, env, self._console, fds)
        except (OSError, subprocess.SubprocessError) as error:
            self._console.say(f"{start.name} could not be started: {error}")
            self._unborn(index)
            return
        finally:
            if sockets is not None:
                sockets.close()  # this process's copies: "connection refused" must prove that the worker is gone
        self._steward.take(worker)
        self._unbound.pop(index, None)
        self._tails[index] = worker.tail
        address = start.bind if start.port else ""
        # Those who meet at a place that is not theirs alone may join a view that exists: each tells when it is in one.
        self.policy.started(index, worker.pid, address, founder=start.socket_fds is not None and self._place is None)
        self._console.open_log(index, f"{start.name}, start {record.starts}, pid {worker.pid}, job {self._plan.job}")
        self._console.event("started", worker=index, pid=worker.pid, start=record.starts, address=address)
        if record.starts > 1:
            self._console.say(f"{start.name} is back as pid {worker.pid} ({self.policy.restarts_left} restarts left)")

    def _cancel_timer(self, index: int) -> None:
        timer = self._timers.pop(index, None)
        if timer is not None:
            timer.cancel()

    # Workers that end.

    def _reaped(self, worker: Worker, code: int) -> None:
        if worker.index == PAGE:
            if self.stage is RunStage.RUNNING and not worker.sent_away:
                self._console.say(f"the dashboard ended ({describe_exit(code)}); ftlib dashboard serves another")
            return
        self._console.event("ended", worker=worker.index, pid=worker.pid, code=code, cause=worker.cause)
        self._ended(worker.index, code, worker.cause, sent_away=worker.sent_away, stuck=worker.stuck.done())

    def _ended(self, index: int, code: int, cause: str = "", *, sent_away: bool = False, stuck: bool = False) -> None:
        following = self.policy.exited(index, code, cause, sent_away=sent_away, stuck=stuck)
        record = self.policy.records[index]
        if code != 0 and self.stage is RunStage.RUNNING:
            self._tell_death(record)
        if following is RunAction.END:
            self._end()
        elif following is RunAction.RETIRE:
            self._retire()
        elif self.policy.ready(index):
            for each in (record, *self.policy.mates(index)):
                self._timers[each.index] = self._loop.call_later(self._plan.restart_delay, self._delay_over, each.index)
        elif (code != 0 or record.phase is WorkerPhase.WAITING) and self._plan.shards > 1 and self.stage is RunStage.RUNNING:
            # Else it has a notice, and so have its mates.
            self._loop.call_later(MATES_GRACE, self._kill_mates, index, record.starts)
        self._start_due()
        if self.policy.over and not self._over.done():
            self._over.set_result(None)

    def _kill_mates(self, index: int, starts: int) -> None:
        """Kill what is left of a replica that has lost the process in slot ``index``, in its ``starts``-th life."""
        if self.stage is not RunStage.RUNNING:
            return
        pids = {mate.pid for mate in self.policy.mates(index) if mate.phase is WorkerPhase.RUNNING and mate.starts == starts}
        for worker in self._steward:
            if worker.pid in pids:
                worker.kill(f"its replica has lost worker {index}")

    def _tell_death(self, record: WorkerRecord) -> None:
        how = describe_exit(record.code) + (f" ({record.cause})" if record.cause else "")
        live = len(self.policy.in_phase(WorkerPhase.RUNNING))
        again = record.phase is WorkerPhase.WAITING
        what = f"restarting it in {self._plan.restart_delay:g} s" if again else "not restarting it"
        self._console.say(f"worker {record.index} ended: {how}; {live} still run; {what}")

    def _delay_over(self, index: int) -> None:
        self._timers.pop(index, None)
        if self.policy.records[index].phase is WorkerPhase.WAITING:
            self._due.add(index)
            self._start_due()

    def _retire(self) -> None:
        """The job is done: joiners that hold no view have nothing to join."""
        self.policy.retire_waiting()
        self._due.clear()
        for worker in self._steward:
            worker.send_away()
        self._loop.call_later(self._plan.grace, self._kill_all, "the job was done")

    def _serve_page(self) -> None:
        """Start ``ftlib dashboard`` as a process of its own: a busy page must not delay the loop that fences and restarts."""
        # The tools' whole command line, since this launcher knows nothing of it.
        command = (sys.executable, "-m", "ftlib.cli.main", "dashboard", "--run", self._plan.job)
        try:
            page = Worker.spawn(PAGE, "dashboard", command, {**self._base, **self._credentials.environment}, self._console)
        except (OSError, subprocess.SubprocessError) as error:
            self._console.say(f"the dashboard could not be started: {error}")
        else:
            self._steward.take(page)

    # Ending.

    def _interrupt(self, number: signal.Signals) -> None:
        """Handle Ctrl-C, SIGTERM and the like: the first drains, the second kills."""
        if self._twins.again(number):
            return
        self._interrupted = self._interrupted or number
        if self.stage is RunStage.RUNNING:
            name = signal.Signals(number).name
            self._console.say(f"{name}: draining the workers (at most {self._plan.grace:g} s; again: kill them)")
            self.policy.end(name)
            self._end()
        else:
            self._kill_all("interrupted twice")

    def _end(self) -> None:
        if self.stage is not RunStage.RUNNING:
            return
        self.stage = RunStage.DRAINING
        for index in list(self._timers):
            self._cancel_timer(index)
        for worker in self._steward:
            worker.signal(signal.SIGTERM)
        self._loop.call_later(self._plan.grace, self._kill_all, f"did not end within {self._plan.grace:g} s")
        if self.policy.over and not self._over.done():
            self._over.set_result(None)

    def _abandon(self) -> None:
        """End the run because the guard was killed."""
        self._interrupted = signal.SIGKILL
        self.policy.end("the launcher was killed")
        self._end()
        self._kill_all("the launcher was killed")

    def _kill_all(self, cause: str) -> None:
        if self.stage is not RunStage.RUNNING:
            self.stage = RunStage.KILLING
        self._steward.kill_all(cause)
        self._loop.call_later(REAP_TIMEOUT, self._give_up)

    def _give_up(self) -> None:
        """Stop waiting for killed processes: those left are stuck in the kernel."""
        self._steward.give_up()
        if not self._over.done():
            self._over.set_result(None)

    # For the HTTP endpoint (its ``Operations``).

    @property
    def job(self) -> str:
        """The name that callers must know."""
        return self._plan.job

    @property
    def ring(self) -> KeyRing:
        """The keys; a caller must have one of them."""
        return self._credentials.ring

    async def fence(self, pid: int, member: str, reason: str, by: str) -> tuple[Fate, float]:
        """Kill an accused worker, and wait until it is reaped; returns also for how many seconds it has been gone."""
        del by  # who is left alone in the view is spared anyway
        worker = self._steward.of_pid(pid)
        if worker is None:
            return self._steward.fate_of(pid)
        if member in self.policy.past:
            return Fate.GONE, 0.0  # the pid is a later lifetime's, or the process lives on as another member
        if not worker.cause and not worker.ended and self._alone_in_view(worker):
            if worker.pid not in self._spared:  # whoever accuses does so every quarter of a second
                self._console.say(f"{worker.name} is silent to its peers ({reason or 'no reason given'}): spared, the last one")
            self._spared.add(worker.pid)
            return Fate.SPARED, 0.0
        if not worker.cause and not worker.ended:
            self._console.say(f"{worker.name} is silent to its peers ({reason or 'no reason given'}): killed")
            self._console.event("fenced", worker=worker.index, pid=pid, reason=reason)
        return await self._steward.end_hung(worker, "silent to its peers")

    def _alone_in_view(self, worker: Worker) -> bool:
        """Whether no other member of the view is left: two that find each other silent are not both to be killed, as the state
        would be gone with them. Who accuses is a member, so it is dying itself, unless it is of another host.
        """
        if self._place is not None:
            return False
        holders = [record for record in self.policy.records if self.policy.holds_view(record)]
        others = [found for record in holders if (found := self._steward.of_pid(record.pid)) and found is not worker]
        return worker.index in [record.index for record in holders] and all(other.cause or other.ended for other in others)

    def announced(self, pid: int, member: str, address: str, epoch: int) -> bool:
        """Record a worker's member id, address and view."""
        known = self.policy.announced(pid, member, address, epoch)
        if known:
            self._console.event("announced", pid=pid, member=member, address=address, epoch=epoch)
            self._start_due()
        return known

    def wanted_again(self, pid: int) -> bool:
        """Note that a worker is to be started again when it has ended well."""
        return self.policy.wanted_again(pid)

    def awaited(self, pid: int) -> bool | None:
        """Whether another worker than this one is starting, or will be; None where other hosts have workers, too."""
        return self.policy.awaited(pid) if self._place is None or self.policy.ending else None

    def report(self) -> dict[str, Any]:
        """Return the body of ``GET /workers``."""
        rows = [record.facts() for record in self.policy.records]
        return {"stage": self.stage.value, "restarts_left": self.policy.restarts_left, "workers": rows}

    # The end.

    def _conclude(self) -> int:
        """Print what happened, with the traceback that matters at the end; returns the shell's exit code."""
        policy, console = self.policy, self._console
        code = 128 + self._interrupted if self._interrupted else shell_code(policy.result) or int(self._broken)
        seconds = time.monotonic() - self._born
        console.event("over", code=code, seconds=seconds)
        troubled = any(record.phase is not WorkerPhase.DONE or record.starts > 1 for record in policy.records)
        if troubled:
            width = max(80, shutil.get_terminal_size((120, 24)).columns)
            console.write(table(policy, self._tails, coloured=console.coloured, width=width))
        done = len(policy.in_phase(WorkerPhase.DONE))
        ending = f": {policy.ending}" if policy.ending else ""
        console.say(f"{done} of {len(policy.records)} workers finished in {seconds:.1f} s, exit code {code}{ending}")
        if policy.result and not self._interrupted and policy.last_failed is not None:
            failed = policy.records[policy.last_failed]
            last = traceback_of(failed.index, self._tails.get(failed.index, ()))
            console.say(f"worker {failed.index}: {outcome(failed)}; {last.rstrip()}")
        return code
