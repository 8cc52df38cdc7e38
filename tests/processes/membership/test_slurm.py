"""``ftlib run`` in jobs of a real Slurm of two nodes: in a batch script, a launcher on each node, cancelled, requeued."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.harness.basics import eventually
from tests.harness.network import Network, needs_network
from tests.harness.program import ROOT
from tests.harness.slurm import Slurm, needs_slurm

pytestmark = [pytest.mark.process, needs_network, needs_slurm, pytest.mark.timeout(600)]

SECRET = {"FTLIB_SECRET": "the secret of this job's workers"}
RUN = f"{sys.executable} -m ftlib.launch"

STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
loader = subprocess.Popen(["sleep", "1000"], start_new_session=True)
print("worker", os.environ["FTLIB_WORKER_INDEX"], os.environ["FTLIB_INTRODUCERS"], os.environ["FTLIB_INITIAL_SIZE"], flush=True)
time.sleep(1000)
"""
"""Heeds no SIGTERM, and has a child in a session of its own. Without torch: what Slurm does to it is the same."""

TRAIN = f"""
import json, os, sys, time
sys.path.insert(0, {str(ROOT)!r})
import torch
from ftlib import FTLib

last, place = int(sys.argv[1]), sys.argv[2]
ft = FTLib.init(framework="gloo")
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
ft.register_state(model=model, optimizer=optimizer)
print(json.dumps({{"began": ft.step, "size": ft.size}}), flush=True)
while ft.step < last and not ft.should_leave:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    if ft.allreduce_average(model):
        optimizer.step()
        if ft.step % 20 == 0:
            ft.save(place)
            print(json.dumps({{"step": ft.step, "size": ft.size}}), flush=True)
    optimizer.zero_grad()
    time.sleep(0.02)
print(json.dumps({{"ended": ft.step, "size": ft.size}}), flush=True)
ft.close()
"""
"""Trains to a given step, with a checkpoint every 20; says where it began."""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    network = Network(3)
    with network as hosts, Slurm(tmp_path_factory.mktemp("slurm"), hosts) as slurm:
        (slurm.directory / "train.py").write_text(TRAIN)
        (slurm.directory / "stubborn.py").write_text(STUBBORN)
        yield slurm


def said(slurm: Slurm, job: int, key: str) -> list[dict[str, int]]:
    """What workers have printed, those lines that have ``key``."""
    lines = [line[line.index("{") :] for line in slurm.output(job).splitlines() if line.endswith("}") and '{"' in line]
    return [line for line in map(json.loads, lines) if key in line]


def gone(slurm: Slurm) -> float:
    """Seconds until no process of a job is left on any node."""
    return eventually(lambda: not slurm.processes(), slurm.processes)


def test_a_cancelled_job_leaves_nothing_behind(slurm: Slurm) -> None:
    """A launcher on each node; the workers heed no signal, and have children in sessions of their own."""
    job = slurm.submit(
        f"#!/bin/sh\nsrun --ntasks-per-node=1 {RUN} -n 2 --meet auto --grace 1 stubborn.py\n", "-N2", environment=SECRET
    )
    eventually(lambda: slurm.output(job).count(" worker ") == 4, lambda: slurm.output(job) + slurm.logs())
    port = 20_000 + 31 * job % 10_000
    assert slurm.output(job).count(f"n1:{port},n2:{port} 4") == 4
    assert list(slurm.processes().values()).count("sleep 1000") == 4
    slurm.run("scancel", str(job))
    gone(slurm)
    slurm.wait(job, "CANCELLED")


@pytest.mark.soak
@pytest.mark.parametrize("attempt", range(10))
def test_again_and_again(slurm: Slurm, attempt: int) -> None:
    """A job in a batch script alone, cancelled by SIGKILL: ``--full`` has the script killed as well."""
    job = slurm.submit(f"#!/bin/sh\nexec {RUN} -n 3 stubborn.py\n", "-N1")
    eventually(lambda: slurm.output(job).count(" worker ") == 3, lambda: slurm.output(job) + slurm.logs())
    slurm.run("scancel", *(["--full"] if attempt % 2 else []), "--signal=KILL", "--batch", str(job))
    assert gone(slurm) < 10
    slurm.run("scancel", str(job))
    slurm.wait(job, "CANCELLED", "FAILED", "COMPLETED")


