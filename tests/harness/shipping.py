"""A log handler of a program's that sends records to a server, which is away from some moment on."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


class Shipping(logging.Handler):
    """Raises once its server is away, as no handler should."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False
        self.lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        if self.away:
            self.lost += 1
            raise ConnectionError("the log server is away")


@contextmanager
def shipping_from(name: str) -> Iterator[Shipping]:
    """One for all records of logger ``name`` from INFO on."""
    handler, log = Shipping(), logging.getLogger(name)
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield handler
    finally:
        log.setLevel(level)
        log.removeHandler(handler)
