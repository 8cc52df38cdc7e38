"""What compression of averages saves, costs, and does to a model that is trained with it.

    python -m benchmarks compression [--parts wire codes training] [--rounds 7] [--seeds 5] [--steps 300]

wire      Two workers on two hosts (network namespaces) average the gradients of ten layers of 1000 x 1000: bytes that both
          interfaces have sent in a call, and the time of a call over a link of 402 Mbit/s each way (tc tbf). In each round
          every compression takes its turn, in random order; the ratios are to the float32 calls of the same round.
codes     Encoding and decoding of 25 MB in blocks, one thread.
training  A small transformer learns Python's standard library, by two workers, from so many seeds: the loss on text that it has
          not seen. Deviations are those of float32's losses over the seeds. All kinds see the same data and begin alike.

``wire`` needs root, iproute2 and a kernel with tbf. The bars: bytes 0.51 (bf16), 0.27 (int8), 0.03 (PowerSGD) of float32's;
time 0.55, 0.33, 0.10; int8 14 and 7 ms; bf16 and int8 with feedback within two deviations.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import secrets
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.report import Report, parser, spread
from ftlib import Compression, FTLib, PowerSGD
from ftlib.core.tensors.compression.blocks import BLOCK, Blocks, Coder, Float8, Int8
from tests.harness.namespace import enter
from tests.harness.network import Network

PARTS = ("wire", "codes", "training")
RATE = 402
"""Mbit/s."""
LAYERS, WIDTH = 10, 1000
CODED = 6_250_000
"""Float32 values: 25 MB."""
AT_A_TIME = 512
"""Blocks."""
KINDS: dict[str, str | Compression | None] = {
    "float32": None,
    "bf16": "bf16",
    "fp16": "fp16",
    "int8": "int8",
    "fp8": "fp8",
    "PowerSGD(4)": PowerSGD(rank=4),
}
TRAINED: dict[str, str | Compression | None] = {
    "float32": None,
    "bf16": "bf16",
    "int8": "int8",
    "int8 without feedback": Int8(feedback=False),
    "PowerSGD(4)": PowerSGD(rank=4),
}
BYTES = {"bf16": 0.51, "int8": 0.27, "PowerSGD(4)": 0.03}
TIMES = {"bf16": 0.55, "int8": 0.33, "PowerSGD(4)": 0.10}
CODES = {"int8": (14.0, 7.0)}
WITHIN = ("bf16", "int8")
LIMIT = 1800.0
"""Seconds for everything."""


# --- the workers -----------------------------------------------------------------------------------------------------------


def tell(**told: Any) -> None:
    print(json.dumps(told), flush=True)


def sent() -> int:
    """Bytes that this host's interface has sent."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "eth0":
            return int(numbers.split()[8])
    raise AssertionError("there is no eth0")


def average_all(ft: FTLib, rounds: int, calls: int, kinds: list[str]) -> None:
    """For each round and kind a line: seconds of the median call, and bytes sent a call. A line on the input: go on."""
    torch.manual_seed(ft.rank)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter) * 1e-3
    kept = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    turns = random.Random(1)
    for number in range(rounds + 1):  # the first one goes without a limit, and warms up
        ft.barrier()
        if number == 1:
            tell(warm=True)
            sys.stdin.readline()
        for name in turns.sample(kinds, len(kinds)):
            times, before = [], 0
            for call in range(calls + 1):
                for parameter, gradient in zip(model.parameters(), kept, strict=True):
                    parameter.grad.copy_(gradient)  # type: ignore[union-attr]
                ft.barrier()
                if call == 1:  # the first call of another layout begins with a prelude
                    before = sent()
                began = time.perf_counter()
                assert ft.allreduce_average(model, compression=KINDS[name])
                if call:
                    times.append(time.perf_counter() - began)
            time.sleep(0.3 if number else 0.0)  # until what the link still holds is out
            tell(kind=name, round=number, seconds=statistics.median(times), sent=(sent() - before) / calls)


class Writer(nn.Module):
    """Guesses each next character."""

    def __init__(self, width: int = 64, context: int = 48, layers: int = 2) -> None:
        super().__init__()
        self.character, self.place = nn.Embedding(128, width), nn.Embedding(context, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.guess = nn.Linear(width, 128)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(context), persistent=False)

    def forward(self, page: torch.Tensor) -> torch.Tensor:
        x = self.character(page) + self.place(torch.arange(page.shape[1]))
        guessed: torch.Tensor = self.guess(self.layers(x, mask=self.mask, is_causal=True))
        return guessed


