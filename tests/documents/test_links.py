"""Every relative link of every page leads to a file that is there, and every ``#`` to a heading of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .pages import PAGES, anchors, name, prose

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_resolve(page: Path) -> None:
    broken = []
    for target in _LINK.findall(prose(page)):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists():
            broken.append(f"{target}: no such file")
        elif anchor and anchor not in anchors(there):
            broken.append(f"{target}: no such heading, there are {sorted(anchors(there))}")
    assert not broken, "\n".join(broken)


def test_the_index_names_every_page() -> None:
    (index,) = [page for page in PAGES if name(page) == "docs/README.md"]
    linked = {target.partition("#")[0] for target in _LINK.findall(prose(index))}
    assert {page.name for page in PAGES if page.parent == index.parent} - {"README.md"} <= linked


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Here it is\n[gone](nowhere.md) [there](#here-it-is) [not](#there)\n")
    with pytest.raises(AssertionError, match=r"nowhere.md: no such file(?s:.)*#there: no such heading"):
        test_links_resolve(page)
