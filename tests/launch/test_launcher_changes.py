"""What changes under an elastic launch: starts that overlap, hosts that refuse or stay away, secrets, lists, spares."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from consensus import KeyRing
from ftlib import AgentFailedError, Launch
from ftlib.lifecycle.supervisor_client import announce, ask_again
from tests.harness.basics import TIMEOUT, eventually
from tests.launch.helpers import cli
from tests.launch.launching import kill, launcher, mark, no_child_is_left, wait_for
from tests.launch.test_launcher_elastic import FAST, member, running

pytestmark = pytest.mark.process


def shut(path: Path) -> list[str]:
    """A transport to hosts here, of which one refuses its login while ``NAME.shut`` exists."""
    text = f'if test -e {path}/{{host}}.shut; then echo "{{host}}: Permission denied (publickey)." >&2; exit 255; fi; exec "$@"'
    return ["/bin/sh", "-c", text, "sh"]


def agent_of(pid: int) -> int:
    """The process that started a worker."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


# Starts


def fails_first(path: Path, size: int) -> str:
    """Worker 0 raises something large at its first start, and returns something small at its next."""
    if os.environ["FTLIB_WORKER_INDEX"] == "0":
        if not (path / "failed").exists():
            mark(path, "failed")
            error = RuntimeError("it has much to carry")
            error.luggage = bytes(size)  # type: ignore[attr-defined]
            raise error
        mark(path, "done")
        return "the second start's"
    wait_for(path / "done")
    return "the other's"


def test_a_result_is_not_mixed_up_with_what_an_earlier_start_left(tmp_path: Path) -> None:
    """The next start ends while the large exception of the first is still on its way."""
    launch = launcher(workers=2, max_restarts=1, restart_delay=0.0).start(fails_first, tmp_path, 100 << 20)
    assert launch.wait(TIMEOUT).results["localhost"] == ["the second start's", "the other's"]


def leaves_and_comes_back(path: Path) -> str:
    env = os.environ
    if (path / "left").exists():
        return "back"
    key = KeyRing([env["FTLIB_SECRET"]]).first
    assert ask_again(env["FTLIB_SUPERVISOR"], key.vouch, job=env["FTLIB_JOB"], member="m", timeout=TIMEOUT)
    mark(path, "left")
    return "left"


def test_a_worker_that_leaves_on_purpose_is_started_again(tmp_path: Path) -> None:
    assert launcher(workers=1, max_restarts=1, **FAST).run(leaves_and_comes_back, tmp_path).results["localhost"] == ["back"]


def asks_in_vain() -> bool:
    env = os.environ
    key = KeyRing([env["FTLIB_SECRET"]]).first
    return ask_again(env["FTLIB_SUPERVISOR"], key.vouch, job=env["FTLIB_JOB"], member="m", timeout=TIMEOUT)


def test_nobody_is_started_again_in_a_launch_that_is_fixed() -> None:
    assert launcher(workers=1).run(asks_in_vain).rank(0) is False


def ranks() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if "RANK" in name or "MASTER" in name or "WORLD_SIZE" in name}


def test_ranks_of_another_launcher_are_not_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "77")
    monkeypatch.setenv("FTLIB_REPLICA", "7-1")
    [found] = launcher(workers=1, min_workers=1, **FAST).run(ranks).results["localhost"]
    assert found == {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}


def has_what_others_imported(path: Path) -> bool:
    if os.environ["FTLIB_WORKER_INDEX"] == "1":
        wait_for(path / "done")
        return True
    if "torch._dynamo" not in sys.modules:
        sys.exit(3)
    mark(path, "done")
    return True


@pytest.mark.soak
def test_replacements_need_not_import_what_a_worker_that_trains_needs(tmp_path: Path) -> None:
    """The warm process imports it once it has time; until then starts fail, and are repeated."""
    launch = launcher(workers=2, max_restarts=10_000, restart_delay=1.5, preload=("torch",)).start(
        has_what_others_imported, tmp_path
    )
    assert launch.wait(150).results["localhost"] == [True, True]