def read_book(characters: int = 1_500_000) -> torch.Tensor:
    """ASCII text; whatever else is one character more."""
    text = ""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_text(encoding="utf-8", errors="replace")
        if len(text) >= characters:
            break
    return torch.tensor([min(ord(character), 127) for character in text[:characters]])


def learn(ft: FTLib, book: torch.Tensor, kind: str, seed: int, steps: int, batch: int = 24, context: int = 48) -> float:
    """Train one model; its loss on the last tenth of the book."""
    torch.manual_seed(seed)
    model = Writer(context=context)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 50, 0.55 + 0.45 * math.cos(math.pi * step / steps))
    )
    pages = book[: len(book) // context * context].view(-1, context)
    seen = len(pages) * 9 // 10
    draw = torch.Generator().manual_seed(1000 * seed + ft.rank)

    def loss_of(rows: torch.Tensor) -> torch.Tensor:
        return cross_entropy(model(rows)[:, :-1].reshape(-1, 128), rows[:, 1:].reshape(-1))

    for _ in range(steps):
        optimizer.zero_grad(set_to_none=False)
        loss_of(pages[torch.randint(seen, (batch,), generator=draw)]).backward()
        assert ft.allreduce_average(model, compression=TRAINED[kind])
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    with torch.no_grad():
        return statistics.mean(loss_of(rows).item() for rows in pages[seen : seen + 1024].split(256))


def learn_all(ft: FTLib, seeds: int, steps: int) -> None:
    book = read_book()
    for seed in range(seeds):
        for kind in TRAINED:
            tell(kind=kind, seed=seed, loss=learn(ft, book, kind, seed, steps))


def work(part: str, address: str, introducer: str, secret: str, args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    settings = {"introducers": [introducer], "initial_size": 2, "bind": address, "secret": secret, "job": "compression"}
    with FTLib.init(config={}, **settings) as ft:
        ft.barrier()
        if part == "wire":
            average_all(ft, args.rounds, args.calls, args.kinds)
        else:
            learn_all(ft, args.seeds, args.steps)


# --- this process ----------------------------------------------------------------------------------------------------------


@contextmanager
def workers(part: str, places: list[tuple[str, str]], args: argparse.Namespace) -> Iterator[list[subprocess.Popen[str]]]:
    """One in each namespace (none if its name is empty), at an address."""
    secret, introducer = secrets.token_hex(16), places[0][1]
    numbers = [f"--{name}={getattr(args, name)}" for name in ("rounds", "calls", "seeds", "steps")]
    found = []
    for namespace, address in places:
        command = [sys.executable, "-m", "benchmarks", "compression", *numbers]
        command += ["--kinds", *args.kinds, "--worker", part, namespace, address, introducer, secret]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        found.append(subprocess.Popen(command, text=True, env=environment, **pipes))  # type: ignore[call-overload]
    try:
        yield found
        for worker in found:
            worker.wait(LIMIT)
    finally:
        for worker in found:
            worker.kill()
            worker.wait()


def read(worker: subprocess.Popen[str]) -> dict[str, Any]:
    assert worker.stdout is not None
    line = worker.stdout.readline()
    assert line, "a worker has ended"
    told: dict[str, Any] = json.loads(line)
    return told


def measure_wire(report: Report, args: argparse.Namespace) -> None:
    times: dict[str, list[float]] = {name: [] for name in args.kinds}
    bytes_sent: dict[str, list[float]] = {name: [] for name in args.kinds}
    with Network(2) as hosts, workers("wire", [(host.name, f"{host.v4}:7411") for host in hosts], args) as found:
        while not any("warm" in told for told in list(map(read, found))):
            pass
        for host in hosts:
            host.run(*f"tc qdisc add dev eth0 root tbf rate {RATE}mbit burst 128kb latency 500ms".split())
        for worker in found:
            assert worker.stdin is not None
            worker.stdin.write("\n")
            worker.stdin.flush()
        for number in range(args.rounds * len(args.kinds)):
            told = [read(worker) for worker in found]
            times[told[0]["kind"]].append(max(each["seconds"] for each in told))
            bytes_sent[told[0]["kind"]].append(sum(each["sent"] for each in told))
            report.say(f"wire: {number + 1} of {args.rounds * len(args.kinds)}")
    for name in args.kinds:
        report.row(f"{name}: sent by both, a call", f"{statistics.median(bytes_sent[name]) / 1e6:.2f} MB")
        report.row(f"{name}: a call over {RATE} Mbit/s", spread(times[name]))
    for title, values, bars in (("bytes", bytes_sent, BYTES), ("time", times, TIMES)):
        for name in args.kinds:
            if name == "float32":
                continue
            ratios = [one / whole for one, whole in zip(values[name], values["float32"], strict=True)]
            text = f"{statistics.median(ratios):.4f} [{min(ratios):.4f} - {max(ratios):.4f}]"
            bar = bars.get(name)
            good = None if bar is None else statistics.median(ratios) <= bar
            report.row(f"{title}, {name} / float32", text, bar="" if bar is None else f"<= {bar}", good=good)


def measure_codes(report: Report, repetitions: int) -> None:
    torch.set_num_threads(1)
    data = torch.randn(CODED) * 1e-3
    row, lost = torch.empty(-(-CODED // BLOCK) * (BLOCK + 4), dtype=torch.uint8), torch.empty(CODED)
    kinds: list[Blocks] = [Int8(), Float8()]
    for kind in kinds:
        coder = Coder(kind, torch.empty(AT_A_TIME * BLOCK), torch.empty(AT_A_TIME))
        ways = {
            "encode": lambda coder=coder: coder.encode(data, row, None),
            "encode, with what is lost": lambda coder=coder: coder.encode(data, row, lost),
            "decode": lambda coder=coder: coder.decode(row, lost, add=False),
        }
        for way, run in ways.items():
            times = []
            for _ in range(repetitions):
                began = time.perf_counter()
                run()
                times.append(time.perf_counter() - began)
            what = f"{kind.name}: {way} 25 MB"
            bar = dict(zip(("encode", "decode"), CODES.get(kind.name, ()), strict=False)).get(way)
            if bar is None:
                report.row(what, spread(times))
            else:
                report.bar(what, times, bar / 1e3, unit="ms")


def measure_training(report: Report, args: argparse.Namespace) -> None:
    losses: dict[str, list[float]] = {name: [] for name in TRAINED}
    places = [("", "127.0.0.1:7421"), ("", "127.0.0.1:7422")]
    with workers("training", places, args) as found:
        for number in range(args.seeds * len(TRAINED)):
            told = [read(worker) for worker in found]
            assert told[0] == told[1], "two members have different models"
            losses[told[0]["kind"]].append(told[0]["loss"])
            report.say(f"training: {number + 1} of {args.seeds * len(TRAINED)}")
    mean = statistics.mean(losses["float32"])
    deviation = statistics.stdev(losses["float32"]) if args.seeds > 1 else math.nan
    for name, values in losses.items():
        off = (statistics.mean(values) - mean) / deviation
        spread_of = statistics.stdev(values) if len(values) > 1 else math.nan
        text = f"{statistics.mean(values):.4f} +- {spread_of:.4f}, off by {off:+.2f} deviations"
        good = abs(off) <= 2 if name in WITHIN else None
        report.row(f"loss, {name}", text, bar="" if good is None else "within 2", good=good)


def main() -> int:
    options = parser(__doc__, agent=False, rounds=7, calls=3, seeds=5, steps=300)
    options.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    options.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="of the wire; float32 among them")
    options.add_argument("--worker", nargs=5, help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.worker:
        part, namespace, address, introducer, secret = args.worker
        if namespace:
            enter(namespace)
        work(part, address, introducer, secret, args)
        return 0
    if "float32" not in args.kinds:
        options.error("float32 has to be among the kinds: the others are compared with it")
    seconds = {"wire": 20 + args.rounds * 10.0, "codes": 3.0, "training": 10 + args.seeds * args.steps * len(TRAINED) * 0.04}
    report = Report("Compression of averages", sum(seconds[part] for part in args.parts))
    if "wire" in args.parts:
        measure_wire(report, args)
    if "codes" in args.parts:
        measure_codes(report, 30)
    if "training" in args.parts:
        measure_training(report, args)
    return report.finish()
