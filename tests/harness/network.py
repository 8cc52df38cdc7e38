"""Hosts of a real network on this machine: one network namespace each, joined by a bridge. Needs root and iproute2.

``with Network(2) as hosts`` gives hosts 10.77.0.1, 10.77.0.2, ... (IPv6: fd77::1, ...). Sockets made ``with host.inside()``
belong to that host, as do those of threads and processes started there.

What is between the hosts is the network's: ``cut``, ``lose``, ``isolate``, ``split`` drop packets at the bridge (nftables), all
at one instant and without any answer, as a broken cable does; ``heal`` mends all of that. ``unplug`` takes a host's link down.
``Network(2, delay=0.02, jitter=0.005)`` has long cables: netem where the kernel has it, else a process (see ``wire``).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

import pytest

from tests.harness.basics import TIMEOUT
from tests.harness.namespace import inside
from tests.harness.wire import make_tap

_numbers = itertools.count()


@functools.cache
def _missing() -> str:
    """Why namespaces cannot be made here; empty where they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "ip is not installed: apt-get install iproute2"
    name = f"ft{os.getpid()}x"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        return f"this kernel or container lets nobody make network namespaces: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=False)
    return ""


def _batch(lines: Iterable[str], namespace: str | None = None) -> None:
    where = [] if namespace is None else ["-n", namespace]
    subprocess.run(["ip", *where, "-batch", "-"], input="\n".join(lines) + "\n", text=True, check=True, timeout=TIMEOUT)


@functools.cache
def _netem() -> bool:
    """Whether this kernel can delay packets by itself."""
    return _tried("tc qdisc add dev lo root netem delay 1ms")


@functools.cache
def _bridge_filter() -> bool:
    return _tried("nft add table bridge probe")


def _tried(command: str) -> bool:
    """Whether ``command`` works in a namespace."""
    if _missing() or shutil.which(command.split(maxsplit=1)[0]) is None:
        return False
    name = f"ft{os.getpid()}x"
    _batch([f"netns add {name}"])
    try:
        tried = subprocess.run(
            ["ip", "netns", "exec", name, *command.split()], capture_output=True, check=False, timeout=TIMEOUT
        )
    finally:
        _batch([f"netns del {name}"])
    return tried.returncode == 0


_without_nft = "nft is not installed: apt-get install nftables" if shutil.which("nft") is None else ""
_no_bridge_filter = _missing() or _without_nft or ("" if _bridge_filter() else "this kernel does not filter packets at bridges")

needs_network = pytest.mark.skipif(bool(_missing()), reason=_missing() or "none")
needs_filter = pytest.mark.skipif(bool(_without_nft), reason=_without_nft or "none")
needs_bridge_filter = pytest.mark.skipif(bool(_no_bridge_filter), reason=_no_bridge_filter or "none")
needs_delay = pytest.mark.skipif(
    not Path("/dev/net/tun").exists() and not _netem(), reason="slow links need netem or /dev/net/tun"
)


class Host:
    """One namespace."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.v4 = f"10.77.0.{number}"
        self.v6 = f"fd77::{number}"

    def run(self, *command: str) -> str:
        """Run a command there; its output."""
        return subprocess.run(self.prefix + list(command), check=True, capture_output=True, text=True, timeout=TIMEOUT).stdout

    @property
    def prefix(self) -> list[str]:
        """Put before a command, this runs it there (with the host's own /etc/hosts, see ``hosts``)."""
        return ["ip", "netns", "exec", self.name]

    def ip(self, command: str) -> None:
        """``ip COMMAND`` there."""
        subprocess.run(["ip", "-n", self.name, *command.split()], check=True, timeout=TIMEOUT)

    def block(self, rules: str) -> None:
        """These nft rules replace all before: ``chain: rule`` a line, e.g. ``input: udp dport 7001 drop``."""
        lines = ["flush ruleset", "table inet test {"]
        for line in filter(None, map(str.strip, rules.splitlines())):
            chain, _, rule = line.partition(": ")
            lines += [f"chain {chain} {{", f"type filter hook {chain} priority 0;", rule, "}"]
        self.nft("\n".join([*lines, "}"]) if rules.strip() else "flush ruleset")

    def nft(self, rules: str) -> None:
        """Load nft rules there."""
        subprocess.run([*self.prefix, "nft", "-f", "-"], input=rules + "\n", check=True, text=True, timeout=TIMEOUT)

    def hosts(self, *lines: str) -> None:
        """What /etc/hosts says there, from now on, for processes that ``prefix`` started."""
        self._file("hosts", "127.0.0.1 localhost", *lines)

    def resolver(self, address: str) -> None:
        """The name server that is asked there, in the same way."""
        self._file("resolv.conf", f"nameserver {address}", "options timeout:1 attempts:2")

    def _file(self, name: str, *lines: str) -> None:
        path = Path("/etc/netns") / self.name / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([*lines, ""]))  # in place: it is mounted over the real one

    def inside(self) -> contextlib.AbstractContextManager[None]:
        """This thread, and what it starts, is there."""
        return inside(self.name)

    def pids(self) -> list[int]:
        """All processes that are there."""
        return [int(pid) for pid in subprocess.check_output(["ip", "netns", "pids", self.name], timeout=TIMEOUT).split()]


