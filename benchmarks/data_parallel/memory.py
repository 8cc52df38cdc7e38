"""Peak memory of a worker that trains, beside torch's DistributedDataParallel: each in fresh processes."""

from __future__ import annotations

from argparse import Namespace

from benchmarks.data_parallel.loops import Case
from benchmarks.data_parallel.models import MODELS
from benchmarks.data_parallel.stand import Found, run
from benchmarks.data_parallel.steps import MODES
from benchmarks.report import Report

BAR = 1.1


def memory(args: Namespace, report: Report) -> None:
    """Two workers; the larger of both counts."""
    for model in args.models:
        for mode in args.modes:
            report.say(f"memory, {model}, {mode}")
            whole, net = {}, {}
            agent = 0.0
            for name in ("torch", "ours"):
                case = Case(model, [name], views=MODES[mode], rounds=6, warm=4)
                found: Found = run(case, 2)
                whole[name] = max(line["after"]["VmHWM"] for line in found.lines)
                net[name] = max(line["after"]["VmHWM"] - line["before"]["VmRSS"] for line in found.lines)
                agent = max(line["agent"] for line in found.lines)
            what = f"{MODELS[model].text}, {mode}"
            ratio = whole["ours"] / whole["torch"]
            text = f"{ratio:.2f} x: {whole['ours']:.0f}, {whole['torch']:.0f} MB"
            report.row(f"peak memory / torch's, {what}", text, bar=f"<= {BAR} x", good=ratio <= BAR)
            text = f"{net['ours'] / net['torch']:.2f} x: {net['ours']:.0f}, {net['torch']:.0f} MB; the agent's {agent:.0f} MB"
            report.row("... beyond that before the model was built", text)
