"""Where a member listens and what others are told: real sockets, and where loopback cannot show it, real hosts."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from consensus import Config, ConfigError, Gossip, Home, JoinError, addresses_here, format_address
from consensus.runtime.net.names import lookup, resolve_all
from consensus.runtime.net.sockets import SocketPair, open_pair
from tests.harness.basics import PATIENT, eventually, free_ports
from tests.harness.network import Host, Network, needs_filter, needs_network

from .group import ids
from .peer import Peer, spawn

TIMEOUT = 120.0


@contextmanager
def members(*settings: dict[str, Any], host: list[Host] | None = None) -> Iterator[list[Gossip]]:
    """One member for each of ``settings``, at the host with the same index."""
    started: list[Gossip] = []
    try:
        for index, each in enumerate(settings):
            with ExitStack() as stack:
                if host is not None:
                    stack.enter_context(host[index].inside())
                own = {"initial_size": len(settings), "exclude_after": PATIENT["exclude_after"], **each}
                started.append(Gossip(Config(**{"job": "test", "agent": Home.THREAD, "insecure": True, **own})))
                started[-1].start()
                started[-1].seek_admission()
        yield started
    finally:
        for member in started:
            member.stop()


def together(group: list[Gossip]) -> None:
    """Wait until all are in one view, of nobody else. Its size tells nothing: who left may have come again."""
    deadline = time.monotonic() + TIMEOUT
    everybody = {member.member.id for member in group}
    while len({member.view for member in group}) != 1 or any(set(ids(member.view)) != everybody for member in group):
        for member in group:
            assert member.stopped is None, member.stopped
            assert time.monotonic() < deadline, (member.view, member.status()["notes"])
        time.sleep(0.005)


def wait_for(member: Gossip, size: int) -> None:
    """It is in a view of so many."""
    deadline = time.monotonic() + TIMEOUT
    while member.view is None or len(member.view) != size:
        assert member.stopped is None and time.monotonic() < deadline, (member.stopped, member.view)
        time.sleep(0.005)


def opened(config: Config) -> SocketPair:
    return open_pair(config, lookup(config.introducers).addresses)


# One list for all


def test_each_process_finds_a_place_of_its_own_in_one_list() -> None:
    ports = free_ports(3)
    config = Config(bind="", introducers=tuple(f"127.0.0.1:{port}" for port in ports))
    pairs = [opened(config) for _ in range(4)]
    try:
        assert [pair.advertised[1] for pair in pairs[:3]] == ports
        assert pairs[3].advertised[0] == "127.0.0.1" and pairs[3].advertised[1] not in ports
    finally:
        for pair in pairs:
            pair.close()


def test_a_race_for_one_place_has_one_winner() -> None:
    ports = free_ports(4)
    config = Config(bind="", introducers=tuple(f"127.0.0.1:{port}" for port in ports))
    for _ in range(10):
        pairs: list[SocketPair] = []
        gate = threading.Barrier(4)

        def race(pairs: list[SocketPair] = pairs, gate: threading.Barrier = gate) -> None:
            gate.wait()
            pairs.append(opened(config))

        threads = [threading.Thread(target=race) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT)
        for pair in pairs:
            pair.close()
        taken = [pair.advertised[1] for pair in pairs]
        assert len(set(taken)) == 4 and ports[0] in taken


def test_the_first_of_one_list_restarted_joins_the_others() -> None:
    introducers = tuple(f"127.0.0.1:{port}" for port in free_ports(2))
    one = {"bind": "", "introducers": introducers, "initial_size": 1}
    with members(one, one, one) as group:
        together(group)
        assert [format_address(member.member.address) for member in group[:2]] == list(introducers)
        group[0].stop()  # to the others it is dead
        with members(one) as [again]:
            assert format_address(again.member.address) == introducers[0]
            together([again, *group[1:]])


def test_the_first_of_one_list_restarted_does_not_found_while_another_cannot_answer() -> None:
    introducers = tuple(f"127.0.0.1:{port}" for port in free_ports(2))
    one = {"bind": "", "introducers": introducers, "initial_size": 1, "exclude_after": 20.0}
    with ExitStack() as stack:
        with members(one) as [first]:
            wait_for(first, 1)
            other = spawn(job="test", bind=introducers[1], introducers=introducers, exclude_after=20.0)
            stack.callback(other.close)
            wait_for(first, 2)
            # Who was never in contact with the senior one could not tell whether that goes on without it, and would block.
            eventually(lambda: "Ack" in status_of(other)["messages"]["received"], "it is in contact")
        eventually(lambda: len(status_of(other)["members"]) == 1, "it goes on alone")
        other.pause()  # as on an overloaded machine
        [again] = stack.enter_context(members(one))
        assert again.wait_view(1.0) is None
        os.kill(other.process.pid, signal.SIGCONT)
        wait_for(again, 2)


def status_of(peer: Peer) -> Any:
    with urllib.request.urlopen(f"http://{peer.address}/status", timeout=TIMEOUT) as response:
        return json.load(response)


def test_a_foreign_program_at_the_first_address_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        text = f"127.0.0.1:{foreign.getsockname()[1]}"
        with members({"bind": "", "introducers": (text,), "initial_size": 1, "join_timeout": 0.3}) as [lost]:
            assert lost.wait_view(TIMEOUT) is None
            assert isinstance(lost.stopped, JoinError)
            assert text in str(lost.stopped) and "no answer within" in str(lost.stopped)


@pytest.mark.usefixtures("patient")
def test_two_jobs_with_one_list_found_a_cluster_each_where_each_has_its_first_address() -> None:
    """The second job finds the address taken: it says by whom."""
    [port] = free_ports(1)
    one = {"bind": "", "introducers": (f"127.0.0.1:{port}",), "initial_size": 1}
    with members(one) as [first]:
        together([first])
        with members({**one, "job": "other", "join_timeout": 0.5}) as [second]:
            assert second.wait_view(TIMEOUT) is None
            assert "a member of job 'test', this is 'other'" in str(second.stopped)
        assert first.view is not None and len(first.view) == 1
        assert first.status()["messages"]["dropped"]["foreign"]["messages"] > 0


def test_without_a_list_it_is_loopback() -> None:
    pair = opened(Config(bind=""))
    pair.close()
    assert (pair.advertised[0], pair.interface) == ("127.0.0.1", "127.0.0.1")


# What cannot work


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"bind": "192.0.2.7:0"}, r"192.0.2.7 is no address of this host: give one .* advertise"),
        ({"bind": "[2001:db8::7]:0"}, r"2001:db8::7 is no address of this host"),
        ({"bind": "[fe80::1%lo]:0"}, r"bind=\[fe80::1%lo\]:0 is link-local.*fd00::/8"),
        ({"advertise": "[fe80::1]:7000"}, "advertise=.*link-local"),
        ({"introducers": ("[fe80::1%lo]:7000",)}, "introducers=.*link-local"),
        ({"advertise": f"{'x' * 64}.test:7000"}, "advertise: .* is no name of a host"),
        ({"advertise": f"{'a.' * 127}test:7000"}, "advertise: .* is no name of a host"),
        ({"advertise": "0.0.0.0:7000"}, "every interface, which nobody can connect to"),
        ({"bind": "no.such.host.invalid:0"}, "cannot resolve 'no.such.host.invalid'"),
        ({"bind": "no..name:0"}, "cannot resolve 'no..name': no host name"),
    ],
)
def test_what_cannot_work_is_refused_with_the_remedy(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        opened(Config(**settings))


def test_a_port_in_use_is_refused() -> None:
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        refused = pytest.raises(ConfigError, match="the port is in use; give another one, or 0")
        with socket.create_server((host, 0), family=family) as taken, refused:
            opened(Config(bind=format_address((host, taken.getsockname()[1]))))


def test_who_finds_its_port_taken_by_a_worker_without_bind_hears_of_it() -> None:
    [port] = free_ports(1)
    introducer = f"127.0.0.1:{port}"
    pair = opened(Config(bind="", introducers=(introducer,)))
    try:
        with pytest.raises(ConfigError, match=r"in use; .* a worker without bind\? .*give all of them bind, or none"):
            opened(Config(bind=introducer, introducers=(introducer,)))
    finally:
        pair.close()


def test_a_name_as_bind() -> None:
    pair = opened(Config(bind="localhost:0"))
    pair.close()
    assert pair.interface in ("127.0.0.1", "::1")


# IPv6


def test_members_meet_over_ipv6_loopback() -> None:
    port = free_ports(1, "::1")[0]
    one = {"bind": "", "introducers": (f"[::1]:{port}",)}
    with members(one, one) as group:
        together(group)
        assert {member.member.host for member in group} == {"::1"}
        with urllib.request.urlopen(f"http://[::1]:{port}/status", timeout=TIMEOUT) as response:
            status = json.load(response)
        assert status["address"] == f"[::1]:{port}" and status["members"][0]["address"].startswith("[::1]:")


# Other hosts


@needs_network
def test_wildcards_second_addresses_and_both_families() -> None:
    with Network(2) as [one, two]:
        one.ip("addr add 10.78.0.1/24 dev eth0")  # an interface that leads nowhere, and comes first in no list
        two.ip("addr add 192.0.2.2/32 dev lo")
        one.ip("route add 192.0.2.2/32 via 10.77.0.2")
        # all interfaces; the own address is the one in the list
        introducers = {"introducers": ("10.77.0.1:7000",)}
        with members({"bind": "0.0.0.0:7000", **introducers}, {"bind": "0.0.0.0:0", **introducers}, host=[one, two]) as group:
            together(group)
            assert [member.bind().interface for member in group] == ["10.77.0.1", "10.77.0.2"]
        # any port on the interface that leads to the introducers
        with members({"bind": "10.77.0.1:7000"}, {"bind": "", **introducers}, host=[one, two]) as group:
            together(group)
            assert group[1].member.host == "10.77.0.2"
        # another address than the one bound, on the same host: the data plane goes there too
        named = {"introducers": ("192.0.2.2:7000",)}
        other = {"bind": "10.77.0.2:7000", "advertise": "192.0.2.2:0", **named}
        with two.inside(), pytest.raises(ConfigError, match="no address of this host"):
            opened(Config(bind="10.77.0.1:0"))
        with members({"bind": "", **named, "initial_size": 1}, host=[one]) as [early]:
            assert early.member.host == "10.77.0.1" and early.view is None
        with members({**other, "bind": "0.0.0.0:7000"}, {"bind": "", **named}, host=[two, one]) as group:
            together(group)
            assert group[0].bind().interface == "192.0.2.2"
        # a name that nobody knows yet: the default route, and the port where the others will look for it
        one.ip("route add default via 10.77.0.2")
        with one.inside():
            pair = open_pair(Config(bind="", introducers=("later.invalid:7003",)), (("later.invalid", 7003),))
            pair.close()
        assert pair.advertised == ("10.77.0.1", 7003)
        # IPv6, bound by wildcard too
        six = {"introducers": ("[fd77::1]:7000",)}
        with members({"bind": "[::]:7000", **six}, {"bind": "", **six}, host=[one, two]) as group:
            together(group)
            assert [member.member.host for member in group] == ["fd77::1", "fd77::2"]


@needs_network
def test_an_address_that_can_be_bound_is_not_yet_this_hosts() -> None:
    """Where the kernel lets anybody bind any address, for one that moves between hosts, say."""
    with Network(2) as [one, two]:
        two.run("sysctl", "-w", "net.ipv4.ip_nonlocal_bind=1", "net.ipv6.ip_nonlocal_bind=1")
        two.ip("addr add 10.77.0.99/24 dev eth0")  # packets to it leave from 10.77.0.2: its network has one first address
        for first, second, third in ((one.v4, two.v4, "10.77.0.99"), (f"[{one.v6}]", f"[{two.v6}]", "10.77.0.99")):
            introducers = {"introducers": (f"{first}:7000", f"{second}:7000", f"{third}:7000"), "bind": ""}
            with two.inside():
                assert [format_address(each) for each in addresses_here(introducers["introducers"])] == [
                    f"{second}:7000",
                    f"{third}:7000",
                ]
            with members(introducers, introducers, host=[one, two]) as group:
                together(group)
                assert [format_address(member.member.address) for member in group] == [f"{first}:7000", f"{second}:7000"]
        with two.inside(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(socket, "getaddrinfo", _naming("anchor.test", one.v4, real=socket.getaddrinfo))
            with pytest.raises(ConfigError, match=f"{one.v4} is no address of this host"):
                opened(Config(bind="anchor.test:0"))


def _naming(name: str, address: str, real: Any) -> Any:
    """``getaddrinfo`` where ``name`` stands for ``address``."""

    def getaddrinfo(host: str, *args: Any, flags: int = 0, **named: Any) -> Any:
        found = address if host == name and not flags & socket.AI_NUMERICHOST else host
        return real(found, *args, flags=flags, **named)

    return getaddrinfo


@needs_network
def test_a_wildcard_of_ipv6_is_every_interface_whatever_the_kernels_default() -> None:
    with Network(1) as [one]:
        one.run("sysctl", "-w", "net.ipv6.bindv6only=1")
        with one.inside():
            pair = open_pair(Config(bind="[::]:0", advertise=f"{one.v4}:0"))
            try:
                for family, host in ((socket.AF_INET, one.v4), (socket.AF_INET6, one.v6)):
                    with socket.socket(family, socket.SOCK_DGRAM) as sock:
                        sock.connect((host, pair.advertised[1]))
                        sock.send(b"hello")  # refused packets are known at once, on one host
                        assert sock.send(b"hello") == 5
                    socket.create_connection((host, pair.advertised[1]), TIMEOUT).close()
            finally:
                pair.close()


@needs_network
@needs_filter
def test_an_advertised_address_that_only_a_router_knows() -> None:
    """192.0.2.9:9000 is no address of any host: packets to it are rewritten to 10.77.0.1:7000 on their way."""
    with Network(2) as [one, two]:
        two.ip("route add 192.0.2.9/32 via 10.77.0.1")
        rule = "ip daddr 192.0.2.9 {0} dport 9000 dnat to 10.77.0.1:7000\n"
        chain = "chain prerouting {\ntype nat hook prerouting priority -100;\n" + rule.format("tcp") + rule.format("udp")
        one.nft("table ip nat {\n" + chain + "}\n}")
        public = {"introducers": ("192.0.2.9:9000",)}
        with members(
            {"bind": "10.77.0.1:7000", "advertise": "192.0.2.9:9000", **public}, {"bind": "", **public}, host=[one, two]
        ) as group:
            together(group)
            assert group[0].member.address == ("192.0.2.9", 9000)  # so it knew itself in the list, and founded
            assert group[0].bind().interface == "10.77.0.1"


# Names that stand for several members


@contextmanager
def pods(hosts: list[Host], **settings: Any) -> Iterator[list[Peer]]:
    """A list to which peers may be added; all are ended."""
    started: list[Peer] = []
    try:
        yield started
    finally:
        for peer in started:
            peer.close()


def views(hosts: list[Host], peers: list[Peer]) -> list[str]:
    """The view of each peer, empty before the first."""
    found = []
    for host, peer in zip(hosts, peers, strict=True):
        with host.inside():
            status = status_of(peer)
        found.append(status["view_id"] if status["active_epoch"] and len(status["members"]) == len(peers) else "")
    return found


@needs_network
def test_a_name_that_shows_more_members_as_they_come_up_makes_one_cluster() -> None:
    """The lookups are those of the system; each pod's shows the others at another time, and itself first."""
    with Network(3) as hosts, pods(hosts) as peers:
        for host in hosts:
            host.hosts(f"{host.v4} workers")
        settings = {"bind": "0.0.0.0:7000", "introducers": ["workers:7000"], "initial_size": 2, "job": "pods"}
        for host in reversed(hosts):
            peers.insert(0, spawn(prefix=host.prefix, insecure=True, **settings))
        assert [peer.member.host for peer in peers] == [host.v4 for host in hosts]
        assert views(hosts, peers) == ["", "", ""], "each sees itself alone: two of three must have met"
        for host in hosts:
            host.hosts(*(f"{each.v4} workers" for each in hosts))
        deadline = time.monotonic() + TIMEOUT
        while "" in (found := views(hosts, peers)) or len(set(found)) != 1:
            assert time.monotonic() < deadline, found
            time.sleep(0.05)