class Network:
    """So many hosts at one bridge, which is a namespace too. Faults have a direction: from one host to another."""

    def __init__(self, count: int, *, delay: float = 0.0, jitter: float = 0.0) -> None:
        """``delay``, ``jitter``: seconds from any host to any other; packets may overtake each other."""
        base = f"ft{os.getpid()}n{next(_numbers)}"
        self._bridge = f"{base}b"
        self.hosts = [Host(f"{base}h{number}", number) for number in range(1, count + 1)]
        self._delay, self._jitter = delay, jitter
        self._lost: dict[tuple[Host, Host], float] = {}
        """Share of the packets from one to another that get lost."""
        self._wire: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> list[Host]:
        lines = [f"netns add {name}" for name in (self._bridge, *(host.name for host in self.hosts))]
        try:
            _batch(lines)
            if self._delay and not _netem():
                self._lay_wire()
            else:
                _batch(
                    f"link add eth0 netns {host.name} type veth peer name p{number} netns {self._bridge}"
                    for number, host in enumerate(self.hosts)
                )
            ports = [
                line
                for number in range(len(self.hosts))
                for line in (f"link set p{number} master switch", f"link set p{number} up")
            ]
            _batch(["link add name switch type bridge", "link set dev switch up", *ports], self._bridge)
            for host in self.hosts:
                addresses = [f"addr add {host.v4}/24 dev eth0", f"addr add {host.v6}/64 dev eth0 nodad"]
                _batch(["link set lo up", *addresses, "link set eth0 up"], host.name)
            if self._delay and _netem():
                times = f"{self._delay * 1e3:g}ms {self._jitter * 1e3:g}ms"
                for number in range(len(self.hosts)):
                    self._there("tc", *f"qdisc add dev p{number} root netem delay {times}".split())
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self.hosts

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._wire is not None:
            self._wire.kill()
            self._wire.wait()
        for name in (self._bridge, *(host.name for host in self.hosts)):
            subprocess.run(["ip", "netns", "del", name], check=False, timeout=TIMEOUT)
            shutil.rmtree(Path("/etc/netns") / name, ignore_errors=True)

    # Faults

    def lose(self, source: Host, target: Host, share: float) -> None:
        """This share of what ``source`` sends to ``target`` gets lost."""
        self._lost[source, target] = share
        self._filter()

    def cut(self, source: Host, target: Host) -> None:
        """Nothing from ``source`` reaches ``target`` any more; the other way is as it was."""
        self.lose(source, target, 1.0)

    def split(self, left: Iterable[Host], right: Iterable[Host]) -> None:
        """Nothing gets from one side to the other, at one instant."""
        others = list(right)
        for one in left:
            for other in others:
                self._lost[one, other] = self._lost[other, one] = 1.0
        self._filter()

    def isolate(self, host: Host) -> None:
        """Nothing gets from or to ``host``."""
        self.split([host], [other for other in self.hosts if other is not host])

    def gag(self, host: Host) -> None:
        """Nothing from ``host`` gets anywhere; it hears the others."""
        self._lost |= {(host, other): 1.0 for other in self.hosts if other is not host}
        self._filter()

    def deafen(self, host: Host) -> None:
        """Nothing gets to ``host``; the others hear it."""
        self._lost |= {(other, host): 1.0 for other in self.hosts if other is not host}
        self._filter()

    def degrade(self, share: float) -> None:
        """This share of all packets gets lost, each way of each link."""
        for one, other in itertools.permutations(self.hosts, 2):
            self._lost[one, other] = share
        self._filter()

    def heal(self) -> None:
        """No packet is lost any more, no host unplugged."""
        self._lost.clear()
        self._filter()
        _batch((f"link set p{number} up" for number in range(len(self.hosts))), self._bridge)

    def unplug(self, host: Host) -> None:
        """The link of ``host`` is down at the bridge: the others do not even get answers to the question where it is."""
        _batch([f"link set p{self.hosts.index(host)} down"], self._bridge)

    def _filter(self) -> None:
        lines = ["table bridge faults", "delete table bridge faults", "table bridge faults {", "chain forward {"]
        lines.append("type filter hook forward priority 0;")
        for (source, target), share in self._lost.items():
            verdict = "drop" if share >= 1.0 else f"numgen random mod 1000 < {share * 1000:.0f} drop"
            lines.append(f"ip saddr {source.v4} ip daddr {target.v4} {verdict}")
            lines.append(f"ip6 saddr {source.v6} ip6 daddr {target.v6} {verdict}")
            lines.append(f"arp saddr ip {source.v4} arp daddr ip {target.v4} {verdict}")
        self._there("nft", "-f", "-", text="\n".join([*lines, "}", "}", ""]))

    def _there(self, *command: str, text: str = "") -> None:
        where = ["ip", "netns", "exec", self._bridge]
        subprocess.run([*where, *command], input=text, text=True, check=True, timeout=TIMEOUT)

    def _lay_wire(self) -> None:
        taps = [(make_tap("eth0", host.name), make_tap(f"p{number}", self._bridge)) for number, host in enumerate(self.hosts)]
        command = [sys.executable, "-m", "tests.harness.wire", str(self._delay), str(self._jitter)]
        command += [f"{host},{port}" for host, port in taps]
        held = [tap for pair in taps for tap in pair]
        self._wire = subprocess.Popen(command, pass_fds=held, cwd=Path(__file__).parents[2])
        for tap in held:
            os.close(tap)
