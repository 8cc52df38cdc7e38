"""hivemind: a DHT and ``hivemind.Optimizer``, as in its quick start; an epoch of it is a step of four batches here."""

from __future__ import annotations

import os
import time
from pathlib import Path

import hivemind

from benchmarks.peers.job import BATCH, Job

job = Job(int(os.environ["PEERS_SLOT"]))
meeting = Path(os.environ["PEERS_MEETING"])
while job.slot and not meeting.exists():  # the first to come is whom the others ask
    time.sleep(0.1)
peers = meeting.read_text().split() if meeting.exists() else []
dht = hivemind.DHT(initial_peers=peers, host_maddrs=["/ip4/127.0.0.1/tcp/0"], start=True)
if not peers:
    meeting.with_suffix(".new").write_text("\n".join(map(str, dht.get_visible_maddrs())))
    meeting.with_suffix(".new").rename(meeting)
optimizer = hivemind.Optimizer(
    dht=dht,
    run_id="digits",
    batch_size_per_step=BATCH,
    target_batch_size=4 * BATCH,
    optimizer=job.optimizer,
    use_local_updates=False,
    matchmaking_time=float(os.environ["PEERS_MATCHMAKING"]),
    averaging_timeout=float(os.environ["PEERS_TIMEOUT"]),
)
optimizer.load_state_from_peers()
while True:
    optimizer.zero_grad()
    job.loss(job.model).backward()
    before = optimizer.local_epoch
    optimizer.step()
    if optimizer.local_epoch > before:
        job.committed(optimizer.local_epoch, optimizer.tracker.global_progress.num_peers)
