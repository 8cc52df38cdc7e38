"""The command ``ftlib``. Every error is one line that says what to do.

Exit codes: 0 all is well; 1 something failed; 2 the command line is wrong; ``ftlib run`` also passes on a worker's exit
code, 128 + signal where a signal ended it (130 after Ctrl-C, 143 after SIGTERM).
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path

import click

from ..errors import ConfigError
from ..launch.command import code_of, run
from .observability.command import observability

_REST = {"ignore_unknown_options": True, "allow_interspersed_args": False}


def main(arguments: list[str] | None = None) -> None:
    """Entry point: run a command and exit."""
    sys.exit(code_of(commands, arguments, "ftlib"))


def _show_version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted:
        from .version import versions  # noqa: PLC0415 - reads the metadata of installed packages

        click.echo(versions())
        context.exit()


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show versions.")
@click.pass_context
def commands(context: click.Context) -> None:
    """Data-parallel PyTorch training that goes on when a worker is killed."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


commands.add_command(run)
commands.add_command(observability)


@commands.command(context_settings=_REST, add_help_option=False)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def demo(args: tuple[str, ...]) -> int:
    """Train on handwritten digits while workers are killed, stopped and added; about a minute."""
    try:
        module = importlib.import_module("ftlib.cli.demo.main")
    except ModuleNotFoundError as error:
        raise ConfigError(f"the demo needs the package {error.name}: pip install 'ftlib[demo]'") from None
    return int(module.main(list(args)) or 0)


_WHO = click.argument("address", metavar="[ADDRESS]", required=False)
"""host:port, or a worker of a run here."""
_TIMEOUT = click.option("--timeout", type=float, default=5.0, show_default=True, help="Seconds to wait for the answer.")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


@commands.command()
@_JSON
def ps(*, as_json: bool) -> int:
    """List your jobs on this host (of ftlib run), with their workers."""
    from .runs import running, show  # noqa: PLC0415 - brings the runtime

    found = running()
    if as_json:
        click.echo(json.dumps([run.as_dict() for run in found], indent=2))
    else:
        show(found)
    return 0


@commands.command()
@_WHO
@_JSON
@click.option("--watch", is_flag=True, help="Show it anew every second, until Ctrl-C.")
@_TIMEOUT
def status(*, address: str | None, as_json: bool, watch: bool, timeout: float) -> int:
    """Show what the member at ADDRESS believes.

    ADDRESS is host:port or the name of a worker, as worker-2 or JOB/worker-2; without it: of your only job on this host.
    """
    from .overview import show, watch_status  # noqa: PLC0415 - brings the whole runtime, which only this needs
    from .runs import address_of  # noqa: PLC0415
    from .status import fetch_status, with_followers  # noqa: PLC0415

    address = address_of(address)
    if watch:
        if as_json:
            raise click.UsageError("--watch is for people, --json for programs: give one of them.")
        return watch_status(lambda: with_followers(fetch_status(address, timeout), timeout))
    answer = fetch_status(address, timeout)
    if as_json:
        click.echo(json.dumps(answer, indent=2))
    else:
        show(with_followers(answer, timeout))
    return 0


@commands.command()
@_WHO
@click.option("--epoch", type=click.IntRange(min=1), default=None, help="Only the change to this epoch.")
@click.option("--last", type=click.IntRange(min=1), default=10, show_default=True, help="So many changes, the newest.")
@_JSON
@_TIMEOUT
def explain(*, address: str | None, epoch: int | None, last: int, as_json: bool, timeout: float) -> int:
    """Tell why and how each view changed.

    As the member at ADDRESS (as for status) and the drivers of the changes know it.
    """
    from .explain import explain as text_of  # noqa: PLC0415
    from .explain import fetch_story  # noqa: PLC0415
    from .runs import address_of  # noqa: PLC0415

    story = fetch_story(address_of(address), timeout, epoch=epoch, last=last)
    click.echo(json.dumps(story.as_list(), indent=2) if as_json else text_of(story))
    return 0


