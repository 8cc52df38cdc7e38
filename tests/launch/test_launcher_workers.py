"""What workers of a ``Launcher`` find and leave: variables, a ready group, a warm process, large results, slow readers."""

from __future__ import annotations

import http.client
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from consensus import KeyRing
from ftlib import ConfigError, FTLib, WorkerFailedError
from ftlib.common.processes import opened_cuda
from ftlib.launch.director import director
from ftlib.lifecycle.supervisor_client import announce
from tests.harness.basics import TIMEOUT
from tests.launch.fake_driver import fake_smi, listed
from tests.launch.launching import Kept, here, launcher, mark, wait_for

pytestmark = pytest.mark.process


def variables(*names: str) -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in names}


def test_the_order_of_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's own, copied, of the file, extra, the launcher's: the later wins."""
    for name in ("V_COPIED", "V_FILE", "V_EXTRA", "RANK"):
        monkeypatch.setenv(name, "copied")
    (tmp_path / "env").write_text('V_FILE="of the file"\nexport V_EXTRA=file\nRANK=file\n# no\nV_HASH="a # b"\n')
    found = launcher(
        workers=1,
        transport=["env", "V_COPIED=host", "V_HOST=host", "FTLIB_IGNORED={host}"],
        copy_env_vars=["V_*", "RANK"],
        env_file=tmp_path / "env",
        extra_env_vars={"V_EXTRA": "extra", "RANK": "extra"},
    ).run(variables, "V_HOST", "V_COPIED", "V_FILE", "V_EXTRA", "V_HASH", "RANK")
    assert tuple(found.rank(0).values()) == ("host", "copied", "of the file", "extra", "a # b", "0")


def test_an_env_file_that_there_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        launcher(env_file=tmp_path / "nothing").start(print)


def test_the_working_directory_is_the_callers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert launcher(workers=1).run(os.getcwd).rank(0) == str(tmp_path)


def test_gpus_are_counted_as_the_workers_see_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller's choice among them is copied to the workers; the host's own does not count."""
    monkeypatch.setenv("PATH", fake_smi(tmp_path, listed(4)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3")
    way = ["env", "-u", "CUDA_VISIBLE_DEVICES", "V={host}"]
    assert len(launcher(workers="gpu", transport=way).run(os.getpid).ranks) == 2


def sum_of_ranks() -> float:
    distributed: Any = torch.distributed
    value = torch.tensor([float(distributed.get_rank())])
    distributed.all_reduce(value)
    return float(value)


def test_with_a_backend_the_group_is_ready() -> None:
    preload = ("torch",)  # once for both
    result = launcher("localhost:2", backend="gloo", preload=preload).run(sum_of_ranks)
    assert [result.rank(rank) for rank in range(2)] == [1.0] * 2


MEETS = """
import os, time, torch.distributed as distributed
from ftlib.launch.agent.group import open_group
connect, first = distributed.init_process_group, os.environ["RANK"] == "0"
def connects_late(*given, **more):
    connect(*given, **more)
    time.sleep(1.0)
    print(time.monotonic())
if first:
    distributed.init_process_group = connects_late
group = open_group("gloo", int(os.environ["MASTER"]), 60.0)
if not first:
    print(time.monotonic())
group.leave()
"""


@pytest.mark.soak
def test_no_function_begins_before_all_ranks_have_connected() -> None:
    """Else the end of a short one cuts off those that are still connecting."""
    with socket.create_server(("127.0.0.1", 0)) as store:
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.getsockname()[1]), "WORLD_SIZE": "2"}
        ranks = []
        for rank in range(2):
            environment = {**os.environ, **place, "RANK": str(rank), "MASTER": str(store.fileno() if rank == 0 else -1)}
            command = [sys.executable, "-c", MEETS]
            given: Any = {"env": environment, "pass_fds": [store.fileno()][rank:], "stdout": subprocess.PIPE, "text": True}
            ranks.append(subprocess.Popen(command, **given))
        first, second = (float(each.communicate(timeout=4 * TIMEOUT)[0]) for each in ranks)
    assert second > first


