"""Where each thread of this process is, for ``ftlib stack``: ``GET /stack``, answered by a thread of its own."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping

PATH = "/stack"


def source(_query: Mapping[str, str]) -> Iterator[bytes]:
    """Answer ``GET PATH`` with the stacks as text."""
    yield stacks().encode(errors="replace")


def stacks() -> str:
    """All threads of this process with their stacks: first the main one, where most programs train, then the others by name."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    frames = sys._current_frames()  # noqa: SLF001 - the only way to see another thread's stack
    order = sorted(frames, key=lambda ident: (ident != main, names.get(ident, ""), ident))
    parts = [f"process {os.getpid()}, {len(order)} threads"]
    for ident in order:
        if ident != threading.get_ident():
            lines = "".join(traceback.format_stack(frames[ident])).rstrip()
            parts.append(f"thread {names.get(ident, ident)}:\n{lines}")
    return "\n\n".join(parts) + "\n"
