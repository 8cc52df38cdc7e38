"""Hosts of a real network on this machine: one network namespace each, joined by a bridge. Needs root and iproute2.

``with Network(2) as hosts`` gives hosts 10.77.0.1, 10.77.0.2, ... (IPv6: fd77::1, ...). Sockets made ``with host.inside()``
belong to that host, as do those of threads and processes started there.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import pytest

__all__ = ["Host", "Network", "needs_filter", "needs_network"]

_CLONE_NEWNET = 0x40000000
_NAMES = Path("/run/netns")
_numbers = itertools.count()


@functools.cache
def _missing() -> str:
    """Why namespaces cannot be made here; empty where they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need the command ip (iproute2)"
    name = f"ft{os.getpid()}x"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        return f"this kernel or container lets nobody make network namespaces: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=False)
    return ""


needs_network = pytest.mark.skipif(bool(_missing()), reason=_missing() or "none")
needs_filter = pytest.mark.skipif(shutil.which("nft") is None, reason="blocking packets needs the command nft (nftables)")


class Host:
    """One namespace."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.v4 = f"10.77.0.{number}"
        self.v6 = f"fd77::{number}"

    def run(self, *command: str) -> str:
        """Run a command there; its output."""
        return subprocess.run(self.prefix + list(command), check=True, capture_output=True, text=True, timeout=20).stdout

    @property
    def prefix(self) -> list[str]:
        """Put before a command, this runs it there (with the host's own /etc/hosts, see ``hosts``)."""
        return ["ip", "netns", "exec", self.name]

    def ip(self, command: str) -> None:
        """``ip COMMAND`` there."""
        subprocess.run(["ip", "-n", self.name, *command.split()], check=True, timeout=20)

    def block(self, rules: str) -> None:
        """These nft rules replace all before: ``chain: rule`` a line, e.g. ``input: udp dport 7001 drop``."""
        lines = ["flush ruleset", "table inet test {"]
        for line in filter(None, map(str.strip, rules.splitlines())):
            chain, _, rule = line.partition(": ")
            lines += [f"chain {chain} {{", f"type filter hook {chain} priority 0;", rule, "}"]
        self.nft("\n".join([*lines, "}"]) if rules.strip() else "flush ruleset")

    def nft(self, rules: str) -> None:
        """Load nft rules there."""
        subprocess.run([*self.prefix, "nft", "-f", "-"], input=rules + "\n", check=True, text=True, timeout=20)

    def hosts(self, *lines: str) -> None:
        """What /etc/hosts says there, from now on, for processes that ``prefix`` started."""
        path = Path("/etc/netns") / self.name / "hosts"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))  # in place: it is mounted over the real one

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """This thread, and what it starts, is there."""
        libc = ctypes.CDLL(None, use_errno=True)
        with Path("/proc/thread-self/ns/net").open() as here, (_NAMES / self.name).open() as there:
            if libc.setns(there.fileno(), _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
            try:
                yield
            finally:
                assert libc.setns(here.fileno(), _CLONE_NEWNET) == 0


class Network:
    """So many hosts at one bridge, which is a namespace too."""

    def __init__(self, count: int) -> None:
        base = f"ft{os.getpid()}n{next(_numbers)}"
        self._bridge = f"{base}b"
        self._hosts = [Host(f"{base}h{number}", number) for number in range(1, count + 1)]

    def __enter__(self) -> list[Host]:
        lines = [f"netns add {name}" for name in (self._bridge, *(host.name for host in self._hosts))]
        for number, host in enumerate(self._hosts):
            lines.append(f"link add eth0 netns {host.name} type veth peer name p{number} netns {self._bridge}")
        try:
            _batch(lines)
            ports = [
                line
                for number in range(len(self._hosts))
                for line in (f"link set p{number} master switch", f"link set p{number} up")
            ]
            _batch(["link add name switch type bridge", "link set dev switch up", *ports], self._bridge)
            for host in self._hosts:
                addresses = [f"addr add {host.v4}/24 dev eth0", f"addr add {host.v6}/64 dev eth0 nodad"]
                _batch(["link set lo up", *addresses, "link set eth0 up"], host.name)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self._hosts

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for name in (self._bridge, *(host.name for host in self._hosts)):
            subprocess.run(["ip", "netns", "del", name], check=False, timeout=20)
            shutil.rmtree(Path("/etc/netns") / name, ignore_errors=True)


def _batch(lines: list[str], namespace: str | None = None) -> None:
    where = [] if namespace is None else ["-n", namespace]
    subprocess.run(["ip", *where, "-batch", "-"], input="\n".join(lines) + "\n", text=True, check=True, timeout=20)
