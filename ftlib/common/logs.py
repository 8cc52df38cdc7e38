"""The handler for log records, installed only if the user asks for one. The records' fields: ``Plane.about``.

A library does not decide where a program's log goes: without ``log_format`` and ``log_level`` nothing here touches the logging
of the process, and the loggers ``ftlib`` and ``ftlib.consensus`` behave like any other library's.
"""

from __future__ import annotations

import logging
from typing import Any

FORMATS = ("plain", "json")
LEVELS = ("debug", "info", "warning", "error")
_PLAIN = "%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s"
_DATE = "%Y-%m-%d %H:%M:%S"


class _Handler(logging.StreamHandler[Any]):
    """Ours, so that a second ``FTLib`` in the process replaces it instead of adding another."""


def configure(log_format: str = "", log_level: str = "") -> None:
    """Send the records of this library to stderr. Does nothing if neither argument is given.

    ``log_format``: one of ``FORMATS`` (default plain); ``log_level``: the lowest of ``LEVELS`` to show (default info). The
    records then no longer go to the root logger's handlers, which would show each a second time.
    """
    if not log_format and not log_level:
        return
    logger = logging.getLogger("ftlib")
    for handler in [handler for handler in logger.handlers if isinstance(handler, _Handler)]:
        logger.removeHandler(handler)
    handler = _Handler()
    handler.setFormatter(_formatter(log_format or "plain"))
    logger.addHandler(handler)
    logger.setLevel((log_level or "info").upper())
    logger.propagate = False


def _formatter(log_format: str) -> logging.Formatter:
    if log_format == "plain":
        return logging.Formatter(_PLAIN, _DATE)
    from pythonjsonlogger.json import JsonFormatter  # noqa: PLC0415 - only where it is asked for

    names = {"levelname": "level", "name": "logger"}
    return JsonFormatter("%(levelname)s %(name)s %(message)s", rename_fields=names, timestamp="time")
