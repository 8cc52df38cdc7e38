"""The options of ``ftlib run`` that say which hosts there are and how they are reached."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from ...errors import ConfigError
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

    def check(self) -> None:
        """Raise ConfigError for options that say two things, or nothing without others."""
        sources = {"--hosts": self.hosts, "--hosts-file": self.hosts_file, "--discover": self.discover}
        given = [option for option, value in sources.items() if value is not None]
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(given)} both say which hosts there are: give one of them")
        more = {"--python": self.python, "--setup": self.setup, "--ssh-config": self.ssh_config, "--quiet": self.quiet}
        for option, value in more.items():
            if value and not self.wanted:
                raise ConfigError(f"{option} is for workers of other hosts: give --hosts too, or leave it out")
        if self.hosts is not None and not self.names:
            raise ConfigError(f"--hosts {self.hosts!r}: it names no host: give names with commas between them")

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
