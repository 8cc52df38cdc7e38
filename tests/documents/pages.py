"""The pages that people read, and what the tests take out of them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name(page: Path) -> str:
    """For test ids and messages."""
    return str(page.relative_to(ROOT))


def fences(page: Path, language: str) -> list[tuple[int, str]]:
    """(line, code) of each fenced block in that language."""
    text = page.read_text(encoding="utf-8")
    return [(text[: found.start(2)].count("\n") + 1, found[2]) for found in _FENCE.finditer(text) if found[1] == language]


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """What a link may give after ``#``: the headings, as GitHub writes them."""
    headings = re.findall(r"^#+ +(.+?) *$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def section(page: Path, heading: str) -> str:
    """The text below ``## heading``, up to the next heading of that level."""
    text = page.read_text(encoding="utf-8")
    return text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]


def rows(text: str) -> list[list[str]]:
    """The cells of all table rows, heads and rules left out. A bar that belongs to a cell is written with a backslash."""
    lines = [re.split(r"(?<!\\)\|", line.strip().strip("|")) for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line] for line in lines]
    return [
        row
        for number, row in enumerate(cells)
        if not _is_rule(row) and not (cells[number + 1 :] and _is_rule(cells[number + 1]))
    ]


def _is_rule(row: list[str]) -> bool:
    return all(set(cell) <= {"-", ":"} for cell in row)