@pytest.mark.soak
def test_a_launcher_on_each_node(slurm: Slurm, tmp_path: Path) -> None:
    """They train together; one node's workers are killed and come back."""
    line = f"srun --ntasks-per-node=1 --kill-on-bad-exit=0 {RUN} -n 2 --meet auto --restart-delay 0.2 train.py 9999 {tmp_path}"
    job = slurm.submit(f"#!/bin/sh\n{line}\n", "-N2", environment=SECRET)
    eventually(lambda: said(slurm, job, "step"), lambda: slurm.output(job) + slurm.logs())
    assert {line["size"] for line in said(slurm, job, "began")} == {4}
    victims = [pid for pid, line in slurm.processes("n2").items() if line.startswith(f"{sys.executable} train.py")]
    assert len(victims) == 2
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    for size in (2, 4):
        eventually(lambda size=size: said(slurm, job, "step")[-1]["size"] == size, lambda: slurm.output(job))
    slurm.run("scancel", str(job))
    gone(slurm)


@pytest.mark.soak
def test_a_launcher_that_is_killed_takes_its_workers_alone(slurm: Slurm, tmp_path: Path) -> None:
    """The task of one node ends, and ``--kill-on-bad-exit=0`` has the other one go on, with two workers."""
    line = f"srun --ntasks-per-node=1 --kill-on-bad-exit=0 {RUN} -n 2 --meet auto train.py 9999 {tmp_path}"
    job = slurm.submit(f"#!/bin/sh\n{line}\n", "-N2", environment=SECRET)
    eventually(lambda: said(slurm, job, "step"), lambda: slurm.output(job) + slurm.logs())
    assert {line["size"] for line in said(slurm, job, "began")} == {4}
    launchers = [pid for pid, line in slurm.processes("n2").items() if "-m ftlib.launch -n 2" in line]
    [task] = [pid for pid in launchers if "slurmstepd" in " ".join(psutil.Process(psutil.Process(pid).ppid()).cmdline())]
    before = said(slurm, job, "step")[-1]["step"]
    os.kill(task, signal.SIGKILL)
    eventually(lambda: not slurm.processes("n2"), lambda: slurm.processes("n2"))
    eventually(
        lambda: [line for line in said(slurm, job, "step") if line["size"] == 2 and line["step"] > before + 40],
        lambda: slurm.output(job),
    )
    assert slurm.facts(job)["JobState"] == "RUNNING"
    slurm.run("scancel", str(job))
    gone(slurm)


@pytest.mark.soak
def test_a_requeued_job_goes_on_from_its_checkpoint(slurm: Slurm, tmp_path: Path) -> None:
    """``scontrol requeue``, as after a node that failed or a job that was preempted."""
    place = tmp_path / "checkpoints"
    script = f"#!/bin/sh\nexec {RUN} -n 2 --resume {place} train.py 400 {place}\n"
    job = slurm.submit(script, "-N1", "--requeue", "--open-mode=append")
    eventually(lambda: len(said(slurm, job, "step")) >= 4, lambda: slurm.output(job) + slurm.logs())
    slurm.run("scontrol", "requeue", str(job))
    facts = slurm.wait(job, "COMPLETED", "FAILED", limit=180)
    assert (facts["JobState"], facts["Restarts"]) == ("COMPLETED", "1"), slurm.output(job)
    began = [line["began"] for line in said(slurm, job, "began")]
    assert began[:2] == [0, 0] and len(began) == 4 and min(began[2:]) >= 20, slurm.output(job)
    assert [line["ended"] for line in said(slurm, job, "ended")][-2:] == [400, 400]


