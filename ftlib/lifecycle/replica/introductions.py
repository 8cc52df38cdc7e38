"""How the processes of a replica find each other before they are in a view: through the members of the job.

A joiner builds its model first, sharded over its replica, and is admitted in its first call. Until then its mates are not in
any view, but every member of the job can be asked: it keeps what processes of one replica leave for each other, for a while.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from consensus import KeyRing, Member

from ...errors import FTLibError
from ...recovery import FetchError, request

PATH = "/mates"
_KEPT = 600.0
"""Seconds that a word is kept."""
_MOST = 4096
"""Words that a member keeps at most."""
_AGAIN = 0.05
"""Seconds between two rounds of questions."""
_LONGEST = 1 << 16


class Introductions:
    """What members leave here for others. Any thread."""

    def __init__(self) -> None:
        self._left: dict[tuple[str, str], tuple[float, str]] = {}
        self._lock = threading.Lock()

    def source(self, query: Mapping[str, str]) -> Iterator[bytes]:
        """Serves ``PATH``: with ``word``, keep it under ``replica`` and ``name``. The answer: all names of that replica."""
        replica, name, word = query.get("replica", ""), query.get("name", ""), query.get("word", "")
        if not replica:
            raise LookupError("expected ?replica=NAME, and name= and word= to leave a word")
        now = time.monotonic()
        with self._lock:
            self._left = {key: value for key, value in self._left.items() if value[0] > now}
            if name and word and len(self._left) < _MOST:
                self._left[replica, name] = now + _KEPT, word
            found = {key[1]: value[1] for key, value in self._left.items() if key[0] == replica}
        return iter([json.dumps(found).encode()])


def introduced(
    replica: str,
    name: str,
    mine: tuple[str, str] | None,
    members: Callable[[], Sequence[Member]],
    ring: KeyRing | None,
    go_on: Callable[[], bool],
) -> str | None:
    """The word that was left under ``name`` for ``replica``. ``mine``: name and word to leave oneself.

    ``members``: whom to ask. None once ``go_on`` returns False.
    """
    while go_on():
        for member in members():
            query = {"replica": replica}
            if mine is not None:
                query |= {"name": mine[0], "word": mine[1]}
            try:
                with request(ring, member, PATH, query, go_on) as answer:
                    found = json.loads(answer.read(_LONGEST) or b"{}")
            except (FetchError, FTLibError):
                continue
            if name in found:
                return str(found[name])
        time.sleep(_AGAIN)
    return None
