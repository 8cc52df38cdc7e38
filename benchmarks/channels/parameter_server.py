"""A visit to a parameter server against the same sends and receives in a plain Gloo group of torch, side by side.

    python -m benchmarks parameter_server
    python -m benchmarks parameter_server --rounds 2000 --blocks 10

Two processes, both in a session and in a group of ``torch.distributed``. *Pull*: the client asks by one number and gets
4 KB. *Push*: it sends 25 MB and gets one number. Blocks of rounds of either kind, in turns; medians of the blocks' medians.
*Death*: clients in the middle of a session are killed by SIGKILL, one after the other, ``--kills`` of them; how long it takes
from there until the session has ended and its thread is gone.
"""

from __future__ import annotations

import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.report import Report, parser
from ftlib.torchft.parameter_server import ParameterServer
from ftlib.torchft.process_group import ProcessGroup, ProcessGroupGloo

SMALL, LARGE = 1024, 25 * 1024 * 1024 // 4
"""Numbers (float32) of a pull and of a push."""
PULL, PUSH, END = 0.0, 1.0, 2.0
SECONDS = 120.0


class Visited(ParameterServer):
    """Answers pulls and pushes until it is told to end."""

    @classmethod
    def new_process_group(cls) -> ProcessGroup:
        return ProcessGroupGloo(timeout=SECONDS)

    def forward(self, session_id: str, pg: ProcessGroup) -> None:
        del session_id
        answer(lambda tensor: pg.recv([tensor], 1, 0).wait(), lambda tensor: pg.send([tensor], 1, 0).wait())


def answer(receive: Callable[[torch.Tensor], object], send: Callable[[torch.Tensor], object]) -> None:
    """The server's side."""
    asked, weights, gradient, done = torch.zeros(1), torch.ones(SMALL), torch.zeros(LARGE), torch.zeros(1)
    while True:
        receive(asked)
        if asked.item() == PULL:
            send(weights)
        elif asked.item() == PUSH:
            receive(gradient)
            send(done)
        else:
            return


class Asker:
    """The client's side."""

    def __init__(self, receive: Callable[[torch.Tensor], object], send: Callable[[torch.Tensor], object]) -> None:
        self._receive, self._send = receive, send
        self._asks = {kind: torch.tensor([kind]) for kind in (PULL, PUSH, END)}
        self._weights, self._gradient, self._done = torch.zeros(SMALL), torch.ones(LARGE), torch.zeros(1)

    def ask(self, kind: float) -> float:
        """Seconds of one round."""
        began = time.perf_counter()
        self._send(self._asks[kind])
        if kind == PULL:
            self._receive(self._weights)
        elif kind == PUSH:
            self._send(self._gradient)
            self._receive(self._done)
        return time.perf_counter() - began


def deaths(count: int) -> list[float]:
    """How long the sessions of so many clients last after these were killed: seconds."""
    found = []
    with Visited(0) as server:
        for _ in range(count):
            command = [sys.executable, "-m", "benchmarks.channels.parameter_server", "--stay", server.address()]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as client:
                try:
                    assert client.stdout is not None
                    client.stdout.readline()  # it has got its weights
                finally:
                    client.kill()
                began = time.perf_counter()
                while server.sessions or any(thread.name == "ftlib-session" for thread in threading.enumerate()):
                    if time.perf_counter() - began > SECONDS:
                        raise SystemExit("a session outlives its client")
                    time.sleep(0.0005)  # between two looks
                found.append(time.perf_counter() - began)
    return found


def stay(address: str) -> None:
    """A client that pulls once, and stays: ``python -m benchmarks.channels.parameter_server --stay ADDRESS``."""
    pg = Visited.new_session(address)
    Asker(lambda tensor: pg.recv([tensor], 0, 0).wait(), lambda tensor: pg.send([tensor], 0, 0).wait()).ask(PULL)
    print("in", flush=True)
    threading.Event().wait()


def visit() -> None:
    """The server's process: ``python -m benchmarks.channels.parameter_server FILE``."""
    if sys.argv[1] == "--stay":
        stay(sys.argv[2])
    file = Path(sys.argv[1])
    torch.set_num_threads(1)
    with Visited(0) as server:
        file.with_suffix(".address").write_text(server.address())
        dist.init_process_group("gloo", init_method=f"file://{file}", rank=0, world_size=2)
        answer(lambda tensor: dist.recv(tensor, 1), lambda tensor: dist.send(tensor, 1))
        dist.destroy_process_group()


def main() -> int:
    """Both against each other."""
    options = parser(__doc__, agent=False, rounds=500, pushes=8, blocks=8, kills=20)
    args = options.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("FTLIB_SECRET", secrets.token_urlsafe(32))
    report = Report("parameter server", 40.0, ("session", "plain Gloo", "ratio"))
    with tempfile.TemporaryDirectory(prefix="ftlib-visit-") as directory:
        file = Path(directory) / "store"
        server = subprocess.Popen([sys.executable, "-m", "benchmarks.channels.parameter_server", str(file)])
        try:
            deadline = time.monotonic() + 60.0
            while not (told := file.with_suffix(".address")).exists() or not told.read_text():
                if server.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit("the server did not start")
                time.sleep(0.02)  # between two looks
            dist.init_process_group("gloo", init_method=f"file://{file}", rank=1, world_size=2)
            pg = Visited.new_session(told.read_text())
            ours = Asker(lambda tensor: pg.recv([tensor], 0, 0).wait(), lambda tensor: pg.send([tensor], 0, 0).wait())
            plain = Asker(lambda tensor: dist.recv(tensor, 0), lambda tensor: dist.send(tensor, 0))
            for kind, name, rounds, bar in ((PULL, "pull 4 KB", args.rounds, 1.5), (PUSH, "push 25 MB", args.pushes, 1.1)):
                medians: dict[Asker, list[float]] = {ours: [], plain: []}
                for block in range(args.blocks + 1):
                    for asker in (ours, plain) if block % 2 else (plain, ours):
                        seconds = statistics.median(asker.ask(kind) for _ in range(rounds))
                        if block:  # the first one warms up
                            medians[asker].append(seconds)
                pairs = [one / other for one, other in zip(medians[ours], medians[plain], strict=True)]
                one, other = (statistics.median(medians[each]) for each in (ours, plain))
                ratio = statistics.median(pairs)
                spread = f"{ratio:.2f} [{min(pairs):.2f} - {max(pairs):.2f}]"
                report.row(name, f"{1e3 * one:.3f} ms", f"{1e3 * other:.3f} ms", spread, bar=f"<= {bar}", good=ratio <= bar)
            ours.ask(END)
            plain.ask(END)
            pg.shutdown()
            dist.destroy_process_group()
            server.wait(30.0)
        finally:
            server.kill()
            server.wait()
    if args.kills:
        took = deaths(args.kills)
        middle = statistics.median(took)
        text = f"{1e3 * middle:.0f} ms [{1e3 * min(took):.0f} - {1e3 * max(took):.0f}]"
        report.row("session after its client's death", text, "", "", bar="<= 200 ms", good=max(took) <= 0.2)
    return report.finish()


if __name__ == "__main__":
    visit()
