"""``ftlib run`` with real processes and real signals. The workers are tiny scripts that know nothing of torch."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from consensus import Key, KeyRing
from ftlib.launch.processes.process import descendants
from tests.harness.basics import TIMEOUT

from .helpers import KEY, LIMIT, Run, cli, command, environment, running, script, wait_gone, wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]


def signed(facts: dict[str, Any], key: Key = KEY) -> dict[str, Any]:
    return {**facts, "nonce": "n", "mac": key.vouch("fence", facts["job"], facts["pid"], facts["member"], "n")}


def post(address: str, path: str, body: bytes) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT)
    try:
        connection.request("POST", path, body)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


# Endings.


def test_all_finish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with running(tmp_path, "-n", 3, script=script("print('out', INDEX); print('err', INDEX, file=sys.stderr)")) as run:
        out, err = run.finish(0)
    assert sorted(out.splitlines()) == [f"[worker {index}] out {index}" for index in range(3)]
    for index in range(3):
        assert f"[worker {index}] err {index}\n" in err
    assert err.count("OMP_NUM_THREADS=1") == 1
    assert "3 of 3 workers finished" in err
    assert "starts" not in err  # no table where nothing happened


def test_every_worker_fails(tmp_path: Path) -> None:
    with running(tmp_path, "-n", 2, script=script("raise SystemExit(3 if INDEX else ValueError('boom').args[0])")) as run:
        _, err = run.finish()
    assert run.process.returncode in (1, 3)
    assert "the script is at fault" in err


def test_the_traceback_comes_last(tmp_path: Path) -> None:
    with running(tmp_path, "-n", 1, script="def f():\n    raise ValueError('boom')\nf()\n") as run:
        _, err = run.finish(1)
    assert len(run.events("started")) == 1
    last = err[err.rindex("the last lines of worker 0") :].splitlines()
    assert last[1].startswith("Traceback")
    assert last[-1] == "ValueError: boom"


def test_a_signal_is_128_and_its_number(tmp_path: Path) -> None:
    with running(tmp_path, "-n", 1, "--max-restarts", 1, script=script("os.kill(os.getpid(), signal.SIGSEGV)")) as run:
        _, err = run.finish(128 + signal.SIGSEGV)
    assert len(run.events("started")) == 2
    assert "killed by SIGSEGV" in err
    assert "Segmentation fault" in err  # faulthandler


def test_a_death_that_others_outlive_does_not_fail_the_run(tmp_path: Path) -> None:
    body = """
if INDEX == 1:
    write("ready")
    time.sleep(60)
wait("gone")
"""
    with running(tmp_path, "-n", 3, "--max-restarts", 0, script=script(body)) as run:
        run.wait_file("ready")
        victim = next(event["pid"] for event in run.wait_events("started", 3) if event["worker"] == 1)
        os.kill(victim, signal.SIGKILL)
        run.wait_events("ended", 1)
        (tmp_path / "gone").touch()
        _, err = run.finish(0)
    assert "worker 1 ended: killed by SIGKILL; 2 still run; not restarting it" in err
    assert "killed by SIGKILL" in err[err.index("outcome") :]
    assert len(run.events("started")) == 3


HELD = "held = b'x' * (400 << 20)"
OWN = f"""
{HELD}
die(os.getpid())
"""
CHILDS = f"""
text = "import time; {HELD}; print(flush=True); time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE)
child.stdout.readline()
die(child.pid)
"""


@pytest.mark.parametrize("dies", [OWN, CHILDS], ids=["its own memory", "that of a child"])
def test_a_death_just_before_the_others_finish_does_not_fail_the_run(tmp_path: Path, dies: str) -> None:
    """Though the kernel has not freed all memory of the dead one when they have finished, which takes it long."""
    body = f"""
from consensus.runtime.host.parent_watcher import ParentWatcher
def die(pid):
    write("ready", pid)
    wait("watched")
    os.kill(os.getpid(), signal.SIGKILL)
if INDEX == 0:
    {"".join(line + chr(10) + "    " for line in dies.splitlines())}
wait("ready")
watcher = ParentWatcher(int(open("ready").read()))
write("watched")
while not watcher.ending():
    pass
