"""Hosts to log in to: an sshd on each host of a ``Network``, with a host name, keys and ``known_hosts`` of a temporary folder.

``with Network(3) as hosts, Logins(directory, hosts) as logins`` starts Debian's sshd on all hosts but the first, which is the
caller's: ``logins.caller``. From there ``logins.config`` (for ``ssh -F``) knows the others as ``h2``, ``h3``, ... Nothing of
this machine's own keys, agents and settings takes part.

Ways in that are not as they should be are names of their own: ``h2-stranger`` offers a key that the host does not take,
``h2-unknown`` is a host whose key nobody has noted, ``h2-changed`` one that shows another key than the one noted, and
``h3-by-h2`` is h3 by way of h2, as a jump host.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from ftlib.launch.processes.process import descendants
from tests.harness.basics import TIMEOUT, end, stop_child
from tests.harness.network import Host

_SSHD = "/usr/sbin/sshd"
_missing = "" if Path(_SSHD).exists() and shutil.which("ssh") else "sshd is not installed: apt-get install openssh-server"
needs_sshd = pytest.mark.skipif(bool(_missing), reason=_missing or "none")

ONLY_SSH = """
    input: iifname != "lo" meta l4proto udp drop
    input: iifname != "lo" tcp flags & (syn | ack) == syn tcp dport != 22 drop
"""
"""For ``Host.block``: whoever comes from elsewhere gets to port 22 alone."""

_READY = 30.0

_SERVER = """
AddressFamily any
ListenAddress {v4}
ListenAddress {v6}
HostKey {key}
AuthorizedKeysFile {authorized}
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
PrintMotd no
MaxStartups 200
MaxSessions 200
SetEnv SHLVL=2
LogLevel VERBOSE
{more}
"""

# SHLVL: bash that sshd starts as a first shell reads ~/.bashrc, also for a command. This machine's is no part of a test: it may
# be slow, or wait for a lock that a killed login has left (pyenv's does).

_CLIENT = """Host *
    User {user}
    IdentitiesOnly yes
    IdentityAgent none
    GlobalKnownHostsFile /dev/null
    StrictHostKeyChecking yes
    UpdateHostKeys no
    ConnectTimeout 30
    LogLevel ERROR
"""

_NOISY = """#!/bin/sh
printf "Welcome to a host that talks.\\n\\000\\001 ftlib-agent \\000ftlib-agent "
printf "with a line that does not end"
echo "and with errors" >&2
exec "${SHELL:-/bin/sh}" -c "${SSH_ORIGINAL_COMMAND:-true}"
"""
"""A login shell that prints before it does what it is asked: also what looks like an agent's first word, and is none."""

_FILES = ("user", "stranger", "known", "unknown", "changed")


