"""Settings: where each may be given, which wins, and what they become.

Precedence: argument of ``FTLib.init`` > variable ``FTLIB_<NAME>`` > file (``config=``, ``FTLIB_CONFIG``, ``./ftlib.toml``;
table ``[ftlib]``) > what torchrun or Slurm say (``environment``) > default. An unknown setting is an error with the nearest
name: a misspelt one would silently do nothing.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import consensus
from consensus import Gossip, Membership, SharedStorage

from . import readers
from .environment import Launched, launched
from .errors import ConfigError
from .logs import FORMATS, LEVELS
from .readers import VETO

__all__ = ["BACKENDS", "UNSAID", "VETO", "Settings", "check_storage", "resolve"]


class _Unsaid(str):
    """A default that can be told from the same word given by somebody."""

    __slots__ = ()


UNSAID = _Unsaid("gossip")
"""The backend where nobody chose one."""

BACKENDS: Mapping[str, type[Membership]] = {"gossip": Gossip, "shared_storage": SharedStorage}
"""By the names that the setting ``consensus`` takes."""

_PREFIX = "FTLIB_"
_OTHER_VARIABLES = frozenset({"CONFIG", "SUPERVISOR", "NAME", "WORKER_INDEX", "PORT", "FENCE_NAME"})
"""Variables that are no settings, though some look like one."""
_DEFAULT_FILE = Path("ftlib.toml")
BUCKET_MB = 8.0
"""Default size of a bucket: smaller ones cost more operations, larger ones overlap copying and sending less."""
_DECIDED = frozenset({"liveness"})
"""Follows from the backend."""
_SECRETS = ("secret", "secret_file")
"""Two ways to say one thing: of several sources the one that wins decides both."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What ``FTLib`` needs; times in seconds."""

    consensus: consensus.Config
    step_timeout: float = 600.0
    """The longest a call may take, view changes included."""
    min_size: int = 1
    """Calls wait below so many members."""
    bucket_mb: float = BUCKET_MB
    """Size of a bucket in MiB; equal at all members."""
    in_flight: int = 4
    """Buckets under way at a time."""
    rejoin: bool = False
    """Whether a worker that was excluded joins again by itself, in the call that would raise ``Excluded``."""
    nonfinite: str = VETO
    """What inf or nan in an average does: ``veto`` (nobody applies it) or ``pass`` (it is delivered); equal at all members."""
    keep: int = 3
    """Checkpoints that ``save`` leaves in its directory, the newest ones."""
    recovery: str = "live"
    """How a joiner gets the state: ``live`` (beside the others' training, where averages can be replayed) or ``wait``."""
    recovery_transport: str = "http"
    """How a live one gets it: ``http``, or ``group`` (through the process group, in place)."""
    recovery_bandwidth: float = 0.0
    """Bytes a second that a joiner asks for at most; 0: no limit."""
    recovery_pending_mb: float = 2048.0
    """MiB of averages that a joiner holds until they are replayed; beyond it the others wait."""
    straggler_deadline: float | None = None
    """Seconds outside of calls after which the others go on without a worker, until it calls again; None: they wait."""
    straggler_factor: float = 2.0
    """A member is slow in a step that takes it more than so many times the median of the others."""
    straggler_steps: int = 10
    """Steps in a row after which a slow member is called a straggler."""
    preemption: str | Callable[[], Any] = ""
    """Where a notice would appear that this machine is taken away: ``file:PATH``, ``aws``, ``gcp``, ``azure``, a function."""
    resume: str = ""
    """Directory of checkpoints whose newest complete one the founders of the job load in ``register_state``."""
    log_format: str = ""
    """``plain`` or ``json``: show this library's log on stderr; empty: leave the process's logging alone."""
    log_level: str = ""
    """The lowest level to show there; giving it alone means ``plain``."""
    supervisor: str = ""
    """``host:port`` of the launcher, empty without one."""
    name: str = ""
    """What logs call this worker."""
    backend: type[Membership] = Gossip
    """What ``consensus`` names."""
    launched: Launched | None = None
    """What another launcher says; None under ``ftlib run``, without a launcher, and where introducers were given."""


