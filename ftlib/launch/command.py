"""The command ``ftlib run``, also ``python -m ftlib.launch``."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import click

from ..errors import ConfigError, FTLibError
from .hosts.fleet import Fleet
from .processes.gpus import GpuFinder, Gpus
from .run.plan import DEFAULT_RESTARTS, StartPlan, python_command, random_job
from .run.torchrun import refusal

_NO_ARGUMENTS = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""What click raises, from 8.2 on, with a whole help for its text; before, it printed that itself."""


def code_of(command: click.Command, arguments: list[str] | None, name: str) -> int:
    """Carry out a command line; returns the exit code. Every error is one line that says what to do."""
    try:
        code = command.main(args=arguments, prog_name=name, standalone_mode=False)
    except click.UsageError as error:
        return _misused(error, _meant(command, sys.argv[1:] if arguments is None else arguments, name))
    except click.ClickException as error:
        return _complain(error.format_message(), 2)
    except ConfigError as error:
        return _complain(str(error), 2)
    except FTLibError as error:
        return _complain(str(error), 1)
    except (click.Abort, KeyboardInterrupt):
        return 130
    return code if isinstance(code, int) else 0


def _misused(error: click.UsageError, where: str) -> int:
    """Tell what is wrong with a command line. ``where``: the command, if the error does not know it."""
    if error.ctx is not None and isinstance(error, _NO_ARGUMENTS):
        click.echo(error.ctx.get_help(), err=True)
        return 2
    where = where if error.ctx is None else error.ctx.command_path
    return _complain(f"{error.format_message()} See {where} --help", 2)


def _meant(command: click.Command, arguments: list[str], name: str) -> str:
    """The command that these arguments are for: click does not say where an option lacks its value."""
    for word in arguments:
        found = command.commands.get(word) if isinstance(command, click.Group) else None
        if found is None:
            break
        command, name = found, f"{name} {word}"
    return name