def has_what_training_needs(path: Path) -> bool:
    found = "torch._dynamo" in sys.modules
    member(path)
    return found


@pytest.mark.soak
def test_a_worker_that_joins_finds_imported_what_training_needs(tmp_path: Path) -> None:
    """However soon it is asked for: the warm process imports once what each that comes would import for itself."""
    launch = launcher(workers=2, max_restarts=10, restart_delay=0.0, preload=("torch",)).start(
        has_what_training_needs, tmp_path
    )
    first = running(launch, 2)[0]["pid"]
    kill(first)
    eventually(lambda: first not in [each["pid"] for each in running(launch, 2)], launch.workers)
    mark(tmp_path, "finish")
    assert sorted(launch.wait(TIMEOUT).results["localhost"]) == [False, True]


# Secrets


def follows_the_secrets(path: Path, new: str) -> list[str]:
    """Wait for the new secret; then the launcher is asked with it."""
    env = os.environ
    assert "FTLIB_SECRET" not in env
    file = Path(env["FTLIB_SECRET_FILE"])
    first = file.read_text().split()
    assert file.stat().st_mode & 0o077 == 0
    mark(path, f"up-{env['RANK']}")
    while new not in file.read_text().split():
        time.sleep(0.01)
    facts = {"job": env["FTLIB_JOB"], "member": f"m{os.getpid()}", "address": "a:1", "epoch": 1}
    assert announce(env["FTLIB_SUPERVISOR"], KeyRing([new]).first.vouch, **facts, timeout=TIMEOUT)
    return [*first, str(file)]


def test_a_file_of_secrets_is_followed_on_all_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = "the old secret, of 33 letters say", "the new secret, of 33 letters say"
    old, new = old.replace(" ", "-"), new.replace(" ", "-")
    path = tmp_path / "secrets"
    path.touch(0o600)
    path.write_text(f"# of all members\n{old}\n")
    monkeypatch.setenv("FTLIB_SECRET_FILE", str(path))
    with no_child_is_left():
        launch = launcher("localhost", "127.0.0.1", workers=1).start(follows_the_secrets, tmp_path, new)
        for rank in range(2):
            eventually((tmp_path / f"up-{rank}").exists, "workers")
        path.write_text(f"{old}\n{new}\n")
        found = [launch.wait(TIMEOUT).rank(rank) for rank in range(2)]
    assert [each[0] for each in found] == [old, old]
    copies = {each[1] for each in found}
    assert len(copies) == 2 and str(path) not in copies
    eventually(lambda: not any(Path(copy).exists() for copy in copies), "the copies are removed")


# Hosts


def test_a_host_that_refuses_is_an_error_where_it_is_needed(tmp_path: Path) -> None:
    (tmp_path / "b.shut").touch()
    with no_child_is_left(), pytest.raises(AgentFailedError, match="Permission denied") as caught:
        launcher("localhost", "b", workers=1, min_workers=2, transport=shut(tmp_path), **FAST).run(ranks)
    assert caught.value.host == "b"


def test_a_host_that_refuses_is_no_obstacle_where_it_is_not_needed(tmp_path: Path) -> None:
    """It is called again, and joins when it has changed its mind."""
    (tmp_path / "127.0.0.1.shut").touch()
    hosts = ("localhost", "127.0.0.1")
    with no_child_is_left():
        launch = launcher(*hosts, workers=1, min_workers=1, transport=shut(tmp_path), **FAST).start(member, tmp_path)
        running(launch, 1)
        (tmp_path / "127.0.0.1.shut").unlink()
        assert {each["host"] for each in running(launch, 2)} == set(hosts)
        (tmp_path / "finish").touch()
        launch.wait(TIMEOUT)


