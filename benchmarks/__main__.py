"""Everything that is claimed, one after another (three and a half hours): ``make bench``. Close other programs first.

python -m benchmarks                      # all
python -m benchmarks --quick              # fewer repetitions, some minutes
python -m benchmarks --only busy tight    # some of them
python -m benchmarks recovery --secret    # one with options of its own: see its --help
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys

COMMANDS = {
    name: module
    for module, names in {
        "failures.detection": "busy tight stall holds",
        "failures.kills": "kills shrink churn",
        "failures.recovery": "recovery fencing",
        "programs": "rest big leaver",
        "scale.soak": "simulator",
        "steps.costs": "quiet idle imports command keeping sampler",
        "steps.samples": "epochs curves",
    }.items()
    for name in names.split()
}
"""Functions by their names, of modules that have several; another name is that of a module with a ``main``."""
ROOMS = {
    name: room
    for room, names in {
        "channels": "collective links parameter_server",
        "failures": "chaos deaths hostile hosts joining kill_soak leaving saves straggler",
        "frameworks": "accelerator isolated pairs rebuilds transfer",
        "others": "beside_torchft nanogpt torchft_programs torchft_steps",
        "scale": "lodging scale sixty_four soak storage",
        "steps": "average checkouts compression dashboard integrations overlap replicas tracing walk",
    }.items()
    for name in names.split()
}
"""Where such a module is, if it is not here."""
ALL = (
    ("recovery", "", "--repetitions 5"),
    ("recovery --fault stop", "", None),
    ("recovery --secret", "", "--repetitions 4 --block 2"),
    ("fencing", "", "--repetitions 1"),
    ("average", "", "--sizes 25MB"),
    ("overlap", "", "--rounds 2"),
    ("compression", "", "--rounds 2 --seeds 2 --steps 100"),
    ("data_parallel", "", "--seconds 8 --kills 30 --joins 4 --models 8x512 --workers 2"),
    ("isolated", "", "--repetitions 5 --rounds 20 --small-rounds 500 --rebuilds 100"),
    ("accelerator", "", "--starts 0.5 --repetitions 4 --rounds 20"),
    ("rebuilds", "", "--rebuilds 100 --frameworks gloo rehearsal"),
    ("keeping", "", "--repetitions 5"),
    ("saves", "", "--repetitions 3"),
    ("shrink", "--rounds 20", "--rounds 2"),
    ("kills", "--kills 1000", "--kills 20"),
    ("kill_soak", "", "--kills 45"),
    ("chaos", "", "--count 14"),
    ("dashboard", "", "--kills 2 --rounds 1 --requests 1000 --seconds 3"),
    ("tracing", "", "--rounds 400 --repetitions 6 --block 3"),
    ("parameter_server", "", "--rounds 200 --blocks 4"),
    ("integrations", "", "--rounds 3"),
    ("replicas", "", "--kills 6 --steps 60"),
    ("links", "", "--rounds 2"),
    ("local_sgd --picture out/loss.png", "", "--kills 12 --seeds 2 --syncs 20 --repetitions 1 --parameters 4000000"),
    ("transfer", "", "--sizes 400 --repetitions 3"),
    ("quiet", "", None),
    ("imports", "", "--repeats 3"),
    ("command", "", "--repeats 3"),
    ("sampler", "", "--samples 1000000 --changes 0 50"),
    ("idle", "", "--seconds 10"),
    ("stall", "", "--repeats 2 --big 2 --steps 4"),
    ("straggler", "", "--rounds 1 --steps 50"),
    ("tight", "", "--seconds 10 --repeats 3"),
    ("busy", "", "--seconds 20 --repeats 2"),
    ("churn", "", "--seconds 60 --warm-up 30"),
    ("epochs", "", None),
    ("curves", "", None),
    ("joining", "", "--parameters 1000000 --repetitions 4 --donor-parameters 5000000 --kills 3 --events 20"),
    ("leaving", "", "--rounds 1"),
    ("holds", "", "--repeats 1 --seconds 5 --kills 4"),
    ("hostile", "", None),
    ("hosts", "", "--repetitions 2"),
    ("launching", "", "--repetitions 2"),
    ("sixty_four", "", "--rounds 1"),
    ("storage", "", "--repetitions 4 --rounds 1 --seconds 8 --changes 2 --idle 4 --kills 10"),
    ("scale", "", "--members 100 --seeds 1 --seconds 20"),
    ("simulator", "", "--quick --seeds 50"),
    ("soak --fresh --record out/bench.jsonl", "--seeds 5000", "--seeds 200"),
    ("soak --train --fresh --record out/bench.jsonl", "--seeds 1000", "--seeds 100"),
)
"""Commands, and what is added to them: for everything, and with ``--quick`` (None: left out then)."""


def main() -> int:
    if sys.argv[1:] and not sys.argv[1].startswith("-"):
        return one(sys.argv[1])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", choices=sorted({line.split()[0] for line, *_ in ALL}), metavar="NAME")
    args = parser.parse_args()
    failed = []
    for command, full, quick in ALL:
        words = f"{command} {(quick if args.quick else full) or ''}".split()
        if (args.quick and quick is None) or (args.only and words[0] not in args.only):
            continue
        print(f"\n== {' '.join(words)}", flush=True)
        if subprocess.run([sys.executable, "-m", "benchmarks", *words], check=False).returncode:
            failed.append(words[0])
    print(f"\n{'all bars held' if not failed else 'not held: ' + ', '.join(failed)}")
    return int(bool(failed))


def one(name: str) -> int:
    """The exit status of one."""
    # An installed package has its bytecode; without it every agent of every worker would first compile what it imports.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.argv = [f"python -m benchmarks {name}", *sys.argv[2:]]
    where = COMMANDS[name] if name in COMMANDS else f"{ROOMS[name]}.{name}" if name in ROOMS else name
    module = importlib.import_module(f"benchmarks.{where}")
    return int(getattr(module, name if name in COMMANDS else "main")() or 0)


if __name__ == "__main__":
    sys.exit(main())
