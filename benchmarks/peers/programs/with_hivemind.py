"""hivemind: a DHT and ``hivemind.Optimizer``, as in its quick start; an epoch of it is a step of at least four
batches here: all that its workers have accumulated."""

from __future__ import annotations

import os
import time
from pathlib import Path

import hivemind

from benchmarks.peers.job import BATCH, Job

job = Job(int(os.environ["PEERS_SLOT"]))
meeting = Path(os.environ["PEERS_MEETING"])
own = meeting / f"{job.slot}.addresses"


def others() -> list[str]:
    """Where those listen that have come."""
    return [address for path in meeting.glob("*.addresses") if path != own for address in path.read_text().split()]


while job.slot and not others():  # slot 0 begins, and alone if nobody is there
    time.sleep(0.1)
dht = hivemind.DHT(initial_peers=others(), host_maddrs=["/ip4/127.0.0.1/tcp/0"], start=True)
own.with_suffix(".new").write_text("\n".join(map(str, dht.get_visible_maddrs())))
own.with_suffix(".new").rename(own)


class Optimizer(hivemind.Optimizer):
    """Tells when it has loaded its state anew: what was accumulated until then is in no step."""

    loads = 0

    def load_state_from_peers(self, **options: object) -> None:
        """As its parent."""
        super().load_state_from_peers(**options)
        self.loads += 1


optimizer = Optimizer(
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
batches = 0
while True:
    optimizer.zero_grad()
    job.loss(job.model).backward()
    batches += 1
    before, loads = optimizer.local_epoch, optimizer.loads
    optimizer.step()
    if optimizer.loads > loads:
        batches = 0
    elif optimizer.local_epoch > before:
        job.committed(optimizer.local_epoch, optimizer.tracker.global_progress.num_peers, batches)
        batches = 0