os._exit(0)
"""
    with running(tmp_path, "-n", 2, "--max-restarts", 0, script=script(body)) as run:
        run.finish(0)
    assert [event["worker"] for event in run.events("ended")] == [0, 1]


def test_too_few_left(tmp_path: Path) -> None:
    body = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
if INDEX:
    wait("go")
    sys.exit(5)
write("go")
time.sleep(60)
"""
    with running(tmp_path, "-n", 2, "--min", 2, "--max-restarts", 0, script=script(body)) as run:
        _, err = run.finish(5)
    assert "--min is 2" in err


def test_a_signal_that_comes_twice_at_once_drains_all_the_same(tmp_path: Path) -> None:
    """``timeout`` sends it to a process, and then to its group."""
    body = """
def drained(*_):
    time.sleep(1)  # longer than the two are apart: a launcher that takes them for two kills its workers
    sys.exit(0)
signal.signal(signal.SIGTERM, drained)
write(f"ready{INDEX}")
time.sleep(60)
"""
    with running(tmp_path, "-n", 2, script=script(body)) as run:
        run.wait_file("ready0")
        run.wait_file("ready1")
        run.process.send_signal(signal.SIGTERM)
        os.killpg(run.process.pid, signal.SIGTERM)
        _, err = run.finish(143)
    assert [event["code"] for event in run.events("ended")] == [0, 0]
    assert "killed" not in err


def test_a_signal_to_every_process_drains_all_the_same(tmp_path: Path) -> None:
    """Slurm's way: the supervisor gets it from there, and from the guard; the workers from there, and from the supervisor."""
    body = """
def drained(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    wait("go")
    sys.exit(0)
signal.signal(signal.SIGTERM, drained)
write(f"ready{INDEX}")
time.sleep(60)
"""
    # However busy the machine is, the two are one: this interpreter starts with another bound.
    (tmp_path / "sitecustomize.py").write_text("from ftlib.launch.processes import guard\n\nguard.TWIN = 600.0\n")
    with running(tmp_path, "-n", 2, script=script(body), PYTHONPATH=str(tmp_path)) as run:
        run.wait_file("ready0")
        run.wait_file("ready1")
        guard = run.process.pid
        others = descendants(guard)
        assert len(others) == 4, "a keeper, a supervisor, two workers"
        for pid in others:
            os.kill(pid, signal.SIGTERM)
        assert run.process.stderr is not None
        assert any(b"draining" in line for line in run.process.stderr)  # else the supervisor might get both as one
        os.kill(guard, signal.SIGTERM)
        time.sleep(0.3)  # a supervisor that takes them for two kills within milliseconds
        (tmp_path / "go").touch()
        _, err = run.finish(143)
    assert [event["code"] for event in run.events("ended")] == [0, 0]
    assert "killed" not in err


# Output.


def test_output_survives_bad_bytes_missing_newlines_and_sudden_death(tmp_path: Path) -> None:
    body = r"""
if INDEX == 0:
    os.write(1, b"caf\xe9\nno newline")
    os.write(2, b"x" * 300000 + b"\nlast words")
    os.kill(os.getpid(), signal.SIGKILL)
wait("go")
"""
    with running(tmp_path, "-n", 2, "--max-restarts", 0, "--log-dir", tmp_path / "logs", script=script(body)) as run:
        run.wait_events("ended", 1)
        (tmp_path / "go").touch()
        out, err = run.finish(0)
    assert "[worker 0] caf\N{REPLACEMENT CHARACTER}\n[worker 0] no newline\n" in out
    assert "[worker 0] last words\n" in err
    assert err.count("x") >= 300000
    log = (tmp_path / "logs" / "worker-0.log").read_bytes()
    assert b"caf\xe9\n" in log
    assert b"no newline\n" in log


