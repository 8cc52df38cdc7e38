"""What it costs those who train that a worker joins, and how soon it counts.

    python -m benchmarks joining                                  # 25 minutes
    python -m benchmarks joining --only pause --parameters 1000000

* pause: the survivors' longest step from the joiner's ``FTLib.init`` (imported, model and optimizer built) until ten steps
  after its first contribution, less the usual step, the median once it counts. *control*: the longest less the median of as
  many steps before, without a join. Three survivors with 1 M parameters, two with 100 M. Contribution: the first average with
  the joiner's gradients in it, as the survivors find in the result; its end at the last of them.
* donor: the survivors' resident memory (agent included) while one joins, sampled, less that before.
* kills: a survivor that sends state gets SIGKILL in mid-transfer. Received: what the joiner's metrics or the kernel's counts
  of its connections say, whichever is more.
* spare: ``max_size=3`` and a fourth worker; a member gets SIGKILL; until all survivors have averaged in a view of three
  again, and, in turns, without a spare, in a view of two.
* churn: joins and kills at random moments, 2 to 5 workers, while other programs run; states are hashed after every step.

Learners (``tests/processes/programs/learner``) with Adam, or SGD with momentum for ``spare``; no forward and backward pass but
a sleep.
"""

from __future__ import annotations

import random
import re
import secrets
import shutil
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.failures.faults import after, crew, newest_epoch
from benchmarks.job import busy_loops
from benchmarks.report import Report, chosen, parser, spread
from ftlib import ConfigError
from ftlib.settings.config import resolve
from tests.harness.cluster import Cluster, Worker
from tests.processes.jobs.episode import Episode
from tests.processes.programs.learner import asked, state_bytes

AFTER = 10
"""Steps after the first contribution that belong to a join."""
LIMIT = 120.0
"""Seconds that anything may take: steps of seconds, and ten of them are waited for."""


@contextmanager
def learners(name: str, size: int, *, given: dict[str, Any] | None = None, **task: Any) -> Iterator[Cluster]:
    """So many that train; ``given``: of ``learner.Orders``."""
    with crew(name, size, program="tests.processes.programs.learner:learn", given=given or {}, **task) as cluster:
        yield cluster


def capped(rate: float) -> dict[str, Any]:
    """The setting that lets a joiner receive so many bytes a second; nothing where there is none."""
    try:
        resolve({"recovery_bandwidth": rate})
    except ConfigError:
        return {}
    return {"recovery_bandwidth": rate}


# One join


def event(worker: Worker, name: str) -> float:
    """When it wrote that, 0 if it has not."""
    return next((float(line["t"]) for line in worker.events if line.get("event") == name), 0.0)


def ready(cluster: Cluster, given: dict[str, Any] | None = None) -> Worker:
    """Start a worker that has imported and built everything and waits before ``FTLib.init``."""
    joiner = cluster.join(given={**(given or {}), "hold": True})
    cluster.until(f"{joiner.task.name} is ready", lambda: event(joiner, "ready"), LIMIT)
    return joiner


def begun(cluster: Cluster, joiner: Worker) -> float:
    """Let it go on. CLOCK_MONOTONIC just before its ``FTLib.init``."""
    joiner.signal(signal.SIGUSR2)
    cluster.until(f"{joiner.task.name} starts", lambda: event(joiner, "starting"), LIMIT)
    return event(joiner, "starting")


def first_line(worker: Worker, joiner: Worker) -> dict[str, Any] | None:
    """The line of the first average at ``worker`` with ``joiner``'s gradients in it; others had its slot before."""
    since = event(joiner, "starting")
    return next((line for line in worker.calls if line["end"] > since and line["who"] >> joiner.task.slot & 1), None)


def counted(cluster: Cluster, survivors: Iterable[Worker], joiner: Worker, *, further: int = 0) -> tuple[float, int]:
    """Wait for the first average with the joiner's gradients and ``further`` steps at all survivors.

    Its end at the last of them (CLOCK_MONOTONIC), and its step.
    """
    workers = list(survivors)

    def enough() -> bool:
        lines = [first_line(worker, joiner) for worker in workers]
        return all(
            line is not None and worker.last["step"] >= line["step"] + further
            for line, worker in zip(lines, workers, strict=True)
        )

    cluster.until(f"{joiner.task.name} counts, and {further} steps more", enough, LIMIT)
    lines = [line for worker in workers if (line := first_line(worker, joiner)) is not None]
    assert len({line["step"] for line in lines}) == 1, "it counted in different steps"
    return max(float(line["end"]) for line in lines), int(lines[0]["step"])


