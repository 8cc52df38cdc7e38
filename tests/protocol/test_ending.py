"""An applicant that meets the job at its very end: what it is told, what it finds out, and where it cannot know."""

from __future__ import annotations

import pytest

from consensus.border import Leave
from consensus.config import Config, Policy
from consensus.errors import JobEndedError, JoinError, StoppedError
from consensus.protocol.admission.ending import CHECKED, Askers, Ending
from consensus.protocol.state.join import FRESH, Search
from consensus.simulation import Host, World

from ..transcripts.script import start_job
from .people import member, view_of

PATIENCE = 20.0
A, B = ("10.0.0.1", 1), ("10.0.0.1", 2)


def ending(names: str) -> Ending:
    """Of an applicant that knows that view."""
    search = Search(Config(), member("x"), (A,), founder=False, now=0.0)
    search.cluster = view_of(names)
    return Ending(search)


def test_each_has_to_have_said_so_or_to_be_dead() -> None:
    one = ending("abc")
    one.told("a", ended=True)
    assert not one.over and [each.id for each in one.doubtful] == ["b", "c"]
    one.died("b")
    assert not one.over and [each.id for each in one.doubtful] == ["c"]
    one.told("c", ended=True)
    assert one.over and not one.doubtful


def test_deaths_alone_are_no_end() -> None:
    one = ending("ab")
    one.died("a")
    one.died("b")
    assert not one.over and not one.doubtful


def test_who_answers_is_alive_whatever_a_check_has_found() -> None:
    """A firewall refuses connections to it, say: the job goes on, and lets this one in."""
    one = ending("axy")
    one.told("a", ended=True)
    one.died("x")
    one.told("x", ended=False)
    one.told("y", ended=True)
    assert not one.over and [each.id for each in one.doubtful] == ["x"]


def test_what_another_applicant_says_is_no_word_of_the_job() -> None:
    one = ending("a")
    one.told("y", ended=True)
    assert not one.over
    one.told("a", ended=True)
    one.told("y", ended=False)
    assert one.over


def test_only_the_newest_word_counts() -> None:
    one = ending("abc")
    one.told("a", ended=True)
    one.told("b", ended=False)
    one.died("b")
    one.died("c")
    assert not one.over and not one.doubtful


def test_without_a_view_nothing_is_known() -> None:
    one = Ending(Search(Config(), member("x"), (A,), founder=False, now=0.0))
    one.told("a", ended=True)
    assert not one.over and not one.doubtful


def test_where_the_store_says_that_nobody_is_left_the_newest_word_counts() -> None:
    for ended in (True, False):
        one = ending("ab")
        one.told("a", ended=ended)
        one._search.lost(5.0)
        assert one.over is ended and not one.doubtful


def test_of_many_only_some_are_checked_at_a_time() -> None:
    one = ending("abcdefghijklmnopqrstu")
    one.told("a", ended=True)
    assert [each.id for each in one.doubtful] == list("bcdefghijklmnopqrstu")[:CHECKED]


def test_askers_are_known_for_as_long_as_they_ask() -> None:
    askers = Askers(2)
    askers.received(A, 10.0)
    askers.received(B, 10.5)
    assert askers.fresh(10.0 + FRESH) == [A, B] and askers.fresh(10.4 + FRESH) == [B]
    askers.received(A, 11.0)
    askers.received(("10.0.0.1", 3), 11.0)
    assert askers.fresh(11.0) == [A, ("10.0.0.1", 3)], "the one that is silent for longest makes room"


def test_who_asks_again_takes_nobody_elses_place() -> None:
    """A leaver announces the end to all that asked lately, however often some of them asked."""
    askers = Askers(2)
    for address, now in ((A, 10.0), (B, 10.5), (B, 11.0), (B, 11.1)):
        askers.received(address, now)
    assert askers.fresh(11.1) == [A, B]


def met(size: int) -> tuple[World, list[Host], Host]:
    """A job, and an applicant that has just heard of it from one member."""
    world, members = start_job(size, config=Config(join_timeout=PATIENCE))
    applicant = world.start("x", introducers=(members[-1].name,), wants=False)
    world.run_until(lambda: applicant.machine.known_view is not None, 1.0)
    return world, members, applicant