def lose(launch: Launch, path: Path, host: str) -> None:
    """Kill a host's agent; it cannot be logged in to any more."""
    (path / f"{host}.shut").touch()
    kill(agent_of(next(each["pid"] for each in launch.workers() if each["host"] == host)))


def test_workers_of_a_lost_host_start_where_there_is_room(tmp_path: Path) -> None:
    hosts = ("localhost", "127.0.0.1")
    with no_child_is_left():
        launch = launcher(*hosts, workers=2, min_workers=1, transport=shut(tmp_path), **FAST).start(member, tmp_path)
        running(launch, 4)
        lose(launch, tmp_path, "127.0.0.1")
        running(launch, 2)
        launch.add_hosts(["[::1]:3"])
        moved = running(launch, 5)
        assert [(each["worker"], each["starts"]) for each in moved if each["host"] == "::1"] == [(2, 2), (3, 2), (4, 1)]
        assert sorted(each["local_rank"] for each in moved if each["host"] == "::1") == [0, 1, 2]
        (tmp_path / "127.0.0.1.shut").unlink()
        assert sorted(each["worker"] for each in running(launch, 7)) == list(range(7))
        (tmp_path / "finish").touch()
        assert sum(map(len, launch.wait(TIMEOUT).results.values())) == 7


def test_the_workers_of_a_host_that_is_ended_by_a_signal_come_back(tmp_path: Path) -> None:
    """Slurm or an administrator ends one agent: its workers are sent away, which is no end of theirs, nor a failure."""
    with no_child_is_left():
        launch = launcher("localhost", "127.0.0.1", workers=1, min_workers=1, **FAST).start(member, tmp_path)
        workers = running(launch, 2)
        os.kill(agent_of(workers[1]["pid"]), signal.SIGTERM)
        eventually(lambda: [each["starts"] for each in launch.workers()] == [1, 2], launch.workers)
        running(launch, 2)
        (tmp_path / "finish").touch()
        launch.wait(TIMEOUT)


def test_a_signal_to_an_agent_is_named_by_a_launch_that_is_fixed(tmp_path: Path) -> None:
    with no_child_is_left():
        launch = launcher(workers=2, **FAST).start(member, tmp_path)
        os.kill(agent_of(running(launch, 2)[0]["pid"]), signal.SIGTERM)
        with pytest.raises(AgentFailedError, match="localhost: its agent got SIGTERM"):
            launch.wait(TIMEOUT)


