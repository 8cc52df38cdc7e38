"""What a step takes whose averages are under way while backward goes on (``execute``), against one that averages afterwards.

    python -m benchmarks overlap [--rounds 5] [--steps 8] [--batch 1024] [--compute timer]

Two workers with one thread each, on two hosts (network namespaces). The link between them carries so many bytes a second, each
way, that averaging takes 40 % of the blocking step: the kernel's token bucket (tc tbf) holds packets back, which takes no
processor time. The rate comes from the time of steps without averaging; the share is measured anew in every round, in which
the loops take turns:

    local      forward, backward, optimizer; no averaging
    blocking   the same with allreduce_average(model) after backward
    unit       the blocking step in execute: what keeping the state and the commit cost
    overlap    in execute; each layer's average begins in backward, when its gradients are there
    ddp        the model in DistributedDataParallel with buckets of a layer each, on Gloo, which also overlaps: for comparison
    manager    a Manager of ftlib.torchft, to which hooks add each gradient, with buckets of a layer each

With ``--compute timer`` each layer takes a fixed time instead, in which the processor rests, as if an accelerator computed it
(10 ms forward, 20 ms backward; batches of one): for a machine with other work, where the time of real layers is anybody's.
Real layers share the cores with the transport, which needs as much of them a step however short that is: the smaller the batch,
the less is left to be gained (on two cores with ``--batch 256``: nothing).

Needs root, iproute2 and a kernel with tbf. The bar: overlap <= 0.85 x blocking.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.report import Report, parser, spread
from ftlib import FTLib
from ftlib.torchft.ddp import PureDistributedDataParallel
from ftlib.torchft.manager import Manager
from ftlib.torchft.optim import OptimizerWrapper
from tests.harness.namespace import enter
from tests.harness.network import Network

SHARE = 0.4
"""Of the blocking step's time, that averaging is to take."""
BAR = 0.85
WIDTH, DEPTH = 512, 8
FORWARD, BACKWARD = 0.010, 0.020
"""Seconds that a layer takes elsewhere."""
UNKNOWN = 3
"""Steps at the beginning of a block that do not count."""
LIMIT = 900.0
"""Seconds for everything."""
LOOPS = ("local", "blocking", "unit", "overlap", "ddp", "manager")
STORE = 7412
"""The port at which the groups of DistributedDataParallel meet."""
MANAGERS = 7413
"""The port of the manager's agent."""


class Elsewhere(torch.autograd.Function):
    """The time that a layer takes on an accelerator."""

    @staticmethod
    def forward(_: Any, tensor: torch.Tensor) -> torch.Tensor:
        time.sleep(FORWARD)
        return tensor.clone()

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        time.sleep(BACKWARD)
        return gradient


class Timed(nn.Module):
    """A layer's."""

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        return Elsewhere.apply(tensor)  # type: ignore[no-any-return,no-untyped-call]


class Program:
    """A perceptron of ``DEPTH`` layers."""

    def __init__(self, ft: FTLib, manager: Manager, batch: int, *, timed: bool) -> None:
        self.ft = ft
        self.model = _perceptron(timed=timed)
        self.layers = [layer for layer in self.model if isinstance(layer, nn.Linear)]
        self.optimizer = _optimizer(self.model)
        self.wrapped = DistributedDataParallel(_perceptron(timed=timed), bucket_cap_mb=WIDTH * WIDTH * 4 / 1e6)
        self.other = _optimizer(self.wrapped)
        self.managed = PureDistributedDataParallel(manager, _perceptron(timed=timed))
        self.last = OptimizerWrapper(manager, _optimizer(self.managed))
        manager.register_state_dict_fn("model", self.managed.load_state_dict, self.managed.state_dict)
        self.inputs = torch.randn(1 if timed else batch, WIDTH)
        self.pending: list[Any] = []
        self.overlapping = False
        for layer in self.layers:
            left: list[int] = []
            for parameter in layer.parameters():
                parameter.register_post_accumulate_grad_hook(self._hook(layer, left))
        ft.register_state(model=self.model, optimizer=self.optimizer)

    def _hook(self, layer: nn.Linear, ready: list[int]) -> Callable[[torch.Tensor], None]:
        def hook(_: torch.Tensor) -> None:
            ready.append(1)
            if len(ready) == 2:
                ready.clear()
                if self.overlapping:
                    self.pending.append(self.ft.allreduce_average(layer, wait=False))

        return hook

    def backward(self) -> None:
        self.optimizer.zero_grad(set_to_none=False)
        self.model(self.inputs).square().mean().backward()

    def local(self) -> None:
        self.backward()
        self.optimizer.step()

    def blocking(self) -> None:
        self.backward()
        assert self.ft.allreduce_average(self.model)
        self.optimizer.step()

    def unit(self) -> None:
        self.ft.execute(self.blocking)

    def overlap(self) -> None:
        self.ft.execute(self._overlapped)

    def _overlapped(self) -> None:
        self.overlapping = True
        try:
            self.backward()
        finally:
            self.overlapping = False
            pending, self.pending = self.pending, []
        for handle in pending:
            assert handle.wait()
        self.optimizer.step()

    def ddp(self) -> None:
        self.other.zero_grad(set_to_none=False)
        self.wrapped(self.inputs).square().mean().backward()
        self.other.step()

    def manager(self) -> None:
        self.last.zero_grad(set_to_none=False)
        self.managed(self.inputs).square().mean().backward()
        self.last.step()


