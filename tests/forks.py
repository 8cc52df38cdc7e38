"""A plugin of pytest: several processes run the tests, all forked from one that has collected them.

    python -m pytest -p tests.forks --forks=4 ...

Processes that start anew, as those of pytest-xdist do, each import torch and collect every test: four seconds of a processor.
Here that happens once. The first process then hands out one test after the other, and reports what it is told. With
``--until`` it begins none after that moment: those that are left over count as skipped. As they are not to be the same ones
each time, ``--turn`` says which test is the first. With ``--end`` no test is waited for after that moment: it hangs, so it
fails, and the stacks of its threads say where.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import math
import os
import pickle
import signal
import socket
import struct
import sys
import time
import traceback
import warnings
from collections.abc import Iterable
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NoReturn

import pytest

from ftlib.common.processes import describe_exit, die_with_parent, settle_autograd

LATE = "not begun: the time that was given to all tests was over"
"""Why a test counts as skipped that had no time to begin."""
STARVED = "not ended: the time that was given to all tests was over"
"""The same, where it had begun and others came first."""
_CRASH = "crash"
"""The file with the stacks of a child that crashed, or hung."""
_TELL = signal.SIGRTMIN + 7
"""Has a child write its stacks. No test uses this one."""
_TELLS = 2.0
"""Seconds that all have for that."""
_ENDING = frozenset({signal.SIGINT, signal.SIGTERM})
_LENGTH = struct.Struct("!Q")
"""Of a value in bytes, before it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", type=int, default=0, metavar="N", help="run the tests in N processes (0: in this one)")
    parser.addoption("--until", type=float, default=math.inf, metavar="T", help="begin none later (seconds since 1970)")
    parser.addoption("--end", type=float, default=math.inf, metavar="T", help="a test that has not ended by then fails")
    parser.addoption("--starved", action="store_true", help="it counts as skipped instead: it had the processor last of all")
    parser.addoption("--turn", type=int, default=0, metavar="N", help="begin with the Nth test, and end with those before it")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    turn = config.getoption("turn") % max(len(items), 1)
    items[:] = items[turn:] + items[:turn]


def pytest_load_initial_conftests(args: list[str]) -> None:
    """Before anything imports torch: a fork of a process in which OpenMP has threads hangs where it uses them."""
    if any(argument.startswith("--forks") for argument in args):
        os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("forks"):
        config.pluginmanager.get_plugin("terminalreporter").showfspath = False  # tests of many files end in turns


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    count = min(session.config.getoption("forks"), len(session.items))
    collected = not session.testsfailed or session.config.option.continue_on_collection_errors
    if not count or not collected or session.config.option.collectonly:
        return None  # pytest's own loop does it, or says why not
    crew = _Crew(session)
    try:
        crew.run(count)
    finally:
        crew.close()
    return True


class _Queue:
    """Tests that nobody has begun. Those that use a fixture of their module stay in one process while others have work."""

    def __init__(self, items: Iterable[pytest.Item]) -> None:
        self._modules = {index: _module(item) for index, item in enumerate(items)}
        self._left = list(self._modules)

    def take(self, last: int | None, under_way: Iterable[int]) -> int | None:
        """The next one for a child that had ``last``, while its siblings have ``under_way``."""
        own = None if last is None else self._modules[last]
        taken = {self._modules[index] for index in under_way}
        siblings = (index for index in self._left if own is not None and self._modules[index] == own)
        free = (index for index in self._left if self._modules[index] is None or self._modules[index] not in taken)
        found = next(siblings, None)
        if found is None:
            found = next(free, self._left[0] if self._left else None)
        if found is not None:
            self._left.remove(found)
        return found

    def leave(self) -> list[int]:
        """Those that nobody has begun, which nobody will begin now."""
        left, self._left = self._left, []
        return left

    def give_back(self, indices: Iterable[int]) -> None:
        """Their process ended before it began them."""
        self._left[:0] = indices


