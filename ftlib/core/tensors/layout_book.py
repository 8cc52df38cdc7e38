"""The layouts of a member's latest calls, by signature: a member that follows may not know what the others are doing."""

from __future__ import annotations

import threading
from collections import OrderedDict

from .compression.compression import Compression
from .layout import Layout

_KEPT = 64


class LayoutBook:
    """Layouts of the calls that this member made or followed lately. Thread-safe."""

    def __init__(self) -> None:
        self._layouts: OrderedDict[bytes, Layout] = OrderedDict()
        self._newest: Layout | None = None
        self._lock = threading.Lock()

    def note(self, layout: Layout) -> None:
        """Remember ``layout``; costs nothing if it was the last one noted."""
        if layout is self._newest:
            return
        with self._lock:
            self._newest = self._layouts[layout.signature] = layout
            self._layouts.move_to_end(layout.signature)
            while len(self._layouts) > _KEPT:
                self._layouts.popitem(last=False)

    def find(self, start: bytes) -> Layout | None:
        """The newest layout whose signature starts with ``start``; None if there is none."""
        with self._lock:
            found = [layout for signature, layout in self._layouts.items() if signature.startswith(start)]
        return found[-1] if start and found else None

    def like(self, signature: bytes) -> Layout | None:
        """The newest layout of the same call as that of this signature, in whatever order; None if there is none."""
        with self._lock:
            return next((layout for layout in reversed(self._layouts.values()) if layout.same_call(signature)), None)

    def compression(self, name: str) -> Compression | None:
        """The compression of that name with which a call was made here lately; None if there is none."""
        with self._lock:
            used = [layout.compression for layout in self._layouts.values() if layout.compression is not None]
        return next((each for each in used if each.name == name), None)

    def may_know(self, signature: bytes) -> bool:
        """True if a call of that signature was made or followed here, in whatever order, or may have been and was forgotten."""
        with self._lock:
            return len(self._layouts) == _KEPT or any(layout.same_call(signature) for layout in self._layouts.values())
