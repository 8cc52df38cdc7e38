"""What the golden transcripts tell: each function is one file of ``golden/``, and checks how its story ends."""

from __future__ import annotations

from consensus.border import Boundary
from consensus.config import Config
from consensus.errors import ExcludedError, QuorumLostError
from consensus.progress import Progress
from consensus.simulation import Host, World
from consensus.simulation.world.faults import Failpoint

from .script import agree, epochs, remark, start_job
from .tale import Tale, end


def _conclude(world: World, hosts: list[Host]) -> None:
    """``hosts`` agree; then the page ends."""
    agree(world, hosts)
    world.run(0.05)
    end(world)


def crash(tale: Tale) -> None:
    tale.head(
        "A crash",
        "4, 5, 7, 10, 11, 13",
        """Five members, A the most senior. E is killed. Those who hold a connection to E see it close, and E's host
        refuses a new one: proof. They tell the coordinator, which is A, and the next two. A waits 5 ms for more of
        the kind, then proposes the list without E. As the most senior member it may use ballot 0 without asking for
        promises first.""",
        """Whoever votes freezes first: nothing completes in the old group after that, and the vote carries a report
        of what has. Three votes of five are a quorum, so the list is chosen; but INSTALL waits for the report of
        everybody who stays. When all have built the new group, all may act in it: 14 ms after the death.""",
    )
    world, members = start_job(5, page=tale.page())
    world.kill(members[4])
    _conclude(world, members[:4])
    assert epochs(members[:4]) == [2, 2, 2, 2]


def partition(tale: Tale) -> None:
    tale.head(
        "A partition, and its end",
        "3, 4, 6, 15, 16",
        """A and B lose touch with C, D and E. Nobody is dead, so nobody has proof; after T = 2 s without a sign of
        life there is silence. Both sides would like to go on without the other.""",
        """A voter gives its vote against somebody only T after it last acked him: so whoever was acked knows for that
        long that it has not been voted out. Three of five are a quorum and two are not: C, D and E go on. A and B
        propose nothing, since too few are in sight. They are still active in epoch 1, but no average can end there,
        for the others have frozen it. When the links are back, they learn what was decided, and stop. Their processes
        may join again, as new members.""",
    )
    world, members = start_job(5, page=tale.page())
    small, large = members[:2], members[2:]
    remark(world, "All links between A B and C D E are cut.")
    world.isolate(small, large)
    agree(world, large)
    world.run(6.0)
    end(world, "Meanwhile:")
    assert epochs(members) == [1, 1, 2, 2, 2]
    remark(world, "The links are back.")
    world.faults.heal()
    world.run_until(lambda: all(host.stopped is not None for host in small), 5.0)
    world.run(0.1)
    end(world)
    assert all(isinstance(host.stopped, ExcludedError) for host in small)


def join(tale: Tale) -> None:
    tale.head(
        "A join, with and without a crash",
        "2, 4, 7, 9, 13",
        """J asks to be let in. The coordinator pings it, and waits for a moment between two calls, at most a second:
        members tell each other within a call that they stop after it, so that a join interrupts nothing. If somebody
        dies before that moment comes, one view change does both.""",
    )
    page = tale.page(
        "Nobody dies", "All members stop after call 7, in which they have told each other that somebody wants to join."
    )
    world, members = start_job(3, page=page)
    joiner = _ask_to_join(world, members)
    remark(world, "Call 7 has ended.")
    for host in members:
        world.inside(host, lambda host=host: host.machine.handle(Boundary(7, ()), host.now))  # type: ignore[misc]
    _conclude(world, [*members, joiner])

    page = tale.page("Another member dies", "C dies. That cannot wait for the end of a call, which will never come.")
    world, members = start_job(3, page=page)
    joiner = _ask_to_join(world, members)
    world.kill(members[2])
    _conclude(world, [*members[:2], joiner])
    assert [view.ids for view in joiner.activated] == [(members[0].id, members[1].id, joiner.id)]

    page = tale.page(
        "The coordinator dies",
        """A dies. J has asked B, too, which is the next in seniority. Any ballot but that of the most senior begins
        with PREPARE, since A may have had a list chosen without anybody knowing.""",
    )
    world, members = start_job(3, page=page)
    joiner = _ask_to_join(world, members)
    world.kill(members[0])
    _conclude(world, [*members[1:], joiner])
    assert epochs([*members[1:], joiner]) == [2, 2, 2]

    page = tale.page(
        "The joiner dies once it is in",
        """J is in the chosen list, and dies while it builds its group: the view can never be active. Its members,
        active or not, vote for the next one. B and C were never in touch with J, but it was let in by this very view:
        as a newcomer it may be discounted all the same, since newcomers alone are never a quorum.""",
    )
    world, members = start_job(3, page=page)
    joiner = world.start("J", introducers=(members[0].name,))
    world.run_until(lambda: bool(joiner.installed), 5.0)
    world.kill(joiner)
    _conclude(world, members)
    assert epochs(members) == [3, 3, 3]


