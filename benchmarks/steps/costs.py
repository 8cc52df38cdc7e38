"""What is paid while nothing goes wrong: imports, the command line, an idle agent, a healthy step's messages, kept state,
the sampler."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from benchmarks.job import Job, cpu_seconds, footprint
from benchmarks.report import Report, chosen, parser, spread
from ftlib import ElasticSampler
from ftlib.state.codec import snapshot
from ftlib.state.registry import Registered
from ftlib.state.snapshot import Backup
from tests.harness.cluster import Cluster, load
from tests.harness.nursery import ROOT

PROBES = {"Ping", "Ack", "PingRequest", "Nack", "Gossip", "Knock", "Ticket", "Digest"}
"""What goes by the clock, or to those who are new; see ``docs/protocol.md``."""


def quiet() -> int:
    """Control messages caused by healthy steps: those sent while training, against the same time of rest.

        python -m benchmarks quiet --workers 4 --seconds 10

    Every worker rests, then trains for the same time in a tight loop; all that it sends to the others' agents is counted by
    type. A step causes no message if both counts are the probes that pass at any time.
    """
    options = parser(quiet.__doc__, agent=False, workers=4, seconds=10.0)
    args = options.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="ftlib-quiet-"))
    good = True
    with Cluster(directory, sizes=[1_000], idle=args.seconds) as cluster:
        cluster.found(args.workers)

        def counted() -> bool:
            return all(sum("sent" in event for event in worker.events) == 3 for worker in cluster.workers)

        cluster.until("all have counted", counted, 2 * args.seconds + 20.0, poll=0.2)
        for worker in cluster.workers:
            _, idle, busy = (event for event in worker.events if "sent" in event)
            print(f"{worker.task.name}: {args.seconds:g} s of rest {idle['sent']}; {busy['steps']} steps {busy['sent']}")
            extra = sum(busy["sent"].values()) - sum(idle["sent"].values())
            good &= set(busy["sent"]) <= PROBES and extra <= max(8, 0.001 * busy["steps"])
    shutil.rmtree(directory)
    print(f"control messages caused by healthy steps: {'0' if good else 'SOME'}; {load()}")
    return int(not good)


IDLE_BAR = 0.005


def share(values: list[float]) -> str:
    """``median [least - most]`` of a core."""
    return f"{statistics.median(values):.3%} [{min(values):.3%} - {max(values):.3%}]"


def idle() -> int:
    """What an agent costs while nobody trains: CPU time of each of 8 members.

        python -m benchmarks idle                         # about a minute
        python -m benchmarks idle --seconds 5

    Each worker is an interpreter started anew that calls ``FTLib.init`` and then waits. The CPU time (user and system) is
    that of the agent's process where it has one, of the whole worker otherwise. Bar: 0.5 % of a core, the median of the
    members.
    """
    options = parser(idle.__doc__, members=8, seconds=30.0)
    options.add_argument("--settle", type=float, default=5.0, help="seconds before measuring")
    args = options.parse_args()
    report = Report(f"{args.members} members that do nothing", 4 * args.members + args.settle + args.seconds)
    with Job(["-m", "benchmarks", "rest"], args.members, chosen(args.agent)) as job:
        job.until("all have started", lambda: len(job.all_lines()) == args.members, 60.0 + 8.0 * args.members)
        time.sleep(args.settle)  # the costs of starting and of the last join are none of idling
        pids = [process.pid for process in job.processes]
        before, began = [cpu_seconds(pid) for pid in pids], time.monotonic()
        time.sleep(args.seconds)  # the time that is measured
        after, seconds = [cpu_seconds(pid) for pid in pids], time.monotonic() - began
        held = [footprint(pid) for pid in pids]
    workers = [(late[0] - early[0]) / seconds for early, late in zip(before, after, strict=True)]
    agents = [(late[1] - early[1]) / seconds for early, late in zip(before, after, strict=True)]
    apart = all(found.processes > 1 for found in held)
    measured = agents if apart else workers
    what = "agent, a process of its own" if apart else "worker, the agent a thread in it"
    report.row(
        f"{what}: share of a core", share(measured), bar=f"<= {IDLE_BAR:.1%}", good=statistics.median(measured) <= IDLE_BAR
    )
    if apart:
        report.row("its worker", share(workers))
    report.row("resident memory of worker and agent", f"{statistics.median(found.rss for found in held):.0f} MB")
    report.row("threads of worker and agent", f"{statistics.median(found.threads for found in held):.0f}")
    return report.finish()


STATEMENTS = {
    "consensus": "import consensus",
    "torch": "import torch",
    "ftlib": "from ftlib import FTLib",
    "lazy": "import ftlib",
    "after": "import torch; began = time.perf_counter(); from ftlib import FTLib",
}
BARS = {"consensus": 0.3, "ftlib": 0.15}


def timed(statement: str) -> tuple[float, bool]:
    """Seconds, and whether torch came with it."""
    told = "print(time.perf_counter() - began, 'torch' in sys.modules)"
    code = f"import sys, time; began = time.perf_counter(); {statement}; {told}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    seconds, heavy = done.stdout.split()
    return float(seconds), heavy == "True"


def imports() -> int:
    """What an import takes: ``consensus``, and ``ftlib`` beyond torch's own time.

        python -m benchmarks imports                      # about a minute

    Each is timed in a new interpreter around the import statement, with files cached, in turns. ``import ftlib`` defers what
    needs torch, so that the bar is held against ``from ftlib import FTLib``: the difference of its median and that of
    ``import torch``. Bars: 0.3 s, and neither torch nor numpy is imported with it; 0.15 s.
    """
    options = parser(imports.__doc__, agent=False, repeats=10)
    args = options.parse_args()
    report = Report("imports", 6.0 * (args.repeats + 1))
    times: dict[str, list[float]] = {name: [] for name in STATEMENTS}
    heavy: dict[str, bool] = {}
    for repeat in range(args.repeats + 1):
        for name, statement in STATEMENTS.items():
            seconds, heavy[name] = timed(statement)
            if repeat:  # the first fills the caches
                times[name].append(seconds)
    report.bar("import consensus", times["consensus"], BARS["consensus"])
    light = not heavy["consensus"]
    report.row("torch with it", "no" if light else "yes", bar="no", good=light)
    report.row("import ftlib", spread(times["lazy"]))
    report.row("import torch", spread(times["torch"]))
    report.row("from ftlib import FTLib", spread(times["ftlib"]))
    more = statistics.median(times["ftlib"]) - statistics.median(times["torch"])
    limit = BARS["ftlib"]
    report.row("difference of the medians", f"{more * 1e3:+.0f} ms", bar=f"<= {limit * 1e3:g} ms", good=more <= limit)
    report.row("from ftlib import FTLib, torch imported before", spread(times["after"]))
    return report.finish()


COMMAND_BAR = 0.15
"""Seconds of a processor."""
TYPED = {
    "ftlib --help": (["--help"], {}),
    "ftlib run --help": (["run", "--help"], {}),
    "a TAB after ftlib st": ([], {"COMP_WORDS": "ftlib st", "COMP_CWORD": "1"}),
    "a TAB after ftlib run --": ([], {"COMP_WORDS": "ftlib run --", "COMP_CWORD": "2"}),
}
"""The arguments, and the variables with which a shell asks what could come next."""


def command() -> int:
    """What the command line takes until it helps: processor time, as whoever waits for it on a busy host feels it most.

        python -m benchmarks command                      # about 20 seconds

    The installed program ``ftlib``, beside an interpreter that does nothing; user and system time of the process, files cached.
    """
    options = parser(command.__doc__, agent=False, repeats=15)
    args = options.parse_args()
    report = Report("the command line", 1.0 * args.repeats)
    program = Path(sys.executable).with_name("ftlib")
    cases = {"python -c pass": ([sys.executable, "-c", "pass"], {})}
    for name, (arguments, asked) in TYPED.items():
        cases[name] = [str(program), *arguments], {**asked, **({"_FTLIB_COMPLETE": "bash_complete"} if asked else {})}
    used: dict[str, list[float]] = {name: [] for name in cases}
    for repeat in range(args.repeats + 1):
        for name, (words, more) in cases.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            done = subprocess.run(words, env={**os.environ, **more}, capture_output=True, text=True, check=True, timeout=60)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            assert done.stdout or name.startswith("python"), "it says nothing"
            if repeat:  # the first fills the caches
                used[name].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    for name, times in used.items():
        if name in TYPED:
            report.bar(f"{name}, processor time", times, COMMAND_BAR)
        else:
            report.row(f"{name}, processor time", spread(times))
    return report.finish()


KEPT_WIDTH = 500


def kept(parameters: int, repetitions: int, report: Report) -> None:
    depth = max(1, round(parameters / (KEPT_WIDTH * (KEPT_WIDTH + 1))))
    model = nn.Sequential(*[nn.Linear(KEPT_WIDTH, KEPT_WIDTH) for _ in range(depth)])
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    registered = Registered({"model": model, "optimizer": optimizer})
    backup = Backup()
    backup.keep(registered, 0)
    keeping, returning = [], []
    for _ in range(repetitions):
        began = time.perf_counter()
        kept = backup.keep(registered, 0)
        keeping.append(time.perf_counter() - began)
        began = time.perf_counter()
        kept.restore()
        returning.append(time.perf_counter() - began)
    million = depth * KEPT_WIDTH * (KEPT_WIDTH + 1) / 1e6
    what = f"{million:.1f} M parameters in {2 * depth} tensors, {backup.nbytes / 1e6:.0f} MB of state"
    report.row(f"{what}: keep it", spread(keeping))
    report.row(f"{what}: return to it", spread(returning))


def keeping() -> int:
    """What it costs to keep the registered state before every step of ``execute``, and to return to it.

        python -m benchmarks keeping [--parameters 1000000 25000000] [--repetitions 20]

    A model of linear layers with Adam: the state has three times the parameters' bytes. One process, one thread.
    """
    options = parser(keeping.__doc__, agent=False, repetitions=20)
    options.add_argument("--parameters", type=int, nargs="+", default=[1_000_000, 25_000_000])
    args = options.parse_args()
    torch.set_num_threads(1)
    report = Report("Keeping the state of a step", 30.0)
    for parameters in args.parameters:
        kept(parameters, args.repetitions, report)
    return report.finish()


AHEAD = 8
BATCH = 32
FEW = 8
"""Up to so many members the bar is for a whole call; with more, each of them adds its few microseconds to everybody's."""
BATCH_LIMIT, MEMORY_LIMIT, STATE_LIMIT = 50e-6, 100e6, 1e6