class Logins:
    """sshd on all hosts but the first. A context manager: on exit all processes of these hosts are killed."""

    def __init__(
        self, directory: Path, hosts: Sequence[Host], *, noise: Sequence[int] = (), hidden: Mapping[int, Path] | None = None
    ) -> None:
        """``noise``: numbers of hosts (from 2 on) whose login shell prints something before it runs a command.

        ``hidden``: folders that such a host does not have: an empty one is mounted there.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.caller = hosts[0]
        self.hosts = {f"h{number}": host for number, host in enumerate(hosts[1:], start=2)}
        self.config = directory / "config"
        self._noise = {f"h{number}" for number in noise}
        self._hidden = {f"h{number}": path for number, path in (hidden or {}).items()}
        self._servers: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def names(self) -> list[str]:
        """The hosts' names, in order."""
        return list(self.hosts)

    def __enter__(self) -> Self:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where sshd's unprivileged half lives; it insists
        for name in ("user", "stranger", "other", *self.hosts):
            self._make_key(name)
        (self.directory / "authorized").write_text((self.directory / "user.pub").read_text())
        self._write_client()
        every = [f"{host.v4} {name}" for name, host in self.hosts.items()]
        try:
            for host in (self.caller, *self.hosts.values()):
                host.hosts(*every)
            for name in self.hosts:
                self._start(name)
            for name, host in self.hosts.items():
                self._wait(name, host)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for name in list(self._servers):
            self.stop(name)
        for host in (self.caller, *self.hosts.values()):
            for pid in host.pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    # Using them

    def command(self, name: str, *command: str, options: Sequence[str] = ()) -> list[str]:
        """What logs in to ``name`` from the caller's host and runs ``command`` there. ``options``: as for ``ssh -o``."""
        given = [word for option in ("BatchMode=yes", *options) for word in ("-o", option)]
        return [*self.caller.prefix, "ssh", "-F", str(self.config), *given, name, *command]

    def run(
        self, name: str, command: str, *, options: Sequence[str] = (), limit: float = TIMEOUT
    ) -> subprocess.CompletedProcess[str]:
        """Log in to ``name`` and run ``command``, to its end. ``options``: as for ``ssh -o``."""
        line = self.command(name, command, options=options)
        return subprocess.run(line, capture_output=True, text=True, timeout=limit, check=False, stdin=subprocess.DEVNULL)

    def processes(self, name: str) -> dict[int, str]:
        """Command lines of all processes of a host but sshd's own, by pid."""
        found = {}
        for pid in self.hosts[name].pids() if name in self.hosts else self.caller.pids():
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                if line and not line.startswith(("sshd", _SSHD)):
                    found[pid] = line
        return found

    def stop(self, name: str) -> None:
        """End the sshd of a host, and every login there, as if it had been switched off without its network noticing.

        All of them have ended when this returns.
        """
        server = self._servers.pop(name)
        if server.poll() is None:
            stop_child(server.pid)  # it lets nobody in any more
        end(descendants(server.pid))
        server.kill()
        server.wait()

    def start(self, name: str) -> None:
        """Start the sshd of a host anew, and wait until it answers."""
        self._start(name)
        self._wait(name, self.hosts[name])

    # Making them

    def _make_key(self, name: str) -> None:
        path = self.directory / name
        if not path.exists():
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(path)]
            subprocess.run(command, check=True, capture_output=True, timeout=_READY)

    def _public(self, name: str) -> str:
        return " ".join((self.directory / f"{name}.pub").read_text().split()[:2])

    def _write_client(self) -> None:
        key, stranger, known, unknown, changed = map(str, map(self.directory.joinpath, _FILES))
        Path(known).write_text("".join(f"{name} {self._public(name)}\n" for name in self.hosts))
        Path(unknown).write_text("")
        Path(changed).write_text("".join(f"{name} {self._public('other')}\n" for name in self.hosts))
        text = []
        for name, host in self.hosts.items():

            def entry(alias: str, *more: str, key: str = key, known: str = known, name: str = name, host: Host = host) -> None:
                lines = [f"HostName {host.v4}", f"HostKeyAlias {name}", f"IdentityFile {key}", f"UserKnownHostsFile {known}"]
                text.append("\n    ".join([f"Host {alias}", *lines, *more]))

            entry(f"{name} {host.v4}")
            entry(f"{name}-stranger", key=stranger)
            entry(f"{name}-unknown", known=unknown)
            entry(f"{name}-changed", known=changed)
            for gate in self.hosts:
                if gate != name:
                    entry(f"{name}-by-{gate}", f"ProxyJump {gate}")
        self.config.write_text("\n".join([*text, _CLIENT.format(user=getpass.getuser())]))

    def _start(self, name: str) -> None:
        host, more = self.hosts[name], ""
        if name in self._noise:
            shell = self.directory / "noisy"
            shell.write_text(_NOISY)
            shell.chmod(0o755)
            more = f"ForceCommand {shell}"
        config, authorized = self.directory / f"{name}.sshd", self.directory / "authorized"
        config.write_text(_SERVER.format(v4=host.v4, v6=host.v6, key=self.directory / name, authorized=authorized, more=more))
        steps = [f"hostname {name}", f"exec {_SSHD} -D -e -f {shlex.quote(str(config))}"]
        if name in self._hidden:
            steps.insert(1, f"mount -t tmpfs none {shlex.quote(str(self._hidden[name]))}")
        command = [*host.prefix, "unshare", "--uts", "--mount", "sh", "-c", " && ".join(steps)]
        with (self.directory / f"{name}.log").open("ab") as log:
            self._servers[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/"
            )

    def _wait(self, name: str, host: Host) -> None:
        deadline = time.monotonic() + _READY
        while True:
            with contextlib.suppress(OSError), host.inside(), socket.create_connection((host.v4, 22), timeout=1.0):
                return
            if self._servers[name].poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"sshd of {name} does not start: {(self.directory / f'{name}.log').read_text()[-2000:]}")
            time.sleep(0.01)
