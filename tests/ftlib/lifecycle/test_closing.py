"""Leaving and closing: twice, from other threads, in the middle of a call, at the interpreter's end, in a forked child."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ftlib.ftlib
from consensus import LeftError
from consensus.border import Stopped
from consensus.errors import ExcludedError
from ftlib import Excluded, FTLib, FTLibError, JoinError, Status
from ftlib.core.calls.session import Session
from ftlib.core.plane.plane import Plane
from ftlib.core.plane.rebuild import Rebuilder
from ftlib.lifecycle.rejoin import Rejoin
from tests.ftlib.crews.workers import Job, Worker
from tests.harness.basics import TIMEOUT, around, eventually
from tests.harness.company import at_once, company, in_thread
from tests.harness.nursery import Nursery
from tests.harness.program import Program

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("backend", ["memory", "gloo"])
@pytest.mark.parametrize("way", ["close", "leave"])
def test_leaving_in_the_middle_of_a_call_ends_it(way: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From another thread, with the real agents. The others go on; nothing is left behind."""
    monkeypatch.setattr(ftlib.ftlib, "LEAVE_TIMEOUT", TIMEOUT)
    agent = "thread" if backend == "memory" else "process"
    with company(1, backend, agent=agent):
        pass  # what the process keeps for good is there now
    before = left_behind()
    with company(3, backend, agent=agent) as crew:
        first, second, third = crew.members
        results: list[Status] = []
        inside = in_thread(lambda: results.append(third.allreduce_average(torch.ones(1000))))
        eventually(lambda: third._plane.running is not None, "it waits for the others")
        began = time.monotonic()
        getattr(third, way)()
        inside.join(TIMEOUT)
        assert not inside.is_alive()
        assert time.monotonic() - began < TIMEOUT / 2, "the others agreed"
        assert results == [Status.ABORT]
        assert third.allreduce_average(torch.ones(3)) is Status.ABORT
        tensors = [torch.full((1000,), 1.0), torch.full((1000,), 3.0)]
        assert at_once(lambda: first.allreduce_average(tensors[0]), lambda: second.allreduce_average(tensors[1]))
        assert all(bool((tensor == 2.0).all()) for tensor in tensors)
        assert first.size == second.size == 2
    eventually(
        lambda: all(now <= then for now, then in zip(left_behind(), before, strict=True)),
        f"{left_behind()}, before {before}: {threading.enumerate()}",
    )


def left_behind() -> tuple[int, int]:
    """Threads and descriptors of this process."""
    return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))


def test_an_agent_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(JoinError, match="agent='thread' needs none"):
        ftlib.ftlib.FTLib.init(agent="process")


def test_a_traced_worker_that_meets_nobody_says_why_and_leaves_nothing() -> None:
    """Its traces begin once it has met the job."""
    pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry is not installed: pip install opentelemetry-sdk")
    settings: dict[str, Any] = {"bind": "127.0.0.1:0", "initial_size": 2, "join_timeout": 0.2, "agent": "thread"}

    def meets_nobody(trace: str) -> None:
        with pytest.raises(JoinError, match="fewer than initial_size=2 members met"):
            FTLib.init(framework="memory", config={}, trace=trace, **settings)

    meets_nobody("off")
    before = left_behind()
    meets_nobody("on")
    eventually(
        lambda: all(now <= then for now, then in zip(left_behind(), before, strict=True)),
        lambda: f"{left_behind()}, before {before}: {threading.enumerate()}",
        TIMEOUT / 4,
    )


