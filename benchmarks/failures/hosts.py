"""Four workers on four hosts: one host is cut off, the others go on; the network is mended, and the lost one is back.

    python -m benchmarks hosts                      # ten times each of the faults: six minutes
    python -m benchmarks hosts --repetitions 3 --faults cut

The hosts are network namespaces at a bridge (root, iproute2, nftables). Workers train a parameter of 4 MB, with a secret and
default settings but ``rejoin``. Faults, by turns against a junior, a middle and the most senior host: ``cut``, nothing gets to
or from it; ``vanish``, the same and all its processes end, and a new worker joins from there afterwards; ``mute``, nobody hears
it; ``deaf``, it hears nobody; ``link``, it and one other host do not reach each other, so that one of the two has to go;
``halves``, two of the juniors are cut off. Bars hold for ``cut`` and ``vanish``.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.report import Report, chosen, parser, spread
from tests.harness.cluster import Worker
from tests.harness.network import Network
from tests.harness.verdict import Verdict
from tests.processes.jobs.fleet import Fleet

GOES_ON, IS_BACK = 3.5, 5.0
"""Seconds."""
LIMIT = 60.0
FAULTS = ("cut", "vanish", "mute", "deaf", "halves", "link")
WITH_BAR = ("cut", "vanish")


def hit(fleet: Fleet, fault: str, workers: Sequence[Worker], turn: int) -> tuple[float, list[Worker]]:
    """Cause ``fault``: when, and who is lost by it. ``workers``: in seniority order."""
    network, victim = fleet.network, workers[-1 - turn % len(workers)]
    host = fleet.host_of(victim)
    if fault == "vanish":
        return fleet.vanish(victim), [victim]
    if fault == "cut":
        return fleet.lost(victim), [victim]
    if fault == "halves":  # the most senior one's half goes on, whoever is in it
        mate = workers[1 + turn % 3]
        gone = [worker for worker in workers[1:] if worker is not mate]
        return fleet.lost(*gone), gone
    began = time.monotonic()
    if fault == "mute":
        network.gag(host)
    elif fault == "deaf":
        network.deafen(host)
    else:
        other = workers[workers.index(victim) - 1]
        network.split([host], [fleet.host_of(other)])
        victim = max(victim, other, key=workers.index)
    victim.killed = began
    return began, [victim]


def back(fleet: Fleet, worker: Worker, since: float) -> float | None:
    """Seconds from ``since`` until the end of its first call in which its own gradients count; None while there is none."""
    for line in worker.calls:
        if line["end"] > since and line["size"] == len(fleet.network.hosts) and line["who"] >> worker.task.slot & 1:
            return float(line["end"]) - since
    return None


def measure(fleet: Fleet, fault: str, repetitions: int, report: Report) -> Verdict:
    """Rows for one fault."""
    gone_on, returned, verdict = [], [], Verdict()
    size = len(fleet.network.hosts)
    fleet.anew(rejoin=fault != "link")  # as long as the link is broken it would be let in and have to go again
    fleet.found(size)
    for turn in range(repetitions):
        report.say(f"{fault} {turn + 1} of {repetitions}")
        fleet.training(size, LIMIT)
        time.sleep(1.0)  # the last fault is over for the detectors too: probes have gone every way again
        fleet.read()
        workers = sorted(fleet.alive(), key=lambda worker: worker.last["rank"])
        began, lost = hit(fleet, fault, workers, turn)
        gone_on.append(fleet.went_on([worker for worker in workers if worker not in lost], began, LIMIT))
        time.sleep(1.0)  # who is lost has so long to do what it must not
        fleet.read()
        late = [line for worker in lost for line in worker.calls if line["end"] > began + 0.5]
        assert not late, f"somebody acts on both sides: {late}"
        healed = time.monotonic()
        fleet.heal()
        if fault in ("vanish", "link"):
            fleet.until("it is gone", lambda lost=lost: all(worker.code is not None for worker in lost), LIMIT)
            lost = [fleet.join(fleet.host_of(worker)) for worker in lost]
        for worker in lost:
            worker.killed = 0.0
        fleet.until("the lost are back", lambda lost=lost, since=healed: all(back(fleet, each, since) for each in lost), LIMIT)
        returned += [back(fleet, worker, healed) or 0.0 for worker in lost]
        verdict.check(fleet.workers)
    rows = [("the others average again", gone_on, GOES_ON), ("healed, the lost one counts again", returned, IS_BACK)]
    for what, seconds, limit in rows:
        if fault in WITH_BAR:
            report.bar(f"{fault}: {what}", seconds, limit)
        else:
            report.row(f"{fault}: {what}", spread(seconds, unit="s"))
    return verdict


def main() -> int:
    options = parser(__doc__, repetitions=10, elements=1_000_000)
    options.add_argument("--faults", nargs="+", choices=FAULTS, default=FAULTS)
    args = options.parse_args()
    report = Report("4 workers on 4 hosts", 6.0 + 6.5 * args.repetitions * len(args.faults))
    directory, network, verdict = Path(tempfile.mkdtemp(prefix="ftlib-hosts-")), Network(4), Verdict()
    settings = chosen(args.agent)
    with network, Fleet(directory, network, sizes=[args.elements], settings=settings) as fleet:
        for fault in args.faults:
            found = measure(fleet, fault, args.repetitions, report)
            verdict.violations += [f"{fault}: {violation}" for violation in found.violations]
            verdict.steps += found.steps
    report.verdict(verdict)
    shutil.rmtree(directory)
    return report.finish()