@commands.command()
@_WHO
@click.option("--port", type=click.IntRange(0, 65535), default=0, show_default=True, help="On 127.0.0.1; 0: any that is free.")
@click.option("--open", "show", is_flag=True, help="Open it in a browser.")
def dashboard(*, address: str | None, port: int, show: bool) -> int:
    """Serve a page that shows the job as it goes, for a browser on this host; ADDRESS as for status.

    Open the address that it prints: the token in it lets you in. Ctrl-C ends it.
    """
    from .dashboard import serve  # noqa: PLC0415 - as for status
    from .runs import address_of  # noqa: PLC0415

    return serve(address_of(address), port, show=show, say=click.echo)


_ONE = click.argument("address")
_YES = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


@commands.command()
@_ONE
@_YES
@_TIMEOUT
def drain(*, address: str, yes: bool, timeout: float) -> int:
    """Have one worker leave well, after the call under way; ADDRESS as for status."""
    return _order("drain", address, yes=yes, timeout=timeout)


@commands.command()
@_ONE
@_YES
@_TIMEOUT
def kill(*, address: str, yes: bool, timeout: float) -> int:
    """Kill one worker (SIGKILL), whether it hangs or not; ADDRESS as for status."""
    return _order("kill", address, yes=yes, timeout=timeout)


def _order(kind: str, address: str, *, yes: bool, timeout: float) -> int:
    from consensus import OrderKind  # noqa: PLC0415 - as for status

    from .orders import order  # noqa: PLC0415
    from .runs import address_of  # noqa: PLC0415

    def agreed(what: str) -> bool:
        if yes:
            click.echo(what)
            return True
        if not sys.stdin.isatty():
            raise click.UsageError(f"{what}. Give --yes to do that without a terminal.")
        return click.confirm(f"{what}. Do it?")

    click.echo(order(OrderKind(kind), address_of(address), timeout, agreed))
    return 0


@commands.command()
@_ONE
@_TIMEOUT
def stack(*, address: str, timeout: float) -> int:
    """Show where each thread of a worker is, also while it hangs; ADDRESS as for status."""
    from .orders import stack_of  # noqa: PLC0415 - as for status
    from .runs import address_of  # noqa: PLC0415

    click.echo(stack_of(address_of(address), timeout).rstrip())
    return 0


@commands.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(*, shell: str) -> int:
    """Print what makes SHELL complete ftlib's commands: eval "$(ftlib completion bash)"."""
    from click.shell_completion import get_completion_class  # noqa: PLC0415 - used by this alone

    kind = get_completion_class(shell)
    assert kind is not None, shell
    click.echo(kind(commands, {}, "ftlib", "_FTLIB_COMPLETE").source())
    return 0


@commands.command()
@click.argument("address")
@click.option(
    "--mtbf", type=click.FloatRange(min=0.01), default=30.0, show_default=True, help="Seconds between faults, on average."
)
@click.option(
    "--kinds", default="kill,stop,wedge,slow", show_default=True, help="Of kill, stop, wedge, slow, cut, leave and agent."
)
@click.option("--count", type=click.IntRange(1, 100_000), default=20, show_default=True, help="How many faults.")
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="The same seed, the same faults.")
@click.option("--only", default=None, help="Only this worker, as worker-2.")
@click.option("--spare-last", is_flag=True, help="Never the worker with the last name.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.01, max=3600.0),
    default=5.0,
    show_default=True,
    help="How long stop, wedge, slow and cut last.",
)
@click.option(
    "--patience", type=click.FloatRange(min=0.1), default=60.0, show_default=True, help="Seconds to come back within."
)
@click.option("--beyond", is_flag=True, help="Go on while workers are missing: the job may be lost.")
@click.option("--dry-run", is_flag=True, help="Show the faults, and inject none.")
@click.option("--log", type=click.Path(dir_okay=False, path_type=Path), default=None, help="Write one JSON line a fault there.")
@click.option(
    "--replay", type=click.Path(dir_okay=False, path_type=Path), default=None, help="The faults of such a log instead."
)
@_JSON
@_TIMEOUT
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
    from .chaos.main import Wanted  # noqa: PLC0415 - as for status
    from .chaos.main import chaos as inject  # noqa: PLC0415

    wanted = Wanted(address, mtbf, kinds, count, seed, only, spare_last, seconds, patience, beyond, replay, timeout)
    return inject(wanted, dry_run=dry_run, as_json=as_json, log=log)


