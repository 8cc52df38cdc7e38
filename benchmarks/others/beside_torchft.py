"""SIGKILL of one of four workers, beside torchft: how long until all others have gone on with three. In turns, in one run.

    python -m benchmarks beside_torchft --peer PYTHON        # two minutes, on a busy machine three

PYTHON: an interpreter that has ``torchft-nightly`` beside what the benchmarks need (the same torch, too).

Gloo, 1 M parameters, a loop of a rest of up to 5 ms and an average. The victim is told to end itself, at a random moment of its
rest (outside of an allreduce) or of its allreduce (during one); what counts is where it was. Ours: until the last survivor's
first average without it has returned. torchft: until the last survivor has committed its first step with three. Its rest is
before the quorum, so that a death in it spoils no allreduce. Its settings (``PEERS``): tight ones, and the tightest that this
loop was found to endure with a heartbeat each 50 ms; with 60 ms of silence and 20 ms of joining, survivors took up to 12 s.
Bar: ours takes at most 0.4 of the time of the tightest.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import torch
from torch._C._distributed_c10d import TCPStore

from benchmarks.failures.faults import all_after, crew, newest_epoch, pause
from benchmarks.report import Report, chosen, parser, spread
from ftlib.common.processes import die_with_parent
from tests.harness.cluster import Cluster, Worker
from tests.harness.nursery import ROOT, Stuck
from tests.harness.worker import Lines, Task

KINDS = {"outside": signal.SIGRTMIN, "during": signal.SIGUSR2}
"""Where a victim is to end itself, and how it is told."""
SHARE = 0.4
REST = 0.005
LIMIT = 30.0
PEERS = {
    "tight": {"heartbeat": 50, "silence": 100, "join": 100, "tick": 10, "limit": 150},
    "tightest": {"heartbeat": 50, "silence": 75, "join": 50, "tick": 5, "limit": 150},
}
"""torchft's settings, in milliseconds: between two heartbeats; without one until a replica counts as gone; that a quorum waits
for whoever is alive; between two looks of the lighthouse; that an operation of the group or a call of the manager may take."""


class Doom:
    """Rests before each call, and ends the process when a signal has asked for it: in the rest, or in the call."""

    def __init__(self, _ft: object, lines: Lines) -> None:
        self._lines = lines
        self._chance = random.Random(os.getpid())
        self._asked = ""
        self._inside = False
        self._began = 0.0
        self._usual: deque[float] = deque(maxlen=50)
        for kind, number in KINDS.items():
            signal.signal(number, lambda *_, kind=kind: setattr(self, "_asked", kind))

    def __call__(self) -> None:
        """Between two calls."""
        self.leave()
        self.rest()
        self.enter()

    def rest(self) -> None:
        """Outside of calls."""
        time.sleep(REST * self._chance.random())  # so that deaths fall outside of an average, too
        if self._asked == "outside":
            self._die()

    def enter(self) -> None:
        """A call begins."""
        self._began, self._inside = time.monotonic(), True
        if self._asked == "during" and self._usual:
            self._asked = ""
            threading.Timer(statistics.median(self._usual) * self._chance.uniform(0.1, 0.9), self._die).start()

    def leave(self) -> None:
        """It has ended."""
        if self._inside:
            self._usual.append(time.monotonic() - self._began)
        self._inside = False

    def _die(self) -> None:
        self._lines.write(event="dies", where="during" if self._inside else "outside")
        os.kill(os.getpid(), signal.SIGKILL)


def death(worker: Worker) -> dict[str, Any] | None:
    """When and where it ended itself."""
    return next((event for event in worker.events if event.get("event") == "dies"), None)


def strike(cluster: Cluster, kind: str, chance: random.Random) -> tuple[str, float]:
    """One death of ours: where it was, and the seconds."""
    time.sleep(0.4 + chance.random() * 0.1)  # the death falls anywhere in a step
    workers = cluster.alive()
    victim = chance.choice(workers)
    survivors = [worker for worker in workers if worker is not victim]
    epoch = newest_epoch(workers)
    victim.signal(KINDS[kind])
    end = cluster.until("the victim ends itself", lambda: death(victim), LIMIT)
    victim.killed = end["t"]
    cluster.until("the survivors average without the victim", lambda: all_after(survivors, end["t"], epoch), LIMIT)
    return end["where"], pause(survivors, end["t"], epoch)


def ours(args: argparse.Namespace, chance: random.Random) -> list[tuple[str, float]]:
    """A turn of ours."""
    found = []
    task: dict[str, Any] = {
        "sizes": [args.elements],
        "fill": False,
        "digest": False,
        "habit": ["benchmarks.others.beside_torchft:Doom"],
    }
    with crew("beside", args.workers, **task, settings=chosen(args.agent)) as cluster:
        for kind in list(KINDS) * args.repetitions:
            found.append(strike(cluster, kind, chance))
            cluster.join()
            cluster.training(args.workers, 60.0)
    return found


class Peers:
    """Replicas of torchft with their lighthouse, as a context manager that leaves nothing behind."""

    def __init__(self, args: argparse.Namespace, settings: str) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="beside-torchft-"))
        self.replicas: list[Worker] = []
        self.steps = self.short = 0
        """Steps while nothing happened, and those of them that lacked somebody."""
        parent = os.getpid()
        with (self.directory / "out").open("wb") as output:
            self._host = subprocess.Popen(
                [args.peer, "-m", "benchmarks", "beside_torchft", "--host", settings, f"--elements={args.elements}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                cwd=self.directory,
                env={**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"},
                preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        assert self._host.stdin is not None
        with suppress(BrokenPipeError):
            self._host.stdin.close()
        self._host.wait(LIMIT)
        if kind is not None or os.environ.get("KEEP"):
            print(f"logs in {self.directory}", flush=True)
        else:
            shutil.rmtree(self.directory)

    def start(self) -> None:
        """One more."""
        assert self._host.stdin is not None and self._host.stdout is not None
        name = f"r{len(self.replicas)}"
        log = str(self.directory / f"{name}.jsonl")
        self._host.stdin.write(json.dumps({"name": name, "log": log}).encode() + b"\n")
        self._host.stdin.flush()
        told = self._host.stdout.readline()
        if not told:
            raise Stuck(f"torchft did not start, see {self.directory}/out")
        self.replicas.append(Worker(Task(name=name, log=log), int(told)))

    def alive(self) -> list[Worker]:
        """With what they wrote."""
        for replica in self.replicas:
            if replica.alive:
                replica.read()
        return [replica for replica in self.replicas if replica.alive]

    def until(self, what: str, condition: Callable[[], Any]) -> Any:
        """Wait for that."""
        deadline = time.monotonic() + LIMIT
        while True:
            self.alive()
            if found := condition():
                return found
            if time.monotonic() > deadline:
                raise Stuck(f"torchft, not within {LIMIT:g} s: {what}")
            time.sleep(0.01)  # between two looks at what they wrote

    def training(self, size: int) -> None:
        """Wait until the last ten steps of all had all."""

        def together() -> bool:
            alive = self.alive()
            return len(alive) == size and all(
                len(replica.calls) >= 10 and all(call["size"] == size for call in replica.calls[-10:]) for replica in alive
            )

        self.until(f"{size} replicas train together", together)

    def strike(self, kind: str, chance: random.Random) -> tuple[str, float]:
        """One death: where it was, and the seconds."""
        replicas = self.alive()
        before = [len(each.calls) for each in replicas]
        time.sleep(0.4 + chance.random() * 0.1)  # as above
        self.alive()
        sizes = [call["size"] for each, count in zip(replicas, before, strict=True) for call in each.calls[count:]]
        self.steps += len(sizes)
        self.short += sum(size < len(replicas) for size in sizes)
        self.training(len(replicas))
        victim = chance.choice(replicas)
        survivors = [replica for replica in replicas if replica is not victim]
        victim.signal(KINDS[kind])
        end = self.until("the victim ends itself", lambda: death(victim))
        victim.killed = end["t"]

        def times() -> list[float]:
            firsts = [
                next((call["end"] for call in each.calls if call["end"] > end["t"] and call["size"] == len(survivors)), 0.0)
                for each in survivors
            ]
            return firsts if all(firsts) else []

        return end["where"], max(self.until("the survivors commit without the victim", times)) - end["t"]


def theirs(args: argparse.Namespace, chance: random.Random, settings: str, steps: list[int]) -> list[tuple[str, float]]:
    """A turn of torchft's; ``steps``: adds to all, and to those that lacked somebody."""
    found = []
    with Peers(args, settings) as peers:
        for _ in range(args.workers):
            peers.start()
        peers.training(args.workers)
        for kind in list(KINDS) * args.repetitions:
            found.append(peers.strike(kind, chance))
            peers.start()
            peers.training(args.workers)
        steps[0] += peers.steps
        steps[1] += peers.short
    return found


