"""``make matrix``: the lowest versions that setup.cfg allows, the newest ones, and other Pythons where they are there.

    python -m tests.installed.matrix [ROW ...]          # lowest, newest, 3.12, 3.13: all of them by default

The first two run tests of all layers, with torch. The others run those that need no torch, which has no build for them on every
machine. Prints a table at the end, and writes its rows into ``docs/figures.md``; rows that were not run stay as they were.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.installed.environments import ROOT, TORCH, Environment, Failed

UV = "uv>=0.9"
SHOWN = ("torch", "aiohttp", "msgpack", "cryptography", "numpy", "click", "rich")
WITHOUT_TORCH = ("tests/protocol", "tests/consensus", "tests/transcripts")
MORE = ("tests/frameworks", "tests/ftlib/data", "tests/ftlib/calls/test_open_calls.py", "tests/launch/test_run.py")
WITH_TORCH = (*WITHOUT_TORCH, *MORE)
PROCESSES = ("tests/launch/test_run.py",)
"""Of these also the tests that start programs."""
SAID = ("passed", "skipped")
"""Words of pytest's last line that are added up; a failure ends the row."""
NOT_HERE = "no such Python here"
PAGE = ROOT / "docs" / "figures.md"
BEGIN, END = "<!-- matrix -->", "<!-- end -->"
HEAD = ("| row | Python | versions | result |", "| --- | --- | --- | --- |")
TESTS = ("pytest", "pytest-timeout", "hypothesis", "psutil", "greenlet", "redis")
"""What the tests need beside the package; always the newest, as users do not install it."""


@dataclass(frozen=True)
class Row:
    """What became of one environment."""

    name: str
    python: str
    versions: str
    result: str

    def as_line(self) -> str:
        """For a table in Markdown."""
        return f"| {self.name} | {self.python} | {self.versions} | {self.result} |"


def interpreter(version: str) -> str:
    """The program of this Python; empty if there is none. A shim that finds nothing behind it is none."""
    installed = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    programs = [*sorted(installed.glob(f"{version}.*/bin/python{version}"), reverse=True), shutil.which(f"python{version}")]
    for program in filter(None, programs):
        if subprocess.run([program, "--version"], capture_output=True, check=False, timeout=60).returncode == 0:
            return str(program)
    return ""


def tests(environment: Environment, paths: Sequence[str]) -> str:
    """Run those of each path, a step of its own; returns how many passed, and what else became of them."""
    counts, began = Counter[str](), time.monotonic()
    for path in paths:
        marks = "not soak" if path in PROCESSES else "not process and not soak"
        command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marks, path]
        told = environment.run(f"tests of {path}", "python", *command).splitlines()[-1]
        counts.update({word: int(count) for count, word in re.findall(r"(\d+) ([a-z]+)", told) if word in SAID})
    verdict = ", ".join(f"{counts[word]} {word}" for word in SAID if counts[word])
    return f"{verdict} in {(time.monotonic() - began) / 60:.0f} minutes"


def lowest(place: Path) -> Row:
    """What ``setup.cfg`` names as the least, with what that needs in its turn; tests' own tools as they are."""
    environment = Environment(place / "lowest")
    environment.install(TORCH, UV)
    python = environment.program("python")
    resolve = ["pip", "install", "--python", python, "--resolution", "lowest-direct", "--quiet", "."]
    environment.run("the lowest versions", "uv", *resolve)
    return _with_torch("lowest", environment)


def newest(place: Path) -> Row:
    """What an index offers today."""
    environment = Environment(place / "newest")
    environment.install(TORCH)
    environment.install(ROOT)
    return _with_torch("newest", environment)


def _with_torch(name: str, environment: Environment) -> Row:
    shown = environment.versions(*SHOWN)
    environment.install(*TESTS)
    return Row(name, _python(environment), _told(shown), tests(environment, WITH_TORCH))


def other(version: str, place: Path) -> Row:
    """Another Python, without torch."""
    program = interpreter(version)
    if not program:
        return Row(version, version, "-", NOT_HERE)
    environment = Environment(place / version, program)
    needed = [line for line in _requirements() if not line.startswith("torch")]
    environment.install(*needed, *TESTS)
    shown = environment.versions(*SHOWN)
    return Row(version, _python(environment), _told(shown), tests(environment, WITHOUT_TORCH))


def _requirements() -> list[str]:
    import configparser

    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    return [line for line in setup["options"]["install_requires"].splitlines() if line and not line.startswith("#")]


def _python(environment: Environment) -> str:
    return environment.run("its Python", "python", "--version").split()[1]


def _told(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def written(page: str, rows: Sequence[Row]) -> str:
    """``page`` with the new rows in its table."""
    begin, end = page.index(BEGIN) + len(BEGIN), page.index(END, page.index(BEGIN))
    lines = dict(_named(line) for line in page[begin:end].splitlines()[2:])
    lines |= {row.name: row.as_line() for row in rows}
    there = [lines[name] for name in ROWS if name in lines]
    return "\n".join([page[:begin], *HEAD, *there, page[end:]])


def _named(line: str) -> tuple[str, str]:
    return line.split("|")[1].strip(), line


ROWS: dict[str, Callable[[Path], Row]] = {
    "lowest": lowest,
    "newest": newest,
    "3.12": lambda place: other("3.12", place),
    "3.13": lambda place: other("3.13", place),
}


def main(names: Sequence[str]) -> int:
    """0 if no row failed."""
    unknown = set(names) - set(ROWS)
    if unknown:
        print(f"there is no row {', '.join(sorted(unknown))}: choose of {', '.join(ROWS)}")
        return 2
    rows, failed = [], 0
    with tempfile.TemporaryDirectory(prefix="ftlib-matrix-") as place:
        for name in names or ROWS:
            began = time.monotonic()
            try:
                rows.append(ROWS[name](Path(place)))
            except Failed as error:
                failed += 1
                print(f"FAILED {error}")
                rows.append(Row(name, "", "", "FAILED"))
            print(f"{name} took {time.monotonic() - began:.0f} s", flush=True)
    print("\n".join([*HEAD, *(row.as_line() for row in rows)]))
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
