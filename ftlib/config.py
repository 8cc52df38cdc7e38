"""Settings: where each may be given, which wins, and what they become.

Precedence: argument of ``FTLib.init`` > variable ``FTLIB_<NAME>`` > file (``config=``, ``FTLIB_CONFIG``, ``./ftlib.toml``;
table ``[ftlib]``) > what torchrun or Slurm say (``environment``) > default. An unknown setting is an error with the nearest
name: a misspelt one would silently do nothing.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import consensus
from consensus import Gossip, Membership, SharedStorage

from .environment import Launched, launched
from .errors import ConfigError
from .logs import FORMATS, LEVELS

__all__ = ["BACKENDS", "UNSAID", "Settings", "check_storage", "resolve"]


class _Unsaid(str):
    """A default that can be told from the same word given by somebody."""

    __slots__ = ()


UNSAID = _Unsaid("gossip")
"""The backend where nobody chose one."""

BACKENDS: Mapping[str, type[Membership]] = {"gossip": Gossip, "shared_storage": SharedStorage}
"""By the names that the setting ``consensus`` takes."""

_Choice = TypeVar("_Choice", bound=Enum)

_PREFIX = "FTLIB_"
_OTHER_VARIABLES = frozenset({"CONFIG", "SUPERVISOR", "NAME", "WORKER_INDEX", "PORT", "FENCE_NAME"})
"""Variables that are no settings, though some look like one."""
_DEFAULT_FILE = Path("ftlib.toml")
BUCKET_MB = 8.0
"""Default size of a bucket: smaller ones cost more operations, larger ones overlap copying and sending less."""
VETO = "veto"
_UNITS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_DURATION = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*(ms|s|min|m|h|)\s*")
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


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("expected a string")
    return value


def _duration(value: Any) -> float:
    """Seconds, or text with a unit: ``"500 ms"``, ``"2s"``, ``"10 min"``."""
    if isinstance(value, str):
        match = _DURATION.fullmatch(value)
        if match is None:
            raise ValueError('expected seconds, or a number with ms, s, min or h, as in "500 ms"')
        value = float(match[1]) * _UNITS[match[2]]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError("expected a number of seconds")
    if not math.isfinite(value) or value <= 0:
        raise ValueError("expected a positive number of seconds")
    return float(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError("expected a number")
    number = float(value)
    if not math.isfinite(number) or number < 0:
        raise ValueError("expected a number of at least 0")
    return number


def _positive(value: Any) -> float:
    number = _number(value)
    if number <= 0:
        raise ValueError("expected a number above 0")
    return number


def _integer(value: Any) -> int:
    if isinstance(value, str) and value.strip().isdigit():
        value = int(value)
    if type(value) is not int:
        raise TypeError("expected a whole number")
    return value


def _count(value: Any) -> int:
    number = _integer(value)
    if number < 1:
        raise ValueError("expected at least 1")
    return number


def _optional_count(value: Any) -> int | None:
    return None if value is None or value == "" else _count(value)


def _flag(value: Any) -> bool:
    if isinstance(value, str) and value.lower() in ("1", "true", "yes", "on", "0", "false", "no", "off"):
        return value.lower() in ("1", "true", "yes", "on")
    if not isinstance(value, bool):
        raise TypeError("expected true or false")
    return value


def _addresses(value: Any) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)) or not all(isinstance(part, str) for part in parts):
        raise TypeError("expected a list of host:port")
    return tuple(part.strip() for part in parts if part.strip())


def _descriptors(value: Any) -> tuple[int, ...]:
    parts = [part for part in value.split(",") if part.strip()] if isinstance(value, str) else value
    return tuple(_integer(part) for part in parts)


def _secrets(value: Any) -> tuple[str, ...]:
    parts = value.splitlines() if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)) or not all(isinstance(part, str) for part in parts):
        raise TypeError("expected a secret, or a list of them")
    found = tuple(part.strip() for part in parts if part.strip())
    if not isinstance(value, str):
        return found
    kept = tuple(part for part in found if not part.startswith("#"))  # the text may be that of a secret_file
    if found and not kept:
        raise ValueError("there are only comments in it: lines that begin with # are no secrets")
    return kept


def _policy(value: Any) -> consensus.Policy:
    return _choice(consensus.Policy, value.value if isinstance(value, consensus.Policy) else _text(value))


def _mode(value: Any) -> consensus.Mode:
    return _choice(consensus.Mode, value.value if isinstance(value, consensus.Mode) else _text(value))


def _nonfinite(value: Any) -> str:
    if value not in (VETO, "pass"):
        raise ValueError("choose one of veto, pass")
    return str(value)


def _home(value: Any) -> consensus.Home:
    return _choice(consensus.Home, value.value if isinstance(value, consensus.Home) else _text(value))


def _choice(kind: type[_Choice], text: str) -> _Choice:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"choose one of {', '.join(item.value for item in kind)}") from None


def _one_of(*choices: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        text = _text(value).strip().lower()
        if text and text not in choices:
            raise ValueError(f"choose one of {', '.join(choices)}")
        return text

    return read


_OWN: dict[str, Callable[[Any], Any]] = {
    "step_timeout": _duration,
    "min_size": _count,
    "bucket_mb": _positive,
    "in_flight": _count,
    "rejoin": _flag,
    "nonfinite": _nonfinite,
    "keep": _count,
    "resume": _text,
    "log_format": _one_of(*FORMATS),
    "log_level": _one_of(*LEVELS),
}
_SPECIAL: dict[str, Callable[[Any], Any]] = {
    "consensus": _one_of(*BACKENDS),
    "introducers": _addresses,
    "initial_size": _count,
    "max_size": _optional_count,
    "socket_fds": _descriptors,
    "policy": _policy,
    "mode": _mode,
    "secret": _secrets,
    "agent": _home,
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
_BY_TYPE: dict[str, Callable[[Any], Any]] = {"str": _text, "int": _integer, "float": _number, "bool": _flag}


def _readers() -> dict[str, Callable[[Any], Any]]:
    readers = {
        item.name: _duration if item.name in _DURATIONS else _BY_TYPE.get(str(item.type), _text)
        for item in dataclasses.fields(consensus.Config)
    }
    return {name: reader for name, reader in {**readers, **_SPECIAL, **_OWN}.items() if name not in _DECIDED}


_READERS = _readers()
