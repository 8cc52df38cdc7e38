"""Run a function, or a program, on many hosts: ``Launcher`` says where and how, ``Launch`` is one that runs.

    result = Launcher(hostnames=["node1", "node2"], workers_per_host=4).run(train, learning_rate=0.1)
    print(result.rank(0))

All that it needs is a login to each host and the same ftlib there. See docs/launcher.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import io
import logging
import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from consensus import import_path

from ..common.processes import working_directory
from ..errors import ConfigError
from .checks import fault, is_list, is_text, wrong_files, wrong_kinds, wrong_variables
from .director.decisions.rules import Rules
from .director.director import Director
from .director.plan import HostSource, Plan
from .hosts.names import Discovery, HostsFile, parse_host, slurm_hosts
from .hosts.transport import Transport
from .parcel import pack_function
from .processes.credentials import SecretsFile, given, new_secret
from .processes.inherited import OURS
from .result import LaunchResult
from .run.plan import random_job

DEFAULT_ENV_VARS_FOR_COPY = (
    "PATH", "LD_LIBRARY*", "LIBRARY_PATH", "PYTHON*", "CUDA*", "TORCH*", "PYTORCH*", "NCCL*", "GLOO*", "OMP_*", "MKL_*",
    "FTLIB_*",
)  # fmt: skip
"""Patterns of variables that workers get from the caller unless another choice is made."""
_NEVER = {*OURS, "PYTHONHOME", "PYTHONSTARTUP", "PYTHONINSPECT"}
_JOB = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass
class Launcher:
    """Where and how workers are started. Checked as it is made; ``run`` and ``start`` may be called again, from any thread."""

    hostnames: Literal["auto", "slurm"] | Sequence[str] = "auto"
    """``"auto"``: the nodes of a Slurm allocation, else this machine. A list: names for ssh; ``host:2``: two workers."""
    workers_per_host: Literal["auto", "cpu", "gpu"] | int | Sequence[int] = "auto"
    """``"auto"``: one for each GPU, or for each CPU where there is none. A list: a number for each host."""
    ssh_config_file: str | os.PathLike[str] | None = None
    """Instead of the user's own."""
    backend: Literal["gloo", "nccl"] | None = None
    """Of a default ``torch.distributed`` group that the function finds ready; None: it finds none."""
    worker_timeout: float = 600.0
    """Seconds that an operation of that group may take."""
    agent_timeout: float = 30.0
    """Seconds of silence after which a host counts as lost, and a caller for its hosts."""
    copy_env_vars: Sequence[str] = DEFAULT_ENV_VARS_FOR_COPY
    """Patterns of variables that workers get from this process."""
    extra_env_vars: Mapping[str, str] | None = None
    """Variables that win over those copied, and over the file's."""
    env_file: str | os.PathLike[str] | None = None
    """A file of ``NAME=value`` lines, read here, by python-dotenv."""
    python: str | None = field(default=None, kw_only=True)
    """The interpreter at the hosts; None: this one's path."""
    setup: str = field(default="", kw_only=True)
    """Shell commands to run at each host before the agent starts (``module load ...``)."""
    transport: str | Sequence[str] = field(default="auto", kw_only=True)
    """auto, local, ssh, slurm, or a command with ``{host}`` in it."""
    min_workers: int | None = field(default=None, kw_only=True)
    """Given: the launch is elastic, and goes on with so many."""
    max_workers: int | None = field(default=None, kw_only=True)
    """Members above this many stay spares (``FTLIB_MAX_SIZE``)."""
    max_restarts: int = field(default=0, kw_only=True)
    """Of all workers together; above 0 the launch is elastic."""
    restart_delay: float = field(default=1.0, kw_only=True)
    hosts_file: str | os.PathLike[str] | None = field(default=None, kw_only=True)
    """A file of ``host:workers`` lines, followed as it changes: the launch is elastic."""
    discover: str | None = field(default=None, kw_only=True)
    """A command that prints such lines, run every second or so: the launch is elastic."""
    log_dir: str | os.PathLike[str] | None = field(default=None, kw_only=True)
    """Where to write ``HOST-LOCALRANK.log``."""
    events: str | os.PathLike[str] | None = field(default=None, kw_only=True)
    """Where to append one JSON line an event."""
    grace: float = field(default=10.0, kw_only=True)
    """Seconds from SIGTERM to SIGKILL where a launch is cancelled or a host is removed."""
    results: Literal["pickle", "data"] = field(default="pickle", kw_only=True)
    """``"data"``: nothing that hosts send is unpickled here; plain values, numpy arrays and tensors alone."""
    preload: Sequence[str] = field(default=("torch",), kw_only=True)
    """Modules that each host imports once, for all of its workers."""
    quiet: bool = field(default=False, kw_only=True)
    """No live view of the workers' lines."""

    def __post_init__(self) -> None:
        """Raise ConfigError where settings do not fit together, naming the remedy."""
        self._handlers: Callable[[], Iterable[logging.Handler]] | None = None
        self._live = not self.quiet
        for text in self._faults():
            raise ConfigError(text)
        self._transport()
        if isinstance(self.hostnames, Sequence) and not isinstance(self.hostnames, str) and self._refresher() is None:
            self._hosts(None)

    def _faults(self) -> Iterator[str]:
        """What is wrong, the first first: what follows may rely on what came before."""
        yield from wrong_kinds({each.name: getattr(self, each.name) for each in fields(self)})
        yield from wrong_variables(self.extra_env_vars or {})
        yield from wrong_files(env_file=self.env_file)
        if self.elastic and self.backend is not None:
            yield "backend: an elastic launch has no fixed group: leave it out, and call FTLib.init in the function"
        if self.max_workers is not None and self.max_workers < (self.min_workers or 1):
            yield fault("max_workers", self.max_workers, f"a number of at least min_workers ({self.min_workers}), or None")
        if self.hosts_file is not None and self.discover is not None:
            yield "hosts_file and discover both say which hosts there are: give one of them"
        if (self.hosts_file is not None or self.discover is not None) and self.hostnames != "auto":
            other = "hosts_file" if self.hosts_file is not None else "discover"
            yield f"hostnames and {other} both say which hosts there are: give one of them"

    @property
    def elastic(self) -> bool:
        """Whether workers and hosts may come and go."""
        moving = self.hosts_file is not None or self.discover is not None
        return moving or self.max_restarts > 0 or self.min_workers is not None or self.max_workers is not None

    def set_logging_handlers(self, handlers: Callable[[], Iterable[logging.Handler]] | Literal["auto"] | None) -> Launcher:
        """What becomes of the workers' lines: ``"auto"``: a live view; None: nothing; else a function that returns handlers.

        It is called in a thread of this process, which alone uses them. Each record has ``hostname``, ``local_rank`` (None: the
        agent), ``rank`` and ``stream``. Files in ``log_dir`` are written anyhow. Returns this launcher.
        """
        if handlers is not None and handlers != "auto" and not callable(handlers):
            raise ConfigError('set_logging_handlers: give "auto", None, or a function that returns handlers')
        self._live = handlers == "auto" and not self.quiet
        self._handlers = handlers if callable(handlers) else None
        return self

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> LaunchResult:
        """Call ``function(*args, **kwargs)`` in every worker and wait for all; returns what they returned.

        Raises the exception of the worker that failed first, WorkerFailedError, AgentFailedError or ConfigError. Ctrl-C ends
        the workers before KeyboardInterrupt is raised.
        """
        return self.start(function, *args, **kwargs).run_to_end()

    def start(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Launch:
        """The same without waiting. ConfigError at once for what cannot be sent to the workers."""
        if not callable(function):
            raise ConfigError(fault("function", function, "a function, and its arguments behind it"))
        return self._start(pack_function(function, args, kwargs), ())

    def start_program(self, command: Sequence[str], *, job: str | None = None, resume: str = "", sole: bool = False) -> Launch:
        """Run a program in every worker instead, as ``ftlib run`` does. ``resume``: a directory of checkpoints.

        ``sole``: this process does nothing else. Lines go to descriptors 1 and 2, and their reader is waited for at the end.
        """
        if not is_list(command, is_text) or not command:
            raise ConfigError(fault("command", command, 'a list of words, as ["python", "train.py"]'))
        return self._start(b"", tuple(command), job, resume, sole=sole)

    def _start(
        self, call: bytes, command: tuple[str, ...], job: str | None = None, resume: str = "", *, sole: bool = False
    ) -> Launch:
        director = Director(self._plan(call, command, job, resume, sole=sole))
        director.start()
        return Launch(director)

    def _plan(self, call: bytes, command: tuple[str, ...], job: str | None, resume: str, *, sole: bool) -> Plan:
        if job is not None and not _JOB.fullmatch(job):
            raise ConfigError(f"job {job!r}: use 1 to 64 letters, digits, dots, dashes and underscores")
        variables = self._variables()
        found = given()
        refresh = self._refresher()
        return Plan(
            job=job or random_job(),
            hosts=self._hosts(refresh),
            transport=self._transport(),
            rules=Rules(
                elastic=self.elastic,
                backend=self.backend is not None,
                min_workers=int(self.min_workers or 1),
                max_restarts=int(self.max_restarts),
                restart_delay=float(self.restart_delay),
                grace=float(self.grace),
                patience=float(self.worker_timeout),
                moving=refresh is not None,
            ),
            slots=self._slots(),
            call=call,
            command=command,
            variables=variables,
            secret=found if isinstance(found, str) else new_secret(),
            secrets=found if isinstance(found, SecretsFile) else None,
            backend=self.backend or "",
            worker_timeout=float(self.worker_timeout),
            agent_timeout=float(self.agent_timeout),
            results=self.results,
            preload=() if command else tuple(self.preload),
            directory=str(working_directory()),
            path=[os.path.abspath(each) for each in import_path()],  # noqa: PTH100 - text for another machine
            max_workers=int(self.max_workers) if self.max_workers is not None else None,
            resume=resume,
            log_dir=Path(self.log_dir) if self.log_dir is not None else None,
            events=Path(self.events) if self.events is not None else None,
            live=self._live,
            sole=sole,
            handlers=self._handlers,
            refresh=refresh,
        )

    def _transport(self) -> Transport:
        config = Path(self.ssh_config_file).expanduser() if self.ssh_config_file is not None else None
        return Transport(self.transport, os.fspath(self.python) if self.python is not None else None, self.setup, config)

    def _hosts(self, refresh: HostSource | None) -> list[tuple[str, int | None]]:
        if refresh is not None:
            found = list(refresh().items())
        elif self.hostnames == "slurm" or (self.hostnames == "auto" and "SLURM_JOB_ID" in os.environ):
            found = [(name, None) for name in slurm_hosts(os.environ)]
        elif self.hostnames == "auto":
            found = [("localhost", None)]
        else:
            found = [parse_host(name) for name in self.hostnames]
        names = [name for name, _ in found]
        if not names and refresh is None:
            raise ConfigError("hostnames=[]: there is no host: name at least one")
        if len(set(names)) < len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise ConfigError(f"the host {twice[0]} is named twice: name it once, and give it more workers: {twice[0]}:2")
        if isinstance(self.workers_per_host, Sequence) and not isinstance(self.workers_per_host, str):
            if len(self.workers_per_host) != len(names):
                raise ConfigError(
                    f"workers_per_host has {len(self.workers_per_host)} numbers for {len(names)} hosts: give one for each"
                )
            found = [(name, slots or int(number)) for (name, slots), number in zip(found, self.workers_per_host, strict=True)]
        return found

    def _slots(self) -> int | str:
        """Workers of a host for which there is no number of its own."""
        match self.workers_per_host:
            case str() as word:
                return word
            case Sequence():
                return 1
            case number:
                return int(number)

    def _refresher(self) -> HostSource | None:
        if self.hosts_file is not None:
            return HostsFile(Path(self.hosts_file))
        return Discovery(self.discover) if self.discover is not None else None

    def _variables(self) -> dict[str, str]:
        found = {
            name: value
            for name, value in os.environ.items()
            if name not in _NEVER and any(fnmatch.fnmatchcase(name, pattern) for pattern in self.copy_env_vars)
        }
        if self.env_file is not None:
            found |= _read_env_file(Path(self.env_file).expanduser())
        return found | {name: str(value) for name, value in (self.extra_env_vars or {}).items()}


def _read_env_file(path: Path) -> dict[str, str]:
    try:
        from dotenv import dotenv_values  # noqa: PLC0415 - most launches have no such file
    except ImportError:
        raise ConfigError("env_file needs the package python-dotenv: pip install python-dotenv") from None
    try:
        found = dotenv_values(stream=io.StringIO(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(f"env_file={path}: {why}: give a file of NAME=value lines that can be read") from None
    return {name: value for name, value in found.items() if value is not None}


class Launch:
    """One launch under way. Awaitable; usable from any thread."""

    def __init__(self, director: Director) -> None:
        self._director = director

    def wait(self, timeout: float | None = None) -> LaunchResult:
        """Wait for the end; returns what ``run`` returns and raises what it raises. TimeoutError after ``timeout`` seconds."""
        result: LaunchResult = self._director.future.result(timeout)
        return result

    def run_to_end(self) -> LaunchResult:
        """Wait for the end; Ctrl-C cancels the launch and waits for that, a second one kills its workers at once."""
        try:
            return self.wait()
        except KeyboardInterrupt:
            self._wind_up()
            raise

    def _wind_up(self) -> None:
        while True:
            self.cancel()
            try:
                self._director.future.exception()
            except KeyboardInterrupt:
                continue
            return

    @property
    def done(self) -> bool:
        """Whether it is over."""
        return self._director.future.done()

    def cancel(self, said: str = "") -> None:
        """End it: SIGTERM to all workers, SIGKILL after the grace; again: at once. ``wait`` then raises CancelledError.

        Handlers of signals may call it. ``said``: a line for stderr, written where the workers' lines are.
        """
        self._director.cancel(said)

    def workers(self) -> list[dict[str, Any]]:
        """The facts about each worker: host, ranks, phase, starts, process id, address, view."""
        return self._director.workers()

    def add_hosts(self, hosts: Sequence[str]) -> None:
        """Hosts more, as ``hostnames`` has them. Of an elastic launch."""
        self._require_elastic(hosts)
        self._director.add_hosts(dict(parse_host(host) for host in hosts))

    def remove_hosts(self, hosts: Sequence[str]) -> None:
        """Have these drain: SIGTERM to their workers, SIGKILL after the grace. Of an elastic launch."""
        self._require_elastic(hosts)
        self._director.remove_hosts(list(hosts))

    def _require_elastic(self, hosts: Sequence[str]) -> None:
        if not is_list(hosts, is_text):
            raise ConfigError(fault("hosts", hosts, "a list of names"))
        if not self._director.plan.rules.elastic:
            raise ConfigError("the hosts of this launch are fixed: give the Launcher min_workers, and it is elastic")

    def __await__(self) -> Generator[Any, None, LaunchResult]:
        return self._awaited().__await__()

    async def _awaited(self) -> LaunchResult:
        """``wait`` in an event loop. A task that is cancelled while it waits here cancels the launch."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()

        def end() -> None:
            if not over.done():
                over.set_result(None)

        def tell(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(end)

        self._director.future.add_done_callback(tell)
        try:
            await over
        except asyncio.CancelledError:
            self.cancel()
            raise
        try:
            return self.wait()  # a worker's StopIteration becomes a RuntimeError here, as in every coroutine
        except CancelledError as error:
            raise asyncio.CancelledError(*error.args) from None

    def __repr__(self) -> str:
        return f"<Launch {self._director.plan.job}, {'over' if self.done else 'running'}>"
