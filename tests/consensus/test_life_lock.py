"""A process's end is known by its lock: whichever way it ends, before its memory is freed, and never while it lives on."""

from __future__ import annotations

import mmap
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from consensus.runtime.host.life_lock import watch_life
from consensus.runtime.host.parent_watcher import ParentWatcher
from consensus.runtime.host.robust_mutex import RobustMutex, Waited
from tests.harness.basics import TIMEOUT, eventually

from .group import address, agree, begin, members, peers
from .holder import Holder, holder

pytestmark = pytest.mark.process

LARGE = 400
"""MB whose release takes some 40 ms, a hundred times as long as the word of a lock."""
A_WHILE = 0.6
"""Seconds: longer than what is found of a lock is looked into."""
DUMPED = Path("/proc/sys/kernel/core_pattern")


class EndListener:
    """Hears of the end of a holder, and when."""

    def __init__(self, whose: Holder) -> None:
        self.parent = ParentWatcher(whose.pid)
        self.heard = threading.Event()
        self.at = 0.0
        self.first = False
        self._gone = select.poll()
        self._pidfd = os.pidfd_open(whose.pid)
        self._gone.register(self._pidfd, select.POLLIN)
        watch_life(whose.open(), self.parent, self._ended)

    def _ended(self) -> None:
        self.at = time.monotonic()
        self.first = not self._gone.poll(0)
        assert not self.heard.is_set(), "told twice"
        self.heard.set()

    def hears_first(self) -> None:
        """It is told before the process is gone for all others."""
        assert self.heard.wait(TIMEOUT)
        assert self.first
        assert self._gone.poll(TIMEOUT * 1e3)