@commands.command()
@click.argument("address", required=False)
@click.option("--nccl", is_flag=True, help="Fail where members could not use NCCL; else that is a note.")
@click.option("--listen", "listening", is_flag=True, help="Be examined by a doctor at another host, at ADDRESS.")
@click.option("--job", default=None, help="The job that the member should belong to  [default: FTLIB_JOB]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@click.option("-v", "--verbose", is_flag=True, help="Show every check, not only the verdict.")
@click.option("--timeout", type=float, default=2.0, show_default=True, help="Seconds to wait for each answer.")
def doctor(
    *, address: str | None, nccl: bool, listening: bool, job: str | None, as_json: bool, verbose: bool, timeout: float
) -> int:
    """Find out what is wrong between this host and the member at ADDRESS (host:port), and say it in one line.

    Without ADDRESS: what this host's GPUs, driver, torch and NCCL are, and what keeps members here from using NCCL together.
    """
    from .doctor.host import HostProbe  # noqa: PLC0415 - as for status
    from .doctor.main import consult  # noqa: PLC0415
    from .doctor.main import listen as be_examined  # noqa: PLC0415

    probe = HostProbe(os.environ)
    if listening:
        return be_examined(address, probe)
    return consult(address, job=job, timeout=timeout, as_json=as_json, verbose=verbose, nccl=nccl, probe=probe)


@commands.command()
@click.option("--members", type=click.IntRange(1, 10_000), default=5, show_default=True, help="Founders of the job.")
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="The same seed, the same run.")
@click.option("--seeds", default=None, help="Many runs: FROM-TO, or how many from --seed on; tells which ones fail.")
@click.option("--faults", default="all", show_default=True, help="all, none, or names: see above.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.0, max=86400.0),
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
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
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
    from .simulate.main import simulate as run_it  # noqa: PLC0415 - as for status
    from .simulate.order import Order  # noqa: PLC0415

    order = Order(members, seed, faults, seconds, policy)
    return run_it(order, seeds=seeds, as_json=as_json, picture=picture, transcript=transcript)


@commands.group()
def keys() -> None:
    """Make the secret that members share, and change it while they run.

    A member reads its secret_file again when it changes; the first secret in it seals, all are accepted. To change the secret
    of a running job, on the file that all members read (or on each host's copy, one step everywhere before the next one):

    \b
      1. ftlib keys rotate FILE     adds a new secret as the last
      2. ftlib keys promote FILE    makes it the first, two seconds later
      3. ftlib keys drop FILE       removes the others, two seconds later
    """  # noqa: D301 - for click the escape is a command, not text


@keys.command("new")
def keys_new() -> int:
    """Print a new secret: umask 077; ftlib keys new > FILE."""
    from ..launch.processes.credentials import new_secret  # noqa: PLC0415 - brings cryptography

    click.echo(new_secret())
    return 0


_KEY_FILE = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))


@keys.command("rotate")
@_KEY_FILE
def keys_rotate(*, file: Path) -> int:
    """Step 1: add a new secret to FILE as the last, which all then accept."""
    from .keys import add_key  # noqa: PLC0415

    add_key(file)
    click.echo(f"a new secret is the last in {file}; once all members have this file (2 s): ftlib keys promote {file}")
    return 0


@keys.command("promote")
@_KEY_FILE
def keys_promote(*, file: Path) -> int:
    """Step 2: make the last secret in FILE the first, which members then seal with."""
    from .keys import promote_key  # noqa: PLC0415

    promote_key(file)
    click.echo(f"the new secret is the first in {file}; once all members have this file (2 s): ftlib keys drop {file}")
    return 0


@keys.command("drop")
@_KEY_FILE
def keys_drop(*, file: Path) -> int:
    """Step 3: remove all secrets but the first from FILE."""
    from .keys import drop_keys  # noqa: PLC0415

    drop_keys(file)
    click.echo(f"the old secrets are gone from {file}: whoever has only those is a stranger now")
    return 0


@keys.command("token")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), required=False)
def keys_token(*, file: Path | None) -> int:
    """Print the bearer token with which Prometheus may GET /metrics (of the secret in FILE, or in the settings)."""
    from .keys import metrics_token  # noqa: PLC0415

    click.echo(metrics_token(file))
    return 0


if __name__ == "__main__":
    main()
