"""What workers do for a benchmark: programs of interpreters started anew, of forked workers, and habits beside training.

python -m benchmarks rest                                  # start, and then nothing
python -m benchmarks big --steps 20                        # train 100 M parameters
python -m benchmarks leaver --rest 0.03 --loaders 2 --looks  # train until it is told to leave
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import logging
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, TensorDataset

from ftlib import ElasticSampler, FTLib
from tests.harness.worker import Lines, Task, joined

BIG_SIDE = 10_000
"""A matrix of so many rows and columns: 100 M parameters, whose forward and backward pass of one sample cost little."""


def say(**values: object) -> None:
    """One line."""
    print(json.dumps(values), flush=True)


def rest() -> None:
    """Start; tell how long it took and what it added to this process."""
    process = psutil.Process()
    before = process.memory_info().rss
    began = time.perf_counter()
    ft = FTLib.init()
    seconds = time.perf_counter() - began
    say(event="init", seconds=seconds, rss=process.memory_info().rss / 1e6, more=(process.memory_info().rss - before) / 1e6)
    threading.Event().wait()
    ft.close()


def big() -> None:
    """So many steps of a linear model with plain SGD."""
    options = argparse.ArgumentParser(description=big.__doc__)
    options.add_argument("--steps", type=int, default=20)
    steps = options.parse_args().steps
    torch.set_num_threads(1)
    with FTLib.init() as ft:
        model = torch.nn.Linear(BIG_SIDE, BIG_SIDE, bias=False)
        with torch.no_grad():
            model.weight.fill_(0.01)
        ft.register_state(model=model)
        chance = torch.Generator().manual_seed(torch.initial_seed() + ft.rank)
        for _ in range(steps):
            began = time.monotonic()
            model.zero_grad()
            model(torch.randn(1, BIG_SIDE, generator=chance)).square().mean().backward()
            computed = time.monotonic()
            status = ft.allreduce_average(model)
            ended = time.monotonic()
            with torch.no_grad():
                model.weight.add_(model.weight.grad, alpha=-0.1)
            say(
                step=ft.step,
                status=status.name,
                epoch=ft.epoch,
                size=ft.size,
                computing=computed - began,
                averaging=ended - computed,
            )
        say(event="done", hash=hashlib.blake2b(model.weight.detach().numpy().data, digest_size=8).hexdigest())


SIDE = 1_000
"""A layer of so many inputs and outputs: 1 M parameters."""


class Noise(Dataset[torch.Tensor]):
    """Samples without end, as far as a benchmark goes."""

    def __len__(self) -> int:
        return 1 << 24

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((SIDE,), index / (1 << 24))


def batches(loaders: int) -> Iterator[torch.Tensor]:
    """Of eight samples."""
    if loaders:
        yield from DataLoader(Noise(), batch_size=8, num_workers=loaders, persistent_workers=True)
    while True:
        yield torch.ones(8, SIDE)


def leaver() -> None:
    """What a worker does whose leaving is measured: train until it is told to go; see ``leaving``."""
    options = argparse.ArgumentParser(description=leaver.__doc__)
    options.add_argument("--rest", type=float, default=0.03, help="seconds of sleep a step, as on a device")
    options.add_argument("--loaders", type=int, default=0, help="processes that read data")
    options.add_argument("--looks", action="store_true", help="at should_leave, and breaks")
    args = options.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    with FTLib.init() as ft:
        model = torch.nn.Linear(SIDE, SIDE, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        ft.register_state(model=model, optimizer=optimizer)
        for batch in batches(args.loaders):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            time.sleep(args.rest)  # as long as a device would compute
            if ft.allreduce_average(model):
                optimizer.step()
            end = time.monotonic()
            print(json.dumps({"end": end, "size": ft.size, "redone": ft.metrics()["redone"]}), flush=True)
            if args.looks and ft.should_leave:
                break


BATCH = 48
"""Images a step, of all workers together: the same, whoever comes and goes."""


def prepare() -> None:
    """Import what the first steps import; start no thread."""
    torch.set_num_threads(1)
    model = torch.nn.Linear(2, 1)
    model.weight.grad = torch.zeros_like(model.weight)
    torch.optim.SGD(model.parameters(), lr=1.0).step()


def learn(task: Task, lines: Lines) -> int:
    """Learn the digits with an elastic sampler, all epochs. ``given``: ``seed``, ``epochs``, ``data`` (file of the digits).

    Lines: one a step, with ``loss`` (the job's, averaged along with the gradients) and ``hash``; at the end ``done`` with the
    ``final`` loss over all training images.
    """
    from ftlib.cli.demo import task as digits_task  # what a worker at rest weighs is measured: no other program is to bring it
    from ftlib.cli.demo.digits import Digits

    seed, epochs = task.given["seed"], task.given["epochs"]
    digits = Digits.load(Path(task.given["data"]))
    images, labels = torch.from_numpy(digits.train_images).unsqueeze(1), torch.from_numpy(digits.train_labels)
    model = digits_task.network(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    dataset = TensorDataset(images, labels)
    sampler = ElasticSampler(dataset, batch_size=BATCH, global_batch=True, seed=seed)
    loader = DataLoader(dataset, batch_sampler=sampler)
    with joined(task, lines) as ft:
        ft.register_state(model, optimizer, sampler)
        for epoch in sampler.epochs(epochs):
            for image, label in loader:
                loss = cross_entropy(model(image), label)
                loss.backward()  # type: ignore[no-untyped-call]
                told = loss.detach().clone().view(1)
                if ft.allreduce_average([*model.parameters(), told]):
                    optimizer.step()
                    lines.write(step=ft.step, size=ft.size, data=epoch, loss=told.item(), hash=digits_task.fingerprint(model))
                optimizer.zero_grad()
        ft.barrier()  # who leaves while others are still in its last call has that redone without it
        with torch.no_grad():
            lines.write(event="done", final=cross_entropy(model(images), labels).item(), ends=ft.step)
    return 0


class HoldGil:
    """SIGUSR2: no other thread of the interpreter runs for ``seconds``, as with a C extension that does not release it.

    It begins at whatever moment of its loop the training thread is, inside of calls too. Asleep the first time, spinning the
    next, and so on.
    """

    def __init__(self, _ft: FTLib, lines: Lines, seconds: float) -> None:
        self._lines, self._seconds = lines, seconds
        self._count = 0
        signal.signal(signal.SIGUSR2, self._hold)

    def __call__(self) -> None:
        """Before a call: nothing."""

    def _hold(self, *_: object) -> None:
        began = time.monotonic()
        if self._count % 2:
            deadline = began + self._seconds
            next(filter(deadline.__lt__, iter(time.monotonic, None)))  # all of it in C: no bytecode, so no switch
        else:
            ctypes.PyDLL(None).usleep(int(self._seconds * 1e6))  # the hold itself: PyDLL keeps the GIL in its calls
        self._lines.write(event="held", how="spinning" if self._count % 2 else "asleep", began=began)
        self._count += 1


class Hang:
    """SIGUSR2: the training thread stops for ever before its next call; all other threads go on."""

    def __init__(self, _ft: FTLib, lines: Lines) -> None:
        self._lines = lines
        self._asked = False
        signal.signal(signal.SIGUSR2, self._ask)

    def _ask(self, *_: Any) -> None:
        self._asked = True

    def __call__(self) -> None:
        """Before a call."""
        if self._asked:
            self._lines.write(event="hang")
            threading.Event().wait()
