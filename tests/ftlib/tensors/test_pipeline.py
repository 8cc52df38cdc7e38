"""The pipeline of compressed buckets: one order of operations, whatever ends when."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ftlib.core.tensors.compression.pipeline import Pipeline
from ftlib.errors import GroupError
from ftlib.frameworks.base import Group, Operation, OperationKind, Work


class Pending(Work):
    """Ends when it is told to, or is waited for."""

    def __init__(self, name: tuple[int, int]) -> None:
        self.name = name
        self.ended = False
        self.error: GroupError | None = None

    def done(self) -> bool:
        return self.ended

    def wait(self, timeout: float) -> bool:
        self.ended = self.ended or timeout > 0
        if self.ended and self.error is not None:
            raise self.error.afresh()
        return self.ended


class Recording(Group):
    rank, size = 0, 1

    def __init__(self) -> None:
        self.works: list[Pending] = []

    def submit(self, operation: Operation) -> Work:
        work = Pending((operation.peer, operation.tag))
        self.works.append(work)
        return work

    @property
    def order(self) -> list[tuple[int, int]]:
        """Buckets and stages, as they were begun."""
        return [work.name for work in self.works]

    def abort(self) -> None:
        for work in self.works:
            if not work.ended:
                work.ended, work.error = True, GroupError("aborted")

    def close(self) -> None:
        self.abort()


def steps(group: Recording, finished: list[int], bucket: int, stages: int) -> Iterator[Operation]:
    for stage in range(stages):
        for before in group.works:
            assert before.ended or before.name[0] != bucket, "the operation before has not ended"
        yield Operation(OperationKind.ALLREDUCE, torch.zeros(1), peer=bucket, tag=stage)
    finished.append(bucket)


def expected(stages: list[int]) -> list[tuple[int, int]]:
    if stages[-1] == 1 and len(stages) > 1:
        return [*expected_of(stages[:-1]), (len(stages) - 1, 0)]
    return expected_of(stages)


def expected_of(stages: list[int]) -> list[tuple[int, int]]:
    return [
        (turn - stage, stage)
        for turn in range(len(stages) + max(stages))
        for stage in range(turn + 1)
        if turn - stage < len(stages) and stage < stages[turn - stage]
    ]


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 1 << 30), st.lists(st.integers(1, 3), min_size=1, max_size=6))
def test_the_order_is_the_same_whatever_ends_when(seed: int, stages: list[int]) -> None:
    rng = random.Random(seed)
    group, finished = Recording(), list[int]()
    pipeline, works = Pipeline(group, stages), list[Work]()
    while not (len(works) == len(stages) and all(work.done() for work in works)):
        pending = [work for work in group.works if not work.ended]
        choice = rng.choice(["add", "end", "ask"])
        if choice == "add" and len(works) < len(stages):
            bucket = len(works)
            works.append(pipeline.add(bucket, functools.partial(steps, group, finished, bucket, stages[bucket])))
        elif choice == "end" and pending:
            rng.choice(pending).ended = True
        elif choice == "ask" and works:
            rng.choice(works).done()
    assert group.order == expected(stages)
    assert sorted(finished) == list(range(len(stages)))


def test_waiting_begins_what_comes_before() -> None:
    group, finished = Recording(), list[int]()
    pipeline = Pipeline(group, [2, 2, 2])
    works = [pipeline.add(bucket, functools.partial(steps, group, finished, bucket, 2)) for bucket in range(3)]
    assert group.order == [(0, 0), (1, 0)], "the first bucket's second operation comes before the third bucket's first"
    assert works[0].wait(1.0)
    assert finished == [0]
    assert all(work.wait(1.0) for work in works)
    assert group.order == expected([2, 2, 2])


def test_only_the_last_bucket_waits_for_the_end() -> None:
    """As an open call begins it: all else is over by then."""
    group, finished = Recording(), list[int]()
    pipeline = Pipeline(group, [2, 2, 1])
    works = [pipeline.add(bucket, functools.partial(steps, group, finished, bucket, 2)) for bucket in range(2)]
    assert all(work.wait(1.0) for work in works)
    assert group.order == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_nobody_waits_for_what_was_not_added() -> None:
    group = Recording()
    work = Pipeline(group, [2, 2]).add(0, functools.partial(steps, group, [], 0, 2))
    group.works[0].ended = True
    assert not work.done()
    with pytest.raises(RuntimeError, match="not added"):
        work.wait(1.0)


def test_an_abort_ends_everything() -> None:
    group, finished = Recording(), list[int]()
    pipeline = Pipeline(group, [2, 2, 1])
    works = [pipeline.add(bucket, functools.partial(steps, group, finished, bucket, 2)) for bucket in range(2)]
    assert not any(work.done() for work in works)
    group.abort()
    assert all(work.done() for work in works)
    for work in [*works, pipeline.add(2, functools.partial(steps, group, finished, 2, 1))]:
        with pytest.raises(GroupError, match="aborted"):
            work.wait(1.0)
        assert work.done()
    assert len(group.works) == 2
    assert not finished


def test_what_still_writes_is_not_done() -> None:
    """One operation has failed, another one of the group is still under way: its buffer is in use."""
    group = Recording()
    pipeline = Pipeline(group, [1, 1])
    works = [pipeline.add(bucket, functools.partial(steps, group, [], bucket, 1)) for bucket in range(2)]
    group.works[0].ended, group.works[0].error = True, GroupError("broken")
    assert works[0].done()
    assert not works[1].done()
    group.works[1].ended = True
    assert works[1].done()
