"""torch's DistributedDataParallel under ``torchrun --max-restarts``: all workers begin anew from the last checkpoint."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from benchmarks.peers.job import Job

EVERY = 25
"""Steps between two checkpoints."""
job = Job(int(os.environ["RANK"]))
distributed.init_process_group("gloo", timeout=timedelta(seconds=float(os.environ["PEERS_TIMEOUT"])))
model = DistributedDataParallel(job.model)
checkpoint = Path(os.environ["PEERS_CHECKPOINT"])
step = 0
if checkpoint.exists():
    state = torch.load(checkpoint)
    job.model.load_state_dict(state["model"])
    job.optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
while True:
    job.optimizer.zero_grad()
    job.loss(model).backward()
    job.optimizer.step()
    step += 1
    job.committed(step, distributed.get_world_size())
    if step % EVERY == 0 and job.slot == 0:
        state = {"model": job.model.state_dict(), "optimizer": job.optimizer.state_dict(), "step": step}
        torch.save(state, checkpoint.with_suffix(".new"))
        checkpoint.with_suffix(".new").rename(checkpoint)
