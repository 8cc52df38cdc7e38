"""ftlib: ``ftlib run -n 4``, everything else by environment variables."""

from __future__ import annotations

import os

from benchmarks.peers.job import Job
from ftlib import FTLib

job = Job(int(os.environ["FTLIB_WORKER_INDEX"]))
with FTLib.init() as ft:
    job.note("address", address=os.environ.get("FTLIB_BIND", ""))
    ft.register_state(model=job.model, optimizer=job.optimizer)
    while True:
        job.loss(job.model).backward()
        if ft.allreduce_average(job.model):
            job.optimizer.step()
            job.committed(ft.step, ft.size)
        job.optimizer.zero_grad()
