"""The table of commands: what the events of a script do to a world, and which command undoes that.

Names of processes that are not there, or dead, are passed over. ``heal`` undoes all that is wrong with network and store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ...messages import MESSAGES
from ..world.faults import Failpoint, Faults, Spread
from ..world.host import Host
from ..world.world import World
from .scenario import Event, ScriptError

Words = tuple[str, ...]
Apply = Callable[[World, Words], None]


def perform(world: World, event: Event) -> None:
    """Let ``event`` happen now. ScriptError where its words make no sense."""
    checked(event)
    COMMANDS[event.command].apply(world, event.words)


def checked(event: Event) -> Event:
    """``event`` itself; ScriptError where its command is unknown or its words do not fit."""
    if event.command not in COMMANDS:
        raise ScriptError(f"{event.command!r} in {str(event)!r} is no command: choose from {', '.join(COMMANDS)}")
    shape = COMMANDS[event.command].shape
    wanted = shape.split()
    open_ended = bool(wanted) and wanted[-1] in ("names", "names*")
    least = len(wanted) - (wanted[-1:] == ["names*"])
    good = least <= len(event.words) <= (len(event.words) if open_ended else len(wanted))
    if not good or not all(_fits(word, kind) for word, kind in zip(event.words, wanted, strict=False)):
        raise ScriptError(f"{str(event)!r}: after {event.command} comes {shape or 'nothing'}")
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


def _there(world: World, *names: str) -> list[Host]:
    """The living processes with these names that were not told to stop."""
    found = [world.find(name) for name in names]
    return [host for host in found if host is not None and host.alive and host.stopped is None]


def _known(world: World, names: Words) -> tuple[str, ...]:
    return tuple(name for name in names if world.find(name) is not None)


# Commands that look alike


def _each(act: Callable[[World, Host], None]) -> Apply:
    """``act`` on each process that is named."""

    def apply(world: World, words: Words) -> None:
        for host in _there(world, *words):
            act(world, host)

    return apply


def _first(act: Callable[[World, Host, float], None]) -> Apply:
    """``act`` on the process that is named, with a number."""

    def apply(world: World, words: Words) -> None:
        for host in _there(world, words[0]):
            act(world, host, float(words[1]))

    return apply


def _link(act: Callable[[Faults, tuple[str, str], Words], None]) -> Apply:
    """``act`` on the link between two processes, with the words after them."""

    def apply(world: World, words: Words) -> None:
        ends = _there(world, words[0], words[1])
        if len(ends) == 2:
            act(world.faults, (ends[0].id, ends[1].id), words[2:])

    return apply


def _sets(*names: str) -> Apply:
    """Attributes of the network's faults."""

    def apply(world: World, words: Words) -> None:
        for name, word in zip(names, words, strict=True):
            setattr(world.faults, name, float(word))

    return apply


def _sets_store(name: str) -> Apply:
    """An attribute of the store's faults."""
    return lambda world, words: setattr(world.faults.store, name, float(words[0]))


# The others


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


def _pause(world: World, host: Host) -> None:
    if not host.paused:
        world.pause(host)


def _resume(world: World, host: Host) -> None:
    if host.paused:
        world.resume(host)


def _trap(world: World, words: Words) -> None:
    world.failpoints.append(Failpoint(words[0], words[1], int(words[2]), before=words[3] == "before"))


def _split(world: World, words: Words) -> None:
    world.faults.cut_groups([[host.id for host in _there(world, *group.split(","))] for group in words])


def _isolate(world: World, host: Host) -> None:
    world.isolate([host], [other for other in world.at_address.values() if other is not host])


def _rejoin(world: World, host: Host) -> None:
    world.faults.cut -= {link for link in world.faults.cut if host.id in link}


def _latency(world: World, words: Words) -> None:
    world.delay(Faults(spread=Spread(words[0]), latency=(float(words[1]), float(words[2]))))


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


def _store_strange(world: World, words: Words) -> None:
    if world.store_requests is not None:
        world.store_requests.strange(words[0])


def _store_wiped(world: World) -> None:
    if world.store_requests is not None:
        world.store_requests.wipe()


