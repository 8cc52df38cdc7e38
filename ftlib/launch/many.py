"""``ftlib run --hosts``: workers of a program on many hosts, with an agent at each; the launch is always elastic."""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from ..common.processes import describe_exit
from ..errors import ConfigError, FTLibError, WorkerFailedError
from .hosts.fleet import Fleet
from .launcher import Launch, Launcher
from .processes import guard
from .processes.output import Writer
from .processes.process import shell_code

_HASTE = 1.0
"""Seconds that the last words may take, once a signal has come."""


def run_fleet(
    fleet: Fleet,
    command: Sequence[str],
    *,
    workers: int | Literal["auto", "gpu", "cpu"],
    job: str | None,
    resume: Path | str | None,
    settings: Mapping[str, Any],
) -> int:
    """Run it to its end; returns the shell's exit code. ``settings``: further arguments of ``Launcher``."""
    try:
        launcher = Launcher(
            hostnames=fleet.names,
            workers_per_host=workers,
            ssh_config_file=fleet.ssh_config,
            python=fleet.python,
            setup=fleet.setup,
            transport=fleet.way,
            hosts_file=fleet.hosts_file,
            discover=fleet.discover,
            quiet=fleet.quiet,
            **settings,
        )
        launch = launcher.start_program(_words(fleet, command), job=job, resume=_begins(resume), sole=True)
    except ConfigError as error:
        raise ConfigError(_as_options(str(error))) from None
    with _cancelling(launch) as got:
        code, words = _end_of(launch)
        _say(words + _summary(launch), got)
    return 128 + got[0] if got else code


def _words(fleet: Fleet, command: Sequence[str]) -> list[str]:
    """The program, by the interpreter that the hosts have."""
    return [fleet.python, *command[1:]] if fleet.python is not None else list(command)


def _begins(resume: Path | str | None) -> str:
    return str(resume.absolute() if isinstance(resume, Path) else resume or "")


def _as_options(text: str) -> str:
    """What ``Launcher`` says of an argument, with the option's name: ``min_workers=2: ...`` is ``--min 2: ...``."""
    match = re.match(r"(\w+)(=| )", text)
    if match is None or match[1] not in _OPTIONS:
        return text
    return re.sub(r"\bmin_workers\b", "--min", f"{_OPTIONS[match[1]]} {text[match.end() :]}")


_OPTIONS = {
    "min_workers": "--min", "max_workers": "--max", "log_dir": "--log-dir", "events": "--events", "job": "--job",
    "transport": "--transport",
}  # fmt: skip


def _end_of(launch: Launch) -> tuple[int, str]:
    """Wait for the end; returns the shell's exit code, and why it is that."""
    try:
        launch.wait()
    except WorkerFailedError as error:
        code = -error.signal if error.signal is not None else error.code
        words = [str(error), *getattr(error, "__notes__", [])]
        return shell_code(code or 1), "".join(f"[ftlib] {each}\n" for each in words)
    except CancelledError:
        return 1, ""
    except FTLibError as error:
        return 1, f"ftlib: error: {error}\n"
    return 0, ""


def _say(text: str, got: Sequence[int]) -> None:
    """Write it to stderr, if that takes it. On a thread: its reader may stand still, and is waited for until a signal comes."""
    if sys.stderr is None:
        return
    writer = Writer(lambda: None)
    writer.put(2, text.encode("utf-8", "replace"))
    while not writer.close(_HASTE) and not got:
        pass  # no deadline: ``| less`` may stand for hours


@contextmanager
def _cancelling(launch: Launch) -> Iterator[list[int]]:
    """While this block runs the first signal drains the workers and the second one kills them."""
    got: list[int] = []
    twins = guard.Twins()

    def cancel(number: int, _frame: FrameType | None) -> None:
        if twins.again(number):
            return
        got.append(number)
        # Nothing is written here: stderr may have lost its terminal, or its reader may stand still.
        launch.cancel(f"{signal.Signals(number).name}: draining the workers (again: kill them)" if len(got) == 1 else "")

    before = {number: signal.signal(number, cancel) for number in guard.obeyed_signals()}
    try:
        yield got
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _summary(launch: Launch) -> str:
    """How many have finished; behind a table of all workers, where not all went well."""
    workers = launch.workers()
    if not workers:
        return ""  # no host came so far: why is told already
    text = io.StringIO()
    if any(worker["phase"] != "finished" or worker["starts"] != 1 for worker in workers):
        from rich.console import Console  # noqa: PLC0415 - only the end of a run that had trouble needs it
        from rich.table import Table  # noqa: PLC0415

        rows = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("host", "worker", "starts", "outcome"):
            rows.add_column(name, no_wrap=True)
        for worker in workers:
            ended = "" if worker["phase"] == "finished" else f" ({describe_exit(worker['code'])})" if worker["code"] else ""
            rows.add_row(worker["host"], str(worker["local_rank"]), str(worker["starts"]), f"{worker['phase']}{ended}")
        width = max(80, shutil.get_terminal_size((120, 24)).columns)
        coloured = os.isatty(2) and "NO_COLOR" not in os.environ
        # Into a text: rich makes a reader that has left a SystemExit.
        Console(file=text, force_terminal=coloured, no_color=not coloured, width=width, highlight=False).print(rows)
    done = sum(worker["phase"] == "finished" for worker in workers)
    return f"{text.getvalue()}[ftlib] {done} of {len(workers)} workers finished\n"
