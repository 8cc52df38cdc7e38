"""The depot of a path or a URL."""

from __future__ import annotations

import os
from pathlib import Path

from ..common.urls import to_install
from ..errors import ConfigError
from .depot import Depot, DirectoryDepot, is_url


def fault_of(path: object) -> str | None:
    """Why ``path`` names no place at all; None if it may."""
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        return f"{path!r} is no path"
    if not text:
        return "the path is empty"
    try:
        raw = os.fsencode(text)
    except UnicodeEncodeError:
        return f"the path {text!r} has characters that no file system takes"
    return f"the path {text!r} has a NUL character" if b"\0" in raw else None


def depot_of(path: str | os.PathLike[str]) -> Depot:
    """The place that ``path`` names: a URL, or a directory (relative to the current one as it is now).

    ConfigError if no such place can be; OSError if the current directory is gone.
    """
    if not is_url(path):
        return DirectoryDepot(Path(os.fspath(path)).absolute())
    url = os.fspath(path)
    try:
        from .remote import RemoteDepot  # noqa: PLC0415 - fsspec, which few need
    except ModuleNotFoundError as error:
        if error.name != "fsspec":
            raise
        raise ConfigError(f"{url}: checkpoints at a URL need fsspec: {to_install(url)}, or give a directory") from None
    return RemoteDepot.of(url)
