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
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection, Pipe, wait
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
"""Seconds that it has for that."""


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


class _Crew:
    """All children, seen from the process that collected the tests."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._hook = session.config.hook
        self._until: float = session.config.getoption("until")
        self._end: float = session.config.getoption("end")
        self._starved: bool = session.config.getoption("starved")
        self._queue = _Queue(session.items)
        self._children: dict[int, _Child] = {}
        """By process ID."""
        self._forked = 0
        self._began = time.monotonic()
        self._directory = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]

    def run(self, count: int) -> None:
        """Until all tests have ended."""
        signal.signal(signal.SIGTERM, self._terminated)
        for _ in range(count):
            self._fork()
        while self._children:
            left = max(0.0, self._end - time.time()) if self._end < math.inf else None
            ready = set(wait([each for child in self._children.values() for each in child.watched], left))
            for child in [child for child in self._children.values() if not ready.isdisjoint(child.watched)]:
                self._serve(child, ended=child.ended in ready)
                if self._session.shouldfail:
                    raise self._session.Failed(self._session.shouldfail)
                if self._session.shouldstop:
                    raise self._session.Interrupted(self._session.shouldstop)
            if time.time() > self._end:
                self._leave_out()
                for child in list(self._children.values()):
                    self._give_up(child)

    def close(self) -> None:
        """End whoever is left."""
        for child in self._children.values():
            child.kill()
            child.close()

    def _terminated(self, _number: int, _frame: object) -> None:
        """Somebody ends all of it: what was under way may be why."""
        now = time.monotonic()
        busy = [child for child in self._children.values() if child.has]
        under_way = [f"{self._session.items[child.has[0]].nodeid} for {now - child.since:.0f} s" for child in busy]
        print(f"\nSIGTERM after {now - self._began:.0f} s; under way:", *under_way, sep="\n  ", flush=True)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

    def _fork(self) -> None:
        ours, theirs = Pipe()
        parent, directory = os.getpid(), self._directory / f"fork{self._forked}"
        self._forked += 1
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if not pid:
            ours.close()
            _work(self._session, theirs, parent, directory)
        theirs.close()
        self._children[pid] = _Child(pid, ours, directory)

    def _serve(self, child: _Child, *, ended: bool) -> None:
        """Take what it has told. ``ended``: its process has; that its connection ends is no sign of it, nor is that it does
        not, as processes that a test has forked and left have it, too."""
        for told in child.told():
            if told is None:
                self._hand_out(child)
            else:
                self._show(child, *told)
        if ended:
            self._ended(child)

    def _hand_out(self, child: _Child) -> None:
        if time.time() > self._until:
            self._leave_out()
        under_way = [index for other in self._children.values() if other is not child for index in other.has]
        index = self._queue.take(child.last, under_way)
        if index is not None:
            child.take(index)
        with contextlib.suppress(ConnectionError):  # it has ended, as will be seen
            child.connection.send(index)

    def _leave_out(self) -> None:
        """Report those that will not be begun."""
        for index in self._queue.leave():
            self._skipped(index, LATE)

    def _give_up(self, child: _Child) -> None:
        """Its test should have ended by now."""
        child.tell()
        hung, child.has = child.has, []
        self._ended(child)
        for index in hung:
            if self._starved:
                self._skipped(index, STARVED)
            else:
                self._failed(index, f"this test had not ended when the time of all was over: it hangs\n{child.last_words()}")

    def _skipped(self, index: int, why: str) -> None:
        file, line, _ = self._session.items[index].location
        self._report(index, "skipped", (file, line or 0, f"Skipped: {why}"), "setup")

    def _failed(self, index: int, text: str) -> None:
        self._report(index, "failed", text, "call")

    def _report(self, index: int, outcome: Any, text: Any, when: Any) -> None:
        item = self._session.items[index]
        report = pytest.TestReport(item.nodeid, item.location, {}, outcome, text, when)
        self._hook.pytest_runtest_logreport(report=report)
        self._hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def _show(self, child: _Child, kind: str, told: dict[str, Any]) -> None:
        match kind:
            case "start":
                self._hook.pytest_runtest_logstart(**told)
            case "report":
                report = self._hook.pytest_report_from_serializable(config=self._session.config, data=told)
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
        if child.has:
            guilty, *rest = child.has
            self._queue.give_back(rest)
            self._failed(guilty, f"the process that ran this test ended: {describe_exit(code)}\n{child.last_words()}")
            self._fork()
        elif code and not child.given_up:
            raise RuntimeError(f"a process that had run tests failed at its end: {describe_exit(code)}")


class _Child:
    """One process. ``has``: tests that it was given and has not ended, in order; ``last``: the newest of all it was given."""

    def __init__(self, pid: int, connection: Connection, directory: Path) -> None:
        self.pid = pid
        self.connection = connection
        self.ended = os.pidfd_open(pid)
        """Is ready once the process has ended."""
        self.has: list[int] = []
        self.last: int | None = None
        self.since = 0.0
        """When the test that runs began, by ``time.monotonic``."""
        self.given_up = False
        self._says_no_more = False
        self._crash = directory / _CRASH

    @property
    def watched(self) -> list[Connection | int]:
        """What is ready when there is something to do."""
        return [self.ended] if self._says_no_more else [self.connection, self.ended]

    def told(self) -> Iterator[Any]:
        """What nobody has read yet; see ``_Reporter``, and None where it asks for a test."""
        try:
            while self.connection.poll():
                yield self.connection.recv()
        except (EOFError, ConnectionError):
            self._says_no_more = True

    def take(self, index: int) -> None:
        """It is given this test."""
        if not self.has:
            self.since = time.monotonic()
        self.last = index
        self.has.append(index)

    def finished(self) -> None:
        """The test that ran has ended."""
        self.has.pop(0)
        self.since = time.monotonic()

    def tell(self) -> None:
        """End it, once it has written the stacks of its threads."""
        os.kill(self.pid, _TELL)
        wait([self.ended], _TELLS)
        self.kill()

    def kill(self) -> None:
        self.given_up = True
        os.kill(self.pid, signal.SIGKILL)

    def close(self) -> int:
        """The exit code of a process that has ended, or does now."""
        self.connection.close()
        os.close(self.ended)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def last_words(self) -> str:
        """The stacks of all its threads, if a signal such as SIGSEGV ended it."""
        with contextlib.suppress(OSError):
            return self._crash.read_text()
        return ""


def _work(session: pytest.Session, connection: Connection, parent: int, directory: Path) -> NoReturn:
    """The life of a child."""
    code = 1
    try:
        die_with_parent(parent)
        _settle(session.config, directory)
        session.config.pluginmanager.register(_Reporter(session.config, connection))
        index = _next(connection)
        while index is not None:
            item, after = session.items[index], _After(session, connection)
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
    settle_autograd()
    config._tmp_path_factory._basetemp = directory  # type: ignore[attr-defined]
    capture = config.pluginmanager.get_plugin("capturemanager")
    capture.stop_global_capturing()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)  # what a terminal would be shown here its parent shows
    os.close(nowhere)
    capture.start_global_capturing()
    capture.suspend_global_capture()


def _next(connection: Connection) -> int | None:
    """Ask for a test."""
    connection.send(None)
    index: int | None = connection.recv()
    return index


class _After:
    """The item after the one that runs, for pytest, which does not tear down what both need. It is asked for as late as that:
    whoever is in the middle of a long test keeps no other one from being run elsewhere."""

    def __init__(self, session: pytest.Session, connection: Connection) -> None:
        self._session = session
        self._connection = connection

    @functools.cached_property
    def index(self) -> int | None:
        return _next(self._connection)

    def listchain(self) -> list[Any]:
        """See ``pytest.Item``."""
        return [] if self.index is None else self._session.items[self.index].listchain()


class _Reporter:
    """Tells the first process what becomes of tests here."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config = config
        self._connection = connection

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._connection.send(("start", {"nodeid": nodeid, "location": location}))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        told = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._connection.send(("report", told))

    def pytest_runtest_logfinish(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._connection.send(("finish", {"nodeid": nodeid, "location": location}))

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any) -> None:
        told = warning_message
        text = UserWarning(f"{told.category.__name__}: {told.message}")  # any warning itself may not be pickled
        plain = warnings.WarningMessage(text, UserWarning, told.filename, told.lineno)
        what = {"warning_message": plain, "when": when, "nodeid": nodeid, "location": location}
        self._connection.send(("warning", what))
