"""Settings: the sources of each, their precedence, and the resulting values.

Precedence: argument of ``FTLib.init`` > variable ``FTLIB_<NAME>`` > file (``config=``, ``FTLIB_CONFIG``, ``./ftlib.toml``;
table ``[ftlib]``) > variables of torchrun or Slurm (``environment``) > default. An unknown setting is an error with the nearest
name, since a misspelt one would silently do nothing.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import consensus
from consensus import Gossip, Membership, SharedStorage

from ..common.logs import FORMATS, LEVELS
from ..errors import ConfigError
from . import readers
from .environment import Launched, launched
from .readers import above, as_duration_or_zero, as_preemption, as_trace, as_unicode, one_of
from .replicas import Part, part_of

Seconds: TypeAlias = float
Count: TypeAlias = int


class _Unsaid(str):
    """A default that differs from the same word given by a user."""

    __slots__ = ()


UNSAID = _Unsaid("gossip")
"""The backend if none was chosen."""

BACKENDS: Mapping[str, type[Membership]] = {"gossip": Gossip, "shared_storage": SharedStorage}
"""The backends, by the names that the setting ``consensus`` takes."""

_PREFIX = "FTLIB_"
_OTHER_VARIABLES = frozenset({"CONFIG", "SUPERVISOR", "NAME", "WORKER_INDEX", "PORT", "FENCE_NAME", "REHEARSAL"})
"""Variables that are no settings, though some look like settings."""
_DEFAULT_FILE = Path("ftlib.toml")
VETO = "veto"
BUCKET_MB = 16.0
"""Default size of a bucket: smaller ones cost more operations, larger ones overlap copying and sending less."""
_SECRETS = ("secret", "secret_file")
"""Two ways to give one value: the source that wins decides both."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What ``FTLib`` needs. docs/operations.md has a table made of the fields: name, default, the first paragraph below."""

    consensus: consensus.Config
    backend: type[Membership] = Gossip
    """How members find out who is alive, and agree (the setting ``consensus``): ``gossip`` among each other, or
    ``shared_storage`` (docs/storage.md)."""

    step_timeout: Seconds = 600.0
    """The longest a call may take, view changes included. It begins anew where fewer than ``min_size`` members were there."""
    min_size: Count = 1
    """Calls wait while there are fewer members."""
    bucket_mb: float = field(default=BUCKET_MB, metadata={"reader": above(0)})
    """Size of a bucket in MiB."""
    in_flight: Count = 4
    """Buckets under way at a time."""
    rejoin: bool = False
    """Whether a worker that was excluded joins again by itself, within the call that would raise ``Excluded``. True under
    policy ``any``."""
    nonfinite: str = field(default=VETO, metadata={"reader": one_of(VETO, "pass", empty=False)})
    """What inf or nan in an average does: ``veto`` (nobody applies it) or ``pass`` (it is delivered)."""
    keep: Count = 3
    """Checkpoints (docs/state.md#checkpoints) that ``ft.save`` leaves in its directory, the newest ones."""
    recovery: str = field(default="live", metadata={"reader": one_of("live", "wait")})
    """How a joiner gets the state: ``live``, beside the others' training (where averages can be replayed:
    docs/state.md#how-a-joiner-gets-the-state), or ``wait``: the others wait."""
    recovery_transport: str = field(default="http", metadata={"reader": one_of("http", "group")})
    """How a live one gets it: ``http``, or ``group`` (through the process group, in place)."""
    recovery_bandwidth: float = 0.0
    """Bytes a second that a joiner asks for at most; 0: no limit."""
    recovery_pending_mb: float = field(default=2048.0, metadata={"reader": above(0)})
    """MiB of averages that a joiner holds until they are replayed; beyond it the others wait for it."""
    straggler_deadline: Seconds | None = None
    """Seconds outside of calls after which the others go on without a worker; it takes over what it missed
    (docs/elasticity.md#a-deadline). None: they wait."""
    straggler_factor: float = field(default=2.0, metadata={"reader": above(1)})
    """A member is slow in a step that takes it more than so many times the median of the others
    (docs/elasticity.md#stragglers)."""
    straggler_steps: Count = 10
    """Steps in a row after which a slow member is called a straggler."""
    preemption: str | Callable[[], Any] = field(default="", metadata={"reader": as_preemption})
    """Where a notice would appear that this machine is taken away: ``file:PATH``, ``signal:NAME``, ``aws``, ``gcp``, ...; in
    a program also a function (docs/elasticity.md#preemption)."""
    handover: Seconds = field(default=20.0, metadata={"reader": as_duration_or_zero})
    """Seconds that a worker with notice stays where it alone has the state and another one is on its way
    (docs/elasticity.md#the-last-one-with-the-state); 0: it never does."""
    drain_patience: Seconds | None = field(default=None, metadata={"reader": as_duration_or_zero})
    """Seconds that a worker with notice waits for a sync (docs/local_sgd.md#when-something-fails) or a view change that ends
    soon, before it leaves. None: twice ``exclude_after`` and a second."""
    resume: str = ""
    """Checkpoints, in a directory or at a URL: founders load the newest one in ``register_state`` (``ftlib run --resume``)."""
    chaos: bool = False
    """Whether faults may be injected: by the program (``FaultInjector``), and by whoever has the job's secret
    (``ftlib chaos``): docs/chaos.md."""
    replica: str = field(default="", metadata={"reader": as_unicode})
    """The replica that this process is part of; equal at the processes of one replica (docs/replicas.md)."""
    shard: int = 0
    """Which of the replica's processes this is, from 0; under torchrun, one of which runs in each replica, its RANK."""
    shards: Count = 1
    """Processes of a replica, equal at all; under torchrun in a named replica its WORLD_SIZE."""
    trace: int | None = field(default=None, metadata={"reader": as_trace})
    """Spans for OpenTelemetry (docs/tracing.md): ``on``, of view changes, recoveries, checkpoints, and calls that were slow,
    redone or adopted; or a number N, also of every N-th call."""
    log_format: str = field(default="", metadata={"reader": one_of(*FORMATS)})
    """``plain`` or ``json``: show this library's log on stderr; none: leave the program's logging alone."""
    log_level: str = field(default="", metadata={"reader": one_of(*LEVELS)})
    """The lowest level to show there; alone it means ``plain``."""

    # What is found, not set.

    supervisor: str = ""
    """``host:port`` of the launcher, empty without one."""
    name: str = ""
    """What logs call this worker."""
    launched: Launched | None = None
    """What another launcher says; None under ``ftlib run``, without a launcher, and where introducers were given."""

    @property
    def part(self) -> Part:
        """Which part of which replica this process is."""
        return Part(self.replica, self.shard, self.shards)

    def agreeing(self, **terms: str) -> Settings:
        """The same settings for a member that also needs ``terms`` (name -> one word) to be equal at all members of its job."""
        agreement = " ".join([self.consensus.agreement, *(f"{name}={value}" for name, value in terms.items())])
        return dataclasses.replace(self, consensus=dataclasses.replace(self.consensus, agreement=agreement))


