"""Settings from another launcher's variables: torchrun (or a program that sets its variables) and Slurm. A pure function.

``ftlib run`` and explicit settings come first: if ``introducers`` are given, it is known how the members meet, and nothing is
taken from here. Otherwise each setting found here counts unless it is given elsewhere.

How the members meet:

* **torchrun** runs a store at ``MASTER_ADDR:MASTER_PORT`` for its workers (``TORCHELASTIC_USE_AGENT_STORE``). Rank 0 listens on
  any free port and publishes its address in the store (``meeting``): no port has to be guessed, so the port cannot be taken,
  and several jobs on one host do not meet. A port derived from ``MASTER_PORT`` would be a guess within the range from which
  the kernel gives ports to all programs, torchrun's own store included. Only without that store rank 0 listens on the port
  after ``MASTER_PORT``.
* **Slurm** has no such store: task 0 listens on a port that follows from the job id.

``FTLIB_PORT`` replaces the derived port, and torchrun's store.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigError

SLURM_PORTS = range(20_000, 30_000)
"""Ports of Slurm jobs: below those that Linux (32768 and up) and Slurm (60001 and up) give to other programs."""

_MAX_JOB = 64
_MAX_NODES = 100_000
_BATCH_STEPS = 1 << 31
"""Step ids from here on are Slurm's own (batch, extern, interactive): not of srun, so there is one process only."""


@dataclass(frozen=True, slots=True)
class Store:
    """Where rank 0 publishes its address: host and port of the store, and the key."""

    host: str
    port: int
    key: str


@dataclass(frozen=True, slots=True)
class Launched:
    """What a launcher's variables give. ``settings``: by name; ``says``: a log line; ``name``: of this worker in logs."""

    by: str
    rank: int
    size: int
    several_hosts: bool
    says: str
    name: str
    store: Store | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


