"""A rank of a benchmark on one GPU: a member of a job of ours, and of a group of torch's beside it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.gpu.stand import STANDS, Stand
from ftlib import FTLib
from tests.harness.one_gpu import pose_as_a_host

RANKS = 2
LIMIT = 60.0
"""Seconds for anything."""


def options(doc: str | None) -> argparse.ArgumentParser:
    """What every rank is told."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stand", choices=STANDS, required=True)
    parser.add_argument("--framework", required=True)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True, help="for each case")
    return parser


@contextmanager
def beside(args: argparse.Namespace) -> Iterator[tuple[Stand, FTLib, Any]]:
    """Where it is measured, the member, and torch's group; torch's default group is one of Gloo's. All ranks end together."""
    stand = STANDS[args.stand]
    pose_as_a_host(stand.device)
    torch.set_num_threads(1)
    if stand.real:
        torch.cuda.set_device(stand.device)
    with FTLib.init(framework=args.framework) as ft:
        patience = timedelta(seconds=LIMIT)
        store = dist.TCPStore("127.0.0.1", args.port, RANKS, ft.rank == 0)
        dist.init_process_group("gloo", store=store, rank=ft.rank, world_size=RANKS, timeout=patience)
        yield stand, ft, dist.new_group(backend=args.backend, timeout=patience)
        dist.barrier()
    dist.destroy_process_group()
