"""The environment of a worker: everything ``FTLib.init`` needs, so that a script needs no arguments.

Ranks are not given: members agree on them at run time, and a restarted worker gets another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from consensus import format_address

from ..processes.sockets import HOST
from .plan import StartPlan

# Variables that an outer launcher may have set, and that this one does not set in every start.
_STALE = ("FTLIB_SOCKET_FDS", "FTLIB_ADVERTISE", "FTLIB_GPU", "FTLIB_REPLICA", "FTLIB_SHARD", "FTLIB_SHARDS")

_HOSTS_APART = "600"
"""Seconds that workers of one host wait for those of others, which may have an image to pull."""


@dataclass(frozen=True, slots=True)
class Start:
    """How one worker lifetime begins."""

    index: int
    """The slot, 0 to n-1; restarts keep it."""
    introducers: Sequence[str]
    """``host:port`` of the members to meet; a founder's own address may be among them."""
    initial_size: int
    port: int = 0
    """The control port bound for the worker; 0: it binds one itself (every start after the founding)."""
    socket_fds: tuple[int, int] | None = None
    """UDP and TCP descriptors of that port."""
    host: str = HOST
    """The address of this machine at which it listens, numeric."""
    of: str = ""
    """The host's name, where workers of others take part."""
    life: int = 1
    """How often the slot has been started, this time included."""

    @property
    def name(self) -> str:
        """What logs call it."""
        return f"worker {self.index}"

    @property
    def bind(self) -> str:
        """Where it listens, as ``host:port``."""
        return format_address((self.host, self.port))


def worker_environment(
    base: Mapping[str, str], plan: StartPlan, start: Start, supervisor: str, credentials: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the environment of one worker: ``base`` plus the variables of this start.

    ``supervisor``: ``host:port`` of the fence endpoint. ``credentials``: the run's secret, if it was drawn.
    """
    env = {key: value for key, value in base.items() if key not in _STALE}
    if plan.workers > 1:
        env.setdefault("OMP_NUM_THREADS", "1")  # n workers with a thread per core each would compete for the cores
    env.setdefault("PYTHONFAULTHANDLER", "1")  # a segfault then prints where it happened
    env["PYTHONUNBUFFERED"] = "1"  # the last lines of a killed worker are the interesting ones
    size = start.initial_size // plan.shards
    env |= {
        "FTLIB_JOB": plan.job,
        "FTLIB_INTRODUCERS": ",".join(start.introducers),
        "FTLIB_INITIAL_SIZE": str(min(size, plan.max_workers or size)),  # those above the most join as spares
        "FTLIB_BIND": start.bind,
        "FTLIB_SUPERVISOR": supervisor,
        "FTLIB_NAME": f"{start.name} of {start.of}" if start.of else start.name,
        "FTLIB_WORKER_INDEX": str(start.index),
        "LOCAL_RANK": str(start.index),  # torchrun's name for the slot: what reads it there works here, too
    }
    if plan.shards > 1:
        replica, shard = divmod(start.index, plan.shards)
        # All of a replica are started equally often, and each time it is another one.
        env["FTLIB_REPLICA"] = f"{replica}-{start.life}"
        env |= {"FTLIB_SHARD": str(shard), "FTLIB_SHARDS": str(plan.shards)}
    if plan.meeting is not None:
        env.setdefault("FTLIB_JOIN_TIMEOUT", _HOSTS_APART)
    if plan.gpus:
        env["FTLIB_GPU"] = str(start.index % plan.gpus)
    env |= credentials or {}
    if start.socket_fds is not None:
        env["FTLIB_SOCKET_FDS"] = ",".join(map(str, start.socket_fds))
    if plan.min_workers > 1:
        env["FTLIB_MIN_SIZE"] = str(plan.min_workers)
    if plan.max_workers is not None:
        env["FTLIB_MAX_SIZE"] = str(plan.max_workers)
    if plan.resume is not None:
        env["FTLIB_RESUME"] = str(plan.resume.absolute() if isinstance(plan.resume, Path) else plan.resume)
    return env
