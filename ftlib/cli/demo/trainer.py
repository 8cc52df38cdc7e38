"""The worker that ``ftlib run`` starts: an ordinary training loop that also takes notes.

    python -m ftlib.cli.demo.trainer DIRECTORY FRAMEWORK SEED REST     (by ftlib run)

DIRECTORY holds digits.npz, and gets the notes.

The workers agree when to stop without an extra message: each worker that sees the file ``stop`` sets a number that is averaged
along with the gradients, so all stop after the same step.

Notes are one JSON line each, in one file for each worker lifetime, read while they are written. A line reaches the file in one
``write``: a worker may be killed at any time, and its file is still right up to the last whole line. Times are
CLOCK_MONOTONIC, which all processes of a host share.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STEPS = "steps"
"""Directory of the notes."""
STOP = "stop"
"""File whose existence ends the training."""


class Notes:
    """A worker's own file."""

    def __init__(self, directory: Path, worker: int) -> None:
        path = directory / f"worker-{worker}-pid-{os.getpid()}.jsonl"
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, event: str, **facts: Any) -> None:
        """One line; ``t`` and ``pid`` are added unless given."""
        line = {"event": event, "t": time.monotonic(), "pid": os.getpid(), **facts}
        os.write(self._fd, json.dumps(line).encode() + b"\n")


class Tail:
    """Reads the lines added to files of JSON lines since the last time."""

    def __init__(self) -> None:
        self._offsets: dict[Path, int] = {}

    def read(self, path: Path) -> list[dict[str, Any]]:
        """Return the new whole lines of ``path``; none if the file does not exist yet."""
        try:
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offsets[path] = self._offsets.get(path, 0) + len(whole)
        return [json.loads(line) for line in whole.splitlines()]

    def read_all(self, directory: Path) -> list[dict[str, Any]]:
        """Return the new whole lines of all ``.jsonl`` files of a directory, in the order of their ``t``."""
        lines = [line for path in sorted(directory.glob("*.jsonl")) for line in self.read(path)]
        return sorted(lines, key=lambda line: float(line["t"]))


@dataclass(frozen=True, slots=True)
class Training:
    """What all workers are told."""

    framework: str
    """That of ``FTLib.init``."""
    seed: int
    """Of the model and of the data's order."""
    rest: float
    """Seconds to sleep after each step."""

    def arguments(self) -> list[str]:
        """For the command line of a worker."""
        return [self.framework, str(self.seed), str(self.rest)]


def main(directory: Path, training: Training) -> None:
    """Train until the file ``stop`` exists."""
    seed = training.seed
    worker = int(os.environ["FTLIB_WORKER_INDEX"])
    notes = Notes(directory / STEPS, worker)
    notes.write("born", worker=worker)

    import torch  # noqa: PLC0415 - takes a second, and the note above must not wait for it
    from torch.nn.functional import cross_entropy  # noqa: PLC0415

    from ... import FTLib  # noqa: PLC0415
    from . import task  # noqa: PLC0415
    from .digits import Digits  # noqa: PLC0415

    torch.set_num_threads(1)
    digits = Digits.load(directory / "digits.npz")
    model = task.network(seed)
    optimizer = task.optimizer_for(model)
    stop = directory / STOP

    with FTLib.init(consensus="gossip", framework=training.framework) as ft:
        notes.write("met")

        def apply() -> None:
            """What the averaged gradients are used for; a joiner does the same with the averages that it catches up on."""
            task.set_rate(optimizer, ft.step)
            optimizer.step()

        ft.register_state(model=model, optimizer=optimizer, apply=apply)
        epoch, over = 0, False
        while not over:
            images, labels = task.global_batch(digits, seed, ft.step)
            mine = slice(max(ft.rank, 0), None, max(ft.size, 1))  # this worker's share of the batch
            loss = cross_entropy(model(images[mine]), labels[mine])
            loss.backward()  # type: ignore[no-untyped-call]
            # Averaged along: the loss of all, and whether to stop.
            told = torch.tensor([loss.item(), float(stop.exists())], dtype=torch.float32, device="cpu")
            if not ft.allreduce_average([*model.parameters(), told], weight=len(labels[mine])):
                break
            finished, view = time.monotonic(), ft.view
            if view is not None and view.epoch != epoch:
                epoch = view.epoch
                pids = [int(member.fact("pid") or 0) for member in view.members]
                notes.write("view", t=finished, epoch=epoch, pids=pids)
            apply()
            optimizer.zero_grad()
            over = told[1].item() > 0
            notes.write(
                "step",
                t=finished,
                step=ft.step,
                epoch=epoch,
                rank=ft.rank,
                size=ft.size,
                loss=told[0].item(),
                hash=task.fingerprint(model),
            )
            time.sleep(training.rest)
        notes.write("done", step=ft.step, correct=task.correct(model, digits))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Training(sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
