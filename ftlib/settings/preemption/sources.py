"""Sources of a notice of preemption, as the setting ``preemption`` names them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import aiohttp

from ...errors import ConfigError
from .clouds import CLOUDS

_EXPECTED = f"expected file:PATH, signal:NAME, {', '.join(CLOUDS)}, one of these with =URL, or a callable"
_TAKEN = frozenset({signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGSEGV})
"""Signals that cannot be caught, or that have a meaning already."""


class Source(Protocol):
    """A source of a notice. ``str`` gives its name for people."""

    interval: float
    """Seconds between two looks."""

    async def look(self, http: aiohttp.ClientSession) -> str:
        """Return the text of the notice; empty while there is none. Any exception means: no answer."""


class File:
    """A file whose appearance is the notice; its content does not matter."""

    interval = 1.0

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return f"file {self._path}"

    async def look(self, http: aiohttp.ClientSession) -> str:  # noqa: ARG002
        """See ``Source``. Any error but a missing file means: no answer."""
        try:
            self._path.stat()
        except FileNotFoundError:
            return ""
        return "it has appeared"


class Signal:
    """A signal that this process gets, as a batch system sends one ahead of the end: USR1, USR2, ..."""

    interval = 0.2

    def __init__(self, number: signal.Signals) -> None:
        """Nothing is caught before ``install``."""
        self._number = number
        self._came = False

    def __str__(self) -> str:
        return self._number.name

    def install(self) -> None:
        """Catch the signal, from now on until the process ends. ConfigError on another thread than the main one."""
        if threading.current_thread() is not threading.main_thread():
            raise ConfigError(
                f"preemption=signal:{self._number.name.removeprefix('SIG')}: Python lets only the main thread catch a signal: "
                "call FTLib.init there, or catch it in the program, and give preemption= a function that says so"
            )
        signal.signal(self._number, self._catch)

    def _catch(self, _number: int, _frame: object) -> None:
        self._came = True  # a handler can neither log nor take a lock

    async def look(self, http: aiohttp.ClientSession) -> str:  # noqa: ARG002
        """See ``Source``."""
        return "this process got it" if self._came else ""


class Program:
    """The program's own function: returns the text of the notice, or a true value; a false value while there is none."""

    interval = 1.0

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function

    def __str__(self) -> str:
        return getattr(self._function, "__qualname__", None) or type(self._function).__name__

    async def look(self, http: aiohttp.ClientSession) -> str:  # noqa: ARG002
        """See ``Source``. The function may block, since it runs on a thread of the watch's own."""
        told = self._function()
        return (told if isinstance(told, str) else "it says so") if told else ""


def source_of(named: str | Callable[[], Any]) -> Source:
    """Return the source of that name. Raises ValueError with the expected names."""
    if callable(named):
        return Program(named)
    if named.startswith("file:"):
        path = named.removeprefix("file:")
        if not path:
            raise ValueError(_EXPECTED)
        return File(Path("/" + path.lstrip("/")) if path.startswith("//") else Path(path).absolute())
    if named.startswith("signal:"):
        number = getattr(signal.Signals, "SIG" + named.removeprefix("signal:").upper().removeprefix("SIG"), None)
        if number is None or number in _TAKEN:
            raise ValueError(_EXPECTED)
        return Signal(number)
    name, given, base = named.partition("=")
    if name not in CLOUDS or (given and urlsplit(base).scheme not in ("http", "https")):
        raise ValueError(_EXPECTED)
    return CLOUDS[name](base)
