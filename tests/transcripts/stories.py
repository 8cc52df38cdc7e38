"""What the golden transcripts tell: each function is one file of ``golden/``, and checks how its story ends."""

from __future__ import annotations

from consensus.config import Config
from consensus.errors import ExcludedError, QuorumLostError
from consensus.simulation import Host, World
from consensus.simulation.trap import Trap

from .script import agree, epochs, remark, start_job
from .tale import Tale, end


def crash(tale: Tale) -> None:
    tale.head(
        "A crash",
        "4, 5, 7, 10, 11, 13",
        """Five members, A the most senior. E is killed. Those who hold a connection to E see it close, and E's host refuses a new
        one: proof. They tell the coordinator, which is A, and the next two. A waits 5 ms for more of the kind, then proposes the list
        without E. As the most senior member it may use ballot 0 without asking for promises first.""",
        """Whoever votes freezes first: nothing completes in the old group after that, and the vote carries a report of what has.
        Three votes of five are a quorum, so the list is chosen; but INSTALL waits for the report of everybody who stays. When all
        have built the new group, all may act in it: 14 ms after the death.""",
    )
    world, members = start_job(5, page=tale.page())
    world.kill(members[4])
    agree(world, members[:4])
    world.run(0.05)
    end(world)
    assert epochs(members[:4]) == [2, 2, 2, 2]


