"""Systems for training on machines that fail, on one job and through the same faults, in turns.

    python -m benchmarks.peers                                               # ten rounds, within an hour
    python -m benchmarks.peers --rounds 1 --only "ftlib" "DDP, torchrun"     # some of them
    python -m benchmarks.peers --rounds 0 --docs                             # the last table into docs/comparison.md

torchft and hivemind get environments of their own (``environments.py``), with the torch that is here. What cannot be installed
is left out, by name. torchrun comes with torch. "ftlib, tuned" plays only where ``--only`` names it.

Four workers train a model of 0.3 M parameters on handwritten digits; each step rests for 20 ms in place of more compute. There
are six faults: a worker is killed by SIGKILL, stopped by SIGSTOP, its training thread is wedged, it is asked to leave by
SIGTERM, one more joins, and the process with which all end or cannot go on (torchft's lighthouse, torchrun, ``ftlib run``) is
killed. A round plays ``--each`` of them with every system, so that two rounds play all, then kills at random moments (a mean of
20 s) for ``--kills`` seconds. Faults, victims and moments are drawn beforehand, and are the same for all systems. Who is gone
is started anew a second later: by ``ftlib run`` and by torchrun as they do it, for the others by this program. Where not all
make steps again by themselves, the whole system is started again, and that is counted: after 20 s, or at once where all of its
workers are there, wait, and have done nothing since the fault.

What is measured, for each fault: the longest time that any survivor goes without a step (``--patience`` at most; in the first
round that plays it as long as the system's settings make it take); batches that were computed for nothing, steps made again,
steps after which two workers held different parameters; goodput, the batches that counted as a share of what the same system
would have made undisturbed; processor time; the start. The systems' settings are named in the table, with where they come from
if not from here. Written after each run are ``out/peers/figures.json``, ``table.md`` and ``loss.png``, ``loss.svg``.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import resource
import statistics
import sys
import time
from pathlib import Path

from benchmarks.peers.environments import MissingError, interpreter
from benchmarks.peers.figures import Figures, figures
from benchmarks.peers.job import save_digits
from benchmarks.peers.plan import FAULTS, Round, rounds
from benchmarks.peers.play import Player
from benchmarks.peers.systems import KINDS, Kind, Running
from benchmarks.peers.tables import Comparison, into_docs
from ftlib.launch.processes.process import adopt_orphans
from tests.harness.cluster import load

MEAN = 20.0
"""Seconds between two kills at random."""
FIRST = 45.0
"""Seconds that a run is taken to last before there was one."""


def main() -> int:
    """Exit code 0 if all that was to run has run."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=10)
    options.add_argument("--minutes", type=float, default=60.0, help="rounds that do not fit are dropped (default 60)")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--each", type=int, default=3, help="faults a round (default 3)")
    options.add_argument("--kills", type=float, default=6.0)
    options.add_argument("--patience", type=float, default=10.0)
    options.add_argument("--schedule", nargs="+", choices=FAULTS, default=list(FAULTS))
    options.add_argument("--only", nargs="+", choices=[kind.name for kind in KINDS])
    options.add_argument("--out", type=Path, default=Path("out", "peers"))
    options.add_argument("--add", action="store_true", help="to the figures of the runs before, which are in OUT")
    options.add_argument("--docs", action="store_true", help="write the table into docs/comparison.md")
    options.add_argument("--keep", action="store_true", help="keep the folders of the runs, with all logs")
    args = options.parse_args()
    complete = _run(args) if args.rounds else True
    if args.docs:
        into_docs((args.out / "table.md").read_text(encoding="utf-8"))
    return 0 if complete else 1


def _run(args: argparse.Namespace) -> bool:
    end = time.monotonic() + 60 * args.minutes
    args.out.mkdir(parents=True, exist_ok=True)
    save_digits(args.out / "digits.npy")
    wanted = [kind for kind in KINDS if (kind.name in args.only if args.only else not kind.asked)]
    pythons, missing = _interpreters(wanted, args.out)
    kinds = [kind for kind in wanted if kind.package in pythons]
    adopt_orphans()
    comparison = Comparison(kinds, missing, args.out, load())
    if args.add:
        comparison.resume()
        names, faults = " and ".join(kind.name for kind in kinds), ", ".join(args.schedule)
        comparison.remark(f"{args.rounds} rounds of {names} with {faults} were played after the others.")
    print(f"{args.rounds} rounds of {len(kinds)} systems; {load()}", flush=True)
    lasted: dict[str, list[float]] = {kind.name: [] for kind in kinds}

    def expected(*some: Kind) -> float:
        return sum(statistics.fmean(lasted[kind.name] or [FIRST]) for kind in some)

    for number, plan in enumerate(rounds(args.rounds, args.seed, args.schedule, args.each, args.kills, MEAN)):
        if time.monotonic() + expected(*kinds) > end:
            comparison.remark(f"{args.rounds - number} of {args.rounds} rounds did not fit into {args.minutes:g} minutes.")
            break
        for kind in kinds if number % 2 == 0 else reversed(kinds):
            began = time.monotonic()
            if began + expected(kind) > end:  # others took longer than in the rounds before
                comparison.remark(f"Round {number + 1} of {kind.name} did not fit into {args.minutes:g} minutes.")
                continue
            found = _play(kind, pythons[kind.package], plan, args)
            lasted[kind.name].append(time.monotonic() - began)
            comparison.add(dataclasses.replace(found, apart=args.add and set(args.schedule) != set(FAULTS)))
            print(f"round {number + 1}, {lasted[kind.name][-1]:.0f} s: {comparison.line(found)}", flush=True)
        comparison.draw()
    print(comparison.table())
    return comparison.complete


def _interpreters(kinds: list[Kind], folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """By package the Python that has it; by system's name why there is none."""
    pythons, errors = {}, {}
    for package in dict.fromkeys(kind.package for kind in kinds):
        try:
            pythons[package] = interpreter(package, folder)
        except MissingError as error:
            errors[package] = str(error)
    missing = {kind.name: errors[kind.package] for kind in kinds if kind.package in errors}
    for name, why in missing.items():
        print(f"left out: {name}: {why}", flush=True)
    return pythons, missing


def _play(kind: Kind, python: str, plan: Round, args: argparse.Namespace) -> Figures:
    """Whatever happens to one system is its figure: the others go on."""
    before = _processor_time()
    try:
        with Running(kind, python, args.out / "digits.npy", args.keep) as running:
            run = Player(running, args.patience).play(plan, args.kills)
        _reap()
        return figures(run, _processor_time() - before)
    except Exception as error:  # noqa: BLE001
        _reap()
        return Figures(kind.name, failed=f"{type(error).__name__}: {error}")


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
