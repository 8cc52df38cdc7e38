from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash

import ftlib.recovery.donor.snapshots as snapshots_module
from ftlib.recovery.donor.reading import UNIT, Copying, Hashing
from ftlib.recovery.donor.snapshots import Snapshots
from ftlib.recovery.layout.flat_state import FlatState
from ftlib.recovery.layout.manifest import split
from ftlib.recovery.layout.shards import Shard
from ftlib.state.registry import Registered
from tests.ftlib.recovery.trainer import LONG, Trainer, ended, held
from tests.harness.basics import eventually
from tests.harness.company import in_thread
from tests.harness.threads import no_threads


def test_each_shard_is_kept_at_its_version() -> None:
    trainer = Trainer()
    expected = {}
    for version in (4, 5, 7):
        expected[version] = trainer.bytes()
        shards = trainer.arm(3, version, f"j{version}")
        trainer.step()
        trainer.step()
    for version, before in expected.items():
        assert b"".join(trainer.pinned(shard, f"j{version}") for shard in trainer.shards(3, version)) == before
    with pytest.raises(LookupError, match="stripe 0 of version 7 is not pinned for j5"):
        trainer.pinned(shards[0], "j5")
    assert len({*expected.values(), trainer.bytes()}) == 4
    ended()


def test_the_optimizer_waits_and_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(width=1200)
    assert trainer.flat.nbytes > 2 * UNIT
    before = trainer.bytes()
    with held(monkeypatch) as (there, go_on):
        [shard] = trainer.shards()
        trainer.snapshots.arm("j", [shard], trainer.flat, 1)
        assert there.wait(LONG)
        training = threading.Thread(target=trainer.step)
        training.start()
        eventually(lambda: trainer.snapshots._todo == [], "it has taken all units but one")
        training.join(0.05)  # long enough for who does not wait
        assert training.is_alive(), "that one is the other thread's"
        assert trainer.bytes() == before
        go_on.set()
        training.join(LONG)
    assert trainer.pinned(shard) == before
    assert trainer.bytes() != before


