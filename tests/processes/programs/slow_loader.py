"""A worker that takes its time to load what others have trained: a ``program`` of ``worker.Task``.

Its orders: ``seconds`` that loading takes. A line a call, with ``trained``: how many averages are in its state.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from tests.harness.worker import Lines, Task, joined, place


def train(task: Task, lines: Lines) -> int:
    """Train until it is asked to end."""
    trained = torch.zeros(1_000)

    def load(state: dict[str, Any]) -> None:
        if state["trained"].any():  # founders agree on nothing yet
            lines.write(event="loading")
            time.sleep(task.given["seconds"])
        trained.copy_(state["trained"])

    with joined(task, lines) as ft:
        ft.register_state(state_dict=lambda: {"trained": trained}, load_state_dict=load)
        while True:
            time.sleep(task.pause)
            gradient = torch.ones(1_000)
            if ft.allreduce_average(gradient):
                trained += gradient
            lines.write(trained=int(trained[0]), **place(ft))
