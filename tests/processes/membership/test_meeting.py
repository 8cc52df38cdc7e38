"""Workers of several hosts without any launcher that knows of all: real ``ftlib run --meet`` in real network namespaces."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.basics import TIMEOUT
from tests.harness.names import Names, needs_names
from tests.harness.network import Network, needs_network
from tests.harness.nursery import Nursery
from tests.processes.jobs.met import PORT, MetHosts

pytestmark = [pytest.mark.process, needs_network, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    network = Network(2)
    with network:
        yield network


def test_no_host_is_needed_and_fencing_crosses_hosts(network: Network, nursery: Nursery, tmp_path: Path) -> None:
    """Two hosts with two workers each. A worker is killed, one is stopped, and the host that founded is lost as a whole."""
    place = ",".join(f"{host.v4}:{PORT}" for host in network.hosts)
    options = ("-n", 2, "--meet", place, "--size", 4, "--max-restarts", 20)
    with MetHosts(nursery, tmp_path, network.hosts, *options) as hosts:
        first, second = hosts.launchers
        hosts.training(4)
        addresses = {event["address"] for each in hosts.launchers for event in each.events("started")}
        assert {f"{host.v4}:{PORT}" for host in network.hosts} <= addresses

        os.kill(second.pid(0), signal.SIGKILL)  # the one that others meet at that host
        hosts.until("it is started again", lambda: len(second.events("started")) == 3)
        hosts.training(4)
        assert second.events("started")[-1]["address"] == f"{network.hosts[1].v4}:{PORT}", "others look for it there"

        stopped = second.pid(1)
        os.kill(stopped, signal.SIGSTOP)
        hosts.until("its launcher was asked to kill it", lambda: second.events("fenced"))
        hosts.training(4)
        assert second.pid(1) != stopped
        assert not first.events("fenced")

        os.kill(first.program.pid, signal.SIGKILL)  # its guard: all of that host goes
        lost = time.monotonic()
        hosts.until(
            "the other host goes on", lambda: all(second.last(i)["size"] == 2 and second.last(i)["t"] > lost for i in (0, 1))
        )
        hosts.until("nobody is left there", lambda: not network.hosts[0].pids())
        step = second.last(0)["step"]
        hosts.again(0)
        hosts.training(4)
        assert hosts.launchers[0].last(0)["step"] > step, "it has the others' state"


@needs_names
def test_names_change_while_pods_come_and_go(nursery: Nursery, tmp_path: Path) -> None:
    """A headless service: its name stands for the pods that are there, late, and for one that is not there any more."""
    network = Network(5)
    with network as [server, *pods], Names(tmp_path, server, pods) as names:
        options = ("-n", 1, "--meet", f"workers:{PORT}", "--size", 3, "--job", "pods")
        for pod in pods:
            pod.ip(f"route add default via {server.v4}")  # as every pod has one: what is not in a lookup yet lies there
        with MetHosts(nursery, tmp_path / "pods", pods[:3], *options) as hosts:
            first, second, third = hosts.launchers
            hosts.until("all workers run", lambda: all(each.pid(0) for each in hosts.launchers))
            for count in (1, 2, 3):  # no record at first, then one after the other
                names.set("workers", *(pod.v4 for pod in pods[:count]))
            hosts.training(3)
            os.kill(first.program.pid, signal.SIGKILL)  # the pod with the lowest address; its record stays for a while
            hosts.until("nobody is left there", lambda: not pods[0].pids())
            hosts.launchers = [second, third]
            hosts.training(2)
            hosts.add(pods[3])
            names.set("workers", *(pod.v4 for pod in pods))
            hosts.training(3)
            names.set("workers", *(pod.v4 for pod in pods[1:]))
            os.kill(second.pid(0), signal.SIGKILL)
            hosts.until("it is started again", lambda: len(second.events("started")) == 2)
            hosts.training(3)
            names.set("workers")  # and where no name is known any more, what runs goes on
            hosts.training(3)


def test_a_drained_host_costs_the_others_nothing(network: Network, nursery: Nursery, tmp_path: Path) -> None:
    """SIGTERM, as a pod gets it: its workers finish their call and leave."""
    place = ",".join(f"{host.v4}:{PORT}" for host in network.hosts)
    with MetHosts(nursery, tmp_path, network.hosts, "-n", 1, "--meet", place, "--size", 2) as hosts:
        first, second = hosts.launchers
        hosts.training(2)
        first.program.send_signal(signal.SIGTERM)
        assert first.program.wait(TIMEOUT) == 143
        assert first.events("ended")[0]["code"] == 0, "it left well"
        hosts.training(1)
        assert not second.events("ended")
