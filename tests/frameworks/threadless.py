"""A process that can start no thread for a moment, as where a limit of its container is reached."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from unittest import mock

from ftlib.frameworks import background


@contextlib.contextmanager
def no_thread_left() -> Iterator[None]:
    """Whoever starts a thread gets what Python raises then; nor does one that is through with a task take another."""
    with (
        mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")),
        mock.patch.object(background, "_take", return_value=None),
    ):
        yield
