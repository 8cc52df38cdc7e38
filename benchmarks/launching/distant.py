"""The rows of several hosts: sshd in network namespaces, and a real Slurm. They need root."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import statistics
import sys
import tempfile
import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.launching import work
from benchmarks.launching.called import LIMIT, Called, caller, family, folder, gone, rounds, wait_for
from benchmarks.report import Report, spread
from ftlib import AgentFailedError, Launcher
from tests.harness.logins import Logins
from tests.harness.network import Network
from tests.harness.slurm import Slurm

Cells = Callable[..., list[str]]


@contextlib.contextmanager
def logins(count: int) -> Iterator[tuple[Network, Logins]]:
    """So many hosts to log in to; this thread is on the caller's."""
    network = Network(count + 1)
    with (
        tempfile.TemporaryDirectory(prefix="ftlib-logins-") as path,
        network as hosts,
        Logins(Path(path), hosts) as found,
        found.caller.inside(),
    ):
        places = [f"{found.caller.v4} {socket.gethostname()}", *(f"{host.v4} {name}" for name, host in found.hosts.items())]
        for host in (found.caller, *found.hosts.values()):
            host.hosts(*places)  # torchrunx looks up the caller's own name
        yield network, found


def over_ssh(found: Logins, *names: str, **more: Any) -> Launcher:
    settings = {"workers_per_host": 2, "preload": (), "quiet": True, "transport": "ssh", **more}
    return Launcher(hostnames=list(names), ssh_config_file=found.config, **settings)


def hosts(args: Namespace, report: Report, cells: Cells) -> None:
    times = defaultdict[str, list[float]](list)
    with logins(16) as (_, found):
        settings = {"hostnames": ["h2", "h3"], "workers_per_host": 2, "ssh_config_file": str(found.config)}
        for _ in rounds(args.repetitions):
            systems = {"Launcher": caller("ftlib", "trivial", {**settings, "transport": "ssh"}, "")}
            if args.peer is not None:
                systems["torchrunx"] = caller("torchrunx", "trivial", settings, "", python=args.peer)
            for name, command in systems.items():
                with folder() as path:
                    called = Called(command, path, found.caller.prefix)
                    try:
                        [(at, text)] = called.until("AT ")
                        times[name].append(at - called.began if "returned" in text else float("inf"))
                        if "returned" not in text:
                            print(f"{name}: {text}", file=sys.stderr)
                    finally:
                        called.end()
        many = []
        for _ in rounds(args.repetitions):
            began = time.monotonic()
            over_ssh(found, *found.names, workers_per_host=1).run(work.trivial, "")
            many.append(time.monotonic() - began)
    good = statistics.median(times["Launcher"]) <= 1.5
    report.row("a trivial function on 2 hosts by ssh, from an interpreter's start", *cells(times), bar="<= 1.5 s", good=good)
    good = statistics.median(many) <= 5.0
    report.row("16 hosts, from a process that runs", *cells({"Launcher": many}), bar="<= 5 s", good=good)


def lose(found: Logins, network: Network, names: tuple[str, str], what: str) -> float:
    """Kill the agent of the first of two hosts, or cut that host off; seconds until the caller knows."""
    with folder() as path:
        launch = over_ssh(found, *names, agent_timeout=3.0).start(work.family, str(path))
        wait_for(path, "pids-*", 4)
        agents = [pid for pid, line in found.processes(names[0]).items() if "ftlib.launch.agent" in line]
        began = time.monotonic()
        if what == "killed":
            for pid in agents:
                with contextlib.suppress(ProcessLookupError):  # what a killed guard leaves ends itself
                    os.kill(pid, signal.SIGKILL)
        else:
            network.isolate(found.hosts[names[0]])
        took = until_lost(launch.wait, began)
        network.heal()
        gone(family(path), began, 15.0)
        return took