HANGS = """
import os, time, torch.distributed as distributed
from ftlib.launch.agent.group import open_group
connect = distributed.init_process_group
def connects(*given, **more):
    connect(*given, **more)
    if os.environ["RANK"] == "1":
        time.sleep(60.0)
distributed.init_process_group = connects
print("begins", flush=True)
input()
try:
    open_group("gloo", int(os.environ["MASTER"]), 5.0)
except TimeoutError as error:
    print(error)
"""


@pytest.mark.parametrize("started", [1, pytest.param(2, marks=pytest.mark.soak)], ids=["does not come", "does not connect"])
def test_whoever_is_missing_is_named(started: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as store:
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.getsockname()[1]), "WORLD_SIZE": "2"}
        ranks = []
        for rank in range(started):
            environment = {**os.environ, **place, "RANK": str(rank), "MASTER": str(store.fileno() if rank == 0 else -1)}
            given: Any = {"env": environment, "pass_fds": [store.fileno()][rank:], "text": True}
            given |= {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            ranks.append(subprocess.Popen([sys.executable, "-c", HANGS], **given))
        for each in ranks:  # none of them waits while another one still starts
            assert each.stdout is not None
            assert each.stdout.readline() == "begins\n"
        for each in reversed(ranks):
            assert each.stdin is not None
            each.stdin.write("\n")
            each.stdin.flush()
        told = ranks[0].communicate(timeout=4 * TIMEOUT)[0]
        for each in ranks[1:]:
            each.kill()
            each.communicate()
    what = "connected to all others" if started == 2 else "come to the store of rank 0"
    assert told.startswith(f"of 2 ranks, these have not {what} within 5 s: 1; ")


FAILS = """
import os, torch.distributed as distributed
from ftlib.launch.agent.group import open_group
def fails(*given, **more):
    raise RuntimeError("no such backend here")
distributed.init_process_group = fails
try:
    open_group("gloo", int(os.environ["MASTER"]), 60.0)
except RuntimeError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.soak
def test_what_fails_at_once_is_not_taken_for_the_absence_of_a_rank() -> None:
    with socket.create_server(("127.0.0.1", 0)) as store:
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.getsockname()[1]), "WORLD_SIZE": "2", "RANK": "0"}
        environment = {**os.environ, **place, "MASTER": str(store.fileno())}
        given: Any = {"env": environment, "pass_fds": [store.fileno()], "capture_output": True, "text": True}
        done = subprocess.run([sys.executable, "-c", FAILS], timeout=4 * TIMEOUT, check=True, **given)
    assert done.stdout == "RuntimeError no such backend here\n"


def ends_early(how: str) -> int:
    if int(os.environ["RANK"]) == 1:
        (sys.exit if how == "exit" else os._exit)(0)
    return 7


def test_who_exits_with_0_leaves_the_group() -> None:
    began = time.monotonic()
    result = launcher("localhost:2", backend="gloo", worker_timeout=4 * TIMEOUT, preload=("torch",)).run(ends_early, "exit")
    assert [result.rank(rank) for rank in range(2)] == [7, None]
    assert time.monotonic() - began < 4 * TIMEOUT


@pytest.mark.soak
def test_who_leaves_a_group_without_a_word_has_failed() -> None:
    with pytest.raises(WorkerFailedError, match=r"rank 1 on localhost.*before its function had returned"):
        launcher("localhost:2", backend="gloo", worker_timeout=4 * TIMEOUT, preload=("torch",)).run(ends_early, "_exit")


@pytest.mark.soak
def test_a_group_across_hosts() -> None:
    result = launcher("localhost", "127.0.0.1", workers=2, backend="gloo").run(sum_of_ranks)
    assert [result.rank(rank) for rank in range(4)] == [6.0] * 4


def plain_ddp() -> float:
    distributed: Any = torch.distributed
    distributed.init_process_group("gloo")
    try:
        return sum_of_ranks()
    finally:
        distributed.destroy_process_group()


@pytest.mark.soak
def test_plain_torch_code_finds_torchruns_variables() -> None:
    assert launcher(workers=2).run(plain_ddp).rank(1) == 1.0


def a_step() -> int:
    ft = FTLib.init()
    parameter = torch.nn.Parameter(torch.zeros(3))
    parameter.grad = torch.ones(3)
    ft.register_state(model=torch.nn.ParameterList([parameter]))
    while not ft.allreduce_average([parameter]):
        pass
    size = ft.size
    ft.barrier()
    ft.close()
    return size


@pytest.mark.soak
def test_ftlib_in_the_function_founds_across_the_hosts() -> None:
    result = launcher("localhost", "127.0.0.1", workers=1).run(a_step)
    assert [result.rank(rank) for rank in range(2)] == [2, 2]


def draw() -> float:
    return float(torch.rand(1, dtype=torch.float64))


@pytest.mark.soak
def test_torchs_generator_is_each_workers_own() -> None:
    found = launcher(workers=2, preload=("torch",)).run(draw)
    assert found.rank(0) != found.rank(1)


PRELOADED = """
import os
with open(os.environ["V_COUNT"], "a") as file:
    file.write(f"{os.getpid()}\\n")
"""
THREADED = PRELOADED + "import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"


def import_it(name: str) -> float:
    __import__(name)
    return float(np.random.random())  # noqa: NPY002 - the global generator is what must differ


@pytest.mark.parametrize(("text", "imports"), [(PRELOADED, 1), (THREADED, 4)], ids=["safe", "with a thread"])
def test_modules_are_imported_once_a_host_where_that_is_safe(tmp_path: Path, text: str, imports: int) -> None:
    (tmp_path / "warmed.py").write_text(text)
    count = tmp_path / "count"
    more = {"PYTHONPATH": str(tmp_path), "V_COUNT": str(count)}
    kept = Kept()
    started = launcher(workers=3, preload=("warmed", "numpy", "not_there_at_all"), extra_env_vars=more)
    result = started.set_logging_handlers(lambda: [kept]).run(import_it, "warmed")
    assert len(count.read_text().split()) == imports
    assert len(set(result.results["localhost"])) == 3, "each worker has random numbers of its own"
    said = kept.texts(local_rank=None)
    assert any("started 1 thread" in text for text in said) == (imports > 1), said


class Driver:
    """CUDA's, as far as it is asked."""

    def __init__(self, code: int) -> None:
        self.code = code

    def cuCtxGetCurrent(self, _: object) -> int:  # noqa: N802 - its name
        return self.code


CASES = [(False, 0, False), (True, 3, False), (True, 0, True), (True, 201, True)]


@pytest.mark.parametrize(("mapped", "code", "opened"), CASES)
def test_the_driver_is_asked_whether_cuda_is_open(tmp_path: Path, mapped: bool, code: int, opened: bool) -> None:
    """A process that is forked after that cannot use a GPU; that a library is loaded means nothing yet."""
    maps = tmp_path / "maps"
    maps.write_text("7f00-7f01 r-xp 00000000 00:00 0 /lib/libc.so.6\n")
    if mapped:
        maps.write_text(maps.read_text() + "7f02-7f03 r-xp 00000000 00:00 0 /lib/libcuda.so.580.1\n")
    asked: list[str] = []

    def load(path: str) -> Driver:
        asked.append(path)
        return Driver(code)

    assert opened_cuda(maps, load) == opened
    assert asked == ["/lib/libcuda.so.580.1"] * mapped


OPENS = PRELOADED + "import torch; torch.ones(1, requires_grad=True).sum().backward()\n"


def on_the_gpu(name: str) -> float:
    __import__(name)
    return float(torch.ones(3, device="cuda").sum())


@pytest.mark.gpu
def test_a_module_that_opens_cuda_is_imported_by_each_worker(tmp_path: Path) -> None:
    (tmp_path / "opens.py").write_text(OPENS)
    count = tmp_path / "count"
    kept = Kept()
    started = launcher(workers=2, preload=("opens",), extra_env_vars={"PYTHONPATH": str(tmp_path), "V_COUNT": str(count)})
    result = started.set_logging_handlers(lambda: [kept]).run(on_the_gpu, "opens")
    assert result.results["localhost"] == [3.0, 3.0]
    assert len(count.read_text().split()) == 3, "once in vain"
    assert any("has opened CUDA" in text for text in kept.texts(local_rank=None))


def plain() -> dict[str, Any]:
    return {
        "numbers": [1, -2, 2.5, 10**30, True, None, 1 + 2j],
        "texts": ("a", b"b", {"c"}),
        "array": np.arange(6, dtype=np.int16).reshape(2, 3),
        "scalar": np.float32(1.5),
        "tensor": torch.arange(4, dtype=torch.bfloat16).reshape(2, 2),
        "element": torch.arange(4.0).reshape(2, 2)[1:, 0],
        3: "three",
    }


def test_results_as_data() -> None:
    found = launcher(workers=1, results="data").run(plain).rank(0)
    wanted = plain()
    assert np.array_equal(found.pop("array"), wanted.pop("array"))
    assert all(torch.equal(found.pop(name), wanted.pop(name)) for name in ("tensor", "element"))
    assert found == wanted


class Sneaky:
    """Runs code where its pickle is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise SystemError('it ran')",)


def sneak(raises: bool) -> object:
    if raises:
        error = ValueError("text")
        error.args = (Sneaky(),)
        raise error
    return Sneaky()


@pytest.mark.parametrize("raises", [False, True])
def test_with_results_as_data_nothing_is_unpickled_here(raises: bool) -> None:
    with pytest.raises(WorkerFailedError, match="ValueError" if raises else "no plain value"):
        launcher(workers=1, results="data").run(sneak, raises)


def large(size: int, lines: int) -> np.ndarray:
    for number in range(lines):
        print(f"line {number} " + "x" * 100)
    return np.full(size, int(os.environ["RANK"]), dtype=np.uint8)


def test_large_results_come_in_pieces_beside_lines() -> None:
    kept = Kept()
    result = launcher(workers=2, agent_timeout=60.0).set_logging_handlers(lambda: [kept]).run(large, 24 << 20, 5_000)
    for rank in range(2):
        assert result.rank(rank).nbytes == 24 << 20
        assert (result.rank(rank) == rank).all()
        assert len(kept.texts(rank=rank, stream="stdout")) == 5_000


class Slow(Kept):
    """Takes nothing for a while."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def emit(self, record: logging.LogRecord) -> None:
        if not self.kept:
            time.sleep(self._seconds)
        super().emit(record)


def flood(path: Path) -> float:
    """Writes 12 MB; returns for how long the longest line waited."""
    text = "y" * 1000
    longest, last = 0.0, time.monotonic()
    for number in range(12_000):
        sys.stdout.write(f"{text}\n")
        now = time.monotonic()
        longest, last = max(longest, now - last), now
        if number == 0:
            mark(path, "began")
    return longest


def test_a_slow_reader_stops_the_workers_but_no_heartbeat(tmp_path: Path) -> None:
    kept = Slow(14.0)
    result = launcher(workers=1, agent_timeout=10.0).set_logging_handlers(lambda: [kept]).run(flood, tmp_path)
    assert result.rank(0) > 1.0, "it waited for the reader"
    assert len(kept.texts(stream="stdout")) == 12_000


class Stuck(Kept):
    """Takes nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.go.wait(TIMEOUT)
        super().emit(record)


def print_some() -> int:
    for number in range(100):
        print("line", number)
    return 7


def test_what_a_handler_that_does_not_return_has_lost_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(director, "_STUCK", 1.0)
    stuck = Stuck()
    try:
        assert launcher(workers=2).set_logging_handlers(lambda: [stuck]).run(print_some).rank(1) == 7
    finally:
        stuck.go.set()
    lost = [record.message for record in caplog.records if "output is lost" in record.message]
    assert len(lost) == 1
    assert "200 lines of localhost:0, localhost:1" in lost[0]


def log_much() -> None:
    logging.getLogger("wide").warning("\N{GRINNING FACE}" * 60_000)
    logging.getLogger("half").warning("a \ud83d surrogate")


def test_a_record_that_is_too_long_is_cut_and_comes() -> None:
    kept = Kept()
    launcher(workers=1).set_logging_handlers(lambda: [kept]).run(log_much)
    assert kept.texts(name="wide") == ["\N{GRINNING FACE}" * 15_000]
    assert kept.texts(name="half") == [r"a \ud83d surrogate"]


def find_each_other_silent(path: Path) -> str:
    """Both are members; each asks for the other's end, the second one only when its own has come, as if that had crossed it."""
    env = os.environ
    rank, other = env["RANK"], str(1 - int(env["RANK"]))
    vouch = KeyRing([env["FTLIB_SECRET"]]).first.vouch
    facts = {"job": env["FTLIB_JOB"], "member": f"m{rank}", "address": f"a:{rank}", "epoch": 1}
    assert announce(env["FTLIB_SUPERVISOR"], vouch, **facts, timeout=TIMEOUT)
    mark(path, rank, os.getpid())
    named = {"job": env["FTLIB_JOB"], "pid": here(path, other), "member": f"m{other}", "nonce": "n"}
    body = json.dumps({**named, "reason": "no answer", "by": f"m{rank}", "mac": vouch("fence", *named.values())})
    if rank == "1":  # its own request goes out as it is told to end
        mark(path, "body", body)
        wait_for(path / "never")
    asked = [body, (wait_for(path / "body"), (path / "body").read_text())[1]]
    answers = []
    for text in asked:
        connection = http.client.HTTPConnection(env["FTLIB_SUPERVISOR"], timeout=TIMEOUT)
        connection.request("POST", "/fence", text, {"Content-Type": "application/json"})
        answers.append(json.loads(connection.getresponse().read())["reaped"])
    mark(path, "answers", answers)
    return "lives"


def test_of_two_that_find_each_other_silent_one_dies(tmp_path: Path) -> None:
    with pytest.raises(WorkerFailedError, match=r"rank 1.*silent to its peers"):
        launcher(workers=2).run(find_each_other_silent, tmp_path)
    assert (tmp_path / "answers").read_text() == "[True, False]"


def accuse(path: Path) -> int:
    """Worker 1 finds worker 0, which loops, silent."""
    env = os.environ
    if env["LOCAL_RANK"] == "0":
        mark(path, "pid", os.getpid())
        wait_for(path / "never")
    pid = here(path, "pid")
    vouch = KeyRing([env["FTLIB_SECRET"]]).first.vouch
    facts = {"job": env["FTLIB_JOB"], "pid": pid, "member": "m0", "nonce": "n"}
    body = json.dumps({**facts, "reason": "no answer", "mac": vouch("fence", *facts.values())})
    connection = http.client.HTTPConnection(env["FTLIB_SUPERVISOR"], timeout=TIMEOUT)
    connection.request("POST", "/fence", body, {"Content-Type": "application/json"})
    answer = json.loads(connection.getresponse().read())
    assert answer["reaped"], answer
    return pid


def test_a_silent_worker_is_killed_with_its_stacks_in_the_log(tmp_path: Path) -> None:
    kept = Kept()
    with pytest.raises(WorkerFailedError, match=r"SIGABRT \(silent to its peers\)"):
        launcher(workers=2).set_logging_handlers(lambda: [kept]).run(accuse, tmp_path)
    assert any("in wait_for" in text for text in kept.texts(local_rank=0, stream="stderr")), kept.texts(local_rank=0)
    assert any("silent to its peers (no answer)" in text for text in kept.texts(local_rank=None))
