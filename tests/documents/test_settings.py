"""The tables in the docs are those of the code: settings with their defaults, metrics, commands with their options."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import click
import pytest

import ftlib.settings.config
from ftlib.cli.main import commands

from .pages import ROOT, rows, section

PAGE = ROOT / "docs" / "operations.md"
COMMANDS = ROOT / "docs" / "commands.md"
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


@pytest.mark.parametrize(
    ("names", "found"), [pytest.param(*each, id=" ".join(each[0])) for each in TABLES.all_commands(commands, ("ftlib",))]
)
def test_every_option_of_every_command_is_documented_with_a_meaning(names: tuple[str, ...], found: click.Command) -> None:
    documented = {cells[0].strip(" `").split(" ")[0].rstrip(","): cells for cells in rows(section(COMMANDS, " ".join(names)))}
    shown = [each for each in found.params if isinstance(each, click.Option) and not each.hidden]
    assert documented.keys() == {max(each.opts, key=len) for each in shown}
    assert all(len(cells) == 3 and cells[2].strip() for cells in documented.values())


def test_the_options_of_the_demo_are_documented() -> None:
    """It has a command of its own, which needs more than the others do."""
    text = COMMANDS.read_text(encoding="utf-8").split("\n## ")[0]
    shown = pytest.importorskip("ftlib.cli.demo.main", exc_type=ImportError)._command.params
    assert not [each.name for each in shown if f"`{max(each.opts, key=len)}`" not in text]


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