def stays(path: Path) -> None:
    """No SIGTERM ends it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    mark(path, "deaf")
    time.sleep(TIMEOUT)


def test_an_agent_that_gets_a_signal_tells_the_ends_of_workers_that_it_has_to_kill(tmp_path: Path) -> None:
    with no_child_is_left():
        launch = launcher(workers=1, restart_delay=0.05, grace=0.2).start(stays, tmp_path)
        wait_for(tmp_path / "deaf")
        eventually(lambda: launch.workers()[0]["pid"], launch.workers)  # its agent tells that beside what it does
        os.kill(agent_of(launch.workers()[0]["pid"]), signal.SIGTERM)
        with pytest.raises(AgentFailedError, match="localhost: its agent got SIGTERM"):
            launch.wait(TIMEOUT)


SCRIPT = """
import os, sys
from pathlib import Path
from tests.launch.test_launcher_elastic import member
print("worker", os.environ["FTLIB_NAME"], flush=True)
member(Path(sys.argv[1]))
"""


@pytest.mark.soak
def test_ftlib_run_follows_what_a_command_discovers(tmp_path: Path) -> None:
    """Hosts come, change their number of slots, go; a command that fails or says nothing changes nothing."""
    hosts, script = tmp_path / "hosts", tmp_path / "script.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(Path(__file__).resolve().parents[2])!r})\n{SCRIPT}")
    hosts.write_text("localhost:1\n")
    events = tmp_path / "events"

    def act() -> None:
        def names(host: str) -> int:
            return len(list(tmp_path.glob(f"{host}-[0-9]-*")))

        def change(text: str) -> None:
            (tmp_path / "new").write_text(text)
            (tmp_path / "new").rename(hosts)

        eventually(lambda: names("localhost") == 1, "one worker")
        change("localhost:1\n127.0.0.1:1\n")
        eventually(lambda: names("127.0.0.1") == 1, "a host comes")
        change("localhost:1\n127.0.0.1:2\n")
        eventually(lambda: names("127.0.0.1") == 2, "it gets another slot")
        change("")
        change("127.0.0.1:2\n")
        eventually(lambda: '"code": 0' in events.read_text(), "a host drains")
        (tmp_path / "finish").touch()

    with ThreadPoolExecutor() as pool:
        acts = pool.submit(act)
        done = cli(
            *("run", "--discover", f"cat {hosts}", "--transport", "local", "--events", events, "-n", 1, "script.py", tmp_path),
            cwd=tmp_path,
        )
        acts.result(120)
    assert done.returncode == 0, done.stderr
    assert "[ftlib] it was removed from the list: it drains" in done.stderr
    assert "2 of 3 workers finished" in done.stderr


def test_a_removed_host_drains_and_one_that_obeys_nothing_is_killed(tmp_path: Path) -> None:
    with no_child_is_left():
        launch = launcher("localhost", "127.0.0.1", workers=1, min_workers=1, grace=0.5).start(stubborn, tmp_path)
        workers = running(launch, 2)
        launch.remove_hosts(["127.0.0.1"])
        eventually(lambda: [each["phase"] for each in launch.workers()].count("not needed any more") == 1, launch.workers)
        assert [each["code"] for each in launch.workers() if each["host"] == "127.0.0.1"] == [-signal.SIGKILL]
        os.kill(next(each["pid"] for each in workers if each["host"] == "localhost"), 0)
        launch.cancel()
        launch.cancel()
        eventually(lambda: launch.done, launch.workers)


@pytest.mark.soak
def test_a_removed_host_that_is_added_while_it_drains_comes_back(tmp_path: Path) -> None:
    with no_child_is_left():
        launch = launcher("localhost", "127.0.0.1", workers=1, min_workers=1, grace=0.5).start(stubborn, tmp_path)
        running(launch, 2)
        launch.remove_hosts(["127.0.0.1"])
        launch.add_hosts(["127.0.0.1"])
        eventually(lambda: [each["starts"] for each in launch.workers()] == [1, 2], launch.workers)
        running(launch, 2)
        launch.cancel()
        launch.cancel()
        eventually(lambda: launch.done, launch.workers)


def stubborn(path: Path) -> None:
    """A member that heeds no SIGTERM."""
    member_ignoring(path, signal.SIG_IGN)


def member_ignoring(path: Path, handler: Any) -> None:
    env = os.environ
    signal.signal(signal.SIGTERM, handler)
    key = KeyRing([env["FTLIB_SECRET"]]).first
    facts = {"job": env["FTLIB_JOB"], "member": f"m{os.getpid()}", "address": f"a:{os.getpid()}", "epoch": 1}
    assert announce(env["FTLIB_SUPERVISOR"], key.vouch, **facts, timeout=TIMEOUT)
    while not (path / "finish").exists():
        time.sleep(0.01)


# Spares


def trains(path: Path) -> int:
    """Average until told to finish; says how large the group is, and that it takes part."""
    import torch

    from ftlib import FTLib

    log = path / f"log-{os.environ['FTLIB_WORKER_INDEX']}"
    logging.basicConfig(filename=log, level=logging.DEBUG, format="%(asctime)s %(message)s")
    ft = FTLib.init(framework="gloo")
    model = torch.nn.Linear(2, 2)
    ft.register_state(model=model)
    while not (path / "finish").exists():
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        ft.allreduce_average(model)  # a spare waits here
        mark(path, f"member-{os.environ['FTLIB_WORKER_INDEX']}-{os.getpid()}")
        mark(path, "size", ft.size)
        time.sleep(0.01)
    size = ft.size
    ft.close()
    return size


@pytest.mark.soak
def test_workers_above_max_workers_are_spares_and_take_over(tmp_path: Path) -> None:
    hosts = ("localhost", "127.0.0.1")
    with no_child_is_left():
        settings = {"max_workers": 2, "min_workers": 1, "max_restarts": 0, "preload": ("torch",), "grace": 5.0}
        launch = launcher(*hosts, workers=[1, 2], **settings).start(trains, tmp_path)

        def members() -> dict[int, int]:
            found = [path.name.split("-")[1:] for path in tmp_path.glob("member-*")]
            return {int(index): int(pid) for index, pid in found}

        def story() -> str:
            logs = "\n".join(f"{path.name}:\n{path.read_text()[-4000:]}" for path in sorted(tmp_path.glob("log-*")))
            return f"{members()} {launch.workers()}\n{logs}"

        eventually(lambda: len(members()) == 2, lambda: f"two members: {story()}")
        first = members()
        assert (tmp_path / "size").read_text() == "2"
        kill(min(first.values()))
        eventually(lambda: len(members()) == 3, lambda: f"the spare takes over: {story()}")
        eventually(lambda: (tmp_path / "size").read_text() == "2", "they are two again")
        # A failure that comes to light after all others have ended is the launch's: this one shall be known before.
        eventually(lambda: "failed" in [each["phase"] for each in launch.workers()], launch.workers)
        (tmp_path / "finish").touch()
        result = launch.wait(90)
    assert sum(map(len, result.results.values())) == 2 and len(result.failures) == 1


# Stopped while the warm process imports

SLOW = """
import os, time
from pathlib import Path
if os.environ["V_HOST"] != "localhost":
    place = Path(os.environ["V_PLACE"])
    (place / "importing").touch()
    while not (place / "imported").exists():
        time.sleep(0.01)  # between two looks