def resolve(
    arguments: Mapping[str, Any] | None = None,
    config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    backend: type[Membership] | None = None,
) -> Settings:
    """All settings, checked, for that ``backend`` (None: the one that the settings name). ConfigError naming the setting, where
    it came from and the remedy.
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
            if source == "the environment" and name not in _READERS and not _close(name, 0.75):
                continue  # somebody else's variable
            label = f"{_PREFIX}{name.upper()}" if source == "the environment" else f"{name} in {source}"
            found[name] = _checked(name, value, label)
    named = BACKENDS[found.pop("consensus", "") or "gossip"]
    backend = backend or named
    launch = None if found.get("introducers") or found.get("socket_fds") else launched(environment)
    if launch is not None:
        found = {**launch.settings, **found}
    if found.get("introducers"):
        found.setdefault("bind", "")  # the first of them that is this host's and free
    own = {name: found.pop(name) for name in _OWN if name in found}
    own.setdefault("rejoin", found.get("policy") is consensus.Policy.ANY)
    if backend is SharedStorage and found.get("policy", consensus.Policy.STORAGE) is not consensus.Policy.STORAGE:
        raise ConfigError(f"policy={found['policy'].value} goes with consensus='gossip': with shared storage the store decides")
    try:
        # Members cut their tensors into buckets alike, or they could not reduce them: refused at join where they would not.
        # Nor would they agree whether a step counts, if some let nan pass.
        agreement = f"bucket_mb={own.get('bucket_mb', BUCKET_MB):g} nonfinite={own.get('nonfinite', VETO)}"
        inner = backend.settled(consensus.Config(**{"agreement": agreement, **found}))
    except consensus.ConfigError as error:
        raise ConfigError(str(error)) from None
    settings = Settings(
        inner,
        **own,
        backend=backend,
        supervisor=environment.get(f"{_PREFIX}SUPERVISOR", ""),
        name=environment.get(f"{_PREFIX}NAME", launch.name if launch is not None else ""),
        launched=launch,
    )
    if inner.max_size is not None and inner.max_size < settings.min_size:
        raise ConfigError(f"max_size={inner.max_size} is below min_size={settings.min_size}: nothing could ever run")
    if settings.straggler_deadline is not None and settings.straggler_deadline >= inner.stall_timeout:
        raise ConfigError(
            f"straggler_deadline={settings.straggler_deadline:g} is not below stall_timeout={inner.stall_timeout:g}, after "
            "which nobody stands in for a worker any more: give a smaller one, e.g. twice the usual step"
        )
    return settings


def check_storage(settings: Settings) -> None:
    """ConfigError where a store is named that nothing would use: whoever named it expects otherwise."""
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
    given = config or environment.get(f"{_PREFIX}CONFIG")
    path = Path(given) if given else _DEFAULT_FILE
    if not given and not path.is_file():
        return "no file", {}
    try:
        with path.open("rb") as file:
            table = tomllib.load(file).get("ftlib", {})
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; check config= or {_PREFIX}CONFIG") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: [ftlib] must be a table")
    return str(path), table


def _checked(name: str, value: Any, label: str) -> Any:
    reader = _READERS.get(name)
    if reader is None:
        close = _close(name, 0.5)
        hint = f"did you mean {close[0]}?" if close else f"known settings: {', '.join(sorted(_READERS))}"
        raise ConfigError(f"unknown setting {label}: {hint}")
    try:
        return reader(value)
    except (ValueError, TypeError) as error:
        shown = "" if name in ("secret", "storage", "storage_password") else f"={value!r}"
        raise ConfigError(f"{label}{shown}: {error}") from None


def _close(name: str, cutoff: float) -> list[str]:
    return difflib.get_close_matches(name, _READERS, n=1, cutoff=cutoff)


_OWN: dict[str, Callable[[Any], Any]] = {
    "step_timeout": readers.as_duration,
    "min_size": readers.as_count,
    "bucket_mb": readers.as_positive,
    "in_flight": readers.as_count,
    "rejoin": readers.as_flag,
    "nonfinite": readers.as_nonfinite,
    "keep": readers.as_count,
    "recovery": readers.one_of("live", "wait"),
    "recovery_transport": readers.one_of("http", "group"),
    "recovery_bandwidth": readers.as_number,
    "recovery_pending_mb": readers.as_positive,
    "straggler_deadline": readers.as_optional_duration,
    "straggler_factor": readers.as_factor,
    "straggler_steps": readers.as_count,
    "preemption": readers.as_preemption,
    "resume": readers.as_text,
    "log_format": readers.one_of(*FORMATS),
    "log_level": readers.one_of(*LEVELS),
}
_SPECIAL: dict[str, Callable[[Any], Any]] = {
    "consensus": readers.one_of(*BACKENDS),
    "introducers": readers.as_addresses,
    "initial_size": readers.as_count,
    "max_size": readers.as_optional_count,
    "socket_fds": readers.as_descriptors,
    "policy": readers.as_policy,
    "mode": readers.as_mode,
    "secret": readers.as_secrets,
    "agent": readers.as_home,
    "advertise": lambda value: value or None,
}
_DURATIONS = frozenset(
    [
        "exclude_after",
        "link_timeout",
        "stall_timeout",
        "quorum_timeout",
        "join_timeout",
        "probe_interval",
        "probe_timeout",
        "gossip_interval",
        "settle_proof",
        "settle_quiet",
        "settle_silence",
        "settle_max",
        "boundary_wait",
        "frozen_wait",
        "resend",
        "ready_timeout",
        "fence_timeout",
        "lease",
        "storage_timeout",
        "storage_poll",
    ]
)
_BY_TYPE: dict[str, Callable[[Any], Any]] = {
    "str": readers.as_text,
    "int": readers.as_integer,
    "float": readers.as_number,
    "bool": readers.as_flag,
}


def _readers() -> dict[str, Callable[[Any], Any]]:
    found = {
        item.name: readers.as_duration if item.name in _DURATIONS else _BY_TYPE.get(str(item.type), readers.as_text)
        for item in dataclasses.fields(consensus.Config)
    }
    return {name: reader for name, reader in {**found, **_SPECIAL, **_OWN}.items() if name not in _DECIDED}


_READERS = _readers()