def _module(item: pytest.Item) -> str | None:
    """The module of a test, where it shares one of that module's fixtures with others."""
    known = item._fixtureinfo.name2fixturedefs.values() if hasattr(item, "_fixtureinfo") else ()
    return item.nodeid.partition("::")[0] if any(each[-1].scope in {"module", "class"} for each in known) else None


class _Line:
    """One end of a connection between a child and its parent, for values of any kind.

    Its reader never waits for the rest of a value: whoever sends one may be killed in the middle of it, and processes that a
    test has forked and left behind may keep the connection open.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = bytearray()
        self.ended = False
        """Whether the other end is closed."""

    @classmethod
    def pair(cls) -> tuple[_Line, _Line]:
        """Both ends."""
        ours, theirs = socket.socketpair()
        return cls(ours), cls(theirs)

    def fileno(self) -> int:
        """It can be read when there is something to ``take``."""
        return self._sock.fileno()

    def send(self, value: object) -> None:
        """Send ``value``; ConnectionError if the other end is closed."""
        data = pickle.dumps(value)
        self._sock.sendall(_LENGTH.pack(len(data)) + data)

    def take(self) -> list[Any]:
        """The values that have come, without waiting."""
        try:
            while more := self._sock.recv(1 << 16, socket.MSG_DONTWAIT):
                self._buffer += more
            self.ended = True
        except BlockingIOError:
            pass
        except ConnectionError:
            self.ended = True
        values = []
        while len(self._buffer) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._buffer)[0]
            if len(self._buffer) < end:
                break
            values.append(pickle.loads(self._buffer[_LENGTH.size : end]))
            del self._buffer[:end]
        return values

    def wait_for_one(self) -> Any:
        """The next value. EOFError if the other end is closed."""
        while not (values := self.take()):
            if self.ended:
                raise EOFError
            wait([self._sock])
        [value] = values
        return value

    def close(self) -> None:
        self._sock.close()


class _Crew:
    """All children, seen from the process that collected the tests."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._hook = session.config.hook
        option = session.config.getoption
        self._end: float = option("end")
        self._until = min(option("until"), self._end)
        self._starved: bool = option("starved")
        self._queue = _Queue(session.items)
        self._children: dict[int, _Child] = {}
        """By process ID."""
        self._forked = 0
        self._began = time.monotonic()
        self._directory = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        self._before = signal.signal(signal.SIGTERM, self._terminated)

    def run(self, count: int) -> None:
        """Until all tests have ended."""
        for _ in range(count):
            self._fork()
        while self._children and time.time() < self._end:
            self._listen(self._end - time.time())
        if self._children:
            self._give_up()

    def close(self) -> None:
        """End whoever is left."""
        for child in self._children.values():
            child.kill()
            child.close()
        signal.signal(signal.SIGTERM, self._before)

    def _terminated(self, _number: int, _frame: object) -> None:
        """Somebody ends all of it: what was under way may be why."""
        now = time.monotonic()
        busy = [child for child in self._children.values() if child.running is not None]
        under_way = [f"{self._session.items[child.has[0]].nodeid} for {now - child.since:.0f} s" for child in busy]
        print(f"\nSIGTERM after {now - self._began:.0f} s; under way:", *under_way, sep="\n  ", flush=True)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

    def _fork(self) -> None:
        ours, theirs = _Line.pair()
        parent, directory = os.getpid(), self._directory / f"fork{self._forked}"
        self._forked += 1
        sys.stdout.flush()
        sys.stderr.flush()
        signals = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)  # a child must not end as this process would
        pid = os.fork()
        if not pid:
            _work(self._session, theirs, ours, parent, directory)
        self._children[pid] = _Child(pid, ours, directory)
        theirs.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)

    def _listen(self, timeout: float) -> None:
        """Wait until a child has told something or has ended, and do what follows from that."""
        watched = [each for child in self._children.values() for each in child.watched]
        ready = set(wait(watched, None if timeout == math.inf else timeout))
        for child in [child for child in self._children.values() if not ready.isdisjoint(child.watched)]:
            ended = child.ended in ready
            for told in child.line.take():
                if told is not None:
                    self._show(child, *told)
                elif not ended:
                    self._hand_out(child)
            if ended:
                self._ended(child)
            if self._session.shouldfail:
                raise self._session.Failed(self._session.shouldfail)
            if self._session.shouldstop:
                raise self._session.Interrupted(self._session.shouldstop)

    def _hand_out(self, child: _Child) -> None:
        if time.time() > self._until:
            self._leave_out(self._queue.leave())
        under_way = [index for other in self._children.values() if other is not child for index in other.has]
        index = self._queue.take(child.last, under_way)
        if index is not None:
            child.take(index)
        with contextlib.suppress(ConnectionError):  # it has ended, as will be seen
            child.line.send(index)

    def _give_up(self) -> None:
        """All tests should have ended by now. Those that have not tell where they are, and are ended."""
        self._until = -math.inf
        for child in self._children.values():
            os.kill(child.pid, _TELL)
        deadline = time.monotonic() + _TELLS
        while self._children and (left := deadline - time.monotonic()) > 0:
            self._listen(left)
        self._leave_out(self._queue.leave())
        for child in list(self._children.values()):
            child.kill()
            del self._children[child.pid]
            child.close()
            running, has = child.running, child.has
            if running is not None and self._starved:
                self._report(has[0], "skipped", self._skip(has[0], STARVED), running)
            elif running is not None:
                text = f"this test had not ended when the time of all was over: it hangs\n{child.last_words()}"
                self._report(has[0], "failed", text, running)
            self._leave_out(has if running is None else has[1:])

    def _leave_out(self, indices: Iterable[int]) -> None:
        """Report these, which will not be begun."""
        for index in indices:
            self._report(index, "skipped", self._skip(index, LATE), "setup")

    def _skip(self, index: int, why: str) -> tuple[str, int, str]:
        file, line, _ = self._session.items[index].location
        return file, line or 0, f"Skipped: {why}"

    def _report(self, index: int, outcome: Any, text: Any, when: Any) -> None:
        item = self._session.items[index]
        report = pytest.TestReport(item.nodeid, item.location, {}, outcome, text, when)
        self._hook.pytest_runtest_logreport(report=report)
        self._hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def _show(self, child: _Child, kind: str, told: dict[str, Any]) -> None:
        match kind:
            case "start":
                child.running = "call"
                self._hook.pytest_runtest_logstart(**told)
            case "report":
                report = self._hook.pytest_report_from_serializable(config=self._session.config, data=told)
                if report.when == "call":
                    child.running = "teardown"
                self._hook.pytest_runtest_logreport(report=report)
            case "finish":
                child.finished()
                self._hook.pytest_runtest_logfinish(**told)
            case "warning":
                self._hook.pytest_warning_recorded.call_historic(kwargs=told)

    def _ended(self, child: _Child) -> None:
        """It was told that there is nothing more to do, or a test ended it: then another one takes its place."""
        del self._children[child.pid]
        code = child.close()
        if not code and not child.has:
            return
        text = f"the process that ran this test ended: {describe_exit(code)}\n{child.last_words()}"
        left = child.has
        if child.running is not None:
            guilty, *left = left
            self._report(guilty, "failed", text, child.running)
        elif child.done is not None:
            self._report(child.done, "failed", text, "teardown")
        else:
            raise RuntimeError(f"a process that was to run tests failed at its start: {describe_exit(code)}")
        self._queue.give_back(left)
        self._fork()


