"""The tables of settings in ``docs/operations.md`` name every setting, with the default that it really has."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Iterator
from enum import Enum
from typing import Any

import consensus
import ftlib.config

from .pages import ROOT, rows, section

PAGE = ROOT / "docs" / "operations.md"
NOT_FOR_PEOPLE = {"socket_fds", "agreement"}
"""Set by the launcher or by ftlib itself."""
AWAITED: frozenset[str] = frozenset()
"""Documented already, and coming with what they describe. To be emptied."""


def test_every_setting_is_documented_with_its_default() -> None:
    documented = {cells[0].strip(" `*"): cells[1].split(";")[0].strip(" `") for cells in rows(section(PAGE, "Settings"))}
    real = {name: rendered(name, default) for name, default in _defaults() if name not in NOT_FOR_PEOPLE}
    unknown = sorted(documented.keys() - real.keys() - AWAITED)
    assert not unknown, f"{PAGE.name} tells of settings that do not exist: {', '.join(unknown)}"
    wrong = [name for name, text in real.items() if documented.get(name) != text and name not in AWAITED]
    advice = "\n".join(f"| `{name}` | {real[name]} | {_meanings().get(name, '')} |" for name in wrong)
    assert not wrong, f"{PAGE.name} lacks these settings or has other defaults; the rows should begin with\n{advice}"


def test_what_must_be_equal_everywhere_is_marked() -> None:
    marked = {cells[0].split("`")[1] for cells in rows(section(PAGE, "Settings")) if cells[0].endswith("*")}
    terms = ftlib.config.resolve({}, {}, {}).consensus.terms
    assert marked - AWAITED == {term.split("=")[0] for term in terms.split()} - AWAITED


def rendered(name: str, value: Any) -> str:
    """A default as the table writes it."""
    if value is None or value in ("", ()):
        return "none"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool):
        return str(value).lower()
    if ftlib.config._READERS[name] is ftlib.readers.as_duration:
        return f"{value:g} s" if value >= 1 else f"{value * 1e3:g} ms"
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)


def _defaults() -> Iterator[tuple[str, Any]]:
    settings = ftlib.config.resolve({}, {}, {})
    yield "consensus", next(name for name, kind in ftlib.config.BACKENDS.items() if kind is settings.backend)
    for name in (name for name in ftlib.config._READERS if name != "consensus"):
        holder = settings if name in ftlib.config._OWN else settings.consensus
        yield name, getattr(holder, name)


def _meanings() -> dict[str, str]:
    """What the code says below each field, as a start."""
    found = {}
    for kind in (consensus.Config, ftlib.config.Settings):
        assert dataclasses.is_dataclass(kind)
        body = ast.parse(inspect.getsource(kind)).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                found[ast.unparse(field.target)] = " ".join(str(text.value.value).split())
    return found
