"""docs/architecture.md names files and names that there are: who follows a walk finds every station of it."""

from __future__ import annotations

import re

import pytest

from .pages import ROOT, prose, rows, section

PAGE = ROOT / "docs" / "architecture.md"
SPANS = sorted(set(re.findall(r"`([^`\n]+)`", prose(PAGE))))
PATHS = [span for span in SPANS if re.fullmatch(r"[\w.]+(/[\w.]+)+|\w+\.(py|toml)", span)]
ABROAD = {"lint", "CoreDumping"}
"""A command of make, a word of the kernel's."""
SOURCES = {path for folder in ("ftlib", "consensus", "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")}


@pytest.fixture(scope="module")
def words() -> set[str]:
    products = [path for path in SOURCES if path.relative_to(ROOT).parts[0] in {"ftlib", "consensus"}]
    return {word for path in products for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("path", PATHS)
def test_a_file_is_there(path: str) -> None:
    """One without a folder stands beside another that was named before."""
    assert (ROOT / path).exists() or ("/" not in path and any(source.name == path for source in SOURCES))


def test_names_are_those_of_the_code(words: set[str]) -> None:
    named = {word for span in set(SPANS) - set(PATHS) for word in re.findall(r"\w+", span)}
    stems = {part for path in SOURCES for part in (*path.relative_to(ROOT).parts, path.stem)}
    unknown = sorted(named - words - stems - ABROAD)
    assert unknown == []


@pytest.mark.parametrize("row", rows(section(PAGE, "Where to change what")), ids=lambda row: row[0])
def test_what_checks_a_change_is_there(row: list[str]) -> None:
    assert all(re.search(r"`\w+/", cell) for cell in row[1:]), "an answer is the name of a file"
