"""Which GPUs of this machine a worker will see, found without torch and without opening a device.

The driver's program ``nvidia-smi`` is asked: unlike ``/proc``, which is read where there is no such program, it leaves out what
a container may not use. Of what is there CUDA shows a process only what ``CUDA_VISIBLE_DEVICES`` names, and workers inherit
that variable from the launcher.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ...errors import ConfigError

_PATIENCE = 20.0
"""Seconds for ``nvidia-smi``: it takes several where no process keeps the driver's state loaded."""
_END = 1.0
"""Seconds that it may take to end once it was killed."""
_LISTED = re.compile(r"GPU \d+: (?P<name>.*) \(UUID: (?P<uuid>GPU-[^)]+)\)")
_INSTANCE = re.compile(r"\s+MIG .*\(UUID: MIG-")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU."""

    name: str
    uuid: str
    """As the driver writes it: ``GPU-...``."""
    split: bool = False
    """True if it is divided into MIG instances, of which CUDA shows a process one."""


@dataclass(frozen=True, slots=True)
class Gpus:
    """The result of a look: ``visible`` GPUs, and if there are none, ``missing`` says why."""

    visible: tuple[Gpu, ...] = ()
    missing: str = ""

    @property
    def split(self) -> bool:
        """True if MIG instances are among them."""
        return any(gpu.split for gpu in self.visible)

    @property
    def count(self) -> int:
        """How many devices a process sees. Of MIG instances CUDA shows it one."""
        return 1 if self.split else len(self.visible)

    def required(self) -> int:
        """How many there are, for one worker each. ConfigError with a remedy if there is none, or not one for each."""
        if not self.visible:
            raise ConfigError(f"-n gpu: {self.missing}: give -n the number of workers, which then compute on the CPU")
        if self.split:
            raise ConfigError(
                "-n gpu: a GPU is divided into MIG instances, and CUDA shows a process only one of them: start the workers "
                "yourself, each with its instance in CUDA_VISIBLE_DEVICES"
            )
        return self.count


class GpuFinder:
    """Looks for GPUs as the workers will see them."""

    def __init__(
        self, environment: Mapping[str, str], driver: Path = Path("/proc/driver/nvidia"), program: str = "nvidia-smi"
    ) -> None:
        """``environment``: that of the workers. ``driver``: where NVIDIA's driver says in files what it has."""
        self._environment = environment
        self._driver = driver
        self._program = program

    def find(self) -> Gpus:
        """Look. Takes seconds at worst, and never raises."""
        try:
            found, missing = self._listed(self.run("-L")), f"no GPU was found: {self._program} -L lists none"
        except FileNotFoundError as error:
            found, missing = self._read(), f"no GPU was found: {error}"
        except OSError as error:
            found, missing = (), f"no GPU was found: {error}"
        if not found:
            return Gpus((), missing)
        chosen = self._environment.get("CUDA_VISIBLE_DEVICES")
        if chosen is None:
            return Gpus(found)
        visible = chosen_gpus(found, chosen)
        return Gpus(visible, "" if visible else f"CUDA_VISIBLE_DEVICES={chosen!r} shows none of the {len(found)} GPUs here")

    def driver_version(self) -> str:
        """The version of the kernel's driver; empty if it is not loaded."""
        try:
            text = (self._driver / "version").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        match = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", text)
        return match[1] if match else ""

    def run(self, *arguments: str) -> str:
        """What ``nvidia-smi`` prints. OSError with a reason for people if there is no such program, or it fails."""
        path = shutil.which(self._program, path=self._environment.get("PATH"))
        if path is None:
            raise FileNotFoundError(f"there is no program {self._program}, which comes with NVIDIA's driver")
        command = f"{self._program} {' '.join(arguments)}"
        process = subprocess.Popen(  # noqa: S603 - the driver's own program, found as a shell would
            [path, *arguments],
            env=dict(self._environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        try:
            out, err = process.communicate(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            _abandon(process)
            raise OSError(f"{command} did not end within {_PATIENCE:g} s: the driver or a GPU hangs") from None
        if process.returncode:
            said = " ".join((out + " " + err).split())[:200]
            raise OSError(f"{command} failed with {process.returncode} ({said or 'it said nothing'})")
        return out

    @staticmethod
    def _listed(text: str) -> tuple[Gpu, ...]:
        """The GPUs in the output of ``nvidia-smi -L``."""
        found: list[Gpu] = []
        for line in text.splitlines():
            if match := _LISTED.match(line):
                found.append(Gpu(match["name"], match["uuid"]))
            elif _INSTANCE.match(line) and found:
                found[-1] = replace(found[-1], split=True)
        return tuple(found)

    def _read(self) -> tuple[Gpu, ...]:
        """What the driver says in files, in the order of the bus. Nothing of MIG stands there."""
        found = []
        for file in sorted(self._driver.glob("gpus/*/information")):
            try:
                text = file.read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
            found.append(Gpu(facts.get("Model", "GPU"), facts.get("GPU UUID", "")))
        return tuple(found)


def _abandon(process: subprocess.Popen[str]) -> None:
    """Kill it, and wait no longer than ``_END``: in a driver that hangs the kernel does not let it die."""
    process.kill()
    try:
        process.wait(_END)
    except subprocess.TimeoutExpired:
        process.returncode = -signal.SIGKILL  # nobody waits for it any more: else subprocess warns of it
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def chosen_gpus(found: tuple[Gpu, ...], chosen: str) -> tuple[Gpu, ...]:
    """Those that CUDA shows a process with ``CUDA_VISIBLE_DEVICES=chosen``: numbers, or beginnings of UUIDs.

    As CUDA's programming guide and torch have it: what stands behind a wrong entry does not count, and nothing does if one is
    named twice. Numbers are counted in the order of ``found``, which need not be CUDA's: the result's length is right.
    """
    result: list[Gpu] = []
    for entry in (part.strip() for part in chosen.split(",")):
        named = [gpu for gpu in found if entry.startswith("GPU-") and gpu.uuid.startswith(entry)]
        if entry.isdecimal() and int(entry) < len(found):
            named = [found[int(entry)]]
        elif entry.startswith("MIG-") and not result:
            return (Gpu("MIG instance", entry, split=True),)  # CUDA shows no other device beside it
        if len(named) != 1:
            break
        if named[0] in result:
            return ()
        result += named
    return tuple(result)
