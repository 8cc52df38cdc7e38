"""Stores that lose records, and answers that get lost: none of it makes two of an epoch."""

from __future__ import annotations

import pytest

from consensus.errors import AmbiguousWriteError, StoreAwayError, StoreRefusedError
from consensus.store_requests import Away, Clean, CreateView, ReadViews, Recorded, Wiped

from .chains import FIRST, RIVAL, SECOND, THIRD, ask, chain, raises, stored
from .records import founding, key, successor
from .scripted_store import ScriptedStore

# A store that loses what it had


def test_wiped_before_anybody_looks(store: ScriptedStore) -> None:
    chain(store, FIRST, SECOND)
    store.wipe()
    assert isinstance(ask(store, ReadViews(2, SECOND.view.view_id)), Wiped)
    assert isinstance(ask(store, CreateView(THIRD)), Wiped)
    assert not store.values
    assert ask(store, ReadViews()) == Recorded(None)


def test_wiped_between_creating_and_the_second_look(store: ScriptedStore) -> None:
    chain(store, FIRST)
    store.at("create", 1, store.wipe)
    assert isinstance(ask(store, CreateView(SECOND)), Wiped)
    assert not store.values  # taken back


def test_what_a_creator_could_not_take_back_is_not_followed(store: ScriptedStore) -> None:
    chain(store, FIRST)
    store.at("create", 1, store.wipe)
    store.at("read", 2, raises(StoreAwayError("away")))
    answer = ask(store, CreateView(SECOND))
    assert isinstance(answer, Away) and answer.ambiguous
    assert sorted(store.values) == [key(2)]  # and then its creator may die
    assert isinstance(ask(store, ReadViews(1, FIRST.view.view_id), 1), Wiped)
    assert isinstance(ask(store, ReadViews(), 5), Wiped)
    assert isinstance(ask(store, CreateView(SECOND)), Wiped)  # it did not die, and tried again
    assert not store.values


def test_taking_back_is_tried_until_it_is_done(store: ScriptedStore) -> None:
    chain(store, FIRST)
    store.at("create", 1, store.wipe)
    store.at("delete", 1, raises(StoreAwayError("away")))
    answer = ask(store, CreateView(SECOND))
    assert isinstance(answer, Away) and answer.ambiguous
    assert isinstance(ask(store, CreateView(SECOND)), Wiped)
    assert not store.values


def test_a_rivals_record_is_not_taken_back(store: ScriptedStore) -> None:
    """After a wipe only the creator itself knows that its record does not count."""
    chain(store, FIRST)
    store.wipe()
    store.values[key(2)] = stored(RIVAL)
    assert isinstance(ask(store, CreateView(SECOND)), Wiped)
    assert sorted(store.values) == [key(2)]


def test_wiped_and_founded_anew(store: ScriptedStore) -> None:
    chain(store, FIRST, SECOND)
    store.wipe()
    other = founding(first=10)
    chain(store, other)
    assert isinstance(ask(store, ReadViews(2, SECOND.view.view_id)), Wiped)
    assert isinstance(ask(store, ReadViews(1, FIRST.view.view_id)), Wiped)
    assert isinstance(ask(store, CreateView(THIRD)), Wiped)
    second = successor(other, joiner=300, driver=10)
    chain(store, second)
    assert isinstance(ask(store, CreateView(THIRD)), Wiped)  # its parent's place is another's
    assert ask(store, ReadViews(1, other.view.view_id)) == Recorded(second)


def test_wiped_and_founded_anew_between_two_looks(store: ScriptedStore) -> None:
    chain(store, FIRST)
    other = founding(first=10)

    def wipe_and_found() -> None:
        store.wipe()
        assert ask(store, CreateView(other), 10) == Recorded(other)

    store.at("create", 1, wipe_and_found)
    assert isinstance(ask(store, CreateView(SECOND)), Wiped)
    assert sorted(store.values) == [key(1)]


def test_only_the_compacted_revision_is_left(store: ScriptedStore) -> None:
    chain(store, FIRST, SECOND)
    ask(store, Clean(2))
    store.values.clear()
    for request in (ReadViews(), ReadViews(2, SECOND.view.view_id), CreateView(THIRD), CreateView(founding(first=10))):
        assert isinstance(ask(store, request), Wiped)
    assert not store.values


# Answers that get lost


def test_an_ambiguous_write_that_was_done(store: ScriptedStore) -> None:
    chain(store, FIRST)
    store.at("create", 1, raises(AmbiguousWriteError("lost")), after=True)
    assert ask(store, CreateView(SECOND)) == Recorded(SECOND)


