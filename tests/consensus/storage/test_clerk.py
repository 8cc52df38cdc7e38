"""Errands and their answers: leases, errors, and what a clerk waits for."""

from __future__ import annotations

from pathlib import Path

import pytest

from consensus.errands import Away, Beat, Clean, CreateView, Done, Errand, Leases, ReadLeases, ReadViews, Recorded, Withdraw
from consensus.errors import AmbiguousWriteError, StoreAwayError, StoreError, StoreRefusedError

from .conformance import on_a_loop
from .directory import Directory
from .records import clerk, founding, lease, member
from .scripted_store import ScriptedStore, run

SECRET = "a secret that is long enough"
ERRANDS: tuple[tuple[Errand, str], ...] = (
    (CreateView(founding()), "create"),
    (ReadViews(), "list"),
    (Beat(lease(0)), "write"),
    (ReadLeases(), "list"),
    (ReadLeases((member(0).id,)), "read"),
    (Withdraw((member(0).id,)), "delete"),
    (Clean(1), "raise_floor"),
)


@pytest.mark.parametrize("secrets", [(), (SECRET,)])
@on_a_loop
async def test_leases_in_a_directory(tmp_path: Path, secrets: tuple[str, ...]) -> None:
    place = Directory(tmp_path)
    async with place.store() as one, place.store() as two:
        first, second = clerk(one, 0, "job", *secrets), clerk(two, 1, "job", *secrets)
        for index, asked in enumerate((first, second)):
            assert await asked.carry_out(Beat(lease(index))) == Done()
        assert await first.carry_out(Beat(lease(0, 2))) == Done()
        assert await second.carry_out(ReadLeases()) == Leases((lease(0, 2), lease(1)))
        wanted = (member(1).id, member(7).id, member(0).id)
        assert await second.carry_out(ReadLeases(wanted)) == Leases((lease(1), lease(0, 2)))
        assert await second.carry_out(ReadLeases(())) == Leases(())
        assert await second.carry_out(Withdraw((member(0).id, member(7).id))) == Done()
        assert await second.carry_out(Withdraw(())) == Done()
        assert await first.carry_out(ReadLeases()) == Leases((lease(1),))


@on_a_loop
async def test_two_jobs_do_not_see_each_other(tmp_path: Path) -> None:
    place = Directory(tmp_path)
    async with place.store() as one, place.store("another") as two:
        first, second = clerk(one), clerk(two, 1, "another")
        assert await first.carry_out(CreateView(founding())) == Recorded(founding())
        assert await first.carry_out(Beat(lease(0))) == Done()
        assert await second.carry_out(ReadViews()) == Recorded(None)
        assert await second.carry_out(ReadLeases()) == Leases(())
        assert await second.carry_out(CreateView(founding(first=1))) == Recorded(founding(first=1))


@on_a_loop
async def test_another_secret(tmp_path: Path) -> None:
    place = Directory(tmp_path)
    async with place.store() as one, place.store() as two:
        assert await clerk(one, 0, "job", SECRET).carry_out(CreateView(founding())) == Recorded(founding())
        answer = await clerk(two, 1, "job", f"{SECRET} and another").carry_out(ReadViews())
        assert isinstance(answer, Away) and "a secret that this member does not have" in answer.detail
        answer = await clerk(two, 1).carry_out(CreateView(founding(first=1)))
        assert isinstance(answer, Away) and "this member has no secret" in answer.detail


def test_anothers_lease_in_a_members_place() -> None:
    store = ScriptedStore()
    run(clerk(store).carry_out(Beat(lease(0))))
    store.values[f"leases/{member(1).id}"] = store.values[f"leases/{member(0).id}"]
    for wanted in (None, (member(1).id,)):
        answer = run(clerk(store).carry_out(ReadLeases(wanted)))
        assert answer == Away(f"leases/{member(1).id} holds the lease of member {member(0).id}")


def test_garbage_in_a_leases_place() -> None:
    store = ScriptedStore()
    store.values[f"leases/{member(1).id}"] = b"garbage"
    answer = run(clerk(store).carry_out(ReadLeases()))
    assert answer == Away(f"leases/{member(1).id} cannot be read: no packet of this protocol")


@pytest.mark.parametrize(("errand", "operation"), ERRANDS, ids=lambda value: value if isinstance(value, str) else "")
@pytest.mark.parametrize("error", [StoreAwayError, StoreRefusedError, AmbiguousWriteError])
def test_every_error_is_an_answer(errand: Errand, operation: str, error: type[StoreError]) -> None:
    def fail() -> None:
        raise error("the store://: no")

    store = ScriptedStore()
    store.at(operation, 1, fail)
    answer = run(clerk(store).carry_out(errand))  # which waits for nothing but the store
    assert answer == Away("the store://: no", ambiguous=error is AmbiguousWriteError)


@on_a_loop
async def test_an_id_that_is_no_key(tmp_path: Path) -> None:
    async with Directory(tmp_path).store() as store:
        answer = await clerk(store).carry_out(ReadLeases(("../../secret",)))
        assert isinstance(answer, Away) and "is no key of a store" in answer.detail
