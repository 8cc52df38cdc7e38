"""Everything that is claimed, one after another (three and a half hours): ``make bench``. Close other programs first.

python -m benchmarks                    # all
python -m benchmarks --quick            # fewer repetitions, some minutes
python -m benchmarks --only busy tight  # some of them
"""

from __future__ import annotations

import argparse
import subprocess
import sys

FULL = (
    ("recovery",),
    ("recovery", "--fault", "stop"),
    ("recovery", "--secret"),
    ("fencing",),
    ("average",),
    ("overlap",),
    ("keeping",),
    ("abort",),
    ("shrink", "--rounds", "20"),
    ("kills", "--kills", "1000"),
    ("transfer",),
    ("quiet",),
    ("imports",),
    ("sampler",),
    ("idle",),
    ("stall",),
    ("straggler",),
    ("tight",),
    ("busy",),
    ("churn",),
    ("epochs",),
    ("curves",),
    ("joining",),
    ("leaving",),
    ("holds",),
    ("hostile",),
    ("hosts",),
    ("sixty_four",),
    ("storage",),
    ("scale",),
    ("simulator",),
    ("soak", "--seeds", "5000", "--fresh", "--record", "out/bench.jsonl"),
    ("soak", "--train", "--seeds", "1000", "--fresh", "--record", "out/bench.jsonl"),
)
QUICK = (
    ("recovery", "--repetitions", "5"),
    ("recovery", "--secret", "--repetitions", "4", "--block", "2"),
    ("fencing", "--repetitions", "1"),
    ("average", "--sizes", "25MB"),
    ("overlap", "--rounds", "2"),
    ("keeping", "--repetitions", "5"),
    ("shrink", "--rounds", "2"),
    ("kills", "--kills", "20"),
    ("transfer", "--sizes", "400", "--repetitions", "3"),
    ("imports", "--repeats", "3"),
    ("sampler", "--samples", "1000000", "--changes", "0", "50"),
    ("idle", "--seconds", "10"),
    ("stall", "--repeats", "2", "--big", "2", "--steps", "4"),
    ("straggler", "--rounds", "1", "--steps", "50"),
    ("tight", "--seconds", "10", "--repeats", "3"),
    ("busy", "--seconds", "20", "--repeats", "2"),
    ("churn", "--seconds", "60", "--warm-up", "30"),
    (
        "joining",
        "--parameters",
        "1000000",
        "--repetitions",
        "4",
        "--donor-parameters",
        "5000000",
        "--kills",
        "3",
        "--events",
        "20",
    ),
    ("leaving", "--rounds", "1"),
    ("holds", "--repeats", "1", "--seconds", "5", "--kills", "4"),
    ("hosts", "--repetitions", "2"),
    ("sixty_four", "--rounds", "1"),
    ("storage", "--repetitions", "4", "--rounds", "1", "--seconds", "8", "--changes", "2", "--idle", "4", "--kills", "10"),
    ("scale", "--members", "100", "--seeds", "1", "--seconds", "20"),
    ("simulator", "--quick", "--seeds", "50"),
    ("soak", "--seeds", "200", "--fresh", "--record", "out/bench.jsonl"),
    ("soak", "--train", "--seeds", "100", "--fresh", "--record", "out/bench.jsonl"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", choices=sorted({name for name, *_ in FULL}), metavar="NAME")
    args = parser.parse_args()
    failed = []
    for name, *options in QUICK if args.quick else FULL:
        if args.only and name not in args.only:
            continue
        print(f"\n== {name} {' '.join(options)}", flush=True)
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *options], check=False).returncode:
            failed.append(name)
    print(f"\n{'all bars held' if not failed else 'not held: ' + ', '.join(failed)}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
