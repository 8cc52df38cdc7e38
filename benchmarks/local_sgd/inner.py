"""What the hooks of ``DiLoCo`` add to an inner step that ends no sync."""

from __future__ import annotations

import statistics
import time
from argparse import Namespace

import torch
from torch import nn

from benchmarks.report import Report
from ftlib import DiLoCo, FTLib

BAR = 20e-6
STEPS, BLOCKS = 1_000, 40


def inner(_args: Namespace, report: Report) -> None:
    """The same loop with and without them, in turns: forward, and a step of SGD without gradients. Processor time."""
    torch.set_num_threads(1)
    model = nn.Linear(4, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    inputs = torch.zeros(1, 4)
    with FTLib.init(agent="thread") as ft, torch.no_grad():
        diloco = DiLoCo(
            ft, model, inner=optimizer, outer=lambda weights: torch.optim.SGD(weights, lr=1.0), sync_every=10**9, fragments=1
        )
        ft.register_state(model=diloco)

        def block() -> float:
            began = time.thread_time()
            for _ in range(STEPS):
                model(inputs)
                optimizer.step()
            return (time.thread_time() - began) / STEPS

        block()
        more = []
        for _ in range(BLOCKS):
            alone = block()
            with diloco:
                more.append(block() - alone)
    report.row(
        "inner: what DiLoCo adds to a step",
        f"{1e6 * statistics.median(more):.1f} us [{1e6 * min(more):.1f} - {1e6 * max(more):.1f}]",
        bar=f"<= {1e6 * BAR:.0f} us",
        good=statistics.median(more) <= BAR,
    )
