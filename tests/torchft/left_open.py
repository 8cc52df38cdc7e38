"""Three ranks on threads of one process, which ends while they are busy with their process groups.

Run as ``python -m tests.torchft.left_open spin|stuck``: all make one operation after the other, or two wait for the third.
"""

from __future__ import annotations

import sys
import threading

import torch
from torch.distributed import TCPStore

from ftlib.torchft.process_group import ProcessGroupGloo, reconfigure_with_store

SIZE = 3
LIMIT = 60.0


def main(mode: str) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    busy = threading.Barrier(SIZE + 1)
    groups = [ProcessGroupGloo(timeout=LIMIT) for _ in range(SIZE)]

    def run(rank: int) -> None:
        reconfigure_with_store(groups[rank], f"127.0.0.1:{store.port}/group", rank, SIZE)
        tensor = torch.ones(1_000_000)
        groups[rank].allreduce([tensor]).wait()
        waits = mode == "stuck" and rank < SIZE - 1
        work = groups[rank].allreduce([tensor]) if waits else None
        busy.wait(LIMIT)
        if work is not None:
            work.wait()
        while mode == "spin":
            groups[rank].allreduce([tensor]).wait()
        threading.Event().wait()

    for rank in range(SIZE):
        threading.Thread(target=run, args=(rank,), daemon=True).start()
    busy.wait(LIMIT)


if __name__ == "__main__":
    main(sys.argv[1])
