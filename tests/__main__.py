"""``make test``: all tests but those that take minutes, in three parts. Each runs and reports whatever became of the others.

    python -m tests [--minutes N] [PART ...]

What is *simulated* computes and watches no clock, so it runs all the time, at the lowest priority: it takes what the other
parts leave over. Those use *threads*, and then *processes*, with time-outs of real seconds: more of them at once than there are
processors, as they mostly wait for each other; but not many more, as workers train on while a test waits. The last lines say
what failed, and what could not be tested here.

``--minutes``: where the machine is too slow for all of them in so many minutes, the tests that have not begun by then are left
out, and counted. Other ones are, with each commit. Those that have begun have 100 seconds more: then they are ended, and the
last lines name them. They hang, and have failed; but for the simulated ones, which may just have had no processor.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import math
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from ftlib.common.processes import die_with_parent
from tests.forks import LATE, STARVED

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "out" / "tests"
CORES = len(os.sched_getaffinity(0))
GRACE = 100.0
"""Seconds that the tests that begin last may take, if there is a time by which they have to begin."""
SIMULATED = ("tests/simulation", "tests/protocol", "tests/transcripts")


@dataclass(frozen=True)
class Part:
    """Some of the tests, run by one pytest in several processes (see ``forks``)."""

    name: str
    marks: str
    workers: int
    paths: tuple[str, ...] = ("tests",)
    options: tuple[str, ...] = ()
    beside: bool = False
    """At the lowest priority beside all others; its output is shown once it has ended."""
    share: float = 1.0
    """Of the time of all parts that run one after the other, as measured; in any unit."""

    @property
    def report(self) -> Path:
        """What became of each test (JUnit)."""
        return RESULTS / f"{self.name}.xml"

    @property
    def log(self) -> Path:
        """Its output, where it runs beside others."""
        return RESULTS / f"{self.name}.log"

    def command(self, until: float) -> list[str]:
        """What runs it. ``until``: when the last test may begin, in seconds since 1970; infinite: they all do."""
        pytest = [sys.executable, "-m", "pytest", "-rfE", "-p", "tests.forks", f"--forks={self.workers}", "-m", self.marks]
        report = [f"--junitxml={self.report}", "--override-ini=junit_family=xunit1"]  # which names the files
        limits = [f"--until={until}", f"--end={until + GRACE}", f"--turn={_turn()}"] if until < math.inf else []
        if self.beside:
            limits.append("--starved")
        return [*pytest, *report, *limits, *self.options, *self.paths]


OTHERS = tuple(f"--ignore={path}" for path in SIMULATED)
"""Where no other part has tests: what is not collected is not imported either."""

PARTS = (
    Part("simulated", "not process and not soak", CORES, SIMULATED, ("--timeout=1200",), beside=True),
    Part("threads", "not process and not soak", 2 * CORES, options=OTHERS, share=45),
    # The longest begin first (see ``conftest``): what takes long must not be what begins last.
    Part("processes", "process and not soak", CORES + 1, options=OTHERS, share=55),
)


class Summary:
    """What became of all parts."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed: list[str] = []
        self.skipped = Counter[str]()
        """Tests by the reason."""

    def take(self, part: Part, code: int) -> None:
        """Count what ``part`` reported. A pytest that ended in another way than by a verdict is a failure of its own.

        So is a part that had no time for any of its tests: nothing was tested then.
        """
        passed, failed, late = self.passed, len(self.failed), self._late
        if part.report.exists():
            for case in ET.parse(part.report).iter("testcase"):
                self._count(case)
        if code and len(self.failed) == failed:
            self.failed.append(f"the part {part.name!r}: pytest ended with exit code {code}")
        elif self._late > late and (self.passed, len(self.failed)) == (passed, failed):
            self.failed.append(f"the part {part.name!r}: the time was over before any of its tests had ended")

    @property
    def _late(self) -> int:
        """Tests for which there was no time."""
        return self.skipped[LATE] + self.skipped[STARVED]

    def _count(self, case: ET.Element) -> None:
        found = {item.tag: item for item in case}
        if found.keys() & {"failure", "error"}:
            file, name = case.get("file", ""), case.get("name", "")
            group = case.get("classname", "").removeprefix(file.removesuffix(".py").replace("/", ".")).strip(".")
            self.failed.append("::".join(filter(None, (file, group, name))))
        elif "skipped" in found:
            self.skipped[found["skipped"].get("message", "")] += 1
        else:
            self.passed += 1

    def unexpected(self, allowed: Iterable[str] | None) -> list[str]:
        """Packages that are missing although everything is installed but those that are ``allowed`` to be (None: any)."""
        wanted = {package for reason in self.skipped for package in _packages(reason)}
        return [] if allowed is None else sorted(wanted - set(allowed))

    def tell(self, seconds: float) -> None:
        """The last lines."""
        counts = [f"{self.passed} passed", f"{len(self.failed)} failed", f"{self.skipped.total()} skipped"]
        print(f"\n{', '.join(counts)} in {seconds / 60:.1f} minutes; reports are in {os.path.relpath(RESULTS)}")
        if self.skipped.total():
            print("Not tested here:")
            for reason, count in (+self.skipped).most_common():
                print(f"  {count:4} {'test ' if count == 1 else 'tests'}  {reason}")
        for name in self.failed:
            print(f"FAILED {name}")


