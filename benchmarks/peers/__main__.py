"""Systems for training on machines that fail, on one job and through the same faults, in turns.

    python -m benchmarks.peers --torchft PYTHON --hivemind PYTHON            # ten rounds, an hour
    python -m benchmarks.peers --rounds 1 --only "ftlib" "DDP, torchrun"     # some of them

PYTHON: an interpreter that has ``torchft-nightly==2026.10.26`` (``hivemind==1.1.12``) with numpy, scikit-learn and torch of the
version here. Who is not given one is left out, by name. torchrun comes with torch.

Four workers train a model of 0.3 M parameters on handwritten digits; each step rests for 20 ms in place of more compute. A
round plays one schedule with every system: a worker is killed by SIGKILL, stopped by SIGSTOP, its training thread is wedged,
it is asked to leave by SIGTERM, one more joins, and the process that the system cannot do without (torchft's lighthouse,
torchrun itself) is killed, in an order drawn for the round; then kills at random moments for ``--kills`` seconds. Workers that
die are started anew a second later: by ``ftlib run`` and by torchrun as they do it, for the others by this program.

What is measured, for each fault: the longest time that any survivor goes without a step (at most ``--patience``); batches that
were computed for nothing, steps made again, steps after which two workers held different parameters; goodput, the batches that
counted as a share of what the same system would have made undisturbed; processor time; the start. The systems' settings
are named in the table; ``systems.py`` says where they come from. Written are ``out/peers/figures.json``, ``table.md`` and
``loss.png``, ``loss.svg``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import resource
import sys
import time
from pathlib import Path

from benchmarks.peers.figures import Figures, figures
from benchmarks.peers.play import FAULTS, Player
from benchmarks.peers.systems import KINDS, Kind, Running
from benchmarks.peers.tables import Comparison
from ftlib.launch.processes.process import adopt_orphans
from tests.harness.cluster import load

MEAN = 20.0
"""Seconds between two kills at random."""


def main() -> int:
    """Exit code 0 if all that was to run has run."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=10)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--kills", type=float, default=10.0)
    options.add_argument("--patience", type=float, default=20.0)
    options.add_argument("--schedule", nargs="+", choices=FAULTS, default=list(FAULTS))
    options.add_argument("--only", nargs="+", choices=[kind.name for kind in KINDS])
    options.add_argument("--torchft", metavar="PYTHON")
    options.add_argument("--hivemind", metavar="PYTHON")
    options.add_argument("--out", type=Path, default=Path("out", "peers"))
    options.add_argument("--keep", action="store_true", help="keep the folders of the runs, with all logs")
    args = options.parse_args()
    pythons = {"ftlib": sys.executable, "ddp": sys.executable, "torchft": args.torchft, "hivemind": args.hivemind}
    kinds = [kind for kind in KINDS if kind.name in (args.only or [each.name for each in KINDS])]
    for kind in kinds:
        if not pythons[kind.package]:
            print(f"left out: {kind.name}: --{kind.package} names no interpreter that has it")
    kinds = [kind for kind in kinds if pythons[kind.package]]
    print(
        f"{args.rounds} rounds of {len(kinds)} systems, about {args.rounds * len(kinds) * 0.9:.0f} minutes; {load()}",
        flush=True,
    )
    adopt_orphans()
    chance = random.Random(args.seed)
    comparison = Comparison(kinds, args.out, load())
    for number in range(args.rounds):
        schedule, seed = chance.sample(args.schedule, len(args.schedule)), chance.randrange(2**32)
        for kind in kinds if number % 2 == 0 else reversed(kinds):
            found = _play(kind, pythons[kind.package], schedule, seed, args)
            comparison.add(found)
            print(f"round {number + 1}: {comparison.line(found)}", flush=True)
        comparison.write()
    print(comparison.table())
    return 1 if comparison.failed else 0


def _play(kind: Kind, python: str, schedule: list[str], seed: int, args: argparse.Namespace) -> Figures:
    before = _processor_time()
    with Running(kind, python, args.keep) as running:
        run = Player(running, args.patience, seed).play(schedule, args.kills, MEAN)
        running.notes.refresh()
    _reap()
    return figures(run, _processor_time() - before)


def _processor_time() -> float:
    """Of all descendants that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _reap() -> None:
    """Whoever was left to this process: they have been killed."""
    end = time.monotonic() + 10
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < end:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
