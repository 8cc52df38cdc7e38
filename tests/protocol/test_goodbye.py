"""A member whose request to leave may have been read by others, in a call that has not ended for it: what it still may do.

That it does not fork: ``tests/transcripts/test_forks.py``. Here: it ends well, and soon, whatever becomes of the others.
"""

from __future__ import annotations

from consensus.border import Boundary
from consensus.errors import LeftError
from consensus.messages import Accepted, Message
from consensus.progress import Progress
from consensus.protocol.agreement.attempt import AttemptPhase
from consensus.simulation import Host, World

from ..transcripts.script import agree, cut, epochs, start_job


def says_goodbye(host: Host) -> None:
    """Its trailer may be read from now on."""
    host.machine.set_progress(Progress(16, 17, host.now, busy=True, leaving=True))


def ended(world: World, host: Host, within: float) -> None:
    world.run_until(lambda: host.stopped is not None, within)
    assert isinstance(host.stopped, LeftError)


def test_who_decides_without_discounting_anybody_ends_its_call_alone() -> None:
    """Half with the most senior is a quorum: nobody can have gone on without it, and so it may finish what it has begun."""
    world, (senior, junior) = start_job(2)
    says_goodbye(senior)
    world.kill(junior)
    agree(world, [senior])
    assert epochs([senior]) == [2] and senior.stopped is None


def test_who_may_not_decide_alone_leaves_the_dead_at_once() -> None:
    world, (senior, junior) = start_job(2)
    says_goodbye(junior)
    world.kill(senior)
    ended(world, junior, 1.0)
    assert epochs([junior]) == [1]


def test_a_proposal_under_way_discounts_nobody_any_more() -> None:
    """Its promises were counted before anybody could read the request; the votes come after that."""
    world, (asker, *rest) = start_job(5)
    voter, *dead = rest
    votes: list[Message] = []

    def watch(host: Host, message: Message) -> bool:
        if host is voter and isinstance(message, Accepted):
            votes.append(message)
            says_goodbye(asker)
        return True

    world.watch = watch
    for host in dead:
        world.kill(host)
    world.run_until(lambda: bool(votes), 1.0)
    attempt = asker.machine._change.proposer.attempt
    assert attempt is not None and attempt.phase is AttemptPhase.ACCEPT
    world.run(1.0)
    assert len(attempt.reports) == 2, "the vote has come"
    assert attempt.phase is AttemptPhase.ACCEPT and epochs([asker, voter]) == [1, 1]
    ended(world, asker, world.config.ready_timeout + 1.0)  # for the voter it is a crash from here on
    world.kill(asker)
    agree(world, [voter])


def test_who_waits_for_the_silent_leaves_after_ready_timeout() -> None:
    """Not after ``quorum_timeout``: that is for those who want to go on."""
    world, (*others, leaver) = start_job(3)
    says_goodbye(leaver)
    cut(world, *((leaver, other) for other in others))
    ended(world, leaver, world.config.exclude_after + world.config.ready_timeout + 2.0)
    agree(world, others)


def test_a_view_without_it_is_its_leave_and_no_exclusion() -> None:
    world, (*others, leaver) = start_job(3)
    says_goodbye(leaver)
    world.faults.cut |= {(leaver.id, other.id) for other in others}  # it hears, and is not heard
    ended(world, leaver, 10.0)
    agree(world, others)


def test_it_is_bound_for_good() -> None:
    """Whatever its data plane says next: others may have read it."""
    world, (senior, junior) = start_job(2)
    says_goodbye(junior)
    junior.machine.set_progress(Progress(17, 18, junior.now))
    world.kill(senior)
    ended(world, junior, 1.0)


def test_whom_a_trailer_names_leaves_if_it_is_a_member() -> None:
    _, (senior, junior) = start_job(2)
    senior.machine.handle(Boundary(7, (junior.id, "a stranger")), senior.now)
    assert list(senior.machine._core.evidence.leaving) == [junior.id]
