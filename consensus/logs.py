"""Loggers that never raise. A handler or filter of the program's that raises costs the record, and nothing else.

Handlers should not raise, but some do, where a log server is away. Raised here it would end a thread that others wait for: that
of this member's agent, the one that builds its groups, or the training itself.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import traceback
from collections.abc import MutableMapping
from typing import Any

_NAME = "ftlib.consensus"


class CarefulLogger(logging.LoggerAdapter[logging.Logger]):
    """Logs as the logger of that name does, and never raises."""

    def __init__(self, name: str = _NAME) -> None:
        """For use as a module's logger."""
        super().__init__(logging.getLogger(name))

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """All other methods log by this one."""
        try:
            super().log(level, msg, *args, **{"stacklevel": 2, **kwargs})  # the caller's line, not this one
        except Exception:  # noqa: BLE001 - it is the program's
            _show_lost(self.logger.name)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Leave ``extra`` as it is given."""
        return msg, kwargs


def handle_record(record: logging.LogRecord) -> None:
    """Give a record of another process to the handlers here. Never raises."""
    try:
        logger = logging.getLogger(record.name)
        if logger.isEnabledFor(record.levelno):
            logger.handle(record)
    except Exception:  # noqa: BLE001 - it is the program's
        _show_lost(record.name)


def _show_lost(name: str) -> None:
    """Show what was raised on standard error, as ``logging.Handler.handleError`` does it."""
    if not logging.raiseExceptions or sys.stderr is None:
        return
    with contextlib.suppress(Exception):  # there is no other place to show it
        sys.stderr.write(f"a log handler raised, and a record of {name} is lost:\n{traceback.format_exc()}")
