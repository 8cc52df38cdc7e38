"""What strangers left in a store is named in the log: each thing once, however often it is met."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Complaints"]

_MOST = 100
"""Whoever can write to the store shall not fill a member's log and memory."""


class Complaints:
    """One member's, about one store."""

    def __init__(self, store: str, say: Callable[[str], None]) -> None:
        """``store``: its URL. ``say`` is given each line."""
        self._store = store
        self._say = say
        self._named: set[str] = set()

    def name(self, key: str, text: str) -> None:
        """Say ``text`` about ``key``, unless something was said about it before."""
        if key in self._named or len(self._named) > _MOST:
            return
        self._named.add(key)
        if len(self._named) > _MOST:
            text = f"more than {_MOST} values cannot be read; the others are not named"
        self._say(f"the store {self._store}: {text}")
