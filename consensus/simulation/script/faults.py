"""The table of faults: all that a random history may contain, how often each is drawn, and by what (see ``draws``).

What the drawn events do to a world, and what undoes them, is the table of ``commands``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from . import draws


class Part(Enum):
    """To what a fault happens."""

    PROCESS = "processes"
    NETWORK = "messages"
    CLOCK = "clocks, all within what the protocol is promised"
    MEMBERSHIP = "who comes, who goes, and false alarms"
    STORE = "the store that all share, in histories that have one"


@dataclass(frozen=True)
class Fault:
    """A row of the table. ``weight``: how often it is drawn, compared to the others; of a clock 0 or 1, whether it is."""

    name: str
    part: Part
    weight: float
    text: str
    draw: draws.Draw | None = None
    """Adds its events; None: it is no event, but true for a whole history."""


FAULTS: tuple[Fault, ...] = (
    Fault("crash", Part.PROCESS, 3.0, "SIGKILL of one to three", draws.crash),
    Fault(
        "restart",
        Part.PROCESS,
        1.0,
        "killed, and started at the same address: old packets reach the next lifetime",
        draws.restart,
    ),
    Fault(
        "pause",
        Part.PROCESS,
        2.0,
        "SIGSTOP, shorter or longer than suspicion; sometimes never continued before the network heals",
        draws.undone("pause", 0.8, [0.02, 0.3, 1.0, 1.9, 2.2, 4.0], most=[1, 1, 2, 3]),
    ),
    Fault(
        "stall",
        Part.PROCESS,
        1.0,
        "the agent handles nothing for a while, though the process lives",
        draws.of_one("stall", [0.01, 0.1, 0.5, 1.5, 2.5]),
    ),
    Fault(
        "trap",
        Part.PROCESS,
        2.0,
        "a member, mostly the coordinator, dies right before or after its k-th message of some kind",
        draws.trap,
    ),
    Fault("majority", Part.PROCESS, 0.5, "more than half are killed at once", draws.majority),
    Fault("survivor", Part.PROCESS, 0.5, "all but one are killed at once", draws.survivor),
    Fault("one_way", Part.NETWORK, 1.0, "a few links lose everything in one direction", draws.pairs("cut", 3)),
    Fault(
        "isolate",
        Part.NETWORK,
        1.0,
        "one member is cut off from all others",
        draws.undone("isolate", 0.5, [0.1, 1.0, 1.9, 2.2, 4.0]),
    ),
    Fault("halves", Part.NETWORK, 1.0, "two groups", draws.sides(2)),
    Fault("three_way", Part.NETWORK, 0.5, "three groups", draws.sides(3)),
    Fault("bridge", Part.NETWORK, 0.5, "two groups that only one member can reach both of", draws.sides(2, left_out=1)),
    Fault("loss", Part.NETWORK, 1.0, "up to 0.3 everywhere, or up to 0.8 at a few members or on a few links", draws.loss),
    Fault("duplication", Part.NETWORK, 0.5, "messages arrive twice", draws.sets("duplication", [0.1, 0.5])),
    Fault(
        "reordering",
        Part.NETWORK,
        0.5,
        "some messages are late",
        draws.sets("reordering", [0.1, 0.3], [0.02, 0.2, 1.0, 3.0]),
    ),
    Fault(
        "clog",
        Part.NETWORK,
        1.0,
        "some member's links hold everything back, and release it in a burst",
        draws.undone("clog", 0.8, [0.05, 0.5, 1.9, 3.0]),
    ),
    Fault(
        "slow",
        Part.NETWORK,
        0.5,
        "everything from and to some member is late",
        draws.of_one("slow", [0.01, 0.05, 0.2, 0.6]),
    ),
    Fault("latency", Part.NETWORK, 0.5, "another distribution of latencies: wide areas, long tails", draws.latency),
    Fault("flap", Part.NETWORK, 0.5, "somebody comes and goes, with a period from 0.2 to 20 s", draws.flap),
    Fault(
        "replay",
        Part.NETWORK,
        0.5,
        "old packets arrive again, at later lifetimes and in later views, too",
        draws.sets("replay", [0.02, 0.1, 0.3], [1.0, 5.0, 10.0]),
    ),
    Fault("heal", Part.NETWORK, 3.0, "no fault: the network is perfect again, until the next one", draws.sets("heal")),
    Fault("skew", Part.CLOCK, 1.0, "clocks show different times"),
    Fault("drift", Part.CLOCK, 1.0, "clocks run at different rates"),
    Fault("jump", Part.CLOCK, 0.5, "a clock steps forward by what the drift leaves over", draws.jump),
    Fault("join", Part.MEMBERSHIP, 2.0, "one to four at once, through several members", draws.join),
    Fault("join_and_crash", Part.MEMBERSHIP, 1.0, "a joiner dies on the way in", draws.join_and_crash),
    Fault("leave", Part.MEMBERSHIP, 1.0, "one to three leave", draws.leave),
    Fault("reset", Part.MEMBERSHIP, 1.0, "data planes fail and blame healthy neighbours, one after the other", draws.reset),
    Fault(
        "refuse",
        Part.MEMBERSHIP,
        0.5,
        "a firewall refuses the connections of living members; trust_refused is off in histories that contain it",
        draws.refuse,
    ),
    Fault("store_away", Part.STORE, 2.0, "nobody reaches it for a while, or one or two do not", draws.store_away),
    Fault("store_slow", Part.STORE, 1.0, "each way to it takes longer", draws.store_slow),
    Fault(
        "store_lost",
        Part.STORE,
        1.5,
        "answers are lost: what was asked for is done at once, late, or never",
        draws.store_doubt("store_lost", [0.05, 0.2, 0.5]),
    ),
    Fault("store_fails", Part.STORE, 1.0, "it does nothing, and says so", draws.store_doubt("store_fails", [0.05, 0.3, 0.8])),
    Fault("store_deaf", Part.STORE, 0.5, "nobody is told of changes", draws.sets("store_deaf", [0.3, 1.0])),
    Fault(
        "store_blind",
        Part.STORE,
        1.0,
        "some of what is read cannot be opened, as if its writer had another secret",
        draws.store_doubt("store_blind", [0.1, 0.5, 1.0]),
    ),
    Fault(
        "store_strange",
        Part.STORE,
        1.5,
        "somebody without a secret writes garbage: over leases and old records, and where the next ones belong",
        draws.store_strange,
    ),
    Fault(
        "store_race",
        Part.STORE,
        1.5,
        "a death is a reason to create a record; those who may do so sleep on the way, one after the other",
        draws.store_race,
    ),
)
"""Wiped the store is by scripts alone. The order counts: the same seed draws the same history only as long as it stays."""
