"""The layouts of a member's latest calls, by signature: a follower may not know what the others are doing."""

from __future__ import annotations

import threading
from collections import OrderedDict

from .layout import Layout

_KEPT = 64


class LayoutBook:
    """What this member called or followed lately. Thread-safe."""

    def __init__(self) -> None:
        self._layouts: OrderedDict[bytes, Layout] = OrderedDict()
        self._newest: Layout | None = None
        self._lock = threading.Lock()

    def note(self, layout: Layout) -> None:
        """Remember ``layout``; costs nothing where it is the one before."""
        if layout is self._newest:
            return
        with self._lock:
            self._newest = self._layouts[layout.signature] = layout
            self._layouts.move_to_end(layout.signature)
            while len(self._layouts) > _KEPT:
                self._layouts.popitem(last=False)

    def find(self, start: bytes) -> Layout | None:
        """The newest whose signature starts so; None where there is none."""
        with self._lock:
            found = [layout for signature, layout in self._layouts.items() if signature.startswith(start)]
        return found[-1] if start and found else None

    def may_know(self, signature: bytes) -> bool:
        """Whether such a call was made or followed here; True as well where it may have been, and was forgotten."""
        with self._lock:
            return signature in self._layouts or len(self._layouts) == _KEPT