class _Child:
    """One process. ``has``: tests that it was given and has not ended, in order; ``last``: the newest of all it was given."""

    def __init__(self, pid: int, line: _Line, directory: Path) -> None:
        self.pid = pid
        self.line = line
        self.ended = os.pidfd_open(pid)
        """Can be read once the process has ended. That the line ends is no sign of it, nor is that it does not."""
        self.has: list[int] = []
        self.last: int | None = None
        self.done: int | None = None
        """The newest test that it has ended."""
        self.running: str | None = None
        """What it does with the first of its tests, as reports call it; None if it has not begun that."""
        self.since = 0.0
        """When it was free for that test, by ``time.monotonic``."""
        self._crash = directory / _CRASH

    @property
    def watched(self) -> list[_Line | int]:
        """What can be read when there is something to do."""
        return [self.ended] if self.line.ended else [self.line, self.ended]

    def take(self, index: int) -> None:
        """It is given this test."""
        if not self.has:
            self.since = time.monotonic()
        self.last = index
        self.has.append(index)

    def finished(self) -> None:
        """The test that ran has ended."""
        self.done, self.running = self.has.pop(0), None
        self.since = time.monotonic()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def close(self) -> int:
        """The exit code of a process that has ended, or does now."""
        self.line.close()
        os.close(self.ended)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def last_words(self) -> str:
        """The stacks of all its threads, if a signal such as SIGSEGV ended it, or if it hung."""
        with contextlib.suppress(OSError):
            return self._crash.read_text()
        return ""