def _ask_to_join(world: World, members: list[Host]) -> Host:
    """J asks to be let in while the others are in the middle of their calls."""
    for host in members:
        host.machine.set_progress(Progress(6, 7, host.now))
    joiner = world.start("J", introducers=(members[0].name, members[1].name))
    world.run(0.3)
    return joiner


def ten_crashes(tale: Tale) -> None:
    tale.head(
        "Ten crashes at once",
        "4, 7, 8",
        """Ten of 24 members die in the same instant, as when somebody kills all workers of a few hosts. The data
        plane of everybody else fails, and everybody checks everybody. The proofs come in within milliseconds; the
        coordinator waits 5 ms after the first, so that all ten are one view change.""",
        """14 of 24 are more than half. The others are dead, and who was in touch with them discounts them; it is not
        needed here.""",
    )
    world, members = start_job(24, page=tale.page())
    for victim in members[5:15]:
        world.kill(victim)
    survivors = [host for host in members if host.alive]
    remark(world, "The data plane fails everywhere: whose fault it is cannot be said.")
    for host in survivors:
        world.inside(host, lambda host=host: host.fail(()))  # type: ignore[misc]
    _conclude(world, survivors)
    assert epochs(survivors) == [2] * 14


def majority_lost(tale: Tale) -> None:
    tale.head(
        "The majority is lost",
        "7, 8, 16",
        """Three of five die. Two are less than half, but the dead cannot vote any more. May the two go on? It depends
        on what the dead may have decided before they died.""",
    )
    page = tale.page(
        "In touch until the end: they go on",
        """A and B were in touch with all three less than T before the proof. So none of the three has voted for a
        list without A or B: it would have had to wait T after its last ack. They are discounted, and everybody else
        votes: kind (b) of a quorum.""",
    )
    world, members = start_job(5, page=page)
    for victim in members[2:]:
        world.kill(victim)
    _conclude(world, members[:2])
    assert epochs(members[:2]) == [2, 2]

    page = tale.page(
        "Out of touch before: they block",
        """This time the links were cut 1.95 s before the three die. The last pings that they acked are older than T,
        less the 5 % by which clocks may differ; for all that A and B know, the three have voted for a list without
        them, and there may be somebody who acts in it. A and B block, say for whom they wait, and give up after
        quorum_timeout, here 30 s.""",
    )
    world, members = start_job(5, config=Config(quorum_timeout=30.0), page=page)
    remark(world, "All links between A B and C D E are cut.")
    world.isolate(members[:2], members[2:])
    world.run(1.95)
    for victim in members[2:]:
        world.kill(victim)
    remark(world, "The links are back; nobody is there.")
    world.faults.heal()
    world.run(7.0)
    end(world, "Meanwhile:")
    assert epochs(members[:2]) == [1, 1]
    world.run_until(lambda: all(host.stopped is not None for host in members[:2]), 40.0)
    world.run(0.1)
    end(world)
    assert all(isinstance(host.stopped, QuorumLostError) for host in members[:2])


def shrink_to_one(tale: Tale) -> None:
    tale.head(
        "From four to one",
        "5, 7, 8",
        """One member after the other dies, always the most senior, which coordinates. Each change is decided by the
        members of the view before it: B, C and D are three of four, C and D two of three. D alone is half of the last
        two, and not the more senior one; it goes on all the same, since it was in touch with C until the end.""",
    )
    world, members = start_job(4, page=tale.page())
    for victim in members[:3]:
        world.kill(victim)
        agree(world, [host for host in members if host.alive])
        world.run(1.0)
    end(world)
    assert members[3].activated[-1].ids == (members[3].id,)


def _somebody_dies(
    tale: Tale,
    heading: str,
    text: str,
    trap: tuple[str, str, str],
    *,
    first: str = "A",
    epoch: int = 2,
    late: str = "",
    whole: bool = False,
) -> None:
    """Member ``first`` of five is killed, then another one by the ``trap``: who, before or after which message.

    What comes before the coordinator knows of the first death is the same everywhere, and told where ``whole``. All that
    ``late`` sends and is sent takes longer. The survivors agree on ``epoch`` in the end.
    """
    page = tale.page(heading, text)
    world, members = start_job(5, page=page)
    named = dict(zip("ABCDE", members, strict=True))
    who, when, kind = trap
    if late:
        world.faults.slow[named[late].id] = 0.015
    world.failpoints.append(Failpoint(named[who].name, kind, 1, before=when == "before"))
    page.mute = not whole
    world.kill(named[first])
    if not whole:
        world.run(0.006)
        page.mute = False
        coordinator = "B" if first == "A" else "A"
        remark(world, f"{first} was killed at 0 ms, as in crash.txt; {coordinator} knows, and is about to propose.")
    world.run_until(lambda: not world.failpoints, 1.0)
    world.run(0.002)
    survivors = [host for host in members if host.alive]
    _conclude(world, survivors)
    assert epochs(survivors) == [epoch] * len(survivors)