@needs_network
def test_too_small_an_initial_size_for_a_name_is_named() -> None:
    with Network(1) as [host], pods([host]) as peers:
        host.hosts("10.77.0.1 workers", "10.77.0.2 workers", "10.77.0.3 workers", "fe80::1 workers")
        settings = {"introducers": ["workers:7000"], "initial_size": 1, "job": "pods", "bind": "", "join_timeout": 60}
        peers.append(spawn(prefix=host.prefix, insecure=True, **settings))
        assert peers[0].address == "10.77.0.1:7000", "it found its place in the name"
        time.sleep(1.0)
        assert views([host], peers) == [""], "it is first, but must not found"
    found = lookup(("localhost:1",))
    assert found.named and not found.refused(1) and found.founder(found.addresses[0], 1)
    several = type(found)(("workers:7000",), (("10.0.0.1", 7000), ("10.0.0.2", 7000), ("10.0.0.10", 7000)))
    assert several.refused(1).endswith("set initial_size to at least 2")
    assert not several.refused(2) and several.founder(("10.0.0.1", 7000), 2) and not several.founder(("10.0.0.2", 7000), 2)


def test_a_name_that_cannot_be_resolved_yet_keeps_its_place() -> None:
    assert resolve_all(["later.invalid:7000", "127.0.0.1:7001"]) == (("later.invalid", 7000), ("127.0.0.1", 7001))
    assert resolve_all(["no..name:7000"]) == (("no..name", 7000),)
