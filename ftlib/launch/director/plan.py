"""What one launch is to do, with all defaults filled in."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..hosts.transport import Transport
from ..hosts.watch import Source
from ..stream.messages import Here
from .decisions.rules import Rules

HostSource = Source[Mapping[str, int | None]]
"""Which hosts there are, each with the number of workers that is wanted there."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One launch. Times in seconds."""

    job: str
    hosts: Sequence[tuple[str, int | None]]
    """Names, and how many workers the user wants there."""
    transport: Transport
    rules: Rules
    slots: int | str
    """Workers of a host for which no number is given; "auto", "cpu", "gpu": as it has."""
    call: bytes
    """The pickled function; empty for a program."""
    command: Sequence[str]
    variables: Mapping[str, str]
    """What the caller adds to the hosts' own environment: copied, from a file, extra."""
    secret: str
    """The job's secret, where no file has it."""
    backend: str
    worker_timeout: float
    agent_timeout: float
    results: str
    preload: Sequence[str]
    directory: str
    path: Sequence[str]
    max_workers: int | None = None
    resume: str = ""
    log_dir: Path | None = None
    events: Path | None = None
    live: bool = True
    sole: bool = False
    """Whether this process does nothing else, as ``ftlib run``: whoever reads its output is waited for."""
    handlers: Callable[[], Iterable[logging.Handler]] | None = None
    refresh: HostSource | None = None
    """Says which hosts there are now, where that changes."""
    secrets: Source[str] | None = None
    """The user's file of secrets, where there is one."""

    def slots_of(self, here: Here) -> int | str:
        """How many workers a host has for which no number is given; a text: why it can have none."""
        match self.slots:
            case int():
                return self.slots
            case "gpu":
                return here.gpus or 'it has no GPU: give workers_per_host a number, or "cpu"'
            case "cpu":
                return here.cpus
            case _:
                return here.gpus or here.cpus
