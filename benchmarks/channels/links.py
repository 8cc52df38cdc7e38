"""What links between two workers cost, beside raw Gloo send/recv in the same processes and the same minute.

    python -m benchmarks links                       # TCP, ring, TCP with payloads sealed
    python -m benchmarks links --paths ring --rounds 3

Each row is the median of the rounds' medians, with the least and the greatest; rounds of Gloo and of links take turns. These
are bare links: ``python -m benchmarks collective`` measures what a program calls. "plain" is a blocking socket.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import multiprocessing

from consensus import Member, Stream
from ftlib.links.link import Link
from ftlib.links.loop import LinkLoop

PATHS = ("tcp", "ring", "sealed")
LIMIT = 600.0
"""Seconds for one message."""
A, B = Member("a" * 16, "127.0.0.1", 1), Member("b" * 16, "127.0.0.1", 1)
Move = Callable[[torch.Tensor], None]


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Its memory."""
    return memoryview(tensor.numpy()).cast("B")


class Ways:
    """How tensors get to the other process, and back."""

    def __init__(self, rank: int, listener: socket.socket, port: int) -> None:
        self.rank = rank
        self.listener = listener
        self.port = port
        self.loops: list[LinkLoop] = []

    def joined(self) -> socket.socket:
        """A new connection to the other process."""
        dist.barrier()
        sock = self.listener.accept()[0] if self.rank == 0 else socket.create_connection(("127.0.0.1", self.port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def gloo(self) -> tuple[Move, Move]:
        """Raw send and recv."""
        return lambda tensor: dist.send(tensor, 1 - self.rank), lambda tensor: dist.recv(tensor, 1 - self.rank)

    def plain(self) -> tuple[Move, Move]:
        """A blocking socket."""
        sock = self.joined()

        def receive(tensor: torch.Tensor) -> None:
            view = bytes_of(tensor)
            while view:
                view = view[sock.recv_into(view) :]

        return lambda tensor: sock.sendall(bytes_of(tensor)), receive

    def link(self, path: str) -> tuple[Move, Move]:
        """A link."""
        here, there = (A, B) if self.rank == 0 else (B, A)
        loop = LinkLoop(ring=path == "ring", seal_all=path == "sealed")
        self.loops.append(loop)
        link = loop.connect(Stream(self.joined(), bytes(32), there, dialled=self.rank == 1, here=here))
        return lambda tensor: send(link, tensor), lambda tensor: receive(link, tensor)


def send(link: Link, tensor: torch.Tensor) -> None:
    """Returns when its memory may be used again."""
    sent = threading.Event()
    link.send(b"header", [bytes_of(tensor)], lambda _error: sent.set())
    if not sent.is_set():
        sent.wait()


def receive(link: Link, tensor: torch.Tensor) -> None:
    """Into its memory."""
    ended: list[BaseException | None] = []
    view = bytes_of(tensor)
    link.receive(lambda _header: [view], lambda _header, error: ended.append(error))
    while not ended:
        link.help(lambda: bool(ended), time.monotonic() + LIMIT)
    if ended[0] is not None:
        raise ended[0]


def there_and_back(rank: int, ways: tuple[Move, Move], there: torch.Tensor, back: torch.Tensor, count: int) -> float:
    """Median seconds."""
    first, second = ways
    times = []
    for _ in range(count):
        began = time.perf_counter()
        if rank == 0:
            first(there)
            second(back)
        else:
            second(there)
            first(back)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def stream(rank: int, link: tuple[Move, Move], payload: torch.Tensor, count: int) -> float:
    """Messages a second, one way."""
    dist.barrier()
    began = time.perf_counter()
    for _ in range(count):
        link[rank](payload)
    word = torch.zeros(1)
    if rank == 0:
        link[1](word)
    else:
        link[0](word)
    return count / (time.perf_counter() - began)


def worker(rank: int, rendezvous: int, port: int, listener: socket.socket, paths: Sequence[str], rounds: int) -> None:
    """One of the two processes."""
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(rendezvous))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    ways = Ways(rank, listener, port)
    moves = {"gloo": ways.gloo(), "plain": ways.plain(), **{path: ways.link(path) for path in paths}}
    big, small, word = torch.ones(25_000_000 // 4), torch.ones(1024), torch.zeros(1)
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in moves}
    for _ in range(rounds):
        for name, move in moves.items():
            dist.barrier()
            large = there_and_back(rank, move, big, word, 15)
            dist.barrier()
            little = there_and_back(rank, move, small, word, 300)
            found[name].append((large, little, stream(rank, move, small, 1000)))
    if rank == 0:
        gloo = [statistics.median(each) for each in zip(*found["gloo"], strict=True)]
        print(f"{'':8}{'25 MB and a word back':>36}{'4 KB and a word back':>36}{'4 KB one way, a second':>30}")
        for name, rows in found.items():
            large, little, many = ([row[column] for row in rows] for column in range(3))
            print(
                f"{name:8}{show(large, 1e3, 'ms')} {gloo[0] / statistics.median(large):5.2f}x throughput"
                f"{show(little, 1e6, 'us')} {statistics.median(little) / gloo[1]:5.2f}x time"
                f"{statistics.median(many):14,.0f} [{min(many):,.0f}-{max(many):,.0f}]"
            )
        sys.stdout.flush()
    dist.barrier()
    for loop in ways.loops:
        loop.close()
    os._exit(0)


def show(values: Sequence[float], scale: float, unit: str) -> str:
    """Median and range."""
    low, middle, high = (scale * value for value in (min(values), statistics.median(values), max(values)))
    return f"{middle:8.1f} {unit} [{low:.1f}-{high:.1f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--paths", nargs="+", choices=PATHS, default=PATHS)
    options = parser.parse_args()
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_server(("127.0.0.1", 0)) as free:
        rendezvous = free.getsockname()[1]
        free.close()
        port = listener.getsockname()[1]
        context = multiprocessing.get_context("fork")
        processes = [
            context.Process(target=worker, args=(rank, rendezvous, port, listener, options.paths, options.rounds))
            for rank in range(2)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()


if __name__ == "__main__":
    main()
