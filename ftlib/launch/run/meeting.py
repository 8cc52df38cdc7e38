"""Where the workers of several hosts meet, if each host has an ``ftlib run`` of its own (``--meet``).

No launcher knows of the others: each supervises its own workers. Worker 0 of every host listens at the port that all know; the
addresses of the others come with the view. So any host may be lost, the first one too: whoever starts later meets any other.
A restarted worker asks the members on its own host first, so that it needs no name service.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from consensus import format_address, parse_address

from ...errors import ConfigError
from ...settings.environment import SLURM_PORTS, expand
from .plan import Meeting

AUTO = "auto"
_KUBEFLOW_PORT = 29500
"""What Kubeflow's trainer gives as ``PET_MASTER_PORT``, and opens for its pods."""
_BATCH_STEPS = 1 << 31
"""Step ids from here on are Slurm's own (batch, interactive): they run on one node."""
_MOST_NODES = 4096


def meeting(text: str, environment: Mapping[str, str], *, workers: int, size: int | None) -> Meeting:
    """What ``--meet TEXT --size SIZE`` means for a host with so many workers. Raises ConfigError that names the remedy."""
    if size is not None and size < workers:
        raise ConfigError(f"--size {size}: workers of all hosts together, at least -n ({workers}) of this one")
    if text == AUTO:
        found = _kubeflow(environment, workers) or _slurm(environment, workers)
        if found is None:
            raise ConfigError(
                "--meet auto found neither Kubeflow's variables (PET_NNODES, PET_MASTER_ADDR) nor a step of Slurm's: "
                "give --meet HOST:PORT[,HOST:PORT] and --size"
            )
        return found if size is None else Meeting(found.introducers, size, found.job, found.by)
    introducers = tuple(filter(None, map(str.strip, text.split(","))))
    if not introducers:
        raise ConfigError("--meet: give HOST:PORT, or auto")
    for each in introducers:
        try:
            _, port = parse_address(each)
        except ValueError as error:
            raise ConfigError(f"--meet: {error}") from None
        if not port:
            raise ConfigError(f"--meet {each}: all hosts must know the port: give one from 1 to 65535")
    if size is None:
        raise ConfigError("--meet needs --size: how many workers, of all hosts together, must have met before the first step")
    return Meeting(introducers, size, _name("meet", *introducers))


def _kubeflow(environment: Mapping[str, str], workers: int) -> Meeting | None:
    """Kubeflow gives each pod torchrun's options as variables: ``PET_NNODES`` is ``4`` or ``2:4``, the master is node 0."""
    nodes = environment.get("PET_NNODES", "")
    endpoint = environment.get("PET_RDZV_ENDPOINT", "")
    master = environment.get("PET_MASTER_ADDR", "")
    if not nodes or not (endpoint or master):
        return None
    found = re.fullmatch(r"([0-9]+)(?::([0-9]+))?", nodes)
    least, most = (0, 0) if found is None else (int(found[1]), int(found[2] or found[1]))
    if not 1 <= least <= most <= _MOST_NODES:
        raise ConfigError(f"PET_NNODES={nodes!r} is neither a number of nodes nor MIN:MAX: give --meet HOST:PORT and --size")
    text = endpoint or f"{master}:{environment.get('PET_MASTER_PORT') or _KUBEFLOW_PORT}"
    try:
        host, port = parse_address(text, default_port=_KUBEFLOW_PORT)
    except ValueError as error:
        raise ConfigError(f"Kubeflow's variables name no place to meet: {error}; give --meet HOST:PORT and --size") from None
    hosts = _siblings(host, most)
    job = environment.get("PET_RDZV_ID") or host.partition(".")[0]
    return Meeting(tuple(format_address((each, port)) for each in hosts), least * workers, _name("kubeflow", job), "Kubeflow")


def _siblings(first: str, count: int) -> list[str]:
    """The names of all nodes, from that of node 0: ``job-node-0-0.job`` is followed by ``job-node-0-1.job``.

    ``job-master-0`` is followed by ``job-worker-0``. A name that does not end in 0 stands for itself.
    """
    label, dot, domain = first.partition(".")
    if not label.endswith("-0"):
        return [first]
    stem = label.removesuffix("0")
    if stem.endswith("-master-"):
        workers = stem.removesuffix("master-") + "worker-"
        return [first, *(f"{workers}{number}{dot}{domain}" for number in range(count - 1))]
    return [f"{stem}{number}{dot}{domain}" for number in range(count)]


def _slurm(environment: Mapping[str, str], workers: int) -> Meeting | None:
    """One ``ftlib run`` a node, started by ``srun``. The port follows from the job's number, as for tasks of Slurm's."""
    job, step = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_STEP_ID", "")
    if not job.isdigit():
        return None
    nodes = expand(environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST") or "127.0.0.1")
    if not step.isdigit() or int(step) >= _BATCH_STEPS:
        if len(nodes) > 1:
            raise ConfigError(
                "--meet auto in a batch script runs on its first node alone: srun --ntasks-per-node=1 ftlib run ... on all"
            )
        step = "batch"
    number = int(job) * 31 + (int(step) if step.isdigit() else 0)
    given = environment.get("FTLIB_PORT", "")
    port = int(given) if given.isdigit() else SLURM_PORTS[number % len(SLURM_PORTS)]
    name = _name("slurm", f"{job}.{step}", environment.get("SLURM_RESTART_COUNT", "0"))
    return Meeting(tuple(format_address((node, port)) for node in nodes), len(nodes) * workers, name, "Slurm")


def _name(*parts: str) -> str:
    """A job's name of these parts: letters and digits of them, and short enough."""
    text = re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(parts))
    return text if len(text) <= 64 else f"{parts[0]}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"
