"""A golden transcript: a head that says what it shows, and one page or several, each a history of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import wrap

from consensus.simulation import Host, World
from consensus.simulation.invariants import Violation
from consensus.simulation.transcript import Transcript

WIDTH = 98

HEAD = 2
"""Lines of a table before its first event."""

TIME = 6
"""Width of its first column."""


class Tale:
    """``title`` and ``head`` go before the first page; ``rules`` names those of ``docs/protocol.md``."""

    def __init__(self) -> None:
        self._head: list[str] = []
        self._pages: list[tuple[str, str, Transcript, bool]] = []

    def head(self, title: str, rules: str, *paragraphs: str) -> None:
        """What the file shows and which rules it is about."""
        self._head = [title, "=" * len(title), ""]
        for text in (*paragraphs, f"Rules (docs/protocol.md): {rules}. How to read this: README.md."):
            self._head += [*wrap(" ".join(text.split()), WIDTH, break_on_hyphens=False), ""]
        self._head.pop()

    def page(self, heading: str = "", text: str = "", *, aside: bool = False) -> Transcript:
        """A new history, below ``heading`` and a paragraph. ``aside``: its beginning, as far as it is that of the page before,
        is left out.
        """
        page = Transcript()
        self._pages.append((heading, " ".join(text.split()), page, aside))
        return page

    def __str__(self) -> str:
        parts = ["".join(f"# {line}".rstrip() + "\n" for line in self._head)]
        before: list[str] = []
        for heading, text, page, aside in self._pages:
            above = f"{heading}\n{'-' * len(heading)}\n\n" if heading else ""
            paragraph = "\n".join(wrap(text, WIDTH, break_on_hyphens=False)) + "\n\n" if text else ""
            lines = str(page).split("\n")
            parts.append(above + paragraph + "\n".join(_news(before, lines) if aside else lines))
            before = lines
        return "\n\n".join(parts)


def _news(before: list[str], lines: list[str]) -> list[str]:
    """``lines`` without the moments at their beginning that ``before`` begins with, too (but for the head of the table)."""
    alike = next(index for index, (one, two) in enumerate(zip(before, lines, strict=False)) if one != two)
    times = [index for index in range(HEAD, alike + 1) if lines[index][:TIME].strip()]
    first = times[-1]
    return [*lines[:HEAD], f"{'':{TIME}}  == Until then as above.", *lines[first:]]


def end(world: World, text: str = "In the end:") -> None:
    """What everybody believes now."""
    for observer in world.observers:
        if isinstance(observer, Transcript):
            observer.beliefs(text)


def shown(host: Host) -> list[int]:
    """The epochs that it acted in."""
    return [view.epoch for view in host.activated]


@contextmanager
def violation(page: Transcript) -> Iterator[None]:
    """Inside of it an invariant has to break, and the page tells which, and what everybody believes then."""
    try:
        yield
    except Violation as error:
        page.remark(f"{str(error).partition(':')[0].capitalize()} is broken.")
        page.beliefs("Now:")
    else:
        raise AssertionError("nothing forked")
