"""Which runs of this user live on this host: each launcher notes its job and its address while it runs (see ``places``)."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from . import places

_ENDING = ".run"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run."""

    job: str
    pid: int
    """Of its launcher."""
    supervisor: str
    """``host:port`` of the launcher's endpoint."""
    command: str
    since: float
    """By the wall clock."""


@contextlib.contextmanager
def recorded(job: str, supervisor: str, command: Sequence[str]) -> Iterator[None]:
    """Note this run while the block runs. Where the note cannot be written, ``ftlib ps`` does not show the run."""
    record = RunRecord(job, os.getpid(), supervisor, " ".join(command), time.time())
    path = None
    with contextlib.suppress(OSError):
        path = places.write(job, _ENDING, json.dumps(asdict(record)))
    try:
        yield
    finally:
        if path is not None:
            path.unlink(missing_ok=True)


def runs() -> list[RunRecord]:
    """All of this user's here, the latest first."""
    records = []
    for path in places.found(_ENDING):
        with contextlib.suppress(OSError, ValueError, TypeError):
            records.append(RunRecord(**json.loads(path.read_text(encoding="utf-8"))))
    return records
