"""One of three ranks of a process group: the last one is killed in the middle of an operation, the others go on.

Run as ``python -m tests.torchft.rank KIND STORE RANK``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from datetime import timedelta

import torch
from torch.distributed import ReduceOp

from ftlib.torchft import process_group

BIG = 4_000_000


def main(kind: str, store: str, rank: int) -> None:
    torch.set_num_threads(1)
    pg = getattr(process_group, kind)(timeout=timedelta(seconds=30))
    process_group.reconfigure_with_store(pg, f"{store}/first", rank, 3)
    one = torch.tensor([rank + 1.0])
    pg.allreduce([one], ReduceOp.SUM).wait()
    work = None
    if rank == 2:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
        threading.Event().wait()  # the others are in an operation that this one does not enter
    began = time.monotonic()
    try:
        work = pg.allreduce([torch.ones(BIG)], ReduceOp.SUM)
        work.wait()
    except RuntimeError:
        heard = time.monotonic() - began - 0.3
    process_group.reconfigure_with_store(pg, f"{store}/second", rank, 2)
    two = torch.tensor([rank + 1.0])
    pg.allreduce([two], ReduceOp.SUM).wait()
    print(json.dumps({"before": one.item(), "after": two.item(), "heard": heard}))
    pg.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
