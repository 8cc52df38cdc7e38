"""Where a notice of preemption may appear, from what the setting ``preemption`` says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import aiohttp

from .clouds import CLOUDS

_EXPECTED = f"expected file:PATH, {', '.join(CLOUDS)}, one of these with =URL, or a callable"


class Source(Protocol):
    """Where to look for a notice. ``str`` says it to people."""

    interval: float
    """Seconds between two looks."""

    async def look(self, http: aiohttp.ClientSession) -> str:
        """What the notice says; empty while there is none. Whatever it raises means: no answer."""


class File:
    """A file whose appearance is the notice: what is in it does not matter."""

    interval = 1.0

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return f"file {self._path}"

    async def look(self, http: aiohttp.ClientSession) -> str:  # noqa: ARG002
        """See ``Source``. Errors other than that there is none are no answer."""
        try:
            self._path.stat()
        except FileNotFoundError:
            return ""
        return "it has appeared"


class Program:
    """The program's own function: returns what the notice says, or something true; something false while there is none."""

    interval = 1.0

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function

    def __str__(self) -> str:
        return getattr(self._function, "__qualname__", None) or type(self._function).__name__

    async def look(self, http: aiohttp.ClientSession) -> str:  # noqa: ARG002
        """See ``Source``. The thread is its own, so it may take its time."""
        told = self._function()
        return (told if isinstance(told, str) else "it says so") if told else ""


def source_of(named: str | Callable[[], Any]) -> Source:
    """The source of that name. ValueError says what is expected."""
    if callable(named):
        return Program(named)
    if named.startswith("file:"):
        path = named.removeprefix("file:")
        if not path:
            raise ValueError(_EXPECTED)
        return File(Path("/" + path.lstrip("/")) if path.startswith("//") else Path(path).absolute())
    name, given, base = named.partition("=")
    if name not in CLOUDS or (given and urlsplit(base).scheme not in ("http", "https")):
        raise ValueError(_EXPECTED)
    return CLOUDS[name](base)
