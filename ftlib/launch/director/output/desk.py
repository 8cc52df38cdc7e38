"""Lines and log records of hosts, on their way to the pump: who wrote them, and credit for them once they are handled.

Credit is granted for all that was handled since the last turn of the loop, at once. A grant for each message would wake the
loop thousands of times a second, and agents would hear no heartbeat while it competes with the pump's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

from ...stream.channel import Channel
from ...stream.messages import Credit, Lines, Logged
from ..decisions.launch_state import LaunchState
from .pump import OutputEntry, Pump, Source


class Desk:
    """Takes what agents and their commands write, and what the director says itself. Use on the director's loop only."""

    def __init__(self, pump: Pump, ledger: LaunchState, loop: asyncio.AbstractEventLoop, moved: Callable[[], None]) -> None:
        """``moved``: called on the loop whenever something was handled."""
        self._pump, self._ledger, self._loop, self._moved = pump, ledger, loop, moved
        self._lock = threading.Lock()
        self._handled: dict[Channel, int] = {}  # bytes since the last grant; under the lock

    def take(self, host: str, channel: Channel, message: Lines | Logged, size: int) -> None:
        """Have them handled. ``channel`` is granted ``size`` bytes of credit then."""
        source = self._source(host, message.worker)

        def handled() -> None:
            self._note(channel, size)

        if isinstance(message, Lines):
            self._pump.put(OutputEntry(source, "stderr" if message.error else "stdout", message.lines, then=handled))
        else:
            texts = [(int(level), str(name), float(at), str(text)) for level, name, at, text in message.records]
            self._pump.put(OutputEntry(source, "logging", records=texts, then=handled))

    def _note(self, channel: Channel, size: int) -> None:
        """On the pump's thread: so much was handled."""
        with self._lock:
            first = not self._handled
            self._handled[channel] = self._handled.get(channel, 0) + size
        if first:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for credit any more
                self._loop.call_soon_threadsafe(self._grant)

    def _grant(self) -> None:
        with self._lock:
            handled, self._handled = self._handled, {}
        for channel, size in handled.items():
            channel.send(Credit(size))
        self._moved()

    def spoken(self, host: str, lines: list[bytes]) -> None:
        """The command that leads to a host wrote these to its stderr."""
        self._pump.put(OutputEntry(self._source(host, -1), "stderr", lines))

    def say(self, text: str, host: str = "") -> None:
        """A line of the launcher's own."""
        self._pump.put(OutputEntry(Source(host or "ftlib", None, None, 0), "stderr", [f"[ftlib] {text}".encode()]))

    def say_aloud(self, text: str) -> None:
        """The same, behind the lines that wait, for those too who see no lines."""
        self._pump.put(OutputEntry(Source("ftlib", None, None, 0), "stderr", [text.encode()], loud=True))

    def _source(self, host: str, index: int) -> Source:
        if index < 0 or index >= len(self._ledger.places):
            return Source(host, None, None, 0)
        place = self._ledger.places[index]
        return Source(place.host, place.local_rank, place.rank, index)
