"""Delayed fragments over a slow link: a step of a round beside one of the loop alone."""

from __future__ import annotations

import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.report import Report
from ftlib import DiLoCo, FTLib
from ftlib.common.processes import die_with_parent
from tests.harness.network import Network
from tests.harness.nursery import ROOT, Stuck

BAR = 1.03
SHARE = 0.8
"""Of the delay, what a fragment's way over the link takes."""
STEP = 0.010
"""Seconds of an inner step, in which an accelerator would compute."""
EVERY, FRAGMENTS, DELAY = 60, 2, 20
PARAMETERS = 1_000_000
ROUNDS = 12
"""Syncs that are measured, after as many as give each fragment two turns."""
PORT = 7411
LIMIT = 180.0


def link(_args: Namespace, report: Report) -> None:
    """With the delay, and without."""
    nbytes = PARAMETERS * 4 / FRAGMENTS
    bits = 8 * nbytes / (SHARE * DELAY * STEP)
    for delay in (DELAY, 0):
        found = _run(bits, delay)
        alone = statistics.median(line["alone"] for line in found)
        rounds = [seconds for line in found for seconds in line["rounds"]]
        ratio = statistics.median(rounds) / alone
        early = min(line["early"] for line in found)
        name = f"link: {bits / 1e6:.0f} Mbit/s, {nbytes / 1e6:.0f} MB a fragment, delay {delay}"
        text = (
            f"{ratio:.3f} [{min(rounds) / alone:.3f} - {max(rounds) / alone:.3f}] of {1e3 * alone:.2f} ms; {early} sent early"
        )
        if delay:
            report.row(name, text, bar=f"<= {BAR}", good=ratio <= BAR)
        else:
            report.row(name, text)


def _run(bits: float, delay: int) -> list[dict[str, Any]]:
    """The lines of both."""
    parent, job = os.getpid(), secrets.token_hex(16)
    clean = {key: value for key, value in os.environ.items() if not key.startswith("FTLIB_")}
    with Network(2) as hosts, tempfile.TemporaryDirectory(prefix="ftlib-link-") as directory:
        processes = []
        try:
            for index, host in enumerate(hosts):
                host.run(*f"tc qdisc add dev eth0 root tbf rate {int(bits)}bit burst 64kb latency 500ms".split())
                own = {
                    "FTLIB_JOB": "benchmark-link",
                    "FTLIB_SECRET": job,
                    "FTLIB_INTRODUCERS": f"{hosts[0].v4}:{PORT}",
                    "FTLIB_INITIAL_SIZE": "2",
                    "FTLIB_BIND": f"{host.v4}:{PORT}",
                    "OMP_NUM_THREADS": "1",
                    "PYTHONPATH": str(ROOT),
                }
                output = Path(directory) / f"{index}.out"
                with output.open("wb") as file:
                    processes.append(
                        subprocess.Popen(
                            [*host.prefix, sys.executable, "-m", "benchmarks.local_sgd.link", str(delay)],
                            env={**clean, **own},
                            stdin=subprocess.DEVNULL,
                            stdout=file,
                            stderr=subprocess.STDOUT,
                            preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509
                        )
                    )
            until = time.monotonic() + LIMIT
            while any(process.poll() is None for process in processes):
                if time.monotonic() > until or any(process.poll() for process in processes):
                    said = "\n".join(path.read_text(errors="replace")[-1500:] for path in Path(directory).iterdir())
                    raise Stuck(f"the workers did not end well: {said}")
                time.sleep(0.05)
            lines = [line for path in Path(directory).iterdir() for line in path.read_text().splitlines()]
            return [json.loads(line) for line in lines if line.startswith("{")]
        finally:
            for process in processes:
                process.kill()
                process.wait()


def worker(delay: int) -> None:
    """One of the two: the loop alone, then its rounds."""
    torch.set_num_threads(1)
    side = PARAMETERS // (2 * FRAGMENTS)
    model = nn.ParameterList(torch.zeros(side) for _ in range(2 * FRAGMENTS))
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    for parameter in model:
        parameter.grad = torch.ones_like(parameter)

    def step() -> None:
        time.sleep(STEP)  # as long as a device would compute
        inner.step()

    with FTLib.init() as ft:
        diloco = DiLoCo(
            ft, model, inner=inner, outer=lambda weights: torch.optim.SGD(weights, lr=0.7, momentum=0.9, nesterov=True),
            sync_every=EVERY, fragments=FRAGMENTS, delay=delay,
        )  # fmt: skip
        ft.register_state(model=diloco)
        ft.barrier()
        began = time.perf_counter()
        for _ in range(EVERY):
            step()
        alone = (time.perf_counter() - began) / EVERY
        rounds, early, seen = [], 0, 0
        with diloco:
            began, syncs = time.perf_counter(), 0
            while len(rounds) < 2 * FRAGMENTS + ROUNDS:
                step()
                seen = seen or int(_early(diloco))
                if diloco.syncs > syncs:
                    now = time.perf_counter()
                    rounds.append((now - began) / (EVERY // FRAGMENTS))
                    began, syncs, early, seen = now, diloco.syncs, early + seen, 0
        print(json.dumps({"alone": alone, "rounds": rounds[2 * FRAGMENTS :], "early": early}), flush=True)
        ft.barrier()


def _early(diloco: DiLoCo) -> bool:
    """Whether a sync is under way, and was entered before its end."""
    average = diloco._rounds._average  # noqa: SLF001 - nothing else tells
    return average is not None and average._opened  # noqa: SLF001


if __name__ == "__main__":
    worker(int(sys.argv[1]))
