"""Empty environments, and what is done in them. Each step is told as it begins, since some take minutes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TORCH = "torch==2.13.0"
"""The one that all tests run with (see the Makefile). It comes before anything that asks for torch."""
LIMIT = 1500.0
"""Seconds that a step may take."""


class Failed(Exception):
    """A step did not end with 0."""


def step(text: str, command: Sequence[str | Path], *, cwd: Path = ROOT, more: Mapping[str, str] | None = None) -> str:
    """Run ``command`` and return what it wrote. Raises Failed, with its last lines, if it does not end well."""
    print(f"{text} ...", flush=True)
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV", "FTLIB_"))}
    try:
        ended = subprocess.run(
            list(map(str, command)),
            cwd=cwd,
            env={**clean, **(more or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"{text}: it took more than {LIMIT:g} s") from None
    if ended.returncode:
        last = "\n".join(ended.stdout.splitlines()[-30:])
        raise Failed(f"{text}: ended with {ended.returncode}\n{last}")
    return ended.stdout


class Environment:
    """A virtual environment of its own, made anew."""

    def __init__(self, path: Path, python: str = sys.executable) -> None:
        """``python``: of which version."""
        self.path = path
        step(f"{path.name}: a new environment", [python, "-m", "venv", "--clear", path])

    def program(self, name: str) -> Path:
        """What was installed there under this name."""
        return self.path / "bin" / name

    def install(self, *what: str | Path) -> None:
        """By pip."""
        names = " ".join(Path(item).name if isinstance(item, Path) else item for item in what)
        pip = [self.program("python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        step(f"{self.path.name}: pip install {names}", [*pip, *what])

    def run(self, text: str, *command: str | Path, cwd: Path = ROOT, more: Mapping[str, str] | None = None) -> str:
        """Run a program of this environment."""
        program, *rest = command
        return step(f"{self.path.name}: {text}", [self.program(str(program)), *rest], cwd=cwd, more=more)

    def versions(self, *names: str) -> dict[str, str]:
        """Of distributions that are installed there; those that are not are left out."""
        look = (
            "import importlib.metadata as m, sys\n"
            "for name in sys.argv[1:]:\n"
            "    try: print(name, m.version(name))\n"
            "    except m.PackageNotFoundError: pass\n"
        )
        lines = self.run("versions", "python", "-c", look, *names).splitlines()
        return dict(line.split() for line in lines)
