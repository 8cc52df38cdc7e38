"""The command: one run with its picture, or many runs that are only judged."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from consensus.simulation.transcript import Transcript

from ...errors import FTLibError
from .account import account, text_of
from .order import Order, seeds_of
from .picture import draw, refuse_nowhere, refuse_path
from .progress import Line
from .rows import rows_of
from .run import INTERRUPTED, Run, play

ABOUT_HEALING = 2.0
"""Simulated seconds that founding and healing take, for the progress bar."""

_INTERRUPTED = 130


def simulate(
    order: Order,
    *,
    seeds: str | None = None,
    as_json: bool = False,
    picture: Path | None = None,
    transcript: Path | None = None,
) -> int:
    """Return the exit code: 0, 1 if a promise was broken, 130 after Ctrl-C. Raises ConfigError if ``order`` makes no sense."""
    order.scenario()
    order.config()
    if seeds is not None:
        return _many(order, seeds_of(seeds, order.seed), as_json=as_json)
    if picture is not None:
        refuse_path(picture)
    if transcript is not None:
        refuse_nowhere("--transcript", transcript)
    began, page = time.monotonic(), Transcript()
    with Line(order.seconds + ABOUT_HEALING).shown() as line:
        run = play(order, line.look, () if transcript is None else (page,))
    _say(f"{run.world.events / max(1e-9, time.monotonic() - began):,.0f} events/s, {time.monotonic() - began:.1f} s")
    click.echo(json.dumps(account(run), indent=2) if as_json else text_of(run))
    if picture is not None:
        with _written("--picture", picture):
            _draw(run, picture)
        _say(f"picture: {picture}")
    if transcript is not None:
        with _written("--transcript", transcript):
            transcript.write_text(f"{run.scenario}\n\n{page}", encoding="utf-8")
        _say(f"transcript: {transcript}")
    return _INTERRUPTED if run.outcome == INTERRUPTED else 0 if run.good else 1


@contextmanager
def _written(option: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # a full disk: it could be opened before the run
        raise FTLibError(f"{option} {path}: it cannot be written ({error.strerror or error}); give another file") from None


def _draw(run: Run, path: Path) -> None:
    order, recorder = run.order, run.recorder
    headline = f"{order.members} members, seed {order.seed}, faults {order.faults}: {run.outcome}"
    rows = rows_of(recorder.lifetimes.values(), recorder.time)
    draw(rows, recorder.views, path, end=recorder.time, headline=headline, healed=run.healed)


def _many(order: Order, seeds: range, *, as_json: bool) -> int:
    failed: list[dict[str, Any]] = []
    outcomes: dict[str, int] = {}
    done = events = 0
    began = time.monotonic()
    with Line(len(seeds)).shown() as line:
        for seed in seeds:
            run = play(Order(order.members, seed, order.faults, order.seconds, order.policy), line.look)
            if run.outcome == INTERRUPTED:
                break
            done += 1
            events += run.world.events
            outcomes[run.outcome] = outcomes.get(run.outcome, 0) + 1
            if not run.good:
                failed.append({"seed": seed, "outcome": run.outcome, "detail": run.detail, "replay": run.order.command})
                if not as_json:
                    click.echo(f"seed {seed}: {run.outcome}: {run.detail}\n  {run.order.command}")
            line.ran(run.world, done, len(failed))
    seconds = time.monotonic() - began
    _say(f"{events / max(1e-9, seconds):,.0f} events/s, {seconds / max(1, done):.2f} s a run")
    ended = dict(sorted(outcomes.items()))
    if as_json:
        told = {"ok": not failed, "runs": done, "asked": len(seeds), "outcomes": ended, "failed": failed}
        click.echo(json.dumps(told, indent=2))
    else:
        counts = ", ".join(f"{count} {outcome}" for outcome, count in ended.items())
        wrong = f"{len(failed) or 'no'} violation{'' if len(failed) == 1 else 's'}"
        click.echo(f"{done} of {len(seeds)} runs: {counts or 'nothing'}; {wrong}")
    return 1 if failed else _INTERRUPTED if done < len(seeds) else 0


def _say(text: str) -> None:
    """Print for people at a terminal only: the speed of a run is no result."""
    if sys.stderr.isatty():
        click.echo(text, err=True)