def peer_loses(args: Namespace, found: Logins, network: Network, what: str) -> dict[str, list[float]]:
    """The same once with torchrunx, if it is here: seconds until its caller knows, infinite if that takes more than 20."""
    if args.peer is None:
        return {}
    settings = {"hostnames": ["h2", "h3"], "workers_per_host": 2, "ssh_config_file": str(found.config)}
    with folder() as path:
        command = caller("torchrunx", "family", settings, path, python=args.peer)
        called = Called(command, path, found.caller.prefix)
        try:
            wait_for(path, "pids-*", 4)
            began = time.monotonic()
            if what == "killed":
                for pid in [pid for pid, line in found.processes("h2").items() if "torchrunx" in line]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            else:
                network.isolate(found.hosts["h2"])
            [(at, _), *_] = called.until("AT ", limit=20.0)
            return {"torchrunx": [at - began]}
        except TimeoutError:
            return {"torchrunx": [float("inf")]}
        finally:
            network.heal()
            called.end()


def killed(args: Namespace, report: Report, cells: Cells) -> None:
    with logins(2) as (network, found):
        times = [lose(found, network, ("h2", "h3"), "killed") for _ in rounds(args.repetitions)]
        beside = peer_loses(args, found, network, "killed")
    note = {"Launcher": f", {len(times)} times"}
    report.row("an agent is killed", *cells({"Launcher": times, **beside}, note), bar="<= 1 s", good=max(times) <= 1.0)


