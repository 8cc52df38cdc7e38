"""What becomes of the samples while workers come and go: each is used once, and as much is learnt."""

from __future__ import annotations

import collections
import random
import shutil
import signal
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.job import busy_loops
from benchmarks.report import Report, chosen, parser
from ftlib.cli.demo.digits import Digits
from tests.harness.cluster import Cluster, Worker
from tests.processes.jobs.readers import ended, reading, violations
from tests.processes.programs.reader import Orders

LEAST, MOST = 2, 5
"""Workers."""
TERM_LIMIT = 120.0
"""Seconds for a job to come to its end once nothing happens any more, on a busy machine."""


class Term:
    """One job, from its founding to the end of its last epoch."""

    def __init__(self, directory: Path, seed: int, events: int, orders: Orders, agent: str | None) -> None:
        """``events``: at most so many."""
        self._chance = random.Random(seed)
        self._most = events
        self._orders = orders
        self.kinds: collections.Counter[str] = collections.Counter()
        self._stopped: dict[Worker, float] = {}
        """Workers that hang, and when they go on."""
        self._moving: dict[Worker, str] = {}
        """Where those listened that have hung."""
        self._sent: dict[Worker, list[Worker]] = {}
        """The members through which each joiner joins."""
        settings = chosen(agent, rejoin=True)
        self.cluster = Cluster(directory, program="tests.processes.programs.reader:read", settings=settings)
        self.steps = 0

    def run(self) -> list[str]:
        """What went wrong."""
        cluster, chance = self.cluster, self._chance
        with cluster:
            reading(cluster, chance.randint(LEAST, MOST), self._orders)
            while sum(self.kinds.values()) < self._most and not self._late():
                time.sleep(chance.expovariate(2.0))  # the next event comes at a random moment
                for _ in range(chance.choice([1, 1, 1, 1, 2])):
                    self._event()
                self._go_on(time.monotonic())
            self._go_on(float("inf"))
            ended(cluster, TERM_LIMIT + self._orders.rest * self._orders.samples * self._orders.epochs)
        self.steps = max((worker.last.get("step", 0) for worker in cluster.workers), default=0)
        return violations(cluster.workers, self._orders.samples, self._orders.epochs) + list(cluster.faults())

    def _late(self) -> bool:
        """Whether half of the last epoch is over; or everything, where it went quicker than anybody looked."""
        half = (self._orders.epochs - 1, self._orders.samples // 2)
        places = [
            (line["data"], line["used"]) for worker in self.cluster.alive() for line in worker.calls[-50:] if "data" in line
        ]
        return any(place >= half for place in places) or any(
            worker.code == 0 and _done(worker) for worker in self.cluster.workers
        )

    def _event(self) -> None:
        chance, cluster = self._chance, self.cluster
        there = [worker for worker in cluster.alive() if worker not in self._stopped]
        holders = [worker for worker in there if len(worker.calls) >= 2]
        kind = chance.choice(["kill", "kill", "hang", "leave", "preempt", "join", "join", "join"])
        if kind == "join":
            if len(there) + len(self._stopped) >= MOST or not holders:
                return
            # Through all: who is told of some only may find that these have gone, one after the other, when it asks.
            # Who was stopped may have been excluded: then it joins again at another port, which it has not told yet.
            known = [worker for worker in cluster.alive() if worker.calls and worker.address != self._moving.get(worker)]
            if not known:
                return
            introducers = [worker.address for worker in known]
            joiner = cluster.join(given=vars(self._orders), settings={"introducers": introducers})
            self._sent[joiner] = known
        else:
            # Those who were killed a moment ago may have been the only ones with the state that others were to get.
            if len(holders) < 3 and not (len(holders) == 2 and all(worker in holders for worker in there)):
                return
            worker = chance.choice(holders)
            if self._is_needed(worker):
                return
            if kind == "kill":
                worker.kill()
            elif kind == "preempt":
                worker.signal(signal.SIGTERM)
            elif kind == "leave":
                worker.signal(signal.SIGUSR2)
                worker.killed = time.monotonic()
            else:
                worker.signal(signal.SIGSTOP)
                self._moving[worker] = worker.address
                self._stopped[worker] = time.monotonic() + chance.uniform(0.2, 5.0)
        self.kinds[kind] += 1

    def _is_needed(self, worker: Worker) -> bool:
        """Whether a joiner that has yet to ask was sent to it, and to nobody else who is there and has not hung."""
        there = [each for each in self.cluster.alive() if each.address != self._moving.get(each)]
        asking = [self._sent[each] for each in self.cluster.alive() if not each.address and each in self._sent]
        return any(worker in known and not any(each in there for each in known if each is not worker) for known in asking)

    def _go_on(self, now: float) -> None:
        """Let those whose time has come go on."""
        for worker, until in list(self._stopped.items()):
            if until <= now:
                del self._stopped[worker]
                worker.signal(signal.SIGCONT)


def _done(worker: Worker) -> bool:
    return any(event.get("event") == "done" for event in worker.events)


def epochs() -> int:
    """Every sample once an epoch, whatever happens: kills, hangs, leaves, preemptions and joins at random moments.

        python -m benchmarks epochs                      # 200 events
        python -m benchmarks epochs --events 40 --load 2

    Jobs of 2 to 5 workers go through 3 epochs of a dataset, each worker with a ``DataLoader`` that looks ahead in a process
    of its own. Half a second apart, on average, something happens: SIGKILL, SIGSTOP for a few seconds (the worker is
    excluded, and joins again), SIGTERM, a leave, a join; several at once now and then. Halfway through the last epoch it
    stops, and all have to come to the end.

    Bars: in every ledger every sample was used up once in each epoch; the samples in the averages are those of the ledgers; all
    hashes are equal after every step; no step is lost; nobody is stuck, and every worker that was not killed ends with 0.
    """
    options = parser(epochs.__doc__, events=200, seed=1)
    options.add_argument("--samples", type=int, default=6000, help="of the dataset")
    options.add_argument("--loaders", type=int, default=1, help="processes of each worker's loader")
    options.add_argument("--load", type=int, default=0, help="busy loops beside it")
    args = options.parse_args()
    report = Report(f"{args.events} events over 3 epochs of {args.samples} samples", 60 + 1.2 * args.events)
    kinds: collections.Counter[str] = collections.Counter()
    orders = Orders(samples=args.samples, batch_size=4, epochs=3, loaders=args.loaders, rest=0.02, every=5)
    faults, jobs, steps = list[str](), 0, 0
    with busy_loops(args.load):
        while kinds.total() < args.events:
            report.say(f"{kinds.total()} of {args.events} events")
            place = Path(tempfile.mkdtemp(prefix="ftlib-epochs-"))
            term = Term(place, args.seed + jobs, args.events - kinds.total(), orders, args.agent)
            try:
                found = term.run()
            except AssertionError as error:
                found = [f"stuck: {error}"]
            kinds += term.kinds
            steps += term.steps
            if found:
                print(f"VIOLATION (seed {args.seed + jobs}; logs in {place}): {found[:5]}", flush=True)
                faults += found
            else:
                shutil.rmtree(place)
            jobs += 1
    report.row("events", ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())))
    report.row("jobs, steps", f"{jobs}, {steps}")
    report.row(
        "samples not used up once, ledgers and hashes that differ, steps lost, stuck",
        str(len(faults)),
        bar="0",
        good=not faults,
    )
    return report.finish()


