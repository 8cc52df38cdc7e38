"""How fast a joiner fetches the state, beside one plain TCP stream over the loopback between two processes.

    python -m benchmarks transfer                          # 400 MB and 1.2 GB, five times each
    python -m benchmarks transfer --sizes 400 --only http  # one of them

The donor is a process with an agent, whose pins are complete before anything is measured; the joiner fetches all stripes on
some threads, straight into its tensors, and checks the digest of each block. The stream sends pieces of 1 MB, unchecked.
All ways take turns in one run; ratios are of two that follow each other.
"""

from __future__ import annotations

import queue
import secrets
import socket
import statistics
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from benchmarks.report import Report, parser

WAYS = ("http", "sealed", "group")
BARS = {"http": 0.3, "group": 0.6}
PIECE = 10**6
SENDER = """
import socket, sys

port, size = map(int, sys.argv[1:])
piece = memoryview(bytearray(size))
with socket.create_connection(("127.0.0.1", port)) as connection:
    while asked := connection.recv(8):
        for start in range(0, nbytes := int.from_bytes(asked, "big"), size):
            connection.sendall(piece[: nbytes - start])
"""
LAYER = 4 << 20
"""Elements of a big parameter; each has a small one beside it."""


class StreamReader:
    """The plain one: its other end is a process that sends as much as it is asked for."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as subscriber:
            port = subscriber.getsockname()[1]
            self._sender = subprocess.Popen([sys.executable, "-c", SENDER, str(port), str(PIECE)])
            self._connection, _ = subscriber.accept()

    def measure(self, nbytes: int) -> float:
        """Seconds for so many bytes."""
        view, left = memoryview(bytearray(PIECE)), nbytes
        began = time.perf_counter()
        self._connection.sendall(nbytes.to_bytes(8, "big"))
        while left:
            left -= self._connection.recv_into(view[: min(left, PIECE)])
        return time.perf_counter() - began

    def close(self) -> None:
        self._connection.close()
        self._sender.wait()


class Fetcher:
    """The joiner of one donor, with and without a group."""

    def __init__(self, megabytes: int, *, secret: str = "", group: bool = False) -> None:
        from consensus import KeyRing
        from ftlib.core.plane.plane import Plane
        from ftlib.frameworks.gloo import GlooFramework
        from ftlib.recovery.joiner.group_transport import GroupTransport
        from ftlib.recovery.joiner.http_transport import HTTPTransport
        from ftlib.recovery.layout.flat_state import FlatState
        from ftlib.recovery.layout.shards import cut
        from tests.ftlib.recovery import holders

        sizes = [LAYER, 1000] * max(1, round(megabytes * 1e6 / 4 / LAYER))
        joiner = holders.somebody()
        settings: dict[str, Any] = {"secret": secret} if secret else {}
        self.holder = holders.HolderProcess(sizes, joiner, group=group, **settings)
        self.framework = GlooFramework()
        ring = KeyRing([secret]) if secret else None
        self.transport = HTTPTransport(ring, joiner.id)
        if group:
            self.framework.start("127.0.0.1")
            made = holders.group_of(self.framework, 1, self.holder.store)
            plane = Plane(joiner.id)
            assert plane.activate(holders.meeting([self.holder.member, joiner], joiner.id, made))
            self.transport = GroupTransport(ring, plane, patience=60.0)
        self.holder.hear()
        model = holders.Model(sizes, seed=1)
        self.flat = FlatState([row.detach() for row in model.rows], [str(index) for index in range(len(sizes))])
        member = self.holder.member
        offer = self.transport.offer(
            [member],
            version=holders.VERSION,
            state_id=holders.STATE_ID,
            turn=0,
            inline_from=member.id,
            go_on=lambda: True,
        )
        assert offer.nbytes == self.flat.nbytes, (offer.nbytes, self.flat.nbytes)
        self.shards = cut(offer.nbytes, [member.id], 0, holders.VERSION)
        for shard in (self.shards[0], self.shards[-1]):  # complete
            self.transport.shard(member, shard, self.flat, 0, lambda _: None, lambda: True)

    @property
    def nbytes(self) -> int:
        return self.flat.nbytes

    def fetch(self, threads: int) -> float:
        """Seconds until everything is here."""
        waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for shard in self.shards:
            waiting.put(shard)
        arrived: list[int] = []

        def work() -> None:
            while True:
                try:
                    shard = waiting.get_nowait()
                except queue.Empty:
                    return
                self.transport.shard(self.holder.member, shard, self.flat, 0, arrived.append, lambda: True)

        workers = [threading.Thread(target=work) for _ in range(threads)]
        began = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        seconds = time.perf_counter() - began
        assert sum(arrived) == self.nbytes
        return seconds

    def close(self) -> None:
        self.holder.close()
        self.framework.close()


def measure(megabytes: int, args: Namespace, report: Report) -> None:
    fetchers = {}
    stream = StreamReader()
    try:
        for way in args.only:
            secret = secrets.token_hex(16) if way == "sealed" else ""
            fetchers[way] = Fetcher(megabytes, secret=secret, group=way == "group")
        nbytes = next(iter(fetchers.values())).nbytes
        rates: dict[str, list[float]] = {way: [] for way in ("stream", *fetchers)}
        for number in range(args.repetitions):
            report.say(f"{megabytes} MB, {number + 1} of {args.repetitions}")
            for way, fetcher in fetchers.items():
                turns: list[tuple[str, Callable[[], float]]] = [
                    ("stream", lambda: stream.measure(nbytes)),
                    (way, lambda fetcher=fetcher: fetcher.fetch(args.threads)),
                ]
                for name, turn in turns if number % 2 else reversed(turns):
                    rates[name].append(nbytes / turn() / 1e9)
    finally:
        stream.close()
        for fetcher in fetchers.values():
            fetcher.close()
    report.row(f"{nbytes / 1e6:.0f} MB, plain stream", several(rates["stream"]))
    for place, way in enumerate(fetchers):
        beside = rates["stream"][place :: len(fetchers)]
        ratios = [ours / theirs for ours, theirs in zip(rates[way], beside, strict=True)]
        what = f"{nbytes / 1e6:.0f} MB, {way}, {args.threads} threads"
        text = f"{several(rates[way])}, ratio {several(ratios, '')}"
        bar = BARS.get(way)
        good = None if bar is None else statistics.median(ratios) >= bar
        report.row(what, text, bar="" if bar is None else f">= {bar:g} of the stream", good=good)


def several(values: list[float], unit: str = " GB/s") -> str:
    return f"{statistics.median(values):.2f}{unit} [{min(values):.2f} - {max(values):.2f}]"


def main() -> int:
    options = parser(__doc__, agent=False, repetitions=5)
    options.add_argument("--sizes", type=int, nargs="+", default=[400, 1200], metavar="MB")
    options.add_argument("--only", nargs="+", choices=WAYS, default=list(WAYS), metavar="WAY")
    options.add_argument("--threads", type=int, default=3, help="that fetch at a time")
    args = options.parse_args()
    expected = sum(10 + size / 1000 * (10 + args.repetitions * len(args.only) * 2) for size in args.sizes)
    report = Report("the state's way to a joiner", expected)
    for size in args.sizes:
        measure(size, args, report)
    return report.finish()