def cut(args: Namespace, report: Report, cells: Cells) -> None:
    """One after the other takes four minutes for 50: five pairs of hosts are cut at the same moment, and healed together."""
    times: list[float] = []
    with logins(10) as (network, found), contextlib.ExitStack() as folders:
        for _ in rounds(-(-args.repetitions // 5)):
            paths = [folders.enter_context(folder()) for _ in range(5)]
            names = found.names
            launches = [
                over_ssh(found, *names[2 * n : 2 * n + 2], agent_timeout=3.0).start(work.family, str(paths[n]))
                for n in range(5)
            ]
            for path in paths:
                wait_for(path, "pids-*", 4)
            with ThreadPoolExecutor() as pool:
                began = time.monotonic()
                ends = [pool.submit(until_lost, launch.wait, began) for launch in launches]
                for name in names[::2]:
                    network.isolate(found.hosts[name])
                times += [end.result() for end in ends]
            network.heal()
            for path in paths:
                gone(family(path), began, 15.0)
        beside = peer_loses(args, found, network, "cut")
    note = {"Launcher": f", {len(times)} times, five at once"}
    row = "a host is cut off, agent_timeout 3 s"
    report.row(row, *cells({"Launcher": times, **beside}, note), bar="<= 4 s", good=max(times) <= 4.0)


def refused(args: Namespace, report: Report, cells: Cells) -> None:
    times = defaultdict[str, list[float]](list)
    with logins(2) as (_, found):
        for _ in rounds(args.repetitions):
            began = time.monotonic()
            found.run("h2-stranger", "true")
            times["ssh"].append(time.monotonic() - began)
            began = time.monotonic()
            times["refused"].append(until_lost(lambda _: over_ssh(found, "h2-stranger").run(work.trivial, ""), began))
    alone = statistics.median(times["ssh"])
    good = statistics.median(times["refused"]) <= alone + 0.3
    beside = {"Launcher": f", ssh alone {spread(times['ssh'], unit='s')}, {len(times['ssh'])} times"}
    report.row("a login is refused", *cells({"Launcher": times["refused"]}, beside), bar="<= ssh + 0.3 s", good=good)


def until_lost(wait: Callable[[float], object], began: float) -> float:
    try:
        wait(LIMIT)
    except AgentFailedError:
        return time.monotonic() - began
    return float("inf")


def far(args: Namespace, report: Report, cells: Cells) -> None:
    times, left = [], []
    with logins(3) as (_, found):
        settings = {"hostnames": found.names, "workers_per_host": 2, "ssh_config_file": str(found.config), "transport": "ssh"}
        for _ in rounds(args.repetitions):
            with folder() as path:
                called = Called(caller("ftlib", "family", settings, path), path)
                try:
                    wait_for(path, "pids-*", 6)
                    began = time.monotonic()
                    os.kill(called.process.pid, signal.SIGKILL)
                    took, count = gone(family(path), began, 10.0)
                    times.append(took)
                    left.append(count)
                finally:
                    called.end()
    good = max(times) <= 2.0 and not max(left)
    note = {"Launcher": f", {max(left)} left"}
    report.row("the caller is killed, 3 hosts, until all are gone", *cells({"Launcher": times}, note), bar="<= 2 s", good=good)


def gigabyte(args: Namespace, report: Report, cells: Cells) -> None:
    """The longest time for which nothing came from an agent that had been heard, as the caller notes it for each host."""
    times, gaps = [], []
    with logins(2) as (_, found):
        for _ in rounds(args.repetitions):
            with folder() as path:
                events = path / "events"
                began = time.monotonic()
                try:
                    result = over_ssh(found, "h2", "h3", events=events).run(work.gigabyte, "")
                    times.append(time.monotonic() - began if len(result.rank(0)) == 1 << 30 else float("inf"))
                    del result
                except AgentFailedError as error:
                    print(f"gigabyte: {error}", file=sys.stderr)
                    times.append(float("inf"))
                lines = map(json.loads, events.read_text().splitlines())
                gaps.append(
                    max((line["longest_gap"] for line in lines if line["event"] in ("parted", "lost")), default=float("inf"))
                )
    good = max(times) < float("inf") and max(gaps) <= 0.5
    note = {"Launcher": f", longest gap {spread(gaps, unit='s')}"}
    report.row("1 GB returned by ssh beside lines", *cells({"Launcher": times}, note), bar="no gap > 0.5 s", good=good)


def healed(args: Namespace, report: Report, cells: Cells) -> None:
    """Two workers on each of 3 hosts train; the last host is cut off, and healed once the others go on."""
    others, back = [], []
    with logins(3) as (network, found):
        for _ in rounds(args.repetitions):
            with folder() as path:
                settings = {"min_workers": 1, "max_restarts": 1_000, "agent_timeout": 3.0, "preload": ("torch",)}
                launch = over_ssh(found, *found.names, **settings).start(work.train, str(path))
                try:
                    sized(path, 6, 0.0)
                    began = time.monotonic()
                    network.isolate(found.hosts["h4"])
                    others.append(sized(path, 4, began) - began)
                    time.sleep(1.0)
                    began = time.monotonic()
                    network.heal()
                    back.append(sized(path, 6, began) - began)
                finally:
                    launch.cancel()
                    with contextlib.suppress(BaseException):
                        launch.wait(LIMIT)
                    network.heal()
    report.row("a host is cut off, until the others' next average", *cells({"Launcher": others}), bar="as hosts: 2.1 s")
    good = statistics.median(back) <= 5.0
    report.row("... healed, until its workers contribute", *cells({"Launcher": back}), bar="<= 5 s", good=good)


def sized(path: Path, size: int, since: float) -> float:
    """When the first average of so many after ``since`` has ended."""
    deadline = time.monotonic() + LIMIT
    while True:
        ends = []
        for file in path.glob("train-*"):
            lines = [line.split() for line in file.read_text().split("\n")[:-1]]
            ends += [float(at) for at, count in lines if int(count) == size and float(at) > since]
        if ends:
            return min(ends)
        if time.monotonic() > deadline:
            raise TimeoutError(f"no average of {size}")
        time.sleep(0.02)


def slurm(args: Namespace, report: Report, cells: Cells) -> None:
    times, left = [], []
    network = Network(3)
    with tempfile.TemporaryDirectory(prefix="ftlib-slurm-") as top, network as places, Slurm(Path(top), places) as found:
        for _ in rounds(args.repetitions):
            with folder() as path:
                line = caller("ftlib", "family", {"workers_per_host": 2}, path)
                job = found.submit(f"#!/bin/sh\nexec {shlex.join(line)}\n", "-N2", "--ntasks-per-node=1", "--cpus-per-task=4")
                try:
                    wait_for(path, "pids-*", 4)
                except TimeoutError:
                    print(found.output(job), file=sys.stderr)
                    raise
                [pid] = [pid for pid, text in found.processes("n1").items() if "launching.caller" in text]
                began = time.monotonic()
                os.kill(pid, signal.SIGKILL)
                took, count = gone(family(path), began, 10.0)
                times.append(took)
                left.append(count)
                found.run("scancel", str(job))
    good = max(times) <= 2.0 and not max(left)
    note = {"Launcher": f", {max(left)} left"}
    report.row("the same in a job of Slurm's, 2 nodes", *cells({"Launcher": times}, note), bar="<= 2 s", good=good)
