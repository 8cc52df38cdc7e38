"""``Launcher``: functions in workers that real agents start, over local processes; what they return, raise and write."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import re
import signal
import socket
import sys
import threading
import warnings
from collections import Counter
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

from ftlib import AgentFailedError, ConfigError, Launcher, WorkerFailedError
from ftlib.launch.processes.process import descendants
from tests.harness.basics import TIMEOUT, eventually
from tests.launch.launching import Kept, here, kill, launcher, mark, no_child_is_left, wait_for

pytestmark = pytest.mark.process


class OwnError(Exception):
    """Of the caller's program."""


def variables(*names: str) -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in names}


def test_it_returns_what_the_workers_return_by_host_and_by_rank() -> None:
    names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE")
    with no_child_is_left():
        result = launcher("localhost", "127.0.0.1", workers=[1, 2]).run(variables, *names)
    seen = [tuple(result.rank(rank).values()) for rank in range(3)]
    assert seen == [("0", "0", "0", "1", "3"), ("1", "0", "1", "2", "3"), ("2", "1", "1", "2", "3")]
    assert result.index("127.0.0.1", 1) == result.rank(2) == result.results["127.0.0.1"][1]
    assert not result.failures
    with pytest.raises(IndexError):
        result.index("localhost", 1)


def test_closures_partials_and_lambdas_travel() -> None:
    number = 7
    result = launcher(workers=1).run(functools.partial(lambda a, b=1: a * b + number, b=3), 2)
    assert result.rank(0) == 13


def raise_at(rank: int, path: Path) -> None:
    if int(os.environ["RANK"]) == rank:
        raise OwnError("it went wrong")
    mark(path, "loops", os.getpid())
    while True:
        pass


def test_the_exception_of_a_worker_is_raised_while_others_loop(tmp_path: Path) -> None:
    with no_child_is_left(), pytest.raises(OwnError, match="it went wrong") as caught:
        launcher().run(raise_at, 1, tmp_path)
    assert type(caught.value) is OwnError
    assert "in raise_at" in str(caught.value.__cause__)
    assert any("rank 1 on localhost (pid" in note for note in caught.value.__notes__)


class Stubborn(Exception):
    """Cannot be pickled."""

    def __reduce__(self) -> str:
        raise TypeError("never")


def raise_stubborn() -> None:
    raise Stubborn("text of it")


def test_an_exception_that_cannot_travel_is_text() -> None:
    with pytest.raises(WorkerFailedError, match="Stubborn: text of it") as caught:
        launcher(workers=1).run(raise_stubborn)
    assert "in raise_stubborn" in str(caught.value.__cause__)
    assert (caught.value.rank, caught.value.local_rank, caught.value.host) == (0, 0, "localhost")


def end_by(how: str) -> None:
    match how:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault":
            import faulthandler

            faulthandler._sigsegv()
        case "_exit":
            os._exit(7)
        case "exit":
            sys.exit(3)


@pytest.mark.parametrize(
    ("how", "number", "code", "text"),
    [
        ("kill", signal.SIGKILL, None, "SIGKILL"),
        ("segfault", signal.SIGSEGV, None, "SIGSEGV"),
        ("_exit", None, 7, "exit code 7"),
        ("exit", None, 3, "exit code 3"),
    ],
)
def test_other_ends_name_the_signal_or_the_code(how: str, number: int | None, code: int | None, text: str) -> None:
    with pytest.raises(WorkerFailedError, match=text) as caught:
        launcher(workers=1).run(end_by, how)
    assert (caught.value.signal, caught.value.code) == (number, code)


def test_sys_exit_0_is_no_failure() -> None:
    assert launcher(workers=1).run(sys.exit, 0).rank(0) is None


def test_an_argument_that_cannot_be_pickled_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"argument 2 \(lock\).*cannot be sent"):
        launcher().start(print, 1, threading.Lock())


def talk() -> None:
    print("on stdout")
    print("on stderr", file=sys.stderr)
    os.write(1, b"natively\n")
    os.system("echo by a child")
    logging.getLogger("mine").warning("a %s record", "log")
    warnings.warn("careful", stacklevel=1)
    for number in range(2000):
        print(f"line {number}")


def test_all_lines_are_handled_before_run_returns(tmp_path: Path) -> None:
    kept = Kept()
    launcher(log_dir=tmp_path).set_logging_handlers(lambda: [kept]).run(talk)
    for rank in range(2):
        out = kept.texts(local_rank=rank, stream="stdout")
        assert {"on stdout", "natively", "by a child"} < set(out)
        assert [line for line in out if line.startswith("line")] == [f"line {number}" for number in range(2000)]
        assert "on stderr" in kept.texts(rank=rank, stream="stderr", levelno=logging.ERROR)
        assert kept.texts(rank=rank, stream="logging", name="mine", levelno=logging.WARNING) == ["a log record"]
        assert any("careful" in text for text in kept.texts(rank=rank, levelno=logging.WARNING, name="py.warnings"))
        assert (tmp_path / f"localhost-{rank}.log").read_text().count("line") == 2000
    assert {each.hostname for each in kept.kept} == {"localhost"}


def sleep_long(path: Path) -> None:
    mark(path, f"up-{os.environ['RANK']}", os.getpid())
    wait_for(path / "never")