def launched(environment: Mapping[str, str]) -> Launched | None:
    """Return the launcher that started this process as one of several; None if there is none. Raises ConfigError if its
    variables contradict each other.
    """
    if all(environment.get(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
        return _torchrun(environment)
    step = environment.get("SLURM_STEP_ID", environment.get("SLURM_STEPID", ""))
    if step.isdigit() and int(step) < _BATCH_STEPS and environment.get("SLURM_PROCID") and environment.get("SLURM_JOB_ID"):
        return _slurm(environment, int(step))
    return None


def _torchrun(environment: Mapping[str, str]) -> Launched:
    rank, size = _number(environment, "RANK"), _number(environment, "WORLD_SIZE")
    _check_rank("RANK", rank, "WORLD_SIZE", size)
    host, master_port = environment["MASTER_ADDR"], _number(environment, "MASTER_PORT")
    several_hosts = _number(environment, "LOCAL_WORLD_SIZE", 1) < size and not _loopback(host)
    here = "127.0.0.1"
    run = environment.get("TORCHELASTIC_RUN_ID", "none")
    # A restarted round is a job of its own: torchrun kills all workers first, but their packets may still be on the way.
    job = _job("torchrun", run, str(master_port), environment.get("TORCHELASTIC_RESTART_COUNT", "0"))
    settings: dict[str, Any] = {"job": job, "initial_size": size}
    given = _given_port(environment)
    if given is None and environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        store = Store(host, master_port, f"ftlib/{job}/founder")
        settings["bind"] = f"{_bracketed(host) if several_hosts else here}:0" if rank == 0 else ":0"
        says = f"torchrun: worker {rank} of {size}, introducer is rank 0, found through the store at {host}:{master_port}"
        return Launched("torchrun", rank, size, several_hosts, says, f"worker {rank}", store, settings)
    port = given or (master_port + 1 if master_port < 65535 else master_port - 1)
    introducer = f"{_bracketed(host) if several_hosts else here}:{port}"
    settings |= {"introducers": (introducer,), "bind": introducer if rank == 0 else ":0"}
    says = f"torchrun's variables: worker {rank} of {size}, introducer {introducer}"
    return Launched("torchrun", rank, size, several_hosts, says, f"worker {rank}", None, settings)


def _slurm(environment: Mapping[str, str], step: int) -> Launched:
    sizes = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
    known = next((name for name in sizes if environment.get(name)), sizes[0])
    rank, size = _number(environment, "SLURM_PROCID"), _number(environment, known, 1)
    _check_rank("SLURM_PROCID", rank, known, size)
    job_id = _number(environment, "SLURM_JOB_ID")
    lists = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURMD_NODENAME")
    listed = next((name for name in lists if environment.get(name)), lists[0])
    nodes = expand(environment.get(listed, "127.0.0.1"), listed)
    several_hosts = len(nodes) > 1
    port = _given_port(environment) or SLURM_PORTS[(job_id * 31 + step) % len(SLURM_PORTS)]
    introducer = f"{_bracketed(nodes[0]) if several_hosts else '127.0.0.1'}:{port}"
    settings = {
        "job": _job("slurm", f"{job_id}.{step}", environment.get("SLURM_RESTART_COUNT", "0")),
        "initial_size": size,
        "introducers": (introducer,),
        "bind": introducer if rank == 0 else ":0",
    }
    says = f"Slurm: worker {rank} of {size} in step {job_id}.{step} on {len(nodes)} nodes, introducer {introducer}"
    return Launched("Slurm", rank, size, several_hosts, says, f"worker {rank}", None, settings)


def expand(text: str, variable: str = "hostlist") -> tuple[str, ...]:
    """Slurm's host lists: ``a[01-03,7],b`` is a01, a02, a03, a7, b; ``r[1-2]n[1-2]`` is r1n1, r1n2, r2n1, r2n2.

    Written here because the library for it (python-hostlist) is under the GPL. ConfigError for anything else.
    """
    result: list[str] = []
    for part in _split(text, variable):
        names = [""]
        for literal, ranges in re.findall(r"([^\[\]]+)|\[([^\[\]]+)\]", part):
            ends = [literal] if literal else _numbers(ranges, variable, text)
            if len(result) + len(names) * len(ends) > _MAX_NODES:
                raise ConfigError(f"{variable}={text!r} names more than {_MAX_NODES} hosts")
            names = [name + end for name in names for end in ends]
        result += names
    return tuple(dict.fromkeys(result))


def _split(text: str, variable: str) -> list[str]:
    """Split at the commas outside of brackets."""
    if not re.fullmatch(r"[^\[\],\s]*(?:\[[0-9,-]+\][^\[\],\s]*)*(?:,[^\[\],\s]*(?:\[[0-9,-]+\][^\[\],\s]*)*)*", text):
        raise ConfigError(f"{variable}={text!r} is no list of hosts: expected the like of node[01-03,07],login1")
    parts = re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text)
    if not parts:
        raise ConfigError(f"{variable}={text!r} names no host")
    return parts


def _numbers(ranges: str, variable: str, text: str) -> list[str]:
    """``08-10,12`` is 08, 09, 10, 12: as many digits as the first has."""
    result: list[str] = []
    for part in ranges.split(","):
        first, dash, last = part.partition("-")
        if not first or (dash and not last) or "-" in last or (dash and int(last) < int(first)):
            raise ConfigError(f"{variable}={text!r}: {part!r} is no range of numbers")
        stop = int(last) if dash else int(first)
        if stop - int(first) >= _MAX_NODES:
            raise ConfigError(f"{variable}={text!r} names more than {_MAX_NODES} hosts")
        result += [str(number).zfill(len(first)) for number in range(int(first), stop + 1)]
    return result


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name, "" if default is None else str(default))
    if not text.isdigit():
        raise ConfigError(f"{name}={text!r} is no number, though a launcher set it: correct it, or give introducers")
    return int(text)


def _check_rank(name: str, rank: int, size_name: str, size: int) -> None:
    if rank >= size:
        raise ConfigError(f"{name}={rank} is not below {size_name}={size}: correct them, or give introducers")


def _given_port(environment: Mapping[str, str]) -> int | None:
    if not environment.get("FTLIB_PORT"):
        return None
    port = _number(environment, "FTLIB_PORT")
    if not 0 < port < 65536:
        raise ConfigError(f"FTLIB_PORT={port}: give a port from 1 to 65535, the same for all workers")
    return port


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _job(*parts: str) -> str:
    text = "-".join(parts)
    return text if len(text) <= _MAX_JOB else f"{parts[0]}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"
