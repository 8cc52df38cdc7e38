"""``make gpu``: all tests that need a GPU, and the benchmark of one, in under nine minutes; nothing at all where there is none.

    python -m tests.gpu
    python -m tests.gpu --rehearse       # on the CPU, in the GPU's place: whether all of this runs

Runs with the Python and the torch that are there. What they lack is taken from wheels in the folder GPU_WHEELS (see ``outfit``
and ``make gpu-wheels``). Each part has its own time. What has not begun by then is left out, and said so.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.gpu.outfit import VARIABLE, absent, outfitted

ROOT = Path(__file__).resolve().parents[2]
OUTFIT = ROOT / "out" / "gpu"
WHEELS = ROOT / ".gpu-wheels"
TESTS, BENCHMARK = 230.0, 270.0
"""Seconds of each part."""
AT_ONCE = 4
"""Tests that run side by side: their workers have one GPU together."""
GRACE = 15.0
"""Seconds that a part may take to end, once its time is over; after that, those until it is killed."""
MARKS = ("mark.gpu", "on_gpu")
"""What a file has in it that has tests for a GPU. No other one is collected: it may import what is not there."""


def missing() -> str:
    """Why there is no GPU; empty if there is one."""
    if importlib.util.find_spec("torch") is None:
        return f"{sys.executable} has no torch"
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    look = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    ended = subprocess.run([sys.executable, "-c", look], stderr=subprocess.DEVNULL, timeout=120, check=False)
    return "no CUDA device is visible to torch" if ended.returncode else ""


def files() -> list[str]:
    """Of tests that need a GPU."""
    found = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if any(mark in path.read_text() for mark in MARKS)]
    return [str(path.relative_to(ROOT)) for path in found]


def run(name: str, command: Sequence[str], seconds: float) -> bool:
    """Run a part, which keeps its time by itself; whether all was well. One that does not is asked to end, and then killed."""
    print(f"== {name}, {seconds:.0f} s at most ==", flush=True)
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    try:
        for number in (signal.SIGINT, signal.SIGKILL):
            try:
                return process.wait(seconds + GRACE if number is signal.SIGINT else GRACE) == 0
            except subprocess.TimeoutExpired:
                print(f"== {name}: not ended in time, {number.name} ==", flush=True)
                os.killpg(process.pid, number)
        process.wait()
        return False
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rehearse", action="store_true", help="on the CPU")
    options.add_argument("--tests", type=float, default=TESTS, help="seconds")
    options.add_argument("--benchmark", type=float, default=BENCHMARK, help="seconds")
    options.add_argument("--wheels", type=Path, default=Path(os.environ.get(VARIABLE) or WHEELS))
    args = options.parse_args()
    began = time.monotonic()
    if not args.rehearse and (why := missing()):
        print(f"not measured: no GPU ({why})")
        return 0
    wheels = sorted(args.wheels.glob("*.whl"))
    if lacking := absent(wheels):
        print(f"{sys.executable} lacks {', '.join(lacking)}, and {args.wheels} has no such wheels: make gpu-wheels")
        return 1
    python = str(outfitted(OUTFIT, wheels)) if absent() else sys.executable
    marks = "not gpu and not soak" if args.rehearse else "gpu and not soak"
    paths = ["tests/gpu"] if args.rehearse else files()
    # Warnings of packages that are not those which the project is tested with are no failures.
    pytest = ["-m", "pytest", "-rfEs", "-W", "default", "-p", "tests.gpu.deadline", f"--seconds={args.tests}", "-m", marks]
    pytest += ["-p", "tests.forks", f"--forks={AT_ONCE}", "--timeout=150", "-p", "no:cacheprovider", *paths]
    benchmark = ["-m", "benchmarks", "gpu", f"--seconds={args.benchmark}", *(["--rehearse"] if args.rehearse else [])]
    parts = {"tests": (pytest, args.tests), "benchmark": (benchmark, args.benchmark)}
    good = {name: run(name, [python, *command], seconds) for name, (command, seconds) in parts.items()}
    said = ", ".join(f"{name}: {'well' if well else 'FAILED'}" for name, well in good.items())
    print(f"== {said}; {time.monotonic() - began:.0f} s ==")
    return int(not all(good.values()))


if __name__ == "__main__":
    sys.exit(main())
