"""Workers that learn something by ``DiLoCo``: a ``program`` of ``worker.Task``, with a line for each sync.

Orders (``Task.given``): ``task``, "digits" or "transformer"; ``seed``; ``every``, inner steps of a round;
``rest``, seconds that each of them rests.
"""

from __future__ import annotations

import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from ftlib import DiLoCo
from tests.harness.worker import Lines, Task, joined, place

Batch = Callable[[torch.Generator], tuple[torch.Tensor, torch.Tensor]]


def prepare() -> None:
    """Import what an optimizer imports at its first step; start no thread."""
    torch.set_num_threads(1)
    weight = nn.Parameter(torch.zeros(1))
    weight.grad = torch.zeros(1)
    torch.optim.AdamW([weight]).step()


def learn(task: Task, lines: Lines) -> int:
    """Train until killed."""
    torch.set_num_threads(1)
    model, batch, held, rate = TASKS[task.given["task"]](task.given["seed"])
    inner = torch.optim.AdamW(model.parameters(), lr=rate)
    own = torch.Generator().manual_seed(1000 * task.given["seed"] + task.slot)
    with joined(task, lines) as ft:
        diloco = DiLoCo(
            ft, model, inner=inner, outer=lambda weights: torch.optim.SGD(weights, lr=0.7, momentum=0.5, nesterov=True),
            sync_every=task.given["every"],
        )  # fmt: skip
        ft.register_state(model=diloco)
        with diloco:
            while True:
                time.sleep(task.given["rest"])  # see ``loss.REST``
                inputs, targets = batch(own)
                inner.zero_grad()
                cross_entropy(model(inputs).flatten(0, -2), targets.flatten()).backward()
                before = diloco.syncs
                inner.step()
                if diloco.syncs > before:  # the local weights are the global ones now
                    with torch.no_grad():
                        loss = cross_entropy(model(held[0]).flatten(0, -2), held[1].flatten()).item()
                    lines.write(**place(ft), loss=loss)


def _digits(seed: int) -> tuple[nn.Module, Batch, tuple[torch.Tensor, torch.Tensor], float]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    images, labels = torch.tensor(digits.images, dtype=torch.float32).view(-1, 64) / 16, torch.tensor(digits.target)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def batch(chance: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = torch.randint(0, 1437, (16,), generator=chance)
        return images[chosen], labels[chosen]

    return model, batch, (images[1437:], labels[1437:]), 1e-3


CONTEXT = 32


def _transformer(seed: int) -> tuple[nn.Module, Batch, tuple[torch.Tensor, torch.Tensor], float]:
    text = "".join(
        path.read_text(encoding="utf-8", errors="replace")
        for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:40]
    )
    book = torch.tensor([min(ord(character), 127) for character in text[:400_000]])
    torch.manual_seed(seed)
    model = Writer()

    def windows(starts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        pages = torch.stack([book[start : start + CONTEXT + 1] for start in starts.tolist()])
        return pages[:, :-1], pages[:, 1:]

    def batch(chance: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        return windows(torch.randint(0, 360_000, (16,), generator=chance))

    return model, batch, windows(torch.arange(362_000, 399_000, 400)), 2e-3


class Writer(nn.Module):
    """Guesses each next character from those before."""

    def __init__(self) -> None:
        super().__init__()
        self.character, self.place = nn.Embedding(128, 48), nn.Embedding(CONTEXT, 48)
        layer = nn.TransformerEncoderLayer(48, 4, 96, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.guess = nn.Linear(48, 128)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, page: torch.Tensor) -> torch.Tensor:
        x = self.character(page) + self.place(torch.arange(page.shape[1]))
        guessed: torch.Tensor = self.guess(self.layers(x, mask=self.mask, is_causal=True))
        return guessed


TASKS = {"digits": _digits, "transformer": _transformer}
