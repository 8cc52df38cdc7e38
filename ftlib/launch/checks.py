"""What each setting of a ``Launcher`` may be: of which type, in which range, and what to say of one that is not.

A fault is one line: the setting, what was given, what to give instead.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any

LONGEST = 80
"""Characters of what was given that a message repeats."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What fits a setting."""

    fits: Callable[[Any], bool]
    remedy: str
    """Follows "give"."""


def fault(name: str, value: object, remedy: str) -> str:
    """The line that says what is wrong with a setting."""
    try:
        given = " ".join(repr(value).splitlines())
    except Exception:  # noqa: BLE001 - a repr of the user's may raise anything
        given = f"a {type(value).__name__}"
    if len(given) > LONGEST:
        given = f"{given[:LONGEST]}..."
    return f"{name}={given}: give {remedy}"


def is_count(value: object, least: int) -> bool:
    """Whether it is a whole number of at least ``least``; True and False are none."""
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= least


def is_seconds(value: object, *, above: bool = False) -> bool:
    """Whether it is a finite number of at least 0; with ``above`` more than that."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        seconds = float(value)
    except OverflowError:
        return False
    return math.isfinite(seconds) and (seconds > 0 if above else seconds >= 0)


def is_text(value: object) -> bool:
    """Whether it is a text that a command line, a variable or a path can hold, and not empty."""
    return isinstance(value, str) and bool(value) and "\0" not in value


def is_path(value: object) -> bool:
    """Whether it names a file or a directory."""
    return isinstance(value, (str, os.PathLike)) and is_text(os.fspath(value))


def is_list(value: object, fits: Callable[[Any], bool]) -> bool:
    """Whether it is a list, a tuple or the like of what fits; a text is none, though it is a sequence of texts."""
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes)) and all(map(fits, value))


def _is_module(value: object) -> bool:
    return isinstance(value, str) and all(part.isidentifier() for part in value.split("."))


def _or_none(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or fits(value)


def _one_of(*words: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in words


_ABOVE = Kind(lambda value: is_seconds(value, above=True), "a number of seconds above 0")
_SECONDS = Kind(is_seconds, "a number of seconds, at least 0")
_PATH = Kind(_or_none(is_path), "a path, or None")

KINDS: Mapping[str, Kind] = {
    "hostnames": Kind(
        lambda value: value in ("auto", "slurm") if isinstance(value, str) else is_list(value, is_text),
        '"auto", "slurm" or a list of names',
    ),
    "workers_per_host": Kind(
        lambda value: (
            _one_of("auto", "cpu", "gpu")(value) or is_count(value, 1) or is_list(value, lambda each: is_count(each, 1))
        ),
        '"auto", "cpu", "gpu", a number of at least 1, or a list with one for each host',
    ),
    "ssh_config_file": _PATH,
    "backend": Kind(_or_none(_one_of("gloo", "nccl")), '"gloo", "nccl" or None'),
    "worker_timeout": _ABOVE,
    "agent_timeout": _ABOVE,
    "copy_env_vars": Kind(lambda value: is_list(value, is_text), 'a list of patterns, as ["HF_*"]'),
    "extra_env_vars": Kind(
        _or_none(lambda value: isinstance(value, Mapping)), 'a dict of texts, as {"NAME": "value"}, or None'
    ),
    "env_file": _PATH,
    "python": Kind(_or_none(is_path), "the interpreter's path at the hosts, or None for this one's"),
    "setup": Kind(lambda value: value == "" or is_text(value), "shell commands as one text"),
    "transport": Kind(
        lambda value: _one_of("auto", "local", "ssh", "slurm")(value) or (is_list(value, is_text) and len(value) > 0),
        "one of auto, local, ssh, slurm, or a list of words with {host} in it",
    ),
    "min_workers": Kind(_or_none(lambda value: is_count(value, 1)), "a number of at least 1, or None"),
    "max_workers": Kind(_or_none(lambda value: is_count(value, 1)), "a number of at least 1, or None"),
    "max_restarts": Kind(lambda value: is_count(value, 0), "a number of at least 0"),
    "restart_delay": _SECONDS,
    "hosts_file": _PATH,
    "discover": Kind(_or_none(lambda value: is_text(value) and bool(value.strip())), "a command as one text, or None"),
    "log_dir": _PATH,
    "events": _PATH,
    "grace": _SECONDS,
    "results": Kind(_one_of("pickle", "data"), '"pickle" or "data"'),
    "preload": Kind(lambda value: is_list(value, _is_module), 'a list of modules\' names, as ["torch"]; () for none'),
    "quiet": Kind(lambda value: isinstance(value, bool), "True or False"),
}
"""By setting."""


def wrong_kinds(settings: Mapping[str, object]) -> Iterator[str]:
    """A line for each setting that is of a wrong kind, in their order."""
    for name, value in settings.items():
        kind = KINDS[name]
        if not kind.fits(value):
            remedy = kind.remedy
            if isinstance(value, str) and value and name in ("hostnames", "copy_env_vars", "preload"):
                remedy = f"{remedy}: [{value!r}]"
            yield fault(name, value, remedy)


def wrong_variables(variables: Mapping[Any, object]) -> Iterator[str]:
    """A line for each variable that no process can have."""
    for name, value in variables.items():
        if not is_text(name) or "=" in name:
            yield fault("extra_env_vars", {name: value}, "names that are texts without =")
        elif not isinstance(value, (str, Real, os.PathLike)) or "\0" in str(value):
            yield fault(f"extra_env_vars[{name!r}]", value, "a text without NUL")


def wrong_files(**paths: str | os.PathLike[str] | None) -> Iterator[str]:
    """A line for each file that is to be read and is not there."""
    for name, path in paths.items():
        if path is not None and not Path(path).expanduser().is_file():
            yield f"{name}={os.fspath(path)}: there is no such file: give one that can be read"
