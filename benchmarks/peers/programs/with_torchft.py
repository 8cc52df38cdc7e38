"""torchft: a replica of one process, as its train_ddp.py, with a checkpoint now and then, as that program advises.

PEERS_TIMEOUT: its time-outs, in seconds.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

from benchmarks.peers.job import Job

EVERY = 25
"""Steps between two checkpoints, from which all begin anew where nobody is left."""
job = Job(int(os.environ["PEERS_SLOT"]))
limit = timedelta(seconds=float(os.environ["PEERS_TIMEOUT"]))
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def load(state: dict[str, Any]) -> None:
    job.model.load_state_dict(state["model"])
    job.optimizer.load_state_dict(state["optimizer"])


def held() -> dict[str, Any]:
    return {"model": job.model.state_dict(), "optimizer": job.optimizer.state_dict()}


manager = Manager(
    pg=ProcessGroupGloo(timeout=limit),
    min_replica_size=1,
    load_state_dict=load,
    state_dict=held,
    replica_id=f"digits_{job.slot}",
    timeout=limit,
    store_addr="127.0.0.1",
    store_port=store.port,
    rank=0,
    world_size=1,
    hostname="127.0.0.1",
)
model = DistributedDataParallel(manager, job.model)
optimizer = Optimizer(manager, job.optimizer)
checkpoint = Path(os.environ["PEERS_CHECKPOINT"])
if checkpoint.exists():
    state = torch.load(checkpoint)
    load(state)
    manager.load_state_dict(state["torchft"])
while True:
    optimizer.zero_grad()
    job.loss(model).backward()
    before = manager.current_step()
    optimizer.step()
    if manager.current_step() > before:
        job.committed(manager.current_step(), manager.num_participants())
        if manager.current_step() % EVERY == 0 and manager.participating_rank() == 0:
            torch.save(held() | {"torchft": manager.state_dict()}, checkpoint.with_suffix(".new"))
            checkpoint.with_suffix(".new").rename(checkpoint)
