"""What a call does on the device beside the reduction: gather and scale, look for inf and nan, divide and deliver."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

import torch

from benchmarks.gpu.stand import STANDS, Bench, Stand
from ftlib.common.devices import device_at
from ftlib.core.calls.call import Call, Kind, Results
from ftlib.core.tensors.device_copies import look
from ftlib.core.tensors.layout import lay_out
from ftlib.core.tensors.staging import Staging
from tests.harness.nursery import ROOT

ELEMENTS = 25 * 10**6 // 4
LIMITS = {60: 100e-6, 1000: 250e-6}
"""Seconds, by the number of tensors."""
ROWS = {
    f"fill, look for inf and nan, deliver 25 MB in {pieces} tensors: on the device": f"<= {limit * 1e6:.0f} us"
    for pieces, limit in LIMITS.items()
}
ROUNDS = 50
BUCKET = 8 << 20
MEMBERS = 2


def measure(bench: Bench) -> None:
    """Rows, by a process of its own."""
    command = [sys.executable, "-m", "benchmarks", "gpu.staging", "--stand", bench.stand.name]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=bench.left + 30, check=False)
    assert ended.returncode == 0, ended.stderr[-1500:]
    for line in filter(None, ended.stdout.splitlines()):
        told = json.loads(line)
        middle, limit = statistics.median(told["device"]), LIMITS[told["pieces"]]
        good = middle <= limit if bench.stand.real else None
        what = f"fill, look for inf and nan, deliver 25 MB in {told['pieces']} tensors"
        bench.report.row(f"{what}: on the device", microseconds(told["device"]), bar=f"<= {limit * 1e6:.0f} us", good=good)
        bench.report.row("... of the host", microseconds(told["host"]))


def microseconds(seconds: list[float]) -> str:
    """``median [least - most]``."""
    values = sorted(value * 1e6 for value in seconds)
    return f"{statistics.median(values):.0f} us [{values[0]:.0f} - {values[-1]:.0f}]"


def main() -> int:
    """A line of JSON for each number of tensors."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--stand", choices=STANDS, required=True)
    args = options.parse_args()
    torch.set_num_threads(1)
    for pieces in LIMITS:
        device, host = measured(STANDS[args.stand], pieces)
        print(json.dumps({"pieces": pieces, "device": device, "host": host}), flush=True)
    return 0


def measured(stand: Stand, pieces: int) -> tuple[list[float], list[float]]:
    """Seconds on the device, from the first operation to the last one, and of the thread that enqueues them."""
    tensors = [part.clone().to(stand.device) for part in torch.ones(ELEMENTS).tensor_split(pieces)]
    specs = [(tensor.dtype, tuple(tensor.shape)) for tensor in tensors]
    layout = lay_out("average", specs, "SUM", BUCKET, [stand.place] * pieces)
    staging = Staging(layout, in_flight=4)
    device, host, slots = [], [], []
    for _ in range(ROUNDS):
        staging.turn(slots)
        slots = [staging.slot(number, 0) for number, bucket in enumerate(layout.buckets) if bucket.place]
        call = Call(Kind.AVERAGE, layout, tensors, divide=True, veto=True)
        stand.synchronize()
        # A kernel before them: else the device waits for the host, and the host's time is measured.
        if stand.real:
            torch.cuda._sleep(20_000_000)  # noqa: SLF001 - some 10 ms
        before, after = _mark(stand), None
        began = time.thread_time()
        for slot in slots:
            call.fill(slot, row=device_at(stand.place).empty(slot.bucket.count, slot.bucket.dtype))
        look(stand.place, slots)
        for slot in slots:
            slot.reduced()  # as if the accelerator had done it
        call.deliver(Results(1, layout, slots, float(MEMBERS)))
        host.append(time.thread_time() - began)
        after = _mark(stand)
        stand.synchronize()
        device.append(_between(before, after))
        assert all(slot.finite for slot in slots)
        for tensor in tensors:
            tensor.fill_(1.0)
    return device[5:], host[5:]


def _mark(stand: Stand) -> torch.cuda.Event | float:
    if not stand.real:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _between(before: torch.cuda.Event | float, after: torch.cuda.Event | float) -> float:
    if isinstance(before, float) or isinstance(after, float):
        assert isinstance(before, float) and isinstance(after, float)
        return after - before
    return float(before.elapsed_time(after)) / 1e3


if __name__ == "__main__":
    sys.exit(main())