def _packages(reason: str) -> list[str]:
    """What to install, as the reason of a skip says it."""
    found = re.search(r"apt-get install ([a-z0-9 -]+)", reason)
    return found[1].split() if found else []


def _turn() -> int:
    """A number that each commit has another one of."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return int(head.stdout.strip() or "0", 16)


def _start(part: Part, until: float) -> subprocess.Popen[bytes]:
    part.report.unlink(missing_ok=True)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment.setdefault("OMP_NUM_THREADS", "1")  # tests run beside each other: more threads each would fight over the cores
    dies = functools.partial(die_with_parent, os.getpid())
    if not part.beside:
        return subprocess.Popen(part.command(until), cwd=ROOT, env=environment, preexec_fn=dies)  # noqa: PLW1509 - no thread here

    def rests() -> None:
        dies()
        _step_back()

    with part.log.open("wb") as log:
        return subprocess.Popen(part.command(until), cwd=ROOT, env=environment, stdout=log, stderr=log, preexec_fn=rests)  # noqa: PLW1509


def _step_back() -> None:
    """From here on this process and its children run when nobody else wants the processor, where the system has such a class.

    With a low priority alone they would still get a tenth of it, and delay tests beside them that watch a clock. Where the
    kernel shares the processor out by sessions first (autogroup), a class counts only within one: so they get one of their own,
    which has the lowest priority.
    """
    os.setsid()
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text("19")
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(19)


def main(arguments: Sequence[str]) -> int:
    """Run these parts, by default all; 0 if nothing failed."""
    parser = argparse.ArgumentParser(prog="python -m tests")
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--minutes", type=float, default=math.inf)
    given = parser.parse_args(arguments)
    names = [part.name for part in PARTS]
    if not set(given.parts) <= set(names):
        parser.error(f"the parts are {', '.join(names)}")
    began, until = time.monotonic(), time.time() + 60 * given.minutes
    RESULTS.mkdir(parents=True, exist_ok=True)
    parts = [part for part in PARTS if not given.parts or part.name in given.parts]
    codes: dict[Part, int] = {}
    beside = {part: _start(part, until) for part in parts if part.beside}
    turns = [part for part in parts if not part.beside]
    for index, part in enumerate(turns):
        print(f"== {part.name} ==", flush=True)
        share = part.share / sum(each.share for each in turns[index:])
        now = time.time()
        codes[part] = _start(part, now + share * (until - now)).wait()
    for part, process in beside.items():
        print(f"== {part.name} ==", flush=True)
        codes[part] = process.wait()
        print(part.log.read_text(errors="replace"), flush=True)
    summary = Summary()
    for part in parts:
        summary.take(part, codes[part])
    allowed = os.environ.get("CI_WITHOUT")
    missing = summary.unexpected(None if allowed is None else allowed.split())
    summary.failed += [f"{package} should be installed: CI_WITHOUT does not name it (see .ci/run)" for package in missing]
    summary.tell(time.monotonic() - began)
    return 1 if summary.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
