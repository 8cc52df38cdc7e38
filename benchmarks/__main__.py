"""Everything that is claimed, one after another (about half an hour): ``make bench``. Close other programs first.

python -m benchmarks            # all
python -m benchmarks --quick    # fewer repetitions, a few minutes
"""

from __future__ import annotations

import argparse
import subprocess
import sys

FULL = (
    ("recovery",),
    ("recovery", "--fault", "stop"),
    ("fencing",),
    ("average",),
    ("abort",),
    ("shrink", "--rounds", "20"),
    ("kills", "--kills", "1000"),
)
QUICK = (
    ("recovery", "--repetitions", "5"),
    ("fencing", "--repetitions", "1"),
    ("average", "--sizes", "25MB"),
    ("shrink", "--rounds", "2"),
    ("kills", "--kills", "20"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    failed = []
    for name, *options in QUICK if args.quick else FULL:
        print(f"\n== {name} {' '.join(options)}", flush=True)
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *options], check=False).returncode:
            failed.append(name)
    print(f"\n{'all bars held' if not failed else 'not held: ' + ', '.join(failed)}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
