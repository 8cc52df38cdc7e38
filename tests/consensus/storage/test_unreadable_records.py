"""Records that a member cannot read: another secret, another release, garbage. Each may be a decision; none is in the way of
what can be read.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from consensus.messages import ViewRecord
from consensus.storage.store import Unreadable
from consensus.storage.store_executor import StoreExecutor
from consensus.storage.value_cipher import ValueCipher
from consensus.store_requests import Beat, Clean, CreateView, Done, ReadViews, Recorded, StoreOp, Unread, Wiped
from consensus.wire.keys import KeyRing

from .chains import FIRST, FOURTH, RIVAL, SECOND, THIRD, ask, chain
from .directory import Directory
from .records import config, executor, founding, key, lease, member
from .scripted_store import ScriptedStore, run

OLD, NEW = "the secret of yesterday", "the secret of today"


def sealed(record: ViewRecord, *secrets: str) -> bytes:
    return ValueCipher(config(), member(0), KeyRing(secrets)).wrap(key(record.view.epoch), record)


def spoil(store: ScriptedStore, kind: str, number: int) -> None:
    """Put something in a record's place that members without a secret cannot read."""
    if kind == "lease":
        run(executor(store).carry_out(Beat(lease(0))))
        store.values[key(number)] = store.values.pop(f"leases/{member(0).id}")
    elif kind == "anothers":
        store.values[key(number)] = store.values[key(1)]
    elif kind == "secret":
        store.values[key(number)] = sealed(SECOND, NEW)
    else:
        store.values[key(number)] = {"empty": b"", "garbage": b"hello", "torn": Unreadable("it is torn: remove it")}[kind]
    store.log.clear()


KINDS = pytest.mark.parametrize("kind", ["lease", "anothers", "secret", "empty", "garbage", "torn"])


@KINDS
def test_the_place_of_the_next_decision_stays_taken(store: ScriptedStore, kind: str) -> None:
    """It may be a decision that others act on: nothing is made in its place or after it, and it stays where it is."""
    chain(store, FIRST)
    spoil(store, kind, 2)
    before = dict(store.values)
    assert ask(store, ReadViews()) == ask(store, ReadViews(1, FIRST.view.view_id)) == Recorded(FIRST)
    for record in (SECOND, RIVAL, THIRD, founding(epoch=2, first=10)):
        answer = ask(store, CreateView(record), 10 if record.proposal is None else 0)
        assert isinstance(answer, Unread) and key(2) in answer.detail
    assert not isinstance(ask(store, CreateView(founding(epoch=3, first=10)), 10), Unread)
    assert store.values == before


@KINDS
def test_the_very_first_record(store: ScriptedStore, kind: str) -> None:
    if kind == "anothers":
        chain(store, FIRST, SECOND)
        store.values[key(1)] = store.values.pop(key(2))
    else:
        spoil(store, kind, 1)
    for request in (ReadViews(), CreateView(FIRST), CreateView(founding(first=10))):
        answer = ask(store, request)
        assert isinstance(answer, Unread) and key(1) in answer.detail, "there is a cluster, of which nothing is known"
    assert list(store.values) == [key(1)]


@KINDS
def test_far_beyond_the_newest_it_is_passed_over(store: ScriptedStore, kind: str) -> None:
    chain(store, FIRST)
    spoil(store, kind, 999)
    assert ask(store, ReadViews()) == Recorded(FIRST)
    assert ask(store, CreateView(SECOND)) == Recorded(SECOND)
    assert ask(store, Clean(2)) == Done()
    assert ask(store, ReadViews(1, FIRST.view.view_id)) == ask(store, ReadViews()) == Recorded(SECOND)


def test_far_beyond_nothing_it_is_passed_over(store: ScriptedStore) -> None:
    store.values[key(7)] = b"hello"
    assert ask(store, ReadViews()) == Recorded(None)
    assert ask(store, CreateView(FIRST)) == Recorded(FIRST)


@KINDS
def test_in_the_place_of_the_parent(store: ScriptedStore, kind: str) -> None:
    """Whoever made the newest record has read the one before it; somebody must have written there since."""
    chain(store, FIRST, SECOND, THIRD)
    spoil(store, kind, 2)
    assert ask(store, ReadViews()) == ask(store, ReadViews(3, THIRD.view.view_id)) == Recorded(THIRD)
    assert ask(store, ReadViews(2, SECOND.view.view_id)) == ask(store, ReadViews(1, FIRST.view.view_id)) == Recorded(THIRD)
    assert isinstance(ask(store, ReadViews(2, RIVAL.view.view_id)), Wiped), "it follows another view than the newest does"
    assert ask(store, CreateView(FOURTH)) == Recorded(FOURTH)


def test_in_the_place_of_what_the_asker_follows(store: ScriptedStore) -> None:
    """It is not gone, so nobody stops; and not known, so nothing follows it."""
    chain(store, FIRST, SECOND)
    store.values[key(2)] = b"hello"
    for request in (ReadViews(2, SECOND.view.view_id), CreateView(THIRD)):
        answer = ask(store, request)
        assert isinstance(answer, Unread) and key(2) in answer.detail
    assert sorted(store.values) == [key(1), key(2)]