@pytest.mark.parametrize("waits", ["for its last spans to be sent", "for the others to agree"])
def test_an_interrupt_while_a_worker_closes_keeps_nothing_open(waits: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that lived on would be a member that takes part in nothing."""
    pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry is not installed: pip install opentelemetry-sdk")
    from ftlib.lifecycle.tracing.tracer import Tracer

    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    with company(1, trace="on") as one:
        [ft] = one.members

        @around(monkeypatch, *((Tracer, "close") if "spans" in waits else (Rejoin, "goodbye")))
        def interrupted(usual: Any, *given: Any, **more: Any) -> None:
            usual(*given, **more)
            signal.raise_signal(signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            ft.close()
        with pytest.raises(FTLibError, match="part is over"):
            ft.manual_join("127.0.0.1:1")
        assert not [each.name for each in threading.enumerate() if each.name.startswith("ftlib-agent")]


def test_no_call_is_entered_once_the_worker_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the others have not agreed yet: they count on that."""
    monkeypatch.setattr(ftlib.ftlib, "LEAVE_TIMEOUT", TIMEOUT)

    def body(worker: Worker) -> None:
        worker.ft.barrier()
        monkeypatch.setattr(worker.consensus, "leave", lambda **_kw: None)
        thread = in_thread(worker.ft.leave)
        eventually(lambda: worker.ft._call_lock.departed, "it leaves")
        assert worker.ft._plane.phase.value == "active"
        assert worker.ft.barrier() is Status.ABORT
        assert worker.ft._plane.finished == 1
        worker.consensus.plane.handle(Stopped(LeftError("left")))  # type: ignore[union-attr]  # now they have
        thread.join(TIMEOUT)
        assert not thread.is_alive()

    with Job(1) as job:
        job.run({"w0": body})


def test_who_closes_while_the_others_have_put_it_out_learns_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint of one that was put out must not count, that of one that has left may."""
    monkeypatch.setattr(ftlib.ftlib, "CLOSE_TIMEOUT", TIMEOUT)
    go_on, carry_out = threading.Event(), Rebuilder._carry_out

    def late(rebuilder: Rebuilder, order: Any) -> None:
        if isinstance(order, Stopped):
            assert go_on.wait(TIMEOUT)
        carry_out(rebuilder, order)

    monkeypatch.setattr(Rebuilder, "_carry_out", late)

    def body(worker: Worker) -> None:
        worker.ft.barrier()
        worker.consensus.plane.handle(Stopped(ExcludedError("out")))  # type: ignore[union-attr]
        closing = in_thread(worker.ft.close)
        eventually(lambda: worker.ft._plane._parting, "it says goodbye")
        assert worker.ft._plane.error is None
        go_on.set()
        closing.join(TIMEOUT)
        assert isinstance(worker.ft._plane.error, Excluded)

    with Job(1) as job:
        job.run({"w0": body})


def closing_before_it_finishes(monkeypatch: pytest.MonkeyPatch, closes: FTLib) -> threading.Event:
    """That worker closes, from another thread, when it has all the results of its call; set once it has begun to."""
    parted, part, finish = threading.Event(), Plane.part, Plane.finish

    def parts(plane: Plane) -> int | None:
        found = part(plane)
        if plane is closes._plane:
            parted.set()
        return found

    def finishes(plane: Plane, *call: Any) -> Any:
        if plane is closes._plane:
            in_thread(closes.close)
        assert parted.wait(TIMEOUT)
        return finish(plane, *call)

    monkeypatch.setattr(Plane, "part", parts)
    monkeypatch.setattr(Plane, "finish", finishes)
    return parted


def test_a_call_that_the_others_have_to_do_again_ends_with_abort(monkeypatch: pytest.MonkeyPatch) -> None:
    """It must not apply what nobody else does."""
    with company(2, "gloo") as crew:
        closes, other = crew.members
        closing_before_it_finishes(monkeypatch, closes)
        finish = Plane.finish

        def held_up(plane: Plane, session: Session, *call: Any) -> Any:
            if plane is other._plane and session.size == 2:
                plane.wait_end(session, TIMEOUT)
            return finish(plane, session, *call)

        monkeypatch.setattr(Plane, "finish", held_up)
        values = [torch.ones(1), torch.ones(1)]
        found = at_once(*[functools.partial(ft.allreduce, value) for ft, value in zip(crew.members, values, strict=True)])
    assert found == [Status.ABORT, Status.NO_NEED]
    assert values == [torch.ones(1), torch.ones(1)]


def test_a_call_that_the_others_end_ends_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """They end it because another one has, and leaves."""
    with company(3, "gloo") as crew:
        closes, _, last = crew.members
        parted = closing_before_it_finishes(monkeypatch, closes)
        monkeypatch.setattr(closes._consensus, "leave", lambda **_kw: None)  # nobody hears that it closes

        def call(ft: FTLib) -> tuple[Status, float]:
            value = torch.ones(1)
            status = ft.allreduce(value, "SUM")
            if ft is last:
                assert parted.wait(TIMEOUT)
                ft.close()
            return status, value.item()

        found = at_once(*[functools.partial(call, ft) for ft in crew.members])
    assert found == [(Status.SUCCESS, 3.0)] * 3


def test_closing_twice_and_from_many_threads() -> None:
    with company(2) as crew:
        ft = crew.members[1]
        at_once(*[ft.close for _ in range(4)])
        ft.close()
        ft.leave()
        assert ft.barrier() is Status.ABORT


PROGRAM = """
import os, signal, sys, threading, time
import torch
from ftlib import FTLib, Status
ft = FTLib.init(config={}, job=f"alone-{os.getpid()}", framework="memory")
ft.on_view_change(lambda view: None)
ft.barrier()
"""


def forked(nursery: Nursery, where: Path, program: str) -> tuple[int, list[str], str]:
    """The exit code, the lines that it said and its errors."""
    with Program(nursery, where, "-c", PROGRAM + program) as it:
        return it.wait(180), it.stdout.splitlines(), it.stderr


def run(program: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore::DeprecationWarning"}
    arguments = [sys.executable, "-X", "faulthandler", "-c", PROGRAM + program]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=180, env=environment, check=False)


@pytest.mark.process
def test_a_signal_handler_may_close_in_the_middle_of_a_call(nursery: Nursery, tmp_path: Path) -> None:
    program = """
ft._consensus.leave = lambda **_kw: None  # nobody answers: closing has to wait
def handler(number, frame):
    ft.close()
    ft.close()
    print("still", ft._plane.phase.value, flush=True)  # or it would have waited here until it gave up
signal.signal(signal.SIGUSR1, handler)
from ftlib.core.engine.engine import Engine
original = Engine._finish
def slow(self, *arguments):
    with self._plane.changed:  # the very lock that closing needs
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.05)
    return original(self, *arguments)
