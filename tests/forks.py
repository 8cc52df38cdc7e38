"""A plugin of pytest: several processes run the tests, all forked from one that has collected them.

    python -m pytest -p tests.forks --forks=4 ...

Processes that start anew, as those of pytest-xdist do, each import torch and collect every test: four seconds of a processor.
Here that happens once. The first process then hands out one test after the other, and reports what it is told. With
``--until`` it begins none after that moment: those that are left over count as skipped. As they are not to be the same ones
each time, ``--turn`` says which test is the first.
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
from collections.abc import Iterable
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, NoReturn

import pytest

from ftlib.common.processes import describe_exit, die_with_parent, settle_autograd

LATE = "not begun: the time that was given to all tests was over"
"""Why a test counts as skipped that had no time to begin."""
_CRASH = "crash"
"""The file with the stacks of a child that crashed."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", type=int, default=0, metavar="N", help="run the tests in N processes (0: in this one)")
    parser.addoption("--until", type=float, default=math.inf, metavar="T", help="begin none later (seconds since 1970)")
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
        self._queue = _Queue(session.items)
        self._children: dict[Connection, _Child] = {}
        self._forked = 0
        self._directory = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]

    def run(self, count: int) -> None:
        """Until all tests have ended."""
        for _ in range(count):
            self._fork()
        while self._children:
            for connection in wait(list(self._children)):
                assert isinstance(connection, Connection)
                self._serve(connection)
                if self._session.shouldfail:
                    raise self._session.Failed(self._session.shouldfail)
                if self._session.shouldstop:
                    raise self._session.Interrupted(self._session.shouldstop)

    def close(self) -> None:
        """End whoever is left."""
        for child in self._children.values():
            os.kill(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)

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
        self._children[ours] = _Child(pid, directory)

    def _serve(self, connection: Connection) -> None:
        child = self._children[connection]
        ended = False
        try:
            told = connection.recv()
            if told is None:
                self._hand_out(connection, child)
            else:
                self._show(child, *told)
        except (EOFError, ConnectionError):
            ended = True
        if ended:  # not while the exception is handled: whoever is forked then shows it as the cause of all of its own
            self._ended(connection, child)

    def _hand_out(self, connection: Connection, child: _Child) -> None:
        if time.time() > self._until:
            self._leave_out()
        under_way = [index for other in self._children.values() if other is not child for index in other.has]
        index = self._queue.take(child.last, under_way)
        if index is not None:
            child.last = index
            child.has.append(index)
        connection.send(index)

    def _leave_out(self) -> None:
        """Report those that will not be begun."""
        for item in (self._session.items[index] for index in self._queue.leave()):
            file, line, _ = item.location
            report = pytest.TestReport(
                item.nodeid, item.location, {}, "skipped", (file, line or 0, f"Skipped: {LATE}"), "setup"
            )
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
                child.has.pop(0)
                self._hook.pytest_runtest_logfinish(**told)
            case "warning":
                self._hook.pytest_warning_recorded.call_historic(kwargs=told)

    def _ended(self, connection: Connection, child: _Child) -> None:
        """It was told that there is nothing more to do, or a test ended it: then another one takes its place."""
        del self._children[connection]
        connection.close()
        code = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
        if child.has:
            guilty, *rest = child.has
            self._queue.give_back(rest)
            item = self._session.items[guilty]
            text = f"the process that ran this test ended: {describe_exit(code)}\n{child.last_words()}"
            report = pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")
            self._hook.pytest_runtest_logreport(report=report)
            self._hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
            self._fork()
        elif code:
            raise RuntimeError(f"a process that had run tests failed at its end: {describe_exit(code)}")


class _Child:
    """One process. ``has``: tests that it was given and has not ended, in order; ``last``: the newest of all it was given."""

    def __init__(self, pid: int, directory: Path) -> None:
        self.pid = pid
        self.has: list[int] = []
        self.last: int | None = None
        self._crash = directory / _CRASH

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
    faulthandler.enable((directory / _CRASH).open("w"))
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