def test_a_killed_agent_is_named(tmp_path: Path) -> None:
    with no_child_is_left():
        launch = launcher().start(sleep_long, tmp_path)
        here(tmp_path, "up-0")
        worker = here(tmp_path, "up-1")
        steward = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
        kill(steward)
        with pytest.raises(AgentFailedError, match="localhost") as caught:
            launch.wait(TIMEOUT)
        assert caught.value.host == "localhost"


def test_a_command_that_outlives_its_agent_is_ended(tmp_path: Path) -> None:
    """Also where the launch ends with that agent: it is over once the command is."""
    lingering = ["sh", "-c", '"$@"; exec >&- 2>&-; exec sleep 300', "{host}"]
    before = descendants(os.getpid())
    launch = launcher(workers=1, transport=lingering).start(sleep_long, tmp_path)
    kill(int(Path(f"/proc/{here(tmp_path, 'up-0')}/stat").read_text().rpartition(")")[2].split()[1]))
    with pytest.raises(AgentFailedError):
        launch.wait(TIMEOUT)
    assert not descendants(os.getpid()) - before


def test_a_command_that_there_is_not_is_named() -> None:
    with pytest.raises(AgentFailedError, match=r"localhost.*/nowhere/python"):
        launcher(python="/nowhere/python").run(print)


def test_cancel_ends_it(tmp_path: Path) -> None:
    with no_child_is_left():
        launch = launcher(grace=0.5).start(sleep_long, tmp_path)
        here(tmp_path, "up-0")
        assert not launch.done
        launch.cancel()
        with pytest.raises(CancelledError):
            launch.wait(TIMEOUT)
        assert launch.done


async def test_launches_are_awaitable_and_run_beside_each_other() -> None:
    launches = [launcher(workers=1).start(pow, 2, number) for number in range(3)]
    results = await asyncio.gather(*launches)
    assert [result.rank(0) for result in results] == [1, 2, 4]


async def test_a_launch_that_is_awaited_for_too_long_is_cancelled(tmp_path: Path) -> None:
    with no_child_is_left():
        launch = launcher(grace=0.5).start(sleep_long, tmp_path)
        here(tmp_path, "up-0")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(launch, 0.05)
        with pytest.raises(CancelledError):
            launch.wait(TIMEOUT)


async def test_who_shields_a_launch_gives_up_waiting_alone(tmp_path: Path) -> None:
    launch = launcher(workers=1).start(go_on, tmp_path)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(launch), 0.05)
    (tmp_path / "go").touch()
    assert (await asyncio.wait_for(launch, TIMEOUT)).rank(0) == "went on"


def go_on(path: Path) -> str:
    wait_for(path / "go")
    return "went on"


def stop_iterating() -> None:
    raise StopIteration("of the worker")


async def test_a_stop_iteration_ends_an_await_and_is_a_cause() -> None:
    with pytest.raises(RuntimeError) as caught:
        await asyncio.wait_for(launcher(workers=1).start(stop_iterating), TIMEOUT)
    assert isinstance(caught.value.__cause__, StopIteration) and caught.value.__cause__.args == ("of the worker",)


def bound_at() -> str:
    return os.environ["FTLIB_BIND"].rpartition(":")[0]


def test_where_the_caller_was_logged_in_from_is_no_address_of_its_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.9 50000 192.0.2.1 22")
    assert launcher(workers=1).run(bound_at).rank(0) == "127.0.0.1"


def test_settings_that_do_not_fit_are_refused() -> None:
    for wrong in ({"backend": "mpi"}, {"backend": "gloo", "min_workers": 1}, {"results": "json"}, {"hostnames": "node1"}):
        with pytest.raises(ConfigError):
            Launcher(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="twice"):
        launcher("localhost", "localhost").start(print)


def test_a_working_directory_that_was_removed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    for start in (lambda: launcher().start(print), lambda: launcher().start_program(["true"])):
        with pytest.raises(ConfigError, match="the working directory was removed"):
            start()


def test_a_name_that_is_looked_up_for_ever_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answer = threading.Event(), threading.Event()
    real = socket.getaddrinfo

    def look_up(host: Any, *args: Any, **more: Any) -> Any:
        if host == "elsewhere":
            asked.set()
            answer.wait(TIMEOUT)
        return real(host, *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    launch = launcher("elsewhere", transport=["env", "HOST={host}"]).start(os.getpid)
    try:
        assert asked.wait(TIMEOUT)
        launch.cancel()
        with pytest.raises(CancelledError):
            launch.wait(TIMEOUT)
        assert not answer.is_set()
    finally:
        answer.set()


@pytest.mark.parametrize("count", [pytest.param(count, marks=pytest.mark.soak) for count in (3, 30)])
def test_launches_one_after_the_other_and_four_at_once_leave_nothing(count: int) -> None:
    def held() -> Counter[str]:
        files = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
        return Counter(re.sub(r"\d+", "N", name) for name in files if not name.endswith("/fd"))

    def threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("ftlib")]

    with no_child_is_left():
        launcher().run(os.getpid)
        eventually(lambda: not threads(), threads)
        before = held()
        for _ in range(count):
            assert len(set(launcher().run(os.getpid).results["localhost"])) == 2
        launches = [launcher().start(os.getpid) for _ in range(4)]
        assert len({pid for launch in launches for pid in launch.wait(TIMEOUT).results["localhost"]}) == 8
        eventually(lambda: not threads(), threads)
        assert not held() - before, "what tests before this one had may have gone meanwhile"
