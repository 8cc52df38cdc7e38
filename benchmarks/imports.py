"""What an import takes: ``consensus``, and ``ftlib`` beyond torch's own time.

    python -m benchmarks.imports                      # about a minute

Each is timed in a new interpreter around the import statement, with files cached, in turns. ``import ftlib`` defers what needs
torch, so that the bar is held against ``from ftlib import FTLib``: the difference of its median and that of ``import torch``.
Bars: 0.3 s, and neither torch nor numpy is imported with it; 0.15 s.
"""

from __future__ import annotations

import statistics
import subprocess
import sys

from benchmarks.report import Report, parser, spread
from tests.processes.cluster import ROOT

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


def main() -> int:
    options = parser(__doc__, agent=False)
    options.add_argument("--repeats", type=int, default=10)
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


if __name__ == "__main__":
    sys.exit(main())
