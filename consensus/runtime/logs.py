"""The log of the runtime. A handler or filter of the program's that raises costs the record, and nothing else.

Handlers should not raise, but some do, where a log server is away. Raised here it would end the thread that keeps this member's
agent, while the others go on waiting for it.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import traceback
from collections.abc import Iterator, MutableMapping
from typing import Any

NAME = "ftlib.consensus"


class CarefulLogger(logging.LoggerAdapter[logging.Logger]):
    """Logs as the logger ``NAME`` does, and never raises."""

    def __init__(self) -> None:
        """For use as a module's logger."""
        super().__init__(logging.getLogger(NAME))

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """All other methods log by this one."""
        with _careful():
            super().log(level, msg, *args, **{"stacklevel": 2, **kwargs})  # the caller's line, not this one

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Leave ``extra`` as it is given."""
        return msg, kwargs


def handle_record(record: logging.LogRecord) -> None:
    """Give a record of another process to the handlers here. Never raises."""
    with _careful():
        logger = logging.getLogger(record.name)
        if logger.isEnabledFor(record.levelno):
            logger.handle(record)


@contextlib.contextmanager
def _careful() -> Iterator[None]:
    """What is raised within is shown on standard error, as ``logging.Handler.handleError`` does it."""
    try:
        yield
    except Exception:  # noqa: BLE001 - it is the program's
        if logging.raiseExceptions and sys.stderr is not None:
            with contextlib.suppress(Exception):
                sys.stderr.write(f"a log handler raised, and a record of {NAME} is lost:\n{traceback.format_exc()}")
