"""``ftlib chaos``: faults for a running job."""

from __future__ import annotations

from pathlib import Path

import click

from ...launch.command import Seconds
from .options import AS_JSON, ONE, TIMEOUT


@click.command(short_help="Break workers of a job at random moments.")
@ONE
@click.option("--mtbf", type=Seconds(min=0.01), default=30.0, show_default=True, help="Seconds between faults, on average.")
@click.option(
    "--kinds", default="kill,stop,wedge,slow", show_default=True, help="Of kill, stop, wedge, slow, cut, leave and agent."
)
@click.option("--count", type=click.IntRange(1, 100_000), default=20, show_default=True, help="How many faults.")
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="The same seed, the same faults.")
@click.option("--only", default=None, help="Only this worker, as worker-2; its replica goes with it.")
@click.option("--spare-last", is_flag=True, help="Never the worker with the last name, nor its replica.")
@click.option(
    "--seconds",
    type=Seconds(min=0.01, max=3600.0),
    default=5.0,
    show_default=True,
    help="How long stop, wedge, slow and cut last.",
)
@click.option("--patience", type=Seconds(min=0.1), default=60.0, show_default=True, help="Seconds to come back within.")
@click.option("--beyond", is_flag=True, help="Go on while replicas are missing, or with the only one: the job may be lost.")
@click.option("--dry-run", is_flag=True, help="Show the faults, and inject none.")
@click.option("--log", type=click.Path(dir_okay=False, path_type=Path), default=None, help="Write one JSON line a fault there.")
@click.option(
    "--replay", type=click.Path(dir_okay=False, path_type=Path), default=None, help="The faults of such a log instead."
)
@AS_JSON
@TIMEOUT
def chaos(
    *,
    address: str,
    mtbf: float,
    kinds: str,
    count: int,
    seed: int,
    only: str | None,
    spare_last: bool,
    seconds: float,
    patience: float,
    beyond: bool,
    dry_run: bool,
    log: Path | None,
    replay: Path | None,
    as_json: bool,
    timeout: float,
) -> int:
    """Break workers of the job at ADDRESS (host:port) at random moments, and tell what became of it.

    The job's workers must have the setting chaos = true, and you its secret. Exit code 1 if a step was lost or a worker did not
    come back.
    """
    from ..chaos.main import Wanted  # noqa: PLC0415 - as for status
    from ..chaos.main import chaos as inject  # noqa: PLC0415

    wanted = Wanted(address, mtbf, kinds, count, seed, only, spare_last, seconds, patience, beyond, replay, timeout)
    return inject(wanted, dry_run=dry_run, as_json=as_json, log=log)
