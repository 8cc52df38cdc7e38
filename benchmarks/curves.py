"""Does churn change what is learnt? The same job with workers killed, sent away and added, and left in peace, seed by seed.

    python -m benchmarks.curves                        # five seeds, and the plot out/curves.png
    python -m benchmarks.curves --seeds 2 --epochs 4

Three workers learn the digits, 48 images a step of all together, with an elastic sampler: the samples of each step are drawn
alike in both runs of a seed, up to the moment of the first loss of a worker. In the disturbed runs a worker is killed or told
to go every two seconds on average, and another one comes.

Bar: the mean final loss (over all training images) of the disturbed runs is within two standard deviations of the calm ones',
which is what the seeds alone make of it. All members' hashes are equal at every step.
"""

from __future__ import annotations

import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.report import Report, chosen, parser
from ftlib.cli.demo.digits import Digits
from tests.processes.cluster import Cluster
from tests.processes.readers import ended

SIZE = 3
EVERY = 2.0
"""Seconds between two events, on average."""
LIMIT = 300.0
"""Seconds for one run."""


@dataclass
class Curve:
    """One run. ``losses``: by step."""

    losses: dict[int, float] = field(default_factory=dict)
    final: float = float("nan")
    events: int = 0
    faults: list[str] = field(default_factory=list)


def run(place: Path, data: Path, seed: int, epochs: int, agent: str | None, *, churn: bool) -> Curve:
    """One job, from its founding to its end."""
    curve, chance = Curve(), random.Random(seed)
    given = {"seed": seed, "epochs": epochs, "data": str(data)}
    with Cluster(place, program="benchmarks.scholar:learn", settings=chosen(agent)) as cluster:
        cluster.found(SIZE, given=given)
        cluster.until("all learn", lambda: all(worker.calls for worker in cluster.workers), LIMIT)
        due, deadline = time.monotonic() + chance.expovariate(1 / EVERY), time.monotonic() + LIMIT
        while not any(worker.code == 0 and not worker.killed for worker in cluster.workers):
            assert time.monotonic() < deadline, f"seed {seed}: no end within {LIMIT:g} s"
            time.sleep(0.05)  # a look at the logs now and then
            cluster.read()
            late = any(worker.last.get("data", 0) >= epochs - 1 for worker in cluster.workers)
            if churn and not late and time.monotonic() > due:
                due = time.monotonic() + chance.expovariate(1 / EVERY)
                there = [worker for worker in cluster.alive() if worker.calls]
                if len(there) >= SIZE:
                    chance.choice(there).signal(chance.choice([signal.SIGKILL, signal.SIGTERM]))
                elif len(cluster.alive()) < SIZE + 1:
                    cluster.join(given=given)
                else:
                    continue
                curve.events += 1
        ended(cluster, LIMIT)
        hashes: dict[int, str] = {}
        for worker in cluster.workers:
            for call in worker.calls:
                curve.losses[call["step"]] = call["loss"]
                if hashes.setdefault(call["step"], call["hash"]) != call["hash"]:
                    curve.faults.append(f"seed {seed}: {worker.task.name} differs at step {call['step']}")
        finals = {event["final"] for worker in cluster.workers for event in worker.events if event.get("event") == "done"}
        curve.faults += cluster.faults()
        if len(finals) != 1:
            curve.faults.append(f"seed {seed}: final losses {sorted(finals)}")
        curve.final = max(finals, default=float("nan"))
    return curve


def plot(calm: list[Curve], churned: list[Curve], path: Path) -> None:
    """All curves, the mean over a tenth of an epoch at a time."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for curves, colour, name in (
        (calm, "#8a8f98", "left in peace"),
        (churned, "#c4511d", "workers killed, sent away and added"),
    ):
        for index, curve in enumerate(curves):
            steps = sorted(curve.losses)
            width = max(1, len(steps) // 60)
            groups = [steps[start : start + width] for start in range(0, len(steps), width)]
            x = [group[-1] for group in groups]
            y = [statistics.fmean(curve.losses[step] for step in group) for group in groups]
            axes.plot(
                x, y, color=colour, alpha=0.7, linewidth=1.2, label=f"{name} ({len(curves)} seeds)" if not index else None
            )
    axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_ylabel("loss of the batch")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--epochs", type=int, default=15)
    options.add_argument("--plot", type=Path, default=Path("out/curves.png"))
    args = options.parse_args()
    report = Report(f"{args.seeds} seeds, calm and churned, {args.epochs} epochs", args.seeds * (20 + 4.0 * args.epochs))
    place = Path(tempfile.mkdtemp(prefix="ftlib-curves-"))
    data = place / "digits.npz"
    Digits.bundled().save(data)
    calm, churned = list[Curve](), list[Curve]()
    for seed in range(1, args.seeds + 1):
        for churn, curves in ((False, calm), (True, churned)):
            curves.append(run(place / f"{seed}-{churn}", data, seed, args.epochs, args.agent, churn=churn))
            print(
                f"seed {seed}, {'churned' if churn else 'calm'}: {curves[-1].final:.4f}, {curves[-1].events} events", flush=True
            )
    plot(calm, churned, args.plot)
    faults = [fault for curve in calm + churned for fault in curve.faults]
    finals, others = [curve.final for curve in calm], [curve.final for curve in churned]
    mean, noise = statistics.fmean(finals), statistics.stdev(finals)
    report.row("events, steps", f"{sum(curve.events for curve in churned)}, {sum(len(curve.losses) for curve in churned)}")
    report.row("final loss, calm", f"{mean:.4f} +- {noise:.4f} [{min(finals):.4f} - {max(finals):.4f}]")
    report.row(
        "final loss, churned",
        f"{statistics.fmean(others):.4f} +- {statistics.stdev(others):.4f} [{min(others):.4f} - {max(others):.4f}]",
        bar=f"{mean:.4f} +- {2 * noise:.4f}",
        good=abs(statistics.fmean(others) - mean) <= 2 * noise,
    )
    report.row("steps with different hashes, final losses that differ", str(len(faults)), bar="0", good=not faults)
    for fault in faults[:5]:
        print(f"VIOLATION {fault}", flush=True)
    if not faults:
        shutil.rmtree(place)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
