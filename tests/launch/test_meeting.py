"""What ``--meet`` means: a list of places, or the variables of Kubeflow and Slurm. Pure."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path

import pytest

from ftlib import ConfigError
from ftlib.launch.run.meeting import meeting
from ftlib.launch.run.place import MeetingPlace
from ftlib.launch.run.plan import Meeting
from tests.harness.basics import free_ports

from .helpers import cli

TRAINJOB = {
    "PET_NNODES": "3",
    "PET_NPROC_PER_NODE": "4",
    "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "digits-node-0-0.digits",
    "PET_MASTER_PORT": "29500",
}
ELASTIC = {"PET_NNODES": "2:3", "PET_RDZV_ENDPOINT": "digits-worker-0:23456", "PET_RDZV_ID": "digits"}
MASTER = {"PET_NNODES": "3", "PET_MASTER_ADDR": "digits-master-0", "PET_MASTER_PORT": "23456"}
STEP = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_RESTART_COUNT": "1"}
PORT = 20_000 + 31 * 4711 % 10_000


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (
            TRAINJOB,
            Meeting(
                tuple(f"digits-node-0-{number}.digits:29500" for number in range(3)),
                12,
                "kubeflow-digits-node-0-0",
                "Kubeflow",
            ),
        ),
        (ELASTIC, Meeting(tuple(f"digits-worker-{n}:23456" for n in range(3)), 8, "kubeflow-digits", "Kubeflow")),
        (
            MASTER,
            Meeting(
                ("digits-master-0:23456", "digits-worker-0:23456", "digits-worker-1:23456"),
                12,
                "kubeflow-digits-master-0",
                "Kubeflow",
            ),
        ),
        (STEP, Meeting((f"n1:{PORT}", f"n2:{PORT}"), 8, "slurm-4711.0-1", "Slurm")),
        ({**STEP, "FTLIB_PORT": "7000"}, Meeting(("n1:7000", "n2:7000"), 8, "slurm-4711.0-1", "Slurm")),
        (
            {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1"},
            Meeting((f"n1:{20_000 + 7 * 31}",), 4, "slurm-7.batch-0", "Slurm"),
        ),
    ],
    ids=["trainjob", "elastic", "master", "step", "port", "batch"],
)
def test_variables_that_are_understood(environment: Mapping[str, str], expected: Meeting) -> None:
    assert meeting("auto", environment, workers=4, size=None) == expected
    assert meeting("auto", environment, workers=4, size=5).size == 5


def test_a_list() -> None:
    found = meeting("a:7000, b:7001,[fd00::1]:7000", {}, workers=2, size=6)
    assert (found.introducers, found.size) == (("a:7000", "b:7001", "[fd00::1]:7000"), 6)
    assert found.job == "meet-a-7000-b-7001--fd00-1-7000"
    assert len(meeting(",".join(f"host{n}:7000" for n in range(40)), {}, workers=2, size=80).job) <= 64


@pytest.mark.parametrize(
    ("text", "environment", "size", "words"),
    [
        ("auto", {}, None, "found neither Kubeflow's variables .* nor a step of Slurm's: give --meet HOST:PORT"),
        ("auto", {**TRAINJOB, "PET_NNODES": "3:2"}, None, "PET_NNODES='3:2' is neither"),
        ("auto", {**STEP, "SLURM_STEP_ID": str((1 << 32) - 5)}, None, "srun --ntasks-per-node=1 ftlib run"),
        ("workers:7000", {}, None, "--meet needs --size"),
        ("workers:7000", {}, 3, r"--size 3: workers of all hosts together, at least -n \(4\)"),
        ("workers:0", {}, 8, "all hosts must know the port"),
        ("workers", {}, 8, "is not an address: expected host:port"),
        (" , ", {}, 8, "give HOST:PORT, or auto"),
    ],
)
def test_mistakes_are_named_with_their_remedy(text: str, environment: Mapping[str, str], size: int | None, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        meeting(text, environment, workers=4, size=size)


def test_worker_0_listens_at_the_place_and_the_others_beside_it() -> None:
    first, second = free_ports(2)
    found = meeting(f"127.0.0.1:{first},127.0.0.1:{second}", {}, workers=2, size=4)
    one, two = MeetingPlace(found, 2), MeetingPlace(found, 2)
    start, sockets = one.start(0, ())
    other, more = two.start(0, ("127.0.0.1:9",))
    assert sockets is not None and more is not None
    with sockets.tcp, sockets.udp, more.tcp, more.udp:
        assert (start.bind, other.bind) == (f"127.0.0.1:{first}", f"127.0.0.1:{second}")
        assert other.introducers == ["127.0.0.1:9", f"127.0.0.1:{first}", f"127.0.0.1:{second}"]
        assert one.start(1, ())[0].bind == "127.0.0.1:0" and one.start(1, ())[1] is None
        assert start.initial_size == 4
        with pytest.raises(ConfigError, match="is taken: one ftlib run a host and job, or another port on all hosts"):
            MeetingPlace(found, 2).start(0, ())
    again, sockets = one.start(0, ())
    assert sockets is not None
    sockets.close()
    assert again.bind == start.bind, "a restarted worker 0 listens where the others look for it"


def test_a_name_of_this_host_that_others_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = socket.getaddrinfo

    def lookup(host: str, *rest: object, **more: object) -> object:
        return usual("127.0.1.1" if host == "node1" else host, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    with pytest.raises(ConfigError, match=r"here node1 is 127.0.1.1, which other hosts cannot reach: correct /etc/hosts"):
        MeetingPlace(meeting("node1:7000,10.99.0.1:7000", {}, workers=2, size=4), 2)
    assert MeetingPlace(meeting("node1:7000", {}, workers=2, size=2), 2).host == "127.0.1.1", "alone that is well"


@pytest.mark.process
def test_a_secret_is_needed_that_others_know(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    done = cli("run", "-n", 2, "--meet", "127.0.0.1:7000", "--size", 4, "train.py", cwd=tmp_path, FTLIB_SECRET="")
    assert done.returncode == 2
    assert "need a secret that all know: FTLIB_SECRET_FILE=FILE" in done.stderr
    done = cli("run", "-n", 2, "--size", 4, "train.py", cwd=tmp_path)
    assert done.returncode == 2 and "give --meet HOST:PORT" in done.stderr
