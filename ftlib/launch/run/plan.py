"""What is to run: the settings of one ``ftlib run``, checked once, before anything starts."""

from __future__ import annotations

import importlib.util
import json
import re
import secrets
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from ...checkpoints.names import Name, complete, of_shards, whole_names
from ...common.processes import working_directory
from ...errors import ConfigError

DEFAULT_RESTARTS = 3
"""Restarts of all workers together. Enough for bad luck; a script that always crashes ends after a few tracebacks."""

_ASKING = 300.0
"""Seconds for a store to say which checkpoints it has: a process that imports torch asks it."""
_JOB = re.compile(r"[A-Za-z0-9._-]{1,64}")


def random_job() -> str:
    """A job name that nobody else has."""
    return f"job-{secrets.token_hex(8)}"


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where all workers of a job meet."""

    introducers: tuple[str, ...]
    """``host:port`` each; a name may stand for several hosts. The same list on every host."""
    size: int
    """How many workers, of all hosts together, must have met before the first view."""
    job: str
    """The job's name where the user gives none: the same on every host."""
    by: str = "--meet"
    """Whose variables say so, for people."""


@dataclass(frozen=True, slots=True)
class StartPlan:
    """One run. Times are in seconds."""

    command: tuple[str, ...]
    """The worker's argument list, see :func:`python_command`."""

    workers: int
    """How many are started: processes, where a replica has several."""

    shards: int = 1
    """Processes of a replica; they are started and restarted together. Sizes count replicas."""

    gpus: int = 0
    """How many GPUs each of them sees; 0: none."""

    job: str = field(default_factory=random_job)
    """Members of different jobs never mix. A caller of the fence endpoint must know it too."""

    min_workers: int = 1
    """Steps wait below this; the run ends when fewer can ever run again."""

    max_workers: int | None = None
    """Members above this stay spares."""

    max_restarts: int = DEFAULT_RESTARTS
    """How many restarts all workers together may have."""

    restart_delay: float = 1.0
    """Between a death and the restart, so that a worker which dies at once is not restarted in a tight loop."""

    grace: float = 10.0
    """After Ctrl-C or SIGTERM, workers have so long to drain before SIGKILL."""

    log_dir: Path | None = None
    """Where to write ``worker-N.log``; None: nowhere."""

    events: Path | None = None
    """Where to append one JSON line an event; None: nowhere."""

    resume: Path | str | None = None
    """Checkpoints to go on from, a directory or a URL (a text); None: the script decides how it begins."""

    resume_required: bool = False
    """Whether nothing is started where there is no complete checkpoint to go on from."""

    dashboard: bool = False
    """Whether a page of the job is served on this host."""

    meeting: Meeting | None = None
    """Where the workers of other hosts are met; None: there are none."""

    @property
    def fewest(self) -> int:
        """The run ends when fewer workers of this host than that can ever run again."""
        return self.min_workers * self.shards if self.meeting is None else 1

    @property
    def size(self) -> int:
        """How many workers there are, on all hosts."""
        return self.workers if self.meeting is None else self.meeting.size

    @property
    def beginning(self) -> str:
        """What the founders begin from, as text for people."""
        if self.resume is None:
            return "what the script starts or loads"
        if isinstance(self.resume, str):
            return f"the newest checkpoint at {self.resume}, if there is one"
        if Name.parse(self.resume.name) is not None and self.resume.is_dir():
            return str(self.resume)
        try:
            if self.shards > 1:
                return f"the newest checkpoint of all shards in {self.resume}"
            names = complete(self.resume)
        except OSError as error:
            return f"what is in {self.resume}, which this process cannot read ({error.strerror})"
        return f"{self.resume / str(names[0])}" if names else f"scratch: there is no complete checkpoint in {self.resume}"

    def __post_init__(self) -> None:
        """Raise ConfigError if the plan cannot run, naming the option and the remedy."""
        if self.workers < 1:
            raise ConfigError(f"-n {self.workers}: give the number of workers, at least 1")
        if self.shards < 1 or self.workers % self.shards:
            raise ConfigError(f"{self.workers} workers are no whole replicas of {self.shards}: give a multiple")
        if not 1 <= self.min_workers <= self.size // self.shards:
            option = "-n" if self.meeting is None else "--size"
            raise ConfigError(f"--min {self.min_workers}: give a number from 1 to {option} ({self.size // self.shards})")
        if self.max_workers is not None and self.max_workers < self.min_workers:
            raise ConfigError(f"--max {self.max_workers}: give a number of at least --min ({self.min_workers})")
        if self.max_restarts < 0:
            raise ConfigError(f"--max-restarts {self.max_restarts}: give a number of at least 0")
        if self.restart_delay < 0 or self.grace < 0:
            raise ConfigError("--restart-delay and --grace are seconds: give numbers of at least 0")
        self._check_resume()
        if not _JOB.fullmatch(self.job):
            raise ConfigError(f"--job {self.job!r}: use 1 to 64 letters, digits, dots, dashes and underscores")

    def _check_resume(self) -> None:
        if isinstance(self.resume, str):
            if self.resume_required and not _complete_at(self.resume, self.shards):
                raise ConfigError(
                    f"--resume-required: there is no complete checkpoint at {self.resume}"
                    f"{'' if self.shards == 1 else f' of all {self.shards} shards'}: give another --resume"
                )
        elif self.resume is not None and self.resume.exists() and not self.resume.is_dir():
            raise ConfigError(f"--resume {self.resume}: that is a file; give a directory of checkpoints")
        if self.resume_required and isinstance(self.resume, Path) and not self._can_resume(self.resume):
            raise ConfigError(f"--resume-required: there is no complete checkpoint in {self.resume}: give another --resume")

    def _can_resume(self, path: Path) -> bool:
        """Whether there is a checkpoint at ``path`` or in it, of all shards."""
        try:
            if (named := Name.parse(path.name)) is not None and path.is_dir():
                return True
            if self.shards == 1:
                return bool(complete(path))
            whole = whole_names(of_shards(path if named is None else path.parent, self.shards))
            return bool(whole) if named is None else named in whole
        except OSError as error:
            raise ConfigError(f"--resume {path}: {error.strerror}: give a directory that can be read") from None


