"""torchft's own train_ddp.py and train_diloco.py on ftlib.torchft, with only their import lines changed, through a kill.

    python -m benchmarks torchft_programs PATH
    python -m benchmarks torchft_programs PATH --only train_ddp

PATH: a checkout of https://github.com/pytorch/torchft, or its git directory.

Each is run by ``ftlib run -n 3``. Once all three replicas commit together, one is killed by SIGKILL, ``--kills`` times; the
launcher starts it anew. The usual step is the median time between two commits of one replica before that; the longest one after
a kill is the survivors' longest from the kill on, for two seconds at least. A step is one of the optimizer in train_ddp.py. In
train_diloco.py it is an outer one, of 20 inner ones; that program ends by itself after 15 of them, and loses one replica. Bars:
longest at most the usual one + 150 ms; no outer step is lost: each survivor commits 1 to 15.

What the programs import beside torchft, and what they ask of a machine, is supplied by stand-ins: random pictures for
torchvision's CIFAR10, a writer that writes nothing for tensorboard's, and embeddings of at most ``--numbers`` numbers
(theirs only cost communication: 1 GB, and twice 500 MB). The profiler that they start records nothing.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import runpy
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path
from typing import Any, Self

import torch

from benchmarks.report import Report, parser, spread

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("train_ddp", "train_diloco")
WORKERS, LAST = 3, 15
"""Replicas; the outer step after which train_diloco.py ends."""
EXTRA, CALM, LIMIT = 0.15, 2.0, 180.0


def source(path: Path, name: str) -> str:
    """The program, with its import lines changed."""
    file = path / name
    if file.exists():
        text = file.read_text()
    else:
        shown = subprocess.run(
            ["git", f"--git-dir={path}", "show", f"HEAD:{name}"], capture_output=True, text=True, check=False
        )
        if shown.returncode:
            raise SystemExit(f"{path} has no {name}: give a checkout of torchft, or its git directory ({shown.stderr.strip()})")
        text = shown.stdout
    return re.sub(r"^(from|import) torchft\b", r"\1 ftlib.torchft", text, flags=re.MULTILINE)


class Run:
    """One program under ``ftlib run``, as a context manager that leaves nothing behind."""

    def __init__(self, path: Path, name: str, numbers: int) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix=f"{name}-"))
        self._script = self._directory / f"{name}.py"
        self._script.write_text(source(path, f"{name}.py"))
        self._name, self._numbers = name, numbers

    def __enter__(self) -> Self:
        env = {key: value for key, value in os.environ.items() if not key.startswith(("FTLIB_", "TORCHFT_"))}
        env |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "NUM_REPLICA_GROUPS": str(WORKERS)}
        command = [sys.executable, "-m", "ftlib.cli.main", "run", "-n", str(WORKERS), str(Path(__file__).resolve())]
        with (self._directory / "output").open("wb") as output:
            self.process = subprocess.Popen(
                [*command, "--stand-in", str(self._numbers), str(self._script)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._directory,
                env=env,
            )
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60.0)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if kind is not None or os.environ.get("KEEP"):
            print(f"output in {self._directory}", flush=True)
        else:
            shutil.rmtree(self._directory, ignore_errors=True)

    def commits(self) -> dict[int, list[tuple[float, int, int]]]:
        """By process: when it committed, which step, and with how many replicas."""
        found = {}
        for path in self._directory.glob("*.commits"):
            lines = [line.split() for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
            found[int(path.stem)] = [(float(when), int(step), int(size)) for when, step, size in lines]
        return found

    def alive(self) -> dict[int, list[tuple[float, int, int]]]:
        """Those of the processes that are still there."""
        return {pid: lines for pid, lines in self.commits().items() if Path(f"/proc/{pid}").exists()}

    def together(self, count: int) -> None:
        """Wait until the last so many commits of all were of all."""
        deadline = time.monotonic() + LIMIT
        while True:
            last = [lines[-count:] for lines in self.alive().values() if lines]
            if len(last) == WORKERS and all(len(each) == count and all(size == WORKERS for *_, size in each) for each in last):
                return
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self._name}: the replicas do not train together")
            time.sleep(0.02)  # between two looks

    def kill(self) -> tuple[list[float], float]:
        """The usual steps before, and the survivors' longest one after a replica was killed."""
        before = self.alive()
        victim = min(before)
        moment = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        usual = [after - first for lines in before.values() for (first, *_), (after, *_) in itertools.pairwise(lines[1:])]
        late: list[float] = []
        while time.monotonic() < moment + CALM or len(late) < WORKERS - 1:
            if time.monotonic() > moment + LIMIT:
                raise RuntimeError(f"{self._name}: the survivors do not go on")
            time.sleep(0.05)  # between two looks
            gaps = {
                pid: [after - first for (first, *_), (after, *_) in itertools.pairwise(lines) if after > moment > after - LIMIT]
                for pid, lines in self.commits().items()
                if pid in before and pid != victim
            }
            late = [max(each) for each in gaps.values() if each]
        return usual, max(late)