Engine._finish = slow
status = ft.barrier()
Engine._finish = original
print(status in (Status.ABORT, Status.NO_NEED), ft.barrier() is Status.ABORT)
"""
    code, said, errors = forked(nursery, tmp_path, program)
    assert (code, said) == (0, ["still active", "True True"]), errors


@pytest.mark.process
def test_the_interpreter_ends_in_the_middle_of_a_call() -> None:
    found = run("""
import consensus
from ftlib.frameworks.base import Work
from ftlib.core.calls.observer import Observer
class Endless(Observer):
    def entering(self, number):
        time.sleep(60)  # a call that does not end
ft._engine._observers.attach(Endless())
thread = threading.Thread(target=ft.barrier, daemon=True)
thread.start()
while ft._plane.current is None:
    time.sleep(0.001)
print("end", flush=True)
""")
    assert (found.returncode, found.stdout, found.stderr) == (0, "end\n", "")


@pytest.mark.process
def test_a_child_forked_in_the_middle_of_a_call_is_no_worker(nursery: Nursery, tmp_path: Path) -> None:
    """Locks are held at that moment by a thread that the child does not have."""
    program = """
from ftlib import ConfigError
from ftlib.core.calls.observer import Observer
from torch.utils.data import DataLoader
hold, held = threading.Event(), threading.Event()
class Holding(Observer):
    def entering(self, number):
        with ft._plane.changed:
            held.set()
            hold.wait(120)
holding = Holding()
ft._engine._observers.attach(holding)
results = []
thread = threading.Thread(target=lambda: results.append(ft.barrier()))
thread.start()
held.wait(120)
print(sorted(int(item) for item in DataLoader([1, 2, 3], num_workers=2)), flush=True)
child = os.fork()
if child == 0:
    try:
        ft.barrier()
    except ConfigError as error:
        print("forked from a worker" in str(error), flush=True)
    ft.leave()
    ft.close()
    sys.exit(7)  # with the handlers of atexit
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
hold.set()
thread.join(120)
print(results, ft.barrier() is Status.NO_NEED)
ft.close()
"""
    expected = ["[1, 2, 3]", "True", "7", "[<Status.NO_NEED: 'no_need'>] True"]
    code, said, errors = forked(nursery, tmp_path, program)
    assert (code, said) == (0, expected), errors


def test_after_a_close_everything_says_so_in_this_packages_own_words() -> None:
    with company(1) as one:
        [ft] = one.members
        ft.close()
        with pytest.raises(FTLibError, match="closed"):
            ft.register_state(model=nn.Linear(2, 2))
        with pytest.raises(FTLibError, match="part is over"):
            ft.manual_join("127.0.0.1:1")
        assert ft.allreduce_average(torch.ones(1)) is Status.ABORT