def _complete_at(url: str, shards: int) -> bool:
    """Whether there is a complete checkpoint, of all shards. A process of its own asks, as this one does not import torch."""
    command = [sys.executable, "-m", "ftlib.checkpoints.command", "list", url, "--json"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_ASKING)  # noqa: S603
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"--resume {url}: the store has not answered within {_ASKING:g} s: see ftlib checkpoints list"
        ) from None
    if said.returncode:
        reason = (said.stderr.strip().splitlines() or [f"exit code {said.returncode}"])[-1]
        raise ConfigError(f"--resume-required: {reason}")
    rows = [json.loads(line) for line in said.stdout.splitlines()]
    if shards > 1:
        return any(row.get("whole") and row["shards"] == shards for row in rows)
    return any("shards" not in row and row.get("complete", True) and "torn" not in row for row in rows)


def python_command(target: str, args: tuple[str, ...], *, module: bool) -> tuple[str, ...]:
    """The argument list that runs a script (or a module) with this interpreter; ConfigError if it is not there."""
    if module:
        _require_module(target)
        return (sys.executable, "-m", target, *args)
    path = Path(target)
    if path.is_dir() and not (path / "__main__.py").is_file():
        raise ConfigError(f"{target} is a directory without __main__.py: give a script, or -m and a module")
    if not path.exists():
        raise ConfigError(f"no script {target} in {working_directory()}: check the path, or give -m for a module")
    return (sys.executable, target, *args)


def _require_module(name: str) -> None:
    """Look for the top-level package only: finding a submodule would import its parents into the launcher."""
    top = name.partition(".")[0]
    sys.path.insert(0, str(working_directory()))  # where the worker's python -m looks first
    try:
        found = top.isidentifier() and importlib.util.find_spec(top) is not None
    except ValueError:
        found = True  # __main__ and the like have no spec; the worker will say what is wrong
    finally:
        sys.path.pop(0)
    if not found:
        raise ConfigError(f"no module named {top} here: install it, or start in the directory that holds it")