def host(args: argparse.Namespace) -> None:
    """In torchft's interpreter: a lighthouse, and a replica for each line of input; ends all with its input."""
    importlib.import_module("torchft")
    torch.set_num_threads(1)
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe()
    children = [fork.Process(target=lighthouse, args=(os.getpid(), there, PEERS[args.host]))]
    children[0].start()
    address = here.recv()
    for line in sys.stdin:
        order = json.loads(line)
        children.append(
            fork.Process(target=replica, args=(os.getpid(), address, args.elements, PEERS[args.host]), kwargs=order)
        )
        children[-1].start()
        print(children[-1].pid, flush=True)
    for child in children:
        child.kill()
        child.join()
    os._exit(0)  # what torchft has registered for the interpreter's end may take its time


def lighthouse(parent: int, pipe: Any, settings: dict[str, int]) -> None:
    """Of all replicas."""
    die_with_parent(parent)
    server = importlib.import_module("torchft.coordination").LighthouseServer(
        bind="127.0.0.1:0",
        min_replicas=2,
        join_timeout_ms=settings["join"],
        quorum_tick_ms=settings["tick"],
        heartbeat_timeout_ms=settings["silence"],
    )
    pipe.send(f"http://127.0.0.1:{server.address().rpartition(':')[2]}")
    threading.Event().wait()