def completes(kind: str) -> Callable[[click.Context, click.Parameter, str], list[Any]]:
    """For what a shell completes as the name of a ``file`` or a ``dir``, while ftlib takes other texts there, too."""

    def complete(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[Any]:
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - for a TAB alone

        return [CompletionItem(begun, type=kind)]

    return complete


def _complain(text: str, code: int) -> int:
    click.echo(f"ftlib: error: {' '.join(text.split())}", err=True)
    return code


class _Run(click.Command):
    """The command, which knows what torchrun's options become."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click's, but for what an unknown option is told."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            known = [name for option in self.params for name in option.opts if name.startswith("-")]
            raise click.UsageError(refusal(error.option_name, known), ctx) from None


def _count_of_workers(_context: click.Context, _option: click.Parameter, value: str) -> int | str:
    """A number of at least 1, or one of ``_AS_THERE``."""
    if value in _AS_THERE:
        return value
    if not value.isdecimal() or not int(value):
        raise click.BadParameter(f"{value!r} is neither a number of at least 1 nor auto, gpu or cpu.")
    return int(value)


class Seconds(click.FloatRange):
    """A finite number of seconds: click takes nan for one that is within any range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """As click does; also refuses nan and inf."""
        found = float(super().convert(value, param, ctx))
        if not math.isfinite(found):
            self.fail(f"{found:g} is no number of seconds.", param, ctx)
        return found


def _words(_context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """A text with something in it: an empty one is most likely a variable of a script that was not set."""
    if value is not None and not value.strip():
        raise click.BadParameter(f"it is empty: give {option.metavar}, or leave it out.")
    return value


def _count_here(workers: int | str, shards: int, gpus: Gpus) -> int:
    """How many processes this host is to have. ConfigError if the GPUs are none, or no whole replicas."""
    if isinstance(workers, int):
        return workers * shards
    by_gpu = workers == "gpu" or (workers == "auto" and gpus.count > 0)
    count = gpus.required() if by_gpu else len(os.sched_getaffinity(0))
    if count % shards:
        what = "GPUs" if by_gpu else "processors"
        remedy = f"show {count - count % shards} of them" if by_gpu and count > shards else f"give -n {max(1, count // shards)}"
        raise ConfigError(f"-n {workers} --shards {shards}: {count} {what} are no whole replicas: {remedy}")
    return count


_FILE = click.Path(exists=True, dir_okay=False, readable=True, path_type=Path)
_AS_THERE: tuple[Literal["auto", "gpu", "cpu"], ...] = ("auto", "gpu", "cpu")
_WORKERS = (
    "How many workers. gpu: one for each GPU of CUDA_VISIBLE_DEVICES; cpu: for each processor; auto: GPUs, else processors."
)
_SHARDS = "Processes of each worker, which then is a replica that shards its model; -n and sizes count replicas."


def _place(text: str) -> Path | str:
    """A directory; a URL stays a text, whose slashes a path would join."""
    return text if "://" in text else Path(text)


@click.command(
    cls=_Run, context_settings={"allow_interspersed_args": False}, short_help="Start workers of a script, and keep them going."
)
@click.option("-n", "workers", metavar="N|auto", callback=_count_of_workers, required=True, help=_WORKERS)
@click.option("--shards", type=click.IntRange(min=1), default=1, show_default=True, help=_SHARDS)
@click.option(
    "--min", "min_workers", type=click.IntRange(min=1), default=1, show_default=True, help="Steps wait below this many members."
)
@click.option("--max", "max_workers", type=click.IntRange(min=1), default=None, help="Members above this many stay spares.")
@click.option(
    "--max-restarts",
    type=click.IntRange(min=0),
    default=DEFAULT_RESTARTS,
    show_default=True,
    help="Restarts of all workers together.",
)
@click.option(
    "--restart-delay",
    type=Seconds(min=0.0),
    default=1.0,
    show_default=True,
    help="Seconds from a death to the restart.",
)
@click.option(
    "--grace", type=Seconds(min=0.0), default=10.0, show_default=True, help="Seconds to drain after Ctrl-C or SIGTERM."
)
@click.option("--log-dir", type=click.Path(path_type=Path), default=None, help="Write worker-N.log there, too.")
@click.option("--events", type=click.Path(path_type=Path), default=None, help="Append one JSON line an event to this file.")
@click.option(
    "--resume",
    type=_place,
    default=None,
    metavar="DIRECTORY|URL",
    shell_complete=completes("dir"),
    help="Go on from the newest checkpoint there.",
)
@click.option("--dashboard", is_flag=True, help="Serve a live page of the job on 127.0.0.1, and print its address.")
@click.option("--resume-required", is_flag=True, help="Start nothing if --resume has no complete checkpoint.")
@click.option("--job", default=None, help="Job name  [default: a random one; with --meet FTLIB_JOB, or what is met]")
@click.option("--meet", default=None, metavar="HOST:PORT|auto", help="Run one on every host: where their workers meet.")
@click.option(
    "--size", type=click.IntRange(min=1), default=None, help="With --meet: workers of all hosts that the first step waits for."
)
@click.option(
    "--hosts", default=None, metavar="A,B:4|slurm", callback=_words, help="Start them on these hosts; -n is a number for each."
)
@click.option("--hosts-file", type=_FILE, default=None, help="One HOST:SLOTS a line; followed as it changes.")
@click.option(
    "--discover", default=None, metavar="COMMAND", callback=_words, help="It prints HOST:SLOTS lines; run every second."
)
@click.option(
    "--transport", default=None, metavar="KIND", callback=_words, help="ssh, slurm, local, or a command with {host} in it."
)
@click.option("--ssh-config", type=_FILE, default=None, help="Instead of ~/.ssh/config.")
@click.option(
    "--python",
    default=None,
    metavar="PATH",
    callback=_words,
    shell_complete=completes("file"),
    help="The interpreter at the hosts  [default: this one's path]",
)
@click.option("--setup", default="", metavar="COMMANDS", help="Shell commands to run at each host first.")
@click.option("-q", "--quiet", is_flag=True, help="With --hosts: do not show what workers write.")
@click.option("-m", "module", is_flag=True, help="SCRIPT is a module, as for python -m.")
@click.argument("script", shell_complete=completes("file"))
@click.argument("args", nargs=-1, type=click.UNPROCESSED, shell_complete=completes("file"))
def run(
    *,
    workers: int | Literal["auto", "gpu", "cpu"],
    shards: int,
    min_workers: int,
    max_workers: int | None,
    max_restarts: int,
    restart_delay: float,
    grace: float,
    log_dir: Path | None,
    events: Path | None,
    resume: Path | str | None,
    dashboard: bool,
    resume_required: bool,
    job: str | None,
    meet: str | None,
    size: int | None,
    hosts: str | None,
    hosts_file: Path | None,
    discover: str | None,
    transport: str | None,
    ssh_config: Path | None,
    python: str | None,
    setup: str,
    quiet: bool,
    module: bool,
    script: str,
    args: tuple[str, ...],
) -> int:
    """Start workers of SCRIPT, here or on other hosts, keep them going, and leave nothing behind.

    A worker that dies is restarted and joins the others; one that its peers find silent is killed first. With --meet the same
    command runs on every host, and worker 0 of each listens at that port: no launcher knows of the others, and none is needed.
    With --hosts (or --hosts-file, --discover, --transport) this one launcher logs in at each host.
    """
    if resume_required and resume is None:
        raise ConfigError("--resume-required: say where the checkpoints are, by --resume DIRECTORY")
    fleet = Fleet(hosts, hosts_file, discover, ssh_config, transport, python, setup, quiet)
    fleet.check()
    if fleet.wanted:
        if meet is not None:
            raise ConfigError("--meet is for a launcher on every host, --hosts for one of all hosts: give one of them")
        if resume_required:
            raise ConfigError("--resume-required goes without --hosts: this host cannot look into the others' directories")
        if dashboard:
            raise ConfigError("--dashboard goes without --hosts: ftlib dashboard ADDRESS, once a worker runs")
        if shards > 1 or size is not None:
            raise ConfigError("--shards and --size go without --hosts: run ftlib run on each host")
        from .many import run_fleet  # noqa: PLC0415 - as the next ones

        settings = {
            "min_workers": min_workers,
            "max_workers": max_workers,
            "max_restarts": max_restarts,
            "restart_delay": restart_delay,
            "grace": grace,
            "log_dir": log_dir,
            "events": events,
        }
        words = python_command(script, args, module=module)
        return run_fleet(fleet, words, workers=workers, job=job, resume=resume, settings=settings)
    from .run.meeting import meeting  # noqa: PLC0415 - as the next one
    from .run.supervisor import launch  # noqa: PLC0415 - brings the runtime, which the help does without

    gpus = GpuFinder(os.environ).find()
    count = _count_here(workers, shards, gpus)
    if meet is not None and shards > 1:
        raise ConfigError("--shards goes without --meet: give each host its own -n, and FTLIB_INTRODUCERS everywhere")
    if meet is None and size is not None:
        raise ConfigError("--size is the number of workers of all hosts: give --meet HOST:PORT, at which they meet")
    place = None if meet is None else meeting(meet, os.environ, workers=count, size=size)
    plan = StartPlan(
        command=python_command(script, args, module=module),
        workers=count,
        shards=shards,
        gpus=gpus.count,
        job=job or (random_job() if place is None else os.environ.get("FTLIB_JOB") or place.job),
        min_workers=min_workers,
        max_workers=max_workers,
        max_restarts=max_restarts,
        restart_delay=restart_delay,
        log_dir=log_dir,
        events=events,
        resume=resume,
        resume_required=resume_required,
        dashboard=dashboard,
        grace=grace,
        meeting=place,
    )
    return launch(plan)
