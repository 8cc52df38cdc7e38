"""Replicas that shard their model: what a step costs beside plain FSDP2, and what the loss of one process costs the others.

python -m benchmarks replicas                          # steps of 2 x 2 and 3 x 2, then 50 kills of one process of 2 x 2
python -m benchmarks replicas --kills 300 --replicas 3 --steps 0    # the soak: 300 kills in 3 replicas of 2

A step: forward and backward of a model that FSDP2 shards over two processes, its gradients averaged over the replicas, Adam.
Plain: the same processes, with one ``all_reduce`` of all local gradients in a buffer over Gloo. Both in turns.
"""

from __future__ import annotations

import multiprocessing
import random
import statistics
import sys
import tempfile
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from benchmarks.report import Report, parser, spread
from consensus import Member
from ftlib.core.engine.shard_agreement import ShardAgreement
from ftlib.core.replicas.whole import Replica, facts_of
from ftlib.core.replicas.words import Word
from ftlib.lifecycle.replica.mates import Connections
from ftlib.settings.replicas import Part
from tests.harness.basics import bind
from tests.harness.nursery import Nursery
from tests.harness.worker import Lines, Task, joined
from tests.processes.jobs.replicas import Replicas
from tests.processes.programs.learner import prepare  # noqa: F401 - the worker's process calls prepare

STEP_BAR, COMMIT_BAR, PAUSE_BAR, BACK_BAR = 1.05, 0.3e-3, 0.150, 4.0
WARM_UP = 20
"""Steps that do not count."""


def model_on(mesh: Any, width: int) -> torch.nn.Sequential:
    """Four layers, sharded."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(4)))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def hsdp(task: Task, lines: Lines) -> int:
    """Steps with ftlib; each line has its seconds, and when this process held the result, and knew that its mate did."""
    agreed = [0.0, 0.0]
    hold = ShardAgreement.hold

    def timed(self: Any, *given: Any, **more: Any) -> Any:
        began = time.monotonic()
        try:
            return hold(self, *given, **more)
        finally:
            agreed[:] = began, time.monotonic()

    setattr(ShardAgreement, "hold", timed)  # noqa: B010 - mypy forbids the other way
    with joined(task, lines) as ft:
        model = model_on(ft.device_mesh("cpu", (2,), ("shard",)), task.given["width"])
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
        ft.register_state(model=model, optimizer=optimizer)
        batch = torch.randn(32, task.given["width"])
        while ft.step < task.given["steps"]:
            began = time.perf_counter()
            model(batch).pow(2).mean().backward()
            if ft.allreduce_average(model):
                optimizer.step()
            optimizer.zero_grad()
            lines.write(step=ft.step, seconds=time.perf_counter() - began, held=agreed[0], agreed=agreed[1])
        ft.barrier()
    return 0


def plain(task: Task, lines: Lines) -> int:
    """The same steps with torch alone."""
    given = task.given
    size, rank = given["replicas"], given["who"] * 2 + task.settings["shard"]
    store = dist.TCPStore("127.0.0.1", given["port"], 2 * size, rank == 0, timedelta(seconds=60))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2 * size)
    mesh = init_device_mesh("cpu", (size, 2), mesh_dim_names=("replicate", "shard"))
    model = model_on(mesh["shard"], given["width"])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    batch, group = torch.randn(32, given["width"]), mesh.get_group("replicate")
    for step in range(1, given["steps"] + 1):
        began = time.perf_counter()
        model(batch).pow(2).mean().backward()
        grads = [parameter.grad.to_local() for parameter in model.parameters()]  # type: ignore[union-attr]
        flat = torch.cat([grad.flatten() for grad in grads])
        dist.all_reduce(flat, group=group)
        flat /= size
        for grad, part in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
            grad.copy_(part.view_as(grad))
        optimizer.step()
        optimizer.zero_grad()
        lines.write(step=step, seconds=time.perf_counter() - began)
    dist.barrier()
    return 0


def steps_of(program: str, replicas: int, steps: int, width: int, nursery: Nursery, place: Path) -> tuple[float, float, float]:
    """The median of a step, of the agreement in it, and of what that takes once the last process holds its result; seconds."""
    pair = bind()
    port = pair[0].getsockname()[1]
    for each in pair:
        each.close()
    given = {"steps": steps, "width": width, "replicas": replicas, "port": port}
    with Replicas(place, nursery, program=f"benchmarks.steps.replicas:{program}") as job:
        job.begin(replicas, given=given)
        job.until("all have done their steps", lambda: all(worker.code is not None for worker in job.workers), 500.0)
        job.read()
        rows = [worker.calls[WARM_UP:] for worker in job.workers]
    lines = [line for row in rows for line in row]
    waits = [line.get("agreed", 0.0) - line.get("held", 0.0) for line in lines]
    # The clock is one for all processes of a host; a replica's two were started one after the other.
    mates = [pair for first, second in zip(rows[::2], rows[1::2], strict=True) for pair in zip(first, second, strict=False)]
    last = [max(each.get("agreed", 0.0) for each in pair) - max(each.get("held", 0.0) for each in pair) for pair in mates]
    return statistics.median(line["seconds"] for line in lines), statistics.median(waits), statistics.median(last)


def _say(shard: int, pipe: Connection, count: int) -> None:
    """Agree with the other process ``count`` times, and send when each agreement began and ended here."""
    mates = Connections(shard, lambda _error: None)
    pipe.send({**mates.listen("127.0.0.1"), **facts_of(Part("one", shard, 2))})
    members = [Member(f"{i}", "127.0.0.1", 1 + i, tuple(sorted(facts.items()))) for i, facts in enumerate(pipe.recv())]
    mates.connect(Replica("one", tuple(members)), 60.0, lambda: True)
    times = []
    for call in range(1, count + 1):
        began = time.monotonic()
        mates.enter(Word(1, call))
        while mates.verdict(1.0) is None:
            pass
        times.append((began, time.monotonic()))
        time.sleep(0.0005)  # the program computes
    pipe.send(times)
    pipe.recv()
    mates.close()


def words(count: int) -> list[float]:
    """Two processes of a replica agree, and do nothing else: seconds from the second one's word until both know."""
    context = multiprocessing.get_context("spawn")
    pipes, workers = [], []
    for shard in range(2):
        own, theirs = context.Pipe()
        worker = context.Process(target=_say, args=(shard, theirs, count), daemon=True)
        worker.start()
        pipes.append(own)
        workers.append(worker)
    facts = [pipe.recv() for pipe in pipes]
    for pipe in pipes:
        pipe.send(facts)
    both = [pipe.recv() for pipe in pipes]
    for pipe in pipes:
        pipe.send(None)
    for worker in workers:
        worker.join(10.0)
    return [max(ends) - max(begins) for begins, ends in (zip(*pair, strict=True) for pair in zip(*both, strict=True))]