def test_one_thread_copies_however_much_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It shall not take the processors from the training."""
    trainer = Trainer()
    with held(monkeypatch) as (there, go_on):
        trainer.snapshots.arm("j", trainer.shards(), trainer.flat, 1)
        assert there.wait(LONG)
        digest = trainer.snapshots.digest(trainer.flat, 1, [(0, trainer.flat.nbytes)])
        assert [thread.name for thread in threading.enumerate()].count("ftlib-snapshots") == 1
        go_on.set()
    assert digest.result(LONG)
    ended()


def test_without_its_own_thread_the_optimizer_does_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Snapshots, "_work", lambda self: None)
    trainer = Trainer()
    before = trainer.bytes()
    shards = trainer.shards(3)
    trainer.snapshots.arm("j", shards, trainer.flat, 1)
    digest = trainer.snapshots.digest(trainer.flat, 1, [(0, trainer.flat.nbytes)])
    assert trainer.snapshots.data("j", 0, 1) is None
    assert digest.result() is None
    trainer.step()
    assert b"".join(map(trainer.pinned, shards)) == before
    assert digest.result() == [xxhash.xxh3_128_digest(before)]


def test_an_optimizer_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots_module, "PATIENCE", 0.1)
    trainer, told = Trainer(), list[str]()

    def ask() -> None:
        with pytest.raises(LookupError) as error:
            trainer.snapshots.data("j", 0, 1, LONG)
        told.append(str(error.value))

    with held(monkeypatch) as (there, go_on):
        trainer.snapshots.arm("j", trainer.shards(), trainer.flat, 1)
        assert there.wait(LONG)
        asking = in_thread(ask)
        eventually(lambda: trainer.snapshots._changed._waiters, "it waits")  # type: ignore[attr-defined]
        trainer.step()
        asking.join(LONG / 8)
        go_on.set()
    [text] = told
    assert text.startswith("the thread that copies has not read its unit within")


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
@pytest.mark.parametrize("foreach", [False, True])
def test_digests_are_of_the_version(optimizer: Any, foreach: bool) -> None:
    trainer = Trainer(optimizer=lambda parameters, lr: optimizer(parameters, lr=lr, foreach=foreach))
    ranges = [(0, trainer.flat.nbytes), (5, 1000), (7, 7)]
    expected = [xxhash.xxh3_128_digest(trainer.bytes(*span)) for span in ranges]
    digest = trainer.snapshots.digest(trainer.flat, 3, ranges)
    trainer.step()
    assert digest.result(LONG) == expected
    assert trainer.snapshots.nbytes == 0


def test_digests_of_strided_tensors_and_many_units() -> None:
    tensor = torch.randn(3000, 1500).t()
    flat = FlatState([tensor], ["w"])
    assert flat.nbytes > 2 * UNIT
    snapshots = Snapshots()
    digest = snapshots.digest(flat, 0, [(0, flat.nbytes)])
    assert digest.result(LONG) == [xxhash.xxh3_128_digest(tensor.contiguous().numpy().data)]


def test_two_threads_never_hash_one_range_at_once() -> None:
    hashing = Hashing(FlatState([torch.zeros(3 * UNIT, dtype=torch.uint8)], ["w"]), 0, 3 * UNIT, 1)
    first = hashing.take()
    assert first is not None
    assert hashing.take() is None
    hashing.finish(hashing.work(first))
    assert hashing.take() == (UNIT, 2 * UNIT)


def test_another_change_is_noticed_and_named() -> None:
    trainer = Trainer()
    shards = trainer.arm(2)
    kept = trainer.pinned(shards[1])
    assert trainer.pinned(shards[0])
    with torch.no_grad():
        trainer.model[0].weight.mul_(2)
    text = re.escape("model[0]['0.weight'] was changed in call 1 by something else than an optimizer's step")
    trainer.step()
    with pytest.raises(LookupError, match=text):
        trainer.snapshots.data("j", 0, 1)
    assert trainer.pinned(shards[1]) == kept, "of other tensors"
    [shard] = trainer.arm(1, 2)
    trainer.step()
    assert trainer.pinned(shard)


def test_a_change_before_it_is_read_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer()
    with held(monkeypatch) as (there, go_on):
        trainer.arm()
        assert there.wait(LONG)
        trainer.model[1].bias.data = torch.zeros(3)
        digest = trainer.snapshots.digest(trainer.flat, 1, [(0, 100)])
        go_on.set()
        with pytest.raises(LookupError, match=re.escape("model[0]['1.bias'] was changed")):
            trainer.snapshots.data("j", 0, 1, LONG)
        assert digest.result(LONG), "of other tensors"


@pytest.mark.parametrize("version", [4, 6])
def test_no_other_version_can_be_pinned(version: int) -> None:
    trainer = Trainer()
    trainer.arm(1, 5)
    with pytest.raises(ValueError, match="the state is that on entry to call 5, and no other version"):
        trainer.snapshots.arm("j", [*trainer.shards(1, 5), *trainer.shards(1, version)], trainer.flat, 5)
    assert trainer.pinned(trainer.shards(1, 5)[0]) == trainer.bytes(), "what it has stays"
    with pytest.raises(LookupError, match="stripe 3 of version 5 is not pinned for other"):
        trainer.snapshots.data("other", 3, 5)


def test_a_step_left_out_keeps_the_version_and_the_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer()
    with held(monkeypatch) as (there, go_on):
        [shard] = trainer.shards()
        trainer.snapshots.arm("j", [shard], trainer.flat, 1)
        assert there.wait(LONG)
        before = trainer.bytes()
        [later] = trainer.arm(1, 2, "k")  # a gradient overflowed, say, and the next call has begun
        go_on.set()
        trainer.step()
    assert trainer.pinned(shard) == trainer.pinned(later, "k") == before


def test_two_joiners_share_a_buffer() -> None:
    trainer = Trainer()
    [shard] = trainer.shards()
    again = split(Registered({"model": trainer.model, "optimizer": trainer.optimizer}), 0)[1]
    trainer.snapshots.arm("j", [shard], trainer.flat, 1)
    trainer.snapshots.arm("k", [Shard(9, shard.start, shard.stop, 1, ("b",))], again, 1)
    assert trainer.snapshots.nbytes == trainer.flat.nbytes
    one, two = trainer.snapshots.data("j", 0, 1, LONG), trainer.snapshots.data("k", 9, 1, LONG)
    assert one is not None and two is not None and one.data_ptr() == two.data_ptr()
    trainer.snapshots.release("j")
    assert trainer.snapshots.nbytes == trainer.flat.nbytes
    assert trainer.snapshots.data("k", 9, 1) is two
    trainer.snapshots.release("k")
    assert not trainer.snapshots._copies
    trainer.snapshots.release("k")
    assert trainer.snapshots.nbytes == 0
    assert bytes(two.numpy()) == trainer.bytes(), "who reads it has it until the end"


def mapped() -> int:
    """Bytes that this process has mapped."""
    return int(re.search(r"VmSize:\s+(\d+)", Path("/proc/self/status").read_text())[1]) << 10  # type: ignore[index]


def nothing(snapshots: Snapshots) -> None:
    """Let go of nothing."""


@pytest.mark.parametrize(
    "let_go",
    [lambda snapshots: snapshots.release("j"), lambda snapshots: snapshots.keep_only({"k"}), Snapshots.forget, nothing],
    ids=["release", "keep_only", "forget", "nothing"],
)
def test_memory_is_given_back(let_go: Callable[[Snapshots], None]) -> None:
    tensor = torch.zeros(40 << 20)
    flat = FlatState([tensor], ["w"])
    snapshots = Snapshots()
    snapshots.arm("j", [Shard(0, 0, flat.nbytes, 1, ("a",))], flat, 1)
    assert snapshots.data("j", 0, 1, LONG) is not None
    ended()
    snapshots.barrier()
    assert snapshots.nbytes == flat.nbytes
    before = mapped()
    let_go(snapshots)
    kept = let_go is nothing
    assert snapshots.nbytes == (flat.nbytes if kept else 0)
    assert (before - mapped() > flat.nbytes - (8 << 20)) is not kept


def test_only_members_keep_theirs() -> None:
    trainer = Trainer()
    for joiner in "jkl":
        trainer.arm(2, 1, joiner)
    trainer.snapshots.keep_only(["k", "z"])
    for joiner in "jl":
        with pytest.raises(LookupError, match=f"is not pinned for {joiner}"):
            trainer.snapshots.data(joiner, 0, 1)
    assert b"".join(trainer.pinned(shard, "k") for shard in trainer.shards(2)) == trainer.bytes()


def test_who_waits_is_told_of_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer()
    told: list[str] = []

    def wait(ask: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            try:
                ask()
            except LookupError as error:
                told.append(str(error))

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    with held(monkeypatch) as (there, go_on):
        trainer.arm(2)
        digest = trainer.snapshots.digest(trainer.flat, 1, [(0, 100)])
        assert there.wait(LONG)
        waiting = [
            wait(lambda: trainer.snapshots.data("j", 0, 1, LONG)),
            wait(lambda: trainer.snapshots.data("j", 1, 1, LONG)),
            wait(lambda: digest.result(LONG)),
        ]
        trainer.snapshots.forget()
        for thread in waiting:
            thread.join(LONG)
        go_on.set()
    assert len(told) == 3 and any("left" in text for text in told)
    trainer.step()
    trainer.snapshots.arm("j", trainer.shards(), trainer.flat, 1)
    assert trainer.pinned(trainer.shards()[0]) == trainer.bytes(), "it can begin anew"
    ended()


def test_optimizers_are_watched_once_and_let_go() -> None:
    trainer = Trainer()
    hooks = trainer.optimizer._optimizer_step_pre_hooks
    trainer.snapshots.watch([trainer.optimizer])
    assert len(hooks) == 1
    elsewhere = threading.Thread(target=trainer.snapshots.forget)
    elsewhere.start()
    elsewhere.join()
    assert len(hooks) == 1, "the training thread may be going through them"
    trainer.snapshots.forget()
    assert len(hooks) == 0
    trainer.snapshots.watch([trainer.optimizer])
    del trainer.snapshots
    trainer.step()


def test_two_optimizers() -> None:
    trainer = Trainer()
    other = torch.optim.SGD(trainer.model[1].parameters(), lr=1.0)
    trainer.snapshots.watch([trainer.optimizer, other])
    before = trainer.bytes()
    trainer.snapshots.arm("j", trainer.shards(), trainer.flat, 1)
    trainer.model(torch.ones(1, trainer.width)).sum().backward()
    other.step()
    trainer.step()
    assert trainer.pinned(trainer.shards()[0]) == before


def test_an_error_of_reading_fails_the_pin_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Copying, start: int, stop: int) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(Copying, "_read", broken)
    trainer = Trainer()
    trainer.snapshots.arm("j", trainer.shards(), trainer.flat, 1)
    trainer.step()
    with pytest.raises(LookupError, match="MemoryError: no room"):
        trainer.snapshots.data("j", 0, 1)


def test_what_is_armed_anew_replaces_what_was() -> None:
    trainer = Trainer()
    first, common = Shard(0, 0, 100, 1, ("a",)), Shard(1, 100, 300, 1, ("a",))
    trainer.snapshots.arm("j", [first, common], trainer.flat, 1)
    kept = trainer.snapshots.data("j", 1, 1, LONG)
    trainer.snapshots.arm("j", [Shard(0, 50, 200, 1, ("a",)), common], trainer.flat, 1)
    assert trainer.snapshots.data("j", 1, 1, LONG) is kept, "what stays is not copied again"
    assert trainer.pinned(Shard(0, 50, 200, 1, ())) == trainer.bytes(50, 200)
    assert trainer.snapshots.nbytes == 150 + 200
    with pytest.raises(ValueError, match="of "):
        trainer.snapshots.arm("j", [Shard(0, 50, trainer.flat.nbytes + 1, 1, ("a",))], trainer.flat, 1)
    trainer.arm(1, 2)
    with pytest.raises(LookupError, match="stripe 1 of version 1 is not pinned"):
        trainer.snapshots.data("j", 1, 1)


def test_threads_that_meet() -> None:
    """Joiners come and go while the training goes on: what they get is what the version was."""
    trainer = Trainer()
    kept: dict[int, bytes] = {}
    wrong: list[str] = []
    over = threading.Event()
    changed, calls = threading.Condition(), [0]
    """The call that the training thread is in, if any: it leaves under the lock."""
    got = [0, 0]

    def join(number: int) -> None:
        joiner = f"j{number}"
        while not over.is_set():
            with changed:  # waits asleep: threads that only look again and again can keep the training thread from the lock
                if not changed.wait_for(lambda: calls[0] or over.is_set(), LONG) or over.is_set():
                    continue
                version = calls[0]
                shards = trainer.arm(3, version, joiner)
            for shard in shards:
                try:
                    data = trainer.snapshots.data(joiner, shard.index, version, LONG)
                except LookupError as error:
                    if not over.is_set():
                        wrong.append(str(error))
                    continue
                if data is None:
                    wrong.append(f"{shard} never came")
                elif bytes(data.numpy()) != kept[version][shard.start : shard.stop]:
                    wrong.append(f"{shard} is of another version")
                got[number] += 1
            trainer.snapshots.release(joiner)

    joiners = [threading.Thread(target=join, args=(number,)) for number in range(2)]
    for thread in joiners:
        thread.start()
    version, deadline = 0, time.monotonic() + LONG
    while version < 150 or min(got) <= 10:  # on a busy machine joiners meet few calls
        assert time.monotonic() < deadline, f"in {version} calls the joiners got {got} stripes"
        version += 1
        kept[version] = trainer.bytes()
        with changed:
            calls[0] = version
            changed.notify_all()
        trainer.model(torch.randn(4, trainer.width)).pow(2).sum().backward()
        with changed:
            calls[0] = 0
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()
    with changed:
        over.set()
        changed.notify_all()
    trainer.snapshots.forget()
    for thread in joiners:
        thread.join(LONG)
        assert not thread.is_alive()
    assert not wrong


def test_a_copy_is_begun_again_once_there_are_threads() -> None:
    """Not only at the optimizer's next step, which would have to copy all."""
    trainer = Trainer()
    with no_threads("ftlib-snapshots") as refused, pytest.raises(RuntimeError, match="can't start new thread"):
        trainer.arm()
    assert refused and trainer.snapshots.data("j", 0, 1) is None
    [shard] = trainer.arm()
    assert trainer.pinned(shard) == trainer.bytes()
    assert trainer.snapshots.nbytes == trainer.flat.nbytes
    ended()
    with no_threads("ftlib-snapshots"), pytest.raises(RuntimeError, match="can't start new thread"):
        trainer.snapshots.digest(trainer.flat, 1, [(0, 100)])
    digest = trainer.snapshots.digest(trainer.flat, 1, [(0, 100)])
    assert digest.result(LONG) == [xxhash.xxh3_128_digest(trainer.bytes(0, 100))]


