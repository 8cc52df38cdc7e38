"""The simulated store: what every store promises, and every way in which it may fail, in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from consensus.config import Config, Policy
from consensus.errors import AmbiguousWriteError, StoreAwayError, StoreError
from consensus.protocol.state.inputs import Input, StoreChanged
from consensus.simulation import Character, Host, SimulatedStore, World
from consensus.storage.store import Created
from consensus.store_requests import Away, Done

Job = Callable[[SimulatedStore], Awaitable[Any]]
CONFIG = Config(policy=Policy.STORAGE, storage="simulated://store", storage_timeout=1.0)
BOTH = pytest.mark.parametrize("character", list(Character))


class CoroutineExecutor:
    """An executor whose requests are coroutines of the test; those of machines come to nothing."""

    def __init__(self, host: Host, store: SimulatedStore) -> None:
        self.store = store

    async def carry_out(self, request: Any) -> Any:
        if not callable(request):
            return Away("this store is the test's")
        await request(self.store)
        return Done()


class Yard:
    """A world whose processes do nothing but what the test asks of the store."""

    def __init__(self, character: Character = Character.ATOMIC, *, size: int = 2, seed: int = 1, notices: bool = False) -> None:
        # Without checkers: what the tests write is no record.
        self.world = World(seed, CONFIG, store=character, notices=notices, executor=CoroutineExecutor)
        self.hosts = [self.world.start(f"m{index}", introducers=("m0",)) for index in range(size)]
        self.world.run(0.1)
        self.faults = self.world.faults.store
        assert self.world.store_requests is not None
        self.store_requests, self.contents = self.world.store_requests, self.world.store_requests.contents

    def ask(self, job: Job, at: int = 0) -> list[Any]:
        """What comes of it, once it is there: the result or the error, and how long it took."""
        came: list[Any] = []
        began = self.world.now

        async def carry_out(store: SimulatedStore) -> None:
            try:
                came.append(await job(store))
            except StoreError as error:
                came.append(type(error))
            came.append(self.world.now - began)

        self.store_requests.ask(self.hosts[at], carry_out)  # type: ignore[arg-type]
        return came

    def do(self, job: Job, at: int = 0) -> Any:
        came = self.ask(job, at)
        self.world.run_until(lambda: bool(came), 10.0)
        return came[0]


def make(value: bytes, number: int | None = None, key: str = "views/5") -> Job:
    return lambda store: store.create(key, value, number=number, series="views")


@BOTH
def test_what_a_store_promises(character: Character) -> None:
    yard = Yard(character)
    assert yard.do(make(b"a")) is Created.DONE and yard.do(make(b"b"), 1) is Created.EXISTS
    assert yard.do(lambda store: store.read("views/5")) == b"a" and yard.do(lambda store: store.read("views/6")) is None
    yard.do(lambda store: store.write("leases/x", b"1"))
    yard.do(make(b"c", key="views/4"))
    assert list(yard.do(lambda store: store.list("views/")).items()) == [("views/4", b"c"), ("views/5", b"a")]
    assert yard.do(lambda store: store.compact("views", 7)) == 7 == yard.do(lambda store: store.compact("views", 3))
    assert yard.do(lambda store: store.compacted("views")) == 7 and yard.do(lambda store: store.compacted("others")) == 0
    yard.do(lambda store: store.delete("views/4", "views/5", "views/6"))
    assert yard.do(lambda store: store.list("views/")) == {}
    assert yard.do(make(b"d", 6)) is Created.BELOW and yard.do(make(b"d", 7)) is Created.DONE


@BOTH
@pytest.mark.parametrize("seed", range(20))
def test_one_of_many_creators_wins(character: Character, seed: int) -> None:
    yard = Yard(character, size=5, seed=seed)
    came = [yard.ask(make(bytes([at])), at) for at in range(5)]
    yard.world.run(1.0)
    won = [at for at in range(5) if came[at][0] is Created.DONE]
    assert len(won) == 1 and yard.contents.read("views/5") == bytes(won)


@pytest.mark.parametrize(("sleep", "told"), [(0.5, Created.BELOW), (2.0, AmbiguousWriteError)])
def test_a_creator_of_files_that_slept_takes_back_what_it_made_below_the_compacted_revision(sleep: float, told: object) -> None:
    """Even where its caller was told that there is a doubt. A transactional store makes nothing."""
    for seed in range(40):
        yard = Yard(Character.FILES, seed=seed)
        came = yard.ask(make(b"late", 5))
        yard.world.run(0.0002 + 0.0001 * seed)
        yard.world.pause(yard.hosts[0])
        yard.do(lambda store: store.compact("views", 9), 1)
        yard.world.run(sleep)
        stood = yard.contents.read("views/5") is not None
        yard.world.resume(yard.hosts[0])
        yard.world.run(3.0)
        if stood:
            assert came[0] is told and yard.contents.read("views/5") is None
            return
    pytest.fail("nobody ever slept between the two")


@BOTH
def test_a_listing_shows_what_was_there_meanwhile(character: Character) -> None:
    """What changes while it is made may be seen or not; what does not change is seen."""
    seen = set()
    for seed in range(60):
        yard = Yard(character, seed=seed)
        for number in range(4):
            yard.do(make(b"old", key=f"views/{number}"))
        came = yard.ask(lambda store: store.list("views/"))
        yard.ask(lambda store: store.write("views/0", b"new"), 1)
        yard.ask(lambda store: store.write("views/3", b"new"), 1)
        yard.world.run(1.0)
        assert set(came[0]) == {f"views/{number}" for number in range(4)} and came[0]["views/1"] == came[0]["views/2"] == b"old"
        seen.add((came[0]["views/0"], came[0]["views/3"]))
    assert {value for both in seen for value in both} == {b"old", b"new"}


def test_slow() -> None:
    yard = Yard()
    yard.faults.slow = 0.2
    took = []
    for _ in range(20):
        came = yard.ask(lambda store: store.read("views/1"))
        yard.world.run_until(lambda came=came: len(came) == 2, 2.0)
        took.append(came[1])
    assert 0.05 < sum(took) / 20 < 0.35 and max(took) < 0.41


@BOTH
def test_a_store_that_is_away_is_told_so_in_time(character: Character) -> None:
    yard = Yard(character)
    yard.faults.away = True
    for refuses, longest in ((1.0, 0.01), (0.0, 1.001)):
        yard.faults.refuses = refuses
        came = yard.ask(lambda store: store.read("views/1"))
        yard.world.run(2.0)
        assert came[0] is StoreAwayError and came[1] <= longest
    wrote = yard.ask(make(b"x"))
    yard.world.run(1.01)
    assert wrote[0] is AmbiguousWriteError, "it was on its way"


def test_one_process_is_cut_off_from_the_store() -> None:
    yard = Yard()
    yard.faults.cut.add(yard.hosts[0].id)
    assert yard.do(lambda store: store.read("views/1")) is StoreAwayError
    assert yard.do(lambda store: store.read("views/1"), 1) is None


@BOTH
def test_a_lost_answer_leaves_a_doubt_and_what_was_asked_may_come_late(character: Character) -> None:
    fates = set()
    for seed in range(40):
        yard = Yard(character, seed=seed)
        yard.faults.lost = 1.0
        came = yard.ask(make(b"x"))
        yard.world.run(1.01)
        if came[0] is Created.DONE:
            continue  # late, but in time for an answer
        assert came[0] is AmbiguousWriteError
        at_once = yard.contents.read("views/5") is not None
        yard.world.run(4.0)
        fates.add((at_once, yard.contents.read("views/5") is not None))
    assert fates == {(True, True), (False, True)}


def test_a_failure_is_clean() -> None:
    yard = Yard()
    yard.faults.fails = 1.0
    assert yard.do(make(b"x")) is StoreAwayError
    yard.world.run(5.0)
    assert yard.contents.read("views/5") is None


def test_a_dead_processes_write_may_still_be_done() -> None:
    done = set()
    for seed in range(20):
        yard = Yard(seed=seed)
        yard.faults.slow = 0.1
        yard.ask(make(b"x"))
        yard.world.run(0.0005 * seed)
        yard.world.kill(yard.hosts[0])
        before = yard.contents.read("views/5")
        yard.world.run(2.0)
        done.add((before is not None, yard.contents.read("views/5") is not None))
    assert (False, True) in done


@BOTH
def test_a_paused_process_hears_when_it_goes_on(character: Character) -> None:
    yard = Yard(character)
    came = yard.ask(make(b"x"))
    yard.world.pause(yard.hosts[0])
    yard.world.run(30.0)
    assert not came
    yard.world.resume(yard.hosts[0])
    yard.world.run(1.0)
    assert came[0] in (Created.DONE, AmbiguousWriteError)


def test_what_expires_is_gone() -> None:
    yard = Yard()
    yard.do(lambda store: store.write("leases/x", b"1", expires=3.0))
    yard.world.run(2.0)
    assert yard.contents.read("leases/x") == b"1"
    yard.world.run(1.1)
    assert yard.contents.read("leases/x") is None and yard.contents.names("leases/") == []


def test_changes_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    yard = Yard(notices=True)
    notified = []
    for host in yard.hosts:

        def handle(
            given: Input, now: float, host: Host = host, before: Callable[[Input, float], None] = host.machine.handle
        ) -> None:
            if given == StoreChanged():
                notified.append(host.name)
            else:
                before(given, now)

        monkeypatch.setattr(host.machine, "handle", handle)
    yard.do(lambda store: store.write("leases/x", b"1"))
    yard.world.run(0.1)
    assert notified == []
    yard.do(make(b"x"))
    yard.world.run(0.1)
    assert sorted(notified) == ["m0", "m1"]
    yard.faults.deaf = 1.0
    yard.do(make(b"y", key="views/6"))
    yard.world.run(0.1)
    assert len(notified) == 2
    yard.faults.deaf = 0.0
    yard.do(make(b"z", key="views/7"))
    yard.world.run(0.1)
    assert len(notified) == 4, "it still listens"


@BOTH
def test_it_counts_what_was_asked(character: Character) -> None:
    yard = Yard(character)
    store = yard.store_requests.operations[yard.hosts[0].id]
    for number in range(3):
        yard.do(make(b"x", key=f"views/{number}"))
    before = store.operations
    yard.do(lambda store: store.list("views/"))
    yard.do(lambda store: store.list("others/"))
    assert (before, store.operations) == (3, 7)


@BOTH
def test_what_is_read_cannot_be_opened_by_somebody(character: Character) -> None:
    """What is there is seen to be there, for ever; only what it says is not."""
    yard = Yard(character)
    yard.do(make(b"x"))
    yard.do(lambda store: store.write("leases/x", b"1"))
    yard.faults.blind = 1.0
    assert yard.do(lambda store: store.read("views/5")) == b"?x" and yard.do(lambda store: store.read("views/6")) is None
    assert yard.do(lambda store: store.list("leases/")) == {"leases/x": b"?1"} and yard.contents.read("leases/x") == b"1"
    assert yard.do(make(b"y")) is Created.EXISTS
    yard.faults.blind = 0.5
    assert {yard.do(lambda store: store.read("views/5")) for _ in range(20)} == {b"x", b"?x"}


def test_strangers_write_garbage() -> None:
    yard = Yard()
    for number in (5, 6):
        yard.do(make(b"x" * 10, key=f"views/{number:012d}"))
    yard.do(lambda store: store.write("leases/x", b"lease"))
    for where in ("next", "beyond", "parent", "lease", "stray"):
        yard.store_requests.strange(where)
    records = yard.contents.names("views/")
    assert [int(key.removeprefix("views/")) for key in records] == [5, 6, 7, 9]
    assert yard.contents.read(records[0]) != b"x" * 10 == yard.contents.read(records[1])
    assert len(yard.contents.names("leases/")) == 2
    yard.world.heal()
    assert len(yard.contents.names("views/")) == 2, "what is in the way of the next records was removed"


def test_wiped() -> None:
    yard = Yard()
    yard.do(make(b"x"))
    yard.do(lambda store: store.compact("views", 3))
    yard.store_requests.wipe()
    assert yard.do(lambda store: store.read("views/5")) is None and yard.do(lambda store: store.compacted("views")) == 0
