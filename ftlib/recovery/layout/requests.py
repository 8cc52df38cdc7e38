"""Constants shared by donors and joiners: the path of requests, and how many blocks go at a time.

On the wire and in log lines a shard is a "stripe", a chunk a "portion" and the flat state the "ground": older releases of
ftlib, and people who read logs, know these words.
"""

from __future__ import annotations

from collections.abc import Iterator

PATH = "/recovery"
POLL = 5.0
"""Seconds that a donor keeps a request waiting before it answers "ask again"."""
FIRST_TAG = 1 << 30
"""First tag of shards sent through the process group. Adopted results have smaller tags (``ftlib.core.calls.adoption``)."""
RUN = 16
"""Blocks requested at a time through the process group: the joiner receives them all, wanted or not."""
PIECE = 1 << 20
"""Bytes that are passed to a connection at a time, so that a slow reader is not mistaken for a dead one."""

Body = Iterator[bytes | memoryview]
"""The body of an answer."""


def pieces(data: bytes | memoryview) -> Body:
    """``data`` in pieces."""
    view = memoryview(data)
    return iter([view[start : start + PIECE] for start in range(0, len(view), PIECE)])
