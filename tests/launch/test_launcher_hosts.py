"""``Launcher`` over real logins: sshd on hosts with names of their own, which are shut, cut, and healed."""

from __future__ import annotations

import contextlib
import getpass
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from consensus import KeyRing
from ftlib import AgentFailedError, Launcher, WorkerFailedError
from ftlib.launch.launcher import Launch
from tests.harness.basics import TIMEOUT, eventually, lives
from tests.harness.logins import ONLY_SSH, Logins, needs_sshd
from tests.harness.network import Network, needs_bridge_filter, needs_network
from tests.harness.program import clean
from tests.launch.helpers import cli
from tests.launch.launching import Kept, here, mark, wait_for
from tests.launch.test_launcher_elastic import FAST, member, running

pytestmark = [pytest.mark.process, needs_network, needs_bridge_filter, needs_sshd, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    network = Network(4)
    with network:
        yield network


@pytest.fixture(scope="module")
def secluded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that h4 does not have."""
    return tmp_path_factory.mktemp("secluded")


@pytest.fixture(scope="module")
def logins(network: Network, secluded: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logins]:
    with Logins(tmp_path_factory.mktemp("logins"), network.hosts, noise=[3], hidden={4: secluded}) as logins:
        yield logins


@pytest.fixture(autouse=True)
def nothing_is_left(logins: Logins, network: Network) -> Iterator[None]:
    """Whatever a test did: no process of ftlib's is on any host a few seconds later."""
    with logins.caller.inside():  # threads and processes that the test starts are the caller's host's
        yield
    network.heal()
    for host in network.hosts:
        host.block("")

    def left() -> list[str]:
        return [f"{name}: {pid} {line}" for name in logins.names for pid, line in logins.processes(name).items()]

    eventually(lambda: not left(), left)


def launcher(logins: Logins, *hosts: str, workers: Any = 2, **more: Any) -> Launcher:
    """Over ssh, without torch, so that workers begin at once."""
    settings = {"ssh_config_file": logins.config, "transport": "ssh", "preload": (), "quiet": True, **more}
    return Launcher(hostnames=list(hosts), workers_per_host=workers, **settings)


def who() -> tuple[str, str, str, str, str]:
    return (socket.gethostname(), *(os.environ[name] for name in ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE")))  # type: ignore[return-value]


def sleep_for_ever(path: Path) -> None:
    mark(path, f"{socket.gethostname()}-{os.environ['LOCAL_RANK']}", os.getpid())
    threading.Event().wait()


def pids(path: Path, *names: str) -> list[int]:
    """Of workers that sleep: once all do."""
    return [here(path, name) for name in names]


# What works


def test_uneven_numbers_and_names(logins: Logins) -> None:
    result = launcher(logins, "h2", "h3", "h4", workers=[1, 3, 2]).run(who)
    assert result.results["h2"] == [("h2", "0", "0", "0", "6")]
    assert result.results["h3"] == [("h3", str(1 + n), str(n), "1", "6") for n in range(3)]
    assert result.rank(5) == result.index("h4", 1) == ("h4", "5", "1", "2", "6")


def test_noise_before_the_agent_and_lines_after_it(logins: Logins) -> None:
    kept = Kept()

    def talk() -> None:
        print("out of", socket.gethostname())
        os.write(2, b"native\n")

    launcher(logins, "h3").set_logging_handlers(lambda: [kept]).run(talk)
    assert "and with errors" in kept.texts(hostname="h3", local_rank=None)
    assert kept.texts(hostname="h3", local_rank=1, stream="stdout") == ["out of h3"]
    assert kept.texts(hostname="h3", local_rank=0, stream="stderr") == ["native"]


@pytest.mark.soak
def test_commands_to_run_first_see_no_stdin_and_their_words_are_lines(logins: Logins) -> None:
    kept = Kept()
    setup = "echo from the setup; read -r nothing; export FROM_SETUP=1"
    launch = launcher(logins, "h3", workers=1, setup=setup).set_logging_handlers(lambda: [kept])
    assert launch.run(os.getenv, "FROM_SETUP").rank(0) == "1"
    assert "from the setup" in kept.texts(hostname="h3", local_rank=None)


def test_a_jump_host(logins: Logins, network: Network) -> None:
    network.split([logins.caller], [logins.hosts["h4"]])
    assert launcher(logins, "h4-by-h2").run(who).rank(0)[0] == "h4"


def test_only_ssh_passes(logins: Logins) -> None:
    for name in ("h2", "h4"):
        logins.hosts[name].block(ONLY_SSH)
    logins.caller.block('input: iifname != "lo" tcp flags & (syn | ack) == syn drop')
    assert len(launcher(logins, "h2", "h4").run(who).ranks) == 4


def test_a_folder_that_one_host_lacks(logins: Logins, secluded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(secluded)
    found = launcher(logins, "h2", "h4", workers=1).run(os.getcwd)
    assert found.rank(0) == str(secluded)
    assert Path(found.rank(1)).is_dir()


def test_a_group_across_hosts(logins: Logins) -> None:
    """A default group of torch is ready: three workers on two hosts."""

    def average() -> tuple[float, int]:
        import torch
        import torch.distributed as dist

        mine = torch.tensor([float(dist.get_rank())])
        dist.all_reduce(mine)
        return float(mine), dist.get_world_size()

    result = launcher(logins, "h2", "h4", workers=[2, 1], backend="gloo").run(average)
    assert [result.rank(rank) for rank in range(3)] == [(3.0, 3)] * 3


def test_names_by_address_and_with_a_user(logins: Logins) -> None:
    address, user = str(logins.hosts["h2"].v4), f"{getpass.getuser()}@h3"
    result = launcher(logins, address, user, workers=1).run(who)
    assert (result.results[address][0][0], result.results[user][0][0]) == ("h2", "h3")


SCRIPT = """
import os, socket, sys
print("worker", os.environ["FTLIB_WORKER_INDEX"], "of", socket.gethostname(), sys.argv[1:], flush=True)
"""


def test_ftlib_run_with_hosts(logins: Logins, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = cli("run", "--hosts", "h2,h4", "--ssh-config", logins.config, "-n", 2, "script.py", "--lr", 1, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    wanted = [
        f"[{host}:{rank}] worker {2 * at + rank} of {host} ['--lr', '1']"
        for at, host in enumerate(("h2", "h4"))
        for rank in (0, 1)
    ]
    assert sorted(done.stdout.splitlines()) == wanted
    assert "4 of 4 workers finished" in done.stderr


def accuse_across(path: Path) -> None:
    """Rank 0 finds rank 1, which is at another host and loops, silent."""
    env = os.environ
    if env["RANK"] == "1":
        mark(path, "supervisor", env["FTLIB_SUPERVISOR"])
        mark(path, "silent", os.getpid())
        wait_for(path / "never")
    pid = here(path, "silent")
    vouch = KeyRing([env["FTLIB_SECRET"]]).first.vouch
    facts = {"job": env["FTLIB_JOB"], "pid": pid, "member": "m1", "nonce": "n"}
    body = json.dumps({**facts, "reason": "no answer", "mac": vouch("fence", *facts.values())})
    connection = http.client.HTTPConnection((path / "supervisor").read_text(), timeout=TIMEOUT)
    connection.request("POST", "/fence", body, {"Content-Type": "application/json"})
    mark(path, "answer", json.loads(connection.getresponse().read())["reaped"])
    wait_for(path / "never")


def test_a_silent_worker_is_killed_at_the_word_of_a_peer_on_another_host(logins: Logins, tmp_path: Path) -> None:
    with pytest.raises(WorkerFailedError, match=r"SIGABRT \(silent to its peers\)") as caught:
        launcher(logins, "h2", "h4", workers=1).run(accuse_across, tmp_path)
    assert caught.value.host == "h4"


@pytest.mark.soak
def test_several_at_once(logins: Logins) -> None:
    launches = [launcher(logins, name, workers=1).start(who) for name in ("h2", "h3", "h4", "h2")]
    assert [each.wait(TIMEOUT).rank(0)[0] for each in launches] == ["h2", "h3", "h4", "h2"]


# What is shut


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("h2-stranger", "Permission denied.*: make ssh -o BatchMode=yes h2-stranger true work"),
        ("h2-unknown", "Host key verification failed.*: log in once by hand"),
        pytest.param("h2-changed", "Host key verification failed.*: ssh-keygen -R", marks=pytest.mark.soak),
        pytest.param("nowhere.invalid", "Could not resolve hostname.*: name it as ssh knows it", marks=pytest.mark.soak),
    ],
)
def test_a_login_that_is_refused_is_told_once_by_ssh_with_the_remedy(logins: Logins, name: str, words: str) -> None:
    kept = Kept()
    with pytest.raises(AgentFailedError, match=words) as caught:
        launcher(logins, name, "h4").set_logging_handlers(lambda: [kept]).run(who)
    assert caught.value.host == name
    assert "\n" not in str(caught.value)
    [line] = kept.texts(hostname=name)
    assert re.search(words, line)


def test_an_interpreter_that_is_not_there(logins: Logins) -> None:
    with pytest.raises(AgentFailedError, match=r"/nowhere/python.*: name what is there") as caught:
        launcher(logins, "h2", python="/nowhere/python").run(who)
    assert caught.value.host == "h2"


# What is lost


def begun(logins: Logins, path: Path, *hosts: str, **more: Any) -> tuple[Launch, list[int]]:
    """A launch whose two workers a host sleep."""
    launch = launcher(logins, *hosts, **more).start(sleep_for_ever, path)
    return launch, pids(path, *(f"{host}-{rank}" for host in hosts for rank in range(2)))


def test_a_worker_that_dies_ends_the_others_on_all_hosts(logins: Logins, tmp_path: Path) -> None:
    launch, workers = begun(logins, tmp_path, "h2", "h4")
    os.kill(workers[3], signal.SIGKILL)
    with pytest.raises(WorkerFailedError, match="SIGKILL") as caught:
        launch.wait(TIMEOUT)
    assert (caught.value.host, caught.value.local_rank, caught.value.rank) == ("h4", 1, 3)
    assert not any(map(lives, workers))


def agents(logins: Logins, name: str) -> list[int]:
    """Guard and steward on a host, the warm process, and workers forked from it: whoever has the agent's name."""
    return [pid for pid, line in logins.processes(name).items() if "ftlib.launch.agent" in line]


def test_a_killed_agent_is_named_and_leaves_nothing(logins: Logins, tmp_path: Path) -> None:
    """Killed whole, as by ``pkill -f ftlib.launch.agent``: what workers have started ends all the same."""
    launch = launcher(logins, "h2", "h4").start(live_in_a_family, tmp_path)
    members = ("worker", "child", "daemon")
    family = pids(tmp_path, *(f"{host}-{rank}-{each}" for host in ("h2", "h4") for rank in range(2) for each in members))
    doomed = agents(logins, "h2")
    for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first: nobody sees the other's end
        for pid in doomed:
            with contextlib.suppress(ProcessLookupError):  # the kernel ends a worker with its steward
                os.kill(pid, number)
    with pytest.raises(AgentFailedError) as caught:
        launch.wait(TIMEOUT)
    assert caught.value.host == "h2"
    eventually(lambda: not any(map(lives, family)), "workers end, and all that they started")


@pytest.mark.soak
@pytest.mark.parametrize("which", ["first", "last"])
def test_a_guard_or_an_agent_alone(logins: Logins, tmp_path: Path, which: str) -> None:
    launch, workers = begun(logins, tmp_path, "h2")
    found = sorted(agents(logins, "h2"))
    os.kill(found[0] if which == "first" else found[-1], signal.SIGKILL)
    with pytest.raises((AgentFailedError, WorkerFailedError)):
        launch.wait(TIMEOUT)
    eventually(lambda: not any(map(lives, workers)), "workers end")


@pytest.mark.soak
def test_an_sshd_that_ends(logins: Logins, tmp_path: Path) -> None:
    launch, workers = begun(logins, tmp_path, "h2")
    logins.stop("h2")
    try:
        with pytest.raises(AgentFailedError) as caught:
            launch.wait(TIMEOUT)
        assert caught.value.host == "h2"
        eventually(lambda: not any(map(lives, workers)), "workers end")
    finally:
        logins.start("h2")


def test_a_host_that_is_cut_off(logins: Logins, network: Network, tmp_path: Path) -> None:
    launch, workers = begun(logins, tmp_path, "h2", "h4", agent_timeout=12.0)
    network.isolate(logins.hosts["h2"])
    with pytest.raises(AgentFailedError) as caught:
        launch.wait(TIMEOUT)
    assert caught.value.host == "h2"
    eventually(lambda: not any(map(lives, workers)), "both sides end their workers, without a word from each other")


@pytest.mark.soak
def test_an_elastic_launch_goes_on_without_a_host_that_is_cut_off_and_has_it_back(
    logins: Logins, network: Network, tmp_path: Path
) -> None:
    settings = {"min_workers": 1, "agent_timeout": 12.0, **FAST}
    launch = launcher(logins, "h2", "h4", workers=1, **settings).start(member, tmp_path)
    stays, goes = running(launch, 2)
    network.isolate(logins.hosts["h4"])
    eventually(lambda: not lives(goes["pid"]), "the host that is cut off ends its worker")
    eventually(lambda: len(running(launch, 1)) == 1, launch.workers)
    network.heal()
    after = running(launch, 2)
    assert [(each["host"], each["starts"]) for each in after] == [("h2", 1), ("h4", 2)]
    assert after[0]["pid"] == stays["pid"]
    (tmp_path / "finish").touch()
    launch.wait(TIMEOUT)


@pytest.mark.soak
def test_a_short_cut_harms_nobody(logins: Logins, network: Network, tmp_path: Path) -> None:
    def work(path: Path) -> str:
        mark(path, "begun", os.getpid())
        wait_for(path / "go")
        return "done"

    launch = launcher(logins, "h2", workers=1, agent_timeout=10.0).start(work, tmp_path)
    here(tmp_path, "begun")
    network.isolate(logins.hosts["h2"])
    time.sleep(2.0)
    network.heal()
    (tmp_path / "go").touch()
    assert launch.wait(TIMEOUT).rank(0) == "done"


CALLER = """
import sys
from pathlib import Path
from ftlib import Launcher
from tests.launch.test_launcher_hosts import live_in_a_family

config, path = sys.argv[1:]
if __name__ == "__main__":
    more = {"transport": "ssh", "preload": (), "agent_timeout": 12.0, "grace": 5.0}
    Launcher(hostnames=["h2", "h3", "h4"], workers_per_host=2, ssh_config_file=config, **more).run(live_in_a_family, Path(path))
"""


def live_in_a_family(path: Path) -> None:
    """With a child in a session of its own, and a daemon."""
    child = subprocess.Popen(["sleep", "300"], start_new_session=True)
    daemon = subprocess.check_output(["sh", "-c", "setsid sleep 300 >/dev/null 2>&1 & echo $!"], text=True)
    name = f"{socket.gethostname()}-{os.environ['LOCAL_RANK']}"
    for relative, pid in (("child", child.pid), ("daemon", daemon.strip()), ("worker", os.getpid())):
        mark(path, f"{name}-{relative}", pid)
    threading.Event().wait()


@contextlib.contextmanager
def calling(logins: Logins, path: Path, **more: str) -> Iterator[tuple[subprocess.Popen[bytes], list[int]]]:
    """A caller in a process of its own, and its six workers on three hosts with all that they started."""
    (path / "caller.py").write_text(CALLER)
    line = [*logins.caller.prefix, sys.executable, "caller.py", str(logins.config), str(path)]
    members = ("worker", "child", "daemon")
    with (path / "caller.log").open("wb") as log:
        caller = subprocess.Popen(line, cwd=path, env=clean(**more), stdout=log, stderr=log, start_new_session=True)
        try:
            yield caller, pids(path, *(f"h{n}-{rank}-{each}" for n in (2, 3, 4) for rank in range(2) for each in members))
        finally:
            caller.kill()
            caller.wait()


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGKILL,
        signal.SIGINT,
        *(pytest.param(number, marks=pytest.mark.soak) for number in (signal.SIGTERM, signal.SIGHUP)),
    ],
)
def test_a_caller_that_ends_leaves_nothing_on_any_host(logins: Logins, tmp_path: Path, number: signal.Signals) -> None:
    with calling(logins, tmp_path) as (caller, workers):
        caller.send_signal(number)
        caller.wait(TIMEOUT)
        eventually(lambda: not any(map(lives, workers)), "workers end, and all that they started")


@pytest.mark.soak
def test_a_caller_that_is_stopped_for_long_is_given_up(logins: Logins, tmp_path: Path) -> None:
    with calling(logins, tmp_path) as (caller, workers):
        caller.send_signal(signal.SIGSTOP)
        eventually(lambda: not any(map(lives, workers)), "workers end, and all that they started")


def test_a_caller_that_is_stopped_for_a_while_harms_nobody(logins: Logins, tmp_path: Path) -> None:
    with calling(logins, tmp_path) as (caller, workers):
        caller.send_signal(signal.SIGSTOP)
        time.sleep(2.5)
        caller.send_signal(signal.SIGCONT)
        time.sleep(1.0)
        assert all(map(lives, workers)) and caller.poll() is None


def test_secrets_are_in_no_command_line_of_any_host(logins: Logins, tmp_path: Path) -> None:
    secrets = {"FTLIB_SECRET": "a secret of 33 letters or so, say", "TORCH_TOKEN": "another-that-nobody-may-see"}
    with calling(logins, tmp_path, **secrets) as _:
        seen = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # one that has ended meanwhile
                seen.append(path.read_bytes())
    assert any(b"ftlib.launch.agent" in line for line in seen)
    assert not [line for line in seen for secret in secrets.values() if secret.encode() in line]