def kill(process: Holder) -> None:
    os.kill(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("end", [kill, lambda process: process.tell("leave")], ids=["SIGKILL", "os._exit"])
def test_an_end_is_told_before_memory_is_freed(end: Callable[[Holder], None]) -> None:
    with holder(LARGE) as process:
        listener = EndListener(process)
        end(process)
        listener.hears_first()


def test_the_interpreter_s_end_is_told() -> None:
    with holder() as process:
        listener = EndListener(process)
        process.tell("exit")
        assert listener.heard.wait(TIMEOUT)


def test_a_release_is_no_end() -> None:
    with holder() as process:
        listener = EndListener(process)
        mutex = RobustMutex(mmap.mmap(process.open(), RobustMutex.SIZE))
        assert mutex.wait(0.01) is Waited.TIMEOUT
        process.tell("release")
        assert mutex.wait(TIMEOUT) is Waited.UNLOCKED
        kill(process)
        process.process.wait(TIMEOUT)
        assert not listener.heard.wait(A_WHILE)


def test_a_forked_child_neither_holds_it_nor_lets_go() -> None:
    with holder(LARGE) as process:
        listener = EndListener(process)
        process.tell("fork")
        assert process.line() == "done"
        assert not listener.heard.wait(A_WHILE)
        process.tell("leave_a_child")
        assert process.line() == "done"
        kill(process)
        assert listener.heard.wait(TIMEOUT)


def test_a_thread_that_ends_is_no_process_that_does() -> None:
    """Nor is a main thread that has ended while others go on: to the kernel that is a zombie."""
    for order in ("this one alone", "main too"):
        with holder(-1) as process:
            listener = EndListener(process)
            process.tell(order)
            assert not listener.heard.wait(A_WHILE)
            assert process.process.poll() is None
            assert not listener.parent.ending()
            kill(process)
            eventually(listener.parent.ending, "it is seen ending")


def test_a_process_whose_main_thread_has_ended_is_told_of_later() -> None:
    with holder() as process:
        listener = EndListener(process)
        process.tell("end_the_main_thread")
        assert not listener.heard.wait(A_WHILE)
        kill(process)
        assert listener.heard.wait(TIMEOUT)


def test_a_stopped_process_has_not_ended() -> None:
    with holder() as process:
        listener = EndListener(process)
        os.kill(process.pid, signal.SIGSTOP)
        eventually(listener.parent.held, "it is stopped")
        assert not listener.heard.wait(A_WHILE)
        assert not listener.parent.ending()
        os.kill(process.pid, signal.SIGCONT)
        os.kill(process.pid, signal.SIGSTOP)
        kill(process)
        assert listener.heard.wait(TIMEOUT)


def test_a_watcher_that_dies_takes_nothing_along() -> None:
    """As an agent's process."""
    with holder() as process:
        pid = os.fork()
        if pid == 0:
            watch_life(process.open(), ParentWatcher(process.pid), lambda: None)
            time.sleep(60.0)
        time.sleep(0.1)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        listener = EndListener(process)
        assert not listener.heard.wait(A_WHILE)
        kill(process)
        assert listener.heard.wait(TIMEOUT)


@pytest.mark.skipif(DUMPED.read_text()[:1] in "/|", reason="core dumps go elsewhere here")
def test_a_core_dump_comes_before_the_end_and_is_seen(tmp_path: Path) -> None:
    """No thread ends before it is written: their memory is in it."""
    with holder(LARGE, directory=tmp_path, prefix=("prlimit", "--core=unlimited:unlimited")) as process:
        listener = EndListener(process)
        assert not listener.parent.dumps_core()
        process.tell("abort")
        eventually(listener.parent.dumps_core, "it is seen")
        listener.hears_first()
        assert process.process.wait(TIMEOUT) == -signal.SIGABRT
        assert any(file.stat().st_size > LARGE << 20 for file in tmp_path.iterdir()), "nothing was dumped"


# With all that belongs to it


def test_the_others_are_told_before_memory_is_freed() -> None:
    settings = {"job": "test", "initial_size": 3, "exclude_after": 60.0}
    with members(2, **settings) as group, peers(1, introducers=(address(group[0]),), **settings) as [peer]:
        agree(group, 3)
        peer.tell("touch 1000")
        gone = select.poll()
        gone.register(os.pidfd_open(peer.process.pid), select.POLLIN)
        began = time.monotonic()
        peer.kill()
        eventually(lambda: "its training process ended" in "".join(n["text"] for n in group[0].status()["notes"]), "it is told")
        told = time.monotonic() - began
        assert gone.poll(TIMEOUT * 1e3)
        assert told < 0.75 * (time.monotonic() - began), "no sooner than by its sockets"
        agree(group, 2)


def test_another_program_in_its_place_is_an_end() -> None:
    settings = {"job": "test", "initial_size": 2, "exclude_after": 60.0}
    founder = begin(**settings)
    try:
        with peers(1, introducers=(address(founder),), **settings) as [peer]:
            agree([founder], 2)
            peer.tell("execute sleep")
            agree([founder], 1)
            assert peer.process.poll() is None
    finally:
        founder.stop()


def test_without_robust_mutexes_sockets_tell() -> None:
    settings = {"job": "test", "initial_size": 2, "exclude_after": 60.0}
    founder = begin(**settings)
    try:
        with peers(1, introducers=(address(founder),), no_robust_mutex=True, **settings) as [peer]:
            agree([founder], 2)
            peer.kill()
            agree([founder], 1)
    finally:
        founder.stop()


def test_who_is_ending_lets_others_go_first() -> None:
    """A zombie here: whoever has memory to free ends too soon to be looked at."""
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    parent = ParentWatcher(process.pid)
    parent.step_back()
    assert _niceness(process.pid) == os.getpriority(os.PRIO_PROCESS, 0), "it lives"
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    parent.step_back()
    assert _niceness(process.pid) >= 15
    if (group := Path(f"/proc/{process.pid}/autogroup")).exists():  # a kernel that shares by sessions
        assert group.read_text().split()[-1] == "15"
    process.wait()


def _niceness(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[16])
