"""Names of hosts as users give them: a list, ``host:slots``, a file, a command's output, a Slurm allocation."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

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


def read_hosts_file(path: Path) -> dict[str, int | None]:
    """Hosts of a file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the file of hosts {path}: {error.strerror}: give one that can be read") from None
    return parse_hosts(text.splitlines())


def discover(command: str) -> dict[str, int | None]:
    """Hosts that a command prints, one ``host:slots`` a line (Horovod's format). Takes ``DISCOVERY`` seconds at most."""
    try:
        done = subprocess.run(  # noqa: S603 - running the user's command is the purpose
            shlex.split(command), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DISCOVERY, check=False
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"the discovery command {command!r} cannot be run: {error}") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(f"the discovery command {command!r} did not end within {DISCOVERY:g} s") from None
    if done.returncode:
        raise ConfigError(
            f"the discovery command {command!r} failed with {done.returncode}: {' '.join(done.stderr.split())[:200]}"
        )
    return parse_hosts(done.stdout.splitlines())


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
