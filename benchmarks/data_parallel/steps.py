"""Rows about the time of a step: beside torch's DistributedDataParallel, beside torchft's, over a slow link, of tiny models."""

from __future__ import annotations

import dataclasses
import statistics
from argparse import Namespace
from collections.abc import Callable, Sequence

from benchmarks.data_parallel.loops import Case
from benchmarks.data_parallel.models import MODELS
from benchmarks.data_parallel.stand import Found, lighthouse, quartiles, run, run_linked
from benchmarks.report import Report

MODES = {"views": True, "copies": False}
LAYER_MB = (512 * 512 + 512) * 4 / 2**20
"""A layer of 512 x 512 with its bias is a bucket, in torch's way to fill them and in ours."""
BITS = 402e6
"""A second, each way: averaging takes 40 % of the blocking step."""
STEP_BAR, TORCHFT_BAR, BLOCKING_BAR, LINK_BAR = 1.02, 0.90, 0.72, 1.01
SMALL_BAR, COST_BAR = 0.3e-3, 1.5e-6


def steps(args: Namespace, report: Report) -> None:
    """Each model, mode and number of workers."""
    mine, name = ("torch1", "torch against itself") if args.self_check else ("ours", "step / torch's")
    other = "torch2" if args.self_check else "torch"
    for model in args.models:
        for workers in args.workers:
            for mode in args.modes:
                report.say(f"{model}, {workers} workers, {mode}")
                case = Case(model, [mine, other], views=MODES[mode], seconds=args.seconds, seed=args.seed)
                found = _runs(args, case, lambda case, workers=workers: run(case, workers))
                what = f"{name}, {MODELS[model].text}, {mode}, {workers} workers"
                _ratio(report, what, found, mine, other, STEP_BAR)


def faults(args: Namespace, report: Report) -> None:
    """Each system in processes of its own: in turns one would hand the other what it has freed."""
    for model in args.models:
        for mode in args.modes:
            report.say(f"page faults, {model}, {mode}")
            case = Case(model, [], views=MODES[mode], rounds=30 if model == "60M" else 60, warm=10)
            counts = {
                name: [
                    count
                    for found in _runs(args, dataclasses.replace(case, loops=[name]), lambda case: run(case, 2))
                    for count in found.faults(name)
                ]
                for name in ("torch", "ours")
            }
            beyond = statistics.median(counts["ours"]) - statistics.median(counts["torch"])
            what = f"page faults of a step beyond torch's, {MODELS[model].text}, {mode}"
            text = f"{beyond:.0f}: {quartiles(counts['ours'], places=0)}, torch {quartiles(counts['torch'], places=0)}"
            report.row(what, text, bar="<= 0", good=beyond <= 0)


def torchft(args: Namespace, report: Report) -> None:
    """Our wrapper and optimizer beside torchft's."""
    if not args.peer:
        report.row("step / torchft's", "needs --peer", bar=f"<= {TORCHFT_BAR} x", good=False)
        return
    for model in args.models:
        for workers in args.workers:
            for mode in args.modes:
                report.say(f"torchft, {model}, {workers} workers, {mode}")
                with lighthouse(args.peer, workers) as address:
                    case = Case(
                        model,
                        ["managed", "torchft"],
                        views=MODES[mode],
                        seconds=args.seconds,
                        seed=args.seed,
                        lighthouse=address,
                    )
                    found = [run(case, workers, args.peer)]
                what = f"step / torchft's, {MODELS[model].text}, {mode}, {workers} workers"
                _ratio(report, what, found, "managed", "torchft", TORCHFT_BAR)


def link(args: Namespace, report: Report) -> None:
    """Layers that an accelerator would compute, a link of 402 Mbit/s, a bucket for each layer."""
    for mode in args.modes:
        report.say(f"link, {mode}")
        loops = ["local", "blocking", "torch", "ours"]
        case = Case("timed", loops, views=MODES[mode], seconds=max(args.seconds, 45.0), seed=args.seed, bucket_mb=LAYER_MB)
        found = _runs(args, case, lambda case: run_linked(case, 2, BITS))
        shares = [100 * (1 - ratio) for each in found for ratio in each.ratios("local", "blocking")]
        report.row(f"402 Mbit/s, {mode}: averaging, of the blocking step", quartiles(shares, " %"))
        _ratio(report, f"402 Mbit/s, {mode}: step / the blocking one", found, "ours", "blocking", BLOCKING_BAR)
        _ratio(report, f"402 Mbit/s, {mode}: step / torch's", found, "ours", "torch", LINK_BAR)


def small(args: Namespace, report: Report) -> None:
    """A model of 4 KB."""
    for workers in args.workers:
        for mode in args.modes:
            report.say(f"4 KB, {workers} workers, {mode}")
            case = Case("4KB", ["ours", "torch"], views=MODES[mode], seconds=min(args.seconds, 10.0), warm=50, seed=args.seed)
            found = _runs(args, case, lambda case, workers=workers: run(case, workers))
            values = [value * 1e3 for each in found for value in each.differences("ours", "torch")]
            what = f"{MODELS['4KB'].text}, {mode}, {workers} workers: paired difference to torch's"
            good = statistics.median(values) <= SMALL_BAR * 1e3 if workers == 2 else None
            bar = f"<= {SMALL_BAR * 1e3:g} ms" if workers == 2 else ""
            report.row(f"{what} ({len(values)})", quartiles(values, " ms", 3), bar=bar, good=good)


def cost(args: Namespace, report: Report) -> None:
    """What a parameter more costs on the training thread, in time of the processor: our wrapper beyond torch's."""
    for mode in args.modes:
        report.say(f"cost, {mode}")
        busy = {}
        for model in ("one", "thousand"):
            case = Case(
                model,
                ["ours", "torch", "local"],
                views=MODES[mode],
                seconds=min(args.seconds, 12.0),
                warm=20,
                bucket_mb=25.0,
                seed=args.seed,
            )
            found = _runs(args, case, lambda case: run(case, 2))
            busy[model] = {name: statistics.median(each.busy(name) for each in found) for name in case.loops}
        more = {name: (busy["thousand"][name] - busy["one"][name]) / 999 for name in busy["one"]}
        beyond = more["ours"] - more["torch"]
        text = (
            f"{beyond * 1e6:.2f} us (ours {more['ours'] * 1e6:.2f}, torch's {more['torch'] * 1e6:.2f}, "
            f"none {more['local'] * 1e6:.2f})"
        )
        what = f"processor time of a parameter beyond torch's, {mode}"
        report.row(what, text, bar=f"<= {COST_BAR * 1e6:g} us", good=beyond <= COST_BAR)


def _runs(args: Namespace, case: Case, start: Callable[[Case], Found]) -> list[Found]:
    """Each with processes and an order of its own."""
    return [start(dataclasses.replace(case, seed=args.seed + number)) for number in range(args.runs)]


def _ratio(report: Report, what: str, found: Sequence[Found], loop: str, other: str, bar: float) -> None:
    """A row: the median of the ratios of all rounds of all runs."""
    each = [one.ratios(loop, other) for one in found]
    values = [value for ratios in each for value in ratios]
    medians = f"; runs {', '.join(f'{statistics.median(ratios):.3f}' for ratios in each)}" if len(each) > 1 else ""
    mine, theirs = (statistics.median(value for one in found for value in one.slowest(name)) * 1e3 for name in (loop, other))
    text = f"{quartiles(values, ' x', 3)} of {len(values)}; {mine:.1f}, {theirs:.1f} ms{medians}"
    report.row(what, text, bar=f"<= {bar:.2f} x", good=statistics.median(values) <= bar)
