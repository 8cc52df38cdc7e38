"""A worker of ``checkouts``, which averages when it is asked to. It runs with any checkout's ftlib: it imports nothing else."""

from __future__ import annotations

import json
import socket
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from ftlib import FTLib


def main(orders: int, store: int) -> None:
    """Ports: of who gives orders (``[elements, pieces, rounds]``, a line each; answered with seconds); of a store."""
    torch.set_num_threads(1)
    with FTLib.init(framework="gloo") as ft, socket.create_connection(("127.0.0.1", orders)) as asked:
        meeting = dist.TCPStore("127.0.0.1", store, ft.size, ft.rank == 0)
        dist.init_process_group("gloo", store=meeting, rank=ft.rank, world_size=ft.size, timeout=timedelta(seconds=600))
        with asked.makefile("rw") as lines:
            for line in lines:
                elements, pieces, rounds = json.loads(line)
                tensors = [part.clone() for part in torch.ones(elements).tensor_split(pieces)]
                times = []
                for _ in range(3 + rounds):
                    dist.barrier()  # of a group of its own, so that all begin at once
                    began = time.perf_counter()
                    assert ft.allreduce_average(tensors)
                    times.append(time.perf_counter() - began)
                lines.write(json.dumps(times[3:]) + "\n")  # the first ones also warm up
                lines.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