def _perceptron(*, timed: bool) -> nn.Sequential:
    layers = [(nn.Linear(WIDTH, WIDTH), Timed() if timed else nn.ReLU()) for _ in range(DEPTH)]
    return nn.Sequential(*[module for pair in layers for module in pair])


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def work(address: str, introducer: str, secret: str, rounds: int, steps: int, batch: int, *, timed: bool) -> None:
    """One worker; a line of JSON for each block of steps: its median. A line on its input after the first: the link is set."""
    torch.set_num_threads(1)
    store = f"tcp://{introducer.rpartition(':')[0]}:{STORE}"
    dist.init_process_group("gloo", init_method=store, world_size=2, rank=int(address != introducer))
    settings = {"introducers": [introducer], "initial_size": 2, "bind": address, "secret": secret, "job": "overlap"}
    own = {"introducers": f"{introducer.rpartition(':')[0]}:{MANAGERS}", "bind": f"{address.rpartition(':')[0]}:{MANAGERS}"}
    own |= {"secret": secret, "job": "managers", "bucket_mb": str(WIDTH * (WIDTH + 1) * 4 / 2**20)}
    os.environ.update({f"FTLIB_{name.upper()}": value for name, value in own.items()})
    manager = Manager(None, None, None, min_replica_size=2)
    with FTLib.init(config={}, **settings) as ft:
        program = Program(ft, manager, batch, timed=timed)
        ft.barrier()

        def block(name: str) -> float:
            times = []
            for number in range(steps + UNKNOWN):  # the first ones of a block do what nobody expects yet
                began = time.perf_counter()
                getattr(program, name)()
                if number >= UNKNOWN:
                    times.append(time.perf_counter() - began)
            ft.barrier()
            return statistics.median(times)

        tell("local", block("local"))
        sys.stdin.readline()
        for _ in range(rounds):
            for name in LOOPS:
                tell(name, block(name))
    manager.shutdown()
    dist.destroy_process_group()


def tell(name: str, seconds: float) -> None:
    print(json.dumps({"loop": name, "seconds": seconds}), flush=True)


def read(worker: subprocess.Popen[str]) -> dict[str, Any]:
    assert worker.stdout is not None
    line = worker.stdout.readline()
    assert line, "a worker has ended"
    told: dict[str, Any] = json.loads(line)
    return told


def main() -> int:
    options = parser(__doc__, agent=False, rounds=5)
    options.add_argument("--steps", type=int, default=8, help="measured in each block")
    options.add_argument("--batch", type=int, default=1024, help="rows, where layers are computed here")
    options.add_argument("--compute", choices=("cpu", "timer"), default="cpu")
    options.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.worker:
        namespace, address, introducer, secret = args.worker
        enter(namespace)
        work(address, introducer, secret, args.rounds, args.steps, args.batch, timed=args.compute == "timer")
        return 0
    report = Report(
        f"Averages under way in backward, computed by {args.compute}",
        20.0 + args.rounds * (args.steps + UNKNOWN) * len(LOOPS) * 0.2,
    )
    nbytes = DEPTH * (WIDTH + 1) * WIDTH * torch.float32.itemsize
    times: dict[str, list[float]] = {name: [] for name in LOOPS}
    with Network(2) as hosts:
        introducer = f"{hosts[0].v4}:7411"
        secret = secrets.token_hex(16)
        workers = []
        for host in hosts:
            command = [sys.executable, "-m", "benchmarks", "overlap", f"--rounds={args.rounds}", f"--steps={args.steps}"]
            command += [
                f"--compute={args.compute}",
                f"--batch={args.batch}",
                "--worker",
                host.name,
                f"{host.v4}:7411",
                introducer,
                secret,
            ]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            workers.append(subprocess.Popen(command, text=True, env=environment, **pipes))  # type: ignore[call-overload]
        try:
            local = statistics.mean(read(worker)["seconds"] for worker in workers)
            # With two members a ring sends as many bytes each way as the gradients have.
            rate = nbytes / (local * SHARE / (1 - SHARE))
            for host in hosts:
                host.run(*f"tc qdisc add dev eth0 root tbf rate {int(rate * 8)}bit burst 128kb latency 500ms".split())
            for worker in workers:
                assert worker.stdin is not None
                worker.stdin.write("\n")
                worker.stdin.flush()
            for _ in range(args.rounds):
                for name in LOOPS:
                    times[name].append(statistics.mean(read(worker)["seconds"] for worker in workers))
            for worker in workers:
                worker.wait(LIMIT)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
    report.row("gradients, link", f"{nbytes / 1e6:.1f} MB in {DEPTH} layers, {rate * 8 / 1e6:.0f} Mbit/s each way")
    for name in LOOPS:
        report.row(f"a step, {name}", spread(times[name]))
    blocking = times["blocking"]
    shares = [100 * (1 - local / both) for local, both in zip(times["local"], blocking, strict=True)]
    units = [one / both for one, both in zip(times["unit"], blocking, strict=True)]
    ratios = [one / both for one, both in zip(times["overlap"], blocking, strict=True)]
    report.row("averaging, of the blocking step", spread(shares, unit="%"))
    report.row("unit / blocking", spread(units, unit="x"))
    others = [one / both for one, both in zip(times["ddp"], blocking, strict=True)]
    report.row("ddp / blocking", spread(others, unit="x"))
    managed = [one / both for one, both in zip(times["manager"], blocking, strict=True)]
    report.row("manager / blocking", spread(managed, unit="x"))
    held = statistics.median(ratios) <= BAR
    report.row("overlap / blocking", spread(ratios, unit="x"), bar=f"<= {BAR} x", good=held)
    return report.finish()
