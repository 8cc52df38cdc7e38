"""Memory that is touched once, and used again only when nobody looks at it any more."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch

from ftlib.frameworks.isolated.segments import Segments
from ftlib.recovery.donor import buffer_pool as making
from ftlib.recovery.donor.buffer_pool import BufferPool
from ftlib.recovery.donor.snapshots import Snapshots
from ftlib.recovery.layout.shards import SMALLEST
from tests.ftlib.recovery.trainer import LONG, Trainer
from tests.harness.threads import no_threads


def ended() -> None:
    for thread in threading.enumerate():
        if thread.name == "ftlib-buffers":
            thread.join(LONG)
            assert not thread.is_alive()


def test_a_room_is_free_once_nobody_looks_at_it() -> None:
    rooms = BufferPool()
    first = rooms.take(SMALLEST - 5)
    first.fill_(7)
    where, part = first.data_ptr(), first[100:200].numpy().data
    del first
    assert rooms.nbytes == 0, "somebody still sends a part of it"
    other = rooms.take(SMALLEST)
    assert other.data_ptr() != where
    other.fill_(8)
    assert bytes(part) == b"\7" * 100
    del part
    assert rooms.nbytes == SMALLEST
    assert rooms.take(10).data_ptr() == where
    assert rooms.take(10).data_ptr() == where


def test_the_smallest_that_fits() -> None:
    rooms = BufferPool()
    large, small = rooms.take(3 * SMALLEST), rooms.take(1)
    where = large.data_ptr(), small.data_ptr()
    del large, small
    assert rooms.nbytes == 4 * SMALLEST
    first, second = rooms.take(SMALLEST), rooms.take(SMALLEST)
    assert (second.data_ptr(), first.data_ptr()) == where
    assert rooms.take(2 * SMALLEST).data_ptr() not in where
    assert rooms.take(0).numel() == 0


def test_what_is_prepared_was_touched() -> None:
    rooms = BufferPool(allocate=lambda count, dtype: torch.full((count,), 7, dtype=dtype))
    rooms.prepare(SMALLEST + 1)
    rooms.prepare(SMALLEST)
    ended()
    assert rooms.nbytes == 2 * SMALLEST
    rooms.prepare(2 * SMALLEST)
    ended()
    assert rooms.nbytes == 2 * SMALLEST, "so much is there"
    taken = [rooms.take(SMALLEST) for _ in range(3)]
    assert [int(room.max()) for room in taken] == [0, 0, 7]
    rooms.prepare(1)
    ended()
    assert rooms.nbytes == SMALLEST


def test_as_much_is_prepared_as_was_ever_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """By one thread, when nothing else is to be done."""
    touching, go_on = threading.Event(), threading.Event()

    def touch(_room: torch.Tensor) -> None:
        touching.set()
        assert go_on.wait(LONG)

    monkeypatch.setattr(making, "touch", touch)
    monkeypatch.setattr(making, "stand_back", lambda: threads.append(threading.current_thread().name))
    rooms, threads = BufferPool(), list[str]()
    rooms.prepare(SMALLEST)
    assert touching.wait(LONG)
    for nbytes in (3 * SMALLEST, 2 * SMALLEST):
        rooms.prepare(nbytes)
    go_on.set()
    ended()
    assert rooms.nbytes == 3 * SMALLEST
    assert threads == ["ftlib-buffers"]


def test_nothing_comes_back_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    touching, go_on = threading.Event(), threading.Event()

    def touch(_room: torch.Tensor) -> None:
        touching.set()
        assert go_on.wait(LONG)

    monkeypatch.setattr(making, "touch", touch)
    rooms = BufferPool()
    used = rooms.take(5)
    del used
    used = rooms.take(SMALLEST + 1)
    rooms.prepare(3 * SMALLEST)
    assert touching.wait(LONG)
    assert rooms.nbytes == SMALLEST
    rooms.close()
    go_on.set()
    ended()
    del used
    assert rooms.nbytes == 0
    used = rooms.take(5)
    del used
    assert rooms.nbytes == SMALLEST, "it begins anew"


def test_copies_of_one_chunk_lie_where_others_were() -> None:
    """But for those that somebody still sends."""
    trainer = Trainer()
    trainer.arm(2, 1)
    before = [trainer.pinned(shard) for shard in trainer.shards(2, 1)]
    sent = trainer.snapshots.data("j", 0, 1)
    other = trainer.snapshots.data("j", 1, 1)
    assert sent is not None and other is not None
    where = other.data_ptr()
    del other
    trainer.step()
    trainer.snapshots.expect("j", 2, 0)
    with pytest.raises(LookupError, match="stripe 0 of version 1 is not pinned"):
        trainer.snapshots.data("j", 0, 1)
    now = trainer.bytes()
    trainer.arm(2, 2)
    places = []
    for shard in trainer.shards(2, 2):
        assert trainer.pinned(shard) == now[shard.start : shard.stop]
        data = trainer.snapshots.data("j", shard.index, 2)
        assert data is not None
        places.append(data.data_ptr())
    assert where in places and sent.data_ptr() not in places
    assert bytes(sent.numpy()) == before[0]


def test_what_is_expected_lets_go_of_what_is_old_alone() -> None:
    trainer = Trainer()
    for version in (1, 2, 3):
        trainer.snapshots.arm("j", trainer.shards(1, version), trainer.flat, version, keep=1)
        trainer.step()
    trainer.snapshots.arm("k", trainer.shards(1, 4), trainer.flat, 4)
    trainer.step()
    trainer.snapshots.expect("j", 2, 0)
    assert trainer.snapshots.nbytes == 3 * trainer.flat.nbytes
    for joiner, version in (("j", 2), ("j", 3), ("k", 4)):
        assert trainer.snapshots.data(joiner, 0, version) is not None
    trainer.snapshots.expect("somebody", 9, 0)
    assert trainer.snapshots.nbytes == 3 * trainer.flat.nbytes


@pytest.mark.parametrize(
    "let_go", [lambda snapshots: snapshots.release("j"), lambda kept: kept.keep_only(()), Snapshots.forget]
)
def test_buffers_go_with_the_last_joiner(let_go: Callable[[Snapshots], None]) -> None:
    trainer = Trainer()
    rooms = trainer.snapshots._pool
    trainer.arm(1, 1)
    trainer.snapshots.expect("j", 1, SMALLEST)
    ended()
    assert rooms.nbytes == SMALLEST
    let_go(trainer.snapshots)
    assert rooms.nbytes == 0


def test_buffers_for_one_that_never_came() -> None:
    """It died before anything was pinned for it: the next view goes without it."""
    trainer = Trainer()
    trainer.snapshots.expect("j", 1, SMALLEST)
    ended()
    trainer.snapshots.keep_only(["k"])
    assert trainer.snapshots._pool.nbytes == 0


def test_shared_memory_is_given_back() -> None:
    """Copies lie in memory that the group's process has, if operations work on them. Small tensors that stay keep none."""
    segments = Segments()
    pool = BufferPool(allocate=segments.allocate)
    kept = []
    for _ in range(5):
        taken = [pool.take(40_000_000) for _ in range(4)]
        kept.append(segments.allocate(1000, torch.float32))
        assert all(segments.find(buffer[1_000_000:2_000_000]) is not None for buffer in taken)
        assert sum(segment.nbytes for segment in segments._known if segment.alive) <= 6 * (64 << 20)
        del taken
        pool.close()
    alive = [segment for segment in segments._known if segment.alive]
    assert len(alive) <= 2, "the newest of each kind"


def test_memory_that_is_not_there_is_asked_for_again_later() -> None:
    """The process is short of it for a moment."""
    short = [True]

    def allocate(count: int, dtype: torch.dtype) -> torch.Tensor:
        if short[0]:
            raise MemoryError("no room")
        return torch.empty(count, dtype=dtype)

    rooms = BufferPool(allocate=allocate)
    rooms.prepare(SMALLEST)
    ended()
    assert rooms.nbytes == 0
    short[0] = False
    rooms.prepare(SMALLEST)
    ended()
    assert rooms.nbytes == SMALLEST


def test_without_a_thread_for_it_now_it_is_made_later() -> None:
    rooms = BufferPool()
    with no_threads("ftlib-buffers") as refused:
        rooms.prepare(SMALLEST)
    assert refused and rooms.nbytes == 0
    rooms.prepare(SMALLEST)
    ended()
    assert rooms.nbytes == SMALLEST
