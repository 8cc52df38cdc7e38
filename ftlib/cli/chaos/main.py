"""The command: a plan, its campaign, its log and its table."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, Self

import click

from ...errors import ConfigError, FTLibError
from ...launch.processes.output import write_all
from .campaign import Campaign, Row
from .job import Job, Sight
from .plan import LASTING, Planned, draw, in_order, kinds_of, replayed


@dataclass(frozen=True, slots=True)
class Wanted:
    """The command line."""

    address: str
    mtbf: float
    kinds: str
    count: int
    seed: int
    only: str | None
    spare_last: bool
    seconds: float
    patience: float
    beyond: bool
    replay: Path | None
    timeout: float


def chaos(wanted: Wanted, *, dry_run: bool, as_json: bool, log: Path | None) -> int:
    """Returns 0 if every fault was carried out, no step was lost, and whoever should come back did; else 1."""
    job = Job(wanted.address, wanted.timeout)
    sight = job.look()
    plan = _plan(wanted, sight)
    if dry_run:
        for planned in plan:
            click.echo(json.dumps(planned.as_dict()) if as_json else _announced(planned))
        return 0
    _check(job, sight, plan)
    rows: list[Row] = []
    failed = ""
    with _Log(log) as kept:
        try:
            for row in Campaign(job, plan, patience=wanted.patience, beyond=wanted.beyond).run():
                rows.append(row)
                line = json.dumps(row.as_dict())
                kept.note(line)
                click.echo(line if as_json else f"{_announced(row.planned)}: {row.back}, {row.pause:.3f} s of pause")
        except FTLibError as error:
            failed = str(error)
    failed = failed or kept.failed
    if not as_json:
        click.echo(_table(rows))
    if failed:
        raise FTLibError(failed)
    well = all(not row.steps_lost and (row.back == "stayed" or row.back.startswith(("back", "left"))) for row in rows)
    return 0 if well else 1


def _plan(wanted: Wanted, sight: Sight) -> tuple[Planned, ...]:
    replicas = sight.whole()
    if not replicas:
        raise FTLibError("no replica of the job is whole now: wait until ftlib status shows all of its processes")
    if len(replicas) < 2 and not wanted.beyond:
        what = "member" if len(replicas[0]) == 1 else f"replica ({', '.join(in_order(replicas[0]))})"
        raise ConfigError(f"the job has one {what}, which it may not lose: start more, or give --beyond")
    if wanted.replay is not None:
        try:
            plan = replayed(wanted.replay.read_text(encoding="utf-8").splitlines())
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--replay: {wanted.replay} cannot be read ({error}): give a file that --log wrote") from None
        unknown = {planned.worker for planned in plan} - set(sight.members)
        if unknown:
            raise ConfigError(f"--replay: the job has no {', '.join(in_order(unknown))}: start it with as many workers")
        return plan
    targets = _targets(wanted, sight)
    kinds = kinds_of(wanted.kinds)
    returning = {name for name, seen in sight.members.items() if seen.supervised}
    return draw(wanted.seed, wanted.mtbf, kinds, replicas, wanted.count, wanted.seconds, targets=targets, returning=returning)


def _targets(wanted: Wanted, sight: Sight) -> list[str]:
    """The workers that may be hit. ConfigError if none may."""
    workers = in_order(sight.members)
    spared = sight.replica_of(workers[-1]) if wanted.spare_last else frozenset[str]()  # hit, another one would take it along
    targets = [worker for worker in workers if worker not in spared]
    if not targets:
        raise ConfigError(f"--spare-last: the job has nobody but {', '.join(workers)}: start more, or leave --spare-last out")
    if wanted.only is None:
        return targets
    if wanted.only not in targets:
        raise ConfigError(f"--only {wanted.only}: choose one of {', '.join(targets)}")
    return [wanted.only]


def _check(job: Job, sight: Sight, plan: Sequence[Planned]) -> None:
    """FTLibError if any worker would refuse: before the first fault, not in the middle."""
    kinds = {planned.kind for planned in plan}
    for name in in_order(sight.members):
        missing = kinds - set(job.offers(sight.members[name]))
        if missing:
            raise FTLibError(f"{name} does not offer {', '.join(sorted(missing))}: leave them out of --kinds")


class _Log:
    """The file of ``--log``, if there is one. A disk that is full costs lines, and not the campaign."""

    def __init__(self, path: Path | None) -> None:
        """ConfigError if it cannot be opened."""
        self.failed = ""
        """Why lines are missing."""
        self._path = path
        self._file: BinaryIO | None = None
        if path is not None:
            try:
                self._file = path.open("wb", buffering=0)  # as each line is to be there at once, and is not tried again
            except OSError as error:
                raise ConfigError(f"--log: {path} cannot be written ({error.strerror}): give another file") from None

    def note(self, line: str) -> None:
        """Write it, unless one before was not."""
        if self._file is None or self.failed:
            return
        self._try(partial(write_all, self._file.fileno(), f"{line}\n".encode()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._try(self._file.close)

    def _try(self, write: Callable[[], object]) -> None:
        try:
            write()
        except OSError as error:
            self.failed = f"--log: {self._path} cannot be written ({error.strerror}): it is not whole, the campaign was"


def _announced(planned: Planned) -> str:
    lasting = f" for {planned.seconds:g} s" if planned.kind in LASTING else ""
    return f"fault {planned.number}, {planned.after:.1f} s after the one before: {planned.kind} {planned.worker}{lasting}"


def _table(rows: Sequence[Row]) -> str:
    several = any(row.mates for row in rows)
    lines = [("fault", "worker", *(["of replica"] if several else []), "at", "pause", "steps lost", "views", "worker then")]
    for row in rows:
        planned, (old, new) = row.planned, row.epochs
        lines.append(
            (
                planned.kind,
                planned.worker,
                *([f"{row.replica}, with {', '.join(row.mates)}"] if several else []),
                f"{row.at:.1f} s",
                f"{row.pause:.3f} s",
                str(row.steps_lost),
                f"{old}-{new}",
                row.back + (f"; replaced besides: {', '.join(row.others)}" if row.others else ""),
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)