def test_log_files_are_appended_to(tmp_path: Path) -> None:
    body = """
print("hello from", INDEX)
if first("died"):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    for _ in range(2):
        with running(tmp_path, "-n", 1, "--log-dir", "a/b", script=script(body)) as run:
            run.finish(0)
    log = (tmp_path / "a" / "b" / "worker-0.log").read_text().splitlines()
    assert [line.startswith("===") for line in log] == [True, False] * 3
    assert "worker 0, start 2, pid" in log[2]


def test_a_log_directory_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "script.py").touch()
    result = cli("run", "-n", 1, "--log-dir", "file/logs", "script.py", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("ftlib: error: --log-dir file/logs: ")
    assert result.stderr.count("\n") == 1


EITHER = pytest.mark.parametrize("where", [(), ("--hosts", "localhost", "--transport", "local")], ids=["here", "hosts"])
DRAINS = """
def drained(*_):
    write("drained")
    sys.exit(0)
signal.signal(signal.SIGTERM, drained)
"""


def leave(run: Run) -> None:
    """As a reader of its output."""
    assert run.process.stdout is not None
    run.process.stdout.close()
    run.process.stdout = None


def is_full(run: Run) -> bool:
    """Whether a write to its stdout would block."""
    assert run.process.stdout is not None
    writing = os.open(f"/proc/self/fd/{run.process.stdout.fileno()}", os.O_WRONLY | os.O_NONBLOCK)
    try:
        return not select.select([], [writing], [], 0)[1]
    finally:
        os.close(writing)


@EITHER
@pytest.mark.parametrize("together", [False, True], ids=["stdout", "both"])
def test_a_reader_that_leaves_does_not_end_the_run(tmp_path: Path, where: tuple[str, ...], together: bool) -> None:
    body = "wait('go')\nfor _ in range(2000): print('y' * 100)\nwrite(f'done-{INDEX}')"
    with running(tmp_path, "-n", 2, *where, script=script(body), together=together) as run:
        leave(run)
        (tmp_path / "go").touch()
        run.wait_file("done-0")
        run.wait_file("done-1")
        assert run.process.wait(LIMIT) == 0


@EITHER
def test_a_signal_after_the_reader_has_left_drains(tmp_path: Path, where: tuple[str, ...]) -> None:
    body = DRAINS + "write('up')\ntime.sleep(300)"
    with running(tmp_path, "-n", 1, "--grace", LIMIT, *where, script=script(body), together=True) as run:
        run.wait_file("up")
        leave(run)
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(LIMIT) == 143
    assert (tmp_path / "drained").exists()


@EITHER
def test_a_signal_while_the_reader_stands_still_drains(tmp_path: Path, where: tuple[str, ...]) -> None:
    body = DRAINS + "os.write(1, (b'y' * 999 + b'\\n') * 500)\nwrite('up')\ntime.sleep(300)"
    with running(tmp_path, "-n", 1, "--grace", LIMIT, *where, script=script(body), together=True) as run:
        run.wait_file("up")
        wait_until(lambda: is_full(run), "the pipe is full")
        run.process.send_signal(signal.SIGTERM)
        run.wait_file("drained")
        assert run.process.wait(LIMIT) == 143


STUCK = """
import sys
from ftlib.launch.director import director, link
director._STUCK = link._PARTING = 0.2
from ftlib.launch.command import code_of, run
sys.exit(code_of(run, sys.argv[1:], "run"))
"""
"""``ftlib run`` that soon gives up what it gives up."""


@contextlib.contextmanager
def ended_unread(path: Path, lines: int) -> Iterator[subprocess.Popen[bytes]]:
    """One whose worker has ended, with so many lines that nobody reads. A while has passed."""
    (path / "script.py").write_text(f"for _ in range({lines}): print('y' * 199)")
    words = [sys.executable, "-c", STUCK, "--hosts", "localhost", "--transport", "local", "-n", "1", "--events", "events"]
    with subprocess.Popen(
        [*words, "script.py"], cwd=path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            wait_until(lambda: '"ended"' in events.read_text() if (events := path / "events").exists() else False, "an end")
            time.sleep(2.0)  # the pause of the reader: ten times as long as what stands still is waited for elsewhere
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("lines", [3000, 8000], ids=["under-way", "more-than-may-be-under-way"])
def test_a_reader_that_pauses_gets_all_lines_of_other_hosts(tmp_path: Path, lines: int) -> None:
    with ended_unread(tmp_path, lines) as process:
        out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0
    assert out.count(b"y\n") == lines
    assert err == b"[ftlib] 1 of 1 workers finished\n"


def test_a_signal_ends_the_waiting_for_a_reader_and_what_is_lost_is_told(tmp_path: Path) -> None:
    with ended_unread(tmp_path, 8000) as process:
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT) == 143
        assert process.stderr is not None
        err = process.stderr.read().decode()
    assert " lines of " in err
    assert "what localhost:0 had not sent yet" in err


def test_a_reader_that_stalls_does_not_stop_the_fence(tmp_path: Path) -> None:
    body = """