# Steps


def durations(worker: Worker, first: int, last: int) -> dict[int, float]:
    """Seconds by step, of those whose number is within: from the end of the one before, logging included."""
    lines = {line["step"]: line["done"] for line in worker.calls}
    return {step: lines[step] - lines[step - 1] for step in range(first, last + 1) if step in lines and step - 1 in lines}


def longest(workers: Iterable[Worker], since: float, last: int) -> tuple[float, int]:
    """The longest step that ended after ``since``, up to the step ``last``, at any worker; and which it was."""
    found = []
    for worker in workers:
        first = next(line["step"] for line in worker.calls if line["done"] > since)
        found += [(seconds, step) for step, seconds in durations(worker, first, last).items()]
    return max(found)


def equal(cluster: Cluster, ahead: int = 4) -> int:
    """All hash their state after the same step; AssertionError if they differ. Bytes of state that the newest one received."""
    workers = cluster.alive()
    step = max(worker.last["step"] for worker in workers) + ahead
    asked(cluster.directory).write_text(str(step))

    def lines() -> list[dict[str, Any]]:
        return [line for worker in workers for line in worker.calls[-50:] if line["step"] == step]

    cluster.until(f"all are past step {step}", lambda: len(lines()) == len(workers), LIMIT)
    assert all("hash" in line for line in lines()), f"somebody has not read in time that the hash of step {step} is wanted"
    hashes = [line["hash"] for line in lines()]
    assert len(set(hashes)) == 1, f"states differ after step {step}: {hashes}"
    newest = max(workers, key=cluster.workers.index)
    return int(next(line["state_bytes"] for line in newest.calls[-50:] if line["step"] == step))


@dataclass(frozen=True)
class Join:
    """What one join did to the others. Seconds, bytes."""

    longest: float
    """The survivors' longest step from the joiner's ``FTLib.init`` until ``AFTER`` steps after it counted first."""
    usual: float
    """The survivors' median step from then on."""
    control: float
    """The longest step above the median before."""
    contributed: float
    """From ``FTLib.init`` to the end of the first average with its gradients in it, at the last survivor."""
    received: int
    text: str
    """All of it, and more."""

    @property
    def above(self) -> float:
        """What the longest step took more than the usual one."""
        return self.longest - self.usual


def watched(cluster: Cluster, joiner: Worker, *, undisturbed: int, further: int) -> Join:
    """Steps without a join, then ``joiner``, which is ready, and at last ``further`` steps; states are compared at the end."""
    survivors = [worker for worker in cluster.alive() if worker is not joiner]
    quiet = max(worker.last["step"] for worker in survivors)
    last = quiet + undisturbed
    cluster.until("undisturbed steps", lambda: all(worker.last["step"] >= last for worker in survivors), LIMIT)
    before = [value for worker in survivors for value in durations(worker, quiet + 2, last).values()]
    control = max(before) - statistics.median(before)
    start = begun(cluster, joiner)
    end, step = counted(cluster, survivors, joiner, further=further)
    slowest, which = longest(survivors, start, step + AFTER)
    after = [value for worker in survivors for value in durations(worker, step + 1, step + further).values()]
    usual = statistics.median(after)
    received = equal(cluster, 2 if usual > 1.0 else 4)
    first = joiner.calls[0]
    met, registered = event(joiner, "init") - start, event(joiner, "calling") - start
    text = (
        f"longest {slowest * 1e3:.1f} ms (step {which}), usual {usual * 1e3:.1f} ms, control {control * 1e3:+.1f} ms; "
        f"since init: met {met:.3f} s, registered {registered:.3f} s, first call ended {first['end'] - start:.3f} s "
        f"(step {first['step']}), counted {end - start:.3f} s (step {step}); {received / 1e6:.1f} MB"
    )
    return Join(slowest, usual, control, end - start, received, text)