def resident(*, peak: bool = False) -> int:
    """Bytes, now or at most."""
    name = "VmHWM:" if peak else "VmRSS:"
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    return 0


def epoch(samples: int, members: int, changes: int) -> dict[str, float]:
    """One member's epoch among ``members``, all of which draw ``AHEAD`` batches ahead, with ``changes`` view changes in it."""
    luck = random.Random(1)
    warm = ElasticSampler(range(1000), batch_size=BATCH)
    next(iter(warm))
    before = resident()
    sampler = ElasticSampler(range(samples), batch_size=BATCH)
    names = [f"member-{index:04}" for index in range(members)]
    own = names[0]
    sampler.bind(own)
    sampler.found(names)
    loop = iter(sampler)
    waiting: deque[list[int]] = deque(next(loop) for _ in range(AHEAD))
    calls = samples // (BATCH * members)
    due = set(luck.sample(range(1, calls - 1), changes))
    own_time = drawn = 0.0
    largest, view, reports = 0, names, {}
    for step in range(1, calls + 1):
        began = time.process_time()
        waiting.append(next(loop))
        waiting.popleft()
        share = sampler.begin(1)
        own_time += time.process_time() - began
        if not share.samples:
            break
        shares = {name: replace(share, ahead=luck.randrange(AHEAD)) if step in due else share for name in view}
        shares[own] = share
        began = time.process_time()
        sampler.finished(shares, step)
        own_time += time.process_time() - began
        drawn += 1
        if step in due:
            # One leaves and another comes; all report what they had drawn.
            report = sampler.report()
            reports = dict.fromkeys(view, report)
            gone = luck.choice(view[1:])
            view = [name for name in view if name != gone]
            sampler.activated(view, reports)
            view = [*view, f"member-{members + step:04}"]
    largest = len(snapshot(sampler.state_dict()))
    began = time.process_time()
    sampler.state_dict()
    saving = time.process_time() - began
    return {
        "batch": own_time / drawn,
        "batches": drawn,
        "memory": resident() - before,
        "peak": resident(peak=True) - before,
        "state": largest,
        "saving": saving,
    }


