"""Control messages caused by healthy steps: those sent while training, against the same time of rest.

    python -m benchmarks.quiet --workers 4 --seconds 10

Every worker rests, then trains for the same time in a tight loop; all that it sends to the others' agents is counted by type.
A step causes no message if both counts are the probes that pass at any time.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from tests.processes.cluster import Cluster, load

PROBES = {"Ping", "Ack", "PingRequest", "Nack", "Gossip", "Knock", "Ticket"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10.0)
    args = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="ftlib-quiet-"))
    good = True
    with Cluster(directory, sizes=[1_000], idle=args.seconds) as cluster:
        cluster.found(args.workers)

        def counted() -> bool:
            return all(sum("sent" in event for event in worker.events) == 3 for worker in cluster.workers)

        cluster.until("all have counted", counted, 2 * args.seconds + 20.0, poll=0.2)
        for worker in cluster.workers:
            _, idle, busy = (event for event in worker.events if "sent" in event)
            print(f"{worker.task.name}: {args.seconds:g} s of rest {idle['sent']}; {busy['steps']} steps {busy['sent']}")
            extra = sum(busy["sent"].values()) - sum(idle["sent"].values())
            good &= set(busy["sent"]) <= PROBES and extra <= max(8, 0.001 * busy["steps"])
    shutil.rmtree(directory)
    print(f"control messages caused by healthy steps: {'0' if good else 'SOME'}; {load()}")
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