def test_an_ambiguous_write_that_was_not_done(store: ScriptedStore) -> None:
    chain(store, FIRST)
    store.at("create", 1, raises(AmbiguousWriteError("lost")))
    assert ask(store, CreateView(SECOND)) == Away("lost", ambiguous=True)
    assert ask(store, CreateView(SECOND)) == Recorded(SECOND)


def test_an_ambiguous_write_that_lands_later(store: ScriptedStore) -> None:
    chain(store, FIRST)
    store.at("create", 1, raises(AmbiguousWriteError("lost")))
    assert ask(store, CreateView(SECOND)) == Away("lost", ambiguous=True)
    store.at("create", 1, lambda: store.values.update({key(2): stored(SECOND)}))
    assert ask(store, CreateView(SECOND)) == Recorded(SECOND)


def test_an_ambiguous_write_and_a_rival(store: ScriptedStore) -> None:
    chain(store, FIRST, RIVAL)
    store.at("create", 1, raises(AmbiguousWriteError("lost")))
    assert ask(store, CreateView(SECOND)) == Recorded(RIVAL)


def test_an_ambiguous_write_and_then_nothing_answers(store: ScriptedStore) -> None:
    chain(store, FIRST)
    store.at("create", 1, raises(AmbiguousWriteError("lost")), after=True)
    store.at("read", 2, raises(StoreAwayError("away")))
    assert ask(store, CreateView(SECOND)) == Away("lost", ambiguous=True)
    assert ask(store, CreateView(SECOND)) == Recorded(SECOND)


def test_an_ambiguous_write_in_a_store_that_is_wiped(store: ScriptedStore) -> None:
    chain(store, FIRST)
    store.at("create", 1, store.wipe)
    store.at("create", 1, raises(AmbiguousWriteError("lost")), after=True)
    assert isinstance(ask(store, CreateView(SECOND)), Wiped)
    assert not store.values


def test_created_and_then_nothing_answers(store: ScriptedStore) -> None:
    chain(store, FIRST)
    store.at("read", 2, raises(StoreAwayError("away")))
    answer = ask(store, CreateView(SECOND))
    assert isinstance(answer, Away) and answer.ambiguous and "away" in answer.detail
    assert ask(store, CreateView(SECOND)) == Recorded(SECOND)


@pytest.mark.parametrize(
    ("operation", "error"), [("read", StoreAwayError), ("create", StoreAwayError), ("create", StoreRefusedError)]
)
def test_nothing_was_done(store: ScriptedStore, operation: str, error: type[Exception]) -> None:
    chain(store, FIRST)
    store.at(operation, 1, raises(error("no")))
    assert ask(store, CreateView(SECOND)) == Away("no")
    assert sorted(store.values) == [key(1)]


def test_taken_back_by_its_creator_before_it_was_read(store: ScriptedStore) -> None:
    chain(store, FIRST)
    store.values[key(2)] = stored(RIVAL)
    store.at("list", 1, lambda: store.values.pop(key(2)))
    assert ask(store, CreateView(SECOND)) == Recorded(SECOND), "its place is free again"


def test_an_old_listing_takes_no_record_back(store: ScriptedStore) -> None:
    """A network file system may list what was there a minute ago. Ours stands, and others follow it."""
    chain(store, FIRST, SECOND)
    store.at("create", 1, raises(AmbiguousWriteError("lost")), after=True)
    store.at("read", 2, raises(StoreAwayError("away")))
    assert ask(store, CreateView(THIRD)) == Away("lost", ambiguous=True)
    assert ask(store, ReadViews(2, SECOND.view.view_id), 1) == Recorded(THIRD)
    newer = {key(2): store.values[key(2)], key(3): store.values[key(3)]}
    store.at("list", 1, lambda: [store.values.pop(each) for each in newer])
    store.at("list", 1, lambda: store.values.update(newer), after=True)
    answer = ask(store, CreateView(THIRD))
    assert answer == Away(f"the store scripted://: {key(2)} is there, but is not listed: ask again")
    assert sorted(store.values) == [key(1), key(2), key(3)]
    assert ask(store, CreateView(THIRD)) == Recorded(THIRD)


# What cannot be read: see ``test_unreadable_records``


def test_what_has_no_number_is_passed_over(store: ScriptedStore) -> None:
    chain(store, FIRST)
    store.values["views/notes"] = b"x"
    assert ask(store, ReadViews()) == Recorded(FIRST)
