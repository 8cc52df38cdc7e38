"""Faults as text."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from ftlib.errors import ConfigError
from ftlib.frameworks import framework_by_name
from ftlib.frameworks.accelerators.rehearsal.faults import VARIABLE, Faults, Way


def test_none_are_given() -> None:
    assert Faults.from_environment({}) == Faults.parse("") == Faults()


def test_all_kinds_are_read() -> None:
    text = "start=hangs, start_seconds=2.5,error_at = 3, stuck=1, silent=0, rank=1,"
    expected = Faults(start=Way.HANGS, start_seconds=2.5, error_at=3, stuck=True, rank=1)
    assert Faults.from_environment({VARIABLE: text}) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("strat=hangs", r"'strat=hangs' is no fault.*start_seconds"),
        ("start", "'start' is no fault"),
        ("start=slow", "start cannot be 'slow': choose one of works, fails, hangs"),
        ("start_seconds=soon", "write a number of seconds"),
        ("start_seconds=nan", "must be at least 0"),
        ("start_seconds=-1", "must be at least 0"),
        ("kernel_seconds=inf", "finite"),
        ("error_at=1.5", "write a whole number"),
        ("stuck=yes", "choose 0 or 1"),
        ("rank=-2", "must be at least -1"),
        ("rank=1,rank=2", "given twice"),
    ],
)
def test_nonsense_is_refused_with_the_remedy(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Faults.parse(text)


def test_the_framework_reads_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "nonsense")
    with pytest.raises(ConfigError, match=VARIABLE):
        framework_by_name("rehearsal")


def test_all_are_documented_with_their_defaults() -> None:
    text = (Path(__file__).parents[3] / "docs" / "architecture.md").read_text(encoding="utf-8")
    for field in fields(Faults):
        default = f"`{field.default.value}`" if isinstance(field.default, Way) else f"{field.default:g}"
        assert f"| `{field.name}` | {default} |" in text


def test_they_apply_where_they_should() -> None:
    faults = Faults(stuck=True, rank=1, communicators=2)
    assert [faults.at(rank, number).stuck for rank, number in ((0, 1), (1, 1), (1, 2), (1, 3))] == [False, True, True, False]
    assert Faults(stuck=True).at(5, 100).stuck