def test_who_waits_for_what_is_dropped_learns_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The joiner has asked for something else since."""
    trainer, told = Trainer(), list[str]()

    def ask() -> None:
        with pytest.raises(LookupError) as error:
            trainer.snapshots.data("j", 0, 1, LONG)
        told.append(str(error.value))

    for drop in (
        lambda: trainer.arm(1, 2),
        lambda: trainer.snapshots.expect("j", 2, 0),
        lambda: trainer.snapshots.release("j"),
    ):
        with held(monkeypatch) as (there, go_on):
            trainer.arm()
            assert there.wait(LONG)
            asking = in_thread(ask)
            eventually(lambda: trainer.snapshots._changed._waiters, "it waits")  # type: ignore[attr-defined]
            drop()
            asking.join(LONG / 8)
            assert not asking.is_alive()
            go_on.set()
        ended()
        trainer.snapshots.release("j")
    assert told == ["stripe 0 of version 1 is not pinned for j"] * 3


def test_a_copy_that_has_failed_keeps_no_memory() -> None:
    """A joiner that does not come back to ask would hold it for as long as it is in the view."""
    trainer = Trainer()
    [shard] = trainer.arm()
    assert trainer.pinned(shard)
    with torch.no_grad():
        trainer.model[0].weight.mul_(2)
    trainer.step()
    with pytest.raises(LookupError, match="was changed in call 1"):
        trainer.snapshots.data("j", 0, 1)
    assert trainer.snapshots.nbytes == 0
