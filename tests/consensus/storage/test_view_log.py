"""One record an epoch, whatever happens between two operations of the store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from consensus.errors import StoreAwayError
from consensus.storage.store import Value
from consensus.store_requests import Away, Clean, CreateView, Done, ReadViews, Recorded, Wiped

from .chains import FIRST, FOURTH, RIVAL, SECOND, THIRD, ask, chain, raises
from .directory import Directory
from .records import executor, founding, key, successor
from .scripted_store import ScriptedStore

# The usual


def test_a_chain_of_records(store: ScriptedStore) -> None:
    chain(store, FIRST, SECOND, THIRD)
    assert sorted(store.values) == [key(1), key(2), key(3)]
    assert ask(store, ReadViews()) == Recorded(THIRD)
    assert ask(store, ReadViews(1, FIRST.view.view_id)) == Recorded(THIRD)


def test_three_operations_to_decide(store: ScriptedStore) -> None:
    chain(store, FIRST)
    ask(store, CreateView(SECOND))
    assert store.log == [f"read {key(1)}", f"create {key(2)}", f"read {key(1)}"]


def test_two_operations_to_look(store: ScriptedStore) -> None:
    chain(store, FIRST)
    ask(store, ReadViews())
    assert store.log == ["list views/", "compacted views"]


def test_nothing_is_there_yet(store: ScriptedStore) -> None:
    assert ask(store, ReadViews()) == Recorded(None)


def test_who_comes_second_learns_what_was_decided(store: ScriptedStore) -> None:
    chain(store, FIRST, SECOND)
    assert ask(store, CreateView(RIVAL), 1) == Recorded(SECOND)
    assert ask(store, ReadViews(2, SECOND.view.view_id)) == Recorded(SECOND)


def test_who_comes_late_learns_the_newest(store: ScriptedStore) -> None:
    chain(store, FIRST, SECOND, THIRD)
    assert ask(store, CreateView(RIVAL), 1) == Recorded(THIRD)


def test_asking_again_is_answered_alike(store: ScriptedStore) -> None:
    chain(store, FIRST, SECOND)
    assert ask(store, CreateView(SECOND)) == Recorded(SECOND)
    assert ask(store, CreateView(FIRST)) == Recorded(SECOND)


def test_a_rival_between_looking_and_creating(store: ScriptedStore) -> None:
    chain(store, FIRST)
    store.at("create", 1, lambda: ask(store, CreateView(RIVAL), 1))
    assert ask(store, CreateView(SECOND)) == Recorded(RIVAL)


class Passing(ScriptedStore):
    """A directory is listed while records are created: of two new ones the younger alone is seen."""

    missed = ""

    async def list(self, prefix: str) -> Mapping[str, Value]:
        found = await super().list(prefix)
        return {name: value for name, value in found.items() if name != self.missed}


def test_a_listing_that_has_the_younger_of_two_new_records_alone() -> None:
    store = Passing()
    chain(store, FIRST, SECOND, THIRD, FOURTH)
    store.missed = key(3)
    assert ask(store, ReadViews(1, FIRST.view.view_id)) == Recorded(FOURTH)
    assert ask(store, ReadViews()) == Recorded(FOURTH)
    assert store.log[-3:] == ["list views/", "compacted views", f"read {key(3)}"]


def test_a_record_that_was_not_listed_is_removed_meanwhile() -> None:
    store = Passing()
    chain(store, FIRST, SECOND, THIRD, FOURTH)
    store.missed = key(3)
    store.at("read", 1, lambda: ask(store, Clean(4), 1))
    assert ask(store, ReadViews(1, FIRST.view.view_id)) == Recorded(FOURTH)


def test_a_record_without_the_one_before_it() -> None:
    """That one is neither listed nor there: its creator died before it could take it back."""
    store = Passing()
    chain(store, FIRST, SECOND, THIRD, FOURTH)
    del store.values[key(3)]
    assert isinstance(ask(store, ReadViews(1, FIRST.view.view_id)), Wiped)


# Cleaning up


def test_cleaning_compacts_first(store: ScriptedStore) -> None:
    chain(store, FIRST, SECOND, THIRD)
    store.at("delete", 1, raises(StoreAwayError("away")))
    assert ask(store, Clean(3)) == Away("away")
    assert store.revisions == {"views": 3}
    assert sorted(store.values) == [key(1), key(2), key(3)]
    assert ask(store, ReadViews(1, FIRST.view.view_id)) == Recorded(THIRD)
    assert ask(store, Clean(3)) == Done()
    assert sorted(store.values) == [key(3)]
    assert ask(store, ReadViews(1, FIRST.view.view_id)) == Recorded(THIRD)


def test_a_compacted_revision_that_is_higher_counts(store: ScriptedStore) -> None:
    chain(store, FIRST, SECOND, THIRD)
    ask(store, Clean(3))
    assert ask(store, Clean(2)) == Done()
    assert store.revisions == {"views": 3}


def test_a_creator_that_slept_cannot_make_an_epoch_again(store: ScriptedStore) -> None:
    chain(store, FIRST)

    def others_go_on() -> None:
        for record in (RIVAL, beyond):
            assert ask(store, CreateView(record), 1) == Recorded(record)
        assert ask(store, Clean(3), 1) == Done()

    beyond = successor(RIVAL, driver=1)
    store.at("create", 1, others_go_on)
    assert ask(store, CreateView(SECOND)) == Recorded(beyond)
    assert sorted(store.values) == [key(3)]


def test_a_laggard_whose_parent_was_cleaned_away(store: ScriptedStore) -> None:
    chain(store, FIRST, SECOND, THIRD)
    ask(store, Clean(3))
    assert ask(store, CreateView(RIVAL), 1) == Recorded(THIRD)


def test_a_record_that_stands_below_the_compacted_revision_is_believed_by_nobody(store: ScriptedStore) -> None:
    """As it does for a moment where creating and reading the compacted revision again are two operations."""
    chain(store, FIRST, SECOND, THIRD)
    ask(store, Clean(3))
    store.values[key(2)] = store.values[key(3)]
    assert ask(store, ReadViews()) == Recorded(THIRD)
    del store.values[key(3)]
    assert isinstance(ask(store, ReadViews()), Wiped)


def test_others_clean_up_while_the_records_are_listed(store: ScriptedStore) -> None:
    """A listing is not taken at one instant: it may miss what came, and show nothing of what went."""
    chain(store, FIRST, SECOND)

    def go_on() -> None:
        assert ask(store, CreateView(THIRD), 1) == Recorded(THIRD)
        assert ask(store, Clean(3), 1) == Done()

    store.at("compacted", 1, go_on)
    assert ask(store, ReadViews(1, FIRST.view.view_id)) == Recorded(THIRD)


def test_others_clean_up_again_and_again(store: ScriptedStore) -> None:
    chain(store, FIRST)
    newest = [FIRST]

    def go_on() -> None:
        newest.append(successor(newest[-1]))
        assert ask(store, CreateView(newest[-1]), 1) == Recorded(newest[-1])
        assert ask(store, Clean(len(newest)), 1) == Done()

    for count in range(1, 5):
        store.at("compacted", count, go_on)
    assert ask(store, ReadViews()) == Away("the store scripted://: its records change faster than they can be listed")
    assert ask(store, ReadViews()) == Recorded(newest[-1])


def test_it_is_compacted_between_creating_and_the_second_look(store: ScriptedStore) -> None:
    """Others saw the new record at once, went on, and removed its parent: it counts all the same."""
    chain(store, FIRST)
    store.at("read", 2, lambda: ask(store, Clean(2), 1))
    assert ask(store, CreateView(SECOND)) == Recorded(SECOND)
    assert sorted(store.values) == [key(2)]


def test_others_went_far_on_before_the_second_look(store: ScriptedStore) -> None:
    chain(store, FIRST)

    def go_on() -> None:
        for record in (THIRD, FOURTH):
            assert ask(store, CreateView(record), 1) == Recorded(record)
        assert ask(store, Clean(4), 1) == Done()

    store.at("read", 2, go_on)
    assert ask(store, CreateView(SECOND)) == Recorded(FOURTH)
    assert sorted(store.values) == [key(4)]


# Founding


def test_two_found_at_once(store: ScriptedStore) -> None:
    other = founding(first=10)
    store.at("create", 1, lambda: ask(store, CreateView(other), 10))
    assert ask(store, CreateView(FIRST)) == Recorded(other)


def test_a_founder_that_slept_through_a_whole_life(store: ScriptedStore) -> None:
    other = founding(first=10)
    second = successor(other, driver=10)

    def live() -> None:
        for record in (other, second):
            assert ask(store, CreateView(record), 10) == Recorded(record)
        assert ask(store, Clean(2), 10) == Done()

    store.at("create", 1, live)
    assert ask(store, CreateView(FIRST)) == Recorded(second)


def test_founding_anew_after_the_newest_record(store: ScriptedStore) -> None:
    chain(store, FIRST, SECOND)
    anew = founding(epoch=3, first=10)
    assert ask(store, CreateView(anew), 10) == Recorded(anew)
    assert ask(store, ReadViews(2, SECOND.view.view_id)) == Recorded(anew)
    assert ask(store, CreateView(anew), 10) == Recorded(anew)
    assert ask(store, Clean(3), 10) == Done()
    assert ask(store, CreateView(THIRD)) == Recorded(anew)


@pytest.mark.parametrize("epoch", [2, 4, 9])
def test_founding_anew_follows_nothing_but_the_newest(store: ScriptedStore, epoch: int) -> None:
    chain(store, FIRST, SECOND)
    assert ask(store, CreateView(founding(epoch=epoch, first=10)), 10) == Recorded(SECOND)
    assert sorted(store.values) == [key(1), key(2)]


def test_founding_anew_after_a_record_that_is_gone(store: ScriptedStore) -> None:
    assert isinstance(ask(store, CreateView(founding(epoch=3))), Wiped)
    assert not store.values


def test_founding_anew_in_a_store_that_is_wiped_meanwhile(store: ScriptedStore) -> None:
    chain(store, FIRST)
    store.at("create", 1, store.wipe)
    assert isinstance(ask(store, CreateView(founding(epoch=2, first=10)), 10), Wiped)
    assert not store.values


# Real files


async def test_a_life_in_a_directory(tmp_path: Path) -> None:
    place = Directory(tmp_path)
    async with place.store() as one, place.store() as two:
        first, second = executor(one), executor(two, 1)
        assert await first.carry_out(ReadViews()) == Recorded(None)
        assert await first.carry_out(CreateView(FIRST)) == Recorded(FIRST)
        assert await second.carry_out(CreateView(RIVAL)) == Recorded(RIVAL)
        assert await first.carry_out(CreateView(SECOND)) == Recorded(RIVAL)
        assert await first.carry_out(Clean(2)) == Done()
        assert await second.carry_out(CreateView(FIRST)) == Recorded(RIVAL)
        assert await second.carry_out(ReadViews(1, FIRST.view.view_id)) == Recorded(RIVAL)
        assert list(await one.list("views/")) == [key(2)]


async def test_a_directory_that_is_wiped(tmp_path: Path) -> None:
    place = Directory(tmp_path)
    async with place.store() as store:
        asked = executor(store)
        assert await asked.carry_out(CreateView(FIRST)) == Recorded(FIRST)
        place.wipe()
        assert isinstance(await asked.carry_out(ReadViews(1, FIRST.view.view_id)), Wiped)
        assert isinstance(await asked.carry_out(CreateView(SECOND)), Wiped)
        answer = await asked.carry_out(CreateView(founding(first=20)))
        assert isinstance(answer, Away) and "was wiped" in answer.detail
        async with place.store() as fresh:
            assert await executor(fresh, 10).carry_out(CreateView(founding(first=10))) == Recorded(founding(first=10))
            assert isinstance(await asked.carry_out(ReadViews(1, FIRST.view.view_id)), Wiped)
            assert isinstance(await asked.carry_out(CreateView(SECOND)), Wiped)