def sampler() -> int:
    """What ``ElasticSampler`` costs at ten million samples: time a batch, memory, and the size of its state.

        python -m benchmarks sampler                   # 10 million samples, 4 and 64 members, one epoch each with churn
        python -m benchmarks sampler --samples 1000000

    All members but one are told, not run: the one draws ahead as a loader does, says its share, and applies the shares of all.
    Times are this process's own; memory is what it has resident more than before, each in a process of its own.
    """
    options = parser(sampler.__doc__, agent=False, samples=10_000_000)
    options.add_argument("--changes", type=int, nargs="+", default=[0, 200, 1000])
    options.add_argument("--members", type=int, nargs="+", default=[4, 64])
    options.add_argument("--measure", type=int, nargs=2, metavar=("MEMBERS", "CHANGES"))
    args = options.parse_args()
    if args.measure:
        print(json.dumps(epoch(args.samples, *args.measure)))
        return 0
    report = Report(f"ElasticSampler at {args.samples:,} samples, batches of {BATCH}", 25 * len(args.changes))
    for members in args.members:
        for changes in args.changes:
            report.say(f"{members} members, {changes} view changes")
            command = [sys.executable, "-m", "benchmarks", "sampler", "--samples", str(args.samples)]
            command += ["--measure", str(members), str(changes)]
            done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
            figures = json.loads(done.stdout)
            what = f"{members} members, {changes} view changes: "
            batch, memory, state = figures["batch"], figures["peak"], figures["state"]
            text = f"{batch * 1e6:.1f} us, {batch / members * 1e6:.1f} us a batch of anybody's"
            if members <= FEW:
                report.row(f"{what}own batch, draw and call", text, bar="<= 50 us", good=batch <= BATCH_LIMIT)
            else:
                report.row(f"{what}own batch, draw and call", text)
            text = f"{memory / 1e6:.0f} MB, {figures['memory'] / 1e6:.0f} at the end"
            report.row(f"{what}memory, at most", text, bar="<= 100 MB", good=memory <= MEMORY_LIMIT)
            text = f"{state / 1e3:.1f} kB in {figures['saving'] * 1e3:.1f} ms"
            report.row(f"{what}state, ledger included", text, bar="<= 1 MB", good=state <= STATE_LIMIT)
    return report.finish()
