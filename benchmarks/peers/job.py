"""What every system trains, and what a worker of it writes down. Needs torch and numpy alone: peers have no ftlib.

Handwritten digits, a model of 0.3 M parameters, SGD. In place of the compute of a larger model each step rests for
``REST`` seconds, so that what is compared is not how systems share two processors.
"""

from __future__ import annotations

import json
import os
import signal
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

BATCH = 32
RATE = 0.05
REST = 0.02
EVERY = 10
"""The loss is told once in so many steps."""


class Job:
    """Data, model and notes of one worker, which is known by its slot: a worker that is started anew has it, too."""

    def __init__(self, slot: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(7)
        digits = np.load(os.environ["PEERS_DIGITS"])
        images, labels = torch.from_numpy(digits[:, :-1]).float() / 16, torch.from_numpy(digits[:, -1]).long()
        order = torch.from_numpy(np.random.default_rng(0).permutation(len(images)))
        self._train, self._test = order[:1437], order[1437:]
        self._images, self._labels = images, labels
        self.model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE, momentum=0.9)
        self.slot = slot
        self._chance = torch.Generator().manual_seed(slot)
        self._notes = Path(os.environ["PEERS_NOTES"], f"{slot}-{os.getpid()}.jsonl").open("a", buffering=1)  # noqa: SIM115 - until the end of the process
        signal.signal(signal.SIGUSR1, _wedge)
        self.note("start")

    def note(self, kind: str, **facts: Any) -> None:
        """A line, at the system's monotonic time: all processes of a machine share that."""
        self._notes.write(
            json.dumps({"t": time.monotonic(), "kind": kind, "slot": self.slot, "pid": os.getpid(), **facts}) + "\n"
        )

    def loss(self, model: nn.Module) -> torch.Tensor:
        """Of the next batch. Whatever becomes of the step, this batch has cost its time."""
        drawn = self._train[torch.randint(len(self._train), (BATCH,), generator=self._chance)]
        time.sleep(REST)  # in place of more compute
        self.note("batch")
        return cross_entropy(model(self._images[drawn]), self._labels[drawn])

    def committed(self, step: int, size: int, batches: int = 1) -> None:
        """The step was applied, here with the gradients of ``size`` workers, and of so many batches of this one."""
        told = {}
        if step % EVERY == 0:
            with torch.no_grad():
                told["loss"] = float(cross_entropy(self.model(self._images[self._test]), self._labels[self._test]))
        weights = zlib.crc32(b"".join(parameter.detach().numpy().tobytes() for parameter in self.model.parameters()))
        self.note("step", step=step, size=size, batches=batches, weights=weights, **told)


def save_digits(path: Path) -> None:
    """1797 rows of 64 pixels (0 to 16) and a label, from scikit-learn: in the parent, once."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    np.save(path, np.column_stack([digits.data, digits.target]).astype(np.uint8))


def _wedge(*_: object) -> None:
    """The training thread stands still for ever; other threads of the process go on."""
    while True:
        time.sleep(60)  # for ever