def beside(cluster: Cluster, *, undisturbed: int, given: dict[str, Any]) -> float:
    """A worker of another job starts and trains alone: seconds that the longest step took meanwhile above the usual one.

    That is what a joiner's process costs those with whom it shares the machine, whatever it does with them.
    """
    workers = cluster.alive()
    [stranger] = cluster.found(1, given={**given, "hold": True}, settings={"job": f"alone-{secrets.token_hex(6)}"})
    cluster.until(f"{stranger.task.name} is ready", lambda: event(stranger, "ready"), LIMIT)
    quiet = max(worker.last["step"] for worker in workers)
    last = quiet + undisturbed
    cluster.until("undisturbed steps", lambda: all(worker.last["step"] >= last for worker in workers), LIMIT)
    before = [value for worker in workers for value in durations(worker, quiet + 2, last).values()]
    start = begun(cluster, stranger)
    cluster.until(f"{stranger.task.name} trains", lambda: len(stranger.calls) >= AFTER, LIMIT)
    slowest, _ = longest(workers, start, max(worker.last["step"] for worker in workers))
    gone(cluster, stranger, len(workers))
    return slowest - statistics.median(before)


# Processes from outside


def resident(worker: Worker) -> float:
    """MB of resident memory, its children (the agent) included."""
    process, found = psutil.Process(worker.pid), 0
    for each in [process, *process.children(recursive=True)]:
        found += each.memory_info().rss
    return found / 1e6


class Pipes:
    """TCP connections from one process to the control addresses of others, as the kernel counts them; look often."""

    def __init__(self, pid: int, others: Iterable[Worker]) -> None:
        self._pid = pid
        self._owners = {worker.address.rpartition(":")[2]: worker for worker in others}
        self._received: dict[tuple[str, str], int] = {}

    def look(self) -> dict[Worker, int]:
        """Who is connected now, and what came from each so far by connections that are open."""
        ports = " or ".join(f"dport = :{port}" for port in self._owners)
        command = ["ss", "-tinpHO", "state", "established", f"( {ports} )"]
        text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout
        now: dict[Worker, int] = {}
        for line in text.splitlines():
            if f"pid={self._pid}," not in line:
                continue
            _, _, ours, theirs = line.split()[:4]
            got = re.search(r"bytes_received:(\d+)", line)
            count = int(got[1]) if got else 0
            self._received[ours, theirs] = max(count, self._received.get((ours, theirs), 0))
            owner = self._owners[theirs.rpartition(":")[2]]
            now[owner] = now.get(owner, 0) + count
        return now

    @property
    def received(self) -> int:
        """Bytes by all connections ever seen, as of the last look at each."""
        return sum(self._received.values())


PARTS = ("pause", "donor", "kills", "spare", "churn")
LARGE = 50_000_000
"""Parameters from which on the bars of 100 M hold; there are two survivors then, and less is repeated."""
PAUSE_BAR, LARGE_PAUSE_BAR = 0.040, 0.250
FIRST_BAR = 0.5
DONOR_BAR = 64.0
"""MB beside its stripes."""
SPARE_BAR = 0.060 + 0.040
BLOCK = 4 << 20
"""Bytes that are verified together."""
BESIDE = 1 << 20
"""Bytes that are no state: headers, digests, what is sent with the manifest."""
EVERY = 0.02
"""Seconds between looks at memory and connections."""
TURN = 5
"""Kills of one turn of ``spare``."""
LEVEL = "this spare has the state"
"""What a spare logs then."""
EPISODE = 25
"""Kills of one episode of ``churn``."""


