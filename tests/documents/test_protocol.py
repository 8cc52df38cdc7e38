"""docs/protocol.md points at files, states, rules and planted bugs that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.simulation.planted.catalogue import BUGS

from .pages import ROOT, rows, section

PAGE = ROOT / "docs" / "protocol.md"
PROTOCOL = ROOT / "consensus" / "protocol"
CHECKERS = ROOT / "consensus" / "simulation" / "invariants"
TABLE = rows(section(PAGE, "Where each is kept, and watched"))


def _names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def _files(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*.py")}


@pytest.mark.parametrize("row", TABLE, ids=[row[0] for row in TABLE])
def test_an_invariants_code_checker_and_bugs_exist(row: list[str]) -> None:
    number, kept, watched, bugs = row
    assert _names(kept) and set(_names(kept)) <= _files(PROTOCOL)
    assert _names(watched) and set(_names(watched)) <= _files(CHECKERS)
    assert set(_names(bugs)) == {bug.plant.__name__ for bug in BUGS if bug.number == int(number.split()[0])}


def test_all_twelve_are_argued_for_and_in_the_table() -> None:
    argued = re.findall(r"^### (\d+)\. ", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [int(number) for number in argued] == list(range(1, 13))
    assert [int(row[0].split()[0]) for row in TABLE] == list(range(1, 13))


def test_every_planted_bug_is_told_as_it_is_played() -> None:
    told = [(_names(name), text, by, int(within)) for name, text, by, within in rows(section(PAGE, "Planted bugs"))]
    alone = {False: "", True: ", alone"}
    assert told == [([bug.plant.__name__], bug.plant.__doc__, bug.speaker + alone[bug.alone], bug.seeds) for bug in BUGS]


def test_the_files_that_keep_the_rules_exist() -> None:
    named = re.findall(r"`(\w+\.py)`", section(PAGE, "Rules"))
    assert len(named) > 15
    assert set(named) <= _files(PROTOCOL)


def test_rules_are_numbered_and_what_is_referred_to_exists() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rules = [int(number) for number in re.findall(r"^(\d+)\. \*", section(PAGE, "Rules"), re.MULTILINE)]
    assert rules == list(range(1, len(rules) + 1))
    assert {int(number) for number in re.findall(r"rules? (\d+)", text)} <= set(rules)


def test_transcripts_that_are_named_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+(?:\.py)?)`", PAGE.read_text(encoding="utf-8"))
    assert named and all(Path(ROOT / name).exists() for name in named)
