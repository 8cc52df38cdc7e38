"""The command that starts an agent at a host. Its text is fixed: nothing of a job, no variable and no secret stands in it."""

from __future__ import annotations

import shlex
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import ConfigError

AGENT = ("-P", "-m", "ftlib.launch.agent")
_LOCAL = {"localhost", "127.0.0.1", "::1"}
RECONNECT = 3
"""Seconds that ssh waits for a host that was lost: while it is cut off its packets get no answer at all."""
KINDS = ("auto", "local", "ssh", "slurm")


def is_local(host: str) -> bool:
    """Whether a name is this machine's."""
    return host in _LOCAL or host == socket.gethostname()


@dataclass(frozen=True, slots=True)
class Transport:
    """How agents are started. ``kind``: one of ``KINDS``, or a command in which ``{host}`` stands for the host."""

    kind: str | Sequence[str] = "auto"
    python: str | None = None
    """The interpreter at the hosts; None: this one's path."""
    setup: str = ""
    """Shell commands to run before; what they print goes to the log."""
    ssh_config: Path | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError for a transport that there is not."""
        if isinstance(self.kind, str):
            if self.kind not in KINDS:
                raise ConfigError(
                    f"transport={self.kind!r}: give one of {', '.join(KINDS)}, or a list of words with {{host}} in it"
                )
        elif not any("{host}" in word for word in self.kind):
            raise ConfigError(
                f"transport={list(self.kind)}: give one of {', '.join(KINDS)}, or a command with a word that has {{host}} in it"
            )
        if self.ssh_config is not None and not self.ssh_config.is_file():
            raise ConfigError(f"ssh_config_file={self.ssh_config}: there is no such file")

    def kind_of(self, host: str, environment: Mapping[str, str]) -> str:
        """What ``host`` is reached by: local, ssh, slurm or template."""
        if not isinstance(self.kind, str):
            return "template"
        if self.kind != "auto":
            return self.kind
        if is_local(host):
            return "local"
        return "slurm" if "SLURM_JOB_ID" in environment else "ssh"

    def command(self, host: str, environment: Mapping[str, str], *, again: bool = False) -> list[str]:
        """The words of the command, for this host. ``again``: it was lost before, so ssh shall not wait for it for minutes."""
        match self.kind_of(host, environment):
            case "local":
                return self._words()
            case "ssh":
                config = ["-F", str(self.ssh_config)] if self.ssh_config is not None else []
                soon = ["-o", f"ConnectTimeout={RECONNECT}"] if again else []
                return ["ssh", "-T", "-o", "BatchMode=yes", *soon, *config, "--", host, shlex.join(self._words())]
            case "slurm":
                where = ["--nodes=1", "--ntasks=1", f"--nodelist={host}"]
                return ["srun", "--overlap", "--quiet", "--unbuffered", "--kill-on-bad-exit=0", *where, *self._words()]
            case _:
                return [*(word.replace("{host}", host) for word in self.kind), *self._words()]

    def _words(self) -> list[str]:
        python = self.python or sys.executable
        if not self.setup:
            return [python, *AGENT]
        # The setup must neither read what is meant for the agent nor write where the agent speaks. Users expect bash.
        script = f"{{ {self.setup}\n}} </dev/null >&2 && exec {shlex.join([python, *AGENT])}"
        return ["/bin/sh", "-c", 'exec "$(command -v bash || echo /bin/sh)" -c "$0"', script]
