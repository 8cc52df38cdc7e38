"""Names of hosts as users give them: a list, ``host:slots``, a file, a command's output, a Slurm allocation."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Self

from ...errors import ConfigError

DISCOVERY = 30.0
"""Seconds that a discovery command may take."""
_SLURM_PART = re.compile(r"([^,\[]+)(\[[^\]]*\])?([^,\[]*)")


def parse_host(text: str) -> tuple[str, int | None]:
    """``host`` or ``host:slots``; brackets around an IPv6 address."""
    text = text.strip()
    match = re.fullmatch(r"(?P<host>\[[^\]]+\]|[^:\s]+|[0-9a-fA-F:]*:[0-9a-fA-F:]*:[0-9a-fA-F:.]*)(:(?P<slots>\d+))?", text)
    if match is None or match["host"].startswith("-"):
        raise ConfigError(f"{text!r} is no host: write a name or an address, with :SLOTS behind it if you like")
    if match["slots"] and not int(match["slots"]):
        raise ConfigError(f"{text!r} has no slot: write a number of at least 1, or leave the host out")
    return match["host"].strip("[]"), int(match["slots"]) if match["slots"] else None


def parse_hosts(lines: Iterable[str]) -> dict[str, int | None]:
    """Hosts of the lines of a file (``#`` begins a comment); ``host slots=4``, as mpirun has it, is understood, too."""
    found: dict[str, int | None] = {}
    for line in lines:
        text = line.partition("#")[0].strip()
        if not text:
            continue
        text = re.sub(r"\s+slots\s*=\s*", ":", text)
        host, slots = parse_host(text)
        if host in found:
            raise ConfigError(f"the host {host} is named twice: name it once, with :SLOTS behind it")
        found[host] = slots
    return found


class HostsFile:
    """A file of hosts that people and programs edit while it is followed.

    A change counts once it was seen twice, and a file that names nobody does not: it may be half written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: str | None = None
        self._hosts: dict[str, int | None] | None = None

    def __call__(self) -> dict[str, int | None]:
        """The hosts now. ConfigError for a file that cannot be read, or holds what is no host."""
        try:
            text = self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            raise ConfigError(f"the file of hosts {self._path}: {why}: give one that can be read") from None
        if self._hosts is None or text == self._seen:
            self._hosts = _some(parse_hosts(text.splitlines()), self._hosts, f"the file of hosts {self._path}")
        self._seen = text
        return self._hosts

    def close(self) -> None:
        """Nothing to end: a look takes no time."""


class Discovery:
    """A command that prints hosts, one ``host:slots`` a line (Horovod's format). Takes ``DISCOVERY`` seconds at most."""

    def __init__(self, command: str) -> None:
        self._command = command
        self._hosts: dict[str, int | None] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def __call__(self) -> dict[str, int | None]:
        """The hosts now. ConfigError for a command that fails, takes too long, or prints what is no host."""
        name = f"the discovery command {self._command!r}"
        # No pipes: whatever the command leaves behind, a connection that ssh shares say, would hold them open.
        with _Words() as out, _Words() as err:
            try:
                process = subprocess.Popen(  # noqa: S603 - running the user's command is the purpose
                    shlex.split(self._command),
                    stdin=subprocess.DEVNULL,
                    stdout=out.fd,
                    stderr=err.fd,
                    start_new_session=True,  # the terminal's Ctrl-C is the launcher's
                )
            except (OSError, ValueError) as error:
                raise ConfigError(f"{name} cannot be run: {error}") from None
            self._process = process
            try:
                if self._closed:
                    _kill(process)
                process.wait(DISCOVERY)
            except subprocess.TimeoutExpired:
                _kill(process)
                with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel
                    process.wait(1.0)
                raise ConfigError(f"{name} did not end within {DISCOVERY:g} s") from None
            finally:
                self._process = None
            if process.returncode:
                words = " ".join(err.text().split())[:200] or "it says nothing on stderr"
                raise ConfigError(f"{name} failed with {process.returncode}: {words}")
            self._hosts = _some(parse_hosts(out.text().splitlines()), self._hosts, name)
            return self._hosts

    def close(self) -> None:
        """Kill the command if it runs."""
        self._closed = True
        process = self._process
        if process is not None:
            _kill(process)


class _Words:
    """What a command writes, in memory: readable once it has ended, whoever else may still write there."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("ftlib-discovery")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def text(self) -> str:
        """All of it so far."""
        return os.pread(self.fd, os.fstat(self.fd).st_size, 0).decode(errors="replace")


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _some(hosts: dict[str, int | None], before: dict[str, int | None] | None, source: str) -> dict[str, int | None]:
    """Hosts, if there are any or never were: whoever says "none" while some work is more likely broken than right."""
    if before and not hosts:
        raise ConfigError(f"{source} names no host")
    return hosts


def slurm_hosts(environment: Mapping[str, str]) -> list[str]:
    """The nodes of the Slurm allocation that this process is in. ConfigError if there is none."""
    text = environment.get("SLURM_JOB_NODELIST") or environment.get("SLURM_NODELIST")
    if not text:
        raise ConfigError('hostnames="slurm": this is no Slurm allocation: start it with salloc or sbatch, or name the hosts')
    return expand_nodes(text)


def expand_nodes(text: str) -> list[str]:
    """Slurm's short form of a list: ``n[1-3,07],login`` is n1, n2, n3, n07 and login."""
    found = []
    for match in _SLURM_PART.finditer(text):
        before, inside, after = match[1], match[2], match[3]
        if not inside:
            found.append(before + after)
            continue
        for part in inside[1:-1].split(","):
            first, _, last = part.partition("-")
            numbers = range(int(first), int(last or first) + 1)
            found += [f"{before}{number:0{len(first)}d}{after}" for number in numbers]
    return found