@pytest.mark.soak
@pytest.mark.parametrize("notice", ["TERM", "USR1"])
def test_a_notice_to_all_steps_drains_them(slurm: Slurm, tmp_path: Path, notice: str) -> None:
    """``--signal=USR1@60``: Slurm signals every process of the step, launchers, guards and workers alike."""
    place = tmp_path / "checkpoints"
    line = f"srun --ntasks-per-node=1 --kill-on-bad-exit=0 {RUN} -n 2 --meet auto --grace 60 train.py 100000 {place}"
    environment = {**SECRET, "FTLIB_PREEMPTION": "signal:USR1"}
    job = slurm.submit(f"#!/bin/sh\n{line}\necho code $?\n", "-N2", environment=environment)
    eventually(lambda: len(said(slurm, job, "step")) >= 4, lambda: slurm.output(job) + slurm.logs())
    slurm.run("scancel", f"--signal={notice}", str(job))
    eventually(lambda: "code " in slurm.output(job), lambda: slurm.output(job) + slurm.logs())
    told = slurm.output(job)
    assert len(said(slurm, job, "ended")) == 4, told
    assert "killed" not in told and "interrupted twice" not in told, told
    assert f"code {128 + signal.Signals['SIG' + notice]}" in told, told
    gone(slurm)


@pytest.mark.soak
def test_a_job_whose_time_ends_is_warned_and_drains(slurm: Slurm, tmp_path: Path) -> None:
    """``--signal=B:TERM@20``: the workers finish their call, and the script asks to be queued again."""
    place = tmp_path / "checkpoints"
    script = (
        f"#!/bin/sh\n{RUN} -n 2 --resume {place} train.py 100000 {place} &\nrun=$!\n"
        'trap "kill -TERM $run" TERM\nwait $run; code=$?\n[ $code -gt 128 ] && wait $run; code=$?\necho "code $code"\n'
    )
    began = time.monotonic()
    job = slurm.submit(script, "-N1", "--time=1", "--signal=B:TERM@20")
    slurm.wait(job, "COMPLETED", "FAILED", "TIMEOUT", limit=150)
    assert "SIGTERM: draining the workers" in slurm.output(job), slurm.output(job)
    assert "code 143" in slurm.output(job), slurm.output(job)
    assert len(said(slurm, job, "ended")) == 2
    assert time.monotonic() - began < 80


@pytest.mark.soak
def test_the_example_goes_on_after_each_end_of_its_time(slurm: Slurm, tmp_path: Path) -> None:
    """``examples/slurm/train.sbatch`` itself, with times and numbers of this cluster: SIGUSR1, drained, requeued, resumed."""
    script = (ROOT / "examples" / "slurm" / "train.sbatch").read_text()
    for text, instead in (
        ("-n gpu", "-n 2"),
        ('"$SLURM_SUBMIT_DIR/checkpoints" train.py', f"{tmp_path} train.py 1500 {tmp_path}"),
        ("#SBATCH --gpus-per-node=8\n", ""),
    ):
        assert text in script
        script = script.replace(text, instead)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    job = slurm.submit(script, "-N2", "--cpus-per-task=2", "--time=2", environment={"PATH": path})
    facts = slurm.wait(job, "COMPLETED", "FAILED", "TIMEOUT", limit=500)
    told = slurm.output(job)
    assert facts["JobState"] == "COMPLETED" and int(facts["Restarts"]) >= 1, told
    assert "SIGUSR1: draining the workers" in told, told
    assert max(line["began"] for line in said(slurm, job, "began")) >= 20, told
    assert [line["ended"] for line in said(slurm, job, "ended")][-4:] == [1500] * 4, told
    gone(slurm)


FUNCTION = f"""
import os, socket, sys, threading
sys.path.insert(0, {str(ROOT)!r})
from ftlib import Launcher

def where():
    return socket.gethostname(), os.environ["RANK"]

def for_ever():
    print("sleeps", os.environ["RANK"], flush=True)
    threading.Event().wait()

launcher = Launcher(workers_per_host=2, preload=())
print("found", sorted(launcher.run(where).results.items()), flush=True)
launcher.run(for_ever)
"""


