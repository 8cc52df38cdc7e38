"""The options of ``ftlib run`` that say which hosts there are and how they are reached."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from .transport import KINDS


@dataclass(frozen=True, slots=True)
class Fleet:
    """Which hosts, and how they are reached; as the options say it."""

    hosts: str | None
    hosts_file: Path | None
    discover: str | None
    ssh_config: Path | None
    transport: str | None
    python: str | None
    setup: str
    quiet: bool

    @property
    def wanted(self) -> bool:
        """Whether there are other hosts at all."""
        return any(each is not None for each in (self.hosts, self.hosts_file, self.discover, self.transport))

    @property
    def names(self) -> str | list[str]:
        """As ``Launcher`` has them."""
        if self.hosts is None or self.hosts in ("auto", "slurm"):
            return self.hosts or "auto"
        return [name for each in self.hosts.split(",") if (name := each.strip())]

    @property
    def way(self) -> str | list[str]:
        """The transport, as ``Launcher`` has it."""
        return "auto" if self.transport is None else self.transport if self.transport in KINDS else shlex.split(self.transport)
