"""A real Slurm: slurmctld on the first host of a ``Network``, a slurmd on each of the others, munged for all of them.

``with Network(3) as hosts, Slurm(directory, hosts) as slurm`` has the nodes n1 and n2. ``slurm.run("sbatch", ...)`` and the
like run on the first host. Files, sockets and keys are in temporary folders: nothing of a Slurm of this machine's takes part.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from ftlib.launch.processes.process import descendants
from tests.harness.basics import eventually
from tests.harness.network import Host
from tests.harness.program import clean

_PACKAGES = {"slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client", "munged": "munge"}


def _why() -> str:
    missing = [package for program, package in _PACKAGES.items() if shutil.which(program) is None]
    return f"{missing[0]} is not installed: apt-get install {missing[0]}" if missing else ""


_missing = _why()
needs_slurm = pytest.mark.skipif(bool(_missing), reason=_missing or "none")

_LIMIT = 60.0

_SETTINGS = """
ClusterName=test
SlurmctldHost=controller({address})
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket,cred_expire=5
CryptoType=crypto/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool-%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SlurmdParameters=config_overrides
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
ReturnToService=2
KillWait=5
MinJobAge=600
InactiveLimit=0
SlurmctldTimeout=60
SlurmdTimeout=60
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
"""KillWait: seconds from SIGTERM to SIGKILL. cred_expire: also those that a requeued job waits for."""


class Slurm:
    """A context manager: on exit all jobs and daemons are gone."""

    def __init__(self, directory: Path, hosts: Sequence[Host], *, cpus: int = 8) -> None:
        """``cpus``: of each node, as Slurm believes."""
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.controller = hosts[0]
        self.nodes = {f"n{number}": host for number, host in enumerate(hosts[1:], start=1)}
        self._cpus = cpus
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._sockets = Path(tempfile.mkdtemp(prefix="slurm"))  # a socket's path may have 107 characters, and the folder's more

    @property
    def environment(self) -> dict[str, str]:
        """What Slurm's programs, and those that call them, need."""
        return {**clean(), "SLURM_CONF": str(self._sockets / "slurm.conf")}

    def __enter__(self) -> Self:
        try:
            self._configure()
            self._munge()
            names = [f"{self.controller.v4} controller", *(f"{host.v4} {name}" for name, host in self.nodes.items())]
            for host in (self.controller, *self.nodes.values()):
                host.hosts(*names)
            conf = str(self._sockets / "slurm.conf")
            self._start(self.controller, "controller", "slurmctld", "-D", "-i", "-f", conf)
            for name, host in self.nodes.items():
                self._start(host, name, "slurmd", "-D", "-N", name, "-f", conf)
            eventually(self._idle, lambda: f"{self._states()}\n{self.logs()}", _LIMIT)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for daemon in self._daemons:
            for pid in (*descendants(daemon.pid), daemon.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for host in (self.controller, *self.nodes.values()):
            for pid in host.pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for daemon in self._daemons:
            daemon.wait()
        shutil.rmtree(self._sockets, ignore_errors=True)

    # Using it

    def command(self, *command: str) -> list[str]:
        """Put what is to run on the first host, with ``environment``."""
        return [*self.controller.prefix, *command]

    def run(self, *command: str, limit: float = _LIMIT, **more: str) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's programs on the first host, to its end."""
        return subprocess.run(
            self.command(*command),
            env={**self.environment, **more},
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )

    def submit(self, script: str, *options: str, environment: Mapping[str, str] | None = None) -> int:
        """``sbatch`` a script; its job's number. Its output is in ``slurm-JOB.out`` of ``directory``."""
        path = self.directory / f"job-{time.monotonic_ns()}.sh"
        path.write_text(script)
        done = self.run("sbatch", "--parsable", *options, str(path), **(environment or {}))
        if done.returncode:
            raise RuntimeError(f"sbatch: {done.stderr}\n{self.logs()}")
        return int(done.stdout.partition(";")[0])

    def output(self, job: int) -> str:
        """What a job has printed so far."""
        with contextlib.suppress(FileNotFoundError):
            return (self.directory / f"slurm-{job}.out").read_text(errors="replace")
        return ""

    def facts(self, job: int) -> dict[str, str]:
        """What Slurm knows of a job."""
        shown = self.run("scontrol", "--oneliner", "show", "job", str(job)).stdout
        return dict(re.findall(r"(\w+)=(\S*)", shown))

    def wait(self, job: int, *states: str, limit: float = _LIMIT) -> dict[str, str]:
        """Wait until a job is in one of these states; its facts."""
        eventually(
            lambda: self.facts(job).get("JobState") in states,
            lambda: f"{self.facts(job)}\n{self.output(job)}\n{self.logs()}",
            limit,
        )
        return self.facts(job)

    def processes(self, *nodes: str) -> dict[int, str]:
        """Command lines of all processes on these nodes (by default all) but Slurm's own."""
        found = {}
        for host in map(self.nodes.__getitem__, nodes or self.nodes):
            for pid in host.pids():
                with contextlib.suppress(OSError):
                    line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                    if line and not line.startswith(("slurmd", "slurmstepd", "/usr/sbin/slurm", "unshare", "sh -c hostname")):
                        found[pid] = line
        return found

    def logs(self) -> str:
        """The last lines of all daemons."""
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-1500:]}" for path in self.directory.glob("*.log")
        )

    # Making it

    def _configure(self) -> None:
        settings = _SETTINGS.format(address=self.controller.v4, directory=self._sockets)
        lines = [f"NodeName={name} NodeAddr={host.v4} CPUs={self._cpus} State=UNKNOWN" for name, host in self.nodes.items()]
        (self._sockets / "slurm.conf").write_text("\n".join([settings, *lines, ""]))
        (self._sockets / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (self._sockets / "state").mkdir()
        self._sockets.chmod(0o755)

    def _munge(self) -> None:
        key = self._sockets / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        files = {"socket": "munge.socket", "pid-file": "munged.pid", "log-file": "munged.log", "seed-file": "munged.seed"}
        options = [f"--{option}={self._sockets / name}" for option, name in files.items()]
        self._spawn("munged", ["munged", "--foreground", "--force", f"--key-file={key}", *options])
        eventually((self._sockets / "munge.socket").exists, self.logs, _LIMIT)

    def _start(self, host: Host, name: str, *command: str) -> None:
        there = f"hostname {name} && exec {' '.join(command)}"
        self._spawn(f"{command[0]}-{name}", [*host.prefix, "unshare", "--uts", "sh", "-c", there])

    def _spawn(self, name: str, command: Sequence[str]) -> None:
        with (self.directory / f"{name}.log").open("ab") as log:
            self._daemons.append(
                subprocess.Popen(
                    command,
                    env={**self.environment, "PATH": f"{os.environ['PATH']}:/usr/sbin:{Path(sys.executable).parent}"},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    cwd="/",
                )
            )

    def _states(self) -> str:
        return self.run("sinfo", "--noheader", "--Node", "--format=%N %T").stdout

    def _idle(self) -> bool:
        return self._states().split() == [word for name in self.nodes for word in (name, "idle")]