def test_at_the_compacted_revision(store: ScriptedStore) -> None:
    """Everything older was removed, as there was something newer: that this cannot be read does not make the store empty."""
    chain(store, FIRST, SECOND, THIRD)
    assert ask(store, Clean(3)) == Done()
    store.values[key(3)] = b"hello"
    for request in (ReadViews(), ReadViews(1, FIRST.view.view_id), CreateView(founding(first=10)), CreateView(FOURTH)):
        answer = ask(store, request, 10)
        assert isinstance(answer, Unread) and key(3) in answer.detail
    assert list(store.values) == [key(3)]


@KINDS
def test_below_the_compacted_revision_it_is_nothing(store: ScriptedStore, kind: str) -> None:
    chain(store, FIRST, SECOND, THIRD)
    assert ask(store, Clean(3)) == Done()
    store.values[key(1)] = b""
    spoil(store, kind, 2)
    assert ask(store, ReadViews()) == Recorded(THIRD)
    assert ask(store, CreateView(FOURTH)) == Recorded(FOURTH)


async def test_a_directory_in_the_place_of_the_next_record_is_named(tmp_path: Path) -> None:
    """Nothing can be created there, and nothing is read there: neither by a founder nor by those who follow."""
    place = Directory(tmp_path)
    async with place.store() as store:
        member_ = executor(store)

        def views(number: int) -> Path:
            return place.root() / "keys" / key(number)

        views(1).mkdir(parents=True)
        answer = await member_.carry_out(CreateView(FIRST))
        assert isinstance(answer, Unread) and key(1) in answer.detail and "remove it" in answer.detail, answer
        views(1).rmdir()
        assert await member_.carry_out(CreateView(FIRST)) == Recorded(FIRST)
        views(2).mkdir()
        for record in (SECOND, founding(epoch=2, first=10)):
            answer = await executor(store, 10 if record.proposal is None else 0).carry_out(CreateView(record))
            assert isinstance(answer, Unread) and key(2) in answer.detail and "remove it" in answer.detail, answer
        assert await member_.carry_out(ReadViews(1, FIRST.view.view_id)) == Recorded(FIRST)
        views(2).rmdir()
        assert await member_.carry_out(CreateView(SECOND)) == Recorded(SECOND)


def test_what_is_put_there_between_creating_and_the_second_look_leaves_a_doubt(store: ScriptedStore) -> None:
    chain(store, FIRST)
    store.at("read", 2, lambda: store.values.update({key(1): b"hello"}))
    answer = ask(store, CreateView(SECOND))
    assert not isinstance(answer, Recorded)
    assert ask(store, ReadViews(1, FIRST.view.view_id)) == Recorded(SECOND), "others, and its creator, are told by reading"


@KINDS
def test_a_creator_whose_answer_was_lost_takes_nothing_strange_for_its_own(store: ScriptedStore, kind: str) -> None:
    chain(store, FIRST)
    store.at("create", 1, lambda: spoil(store, kind, 2), after=True)
    answer = ask(store, CreateView(SECOND))
    assert answer == Recorded(SECOND), "it was created, and what happens to it later is another matter"
    assert isinstance(ask(store, CreateView(SECOND)), Unread)


def member_of(store: ScriptedStore, ring: KeyRing, said: list[str]) -> StoreExecutor:
    return StoreExecutor(store, config(), member(0), ring, said.append)


def test_a_secret_that_is_dropped_stops_nobody_who_knew_it() -> None:
    """Records are sealed with the secret of the day. A running job goes on when that is dropped, and seals with the next."""
    store, said = ScriptedStore(), list[str]()
    ring = KeyRing((OLD,))
    running = member_of(store, ring, said)
    assert run(running.carry_out(CreateView(FIRST))) == Recorded(FIRST)
    ring._fill((NEW,))
    assert run(running.carry_out(ReadViews(1, FIRST.view.view_id))) == Recorded(FIRST)
    joiner = member_of(store, KeyRing((NEW,)), said)
    assert isinstance(run(joiner.carry_out(ReadViews())), Unread), "it has to ask those who live"
    assert isinstance(run(joiner.carry_out(CreateView(founding(first=10)))), Unread)
    assert run(running.carry_out(CreateView(SECOND))) == Recorded(SECOND)
    assert run(joiner.carry_out(ReadViews())) == Recorded(SECOND)
    assert len(said) == 1 and key(1) in said[0] and "remove it only if no worker did" in said[0], said


def test_two_members_with_different_secrets_never_decide_the_same_epoch() -> None:
    """What one cannot read the other has decided."""
    store, said = ScriptedStore(), list[str]()
    both, old = member_of(store, KeyRing((NEW, OLD)), said), member_of(store, KeyRing((OLD,)), said)
    assert run(old.carry_out(CreateView(FIRST))) == Recorded(FIRST)
    assert run(both.carry_out(CreateView(SECOND))) == Recorded(SECOND)
    requests: tuple[StoreOp, ...] = (CreateView(RIVAL), CreateView(founding(epoch=2)), CreateView(THIRD))
    for request in requests:
        assert isinstance(run(old.carry_out(request)), Unread)
    assert run(both.carry_out(ReadViews())) == Recorded(SECOND)
