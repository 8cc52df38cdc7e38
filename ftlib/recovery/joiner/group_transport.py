"""Shards through the process group, straight into the joiner's tensors; everything else over HTTP.

A *run* of blocks is requested over HTTP. Once the donor has answered that they are on their way, the joiner receives all of
them: an unanswered receive, or a message that is not received, would end the group for all members at its timeout. A view
change fails the operations under way; in the next view the shard goes on at the block that it had reached.

An operation that does not end could still write into the model, so the model must not be used any more (``Tainted``).
"""

from __future__ import annotations

import itertools
import queue
from collections.abc import Callable, Sequence

import torch

from consensus import Answer, KeyRing, Member

from ...common.memory import room
from ...common.threads import SYSTEM, Threads
from ...core.calls.session import Session
from ...core.plane.plane import Plane
from ...core.tensors.staging import Allocate
from ...errors import GroupError, RebuildTimeout
from ...frameworks.base import Group, Work
from ..layout.flat_state import FlatState
from ..layout.requests import FIRST_TAG, RUN
from ..layout.shards import BLOCK, DIGEST, Shard, blocks, digest_of
from .http_transport import FetchError, GoOn, HTTPTransport, Later

_LOOK = 0.5
"""Seconds of each wait for an operation."""
WINDOW = 1
"""Blocks of a run that are received at a time. An average that is sent meanwhile waits for the blocks of all runs under way."""
_TAGS = 1 << 40
"""Number of tags after which they start again, long after the first ones were received."""


class Tainted(RebuildTimeout):
    """An operation of an aborted group has not ended and may still write into the model: this worker has to restart."""


class GroupTransport(HTTPTransport):
    """The group transport of one member in one lifetime."""

    def __init__(
        self,
        ring: KeyRing | None,
        plane: Plane,
        *,
        patience: float,
        bandwidth: float = 0.0,
        threads: Threads = SYSTEM,
        allocate: Allocate = room,
    ) -> None:
        """``patience``: seconds for an operation to end; more than the group's own limit (``step_timeout``).

        ``allocate``: returns memory for operations (see ``Framework``).
        """
        super().__init__(ring, plane.member_id, bandwidth=bandwidth, threads=threads)
        self._plane = plane
        self._patience = patience
        self._runs = itertools.count()
        self._buffers = _Buffers(allocate)

    def shard(
        self, member: Member, shard: Shard, flat: FlatState, offset: int, got: Callable[[int], None], go_on: GoOn
    ) -> None:
        """See ``HTTPTransport``. Tainted if the memory must not be used any more."""
        spans = list(blocks(offset, shard.stop - shard.start))
        rate_limit = self.rate_limit
        size = max(1, rate_limit.piece(RUN * BLOCK) // BLOCK)
        for first in range(0, len(spans), size):
            run = spans[first : first + size]
            if not (go_on() and rate_limit.take(run[-1][1] - run[0][0], go_on)):
                raise FetchError(f"what comes from {member} is not wanted any more")
            self._run(member, shard, flat, run, got, go_on)

    def _run(
        self,
        member: Member,
        shard: Shard,
        flat: FlatState,
        spans: Sequence[tuple[int, int]],
        got: Callable[[int], None],
        go_on: GoOn,
    ) -> None:
        session = self._plane.session
        if session is None or session.group is None or member.id not in session.ranks or not self._plane.acting_in(session):
            raise Later(f"there is no group with {member} now")
        tag = FIRST_TAG + next(self._runs) * RUN % _TAGS
        query = {
            "ask": "send",
            "joiner": self._plane.member_id,
            "index": shard.index,
            "version": shard.version,
            "offset": spans[0][0],
            "count": len(spans),
            "view": session.view.view_id,
            "rank": session.rank,
            "tag": tag,
        }
        parts = [_Part(flat, shard.start + start, shard.start + stop, self._buffers) for start, stop in spans]
        with self.asked(member, query, go_on) as answer:
            self._receive(member, session, session.group, parts, tag, answer, got)

    def _receive(
        self,
        member: Member,
        session: Session,
        group: Group,
        parts: Sequence[_Part],
        tag: int,
        answer: Answer,
        got: Callable[[int], None],
    ) -> None:
        """Receive ``parts``. No operation is under way when this returns or raises, except after Tainted."""
        rank = session.ranks[member.id]
        works: list[Work] = []

        def receive(until: int) -> None:
            """Begin receives up to number ``until``; a block is not sent before its receive has begun."""
            more = range(len(works), min(until, len(parts)))
            works.extend(group.recv(parts[number].target, rank, tag + number) for number in more)

        ended = 0
        try:
            receive(WINDOW)
            for part in parts:
                self._wait(member, works[ended])
                ended += 1
                receive(ended + WINDOW)
                if digest_of(part.target.numpy().data) != answer.read(DIGEST):
                    raise FetchError(f"a block arrived damaged from {member}, or what proves it did not")
                part.settle()
                got(part.target.numel())
            answer.finish()
        except GroupError as error:
            raise FetchError(f"{member}: {error}") from None
        finally:
            receive(len(parts))
            for work in works[ended:]:
                self._drain(member, work)

    def _wait(self, member: Member, work: Work) -> None:
        """Wait until ``work`` has ended. GroupError if it failed, FetchError if it takes too long."""
        deadline = self._threads.now() + self._patience
        while not work.wait(_LOOK):
            if self._threads.now() > deadline:
                raise FetchError(f"nothing from {member} within {self._patience:g} s")

    def _drain(self, member: Member, work: Work) -> None:
        """Wait until an unwanted ``work`` has ended, well or not; Tainted if it does not end."""
        deadline = self._threads.now() + self._patience
        while not work.done():
            try:
                work.wait(_LOOK)
            except GroupError:
                self._threads.sleep(0.0 if work.done() else _LOOK)
            if not work.done() and self._threads.now() > deadline:
                raise Tainted(
                    f"receiving the state from {member} did not end within {self._patience:g} s after it was given up, and may "
                    "still write into the model: start this worker anew"
                )


class _Buffers:
    """Reused buffers of one block each: the first touch of new memory costs more than the copy into it."""

    def __init__(self, allocate: Allocate) -> None:
        self._allocate = allocate
        self._free: queue.SimpleQueue[torch.Tensor] = queue.SimpleQueue()

    def take(self) -> torch.Tensor:
        try:
            return self._free.get_nowait()
        except queue.Empty:
            return self._allocate(BLOCK, torch.uint8)

    def give(self, buffer: torch.Tensor) -> None:
        self._free.put(buffer)


class _Part:
    """The destination of one block: its own memory if that is contiguous, else a buffer."""

    def __init__(self, flat: FlatState, start: int, stop: int, buffers: _Buffers) -> None:
        views = flat.views(start, stop)
        self._flat, self._start, self._buffers = flat, start, buffers
        self._buffer: torch.Tensor | None = None
        if views is not None and len(views) == 1:
            self.target = torch.frombuffer(views[0], dtype=torch.uint8)
        else:
            self._buffer = buffers.take()
            self.target = self._buffer[: stop - start]

    def settle(self) -> None:
        """The block is verified: copy it to its place. A buffer that was never settled may still be written to: no reuse."""
        if self._buffer is not None:
            self._flat.copy_in(self._start, self.target)
            self._buffers.give(self._buffer)