def stand_in(numbers: int, script: str) -> None:
    """A worker: what the program needs beside torchft; then the program."""

    class Embedding(torch.nn.Embedding):
        def __init__(self, count: int, size: int, *given: Any, **more: Any) -> None:
            super().__init__(min(count, numbers // size), size, *given, **more)

    class Pictures(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
        def __init__(self, **_: Any) -> None:
            self._pictures = torch.randn(2000, 3, 32, 32)

        def __len__(self) -> int:
            return len(self._pictures)

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            return self._pictures[index], index % 10

    class Nothing:
        """Takes every call."""

        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def __getattr__(self, _: str) -> Any:
            return lambda *_, **__: None

    def module(name: str, **content: Any) -> types.ModuleType:
        made = sys.modules[name] = types.ModuleType(name)
        vars(made).update(content)
        return made

    torch.nn.Embedding = Embedding  # type: ignore[misc]
    torch.profiler.profile = Nothing  # type: ignore[assignment,misc]
    module("torch.utils.tensorboard", SummaryWriter=Nothing)
    transforms = module("torchvision.transforms", Compose=Nothing, ToTensor=Nothing, Normalize=Nothing)
    module("torchvision", transforms=transforms, datasets=types.SimpleNamespace(CIFAR10=Pictures))
    from ftlib.torchft.manager import Manager

    honest, log = Manager.should_commit, Path(f"{os.getpid()}.commits").open("w", buffering=1)  # noqa: SIM115 - until the end

    def should_commit(self: Manager, *given: Any, **more: Any) -> bool:
        committed = honest(self, *given, **more)
        if committed:
            log.write(f"{time.monotonic()} {self.current_step()} {self.num_participants()}\n")
        return committed

    Manager.should_commit = should_commit  # type: ignore[method-assign]
    os.environ["REPLICA_GROUP_ID"] = os.environ.get("FTLIB_WORKER_INDEX", "0")
    sys.argv = [script]
    runpy.run_path(script, run_name="__main__")


def measure(report: Report, run: Run, name: str, kills: int) -> None:
    """One program's rows."""
    outer = name == "train_diloco"
    usual, longest = [], []
    for _ in range(1 if outer else kills):
        run.together(3 if outer else 20)
        steps, late = run.kill()
        usual += steps
        longest.append(late)
    middle = statistics.median(usual)
    over = max(longest) - middle
    report.row(f"{name}: usual step", spread(usual))
    bar = f"usual + {over * 1e3:.0f} ms, <= {EXTRA * 1e3:.0f}"
    report.row(f"{name}: longest after a kill, {len(longest)} times", spread(longest), bar=bar, good=over <= EXTRA)
    if outer:
        code = run.process.wait(LIMIT)
        whole = [pid for pid, lines in run.commits().items() if [step for _, step, _ in lines] == list(range(1, LAST + 1))]
        good = code == 0 and len(whole) >= WORKERS - 1
        report.row(f"{name}: replicas that committed 1 to {LAST}", f"{len(whole)}, exit code {code}", bar=">= 2, 0", good=good)


def main() -> int:
    """The programs, one after the other."""
    options = parser(__doc__, agent=False, kills=3, numbers=1_000_000)
    options.add_argument("path", type=Path, help="a checkout of torchft, or its git directory")
    options.add_argument("--only", choices=PROGRAMS, nargs="+", default=PROGRAMS)
    args: argparse.Namespace = options.parse_args()
    report = Report("torchft's own programs", 120.0, ("measured",))
    for name in args.only:
        with Run(args.path, name, args.numbers) as run:
            measure(report, run, name, args.kills)
    return report.finish()


if __name__ == "__main__":
    stand_in(int(sys.argv[2]), sys.argv[3])
