"""nanoGPT's own train.py with the lines that docs/integrations.md changes: applied, counted, and trained through kills.

    python -m benchmarks nanogpt PATH

PATH: a checkout of https://github.com/karpathy/nanoGPT, or its git directory. Its train.py is taken as of commit ``COMMIT``.
Each line that the page removes has to be there, in that order; ``PLACES`` says where added lines go that stand beside none that
is removed. Then ``ftlib run -n 3`` trains a small model on the characters of this project's pages, and two workers get a
SIGKILL. Bars: 20 lines beyond what DDP needed; the job ends with exit code 0; all iterations were made, and the loss falls.
"""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Self

import numpy as np

from benchmarks.report import Report, parser

COMMIT = "3adf61e"
ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "integrations.md"
PLACES = {
    "optimizer = Optimizer(": "# training loop",
    "    master_process = ft.rank": "    # determine and set the learning rate",
}
"""Where added lines go that begin like this: before the line that begins like that."""
OWN = ("grad_clip", "scaler", "iter_num")
"""Removed lines with one of these words were not there for DDP."""
BAR, ITERATIONS, KILLS = 20, 300, 2
LIMIT = 300.0
_TOLD = re.compile(r"iter (\d+): loss ([\d.]+)")


def difference(page: Path = PAGE) -> list[str]:
    """The lines of the page's diff."""
    blocks = re.findall(r"(?s)```diff\n(.*?)```", page.read_text(encoding="utf-8"))
    return [line for block in blocks for line in block.splitlines()]


def changed(source: str, lines: list[str]) -> str:
    """``source`` with these lines of a diff applied. ValueError names a line that is not there."""
    text, at = source.splitlines(), 0
    group: list[str] = []

    def put() -> None:
        """The added lines so far."""
        nonlocal at
        if group:
            anchor = next((place for start, place in PLACES.items() if group[0].startswith(start)), None)
            where = at if anchor is None else _find(text, anchor, at, whole=False)
            text[where:where] = group
            at = where + len(group)
            group.clear()

    for line in lines:
        if line.startswith("+"):
            if line[1:].startswith(tuple(PLACES)):
                put()
            group.append(line[1:])
        else:
            put()
            at = _find(text, line[1:], at, whole=True)
            del text[at]
    put()
    return "\n".join(text) + "\n"


def _find(text: list[str], wanted: str, since: int, *, whole: bool) -> int:
    for number in range(since, len(text)):
        if text[number] == wanted or (not whole and text[number].startswith(wanted)):
            return number
    raise ValueError(f"train.py has no such line where the page changes it: {wanted!r}")


def checkout(path: Path, into: Path) -> None:
    """All files of ``COMMIT``."""
    archive = subprocess.run(["git", "-C", path, "archive", COMMIT], capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", into], input=archive, check=True)


def characters(into: Path) -> None:
    """What its character model reads, of this project's pages."""
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("docs/*.md")))
    letters = sorted(set(text))
    numbers = {letter: number for number, letter in enumerate(letters)}
    coded = np.array([numbers[letter] for letter in text], dtype=np.uint16)
    border = len(coded) * 9 // 10
    coded[:border].tofile(into / "train.bin")
    coded[border:].tofile(into / "val.bin")
    meta = {"vocab_size": len(letters), "itos": dict(enumerate(letters)), "stoi": numbers}
    (into / "meta.pkl").write_bytes(pickle.dumps(meta))


class Training:
    """The job, as a context manager."""

    def __init__(self, folder: Path) -> None:
        self._mark = f"NANOGPT_FOLDER={folder}"
        self.log = folder / "log"
        options = (
            "--device=cpu --compile=False --eval_iters=4 --eval_interval=100 --log_interval=1 --block_size=64 --batch_size=8 "
            "--gradient_accumulation_steps=6 --n_layer=2 --n_head=2 --n_embd=64 --dropout=0.0 --warmup_iters=10 "
            f"--max_iters={ITERATIONS} --lr_decay_iters={ITERATIONS}"
        ).split()
        command = [sys.executable, "-m", "ftlib.cli.main", "run", "-n", "3", "--max-restarts", "5", "--restart-delay", "0.2"]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, "train.py", "config/train_shakespeare_char.py", *options],
                cwd=folder,
                env={**os.environ, "NANOGPT_FOLDER": str(folder), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
                stdout=output,
                stderr=output,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def losses(self) -> dict[int, float]:
        """Of each iteration that was told, by the worker that had rank 0."""
        return {int(number): float(loss) for number, loss in _TOLD.findall(self.log.read_text(errors="replace"))}

    def until(self, iteration: int) -> None:
        """Wait until it was told. RuntimeError with the end of the log if that takes too long, or all ends before."""
        end = time.monotonic() + LIMIT
        while max(self.losses(), default=-1) < iteration:
            if time.monotonic() > end or self.process.poll() is not None:
                raise RuntimeError(f"no iteration {iteration}: {self.log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.1)  # between two looks at the log

    def kill(self, slot: int) -> None:
        """SIGKILL to the newest process of this slot that trains."""
        pids = []
        for entry in Path("/proc").iterdir():
            try:
                inside = (entry / "environ").read_bytes().split(b"\0") if entry.name.isdigit() else []
                trains = b"train.py" in (entry / "cmdline").read_bytes() if inside else False
            except OSError:
                continue
            if trains and self._mark.encode() in inside and f"FTLIB_WORKER_INDEX={slot}".encode() in inside:
                pids.append(int(entry.name))
        os.kill(max(pids), signal.SIGKILL)


def main() -> int:
    """Apply, count, train."""

    def git(text: str) -> Path:
        if subprocess.run(["git", "-C", text, "cat-file", "-e", COMMIT], capture_output=True, check=False).returncode:
            raise ArgumentTypeError(f"{text} is no git directory that has commit {COMMIT}")
        return Path(text)

    options = parser(__doc__, agent=False)
    options.add_argument("path", type=git)
    args = options.parse_args()
    report = Report("nanoGPT's train.py", 60.0, ("measured",))
    lines = difference()
    own = [line for line in lines if line.startswith("-") and any(word in line for word in OWN)]
    count = len(own) + sum(line.startswith("+") for line in lines)
    report.row("lines removed or added beyond what DDP needed", str(count), bar=f"<= {BAR}", good=count <= BAR)
    with tempfile.TemporaryDirectory(prefix="nanogpt-") as name:
        folder = Path(name)
        checkout(args.path, folder)
        program = folder / "train.py"
        program.write_text(changed(program.read_text(encoding="utf-8"), lines), encoding="utf-8")
        characters(folder / "data" / "shakespeare_char")
        with Training(folder) as training:
            for number in range(KILLS):
                training.until(ITERATIONS * (number + 1) // (KILLS + 2))
                training.kill(number)
            code = training.process.wait(LIMIT)
            losses = training.losses()
            if code:
                print(training.log.read_text(errors="replace")[-3000:])
    missing = sorted(set(range(ITERATIONS + 1)) - set(losses))
    report.row(f"exit code after {KILLS} kills", str(code), bar="0", good=code == 0)
    # Who has rank 0 tells of an iteration after it; that of a kill may be told by nobody.
    report.row("iterations that nobody told of", str(len(missing)), bar=f"<= {KILLS}", good=len(missing) <= KILLS)
    first, last = (np.mean([losses[number] for number in part]) for part in (sorted(losses)[:10], sorted(losses)[-10:]))
    report.row("loss, mean of the first and last ten", f"{first:.2f} -> {last:.2f}", bar="falls", good=bool(last < 0.8 * first))
    return report.finish()
