"""Which GPUs there are, and which one a worker of ``ftlib run`` gets."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from ftlib.errors import ConfigError
from ftlib.launch.processes.gpus import Gpu, GpuFinder, chosen_gpus
from ftlib.launch.run.environment import Start, worker_environment
from ftlib.launch.run.plan import StartPlan

from .fake_driver import MODEL, fake_proc, fake_smi, listed, uuid
from .helpers import cli, running, script, wait_until

NOWHERE = Path("/nonexistent")


def found(path: str, driver: Path = NOWHERE, **environment: str) -> tuple[list[str], str]:
    gpus = GpuFinder({"PATH": path, **environment}, driver).find()
    return [gpu.uuid for gpu in gpus.visible], gpus.missing


def test_the_drivers_program_knows_them(tmp_path: Path) -> None:
    path = fake_smi(tmp_path / "bin", listed(3))
    assert GpuFinder({"PATH": path}, NOWHERE).find().visible == tuple(Gpu(MODEL, uuid(number)) for number in range(3))
    everything = fake_proc(tmp_path / "proc", 8)
    assert found(path, everything)[0] == [uuid(number) for number in range(3)], "a container may use three of eight"


def test_without_the_program_its_files_are_read(tmp_path: Path) -> None:
    text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (user@host)\nGCC version: 12\n"
    driver = fake_proc(tmp_path / "proc", 2, text)
    assert found(str(tmp_path), driver) == ([uuid(0), uuid(1)], "")
    assert GpuFinder({}, driver).driver_version() == "570.86.15"
    (driver / "version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
    )
    assert GpuFinder({}, driver).driver_version() == "535.104.05"
    assert GpuFinder({}, NOWHERE).driver_version() == ""


def test_why_there_is_none(tmp_path: Path) -> None:
    assert found(str(tmp_path)) == ([], "no GPU was found: there is no program nvidia-smi, which comes with NVIDIA's driver")
    broken = fake_smi(tmp_path / "broken", "NVIDIA-SMI has failed\nbecause", code=9)
    driver = fake_proc(tmp_path / "proc", 2)
    assert found(broken, driver) == ([], "no GPU was found: nvidia-smi -L failed with 9 (NVIDIA-SMI has failed because)")
    assert found(fake_smi(tmp_path / "none", ""), driver) == ([], "no GPU was found: nvidia-smi -L lists none")
    hidden = found(fake_smi(tmp_path / "two", listed(2)), CUDA_VISIBLE_DEVICES="")
    assert hidden == ([], "CUDA_VISIBLE_DEVICES='' shows none of the 2 GPUs here")


@pytest.mark.parametrize(
    ("chosen", "shown"),
    [
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("2", [2]),
        ("3, 0", [3, 0]),
        ("0,1,9,2", [0, 1]),
        ("0,x,2", [0]),
        ("1,1", []),
        (f"{uuid(2)},{uuid(1)[:12]}", [2, 1]),
        ("GPU-", []),
        ("GPU-dead,0", []),
        ("0,1,2,3", [0, 1, 2, 3]),
    ],
)
def test_what_cuda_shows(chosen: str, shown: list[int]) -> None:
    gpus = tuple(Gpu(MODEL, uuid(number)) for number in range(4))
    assert chosen_gpus(gpus, chosen) == tuple(gpus[number] for number in shown)


def test_instances_are_not_dealt_out(tmp_path: Path) -> None:
    path = fake_smi(tmp_path / "bin", listed(2, split=[1]))
    for chosen in ({}, {"CUDA_VISIBLE_DEVICES": "MIG-10-aa,MIG-11-aa"}):
        gpus = GpuFinder({"PATH": path, **chosen}, NOWHERE).find()
        assert gpus.count == 1
        with pytest.raises(ConfigError, match="MIG instances, and CUDA shows a process only one"):
            gpus.required()
    assert GpuFinder({"PATH": path, "CUDA_VISIBLE_DEVICES": "0"}, NOWHERE).find().required() == 1


def test_a_worker_has_its_slot_and_its_gpu() -> None:
    def environment(index: int, gpus: int) -> dict[str, str]:
        env = worker_environment(
            {"FTLIB_GPU": "7", "LOCAL_RANK": "7"}, StartPlan(("x",), 5, gpus=gpus), Start(index, [], 5), ""
        )
        return {key: env[key] for key in ("LOCAL_RANK", "FTLIB_GPU", "CUDA_VISIBLE_DEVICES") if key in env}

    assert environment(3, 0) == {"LOCAL_RANK": "3"}
    assert [environment(index, 2)["FTLIB_GPU"] for index in range(5)] == ["0", "1", "0", "1", "0"]
    assert environment(4, 2)["LOCAL_RANK"] == "4"


TOLD = "write(f'{INDEX}', os.environ['LOCAL_RANK'] + os.environ['FTLIB_GPU'] + os.environ.get('CUDA_VISIBLE_DEVICES', '-'))\n"


@pytest.mark.process
def test_as_many_workers_as_gpus(tmp_path: Path) -> None:
    path = fake_smi(tmp_path / "bin", listed(4))
    with running(tmp_path, "-n", "gpu", script=script(TOLD), PATH=path, CUDA_VISIBLE_DEVICES="3,1,2") as run:
        _, err = run.finish(0)
        assert [(tmp_path / str(index)).read_text() for index in range(3)] == ["003,1,2", "113,1,2", "223,1,2"]
    assert run.events("run")[0]["gpus"] == 3
    assert "FTLIB_GPU" not in err


@pytest.mark.process
def test_more_workers_than_gpus(tmp_path: Path) -> None:
    path = fake_smi(tmp_path / "bin", listed(2))
    with running(tmp_path, "-n", 3, script=script(TOLD), PATH=path) as run:
        _, err = run.finish(0)
        assert [(tmp_path / str(index)).read_text() for index in range(3)] == ["00-", "11-", "20-"]
    assert err.count("3 workers share 2 GPUs (FTLIB_GPU)") == 1


@pytest.mark.process
def test_no_gpus_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "x.py").touch()
    done = cli("run", "-n", "gpu", "x.py", cwd=tmp_path, PATH=fake_smi(tmp_path / "bin", ""))
    assert done.returncode == 2
    assert done.stderr == (
        "ftlib: error: -n gpu: no GPU was found: nvidia-smi -L lists none: give -n the number of workers, which then compute "
        "on the CPU\n"
    )
    done = cli("run", "-n", "gpus", "x.py", cwd=tmp_path)
    assert done.returncode == 2 and "'gpus' is neither a number of at least 1 nor auto, gpu or cpu" in done.stderr


@pytest.mark.process
def test_who_replaces_a_worker_takes_its_gpu_once_that_is_gone(tmp_path: Path) -> None:
    """All die, several times, in different orders: no GPU ever has two processes, and none is left without."""
    body = """
import fcntl
gpu = os.environ["FTLIB_GPU"]
lock = open(f"gpu-{gpu}", "a+")
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises while the process that had it is there
lock.write(f"{INDEX}\\n")
lock.flush()
lives = open(f"gpu-{gpu}").read().count("\\n")
write(f"life-{INDEX}-{lives}", os.getpid())
wait("over")
"""
    path = fake_smi(tmp_path / "bin", listed(3))
    with running(tmp_path, "-n", "gpu", "--max-restarts", 9, "--restart-delay", 0, script=script(body), PATH=path) as run:
        for life in range(1, 4):
            pids = [int(run.wait_file(f"life-{index}-{life}")) for index in range(3)]
            if life < 3:
                for index in (range(3), reversed(range(3)))[life % 2]:
                    os.kill(pids[index], signal.SIGKILL)
        (tmp_path / "over").touch()
        run.finish(0)
        wait_until(lambda: len(run.events("over")) == 1, "the end")
    assert [(tmp_path / f"gpu-{gpu}").read_text().split() for gpu in range(3)] == [[str(gpu)] * 3 for gpu in range(3)]
    assert all(event["code"] in (0, -signal.SIGKILL) for event in run.events("ended")), "a lock was held"
