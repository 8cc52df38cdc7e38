"""ftlib: ``ftlib run -n 4``, everything else by environment variables."""

from __future__ import annotations

import os

from benchmarks.peers.job import Job
from ftlib import FTLib

EVERY = 25
"""Steps between two checkpoints."""
job = Job(int(os.environ["FTLIB_WORKER_INDEX"]))
with FTLib.init() as ft:
    ft.register_state(model=job.model, optimizer=job.optimizer)
    epoch = 0
    while True:
        job.loss(job.model).backward()
        if ft.allreduce_average(job.model):
            job.optimizer.step()
            job.committed(ft.step, ft.size)
            if ft.step % EVERY == 0:
                ft.save(os.environ["PEERS_CHECKPOINT"])
        job.optimizer.zero_grad()
        if ft.epoch != epoch:  # whom one more may ask
            epoch = ft.epoch
            job.note("members", addresses=[f"{member.host}:{member.port}" for member in ft.member_list])