def _work(session: pytest.Session, line: _Line, parents: _Line, parent: int, directory: Path) -> NoReturn:
    """The life of a child."""
    code = 1
    try:
        parents.close()
        die_with_parent(parent)
        _settle(session.config, directory)
        session.config.pluginmanager.register(_Reporter(session.config, line))
        index = _next(line)
        while index is not None:
            item, after = session.items[index], _After(session, line)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            index = after.index
        code = 0
    except BaseException:  # noqa: BLE001 - nothing of a child goes on in what its parent was doing
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


def _settle(config: pytest.Config, directory: Path) -> None:
    """What it shares with its siblings since the fork becomes its own. ``directory``: for temporary files."""
    os.environ["PYTEST_XDIST_WORKER"] = directory.name  # the usual way to learn that one is not alone
    directory.mkdir(mode=0o700)
    stacks = (directory / _CRASH).open("w")
    faulthandler.enable(stacks)
    faulthandler.register(_TELL, stacks)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    settle_autograd()
    config._tmp_path_factory._basetemp = directory  # type: ignore[attr-defined]
    capture = config.pluginmanager.get_plugin("capturemanager")
    capture.stop_global_capturing()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)  # what a terminal would be shown here its parent shows
    os.close(nowhere)
    capture.start_global_capturing()
    capture.suspend_global_capture()


def _next(line: _Line) -> int | None:
    """Ask for a test."""
    line.send(None)
    index: int | None = line.wait_for_one()
    return index


class _After:
    """The item after the one that runs, for pytest, which does not tear down what both need. It is asked for as late as that:
    whoever is in the middle of a long test keeps no other one from being run elsewhere."""

    def __init__(self, session: pytest.Session, line: _Line) -> None:
        self._session = session
        self._line = line

    @functools.cached_property
    def index(self) -> int | None:
        return _next(self._line)

    def listchain(self) -> list[Any]:
        """See ``pytest.Item``."""
        return [] if self.index is None else self._session.items[self.index].listchain()


class _Reporter:
    """Tells the first process what becomes of tests here."""

    def __init__(self, config: pytest.Config, line: _Line) -> None:
        self._config = config
        self._line = line

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._line.send(("start", {"nodeid": nodeid, "location": location}))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        told = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._line.send(("report", told))

    def pytest_runtest_logfinish(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._line.send(("finish", {"nodeid": nodeid, "location": location}))

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any) -> None:
        told = warning_message
        text = UserWarning(f"{told.category.__name__}: {told.message}")  # any warning itself may not be pickled
        plain = warnings.WarningMessage(text, UserWarning, told.filename, told.lineno)
        what = {"warning_message": plain, "when": when, "nodeid": nodeid, "location": location}
        self._line.send(("warning", what))