"""


def slowly(path: Path, *hosts: str, **more: Any) -> Launch:
    """A launch of members; hosts but localhost import something until they are told to go on."""
    (path / "slow_one.py").write_text(SLOW)
    variables = {"PYTHONPATH": str(path), "V_PLACE": str(path)}
    how = {"preload": ("slow_one",), "extra_env_vars": variables, "transport": ["env", "V_HOST={host}"], **FAST, **more}
    return launcher(*hosts, workers=2, **how).start(member, path)


def test_a_launch_that_is_cancelled_while_modules_are_imported_calls_no_function(tmp_path: Path) -> None:
    with no_child_is_left():
        launch = slowly(tmp_path, "127.0.0.1", grace=TIMEOUT)
        eventually((tmp_path / "importing").exists, "the import")
        eventually(lambda: len(launch.workers()) == 2, launch.workers)  # they are to be started, and cannot be yet
        launch.cancel()
        eventually(lambda: launch.done, launch.workers)
        (tmp_path / "imported").touch()
    assert not list(tmp_path.glob("127.0.0.1-*"))


@pytest.mark.soak
def test_a_host_that_is_removed_while_it_imports_goes_and_may_come_back(tmp_path: Path) -> None:
    with no_child_is_left():
        launch = slowly(tmp_path, "localhost", "127.0.0.1", min_workers=1)
        running(launch, 2)
        eventually((tmp_path / "importing").exists, "the import")
        launch.remove_hosts(["127.0.0.1"])
        eventually(lambda: [each["phase"] for each in launch.workers()].count("not needed any more") == 2, launch.workers)
        (tmp_path / "imported").touch()
        launch.add_hosts(["127.0.0.1"])
        assert [each["starts"] for each in running(launch, 4)] == [1, 1, 2, 2]
        assert len(list(tmp_path.glob("127.0.0.1-*"))) == 2
        (tmp_path / "finish").touch()
        launch.wait(TIMEOUT)