if INDEX == 0:
    while True: os.write(1, b"z" * 100000 + b"\\n")
write("up", os.getpid())
time.sleep(60)
"""
    with running(tmp_path, "-n", 2, "--max-restarts", 0, script=script(body)) as run:
        pid = int(run.wait_file("up"))
        supervisor = run.wait_events("run", 1)[0]
        body_of = {"job": supervisor["job"], "pid": pid, "member": "", "reason": "test"}
        assert post(supervisor["supervisor"], "/fence", json.dumps(signed(body_of)).encode())[0] == 200
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(LIMIT) == 130


# Fencing.


def test_the_fence_kills_a_stopped_worker(tmp_path: Path) -> None:
    body = """
if first(f"first-{INDEX}") and INDEX == 1:
    announce(3)
    write("pid", os.getpid())
    os.kill(os.getpid(), signal.SIGSTOP)
wait("go")
"""
    with running(tmp_path, "-n", 2, script=script(body)) as run:
        pid = int(run.wait_file("pid"))
        wait_until(lambda: b"\nState:\tT" in Path(f"/proc/{pid}/status").read_bytes(), "the worker to stop")
        facts = run.wait_events("run", 1)[0]
        address, job = facts["supervisor"], facts["job"]
        accusation = {"job": job, "pid": pid, "member": f"m{pid}", "reason": "no ack for 1.5 s"}

        gone: list[int] = []

        def fence(pack: Any = json.dumps, key: Key = KEY, **changed: Any) -> tuple[int, Any]:
            order = signed(accusation | changed, key)
            data = pack(order)
            status, answer = post(address, "/fence", data.encode() if isinstance(data, str) else data)
            if status in (200, 404):
                facts = [order[name] for name in ("job", "pid", "member", "nonce")]
                gone.append(answer.pop("gone_ms"))
                assert answer.pop("mac") == key.vouch("fenced", *facts, answer["reaped"], gone[-1])
            return status, answer

        assert fence(job="other")[0] == 403
        assert fence(key=KeyRing(["another secret, long enough"]).first)[0] == 403
        assert post(address, "/fence", json.dumps(accusation).encode())[0] == 403
        assert post(address, "/fence", json.dumps(signed(accusation) | {"pid": os.getpid()}).encode())[0] == 403
        assert post(address, "/fence", json.dumps(signed(accusation) | {"mac": "\u00e9"}).encode())[0] == 403
        assert fence(pid=os.getpid()) == (404, {"reaped": False, "known": False})
        for nonsense in (b"", b"[1]", b"{", b"\xc1", json.dumps({"job": job}).encode()):
            assert post(address, "/fence", nonsense)[0] == 400
        assert post(address, "/announce", json.dumps({"job": job, "pid": pid}).encode())[0] == 400
        lie = {"job": job, "pid": pid, "member": "m", "address": "127.0.0.1:1", "epoch": 1}
        assert post(address, "/announce", json.dumps(lie).encode())[0] == 403
        news = {"job": job, "pid": pid, "member": "newer", "address": "127.0.0.1:2", "epoch": 0}
        news["mac"] = KEY.vouch("announce", *news.values())
        assert post(address, "/announce", json.dumps(news).encode())[0] == 200
        assert fence() == (200, {"reaped": True, "known": False}), "it joins again as another member: the one before is over"
        assert not run.events("ended")

        accusation["member"] = "newer"
        assert gone == [0, 0], "nobody was killed so far"
        before = time.monotonic()
        assert fence(msgpack.packb) == (200, {"reaped": True, "known": True})
        wait_gone(pid, 0.1)
        time.sleep(0.2)
        assert fence(msgpack.packb) == (200, {"reaped": True, "known": False})
        assert gone[-2] + 200 <= gone[-1] <= 1000 * (time.monotonic() - before), "since the same moment"
        run.wait_events("started", 3)
        (tmp_path / "go").touch()
        _, err = run.finish(0)
    assert "worker 1 is silent to its peers (no ack for 1.5 s): killed" in err


def test_of_two_that_accuse_each_other_one_is_spared(tmp_path: Path) -> None:
    body = """
