"""What a donor and those who ask it have in common: where requests go, how many blocks go at a time.

On the wire and in log lines a shard is a "stripe", a chunk a "portion" and the flat state the "ground": older releases of
ftlib, and people who read logs, know these words.
"""

from __future__ import annotations

from collections.abc import Iterator

PATH = "/recovery"
POLL = 5.0
"""Seconds that a donor keeps a request waiting before it says "ask again"."""
FIRST_TAG = 1 << 30
"""Of messages through the process group. Smaller ones are for results that survivors adopt (``ftlib.core.calls.adoption``)."""
RUN = 16
"""Blocks that are asked for at a time through the process group: the joiner receives them all, wanted or not."""
PIECE = 1 << 20
"""Bytes that are handed to a connection at a time, so that a slow reader is not taken for a dead one."""

Body = Iterator[bytes | memoryview]
"""Of an answer."""


def pieces(data: bytes | memoryview) -> Body:
    """``data`` in pieces."""
    view = memoryview(data)
    return iter([view[start : start + PIECE] for start in range(0, len(view), PIECE)])