def _readers_of(kind: type, *left_out: str) -> dict[str, readers.Reader]:
    """Return the readers of the settings that are fields of ``kind``, by name."""
    return {
        item.name: item.metadata.get("reader") or readers.BY_TYPE[str(item.type)]
        for item in dataclasses.fields(kind)
        if item.name not in left_out
    }


_OWN = _readers_of(Settings, "consensus", "backend", "supervisor", "name", "launched")
READERS: Mapping[str, readers.Reader] = {
    "consensus": one_of(*BACKENDS),
    **_readers_of(consensus.Config, "liveness"),  # left out, since it follows from the backend
    **_OWN,
}
"""The reader of each setting."""


def resolve(
    arguments: Mapping[str, Any] | None = None,
    config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    backend: type[Membership] | None = None,
) -> Settings:
    """Return all settings, checked, for ``backend`` (None: the one that the settings name). Raises ConfigError naming the
    setting, its source and the remedy.
    """
    environment = os.environ if environment is None else environment
    found: dict[str, Any] = {}
    for source, values in [
        _from_file(config, environment),
        ("the environment", _from_environment(environment)),
        ("the arguments", dict(arguments or {})),
    ]:
        if any(values.get(name) for name in _SECRETS):
            found = {name: value for name, value in found.items() if name not in _SECRETS}
        for name, value in values.items():
            if source == "the environment" and name not in READERS and not _close(name, 0.75):
                continue  # a variable of another program
            label = f"{_PREFIX}{name.upper()}" if source == "the environment" else f"{name} in {source}"
            found[name] = _checked(name, value, label)
    named = BACKENDS[found.pop("consensus", "") or "gossip"]
    backend = backend or named
    part = part_of(found, environment)
    # Within a replica of several processes, torchrun knows nothing of the other replicas.
    met = found.get("introducers") or found.get("socket_fds") or part.shards > 1
    launch = None if met else launched(environment)
    if launch is not None:
        found = {**launch.settings, **found}
    if found.get("introducers"):
        found.setdefault("bind", "")  # empty: the first introducer that is this host's and free
    own = {name: found.pop(name) for name in _OWN if name in found}
    own |= {"replica": part.replica, "shard": part.shard, "shards": part.shards}
    if part.shards > 1:
        any_side, live = found.get("policy") is consensus.Policy.ANY, own.get("recovery") == "live"
        _check_together({**own, "policy=any": any_side, "recovery=live": live}, part)
        own["recovery"] = "wait"
    own.setdefault("rejoin", found.get("policy") is consensus.Policy.ANY)
    if backend is SharedStorage and found.get("policy", consensus.Policy.STORAGE) is not consensus.Policy.STORAGE:
        raise ConfigError(f"policy={found['policy'].value} goes with consensus='gossip': with shared storage the store decides")
    try:
        # Members must cut their tensors into equal buckets to reduce them, and must agree whether a step with nan counts: a
        # joiner with other settings is refused.
        agreement = f"bucket_mb={own.get('bucket_mb', BUCKET_MB):g} nonfinite={own.get('nonfinite', VETO)}"
        inner = backend.settled(consensus.Config(**{"agreement": agreement, "pages": _PAGES, **found}))
    except consensus.ConfigError as error:
        raise ConfigError(str(error)) from None
    inner = _of_replicas(inner, part)
    settings = Settings(
        inner,
        **own,
        backend=backend,
        supervisor=environment.get(f"{_PREFIX}SUPERVISOR", ""),
        name=_sendable(environment.get(f"{_PREFIX}NAME", launch.name if launch is not None else "")),
        launched=launch,
    )
    most = None if inner.max_size is None else inner.max_size // part.shards
    if most is not None and most < settings.min_size:
        raise ConfigError(f"max_size={most} is below min_size={settings.min_size}: nothing could ever run")
    if settings.straggler_deadline is not None and settings.straggler_deadline >= inner.stall_timeout:
        raise ConfigError(
            f"straggler_deadline={settings.straggler_deadline:g} is not below stall_timeout={inner.stall_timeout:g}, after "
            "which nobody stands in for a worker any more: give a smaller one, e.g. twice the usual step"
        )
    return settings