def pieces(parameters: int) -> list[int]:
    """As many parameters, in 40 tensors."""
    return [parameters // 40] * 40


def gone(cluster: Cluster, worker: Worker, size: int) -> None:
    """Kill it; wait until the others train on."""
    worker.kill()
    cluster.until(f"{worker.task.name} ends", lambda: worker.code is not None, LIMIT)
    cluster.training(size, LIMIT)


# Parts


def pause(parameters: int, args: Namespace, report: Report) -> None:
    """One size."""
    large = parameters >= LARGE
    size, undisturbed, further = (2, AFTER, AFTER) if large else (3, 2 * AFTER, 3 * AFTER)
    sizes, given, joins = pieces(parameters), {"rest": 0.0 if large else args.rest}, []
    with learners("joining", size, sizes=sizes, given=given, digest=False, settings=chosen(args.agent)) as cluster:
        for repetition in range(max(2, args.repetitions // 4) if large else args.repetitions):
            report.say(f"pause, {parameters:,} parameters, {repetition + 1}")
            joiner = ready(cluster, given)
            joins.append(watched(cluster, joiner, undisturbed=undisturbed, further=further))
            if args.verbose:
                print(f"  {parameters:,}: {joins[-1].text}", flush=True)
            gone(cluster, joiner, size)
        report_faults(cluster, report)
    what, limit = f"{parameters / 1e6:g} M, {size} survivors", LARGE_PAUSE_BAR if large else PAUSE_BAR
    report.bar(f"{what}: longest step above the usual", [join.above for join in joins], limit, unit="ms")
    report.row(f"{what}: control, without a join", spread([join.control for join in joins]))
    report.row(f"{what}: the usual step, the joiner in it", spread([join.usual for join in joins]))
    contributed = [join.contributed for join in joins]
    if large:
        report.row(f"{what}: init to first contribution", spread(contributed, unit="s"))
    else:
        report.bar(f"{what}: init to first contribution", contributed, FIRST_BAR)
    received = max(join.received for join in joins)
    report.row(f"{what}: received, of a state of {state_bytes(sizes) / 1e6:.1f} MB", f"{received / 1e6:.1f} MB")


class Scale:
    """Weighs processes until told to stop, in a thread of its own."""

    def __init__(self, workers: list[Worker]) -> None:
        self.most = dict.fromkeys(workers, 0.0)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._weigh)
        self._thread.start()

    def _weigh(self) -> None:
        while not self._over.wait(EVERY):
            for worker in self.most:
                self.most[worker] = max(self.most[worker], resident(worker))

    def stop(self) -> None:
        """Wait for its end."""
        self._over.set()
        self._thread.join()


def donor(args: Namespace, report: Report) -> None:
    """Three of them."""
    sizes, size = pieces(args.donor_parameters), 3
    state = state_bytes(sizes) / 1e6
    stripes = state * min(1.0, 2 / size)
    more: list[float] = []
    with learners("joining", size, sizes=sizes, digest=False, settings=chosen(args.agent)) as cluster:
        for repetition in range(max(2, args.repetitions // 2)):
            report.say(f"donor, {repetition + 1}")
            survivors = cluster.alive()
            joiner = ready(cluster)
            scale = Scale(survivors)
            time.sleep(2.0)  # what they weigh is sampled for so long
            scale.stop()
            before = scale.most
            scale = Scale(survivors)
            begun(cluster, joiner)
            counted(cluster, survivors, joiner, further=AFTER)
            scale.stop()
            more.append(max(scale.most[worker] - before[worker] for worker in survivors))
            equal(cluster)
            gone(cluster, joiner, size)
    text = f"median {statistics.median(more):.0f} MB, most {max(more):.0f} MB"
    limit = stripes + DONOR_BAR
    what = f"{len(more)} joins, state {state:.0f} MB, {size} donors with {stripes:.0f} MB of stripes: the heaviest one's growth"
    report.row(what, text, bar=f"<= {limit:.0f} MB", good=max(more) <= limit)


def mid_transfer(cluster: Cluster, chance: random.Random, state: int) -> tuple[int, int, str]:
    """One join with a donor killed: bytes that came, those that the victim had sent, and why it does not count, if so."""
    survivors = cluster.alive()
    joiner = ready(cluster)
    pipes, share = Pipes(joiner.pid, survivors), chance.uniform(0.05, 0.7) * state
    begun(cluster, joiner)
    deadline = time.monotonic() + LIMIT
    now: dict[Worker, int] = {}
    while not (now and pipes.received >= share) and not joiner.calls:
        now = {worker: count for worker, count in pipes.look().items() if count > BLOCK // 4}
        cluster.read()
        assert time.monotonic() < deadline, "no state is on its way"
    early = bool(joiner.calls)
    victim = chance.choice(sorted(now or survivors, key=cluster.workers.index))
    victim.kill()
    survivors.remove(victim)
    while first_line(survivors[0], joiner) is None:
        pipes.look()
        cluster.read()
        assert time.monotonic() < deadline + LIMIT, "the joiner does not count"
    counted(cluster, survivors, joiner, further=3)
    told = equal(cluster)
    cluster.training(len(survivors) + 1, LIMIT)
    return max(told, pipes.received), now.get(victim, 0), "it had joined before" if early else ""


def kills(args: Namespace, report: Report) -> None:
    """Three donors each time."""
    sizes, size, chance = pieces(args.donor_parameters), 3, random.Random(args.seed)
    state = state_bytes(sizes)
    over, wasted, missed = [], [], 0
    settings = chosen(args.agent, **capped(args.bandwidth))
    with learners("joining", size, sizes=sizes, digest=False, settings=settings) as cluster:
        while len(over) < args.kills:
            report.say(f"kills, {len(over) + 1} of {args.kills}")
            came, by_victim, why = mid_transfer(cluster, chance, state)
            if args.verbose:
                print(
                    f"  received {came / 1e6:.1f} of {state / 1e6:.1f} MB, {by_victim / 1e6:.1f} MB from the victim {why}",
                    flush=True,
                )
            if why:
                missed += 1
                assert missed < 3 * args.kills, "the transfer is too quick to be interrupted: raise --donor-parameters"
                continue
            over.append(came - state)
            wasted.append(by_victim)
        faults = list(cluster.faults())
    limit = BLOCK + BESIDE
    most = max(over) / 1e6
    what = f"{args.kills} donors killed in mid-transfer, state {state / 1e6:.0f} MB ({missed} kills came too late)"
    report.row(
        f"{what}: received beyond the state",
        f"median {statistics.median(over) / 1e6:.1f} MB, most {most:.1f} MB",
        bar=f"<= {limit / 1e6:.1f} MB",
        good=max(over) <= limit,
    )
    report.row("... come from the victim before its end", f"median {statistics.median(wasted) / 1e6:.1f} MB")
    report.row("... joiners whose state differs, errors", str(len(faults)), bar="0", good=not faults)


def full(worker: Worker, fault: float, epoch: int, size: int) -> float:
    """When its first average after ``fault`` in a view of so many ended; 0 if none has."""
    line = after(worker, fault, epoch)
    return next(
        (float(each["end"]) for each in worker.calls if line and each["end"] >= line["end"] and each["size"] == size), 0.0
    )


def promoted(cluster: Cluster, chance: random.Random, *, with_spare: bool) -> tuple[float, float]:
    """One kill: seconds until all survivors have averaged at all, and in a view of three (without a spare: two) again."""
    members = cluster.alive()
    extra = cluster.join() if with_spare else None
    if extra is not None:
        cluster.until("the spare has the state", lambda: LEVEL in extra.output(), LIMIT)
        assert not extra.calls, "the spare is no spare"
    time.sleep(0.3 + chance.random() * 0.1)  # past the last view change, at whatever moment of a call
    cluster.read()
    victim = chance.choice(members)
    survivors = [worker for worker in members if worker is not victim]
    epoch = newest_epoch(members)
    fault = victim.kill()
    size = len(members) if with_spare else len(survivors)
    cluster.until("all are back", lambda: all(full(worker, fault, epoch, size) for worker in survivors), LIMIT)
    lines = [after(worker, fault, epoch) for worker in survivors]
    any_size = max(line["end"] for line in lines if line) - fault
    whole = max(full(worker, fault, epoch, size) for worker in survivors) - fault
    if not with_spare:
        cluster.join()
    cluster.training(len(members), LIMIT)
    return any_size, whole


def spare(args: Namespace, report: Report) -> None:
    """In turns with and without."""
    chance = random.Random(args.seed)
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    turn = min(TURN, args.repetitions)
    for number in range(max(1, round(args.repetitions / turn))):
        for with_spare in (False, True) if number % 2 == 0 else (True, False):
            report.say(f"spare, {'with' if with_spare else 'without'} one")
            more = {"max_size": 3} if with_spare else {}
            task: dict[str, Any] = {"sizes": pieces(1_000_000), "given": {"optimizer": "sgd"}, "digest": False}
            with learners("joining", 3, **task, settings=chosen(args.agent, **more)) as cluster:
                found[with_spare] += [promoted(cluster, chance, with_spare=with_spare) for _ in range(turn)]
                report_faults(cluster, report)
    report.row("no spare: SIGKILL of 1 of 3 to the next average of two", spread([whole for _, whole in found[False]]))
    report.row("a spare: to the next average, in whatever view", spread([soon for soon, _ in found[True]]))
    report.bar("a spare: to the next average in a view of three", [whole for _, whole in found[True]], SPARE_BAR, unit="ms")


def churn(args: Namespace, report: Report) -> None:
    """Episodes until there were enough events."""
    events = steps = bad = number = 0
    pauses: list[float] = []
    with busy_loops(args.load):
        while events < args.events:
            report.say(f"churn, {events} of {args.events}")
            place = Path(tempfile.mkdtemp(prefix="ftlib-churn-"))
            sizes = random.Random(args.seed + number).choice([[300], [30_000] * 4, [200_000, 7]])
            task: dict[str, Any] = {
                "program": "tests.processes.programs.learner:learn",
                "given": {"rest": 0.005},
                "sizes": sizes,
            }
            left = max(1, (args.events - events) // 2)
            episode = Episode(place, args.seed + number, min(EPISODE, left), chosen(args.agent), **task)
            try:
                episode.run()
                uneven = [line for worker in episode.cluster.workers for line in worker.calls if line["call"] != line["step"]]
                assert not uneven, f"an average was no step: {uneven[0]}"
            except AssertionError as error:
                bad += 1
                print(f"VIOLATION (seed {args.seed + number}; logs in {place}): {error}", flush=True)
            else:
                shutil.rmtree(place)
            events += max(1, episode.kills + episode.joins)
            steps += episode.verdict.steps
            pauses += episode.pauses
            number += 1
    what = f"{events} joins and kills beside {args.load} busy programs, pause {spread(pauses)}"
    report.row(f"{what}: episodes with lost steps, other states, errors", f"{bad} in {steps} steps", bar="0", good=not bad)


def report_faults(cluster: Cluster, report: Report) -> None:
    """A row if there were any."""
    for fault in cluster.faults():
        report.row(f"FAULT {fault}"[:160], good=False)


def main() -> int:
    options = parser(__doc__, kills=20, seed=1)
    options.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    options.add_argument("--parameters", nargs="+", type=int, default=[1_000_000, 100_000_000], help="of pause")
    options.add_argument("--repetitions", type=int, default=10, help="of pause and spare; a quarter of 100 M, half of donor")
    options.add_argument("--rest", type=float, default=0.015, help="seconds of sleep for forward and backward, with 1 M")
    options.add_argument("--donor-parameters", type=int, default=20_000_000, help="of donor and kills")
    options.add_argument("--bandwidth", type=float, default=100e6, help="bytes a second that a joiner receives, in kills")
    options.add_argument("--events", type=int, default=100, help="of churn")
    options.add_argument("--load", type=int, default=1, help="busy programs beside churn")
    options.add_argument("--verbose", action="store_true", help="each repetition")
    args = options.parse_args()
    costs = {
        "pause": sum(30 + args.repetitions * (20 if each >= LARGE else 6) for each in args.parameters),
        "donor": 20 + 10 * args.repetitions,
        "kills": 20 + 12 * args.kills,
        "spare": 20 + 8 * args.repetitions,
        "churn": 2 * args.events,
    }
    report = Report("joining", sum(costs[part] for part in args.only))
    try:
        for part in (part for part in PARTS if part in args.only):
            attempt(part, args, report)
    except KeyboardInterrupt:
        report.row("interrupted", "the rest is missing", good=False)
    return report.finish()


def attempt(part: str, args: Namespace, report: Report) -> None:
    """Rows of one part; where it fails the others are measured all the same."""
    try:
        if part == "pause":
            for parameters in args.parameters:
                pause(parameters, args, report)
        else:
            {"donor": donor, "kills": kills, "spare": spare, "churn": churn}[part](args, report)
    except AssertionError as error:  # Stuck, or states that differ
        print(error, flush=True)
        report.row(part, str(error).splitlines()[0][:160], bar="ends", good=False)
