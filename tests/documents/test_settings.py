"""The tables in the docs are those of the code: every setting with its default, every metric."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import ftlib.settings.config

from .pages import ROOT, rows, section

PAGE = ROOT / "docs" / "operations.md"
NOT_FOR_PEOPLE = {"socket_fds", "agreement", "pages"}
"""Set by the launcher or by ftlib itself."""


def _tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_tables", ROOT / "docs" / "tables.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TABLES = _tables()


@pytest.mark.parametrize(("page", "text"), [pytest.param(*found, id=found[0].stem) for found in TABLES.pages()])
def test_the_tables_are_those_of_the_code(page: Path, text: str) -> None:
    assert page.read_text(encoding="utf-8") == text, "make tables writes them anew"


def test_every_setting_is_documented_with_a_meaning() -> None:
    documented = {cells[0].strip(" `*"): cells[2] for cells in rows(section(PAGE, "Settings"))}
    assert documented.keys() == ftlib.settings.config.READERS.keys() - NOT_FOR_PEOPLE
    assert all(documented.values())


def test_defaults_are_told_as_people_read_them() -> None:
    told = {cells[0].strip(" `*"): cells[1] for cells in rows(section(PAGE, "Settings"))}
    assert [
        told[name] for name in ("lease", "probe_timeout", "policy", "consensus", "rejoin", "secret", "keep", "max_size")
    ] == [
        "2 s",
        "150 ms",
        "`majority`",
        "`gossip`",
        "false",
        "none",
        "3",
        "none",
    ]


def test_what_must_be_equal_everywhere_is_marked() -> None:
    marked = {cells[0].split("`")[1] for cells in rows(section(PAGE, "Settings")) if cells[0].endswith("*")}
    terms = ftlib.settings.config.resolve({}, {}, {}).consensus.terms
    assert marked == {term.split("=")[0] for term in terms.split()}
