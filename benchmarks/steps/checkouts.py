"""Averages and recovery of this checkout beside those of another one, on the CPU, in turns: is anything slower than it was?

    python -m benchmarks checkouts --against ../other                 # everything
    python -m benchmarks checkouts --against ../other --only 4KB 25MB # one of: 4KB 25MB recovery

4KB, 25MB    2 workers of each checkout average with Gloo, a block of rounds at a time; the others rest meanwhile. Time: at the
             slower worker. Of each pair of blocks the medians are compared, and the median of that is what counts.
recovery     1 of 4 workers is SIGKILLed, 1 M parameters, to the others' next average (see ``deaths``).

Bars allow for what two runs of the same code differ by. Each checkout is run by the same interpreter.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import statistics
import sys
from pathlib import Path

from benchmarks.failures import deaths
from benchmarks.job import ROOT, Job
from benchmarks.report import Report, chosen, parser, spread
from benchmarks.steps import checkout_worker

SIZES = {"4KB": 4 << 10, "25MB": 25 * 10**6}
PIECES = {"4KB": (1,), "25MB": (1, 60)}
PARTS = (*SIZES, "recovery")
RATIO = 1.05
SMALL_MS = 0.05
SLOWER = 1.10
"""A recovery may take so many times as long."""
LIMIT = 120.0
"""Seconds for a job to come up, and for a block."""


class Crew:
    """A job of two workers with the code of a checkout, which average when they are asked to."""

    def __init__(self, root: Path, agent: str | None) -> None:
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            held = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            ports = [str(each.getsockname()[1]) for each in (server, held)]
            held.close()
            self._job = Job([checkout_worker.__file__, *ports], 2, chosen(agent), root)
            stack.callback(self._job.close)
            server.settimeout(LIMIT)
            self._lines = []
            for _ in range(2):
                asked, _ = server.accept()
                asked.settimeout(LIMIT)
                self._lines.append(stack.enter_context(asked.makefile("rw")))
            self._stack = stack.pop_all()

    def block(self, size: str, pieces: int, rounds: int) -> list[float]:
        """Seconds of so many averages, each at the slower worker."""
        for lines in self._lines:
            lines.write(json.dumps([SIZES[size] // 4, pieces, rounds]) + "\n")
            lines.flush()
        return list(map(max, *(json.loads(lines.readline()) for lines in self._lines)))

    def close(self) -> None:
        """End it."""
        self._stack.close()


def averages(args: argparse.Namespace, report: Report, sizes: list[str]) -> None:
    """Rows for each size."""
    with contextlib.ExitStack() as stack:
        crews = []
        for root in (ROOT, args.against):
            crews.append(Crew(root, args.agent))
            stack.callback(crews[-1].close)
        for size in sizes:
            rounds = args.small_rounds if size == "4KB" else args.rounds
            for pieces in PIECES[size]:
                blocks: list[list[list[float]]] = [[], []]
                for number in range(args.blocks):
                    for side in (0, 1) if number % 2 else (1, 0):
                        blocks[side].append(crews[side].block(size, pieces, rounds))
                    report.say(f"{size} in {pieces}: {number + 1} of {args.blocks} pairs of blocks")
                what = f"average, {size} in {pieces} tensors" if pieces > 1 else f"average, {size}, one tensor"
                report.row(what, *(spread([each for block in side for each in block]) for side in blocks))
                pairs = [tuple(map(statistics.median, pair)) for pair in zip(*blocks, strict=True)]
                if size == "4KB":
                    compared, text, limit = [(own - old) * 1e3 for own, old in pairs], "difference, ms", SMALL_MS
                else:
                    compared, text, limit = [own / old for own, old in pairs], "ratio", RATIO
                middle = statistics.median(compared)
                measured = f"{middle:.3f} [{min(compared):.3f} - {max(compared):.3f}]"
                report.row(
                    f"... {text}, {args.blocks} pairs of blocks", measured, "", bar=f"<= {limit:g}", good=middle <= limit
                )


def recovery(args: argparse.Namespace, report: Report) -> None:
    """Rows for time, and for processor time, which says more where others use the machine."""
    kinds = {"seconds": "to the others' next average", "processor": "processor time of the others"}
    found: dict[str, list[list[float]]] = {kind: [[], []] for kind in kinds}
    for number in range(args.turns):
        for side, root in list(enumerate((ROOT, args.against)))[:: 1 if number % 2 else -1]:
            for death in deaths.run(root, args, args.seed + number):
                for kind in kinds:
                    found[kind][side].append(death[kind])
    for kind, text in kinds.items():
        both = found[kind]
        share = statistics.median(both[0]) / statistics.median(both[1])
        what = f"1 of {args.workers} killed, {text}, {len(both[0])} times"
        report.row(what, *map(spread, both), bar=f"{share:.2f} of it, <= {SLOWER:g}", good=share <= SLOWER)


def main() -> int:
    options = parser(__doc__, workers=4, elements=1_000_000, turns=4, rounds=10, small_rounds=100, blocks=10, seed=1)
    options.add_argument("--against", type=lambda text: Path(text).resolve(), required=True, help="the other checkout")
    options.add_argument("--repetitions", type=int, default=5, help="deaths in one turn")
    options.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    args = options.parse_args()
    args.kinds = ["junior"]
    seconds = 30 + (2 * args.turns * (8 + 2.5 * args.repetitions) if "recovery" in args.only else 0)
    report = Report("This checkout beside another one", seconds, ("here", "there"))
    if sizes := [size for size in SIZES if size in args.only]:
        averages(args, report, sizes)
    if "recovery" in args.only:
        recovery(args, report)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