def coordinator_crash(tale: Tale) -> None:
    tale.head(
        "The coordinator dies at each of its messages",
        "5, 7, 8, 11, 12, 14",
        """Each page begins as crash.txt: E was killed, and A coordinates. Then A itself dies, right before or right
        after its first message of a kind to somebody else. Whatever A had begun, B finishes or replaces. It asks a
        quorum for promises with ballot 1/B; if anybody has voted for A's list, B must propose that one again, for A
        may have counted enough votes for it. A itself is left out by the same change, or by the next.""",
        """In none of these histories do two members act in different lists of one epoch. That is the whole point of
        the protocol.""",
    )
    _somebody_dies(
        tale,
        "Before the first ACCEPT",
        "Nobody who lives has voted. B is free to propose a list without both of the dead.",
        ("A", "before", "Accept"),
        first="E",
    )
    _somebody_dies(
        tale,
        "After the first ACCEPT",
        """B has voted for A's list, as its own promise says, and so must propose it: with A, which is dead. That list
        is chosen, and never active, since READY of A will never come. The next one, by the members of the chosen
        list, is without A.""",
        ("A", "after", "Accept"),
        first="E",
        epoch=3,
    )
    _somebody_dies(
        tale,
        "Before the first FLUSH-REQUEST",
        """D is slow here. A has a quorum without D's vote, waits 5 ms for it, and would ask for D's report then. Nobody
        else knows that the list is chosen; but B and C have voted for it, so B proposes it again. Once it is chosen, B's
        PREPARE for the next epoch shows C and D that there is a newer list. They ask for it before they promise.""",
        ("A", "before", "FlushRequest"),
        first="E",
        epoch=3,
        late="D",
    )
    _somebody_dies(
        tale,
        "After the first FLUSH-REQUEST",
        """D, slow again, gets the question when nobody is there any more for its answer; but so it knows that the
        list is chosen.""",
        ("A", "after", "FlushRequest"),
        first="E",
        epoch=3,
        late="D",
    )
    _somebody_dies(
        tale,
        "Before the first INSTALL",
        "Everybody has voted and reported, and A alone knows it. Each of these votes tells B what to propose.",
        ("A", "before", "Install"),
        first="E",
        epoch=3,
    )
    _somebody_dies(
        tale,
        "After the first INSTALL",
        """B alone has everybody's report, and builds its group. It never acts in it, for without the READY of A, C
        and D there is no ACTIVATE. B follows the chosen list already, so it coordinates the next change as one of its
        members.""",
        ("A", "after", "Install"),
        first="E",
        epoch=3,
    )
    _somebody_dies(
        tale,
        "Before the first ACTIVATE",
        "All have built their groups, but only A knows it.",
        ("A", "before", "Activate"),
        first="E",
        epoch=3,
    )
    _somebody_dies(
        tale,
        "After the first ACTIVATE",
        """B acts in epoch 2; C and D never do. That is no fork: they act in no other list of epoch 2, and no average
        of B can end there, for C and D take no part in it.""",
        ("A", "after", "Activate"),
        first="E",
        epoch=3,
    )


def another_crash(tale: Tale) -> None:
    tale.head(
        "Somebody else dies in the middle of a change",
        "4, 5, 7, 8, 11, 14",
        """A, the most senior, is killed, and B coordinates: with ballot 1/B, and PREPARE first. Then one more dies,
        right before or after a message: the one who found A dead, B itself, or one of those who answer it. Nobody is
        waited for who is proven dead and was in touch until then.""",
    )
    _somebody_dies(
        tale,
        "C dies after its first EVIDENCE",
        "C has told B alone of A's death. Others find it, too: everybody is watched by three.",
        ("C", "after", "Evidence"),
        whole=True,
    )
    _somebody_dies(tale, "B dies before its first PREPARE", "C is the next in seniority.", ("B", "before", "Prepare"))
    _somebody_dies(
        tale,
        "B dies after its first PREPARE",
        "C has promised ballot 1/B, and proposes with a higher one.",
        ("B", "after", "Prepare"),
    )
    _somebody_dies(
        tale,
        "B dies before its first ACCEPT",
        "All have promised B's ballot, and nobody has voted in it: a promise binds nobody to a list.",
        ("B", "before", "Accept"),
    )
    _somebody_dies(
        tale,
        "B dies after its first ACCEPT",
        "C has voted for B's list, with B in it, and must propose it again.",
        ("B", "after", "Accept"),
        epoch=3,
    )
    _somebody_dies(
        tale,
        "C dies instead of promising",
        "B, D and E are three of five, and the list is without both.",
        ("C", "before", "Promise"),
    )
    _somebody_dies(
        tale,
        "C dies instead of voting",
        """The list with C in it is asked for already, and is chosen by three of five; it can never be active. In the
        next epoch B is the most senior, and needs no PREPARE.""",
        ("C", "before", "Accepted"),
        epoch=3,
    )
    _somebody_dies(
        tale,
        "C dies before it says READY",
        "The list is installed everywhere, and nobody may act in it. The next change begins with the proof of C's death.",
        ("C", "before", "Ready"),
        epoch=3,
    )
    _somebody_dies(
        tale,
        "C dies after it said READY",
        "B has heard READY of all, so all who live act in epoch 2, for the 5 ms until they have to freeze again.",
        ("C", "after", "Ready"),
        epoch=3,
    )
