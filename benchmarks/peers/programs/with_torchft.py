"""torchft: a replica of one process, as its train_ddp.py; PEERS_TIMEOUT: its time-outs, in seconds."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
from torch.distributed import TCPStore
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

from benchmarks.peers.job import Job

job = Job(int(os.environ["PEERS_SLOT"]))
limit = timedelta(seconds=float(os.environ["PEERS_TIMEOUT"]))
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def load(state: dict[str, dict[str, torch.Tensor]]) -> None:
    job.model.load_state_dict(state["model"])
    job.optimizer.load_state_dict(state["optimizer"])


manager = Manager(
    pg=ProcessGroupGloo(timeout=limit),
    min_replica_size=1,
    load_state_dict=load,
    state_dict=lambda: {"model": job.model.state_dict(), "optimizer": job.optimizer.state_dict()},
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
while True:
    optimizer.zero_grad()
    job.loss(model).backward()
    before = manager.current_step()
    optimizer.step()
    if manager.current_step() > before:
        job.committed(manager.current_step(), manager.num_participants())
