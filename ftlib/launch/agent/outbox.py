"""What workers write, on its way to the caller: the sink of their pipes and of their records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..processes.worker import Paused, Worker
from ..stream.channel import Channel, Lane
from ..stream.messages import PIECE, Drained, Lines, Logged
from .records import Record


class Outbox:
    """Hands lines and records to the channel, and stops those who write while the caller takes none."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._paused: list[Paused] = []

    @property
    def full(self) -> bool:
        """Whether reading from workers should pause."""
        return self._channel.full

    def lines(self, worker: Worker, lines: Sequence[bytes], *, error: bool) -> None:
        """Whole lines of a worker."""
        for batch in _batches(lines):
            self._channel.send(Lines(worker.index, error, batch), Lane.LINES)

    def progress(self, worker: Worker, line: bytes, *, error: bool) -> None:
        """A progress bar stays here until its line ends: it is for a terminal, which is not at this host."""

    def records(self, index: int, records: Sequence[Record]) -> None:
        """Log records of a worker."""
        self._channel.send(Logged(index, records), Lane.LINES)

    def say(self, text: str) -> None:
        """A line of the agent's own."""
        self._channel.send(Lines(-1, True, [text.encode()]), Lane.LINES)

    def drained(self, index: int, start: int) -> None:
        """All lines of this start of a worker have been handed over."""
        self._channel.send(Drained(index, start), Lane.LINES, counted=False)

    def pause(self, stream: Paused) -> None:
        """Resume ``stream`` when there is room."""
        self._paused.append(stream)
        if not self.full:  # there was room again between the two calls
            self.room()

    def room(self) -> None:
        """The channel has room again."""
        paused, self._paused = self._paused, []
        for stream in paused:
            stream.resume()


def _batches(lines: Sequence[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for line in lines:
        if batch and size + len(line) > PIECE:
            yield batch
            batch, size = [], 0
        batch.append(line)
        size += len(line) + 4
    if batch:
        yield batch
