"""What the words of an event do to a world. Names of processes that are not there, or dead, are passed over.

start j0 m1 m2         a new process, which joins through m1 or m2         kill m1 m2      SIGKILL
restart m1 m0 m2       killed, and started again at its address            leave m1        on its own wish
pause m1, resume m1    SIGSTOP, SIGCONT                                    stall m1 0.7    its agent does nothing so long
trap any Accept 3 before    whoever is about to send its third Accept from now on dies (``after``: has sent)
cut m0 m1              nothing from m0 reaches m1                          split m0,m1 m2  nothing between the groups
isolate m1, rejoin m1  cut off from all, and no longer                     heal            a perfect network
loss 0.3               of all messages; lossy m1 0.8: from and to m1; lossy_link m0 m1 0.8
duplication 0.1        reordering 0.1 0.5: late by up to 0.5               replay 0.1 5    again within 5 s
clog m1, unclog m1     everything held back, released in a burst           slow m1 0.3     everything later
latency heavy 0.001 0.01    how long messages take (see ``Spread``)        jump m1 0.02    its clock steps forward
hint m1 m2 m3          m1's data plane fails and blames m2 and m3          refuse m0 m1    m0's connections to m1
store_away, store_back  the shared store, for everybody or (store_away m1) for some     store_wiped    all in it is gone
store_slow 0.5         each way to it takes up to so much longer           store_deaf 0.5    changes of which nobody is told
store_lost 0.1         its answers, and what was asked may be done late    store_fails 0.1   it says so, and does nothing
store_blind 0.3        of what is read, so much cannot be opened           store_strange next    somebody writes garbage: in
                       the place of the next record, or of one ``beyond``, over the ``parent`` of the newest record, over
                       somebody's ``lease``, or as a ``stray`` lease of nobody
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ..messages import MESSAGES
from .faults import Faults, Spread
from .host import Host
from .scenario import Event, ScriptError
from .trap import Trap

if TYPE_CHECKING:
    from .world import World

__all__ = ["VERBS", "checked", "perform"]


def perform(world: World, event: Event) -> None:
    """Let ``event`` happen now. ScriptError where its words make no sense."""
    checked(event)
    VERBS[event.verb][0](world, event.words)


def checked(event: Event) -> Event:
    """``event`` itself; ScriptError where its verb is unknown or its words do not fit."""
    if event.verb not in VERBS:
        raise ScriptError(f"{event.verb!r} in {str(event)!r} is no verb: choose from {', '.join(VERBS)}")
    shape = VERBS[event.verb][1]
    wanted = shape.split()
    open_ended = bool(wanted) and wanted[-1] in ("names", "names*")
    least = len(wanted) - (wanted[-1:] == ["names*"])
    good = least <= len(event.words) <= (len(event.words) if open_ended else len(wanted))
    if not good or not all(_fits(word, kind) for word, kind in zip(event.words, wanted, strict=False)):
        raise ScriptError(f"{str(event)!r}: after {event.verb} comes {shape or 'nothing'}")
    return event


def _fits(word: str, kind: str) -> bool:
    try:
        if kind == "number":
            return 0.0 <= float(word) < float("inf")
        return int(word) > 0 if kind == "count" else kind not in _CHOICES or word in _CHOICES[kind]
    except ValueError:
        return False


_CHOICES = {
    "before|after": ("before", "after"),
    "spread": tuple(spread.value for spread in Spread),
    "where": ("next", "beyond", "parent", "lease", "stray"),
    "message": ("any", *(kind.__name__ for kind in MESSAGES)),
}

Words = tuple[str, ...]


def _there(world: World, *names: str) -> list[Host]:
    """The living processes with these names that were not told to stop."""
    found = [world.find(name) for name in names]
    return [host for host in found if host is not None and host.alive and host.stopped is None]


def _known(world: World, names: Words) -> tuple[str, ...]:
    return tuple(name for name in names if world.find(name) is not None)


def _start(world: World, words: Words) -> None:
    introducers = _known(world, words[1:])
    if introducers and world.find(words[0]) is None:
        world.start(words[0], introducers=introducers)


def _restart(world: World, words: Words) -> None:
    old = world.find(words[0])
    introducers = tuple(name for name in _known(world, words[1:]) if name != words[0])
    if old is None or not introducers:
        return
    if old.alive:
        world.kill(old)
    world.start(old.name, introducers=introducers, port=old.machine.member.port)


def _kill(world: World, words: Words) -> None:
    for host in _there(world, *words):
        world.kill(host)


def _pause(world: World, words: Words) -> None:
    for host in _there(world, *words):
        if not host.paused:
            world.pause(host)


def _resume(world: World, words: Words) -> None:
    for host in _there(world, *words):
        if host.paused:
            world.resume(host)


def _stall(world: World, words: Words) -> None:
    for host in _there(world, words[0]):
        world.stall(host, float(words[1]))


def _leave(world: World, words: Words) -> None:
    for host in _there(world, *words):
        world.inside(host, host.leave)


def _trap(world: World, words: Words) -> None:
    world.traps.append(Trap(words[0], words[1], int(words[2]), before=words[3] == "before"))


def _cut(world: World, words: Words) -> None:
    one, other = words
    ends = _there(world, one, other)
    if len(ends) == 2:
        world.faults.cut.add((ends[0].id, ends[1].id))


def _split(world: World, words: Words) -> None:
    world.faults.cut_groups([[host.id for host in _there(world, *group.split(","))] for group in words])


def _isolate(world: World, words: Words) -> None:
    for host in _there(world, *words):
        world.isolate([host], [other for other in world.at_address.values() if other is not host])


def _rejoin(world: World, words: Words) -> None:
    for host in _there(world, *words):
        for link in [link for link in world.faults.cut if host.id in link]:
            world.faults.cut.discard(link)


def _heal(world: World, words: Words) -> None:  # noqa: ARG001 - all verbs look alike
    world.heal()


def _loss(world: World, words: Words) -> None:
    world.faults.loss = float(words[0])


def _lossy(world: World, words: Words) -> None:
    for host in _there(world, words[0]):
        world.faults.lossy[host.id] = float(words[1])


def _lossy_link(world: World, words: Words) -> None:
    ends = _there(world, words[0], words[1])
    if len(ends) == 2:
        world.faults.lossy_links[ends[0].id, ends[1].id] = float(words[2])


def _duplication(world: World, words: Words) -> None:
    world.faults.duplication = float(words[0])


def _reordering(world: World, words: Words) -> None:
    world.faults.reordering, world.faults.late = float(words[0]), float(words[1])


def _replay(world: World, words: Words) -> None:
    world.faults.replay, world.faults.replay_late = float(words[0]), float(words[1])


def _clog(world: World, words: Words) -> None:
    for host in _there(world, *words):
        world.clog(host)


def _unclog(world: World, words: Words) -> None:
    for host in _there(world, *words):
        world.unclog(host)


def _slow(world: World, words: Words) -> None:
    for host in _there(world, words[0]):
        world.faults.slow[host.id] = float(words[1])


def _latency(world: World, words: Words) -> None:
    world.delay(Faults(spread=Spread(words[0]), latency=(float(words[1]), float(words[2]))))


def _jump(world: World, words: Words) -> None:
    for host in _there(world, words[0]):
        world.jump(host, float(words[1]))


def _hint(world: World, words: Words) -> None:
    for host in _there(world, words[0]):
        suspects = tuple(other.id for other in _there(world, *words[1:]))
        world.inside(host, partial(host.fail, suspects))


def _store_away(world: World, words: Words) -> None:
    if not words:
        world.faults.store.away = True
    world.faults.store.cut |= {host.id for host in _there(world, *words)}


def _store_back(world: World, words: Words) -> None:
    if not words:
        world.faults.store.away = False
        world.faults.store.cut.clear()
    world.faults.store.cut -= {host.id for host in _there(world, *words)}


def _store_slow(world: World, words: Words) -> None:
    world.faults.store.slow = float(words[0])


def _store_lost(world: World, words: Words) -> None:
    world.faults.store.lost = float(words[0])


def _store_fails(world: World, words: Words) -> None:
    world.faults.store.fails = float(words[0])


def _store_deaf(world: World, words: Words) -> None:
    world.faults.store.deaf = float(words[0])


def _store_blind(world: World, words: Words) -> None:
    world.faults.store.blind = float(words[0])


def _store_strange(world: World, words: Words) -> None:
    if world.errands is not None:
        world.errands.strange(words[0])


def _store_wiped(world: World, words: Words) -> None:  # noqa: ARG001 - all verbs look alike
    if world.errands is not None:
        world.errands.wipe()


def _refuse(world: World, words: Words) -> None:
    ends = _there(world, words[0], words[1])
    if len(ends) == 2:
        world.faults.refused.add((ends[0].id, ends[1].id))


VERBS: dict[str, tuple[Callable[[World, Words], None], str]] = {
    "start": (_start, "name names"),
    "restart": (_restart, "name names"),
    "kill": (_kill, "names"),
    "pause": (_pause, "names"),
    "resume": (_resume, "names"),
    "stall": (_stall, "name number"),
    "leave": (_leave, "names"),
    "trap": (_trap, "name message count before|after"),
    "cut": (_cut, "name name"),
    "split": (_split, "names"),
    "isolate": (_isolate, "names"),
    "rejoin": (_rejoin, "names"),
    "heal": (_heal, ""),
    "loss": (_loss, "number"),
    "lossy": (_lossy, "name number"),
    "lossy_link": (_lossy_link, "name name number"),
    "duplication": (_duplication, "number"),
    "reordering": (_reordering, "number number"),
    "replay": (_replay, "number number"),
    "clog": (_clog, "names"),
    "unclog": (_unclog, "names"),
    "slow": (_slow, "name number"),
    "latency": (_latency, "spread number number"),
    "jump": (_jump, "name number"),
    "hint": (_hint, "name names*"),
    "refuse": (_refuse, "name name"),
    "store_away": (_store_away, "names*"),
    "store_back": (_store_back, "names*"),
    "store_slow": (_store_slow, "number"),
    "store_lost": (_store_lost, "number"),
    "store_fails": (_store_fails, "number"),
    "store_deaf": (_store_deaf, "number"),
    "store_blind": (_store_blind, "number"),
    "store_strange": (_store_strange, "where"),
    "store_wiped": (_store_wiped, ""),
}
"""What each does, and the shape of its words (``names``: one or more; ``names*``: or none)."""
