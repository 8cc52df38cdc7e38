"""What ``ElasticSampler`` refuses, tells and waits for, one rule at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import IterableDataset

from ftlib import ConfigError, ElasticSampler, RebuildTimeout
from ftlib.data.sampling import Sampling, Share
from ftlib.state.codec import decode, snapshot


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def _member(name: str = "a", view: tuple[str, ...] = ("a",), **more: Any) -> ElasticSampler:
    sampler = ElasticSampler(range(20), **{"batch_size": 4, "shuffle": False, **more})
    sampler.bind(name)
    sampler.found(view)
    return sampler


def _call(*members: tuple[str, ElasticSampler], step: int, batches: int = 1) -> dict[str, Share]:
    shares = {name: sampler.begin(batches) for name, sampler in members}
    for _, sampler in members:
        sampler.finished(shares, step)
    return shares


@pytest.mark.parametrize(
    ("dataset", "settings", "text"),
    [
        (range(5), {"batch_size": 0}, "batch_size=0 must be at least 1"),
        (range(5), {"batch_size": 2.5}, "must be an integer"),
        (range(5), {"batch_size": 2, "seed": "x"}, "seed='x' must be an integer"),
        ([], {"batch_size": 1}, "the dataset is empty"),
        (range(3), {"batch_size": 4, "drop_last": True}, "choose a smaller batch_size"),
        (Stream(), {"batch_size": 1}, "has no length"),
    ],
)
def test_what_makes_no_sense_is_refused(dataset: Any, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        ElasticSampler(dataset, **settings)


def test_epochs_are_counted_from_zero() -> None:
    sampler = _member()
    with pytest.raises(ConfigError, match="at least 0"):
        sampler.set_epoch(-1)
    next(iter(sampler))
    sampler.set_epoch(1000)
    with pytest.raises(ConfigError, match="at most 100"):
        next(iter(sampler))


def test_it_is_what_the_calls_need() -> None:
    assert isinstance(ElasticSampler(range(3), batch_size=1), Sampling)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"batch_size": 5}, "batch_size=4, this ElasticSampler has 5"),
        ({"seed": 1}, "seed=0"),
        ({"shuffle": True}, "shuffle=False"),
        ({"drop_last": True}, "drop_last=False"),
        ({"global_batch": True}, "global_batch=False"),
    ],
)
def test_a_state_of_another_sampler_is_refused(change: dict[str, Any], text: str) -> None:
    state = _member().state_dict()
    with pytest.raises(ConfigError, match=text):
        _member(**change).load_state_dict(state)


def test_a_state_of_another_dataset_is_refused() -> None:
    other = ElasticSampler(range(21), batch_size=4, shuffle=False)
    with pytest.raises(ConfigError, match="of 20 samples, this one has 21"):
        other.load_state_dict(_member().state_dict())
    with pytest.raises(ConfigError, match="no state of an ElasticSampler"):
        other.load_state_dict({"something": 1})


def test_the_state_travels_like_any_other() -> None:
    sampler = _member()
    loop = iter(sampler)
    for step in range(3):
        next(loop)
        _call(("a", sampler), step=step + 1)
    state = decode(snapshot(sampler.state_dict()))
    other = ElasticSampler(range(20), batch_size=4, shuffle=False)
    assert isinstance(state, dict)
    other.load_state_dict(state)
    assert other.state_dict()["ledger"] == sampler.state_dict()["ledger"]
    assert list(other) == [[12, 13, 14, 15], [16, 17, 18, 19]]
    assert [row.indices for row in other.ledger(0)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_a_member_that_is_healed_goes_on_in_its_own_sequence() -> None:
    a, b = (_member(name, ("a", "b")) for name in "ab")
    lagging = _member("b", ("a", "b"))
    loops = [iter(a), iter(b), iter(lagging)]
    for loop in loops:
        next(loop)
    _call(("a", a), ("b", b), step=1)
    lagging.begin(1)
    lagging.load_state_dict(a.state_dict())
    assert lagging.begin(1).samples == 0  # its batch is the others' past
    assert next(loops[1]) == [12, 13, 14, 15]
    shares = {"a": a.begin(0), "b": lagging.begin(1)}
    for sampler in (a, lagging):
        sampler.finished(shares, 2)
    assert next(loops[2]) == [12, 13, 14, 15]


def test_the_weight_is_what_counts() -> None:
    sampler = _member("a", batch_size=8)
    loop = iter(sampler)
    assert sampler.weight(1) == 1.0  # of a call before any batch
    weights = []
    for step in range(3):
        next(loop)
        assert sampler.counts() == sampler.weight(1)
        weights.append(sampler.weight(1))
        _call(("a", sampler), step=step)
        assert sampler.weight(0) == weights[-1]
    assert weights == [8.0, 8.0, 4.0]


def test_a_share_stays_the_same_until_the_call_ends() -> None:
    sampler = _member()
    loop = iter(sampler)
    next(loop)
    share = sampler.begin(1)
    assert sampler.begin(1) == share == Share(4, 0, 0, 1, share.deal)
    sampler.unfinished()
    assert sampler.begin(1) == share  # repeated, nothing drawn anew
    sampler.unfinished()
    next(loop)
    assert sampler.begin(1) == Share(4, 0, 1, 1, share.deal)  # the failed call's batch goes back


def test_no_batch_is_drawn_during_a_call() -> None:
    sampler = _member()
    loop = iter(sampler)
    next(loop)
    drawn: list[list[int]] = []
    shares = {"a": sampler.begin(1)}
    with pytest.raises(ConfigError, match="from within a call"):
        next(loop)
    other = threading.Thread(target=lambda: drawn.append(next(loop)))
    other.start()
    assert not drawn
    sampler.finished(shares, 1)
    other.join(60)
    assert drawn == [[4, 5, 6, 7]]


def _drawn_by_another(loop: Any) -> list[object]:
    outcome: list[object] = []

    def draw() -> None:
        try:
            outcome.append(next(loop))
        except Exception as error:  # noqa: BLE001 - whatever it is, the test looks at it
            outcome.append(error)

    thread = threading.Thread(target=draw)
    thread.start()
    thread.join(60)
    return outcome


def test_a_draw_waits_for_a_call_only_so_long() -> None:
    sampler = ElasticSampler(range(20), batch_size=4)
    sampler.bind("a", patience=0.01, blocking=lambda: "waiting for b")
    sampler.found(["a"])
    loop = iter(sampler)
    next(loop)
    sampler.begin(1)
    [error] = _drawn_by_another(loop)
    assert isinstance(error, RebuildTimeout) and "did not end; waiting for b" in str(error)


def test_when_the_lifetime_is_over_draws_end_with_its_error() -> None:
    sampler = _member()
    loop = iter(sampler)
    next(loop)
    sampler.begin(1)
    sampler.thawed(RuntimeError("over"))
    [error] = _drawn_by_another(loop)
    assert isinstance(error, RuntimeError) and str(error) == "over"


def test_a_lifetime_that_may_be_followed_by_another_gives_fillers() -> None:
    sampler = _member()
    loop = iter(sampler)
    next(loop)
    sampler.thawed(None)
    assert next(loop) == [0, 1]
    sampler.bind("b")
    assert next(loop) == [0, 1]
    assert sampler.begin(3) == Share()


def test_one_loop_at_a_time() -> None:
    sampler = _member()
    first, second = iter(sampler), iter(sampler)
    next(first)
    next(second)
    with pytest.raises(ConfigError, match="one at a time"):
        next(first)


def test_a_loop_that_is_begun_again_gives_back_what_was_drawn() -> None:
    sampler = _member()
    loop = iter(sampler)
    assert [next(loop), next(loop)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    again = iter(sampler)
    assert next(again) == [8, 9, 10, 11]
    shares = _call(("a", sampler), step=1)
    assert (shares["a"].samples, shares["a"].dropped) == (4, 2)
    assert [next(again), next(again)] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_member_that_gets_the_state_anew_is_in_the_loop_that_it_was_in() -> None:
    sampler = _member()
    assert sampler.epoch == -1
    loop = iter(sampler)
    next(loop)
    assert sampler.epoch == 0
    state = sampler.state_dict()
    sampler.bind("a2")
    assert sampler.epoch == 0
    sampler.load_state_dict(state)
    assert sampler.epoch == 0


@pytest.mark.parametrize(
    ("calls", "ahead", "drawn", "left_behind"),
    [(4, 0, 2, True), (4, 0, 1, False), (3, 0, 2, False), (4, 1, 3, True), (4, 1, 2, False), (4, 2, 4, False)],
)
def test_a_joiner_is_left_behind_by_the_last_calls_of_a_loop(calls: int, ahead: int, drawn: int, left_behind: bool) -> None:
    """Where it has drawn more than others who cannot go on any more; it is told beforehand, and nothing changes by that."""
    a, joiner = _member("a"), ElasticSampler(range(20), batch_size=4, shuffle=False)
    mine = iter(a)
    joiner.bind("j")
    theirs = iter(joiner)
    for _ in range(drawn):
        next(theirs)
    for _ in range(ahead):
        next(mine)
    for step in range(1, calls + 1):
        next(mine)
        _call(("a", a), step=step)
    joiner.load_state_dict(a.state_dict())
    next(mine)
    shares = {"a": a.begin(1), "j": joiner.follow()}
    for _ in range(2):
        assert joiner.left_behind(shares, calls + 1, 1) is left_behind
    joiner.finished(shares, calls + 1)
    a.finished(shares, calls + 1)
    assert [list(row.indices) for row in joiner.ledger()] == [list(row.indices) for row in a.ledger()]


def test_its_length_follows_the_members() -> None:
    sampler = ElasticSampler(range(20), batch_size=2)
    assert len(sampler) == 10
    a, b = (_member(name, ("a", "b"), batch_size=2) for name in "ab")
    assert len(a) == 5
    loops = [iter(a), iter(b)]
    for loop in loops:
        next(loop)
    _call(("a", a), ("b", b), step=1)
    assert len(a) == len(b) == 5
    a.report()
    a.activated(["a"], {"a": [a.report()]})
    assert len(a) == 1 + 8
    a.set_epoch(1)
    assert len(a) == 10


def test_the_jobs_batch_stays_as_it_is() -> None:
    members = {name: _member(name, ("a", "b", "c"), batch_size=8, global_batch=True) for name in "abc"}
    loops = {name: iter(sampler) for name, sampler in members.items()}
    for step, sizes in enumerate([[3, 3, 2], [3, 3, 2], [3, 1, 0]]):
        for loop in loops.values():
            next(loop)
        shares = _call(*members.items(), step=step)
        assert [share.samples for share in shares.values()] == sizes


def test_fillers_are_of_the_size_that_a_program_can_take() -> None:
    sizes = []
    for settings in ({"batch_size": 1}, {"batch_size": 4}, {"batch_size": 4, "drop_last": True}):
        sampler = ElasticSampler(range(20), **settings)
        sampler.bind("joiner")
        sizes.append(len(next(iter(sampler))))
    assert sizes == [1, 2, 4]


def test_vetoed_calls_are_told_in_the_ledger() -> None:
    sampler = _member()
    loop = iter(sampler)
    for step in (1, 1, 2):
        next(loop)
        _call(("a", sampler), step=step)
    assert [(row.step, row.granted) for row in sampler.ledger()] == [(1, True), (1, False), (2, True)]


def test_a_ledger_that_is_gone_is_not_made_up() -> None:
    sampler = _member()
    assert list(sampler.ledger()) == []
    with pytest.raises(ConfigError, match="no ledger of epoch 3"):
        sampler.ledger(3)


def test_a_call_that_uses_up_nothing_does_not_bring_a_dropped_batch_back() -> None:
    """An average comes to nothing, and a barrier follows: the next average is of the next batch, not of the one before."""
    sampler = _member()
    loader = iter(sampler)
    assert next(loader) == [0, 1, 2, 3]
    sampler.begin(1)
    sampler.unfinished()
    _call(("a", sampler), step=0, batches=0)
    after = next(loader)
    share = sampler.begin(1)
    assert share.dropped == 1
    sampler.finished({"a": share}, 1)
    [row] = list(sampler.ledger())
    assert list(row.indices) == after != [0, 1, 2, 3]


def test_a_state_that_is_loaded_after_a_freeze_is_dealt_on_at_once() -> None:
    """What was told at that freeze, by a member that was then healed, limits nothing any more."""
    senior, healed = _member("a", ("a", "b")), _member("b", ("a", "b"))
    next(iter(senior)), next(iter(healed))
    _call(("a", senior), ("b", healed), step=1)
    reports = {"a": [senior.report()]}
    healed.report()
    senior.activated(("a", "b"), reports)
    healed.load_state_dict(senior.state_dict())
    loop, used = iter(healed), 0
    next(loop)
    shares = {"a": senior.begin(0), "b": healed.follow()}
    for each in (senior, healed):
        each.finished(shares, 2)
    for step in (3, 4):
        shares = {"a": senior.begin(0), "b": healed.begin(1)}
        for each in (senior, healed):
            each.finished(shares, step)
        used += shares["b"].samples
        next(loop)
    assert used == 4, "a batch of its own, not only fillers"


def test_a_founder_that_gets_the_state_before_its_first_call_has_ended_deals_as_the_others_do() -> None:
    """The others finished that call and went on, and it is dealt nothing yet: that is no state of an earlier job."""
    view = ("a", "b", "c")
    a, b, c = (_member(name, view) for name in view)
    _call(("a", a), ("b", b), step=1)
    reports = {"a": [a.report()], "b": [b.report()]}
    for sampler in (a, b):
        sampler.activated(view, reports)
    _call(("a", a), ("b", b), step=2)
    c.load_state_dict(decode(snapshot(a.state_dict())))
    assert c.begin(0).deal == a.begin(0).deal