def end(world: World, host: Host) -> None:
    """Its program comes to its end, and the process ends with its part."""
    world.inside(host, lambda: host.machine.handle(Leave(None, ended=True), host.now))


def until_gone(world: World, hosts: list[Host]) -> None:
    left = list(hosts)
    while left:
        world.run_until(lambda: any(host.stopped is not None for host in left), 5.0)
        for host in [host for host in left if host.stopped is not None]:
            world.kill(host)
            left.remove(host)


def fate(world: World, applicant: Host, within: float) -> StoppedError | None:
    world.run_until(lambda: applicant.stopped is not None, within)
    return applicant.stopped


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_all_end_as_it_has_heard_of_them_from_one(size: int) -> None:
    """The last of them may never have heard of it."""
    world, members, applicant = met(size)
    for host in members:
        end(world, host)
    until_gone(world, members)
    assert isinstance(fate(world, applicant, 2.0), JobEndedError)


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("pause", [0.0, 0.02, 0.3])
def test_they_end_one_after_the_other(size: int, pause: float) -> None:
    world, members, applicant = met(size)
    for host in members:
        end(world, host)
        until_gone(world, [host])
        world.run(pause)
    assert isinstance(fate(world, applicant, 2.0), JobEndedError)


def test_the_last_one_is_killed_as_the_others_end() -> None:
    """Nothing is lost: what it held the others had at their end."""
    world, members, applicant = met(3)
    for host in members[:-1]:
        end(world, host)
    world.kill(members[-1])
    until_gone(world, members[:-1])
    assert isinstance(fate(world, applicant, 5.0), JobEndedError)


def test_all_are_killed() -> None:
    world, members, applicant = met(3)
    for host in members:
        world.kill(host)
    assert isinstance(fate(world, applicant, PATIENCE + 5.0), JoinError)


def test_it_waits_while_somebody_goes_on() -> None:
    world, (first, *rest), applicant = met(3)
    end(world, first)
    until_gone(world, [first])
    world.run(5.0)
    assert applicant.stopped is None
    for host in rest:
        end(world, host)
    until_gone(world, rest)
    assert isinstance(fate(world, applicant, 2.0), JobEndedError)


def test_who_went_on_and_was_killed_takes_the_job_along() -> None:
    world, (first, *rest), applicant = met(3)
    end(world, first)
    until_gone(world, [first])
    world.run(5.0)
    for host in rest:
        world.kill(host)
    assert isinstance(fate(world, applicant, PATIENCE + 5.0), JoinError)


def test_who_has_left_by_notice_is_no_end() -> None:
    world, members, applicant = met(2)
    for host in members:
        world.inside(host, host.leave)
    until_gone(world, members)
    assert isinstance(fate(world, applicant, PATIENCE + 5.0), JoinError)


def test_that_one_has_ended_is_known_though_the_view_without_it_is_overtaken() -> None:
    """The next one died before anybody acted in that view: who is left learns of both."""
    world, (first, second, third) = start_job(3)
    end(world, first)
    world.run_until(lambda: third.installed[-1][0].epoch == 2, 1.0)
    assert third.activated[-1].epoch == 1
    world.kill(second)
    world.run_until(lambda: third.activated[-1].epoch == 3, 1.0)
    reasons = third.machine.reasons
    assert reasons[first.id].ended and not reasons[second.id].ended


@pytest.mark.parametrize("seed", range(8))
def test_with_a_store_it_founds_no_other_job(seed: int) -> None:
    """It may found, as the first of those with a lease; but the job whose record it has read is over."""
    config = Config(policy=Policy.STORAGE, storage="simulated://store", join_timeout=PATIENCE)
    world, members = start_job(2, seed=seed, config=config)
    applicant = world.start("x", wants=False)
    world.run_until(lambda: applicant.machine.known_view is not None, 5.0)
    for host in members:
        end(world, host)
    until_gone(world, members)
    assert isinstance(fate(world, applicant, 5.0), JobEndedError)