@dataclass(frozen=True)
class Command:
    """A row of the table. ``shape``: the words after the name (``names``: one or more; ``names*``: or none)."""

    name: str
    shape: str
    apply: Apply
    text: str
    undo: str = "heal"
    """What undoes it: another command, or the same one with 0; "": nothing does."""


COMMANDS: dict[str, Command] = {
    command.name: command
    for command in (
        Command("start", "name names", _start, "a new process, which joins through the others that are named", ""),
        Command("restart", "name names", _restart, "killed, and started again at its address", ""),
        Command("kill", "names", _each(World.kill), "SIGKILL", "restart"),
        Command("bereave", "names", _each(World.bereave), "its program is killed, and its agent tells the others", "restart"),
        Command("leave", "names", _each(lambda world, host: world.inside(host, host.leave)), "leaves on its own wish", ""),
        Command("pause", "names", _each(_pause), "SIGSTOP", "resume"),
        Command("resume", "names", _each(_resume), "SIGCONT", ""),
        Command("stall", "name number", _first(World.stall), "its agent does nothing for so many seconds", ""),
        Command(
            "trap",
            "name message count before|after",
            _trap,
            "dies right before (or after) it sends its count-th message of that kind; any: whoever sends it",
        ),
        Command("hint", "name names*", _hint, "the first one's data plane fails and blames the others", ""),
        Command("jump", "name number", _first(World.jump), "its clock steps forward", ""),
        Command("cut", "name name", _link(lambda faults, link, _: faults.cut.add(link)), "nothing from one to the other"),
        Command("split", "names", _split, "nothing between the groups: m0,m1 m2"),
        Command("isolate", "names", _each(_isolate), "cut off from all", "rejoin"),
        Command("rejoin", "names", _each(_rejoin), "no longer cut off", ""),
        Command("heal", "", lambda world, _: world.heal(), "a perfect network and store", ""),
        Command("loss", "number", _sets("loss"), "so much of all messages is lost"),
        Command(
            "lossy",
            "name number",
            _first(lambda world, host, share: world.faults.lossy.update({host.id: share})),
            "so much from and to it is lost",
        ),
        Command(
            "lossy_link",
            "name name number",
            _link(lambda faults, link, words: faults.lossy_links.update({link: float(words[0])})),
            "so much from one to the other is lost",
        ),
        Command("duplication", "number", _sets("duplication"), "so many messages arrive twice"),
        Command("reordering", "number number", _sets("reordering", "late"), "so many are late, by up to so many seconds"),
        Command("replay", "number number", _sets("replay", "replay_late"), "so many arrive again, within so many seconds"),
        Command("clog", "names", _each(World.clog), "everything from and to it is held back", "unclog"),
        Command("unclog", "names", _each(World.unclog), "what was held back arrives in a burst", ""),
        Command(
            "slow",
            "name number",
            _first(lambda world, host, seconds: world.faults.slow.update({host.id: seconds})),
            "everything from and to it is later by so much",
        ),
        Command("latency", "spread number number", _latency, "how long messages take (see ``Spread``)"),
        Command(
            "refuse",
            "name name",
            _link(lambda faults, link, _: faults.refused.add(link)),
            "a firewall refuses the connections of one to the other",
        ),
        Command("store_away", "names*", _store_away, "the store is out of reach, for these or for all", "store_back"),
        Command("store_back", "names*", _store_back, "no longer", ""),
        Command("store_slow", "number", _sets_store("slow"), "each way to it takes up to so much longer", "store_slow"),
        Command("store_lost", "number", _sets_store("lost"), "answers are lost, what was asked may be done late", "store_lost"),
        Command("store_fails", "number", _sets_store("fails"), "it says so, and does nothing", "store_fails"),
        Command("store_deaf", "number", _sets_store("deaf"), "changes of which nobody is told", "store_deaf"),
        Command("store_blind", "number", _sets_store("blind"), "of what is read, so much cannot be opened", "store_blind"),
        Command(
            "store_strange",
            "where",
            _store_strange,
            "somebody writes garbage: in the place of the next record, or of one ``beyond``, over the ``parent`` of the newest "
            "record, over somebody's ``lease``, or as a ``stray`` lease of nobody",
        ),
        Command("store_wiped", "", lambda world, _: _store_wiped(world), "all in it is gone", ""),
    )
}
