"""What a worker does whose leaving is measured; see ``leaving``.

python -m benchmarks.leaver --rest 0.03 --loaders 2 --looks
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, Dataset

from ftlib import FTLib

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


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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


if __name__ == "__main__":
    main()
