"""What wakes those who wait for a recovery."""

from __future__ import annotations

import functools
import threading
from dataclasses import replace
from unittest.mock import Mock

import pytest

from consensus import Member
from ftlib import ConfigError
from ftlib.common.traces import FetchRecord, Traces
from ftlib.core.calls.follower import NoFollowing
from ftlib.core.plane.plane import Plane
from ftlib.recovery.joiner import round as rounds
from ftlib.recovery.joiner.http_transport import FetchError, SnapshotOffer
from ftlib.recovery.joiner.limits import RecoveryLimits
from ftlib.recovery.joiner.round import Round
from ftlib.recovery.layout.shards import Shard
from tests.harness.basics import TIMEOUT, eventually

LIMITS = RecoveryLimits(TIMEOUT, 1, live=True)


def test_who_waits_for_the_comparison_is_told_that_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits without an end of its own: a spare's program has nothing else to do."""
    go, told = threading.Event(), []

    def prepare(*_: object) -> Mock:
        assert go.wait(TIMEOUT)
        return Mock(nbytes=1)

    monkeypatch.setattr(rounds, "prepare", prepare)
    plane = Plane("a" * 16)
    one = Round(plane, Mock(), Mock(), Mock(), None, (), "b", 7, (), SnapshotOffer(2, 0, b"", ()), LIMITS)

    def wait() -> None:
        with pytest.raises(ConfigError, match="2 bytes, this worker's 1") as error:
            one.check_fit()
        told.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    eventually(lambda: one._changed._waiters, "it waits")  # type: ignore[attr-defined]
    one.begin()
    go.set()
    waiting.join(TIMEOUT)
    assert told
    one.end()


def test_a_shard_that_nobody_can_give_ends_it_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "_SPARE_PATIENCE", 0.0)
    shard, plane = Shard(0, 0, 1, 7, ("b",)), Plane("a" * 16)
    made = functools.partial(Round, plane, Mock(), Mock(), Mock(), None)
    lonely = made((), "b", 7, (shard,), SnapshotOffer(1, 1, b"", ()), LIMITS)
    with pytest.raises(NoFollowing, match="nobody is left who could give stripe 0"):
        lonely._none_left(shard)
    made((Member("b", "10.0.0.1", 1),), "b", 7, (shard,), SnapshotOffer(1, 1, b"", ()), LIMITS)._none_left(shard)


def test_each_donor_of_a_shard_is_asked_a_few_times_the_one_that_failed_least_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "_SPARE_PATIENCE", 0.0)
    shard, transport = Shard(0, 0, 1, 7, ("b", "c")), Mock()
    transport.shard.side_effect = FetchError("away")
    donors = tuple(Member(name, "10.0.0.1", 1) for name in "bc")
    offer = SnapshotOffer(1, 1, b"", ())
    one = Round(Plane("a" * 16), Mock(), Mock(), transport, None, donors, "b", 7, (shard,), offer, LIMITS)
    one.flat = Mock()

    def fetch() -> None:
        while (donor := one._donor_of(shard)) is not None and transport.shard.call_count < 100:
            assert not one._fetch(shard, donor)

    with pytest.raises(NoFollowing, match="nobody is left"):
        fetch()
    assert [call.args[0].id for call in transport.shard.call_args_list] == ["b", "c"] * rounds._TRIES


def test_the_traces_have_what_came_and_what_did_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "_SPARE_PATIENCE", 0.0)
    shard, transport, donor = Shard(4, 0, 300, 7, ("b",)), Mock(), Member("b", "10.0.0.1", 1)
    transport.shard.side_effect = [FetchError("b: broke off"), None]
    plane = Plane("a" * 16, traces=Traces())
    offer = SnapshotOffer(300, 1, b"", ((0, 300),))
    one = Round(plane, Mock(), Mock(), transport, None, (donor,), "b", 7, (replace(shard, index=0), shard), offer, LIMITS)
    one.flat = Mock()
    assert [one._fetch(one.shards[0], donor), one._fetch(shard, donor)] == [False, True]
    assert plane.traces is not None
    found = [record._replace(began=0.0, ended=0.0) for record in plane.traces.take() if isinstance(record, FetchRecord)]
    assert found == [FetchRecord("b", 0, 0.0, 0.0, 300, "b: broke off"), FetchRecord("b", 4, 0.0, 0.0, 300, "")]


def test_it_is_level_once_the_list_of_tensors_and_all_shards_are_here() -> None:
    """The whole state may be inline: then no shards are missing, even before that is known."""
    shard, offer = Shard(0, 0, 1, 7, ("b",)), SnapshotOffer(1, 1, b"", ((0, 1),))
    for shards, flat, expected in (((), None, False), ((), Mock(), True), ((shard,), Mock(), False), ((shard,), None, False)):
        one = Round(Plane("a" * 16), Mock(), Mock(), Mock(), None, (), "b", 7, shards, offer, LIMITS)
        one.flat = flat
        assert one.level_with(7) == expected