def _sendable(name: str) -> str:
    """``name`` with a ``?`` for each byte that is not UTF-8: the others are told of it, and only people read it."""
    return name.encode(errors="replace").decode()


_PAGES = "ftlib.cli.dashboard:mount"
"""What agents serve to browsers: named and not imported, since an agent imports it when somebody looks for the first time."""


def _of_replicas(inner: consensus.Config, part: Part) -> consensus.Config:
    """Sizes count replicas; the consensus counts processes."""
    if part.shards == 1:
        return inner
    most = None if inner.max_size is None else inner.max_size * part.shards
    agreement = f"{inner.agreement} shards={part.shards}"
    return dataclasses.replace(inner, initial_size=inner.initial_size * part.shards, max_size=most, agreement=agreement)


def _check_together(given: Mapping[str, Any], part: Part) -> None:
    """Raise ConfigError for what a replica of several processes cannot do."""
    for name, why in _ALONE.items():
        if given.get(name):
            raise ConfigError(f"{name} goes with replicas of one process, and these have {part.shards}: {why}")


_ALONE = {
    "rejoin": "leave it out, and have the launcher start the whole replica again (ftlib run --shards)",
    "straggler_deadline": "leave it out: the processes of a replica could not be late together",
    "recovery=live": "leave it out, or give wait, as all processes of a replica have to come in with the same call",
    "policy=any": "give policy=majority, or storage: the processes of a replica could not come back from another side together",
}


def check_storage(settings: Settings) -> None:
    """Raise ConfigError if a store is given that nothing would use, since the user expects it to be used."""
    chosen = settings.consensus
    if chosen.storage and chosen.policy is not consensus.Policy.STORAGE:
        raise ConfigError(
            f"storage is given, but consensus=gossip with policy={chosen.policy.value} does not use it: give "
            f"consensus=shared_storage ({_PREFIX}CONSENSUS), or policy=storage, or no storage"
        )


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    names = (key.removeprefix(_PREFIX) for key in environment if key.startswith(_PREFIX))
    return {name.lower(): environment[_PREFIX + name] for name in names if name not in _OTHER_VARIABLES}


def _from_file(
    config: str | os.PathLike[str] | Mapping[str, Any] | None, environment: Mapping[str, str]
) -> tuple[str, dict[str, Any]]:
    if isinstance(config, Mapping):
        table = config.get("ftlib", config)
        if not isinstance(table, Mapping):
            raise ConfigError(f"config: expected a mapping of settings, found {type(table).__name__}")
        return "config", dict(table)
    if config is not None and not isinstance(config, (str, os.PathLike)):
        raise ConfigError(f"config={config!r}: expected the path of a file, or a mapping of settings")
    given = config or environment.get(f"{_PREFIX}CONFIG")
    path = Path(given) if given else _DEFAULT_FILE
    if not given and not path.is_file():
        return "no file", {}
    try:
        with path.open("rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; check config= or {_PREFIX}CONFIG") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    except ValueError as error:  # a name that no file can have
        raise ConfigError(f"config={str(path)!r} cannot be read: {error}; give the path of a file") from None
    table = content.get("ftlib", {})
    if content and "ftlib" not in content:
        raise ConfigError(f"{path} has no table [ftlib], below which settings stand, but {', '.join(content)}: add that line")
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: [ftlib] must be a table")
    return str(path), table


def _checked(name: str, value: Any, label: str) -> Any:
    reader = READERS.get(name)
    if reader is None:
        close = _close(name, 0.5)
        hint = f"did you mean {close[0]}?" if close else f"known settings: {', '.join(sorted(READERS))}"
        raise ConfigError(f"unknown setting {label}: {hint}")
    try:
        return reader(value)
    except (ValueError, TypeError, OverflowError) as error:
        shown = "" if name in ("secret", "storage", "storage_password") else f"={value!r}"
        raise ConfigError(f"{label}{shown}: {error}") from None


def _close(name: str, cutoff: float) -> list[str]:
    return difflib.get_close_matches(name, READERS, n=1, cutoff=cutoff)
