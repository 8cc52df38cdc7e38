"""``ftlib simulate``: the membership protocol in virtual time."""

from __future__ import annotations

from pathlib import Path

import click

from ...launch.command import Seconds
from .options import AS_JSON


@click.command(short_help="Play the membership protocol in virtual time.")
@click.option("--members", type=click.IntRange(1, 10_000), default=5, show_default=True, help="Founders of the job.")
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="The same seed, the same run.")
@click.option("--seeds", default=None, help="Many runs: FROM-TO, or how many from --seed on; tells which ones fail.")
@click.option("--faults", default="all", show_default=True, help="all, none, or names: see above.")
@click.option(
    "--seconds",
    type=Seconds(min=0.0, max=86400.0),
    default=20.0,
    show_default=True,
    help="How long faults go on; then the network is healed.",
)
@click.option(
    "--policy",
    type=click.Choice(["majority", "any", "storage"]),
    default="majority",
    show_default=True,
    help="Who may decide. storage: a store that all share, with leases or without.",
)
@AS_JSON
@click.option("--picture", type=click.Path(dir_okay=False, path_type=Path), default=None, help="Draw it: FILE.svg or FILE.png.")
@click.option(
    "--transcript", type=click.Path(dir_okay=False, path_type=Path), default=None, help="Write it down, message by message."
)
def simulate(
    *,
    members: int,
    seed: int,
    seeds: str | None,
    faults: str,
    seconds: float,
    policy: str,
    as_json: bool,
    picture: Path | None,
    transcript: Path | None,
) -> int:
    """Run the membership protocol in virtual time, break things at random, and check every promise all the while.

    First faults, then a healed network on which the living must agree again. Exit code 1 where a promise was broken.

    \b
    --faults takes names separated by commas; NAME=3 is drawn three times as often, -NAME not at all (after all).
      processes    crash restart pause stall trap majority survivor
      network      one_way isolate halves three_way bridge loss duplication
                   reordering clog slow latency flap replay
      clocks       skew drift jump
      membership   join join_and_crash leave reset refuse
      the store    store_away store_slow store_lost store_fails store_deaf
                   store_blind store_strange store_race (all with --policy storage)
      groups       partition churn clock
    """  # noqa: D301 - for click the escape is a command, not text
    if seeds is not None and picture is not None:
        raise click.UsageError("--picture is for one run, --seeds for many: give one of them.")
    if seeds is not None and transcript is not None:
        raise click.UsageError("--transcript is for one run, --seeds for many: give one of them.")
    from ..simulate.main import simulate as run_it  # noqa: PLC0415 - as for status
    from ..simulate.order import Order  # noqa: PLC0415

    order = Order(members, seed, faults, seconds, policy)
    return run_it(order, seeds=seeds, as_json=as_json, picture=picture, transcript=transcript)