@pytest.mark.parametrize("attempt", [0, *(pytest.param(number, marks=pytest.mark.soak) for number in range(1, 10))])
def test_functions_on_the_nodes_of_an_allocation(slurm: Slurm, attempt: int) -> None:
    """``srun --overlap`` starts the agents. However the job is ended, nothing is left."""
    (slurm.directory / "function.py").write_text(FUNCTION)
    job = slurm.submit(f"#!/bin/sh\nexec {sys.executable} function.py\n", "-N2", "--ntasks-per-node=1", "--cpus-per-task=2")
    eventually(lambda: slurm.output(job).count("sleeps") == 4, lambda: slurm.output(job) + slurm.logs())
    assert "found [('n1', [('n1', '0'), ('n1', '1')]), ('n2', [('n2', '2'), ('n2', '3')])]" in slurm.output(job)
    if attempt % 2:
        slurm.run("scancel", str(job))
    else:
        [pid] = [pid for pid, line in slurm.processes("n1").items() if line == f"{sys.executable} function.py"]
        os.kill(pid, signal.SIGKILL)
    gone(slurm)
    slurm.wait(job, "CANCELLED", "FAILED", "COMPLETED")


SHOWS = """
import os, socket, sys, time
print("worker of", socket.gethostname(), os.environ["LOCAL_RANK"], os.environ.get("RANK"), flush=True)
time.sleep(float(sys.argv[1]))
"""


@pytest.mark.soak
def test_ftlib_run_under_salloc(slurm: Slurm) -> None:
    """The launcher is on the login node, which is no node of the allocation; agents are steps of it.

    Somebody has logged in there by ssh: the address of that login, which srun exports, is none of the nodes'.
    """
    (slurm.directory / "shows.py").write_text(SHOWS)
    allocation = ("salloc", "-N2", "--ntasks-per-node=1", "--cpus-per-task=4")
    command = (*RUN.split(), "--hosts", "slurm", "-n", "2", "shows.py")
    login = {"SSH_CONNECTION": "192.0.2.9 50000 192.0.2.1 22"}
    done = slurm.run(*allocation, *command, "0", limit=150.0, **login)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}{slurm.logs()}"
    assert sorted(done.stdout.splitlines()) == [f"[{n}:{k}] worker of {n} {k} None" for n in ("n1", "n2") for k in (0, 1)]
    assert "4 of 4 workers finished" in done.stderr
    gone(slurm)
    line = slurm.command(*allocation, *command, "1000")
    log = slurm.directory / "salloc.log"
    with log.open("wb") as file:
        caller = subprocess.Popen(
            line, env=slurm.environment, cwd=slurm.directory, stdin=subprocess.DEVNULL, stdout=file, stderr=file
        )
    try:
        eventually(lambda: log.read_text().count("worker of") == 4, lambda: log.read_text() + slurm.logs(), 120.0)
        job = max(map(int, slurm.run("squeue", "--noheader", "--format=%i").stdout.split()))
        slurm.run("scancel", str(job))
        gone(slurm)
        eventually(lambda: caller.poll() is not None, log.read_text)
        assert caller.returncode
    finally:
        caller.kill()
        caller.wait()


@pytest.mark.soak
def test_submitit(slurm: Slurm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A function that submitit runs on both nodes: ``FTLib.init`` finds the others by Slurm's variables."""
    submitit = pytest.importorskip("submitit")
    for name, value in {**slurm.environment, **SECRET}.items():
        monkeypatch.setenv(name, value)
    with slurm.controller.inside():  # where sbatch runs
        executor = submitit.AutoExecutor(folder=tmp_path, cluster="slurm")
        executor.update_parameters(nodes=2, tasks_per_node=2, cpus_per_task=1, timeout_min=5)
        job = executor.submit(average_of_ranks)
        try:
            results = job.results()
        finally:
            job.cancel()
    assert results == [(4, 1.5)] * 4


def average_of_ranks() -> tuple[int, float]:
    """The size of the group, and the average of what each member gives: its number."""
    import os

    import torch

    from ftlib import FTLib

    with FTLib.init(framework="gloo") as ft:
        model = torch.nn.Linear(1, 1, bias=False)
        model.weight.grad = torch.full_like(model.weight, float(os.environ["SLURM_PROCID"]))
        ft.allreduce_average(model)
        found = ft.size, float(model.weight.grad)
        ft.barrier()
    return found
