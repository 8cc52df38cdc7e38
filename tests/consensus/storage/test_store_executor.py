"""Requests and their answers: leases, errors, and what an executor waits for."""

from __future__ import annotations

from pathlib import Path

import pytest

from consensus.errors import AmbiguousWriteError, StoreAwayError, StoreError, StoreRefusedError
from consensus.storage.store_executor import StoreExecutor
from consensus.store_requests import (
    Away,
    Beat,
    Clean,
    CreateView,
    Done,
    LeaseList,
    ReadLeases,
    ReadViews,
    Recorded,
    StoreOp,
    Unread,
    Withdraw,
)
from consensus.wire.keys import KeyRing

from .directory import Directory
from .records import config, executor, founding, lease, member
from .scripted_store import ScriptedStore, run

SECRET = "a secret that is long enough"
REQUESTS: tuple[tuple[StoreOp, str], ...] = (
    (CreateView(founding()), "create"),
    (ReadViews(), "list"),
    (Beat(lease(0)), "write"),
    (ReadLeases(), "list"),
    (ReadLeases((member(0).id,)), "read"),
    (Withdraw((member(0).id,)), "delete"),
    (Clean(1), "compact"),
)


@pytest.mark.parametrize("secrets", [(), (SECRET,)])
async def test_leases_in_a_directory(tmp_path: Path, secrets: tuple[str, ...]) -> None:
    place = Directory(tmp_path)
    async with place.store() as one, place.store() as two:
        first, second = executor(one, 0, "job", *secrets), executor(two, 1, "job", *secrets)
        for index, asked in enumerate((first, second)):
            assert await asked.carry_out(Beat(lease(index))) == Done()
        assert await first.carry_out(Beat(lease(0, 2))) == Done()
        assert await second.carry_out(ReadLeases()) == LeaseList((lease(0, 2), lease(1)))
        wanted = (member(1).id, member(7).id, member(0).id)
        assert await second.carry_out(ReadLeases(wanted)) == LeaseList((lease(1), lease(0, 2)))
        assert await second.carry_out(ReadLeases(())) == LeaseList(())
        assert await second.carry_out(Withdraw((member(0).id, member(7).id))) == Done()
        assert await second.carry_out(Withdraw(())) == Done()
        assert await first.carry_out(ReadLeases()) == LeaseList((lease(1),))


async def test_two_jobs_do_not_see_each_other(tmp_path: Path) -> None:
    place = Directory(tmp_path)
    async with place.store() as one, place.store("another") as two:
        first, second = executor(one), executor(two, 1, "another")
        assert await first.carry_out(CreateView(founding())) == Recorded(founding())
        assert await first.carry_out(Beat(lease(0))) == Done()
        assert await second.carry_out(ReadViews()) == Recorded(None)
        assert await second.carry_out(ReadLeases()) == LeaseList(())
        assert await second.carry_out(CreateView(founding(first=1))) == Recorded(founding(first=1))


async def test_another_secret(tmp_path: Path) -> None:
    place = Directory(tmp_path)
    async with place.store() as one, place.store() as two:
        assert await executor(one, 0, "job", SECRET).carry_out(CreateView(founding())) == Recorded(founding())
        answer = await executor(two, 1, "job", f"{SECRET} and another").carry_out(ReadViews())
        assert isinstance(answer, Unread) and "a secret that this member does not have" in answer.detail
        answer = await executor(two, 1).carry_out(CreateView(founding(first=1)))
        assert isinstance(answer, Unread) and "this member has no secret" in answer.detail


STRANGE_LEASES = {
    "another_secret": lambda: sealed(Beat(lease(1)), f"{SECRET} and another"),
    "no_secret": lambda: sealed(Beat(lease(1))),
    "anothers": lambda: sealed(Beat(lease(2)), SECRET),
    "a_record": lambda: sealed(CreateView(founding(first=1)), SECRET),
    "nothing": lambda: b"",
    "garbage": lambda: b"garbage",
}


def sealed(request: StoreOp, *secrets: str) -> bytes:
    """What it leaves in a store."""
    store = ScriptedStore()
    run(executor(store, 1, "job", *secrets).carry_out(request))
    return next(iter(store.values.values()))


@pytest.mark.parametrize("kind", STRANGE_LEASES)
def test_what_is_no_lease_hides_no_other_and_is_named_once(kind: str) -> None:
    """One worker with another secret that beat once and was killed must not keep everybody out for ever."""
    store, said = ScriptedStore(), list[str]()
    reader = StoreExecutor(store, config(), member(0), KeyRing((SECRET,)), said.append)
    for index in (0, 3):
        run(executor(store, index, "job", SECRET).carry_out(Beat(lease(index))))
    strange = f"leases/{member(1).id}"
    store.values[strange] = STRANGE_LEASES[kind]()
    unread = []
    for wanted in (None, (member(0).id, member(1).id, member(3).id)):
        answer = run(reader.carry_out(ReadLeases(wanted)))
        assert isinstance(answer, LeaseList) and answer.leases == (lease(0), lease(3))
        unread += answer.unread
    assert [each.member_id for each in unread] == [member(1).id] * 2 and len(set(unread)) == 1
    store.values[strange] += b"!"
    answer = run(reader.carry_out(ReadLeases()))
    assert isinstance(answer, LeaseList) and answer.unread[0].fingerprint != unread[0].fingerprint, "that it changes is seen"
    assert len(said) == 1 and strange in said[0] and "remove" in said[0], said


def test_a_stranger_does_not_fill_the_log() -> None:
    store, said = ScriptedStore(), list[str]()
    for index in range(500):
        store.values[f"leases/{member(index).id}"] = b"garbage"
    run(StoreExecutor(store, config(), member(0), None, said.append).carry_out(ReadLeases()))
    assert len(said) == 101 and "the others are not named" in said[-1]


@pytest.mark.parametrize(("asked", "operation"), REQUESTS, ids=lambda value: value if isinstance(value, str) else "")
@pytest.mark.parametrize("error", [StoreAwayError, StoreRefusedError, AmbiguousWriteError])
def test_every_error_is_an_answer(asked: StoreOp, operation: str, error: type[StoreError]) -> None:
    def fail() -> None:
        raise error("the store://: no")

    store = ScriptedStore()
    store.at(operation, 1, fail)
    answer = run(executor(store).carry_out(asked))  # which waits for nothing but the store
    assert answer == Away("the store://: no", ambiguous=error is AmbiguousWriteError)


async def test_an_id_that_is_no_key(tmp_path: Path) -> None:
    async with Directory(tmp_path).store() as store:
        answer = await executor(store).carry_out(ReadLeases(("../../secret",)))
        assert isinstance(answer, Away) and "is no key of a store" in answer.detail
