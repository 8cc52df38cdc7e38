"""``make dist``: sdist and wheel in ``dist/``, checked, and each used in an empty environment.

    python -m tests.installed.dist

In each environment ``ftlib --help`` and ``--version`` answer, and ``ftlib run`` trains with one worker.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from tests.installed.environments import ROOT, TORCH, Environment, Failed

DIST = ROOT / "dist"
TOOLS = ("build==1.6.1", "twine==7.0.0", "check-wheel-contents==0.6.3")

JOB = """
import torch
from ftlib import FTLib, Status

torch.manual_seed(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with FTLib.init() as ft:
    ft.register_state(model=model, optimizer=optimizer)
    for _ in range(20):
        model(torch.ones(2, 4)).square().sum().backward()
        assert ft.allreduce_average(model) is Status.NO_NEED
        optimizer.step()
        optimizer.zero_grad()
    print(f"trained {ft.step} steps with {ft.size} worker")
"""
"""A whole job of one worker."""


def build(tools: Environment) -> list[Path]:
    """The wheel and the sdist, checked. A folder ``build/`` would put files into the wheel that are no longer there."""
    for left in (DIST, ROOT / "build"):
        shutil.rmtree(left, ignore_errors=True)
    tools.run("build sdist and wheel", "python", "-m", "build", "--outdir", DIST)
    files = sorted(DIST.iterdir(), key=lambda path: path.suffix == ".gz")
    tools.run("twine check --strict", "twine", "check", "--strict", *files)
    tools.run("check-wheel-contents", "check-wheel-contents", *(path for path in files if path.suffix == ".whl"))
    return files


def used(file: Path, place: Path) -> None:
    """Install ``file`` into an empty environment and use it. Raises Failed if that does not work."""
    kind = "wheel" if file.suffix == ".whl" else "sdist"
    environment = Environment(place / kind)
    environment.install(TORCH)
    environment.install(file)
    said = environment.run("ftlib --help", "ftlib", "--help", cwd=place)
    if "Usage: ftlib" not in said:
        raise Failed(f"{kind}: ftlib --help says {said!r}")
    print(environment.run("ftlib --version", "ftlib", "--version", cwd=place).strip())
    script = place / "job.py"
    script.write_text(JOB, encoding="utf-8")
    said = environment.run("a job of one worker", "ftlib", "run", "-n", "1", script, cwd=place)
    if "trained 20 steps with 1 worker" not in said:
        raise Failed(f"{kind}: the job says {said!r}")


def main() -> int:
    """0 if both are as they should be."""
    with tempfile.TemporaryDirectory(prefix="ftlib-dist-") as name:
        place = Path(name)
        try:
            tools = Environment(place / "tools")
            tools.install(*TOOLS)
            files = build(tools)
            for file in files:
                used(file, place)
        except Failed as failed:
            print(f"FAILED {failed}")
            return 1
        finally:
            shutil.rmtree(ROOT / "build", ignore_errors=True)
    print("\n".join(f"{path.relative_to(ROOT)}  {path.stat().st_size / 1e3:.0f} kB" for path in files))
    return 0


if __name__ == "__main__":
    sys.exit(main())
