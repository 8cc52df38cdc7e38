"""A program written for torchft, once on ftlib.torchft and once on torchft: its usual step, and the longest one after a kill.

    python -m benchmarks torchft_steps                       # ours alone, a minute
    python -m benchmarks torchft_steps --peer PYTHON         # both, in turns

PYTHON: an interpreter that has ``torchft-nightly`` and ``numpy`` beside what the benchmarks need (the same torch, too).

The program is that of torchft's train_ddp.py in small: a convolutional net with a layer that only costs communication
(``--parameters``), DistributedDataParallel, AdamW, ProcessGroupGloo with a timeout of five seconds. Replicas train for
``--seconds``, then one is killed by SIGKILL, at a random moment, and started anew; ``--kills`` times. The usual step is the
median of those between which nothing happened; the longest one after a kill is the survivors' longest time between two commits
from the kill until two seconds later. Bars: usual step at most 0.9 of torchft's; longest at most the usual one + 150 ms.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import logging
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

from benchmarks.report import Report, parser, spread
from ftlib.common.processes import die_with_parent
from tests.harness.basics import free_ports

ROOT = Path(__file__).resolve().parents[2]
SHARE, EXTRA = 0.9, 0.15
CALM = 2.0
"""Seconds after a kill in which the longest step is looked for."""
LIMIT = 90.0


class Replicas:
    """Programs on one of the two packages, as a context manager that leaves nothing behind."""

    def __init__(self, package: str, args: argparse.Namespace) -> None:
        self.package = package
        self._args = args
        self._directory = Path(tempfile.mkdtemp(prefix="torchft-steps-"))
        self._python = sys.executable if package.startswith("ftlib") else args.peer
        self._addresses = [f"127.0.0.1:{port}" for port in free_ports(args.replicas + args.kills)]
        """One for each replica: whoever joins meets whom it can."""
        self._address = self._addresses[0]
        self._helpers: list[subprocess.Popen[bytes]] = []
        self._started = 0
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        if not package.startswith("ftlib"):
            self._helpers.append(self._start(["--lighthouse", self._address], "lighthouse"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for process in (*self.running.values(), *self._helpers):
            process.kill()
            process.wait()
        if kind is not None or os.environ.get("KEEP"):
            print(f"logs in {self._directory}", flush=True)
        else:
            shutil.rmtree(self._directory)

    def _start(self, arguments: list[str], name: str) -> subprocess.Popen[bytes]:
        parent = os.getpid()
        env = {key: value for key, value in os.environ.items() if not key.startswith(("FTLIB_", "TORCHFT_"))}
        env |= {"PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "RANK": "0", "WORLD_SIZE": "1"}
        env |= {"TORCHFT_LIGHTHOUSE": f"http://{self._address}"} if not self.package.startswith("ftlib") else {}
        env |= {
            "FTLIB_INTRODUCERS": ",".join(self._addresses),
            "FTLIB_JOB": self._address,
            "FTLIB_INITIAL_SIZE": str(self._args.replicas),
        }
        with (self._directory / f"{name}.out").open("wb") as output:
            return subprocess.Popen(
                [self._python, "-m", "benchmarks.others.torchft_steps", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._directory,
                env=env,
                preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509
            )

    def start(self) -> int:
        """One more; its number."""
        number = self._started
        self._started += 1
        told = ["--program", self.package, "--name", str(number), f"--parameters={self._args.parameters}"]
        told += ["--bind", self._addresses[number]] if self.package.startswith("ftlib") else []
        self.running[number] = self._start(told, str(number))
        return number

    def steps(self, number: int) -> list[tuple[float, int]]:
        """When each of its steps was committed, and with how many replicas."""
        path = self._directory / f"{number}.steps"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [(float(time_), int(size)) for time_, size in (line.split() for line in lines if line.endswith("\n"))]

    def until_together(self, count: int = 10) -> None:
        """Wait until the last steps of all that run had all."""
        deadline = time.monotonic() + LIMIT
        while True:
            found = [self.steps(number)[-count:] for number in self.running]
            if all(len(each) == count and all(size == len(self.running) for _, size in each) for each in found):
                return
            ended = [number for number, process in self.running.items() if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                raise RuntimeError(f"{self.package}: replicas do not train together, {ended} have ended: {self._directory}")
            time.sleep(0.05)

    def kill(self, chance: random.Random) -> float:
        """The survivors' longest time between two commits."""
        time.sleep(0.5 + 0.1 * chance.random())
        number = chance.choice(list(self.running))
        process = self.running.pop(number)
        moment = time.monotonic()
        process.send_signal(signal.SIGKILL)
        process.wait()
        deadline = moment + LIMIT
        while True:
            time.sleep(CALM)
            ends = {each: [end for end, _ in self.steps(each)] for each in self.running}
            after = [[end for end in found if end > moment - 0.3] for found in ends.values()]
            if all(found and found[-1] > moment + CALM / 2 for found in after):
                break
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.package}: the survivors do not go on: {self._directory}")
        gaps = [
            after - before
            for found in after
            for before, after in itertools.pairwise(found)
            if after > moment and before < moment + 2 * CALM
        ]
        return max(gaps)

    def usual(self, seconds: float) -> list[float]:
        """Steps of a while in which nothing happens."""
        began = time.monotonic()
        time.sleep(seconds)
        ends = [[end for end, _ in self.steps(number) if end > began] for number in self.running]
        return [after - before for found in ends for before, after in itertools.pairwise(found)]