def partition(tale: Tale) -> None:
    tale.head(
        "A partition, and its end",
        "3, 4, 6, 15, 16",
        """A and B lose touch with C, D and E. Nobody is dead, so nobody has proof; after T = 2 s without a sign of life there is
        silence. Both sides would like to go on without the other.""",
        """A voter gives its vote against somebody only T after it last acked him: so whoever was acked knows for that long that it
        has not been voted out. Three of five are a quorum and two are not: C, D and E go on. A has frozen to vote for its own
        proposal, and waits. When the links are back, it learns what was decided: A and B are out. Their processes may join
        again, as new members.""",
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


def join_during_a_crash(tale: Tale) -> None:
    tale.head(
        "A join during a crash",
        "2, 4, 9, 13",
        """J asks to be let in. The coordinator pings it and waits for a moment between two calls, at most a second, to let it in
        without disturbing anybody. Somebody dies before that moment comes: one view change does both.""",
    )
    page = tale.page("Somebody else dies", "C dies: A was about to let J in, and does both at once.")
    world, members = start_job(3, page=page)
    joiner = world.start("J", introducers=(members[0].name, members[1].name))
    world.run(0.3)
    world.kill(members[2])
    agree(world, [*members[:2], joiner])
    world.run(0.05)
    end(world)
    assert [view.ids for view in joiner.activated] == [(members[0].id, members[1].id, joiner.id)]

    page = tale.page(
        "The coordinator dies",
        "A dies: J has asked the others, too, and B, the next in seniority, has to learn first whether anything was voted for.",
    )
    world, members = start_job(3, page=page)
    joiner = world.start("J", introducers=(members[0].name, members[1].name))
    world.run(0.3)
    world.kill(members[0])
    agree(world, [*members[1:], joiner])
    world.run(0.05)
    end(world)

    page = tale.page(
        "The joiner dies once it is in",
        """J is in the chosen list, and dies before it has built its group. The view can never be active. Its members, active or not,
        vote for the next: J, who was never in touch with them, is a newcomer, and may be discounted as such.""",
    )
    world, members = start_job(3, page=page)
    joiner = world.start("J", introducers=(members[0].name,))
    world.run_until(lambda: bool(joiner.installed), 5.0)
    world.kill(joiner)
    agree(world, members)
    world.run(0.05)
    end(world)
    assert epochs(members) == [3, 3, 3]


def ten_crashes(tale: Tale) -> None:
    tale.head(
        "Ten crashes at once",
        "4, 7, 8",
        """Ten of 24 members die in the same instant, as when a rack loses power with its switch still alive. The data plane of
        everybody else fails, and everybody checks everybody. The proofs come in within milliseconds; the coordinator waits 5 ms
        after the first, so that all ten are one view change.""",
        """14 of 24 are more than half. The others are dead, and who was in touch with them discounts them; it is not needed here.""",
    )
    world, members = start_job(24, page=tale.page())
    for victim in members[5:15]:
        world.kill(victim)
    survivors = [host for host in members if host.alive]
    remark(world, "The data plane fails everywhere: whose fault it is cannot be said.")
    for host in survivors:
        world.inside(host, lambda host=host: host.fail(()))  # type: ignore[misc]
    agree(world, survivors)
    world.run(0.05)
    end(world)
    assert epochs(survivors) == [2] * 14


def majority_lost(tale: Tale) -> None:
    tale.head(
        "The majority is lost",
        "7, 8, 16",
        """Three of five die. Two are less than half, but the dead cannot vote any more. May the two go on? It depends on what the
        dead may have decided before they died.""",
    )
    page = tale.page(
        "In touch until the end: they go on",
        """A and B were in touch with all three less than T before the proof. So none of the three has voted for a list without A
        or B: it would have had to wait T after its last ack. They are discounted, and everybody else votes: kind (b) of a quorum.""",
    )
    world, members = start_job(5, page=page)
    for victim in members[2:]:
        world.kill(victim)
    agree(world, members[:2])
    world.run(0.05)
    end(world)
    assert epochs(members[:2]) == [2, 2]

    page = tale.page(
        "Out of touch before: they block",
        """This time the links were cut 2.1 s before the three died, and nobody knows what happened on the other side: C, D and E may
        have gone on without A and B, and told somebody else. A and B block, say for whom they wait, and give up after
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
    world.run_until(lambda: any(host.stopped is not None for host in members[:2]), 40.0)
    world.run(0.1)
    end(world)
    assert any(isinstance(host.stopped, QuorumLostError) for host in members[:2])


def shrink_to_one(tale: Tale) -> None:
    tale.head(
        "From four to one",
        "5, 7, 8",
        """One member after the other dies, always the most senior, which coordinates. Each change is decided by the members of the
        view before it: 3 of 4, 2 of 3, then B and C are two, and C alone is half of them without the most senior. It goes on
        all the same, since it was in touch with the dead one.""",
    )
    world, members = start_job(4, page=tale.page())
    for victim in members[:3]:
        world.kill(victim)
        agree(world, [host for host in members if host.alive])
        world.run(1.0)
    end(world)
    assert members[3].activated[-1].ids == (members[3].id,)


def _coordinator_dies(tale: Tale, heading: str, text: str, trap: tuple[str, bool], epoch: int) -> None:
    page = tale.page(heading, text)
    world, members = start_job(5, page=page)
    kind, before = trap
    world.traps.append(Trap(members[0].name, kind, 1, before=before))
    page.mute = True
    world.kill(members[4])
    world.run(0.0065)
    page.mute = False
    remark(world, "E is dead, and A has heard of it (see crash.txt).")
    _survive(world, members, epoch)


def _survive(world: World, members: list[Host], epoch: int) -> None:
    """Somebody falls into the trap; the living agree in the end."""
    world.run_until(lambda: not world.traps, 1.0)
    world.run(0.002)
    survivors = [host for host in members if host.alive]
    agree(world, survivors)
    world.run(0.05)
    end(world)
    assert epochs(survivors) == [epoch] * len(survivors)


def coordinator_crash(tale: Tale) -> None:
    tale.head(
        "The coordinator dies at each of its messages",
        "5, 7, 8, 12, 14",
        """Each page begins as crash.txt: E is killed, and A coordinates. A dies right before, or right after, the first message of a
        kind. Whatever A has begun, B finishes or replaces: it asks a quorum for promises with ballot 1, and if anybody has voted
        for A's list, B must propose that one, since A may have counted enough votes for it. A itself is removed by the same
        change or by the next.""",
    )
    _coordinator_dies(
        tale, "Before the first ACCEPT", "Nobody has voted for anything. B proposes a list without both.", ("Accept", True), 2
    )
    _coordinator_dies(
        tale,
        "After the first ACCEPT",
        """B alone has voted for A's list, as it tells itself in its promise, and so proposes it: A is still in it. The view
        is chosen and never active; the next one is without A.""",
        ("Accept", False),
        3,
    )
    _coordinator_dies(
        tale,
        "Before the first FLUSH-REQUEST",
        "A has counted its votes: the list is chosen, and the only one who knows is dead. The promises lead B to the same list.",
        ("FlushRequest", True),
        3,
    )
    _coordinator_dies(
        tale,
        "After the first FLUSH-REQUEST",
        "D alone learns that the list is chosen, and tells B, when B asks it for a promise of the same epoch.",
        ("FlushRequest", False),
        3,
    )
    _coordinator_dies(
        tale,
        "Before the first INSTALL",
        "As before: D knows the choice.",
        ("Install", True),
        3,
    )
    _coordinator_dies(
        tale,
        "After the first INSTALL",
        "B has everybody's report and builds its group, C and D do not. Nobody can be active without A's READY.",
        ("Install", False),
        3,
    )
    _coordinator_dies(
        tale,
        "Before the first ACTIVATE",
        "All have built their groups, and nobody knows it of the others.",
        ("Activate", True),
        3,
    )
    _coordinator_dies(
        tale,
        "After the first ACTIVATE",
        "B acts in epoch 2, C and D never do: that is no fork, for they act in no other view of that epoch.",
        ("Activate", False),
        3,
    )


def _somebody_dies(
    tale: Tale, heading: str, text: str, who: int, trap: tuple[str, bool], epoch: int, *, first: int = 0
) -> None:
    """Number ``first`` is killed, and number ``who`` falls into the trap."""
    world, members = start_job(5, page=tale.page(heading, text))
    kind, before = trap
    world.traps.append(Trap(members[who].name, kind, 1, before=before))
    world.kill(members[first])
    _survive(world, members, epoch)


def second_crash(tale: Tale) -> None:
    tale.head(
        "Somebody else dies in the middle of a change",
        "4, 5, 7, 8, 11, 14",
        """A is killed, and B, the next in seniority, coordinates. On each page somebody dies right before or after a message: B itself, or
        one of those who answer it. Nobody is waited for who is proven dead and was in touch until then.""",
    )
    _somebody_dies(
        tale, "B, after its first EVIDENCE... C finds it", "", 2, ("Evidence", False), 2
    )
    _somebody_dies(tale, "B dies before its first PREPARE", "", 1, ("Prepare", True), 2)
    _somebody_dies(tale, "B dies after its first PREPARE", "", 1, ("Prepare", False), 2)
    _somebody_dies(tale, "B dies before its first ACCEPT", "", 1, ("Accept", True), 2)
    _somebody_dies(tale, "B dies after its first ACCEPT", "", 1, ("Accept", False), 3)
    _somebody_dies(tale, "C dies instead of promising", "", 2, ("Promise", True), 2)
    _somebody_dies(tale, "C dies instead of voting", "", 2, ("Accepted", True), 3)
    _somebody_dies(tale, "C dies before it says READY", "", 2, ("Ready", True), 3)
    _somebody_dies(tale, "C dies after it said READY", "", 2, ("Ready", False), 3)