def replica(parent: int, address: str, elements: int, settings: dict[str, int], *, name: str, log: str) -> None:
    """Trains until it is ended."""
    die_with_parent(parent)
    torchft = importlib.import_module("torchft")
    tensors = {"grads": torch.zeros(elements)}
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    limit = timedelta(milliseconds=settings["limit"])
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=limit),
        state_dict=lambda: dict(tensors),
        load_state_dict=lambda state: tensors["grads"].copy_(state["grads"]),
        min_replica_size=2,
        timeout=limit,
        quorum_timeout=timedelta(seconds=LIMIT),
        connect_timeout=timedelta(seconds=LIMIT),
        heartbeat_interval=timedelta(milliseconds=settings["heartbeat"]),
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=address,
        replica_id=name,
        hostname="127.0.0.1",
    )
    lines = Lines(log)
    doom = Doom(None, lines)
    while True:
        doom.rest()
        try:
            manager.start_quorum()
            manager.wait_quorum()
            doom.enter()
            manager.allreduce(tensors["grads"]).wait()
            doom.leave()
            if manager.should_commit():
                lines.write(end=time.monotonic(), step=manager.current_step(), size=manager.num_participants())
        except (RuntimeError, TimeoutError) as error:
            doom.leave()
            lines.write(event="error", text=repr(error))


def main() -> int:
    options = parser(__doc__, turns=4, workers=4, elements=1_000_000, seed=1)
    options.add_argument("--peer", help="the interpreter that has torchft")
    options.add_argument("--repetitions", type=int, default=2, help="deaths of each kind in one turn")
    options.add_argument("--host", choices=PEERS, help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.host:
        host(args)
        return 0
    if not args.peer:
        options.error("--peer is needed")
    columns = ("ours", *PEERS)
    seconds = args.turns * (12 + 8 * args.repetitions)
    report = Report("SIGKILL of one worker, beside torchft", seconds, ("ours", *(f"torchft, {name}" for name in PEERS)))
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    steps = {name: [0, 0] for name in PEERS}
    chance = random.Random(args.seed)
    for number in range(args.turns):
        for name in columns[number % len(columns) :] + columns[: number % len(columns)]:
            for where, took in theirs(args, chance, name, steps[name]) if name in PEERS else ours(args, chance):
                times[name, where].append(took)
    for kind in KINDS:
        found = [times[name, kind] for name in columns]
        shares = [statistics.median(found[0]) / statistics.median(each) for each in found[1:]]
        what = f"{kind} {'of ' if kind == 'outside' else ''}an allreduce, {', '.join(str(len(each)) for each in found)} times"
        bar = f"{', '.join(f'{share:.2f}' for share in shares)} of it, <= {SHARE:g}"
        report.row(what, *map(spread, found), bar=bar, good=shares[-1] <= SHARE)
    report.row("undisturbed steps that lacked somebody", "", *(f"{short} of {count}" for count, short in steps.values()))
    return report.finish()