def program(package: str, name: str, parameters: int, bind: str) -> None:
    """One replica: trains until it is killed."""
    if bind:
        os.environ["FTLIB_BIND"] = bind
    logging.basicConfig(level=logging.INFO, format="%(created).3f %(message)s")
    torch = importlib.import_module("torch")
    torchft = importlib.import_module(package)
    nn = torch.nn
    torch.set_num_threads(1)
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cnn = nn.Sequential(
                nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2, 2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2, 2)
            )
            self.useless = nn.Embedding(parameters // 10, 10)
            self.head = nn.Sequential(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))

        def forward(self, pictures: Any) -> Any:
            return self.head(torch.flatten(self.cnn(pictures), 1)) + self.useless.weight[0]

    model = Net()
    inner = torch.optim.AdamW(model.parameters())

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["inner"])

    terms: dict[str, Any] = {}
    if package == "torchft":
        store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        terms = {"store_addr": "127.0.0.1", "store_port": store.port, "rank": 0, "world_size": 1, "hostname": "127.0.0.1"}
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=5)),
        min_replica_size=1,
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "inner": inner.state_dict()},
        replica_id=f"steps_{name}",
        timeout=timedelta(seconds=30),
        **terms,
    )
    wrapped = torchft.DistributedDataParallel(manager, model)
    optimizer = torchft.Optimizer(manager, inner)
    pictures, labels = torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,))
    with Path(f"{name}.steps").open("w", buffering=1) as log:
        while True:
            optimizer.zero_grad()
            nn.functional.cross_entropy(wrapped(pictures), labels).backward()
            before = manager.current_step()
            optimizer.step()
            if manager.current_step() > before:
                log.write(f"{time.monotonic()} {manager.num_participants()}\n")


def lighthouse(address: str) -> None:
    """torchft's, with its defaults."""
    server = importlib.import_module("torchft.coordination").LighthouseServer(bind=address, min_replicas=1)
    print(server.address(), flush=True)
    signal.pause()


def measure(package: str, args: argparse.Namespace, chance: random.Random) -> tuple[list[float], list[float]]:
    """A turn: usual steps, and the longest one after each kill."""
    with Replicas(package, args) as replicas:
        for _ in range(args.replicas):
            replicas.start()
        replicas.until_together()
        usual = replicas.usual(args.seconds)
        longest = []
        for _ in range(args.kills):
            longest.append(replicas.kill(chance))
            replicas.start()
            replicas.until_together()
        return usual, longest


def main() -> int:
    options = parser(__doc__, agent=False, turns=2, replicas=3, kills=3, parameters=1_000_000, seconds=15.0, seed=1)
    options.add_argument("--peer", help="the interpreter that has torchft")
    for hidden in ("program", "name", "lighthouse", "bind"):
        options.add_argument(f"--{hidden}", default="", help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.lighthouse:
        lighthouse(args.lighthouse)
    elif args.program:
        program(args.program, args.name, args.parameters, args.bind)
    packages = ["ftlib.torchft", *(["torchft"] if args.peer else [])]
    report = Report("A program of torchft's", len(packages) * args.turns * (15 + args.seconds + 6 * args.kills), packages)
    usual: dict[str, list[float]] = {package: [] for package in packages}
    longest: dict[str, list[float]] = {package: [] for package in packages}
    chance = random.Random(args.seed)
    for turn in range(args.turns):
        for package in packages[:: -1 if turn % 2 else 1]:
            steps, after = measure(package, args, chance)
            usual[package] += steps
            longest[package] += after
    middle = {package: statistics.median(usual[package]) for package in packages}
    ours = packages[0]
    if args.peer:
        share = middle[ours] / middle["torchft"]
        report.row(
            "usual step",
            *(spread(usual[each]) for each in packages),
            bar=f"{share:.2f} of it, <= {SHARE:g}",
            good=share <= SHARE,
        )
    else:
        report.row("usual step", spread(usual[ours]))
    worst = max(longest[ours]) - middle[ours]
    bar = f"usual + {worst * 1e3:.0f} ms, <= {EXTRA * 1e3:.0f}"
    report.row(
        f"longest after a kill, {len(longest[ours])} times",
        *(spread(longest[each]) for each in packages),
        bar=bar,
        good=worst <= EXTRA,
    )
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
