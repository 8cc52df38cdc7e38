"""What a joiner logs and raises is explained in ``docs/operations.md``: every text of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from .pages import ROOT, prose

PAGE = ROOT / "docs" / "operations.md"
NAMES = ("joiner/progress_log", "catchup", "joiner/round", "joiner/group_transport", "donor/reading")
SOURCES = [ROOT / "ftlib" / "recovery" / f"{name}.py" for name in NAMES]
SOURCES += [ROOT / "ftlib" / f"{name}.py" for name in ("state/replay", "core/backup/backup_worker", "core/backup/pattern")]
ERRORS = {"NoFollowing", "ConfigError", "RebuildTimeout", "Tainted"}
LEVELS = {"info", "warning", "error"}


def texts(source: str) -> Iterator[str]:
    """What is logged from INFO on, raised, or returned as a reason; with ``...`` for what is filled in."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(attr=name), args=[first, *_]) if name in LEVELS:
                yield from _constant(first)
            case ast.Call(func=ast.Name(id=name), args=[first, *_]) if name in ERRORS:
                yield from _constant(first)
            case ast.Assign(targets=[ast.Name(id="text" | "why")], value=value):
                yield from _constant(value)
            case ast.FunctionDef(name="why_not"):
                yield from (text for each in ast.walk(node) if isinstance(each, ast.Return) for text in _constant(each.value))


def _constant(node: ast.expr | None) -> Iterator[str]:
    match node:
        case ast.Constant(value=str(text)) if text.strip("%s "):
            yield re.sub(r"%[\d.]*[sdfg]", "...", text)
        case ast.JoinedStr(values=parts):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "..." for part in parts)
            if re.search(r"[a-z]{3}", text.replace("...", "")):
                yield text
        case ast.IfExp(body=body, orelse=orelse):
            yield from (text for each in (body, orelse) for text in _constant(each))


def core(text: str) -> str:
    """The longest piece of it that is always the same, as far as a table may show it."""
    return max(re.split(r"\.\.\.", text), key=len).strip(" :;,")[:24].rstrip(" :;,")


FOUND = [
    pytest.param(text, id=f"{path.stem}: {core(text)}") for path in SOURCES for text in texts(path.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("text", FOUND)
def test_every_text_is_explained(text: str) -> None:
    told = re.findall(r"`([^`\n]+)`", prose(PAGE))
    assert any(core(text) in words for words in told), f"{PAGE.name} does not explain {text!r}"


def test_texts_are_found() -> None:
    source = """
def run(number):
    text = "getting %.1f MB of it"
    logger.info(text, 1)
    logger.debug("unseen")
    raise NoFollowing(f"nobody is left who gives {number}")
"""
    assert list(texts(source)) == ["getting ... MB of it", "nobody is left who gives ..."]
    assert core("stripe ... did not come from ...: ...") == "did not come from"
    assert len(FOUND) > 15
