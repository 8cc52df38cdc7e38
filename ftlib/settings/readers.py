"""Readers: from a setting as given in a program, a file or a variable to its value.

They raise TypeError or ValueError with what is expected.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeAlias

import consensus

from ..common.threads import LONGEST

Reader: TypeAlias = Callable[[Any], Any]

_UNITS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_SECONDS = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*(ms|s|min|m|h|)\s*")


def as_text(value: Any) -> str:
    """A string."""
    if not isinstance(value, str):
        raise TypeError("expected a string")
    return value


def as_unicode(value: Any) -> str:
    """A string that can be sent: bytes of a variable that are not UTF-8 cannot."""
    text = as_text(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("it is no Unicode, and could not be sent: give another one") from None
    return text


def _seconds(value: Any) -> float:
    if isinstance(value, str):
        match = _SECONDS.fullmatch(value)
        if match is None:
            raise ValueError('expected seconds, or a number with ms, s, min or h, as in "500 ms"')
        value = float(match[1]) * _UNITS[match[2]]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError("expected a number of seconds")
    return float(value)


def as_duration(value: Any) -> float:
    """Seconds, or text with a unit: ``"500 ms"``, ``"2s"``, ``"10 min"``."""
    seconds = _seconds(value)
    if not math.isfinite(seconds) or seconds <= 0:
        raise ValueError("expected a positive number of seconds")
    if seconds > LONGEST:
        raise ValueError(f"expected at most {LONGEST:.0f} seconds, which are {LONGEST / 86400:g} days")
    return seconds


def as_duration_or_zero(value: Any) -> float:
    """A duration as ``as_duration`` reads it, or 0, in any unit."""
    seconds = _seconds(value)
    return seconds if seconds == 0 else as_duration(seconds)


def as_number(value: Any) -> float:
    """A number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError("expected a number")
    number = float(value)
    if not math.isfinite(number) or number < 0:
        raise ValueError("expected a number of at least 0")
    return number


def above(bound: float) -> Reader:
    """Reads a number above ``bound``."""

    def read(value: Any) -> float:
        number = as_number(value)
        if number <= bound:
            raise ValueError(f"expected a number above {bound:g}")
        return number

    return read


def as_preemption(value: Any) -> Any:
    """The name of a source, or a callable: checked here, and made a source when it is needed."""
    if value and not callable(value):
        from .preemption import source_of  # noqa: PLC0415 - imports an HTTP client, which few need

        source_of(as_text(value))
    return value


def as_trace(value: Any) -> int | None:
    """None for no traces, 0 for traces without samples, N for a sample of every N-th call."""
    if value in (None, "", 0) or (isinstance(value, str) and value.lower() in ("off", "none", "false", "no", "0")):
        return None
    if value is True or (isinstance(value, str) and value.lower() in ("on", "true", "yes")):
        return 0
    try:
        return as_count(value)
    except (TypeError, ValueError):
        raise ValueError("expected on, off, or N to have every N-th call, too") from None


def as_integer(value: Any) -> int:
    """A whole number, maybe as text."""
    if isinstance(value, str) and value.strip().isdigit():
        value = int(value)
    if type(value) is not int:
        raise TypeError("expected a whole number")
    return value


def as_count(value: Any) -> int:
    """A whole number of at least 1."""
    number = as_integer(value)
    if number < 1:
        raise ValueError("expected at least 1")
    return number


def optional(reader: Reader) -> Reader:
    """Reads like ``reader``; None for None or an empty string."""
    return lambda value: None if value is None or value == "" else reader(value)


def as_flag(value: Any) -> bool:
    """True or false, or a word for it."""
    if isinstance(value, str) and value.lower() in ("1", "true", "yes", "on", "0", "false", "no", "off"):
        return value.lower() in ("1", "true", "yes", "on")
    if not isinstance(value, bool):
        raise TypeError("expected true or false")
    return value


def as_addresses(value: Any) -> tuple[str, ...]:
    """A list of ``host:port``, or text with commas."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)) or not all(isinstance(part, str) for part in parts):
        raise TypeError("expected a list of host:port")
    return tuple(part.strip() for part in parts if part.strip())


def as_descriptors(value: Any) -> tuple[int, ...]:
    """Numbers of open files."""
    parts = [part for part in value.split(",") if part.strip()] if isinstance(value, str) else value
    return tuple(as_integer(part) for part in parts)


def as_secrets(value: Any) -> tuple[str, ...]:
    """One or several secrets, without the comments of a file."""
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


def item_of(kind: type[Enum]) -> Reader:
    """Reads an item of an enumeration, or its value."""

    def read(value: Any) -> Enum:
        try:
            return kind(value.value if isinstance(value, kind) else as_text(value))
        except ValueError:
            raise ValueError(f"choose one of {', '.join(item.value for item in kind)}") from None

    return read


def one_of(*choices: str, empty: bool = True) -> Reader:
    """Reads one of ``choices``, or nothing if ``empty``."""

    def read(value: Any) -> str:
        text = as_text(value).strip().lower()
        if text not in choices and (text or not empty):
            raise ValueError(f"choose one of {', '.join(choices)}")
        return text

    return read


BY_TYPE: Mapping[str, Reader] = {
    "str": as_text,
    "str | None": lambda value: value or None,
    "str | tuple[str, ...]": as_secrets,
    "tuple[str, ...]": as_addresses,
    "tuple[int, ...]": as_descriptors,
    "bool": as_flag,
    "int": as_integer,
    "int | None": optional(as_count),
    "Count": as_count,
    "float": as_number,
    "Seconds": as_duration,
    "Seconds | None": optional(as_duration),
    "Seconds | Literal[0]": as_duration_or_zero,
    "Policy": item_of(consensus.Policy),
    "Mode | None": item_of(consensus.Mode),
    "Home": item_of(consensus.Home),
}
"""How a field of ``consensus.Config`` or ``Settings`` is read, by its annotation; a field may have a reader of its own."""