SIZE = 3
EVERY = 2.0
"""Seconds between two events, on average."""
CURVE_LIMIT = 300.0
"""Seconds for one learnt."""


@dataclass
class Curve:
    """One learnt. ``losses``: by step."""

    losses: dict[int, float] = field(default_factory=dict)
    final: float = float("nan")
    events: int = 0
    faults: list[str] = field(default_factory=list)


def learnt(place: Path, data: Path, seed: int, epochs: int, agent: str | None, *, churn: bool) -> Curve:
    """One job, from its founding to its end."""
    curve, chance = Curve(), random.Random(seed)
    given = {"seed": seed, "epochs": epochs, "data": str(data)}
    with Cluster(place, program="benchmarks.programs:learn", settings=chosen(agent)) as cluster:
        cluster.found(SIZE, given=given)
        cluster.until("all learn", lambda: all(worker.calls for worker in cluster.workers), CURVE_LIMIT)
        due, deadline = time.monotonic() + chance.expovariate(1 / EVERY), time.monotonic() + CURVE_LIMIT
        while not any(worker.code == 0 and not worker.killed for worker in cluster.workers):
            assert time.monotonic() < deadline, f"seed {seed}: no end within {CURVE_LIMIT:g} s"
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
        ended(cluster, CURVE_LIMIT)
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


def curves() -> int:
    """Does churn change what is learnt? The same job with workers killed, sent away and added, and left in peace, seed by seed.

        python -m benchmarks curves                        # five seeds, and the plot out/curves.png
        python -m benchmarks curves --seeds 2 --epochs 4

    Three workers learn the digits, 48 images a step of all together, with an elastic sampler: the samples of each step are
    drawn alike in both runs of a seed, up to the moment of the first loss of a worker. In the disturbed runs a worker is
    killed or told to go every two seconds on average, and another one comes.

    Bar: the mean final loss (over all training images) of the disturbed runs is within two standard deviations of the calm
    ones', which is what the seeds alone make of it. All members' hashes are equal at every step.
    """
    options = parser(curves.__doc__, seeds=5, epochs=15)
    options.add_argument("--plot", type=Path, default=Path("out/curves.png"))
    args = options.parse_args()
    report = Report(f"{args.seeds} seeds, calm and churned, {args.epochs} epochs", args.seeds * (20 + 4.0 * args.epochs))
    place = Path(tempfile.mkdtemp(prefix="ftlib-curves-"))
    data = place / "digits.npz"
    Digits.bundled().save(data)
    calm, churned = list[Curve](), list[Curve]()
    for seed in range(1, args.seeds + 1):
        for churn, runs in ((False, calm), (True, churned)):
            runs.append(learnt(place / f"{seed}-{churn}", data, seed, args.epochs, args.agent, churn=churn))
            print(f"seed {seed}, {'churned' if churn else 'calm'}: {runs[-1].final:.4f}, {runs[-1].events} events", flush=True)
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
