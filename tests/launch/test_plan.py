"""What is refused before anything starts, and what a worker finds in its environment."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ftlib.checkpoints.names import Name
from ftlib.errors import ConfigError
from ftlib.launch.processes.sockets import HOST, bind_control
from ftlib.launch.run.environment import Start, worker_environment
from ftlib.launch.run.plan import StartPlan, python_command
from tests.harness.basics import TIMEOUT


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"workers": 0}, "-n 0"),
        ({"min_workers": 0}, "--min 0"),
        ({"min_workers": 3}, "--min 3"),
        ({"min_workers": 2, "max_workers": 1}, "--max 1"),
        ({"max_restarts": -1}, "--max-restarts -1"),
        ({"restart_delay": -1.0}, "--restart-delay"),
        ({"grace": -1.0}, "--grace"),
        ({"job": "a b"}, "--job 'a b'"),
        ({"job": ""}, "--job ''"),
        ({"resume": Path(__file__)}, "--resume .* that is a file"),
    ],
)
def test_a_wrong_option_is_named(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        StartPlan(**({"command": ("x",), "workers": 2} | settings))


def test_a_run_says_from_what_it_begins(tmp_path: Path) -> None:
    def beginning(resume: Path | None) -> str:
        return StartPlan(("x",), 1, resume=resume).beginning

    assert beginning(None) == "what the script starts or loads"
    assert beginning(tmp_path / "none") == f"scratch: there is no complete checkpoint in {tmp_path / 'none'}"
    for name in (Name(5, 1), Name(70, 1)):
        (tmp_path / str(name)).mkdir()
    assert beginning(tmp_path) == f"{tmp_path}/{Name(70, 1)}"
    assert beginning(tmp_path / str(Name(5, 1))) == f"{tmp_path}/{Name(5, 1)}"


def test_checkpoints_may_be_at_a_url() -> None:
    plan = StartPlan(("x",), 1, resume="s3://bucket/run")
    assert plan.beginning == "the newest checkpoint at s3://bucket/run, if there is one"
    with pytest.raises(ConfigError, match="no complete checkpoint at memory://bucket/run of all 2 shards: give another"):
        StartPlan(("x",), 2, shards=2, resume="memory://bucket/run", resume_required=True)
    with pytest.raises(ConfigError, match="install fsspec, and what it needs for nosuch"):
        StartPlan(("x",), 1, resume="nosuch://bucket/run", resume_required=True)


def test_workers_are_told_where_to_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = StartPlan(("x",), 1, resume=Path("there"))
    assert worker_environment({}, plan, Start(0, [], 1), "")["FTLIB_RESUME"] == str(tmp_path / "there")
    assert "FTLIB_RESUME" not in worker_environment({}, StartPlan(("x",), 1), Start(0, [], 1), "")


def test_every_run_has_a_job_of_its_own() -> None:
    assert StartPlan(("x",), 1).job != StartPlan(("x",), 1).job


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "package").mkdir()
    assert python_command("train.py", ("-x",), module=False) == (sys.executable, "train.py", "-x")
    assert python_command("json.tool", (), module=True) == (sys.executable, "-m", "json.tool")
    assert python_command("train", (), module=True)
    with pytest.raises(ConfigError, match=r"no script other\.py"):
        python_command("other.py", (), module=False)
    with pytest.raises(ConfigError, match=r"__main__\.py"):
        python_command("package", (), module=False)
    for name in ("no_such_module", "no-such-module", "..."):
        with pytest.raises(ConfigError, match="no module"):
            python_command(name, (), module=True)


@pytest.mark.parametrize(("target", "module"), [("train.py", False), ("json.tool", True)])
def test_a_working_directory_that_was_removed_is_named(
    target: str, module: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    before = list(sys.path)
    with pytest.raises(ConfigError, match="the working directory was removed"):
        python_command(target, (), module=module)
    assert sys.path == before


def test_the_environment_of_a_founder() -> None:
    plan = StartPlan(("x",), 2, job="j", min_workers=2, max_workers=5)
    start = Start(1, ["127.0.0.1:1", "127.0.0.1:2"], 2, port=2, socket_fds=(7, 8))
    env = worker_environment({"PATH": "p", "FTLIB_ADVERTISE": "stale"}, plan, start, "127.0.0.1:9")
    assert {key: value for key, value in env.items() if key.startswith("FTLIB_")} == {
        "FTLIB_JOB": "j",
        "FTLIB_INTRODUCERS": "127.0.0.1:1,127.0.0.1:2",
        "FTLIB_INITIAL_SIZE": "2",
        "FTLIB_BIND": "127.0.0.1:2",
        "FTLIB_SOCKET_FDS": "7,8",
        "FTLIB_SUPERVISOR": "127.0.0.1:9",
        "FTLIB_NAME": "worker 1",
        "FTLIB_WORKER_INDEX": "1",
        "FTLIB_MIN_SIZE": "2",
        "FTLIB_MAX_SIZE": "5",
    }
    assert (env["PATH"], env["OMP_NUM_THREADS"], env["PYTHONUNBUFFERED"]) == ("p", "1", "1")


def test_those_above_the_most_members_do_not_found_but_join() -> None:
    plan = StartPlan(("x",), 3, max_workers=2)
    assert worker_environment({}, plan, Start(0, ["127.0.0.1:1"], 3), "")["FTLIB_INITIAL_SIZE"] == "2"


def test_the_environment_of_a_joiner() -> None:
    start = Start(0, ["127.0.0.1:2"], 2)
    env = worker_environment({"OMP_NUM_THREADS": "3", "FTLIB_SOCKET_FDS": "4,5"}, StartPlan(("x",), 2), start, "s:1")
    assert "FTLIB_SOCKET_FDS" not in env
    assert (env["FTLIB_BIND"], env["OMP_NUM_THREADS"]) == ("127.0.0.1:0", "3")


def test_control_sockets_share_a_port_and_refuse_once_closed() -> None:
    pair = bind_control()
    port = pair.port
    try:
        assert pair.udp.getsockname() == pair.tcp.getsockname() == (HOST, port)
        with pytest.raises(OSError, match="in use"):
            bind_control(port)
        with socket.create_connection((HOST, port), timeout=TIMEOUT):
            pass
    finally:
        pair.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, port), timeout=TIMEOUT)
    bind_control(port).close()


def test_the_help_imports_nothing_that_only_a_command_needs() -> None:
    code = "import sys; from ftlib.cli.main import main; sys.argv = ['ftlib', '--help']; sys.exit(main())"
    report = "import atexit, sys; atexit.register(lambda: print(*sorted(sys.modules), sep='\\n', file=sys.stderr)); "
    done = subprocess.run([sys.executable, "-c", report + code], capture_output=True, text=True, timeout=60, check=True)
    assert "simulate" in done.stdout
    heavy = {"aiohttp", "cryptography", "consensus", "rich", "torch", "numpy", "asyncio", "ssl"}
    assert not heavy & {name.partition(".")[0] for name in done.stderr.split()}