def kills(count: int, replicas: int, seed: int, nursery: Nursery, place: Path) -> tuple[list[float], list[float], int]:
    """Kill a random process of a random replica, again and again.

    Seconds until the others' next step, seconds until the replica is back and counts, and steps in all.
    """
    chance = random.Random(seed)
    pauses, backs = [], []
    with Replicas(place, nursery) as job:
        rows = job.begin(replicas)
        job.together(*rows)
        for _ in range(count):
            time.sleep(chance.random() * 0.3)
            row = chance.choice(rows)
            began = chance.choice(row).kill()
            rows.remove(row)
            job.together(*rows, steps=1)
            mask = sum(1 << each[0].task.given["who"] for each in rows)
            ends = [
                next(line["t"] for line in worker.calls if line["who"] == mask and line["t"] > began)
                for each in rows
                for worker in each
            ]
            pauses.append(max(ends) - began)
            job.until("the rest has ended", lambda row=row: all(worker.code is not None for worker in row))  # type: ignore[misc]
            began = time.monotonic()
            rows.append(job.replica())
            job.together(*rows, steps=1)
            backs.append(time.monotonic() - began)
        return pauses, backs, job.judge()


def main(arguments: list[str] | None = None) -> int:
    """Run it."""
    options = parser(__doc__, agent=False, kills=50, replicas=2, steps=300, width=512, seed=1).parse_args(arguments)
    report = Report("replicas of two processes", 60.0 + 4.0 * options.kills + 0.2 * options.steps)
    with tempfile.TemporaryDirectory() as directory, Nursery(Path(directory), "benchmarks.steps.replicas") as nursery:
        place = Path(directory)
        took = words(1500)
        report.row(
            "commit of two processes that do nothing else, once the last holds its result",
            f"{statistics.median(took) * 1e6:.0f} us",
            bar="median <= 0.3 ms",
            good=statistics.median(took) <= COMMIT_BAR,
        )
        for replicas in (2, 3) if options.steps else ():
            ratios, waits, agreements = [], [], []
            for turn in range(3):
                own, waited, agreed = steps_of(
                    "hsdp", replicas, options.steps, options.width, nursery, place / f"own-{replicas}-{turn}"
                )
                theirs, _, _ = steps_of(
                    "plain", replicas, options.steps, options.width, nursery, place / f"plain-{replicas}-{turn}"
                )
                ratios.append(own / theirs)
                agreements.append(agreed)
                waits.append(waited)
                report.row(
                    f"{replicas} x 2, turn {turn + 1}: a step, beside FSDP2 and plain Gloo",
                    f"{own * 1e3:.1f} / {theirs * 1e3:.1f} ms",
                )
            ratio = statistics.median(ratios)
            report.row(f"{replicas} x 2: ratio", f"{ratio:.3f}", bar=f"<= {STEP_BAR}", good=ratio <= STEP_BAR)
            agreed, waited = statistics.median(agreements), statistics.median(waits)
            report.row(
                f"{replicas} x 2: commit across shards, with the wait for the slower shard's result", f"{waited * 1e3:.3f} ms"
            )
            report.row(
                f"{replicas} x 2: ... until both know, once the last holds its result",
                f"{agreed * 1e3:.3f} ms",
                bar="<= 0.3 ms",
                good=agreed <= COMMIT_BAR,
            )
        if options.kills:
            pauses, backs, steps = kills(options.kills, options.replicas, options.seed, nursery, place / "kills")
            report.row(
                f"{options.kills} kills: the others' next step after",
                spread(pauses),
                bar="median <= 150 ms",
                good=statistics.median(pauses) <= PAUSE_BAR,
            )
            report.row(
                "replica back and counting after (processes forked, imports done)",
                spread(backs, unit="s"),
                bar="<= 4 s",
                good=max(backs) <= BACK_BAR,
            )
            report.row("steps, none lost, none over different replicas", str(steps))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