if first(f"first-{INDEX}"):
    announce(3)
    write(f"pid-{INDEX}", os.getpid())
wait("go")
"""
    with running(tmp_path, "-n", 2, "--max-restarts", 0, script=script(body)) as run:
        pids = [int(run.wait_file(f"pid-{index}")) for index in range(2)]
        facts = run.wait_events("run", 1)[0]

        def fence(pid: int) -> tuple[int, bool]:
            accusation = {"job": facts["job"], "pid": pid, "member": f"m{pid}", "reason": "no ack for 1.5 s"}
            status, answer = post(facts["supervisor"], "/fence", json.dumps(signed(accusation)).encode())
            return status, answer["reaped"]

        assert fence(pids[1]) == (200, True)
        assert fence(pids[0]) == (409, False)
        assert fence(pids[0]) == (409, False)
        (tmp_path / "go").touch()
        _, err = run.finish(0)
    assert "worker 1 is silent to its peers (no ack for 1.5 s): killed" in err
    assert "Fatal Python error: Aborted" in err, "its stacks are in its log"
    assert err.count("worker 0 is silent to its peers (no ack for 1.5 s): spared, the last one") == 1


def test_workers_can_be_listed(tmp_path: Path) -> None:
    with running(tmp_path, "-n", 1, script=script("announce(2, '127.0.0.1:5')\nwrite('up')\nwait('go')")) as run:
        run.wait_file("up")
        address = run.wait_events("run", 1)[0]["supervisor"]
        connection = http.client.HTTPConnection(address, timeout=TIMEOUT)
        connection.request("GET", "/workers")
        refused = connection.getresponse()
        assert (refused.status, refused.read()[:2]) == (403, b'{"')
        connection.request("GET", "/workers", headers={"Authorization": f"Bearer {KEY.bearer('workers')}"})
        report = json.loads(connection.getresponse().read())
        connection.close()
        (tmp_path / "go").touch()
        run.finish(0)
    row = report["workers"][0]
    assert (row["phase"], row["epoch"], row["address"], row["starts"]) == ("running", 2, "127.0.0.1:5", 1)


def test_refused_proves_death(tmp_path: Path) -> None:
    """The launcher keeps no copy of a worker's listening socket, nor do the other workers."""
    body = "write(f'at-{INDEX}', os.environ['FTLIB_BIND'] + ' ' + str(os.getpid()))\nwait('go')"
    with running(tmp_path, "-n", 3, "--max-restarts", 0, script=script(body)) as run:
        places = [run.wait_file(f"at-{index}").split() for index in range(3)]
        for address, pid in places[:2]:
            host, port = address.split(":")
            socket.create_connection((host, int(port)), timeout=5).close()
            os.kill(int(pid), signal.SIGKILL)
            wait_gone(int(pid))
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((host, int(port)), timeout=5)
        (tmp_path / "go").touch()
        run.finish(0)


# The command line.


def test_modules_and_arguments(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "train.py").write_text("import sys\nprint(sys.argv[1:], __name__)\n")
    result = cli("run", "-n", 1, "-m", "package.train", "--lr", "0.1", "-n", "7", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "[worker 0] ['--lr', '0.1', '-n', '7'] __main__\n"


def test_a_terminal_gets_colours(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('hello')")
    ours, theirs = os.openpty()
    with subprocess.Popen(
        command("run", "-n", 1, "script.py"), cwd=tmp_path, env=environment(), stdout=theirs, stderr=subprocess.PIPE
    ) as process:
        os.close(theirs)
        process.communicate(timeout=LIMIT)
    text = os.read(ours, 4096)
    os.close(ours)
    assert b"\x1b[36m[worker 0]\x1b[0m hello" in text
