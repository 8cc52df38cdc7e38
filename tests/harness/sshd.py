"""A real sshd on loopback with keys of its own, and a client's configuration that knows it. Needs root and openssh-server.

``with Sshd(folder) as sshd`` serves the logins of this user with its key; ``sshd.config`` is for ``ssh -F``. Names
in it lead there: ``node1``, ``node2``, ...; ``stranger``, whose host key is not known; ``refused``, which has another key; and
``jumped``, by way of ``node1``.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.harness.basics import TIMEOUT, eventually, free_ports

_missing = "" if Path("/usr/sbin/sshd").exists() else "sshd is not installed: apt-get install openssh-server"
if not _missing and os.geteuid() != 0:
    _missing = "sshd needs root"

needs_sshd = pytest.mark.skipif(bool(_missing), reason=_missing or "none")


class Sshd:
    """One server."""

    def __init__(self, folder: Path, *, noise: str = "", nodes: int = 3) -> None:
        """``noise``: shell commands that each login runs first, as a profile may."""
        self.folder = folder
        self.config = folder / "config"
        self._noise = noise
        self._nodes = nodes
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        folder = self.folder
        folder.mkdir(exist_ok=True)
        folder.chmod(0o700)
        Path("/run/sshd").mkdir(exist_ok=True)
        for name in ("host", "user", "other"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True, timeout=TIMEOUT
            )
        shutil.copy(folder / "user.pub", folder / "authorized")
        (folder / "authorized").chmod(0o600)
        [port] = free_ports(1)
        lines = [
            f"Port {port}",
            "ListenAddress 127.0.0.1",
            f"HostKey {folder / 'host'}",
            f"AuthorizedKeysFile {folder / 'authorized'}",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "UsePAM no",
            "StrictModes no",
            "PidFile none",
            "MaxStartups 100",
        ]
        if self._noise:
            script = folder / "login"
            script.write_text(f'#!/bin/sh\n{self._noise}\nexec /bin/sh -c "$SSH_ORIGINAL_COMMAND"\n')
            script.chmod(0o755)
            lines.append(f"ForceCommand {script}")
        (folder / "sshd_config").write_text("\n".join(lines) + "\n")
        command = ["/usr/sbin/sshd", "-D", "-e", "-f", str(folder / "sshd_config")]
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log)
        self._configure(port)
        eventually(lambda: self._answers(port), (folder / "log").read_text)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(TIMEOUT)

    def _configure(self, port: int) -> None:
        key = (self.folder / "host.pub").read_text().split()
        known = self.folder / "known"
        names = [f"node{number}" for number in range(1, self._nodes + 1)]
        known.write_text("".join(f"{name} {key[0]} {key[1]}\n" for name in [*names, "refused", "jumped"]))
        common = f"HostName 127.0.0.1\nPort {port}\nUser root\nIdentitiesOnly yes\n"
        common += f"GlobalKnownHostsFile none\nUserKnownHostsFile {known}\n"
        own, other = f"IdentityFile {self.folder / 'user'}\n", f"IdentityFile {self.folder / 'other'}\n"
        texts = [f"Host {name}\n{common}{own}HostKeyAlias {name}\n" for name in [*names, "stranger"]]
        texts.append(f"Host refused\n{common}{other}HostKeyAlias refused\n")
        jump = f"ProxyCommand ssh -F {self.config} -o BatchMode=yes -W %h:%p node1\n"
        texts.append(f"Host jumped\n{common}{own}HostKeyAlias jumped\n{jump}")
        self.config.write_text("\n".join(texts))

    @staticmethod
    def _answers(port: int) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0
