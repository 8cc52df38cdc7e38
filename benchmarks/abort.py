"""How fast a Gloo group breaks and is replaced: kill -9 of one worker in a loop of allreduces, again and again.

    python benchmarks/abort.py --workers 4 --repetitions 30

No control plane: every worker is told in advance who will die and where the survivors meet, so that only the data plane
is measured. The first survivor whose operation fails aborts its group, and so does every other one.

Columns: the time to build the group of all workers; from the kill until all survivors have their error; until all have
the new group; until all have finished the next allreduce. Milliseconds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import statistics
import time
from typing import TYPE_CHECKING, Any

import torch

from ftlib.errors import GroupError
from ftlib.frameworks import GroupSpec, framework_by_name

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

TIMEOUT = 20.0


def work(pipe: Connection, elements: int) -> None:
    """One worker: build, reduce until it breaks, build with the survivors, reduce once, tell the times."""
    torch.set_num_threads(1)
    framework = framework_by_name("gloo")
    pipe.send(framework.start("127.0.0.1"))
    tensor = torch.zeros(elements)
    while True:
        specs: tuple[GroupSpec, GroupSpec | None] | None = pipe.recv()
        if specs is None:
            break
        now, later = specs
        times = {"begin": time.monotonic()}
        group = framework.rebuild(now)
        times["built"] = time.monotonic()
        pipe.send("running")
        count, failure = 0, None
        while failure is None:
            try:
                group.allreduce(tensor).wait(TIMEOUT)
                count += 1
            except GroupError as error:
                times["error"] = time.monotonic()
                failure = error
        group.abort()
        group.close()
        assert later is not None
        group = framework.rebuild(later)
        times["rebuilt"] = time.monotonic()
        group.allreduce(tensor).wait(TIMEOUT)
        times["reduced"] = time.monotonic()
        group.barrier().wait(TIMEOUT)
        group.close()
        pipe.send((times, count, str(failure), failure.peers))
    framework.close()


class Worker:
    """The parent's handle of one worker process."""

    def __init__(self, context: Any, elements: int) -> None:
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, elements), daemon=True)
        self.process.start()
        theirs.close()
        self.store: dict[str, str] = self.receive()

    def receive(self) -> Any:
        if not self.pipe.poll(3 * TIMEOUT):
            raise SystemExit(f"worker {self.process.pid} does not answer")
        return self.pipe.recv()

    def kill(self) -> float:
        """Kill and reap; the time of the kill."""
        at = time.monotonic()
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()
        self.pipe.close()
        return at


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--megabytes", type=float, default=4.0, help="size of the tensor")
    parser.add_argument("--verbose", action="store_true", help="print every repetition with the errors seen")
    arguments = parser.parse_args()
    elements = int(arguments.megabytes * 1e6 / 4)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ftlib.frameworks.gloo"])
    workers = [Worker(context, elements) for _ in range(arguments.workers)]
    rows: list[list[float]] = []
    for repetition in range(arguments.repetitions):
        victim = repetition % len(workers)
        survivors = [worker for worker in workers if worker is not workers[victim]]
        stores = workers[(victim + 1) % len(workers)].store, workers[(victim + 2) % len(workers)].store
        size, epoch = len(workers), 2 * repetition + 1
        for rank, worker in enumerate(workers):
            later = None
            if worker in survivors:
                later = GroupSpec(f"b{repetition}", epoch + 1, survivors.index(worker), size - 1, stores[1], TIMEOUT)
            worker.pipe.send((GroupSpec(f"a{repetition}", epoch, rank, size, stores[0], TIMEOUT), later))
        for worker in workers:
            worker.receive()
        time.sleep(0.1)  # all are in their loops by then: the kill hits a reduction, not the group's first one
        killed = workers[victim].kill()
        results = [worker.receive() for worker in survivors]
        times = [result[0] for result in results]
        rows.append(
            [
                1e3 * (max(t["built"] for t in times) - max(t["begin"] for t in times)),
                1e3 * (max(t["error"] for t in times) - killed),
                1e3 * (max(t["rebuilt"] for t in times) - killed),
                1e3 * (max(t["reduced"] for t in times) - killed),
            ]
        )
        if arguments.verbose:
            print(repetition, "victim", victim, " ".join(f"{value:.1f}" for value in rows[-1]))
            for worker, (at, count, text, peers) in zip(survivors, results, strict=True):
                late = 1e3 * (at["error"] - killed)
                print(f"   rank {workers.index(worker)}: +{late:.1f} ms, {count} reduced, blames {peers}: {text[:150]}")
        workers[victim] = Worker(context, elements)
    for worker in workers:
        worker.pipe.send(None)
        worker.process.join(10)
    print(f"{arguments.workers} workers, {arguments.megabytes:g} MB, {arguments.repetitions} repetitions; milliseconds")
    print(f"{'':>8} {'build':>10} {'all error':>10} {'rebuilt':>10} {'reduced':>10}")
    for name, pick in (("median", statistics.median), ("worst", max)):
        print(f"{name:>8} " + " ".join(f"{pick(column):10.1f}" for column in zip(*rows, strict=True)))


if __name__ == "__main__":
    main()
