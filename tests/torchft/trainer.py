"""A program as torchft's users write it: trains until all replicas have made the steps that a file asks for.

Run as ``python -m tests.torchft.trainer DIRECTORY [--diloco] [--spares] [--sync-quorum] [--faulty] [--pure] [--raise WHERE]
[--device DEVICE]``.
Writes a JSON line for each step that was committed to DIRECTORY/PID.jsonl. DIRECTORY/until has the number of the last step,
once the test wants the job to end.

``--pure``: gradients are added one by one, without torch's wrapper. ``--faulty``: of each replica one process alone reports an
error now and then. Each writes which steps were skipped to DIRECTORY/PID.skipped. ``--raise``: worker 1 raises in one of its
steps, once others are there: before it has its tensors ("forward") or after these were averaged ("backward"). Nothing catches
that. DIRECTORY/raised has its process id then.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ftlib.torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from ftlib.torchft.ddp import PureDistributedDataParallel
from ftlib.torchft.local_sgd import DiLoCo
from ftlib.torchft.manager import WorldSizeMode

REST = 0.005
"""Seconds between two steps, which would otherwise be too many."""
SYNC_EVERY = 4
FAULT_EVERY = 9
"""Steps between two errors of ``--faulty``."""
RAISE_AFTER = 20
"""Steps of all together before that of ``--raise``."""


class Replica:
    def __init__(self, options: argparse.Namespace) -> None:
        self.directory, self.device = Path(options.directory), options.device
        torch.manual_seed(os.getpid())  # each starts from weights of its own
        self.model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to(self.device)
        self.inner = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.5)
        self.outer = torch.optim.SGD(self.model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        self.manager = Manager(
            pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
            load_state_dict=self.load,
            state_dict=self.state,
            min_replica_size=2 if options.spares else 1,
            use_async_quorum=not options.sync_quorum,
            world_size_mode=WorldSizeMode.FIXED_WITH_SPARES if options.spares else WorldSizeMode.DYNAMIC,
            timeout=timedelta(seconds=60),
        )
        self.shard = int(os.environ.get("FTLIB_SHARD") or os.environ.get("RANK") or 0)
        self.faulty, self.pure = bool(options.faulty), bool(options.pure)
        self.raises = options.raises if os.environ.get("FTLIB_WORKER_INDEX") == "1" else None
        self.together = 0
        self.log = (self.directory / f"{os.getpid()}.jsonl").open("w", buffering=1)

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "inner": self.inner.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.inner.load_state_dict(state["inner"])

    def tell(self) -> bool:
        """Write the step that was committed; False if it is the last one."""
        manager, digest = self.manager, hashlib.blake2b(digest_size=8)
        for parameter in self.model.parameters():
            digest.update(parameter.detach().cpu().numpy().tobytes())
        said = {"step": manager.current_step(), "size": manager.num_participants(), "rank": manager.participating_rank()}
        said["shard"] = self.shard
        self.log.write(json.dumps({**said, "batches": manager.batches_committed(), "hash": digest.hexdigest()}) + "\n")
        until = self.directory / "until"
        return not (until.exists() and manager.current_step() >= int(until.read_text()))

    def loss(self, model: nn.Module) -> torch.Tensor:
        time.sleep(REST)
        inputs = torch.randn(4, 8, device=self.device)
        return (model(inputs) - inputs[:, :4]).square().mean()

    def come_to(self, where: str) -> None:
        """Raise, if it is to be here."""
        raised = self.directory / "raised"
        self.together += where == "forward" and self.manager.num_participants() > 1
        if self.raises == where and self.together > RAISE_AFTER and not raised.exists():
            raised.write_text(str(os.getpid()))
            raise ZeroDivisionError("of the program, between quorum and commit")

    def train(self) -> None:
        model = (PureDistributedDataParallel if self.pure else DistributedDataParallel)(self.manager, self.model)
        optimizer = Optimizer(self.manager, self.inner)
        failed = -1
        while True:
            before = self.manager.current_step()
            optimizer.zero_grad()
            if self.faulty and before != failed and self.shard and before % FAULT_EVERY == FAULT_EVERY - 1:
                failed = before
                self.manager.report_error(RuntimeError("an error of one process alone"))
            self.come_to("forward")
            self.loss(model).backward()
            self.come_to("backward")
            optimizer.step()
            if self.manager.current_step() == before:
                with (self.directory / f"{os.getpid()}.skipped").open("a") as skipped:
                    skipped.write(f"{before}\n")
            if self.manager.current_step() > before and not self.tell():
                break

    def diloco(self) -> None:
        with DiLoCo(self.manager, [self.model], self.inner, self.outer, SYNC_EVERY):
            while True:
                before = self.manager.current_step()
                self.inner.zero_grad()
                self.loss(self.model).backward()
                self.inner.step()
                if self.manager.current_step() > before and not self.tell():
                    break


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("directory")
    for name in ("diloco", "spares", "sync-quorum", "faulty", "pure"):
        options.add_argument(f"--{name}", action="store_true")
    options.add_argument("--raise", dest="raises", choices=("forward", "backward"))
    options.add_argument("--device", default="cpu")
    given = options.parse_args()
    torch.set_num_threads(1)
    replica = Replica(given)
    (replica.diloco if given.diloco else replica.train)()
    replica.manager.shutdown()


if __name__ == "__main__":
    main()
