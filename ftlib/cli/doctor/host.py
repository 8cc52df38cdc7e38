"""The facts about this host's GPUs: what the driver, torch and NCCL say, and which workers are on one GPU.

Everything is asked of other processes: this one imports no torch, and touches no GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ...launch.processes.gpus import GpuFinder, Gpus

_ROOT = Path(__file__).parents[3]
_TORCH_FACTS = (sys.executable, "-m", "ftlib.cli.torch_facts")
_PATIENCE = 60.0
"""Seconds for torch to be imported and to ask the driver: on a cold disk it takes tens."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What one host has. Versions are text, empty where unknown."""

    gpus: Gpus
    driver: str = ""
    torch: str = ""
    cuda: str = ""
    """The version that torch was built for; empty for a build without CUDA."""
    available: bool = False
    """True if torch can use a GPU here."""
    why: str = ""
    """Why it cannot, as far as torch says."""
    nccl: str = ""
    reconfigure: bool = False
    """True if torch's process groups have a method ``reconfigure``."""
    shared: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Several workers of one job on one GPU: their names, by the GPU's UUID."""
    trouble: str = ""
    """Why torch said nothing."""

    def advertised(self) -> dict[str, str]:
        """What ``ftlib doctor --listen`` tells a doctor at another host."""
        versions = {"driver": self.driver, "torch": self.torch, "cuda": self.cuda, "nccl": self.nccl}
        return {"gpus": str(len(self.gpus.visible)), **{name: version for name, version in versions.items() if version}}


class HostProbe:
    """Finds out ``HostFacts``. Takes seconds, as torch has to be imported."""

    def __init__(
        self,
        environment: Mapping[str, str],
        finder: GpuFinder | None = None,
        processes: Path = Path("/proc"),
        torch_facts: Sequence[str] = _TORCH_FACTS,
    ) -> None:
        """``environment``: as workers have it. ``torch_facts``: the command that prints them."""
        self._environment = environment
        self._finder = GpuFinder(environment) if finder is None else finder
        self._processes = processes
        self._torch_facts = torch_facts

    @cached_property
    def gpus(self) -> Gpus:
        """The GPUs alone, which takes little time."""
        return self._finder.find()

    def facts(self) -> HostFacts:
        """All of it. Never raises: what cannot be found out stays empty."""
        gpus, said = self.gpus, self._of_torch()
        return HostFacts(
            gpus,
            self._finder.driver_version(),
            str(said.get("torch", "")),
            str(said.get("cuda", "")),
            bool(said.get("available")),
            str(said.get("why", "")),
            str(said.get("nccl", "")),
            bool(said.get("reconfigure")),
            self._shared() if gpus.visible else {},
            str(said.get("trouble", "")),
        )

    def _of_torch(self) -> dict[str, Any]:
        """What the other process prints; ``trouble`` if that is nothing."""
        paths = [str(_ROOT), *filter(None, [self._environment.get("PYTHONPATH")])]
        try:
            done = subprocess.run(  # noqa: S603 - this interpreter, unless a test gives another command
                list(self._torch_facts),
                env={**self._environment, "PYTHONPATH": os.pathsep.join(paths)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_PATIENCE,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"trouble": f"torch did not answer within {_PATIENCE:g} s: the driver or a GPU hangs"}
        except OSError as error:
            return {"trouble": f"torch could not be asked: {error}"}
        try:
            found = json.loads(done.stdout.splitlines()[-1])
        except (ValueError, IndexError):
            found = None
        if done.returncode or not isinstance(found, dict):
            last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            return {"trouble": f"torch could not be asked (exit code {done.returncode}: {last[:200]})"}
        return found

    def _shared(self) -> dict[str, list[str]]:
        """Workers of ``ftlib run`` that compute on one GPU, as far as this user may look into their environment."""
        try:
            listed = self._finder.run("--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader")
        except OSError:
            return {}
        workers: dict[tuple[str, str], set[str]] = {}
        for line in listed.splitlines():
            uuid, _, pid = (part.strip() for part in line.partition(","))
            variables = self._variables(pid) if pid.isdecimal() else {}
            if "FTLIB_JOB" in variables and "FTLIB_WORKER_INDEX" in variables:
                # By the slot, not by the process: a worker's processes may all use its GPU.
                name = f"worker {variables['FTLIB_WORKER_INDEX']} of job {variables['FTLIB_JOB']}"
                workers.setdefault((uuid, variables["FTLIB_JOB"]), set()).add(name)
        return {uuid: sorted(names) for (uuid, _), names in workers.items() if len(names) > 1}

    def _variables(self, pid: str) -> dict[str, str]:
        try:
            text = (self._processes / pid / "environ").read_bytes().decode(errors="replace")
        except OSError:  # it has ended, or is another user's
            return {}
        return {name: value for name, _, value in (entry.partition("=") for entry in text.split("\0"))}
