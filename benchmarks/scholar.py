"""A worker that learns the digits with an elastic sampler: the program of ``benchmarks.curves``.

Lines: one a step, with ``loss`` (the job's, averaged along with the gradients) and ``hash``; at the end ``done`` with the
``final`` loss over all training images.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from consensus import format_address
from ftlib import ElasticSampler, FTLib
from ftlib.cli.demo import task as digits_task
from ftlib.cli.demo.digits import Digits
from tests.processes.worker import Lines, Task

__all__ = ["BATCH", "learn", "prepare"]

BATCH = 48
"""Images a step, of all workers together: the same, whoever comes and goes."""


def prepare() -> None:
    """Import what the first steps import; start no thread."""
    torch.set_num_threads(1)
    model = torch.nn.Linear(2, 1)
    model.weight.grad = torch.zeros_like(model.weight)
    torch.optim.SGD(model.parameters(), lr=1.0).step()


def learn(task: Task, lines: Lines) -> int:
    """All epochs, from wherever the job is. ``given``: ``seed``, ``epochs``, ``data`` (file of the digits)."""
    seed, epochs = task.given["seed"], task.given["epochs"]
    digits = Digits.load(Path(task.given["data"]))
    images, labels = torch.from_numpy(digits.train_images).unsqueeze(1), torch.from_numpy(digits.train_labels)
    model = digits_task.network(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    dataset = TensorDataset(images, labels)
    sampler = ElasticSampler(dataset, batch_size=BATCH, global_batch=True, seed=seed)
    loader = DataLoader(dataset, batch_sampler=sampler)
    with FTLib.init(**{**task.settings, **({"socket_fds": task.socket_fds} if task.socket_fds else {})}) as ft:
        member = ft._consensus.member  # noqa: SLF001 - a benchmark may look inside
        lines.write(event="init", member=member.id, address=format_address(member.address))
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
