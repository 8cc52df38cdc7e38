"""Carries out the operations of compressed buckets, several buckets at a time, without blocking.

All members must begin their operations in the same order, whenever their gradients come and operations end. So the order is
fixed: in turn ``t`` the first operation of bucket ``t`` begins, then the second of bucket ``t - 1``, then the third of bucket
``t - 2``. Each begins once its tensor is ready, and those after it wait. A last bucket of one operation comes after all others:
an open call begins it at its end only (see ``OpenAttempt``), and no other operation is to wait for that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from ftlib.errors import GroupError
from ftlib.frameworks.base import Group, Operation, Work


class Pipeline:
    """The buckets of one attempt. Used by the training thread."""

    def __init__(self, group: Group, stages: Sequence[int]) -> None:
        """``stages``: how many operations each bucket has, by its position. All members are in this call already."""
        turns = [(position + stage, stage, position) for position, many in enumerate(stages) for stage in range(many)]
        if stages and stages[-1] == 1:
            turns[-1] = (len(stages) + max(stages), 0, len(stages) - 1)  # the greatest
        self._group = group
        self._order = [position for _, _, position in sorted(turns)]
        self._stages = tuple(stages)
        self._begun = 0
        self._buckets: dict[int, PipelinedWork] = {}
        self.error: GroupError | None = None
        """Why no operation begins any more."""

    def add(self, position: int, start: Callable[[], Iterator[Operation]]) -> PipelinedWork:
        """Add a bucket, in order of the positions. ``start`` is called when its first operation may begin, and yields each
        operation when its tensor is ready. The ``Work`` goes on while it is asked or waited for.
        """
        work = self._buckets[position] = PipelinedWork(self, start, self._stages[position])
        self.advance()
        return work

    def advance(self) -> None:
        """Begin all operations that can begin now."""
        while self.error is None and (work := self.next()) is not None and not work.under_way:
            self.begin(work)

    def next(self) -> PipelinedWork | None:
        """The bucket whose operation is the next one; None if it was not added yet, or if there are no more."""
        if self._begun == len(self._order):
            return None
        return self._buckets.get(self._order[self._begun])

    def begin(self, work: PipelinedWork) -> None:
        """Begin the next operation, which is one of ``work``."""
        try:
            operation = work.operation()
        except BaseException:
            self.fail(GroupError("an operation could not be prepared"))
            raise
        work.submitted(self._group.submit(operation))
        self._begun += 1

    def fail(self, error: GroupError) -> None:
        """An operation has failed: none begins any more."""
        self.error = self.error or error


class PipelinedWork(Work):
    """All operations of one bucket."""

    def __init__(self, pipeline: Pipeline, start: Callable[[], Iterator[Operation]], stages: int) -> None:
        self._pipeline = pipeline
        self._start = start
        self._left = stages
        """Operations to begin."""
        self._steps: Iterator[Operation] | None = None
        self._current: Work | None = None
        self._ended = False

    @property
    def under_way(self) -> bool:
        """True while an operation is under way. GroupError if it has failed."""
        if self._current is None or not self._current.done():
            return self._current is not None
        self.end_current(0.0)
        return False

    def operation(self) -> Operation:
        """Prepare the next operation."""
        if self._steps is None:
            self._steps = self._start()
        return next(self._steps)

    def submitted(self, work: Work) -> None:
        """The operation has begun."""
        self._current = work
        self._left -= 1

    def wait(self, timeout: float) -> bool:
        """See ``Work``. Also begins the other buckets' operations whose turn comes before."""
        deadline = time.monotonic() + timeout
        while not self._advanced():
            blocking = self if not self._left else self._pipeline.next()
            if blocking is None:
                raise RuntimeError("waited for a bucket whose operations come after those of a bucket that was not added")
            if not blocking.end_current(max(0.0, deadline - time.monotonic())):
                return False
        return True

    def done(self) -> bool:
        """See ``Work``."""
        try:
            if self._advanced():
                return True
        except GroupError:
            pass
        return self._pipeline.error is not None and (self._current is None or self._current.done())

    def _advanced(self) -> bool:
        """Begin and end what can be; True once all has ended. GroupError if anything has failed."""
        pipeline = self._pipeline
        if not self._ended:
            if pipeline.error is None:
                pipeline.advance()
            if not self._left and not self.under_way:
                self._finish()
        if not self._ended and pipeline.error is not None:
            raise pipeline.error.afresh()
        return self._ended

    def end_current(self, timeout: float) -> bool:
        """Wait for the operation under way; True if it has ended."""
        if self._current is None:
            return True
        try:
            ended = self._current.wait(timeout)
        except GroupError as error:
            self._pipeline.fail(error)
            raise
        if ended:
            self._current = None
        return ended

    def _finish(self) -> None:
        """The last operation has ended: let ``reduce`` write the result."""
        assert self._steps is not None
        try:
            next(self._steps, None)
        except BaseException:
            self._pipeline.fail(GroupError("a result could not be decoded"))
            raise
        self._ended = True
