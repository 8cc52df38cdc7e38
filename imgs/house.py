"""Draws ``house.svg``: the rooms of both packages in layers, from the imports that the code has.

A layer is computed: a room stands one above the highest room that it imports. What a room is for is written here.
ValueError where the code has a room that is not written here, or one that is written here is gone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path

from canvas import AMBER, BLUE, INK, PALE, QUIET, Canvas, width_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the imports are those of this copy

import grimp

ROOT = Path(__file__).resolve().parents[1]
FTLIB = {
    "cli": ("cli", "the command ftlib"),
    "dashboard": ("dashboard", "a running job, in a browser"),
    "train": ("train", "wrappers of a program's model and optimizer"),
    "collective": ("collective", "ordered messages and queues between members"),
    "links": ("links", "streams of messages between two"),
    "torchft": ("torchft", "torchft's interface on top of ftlib"),
    "integrations": ("integrations", "Lightning, accelerate, transformers"),
    "launch": ("launch", "ftlib run: starts and restarts workers"),
    "ftlib": ("FTLib", "what a program calls"),
    "lifecycle": ("lifecycle", "a worker's lifetimes: meet the job, leave, rejoin"),
    "checkpoints": ("checkpoints", "the state on disk, and back"),
    "recovery": ("recovery", "a joiner gets the state beside the training"),
    "core": ("core", "the data plane: calls, and what a failure does to them"),
    "state": ("state", "what the program registered"),
    "frameworks": ("frameworks", "process groups: Gloo"),
    "data": ("data", "who takes which samples"),
    "settings": ("settings", "read and checked once"),
    "status": ("status", "what a call returns"),
    "errors": ("errors", "all that is raised"),
    "common": ("common", "threads, logs, units"),
}
"""Room -> (title, what it is for)."""
CONSENSUS = {
    "consensus": ("consensus", "its door: what ftlib may use"),
    "membership": ("membership", "one member: Gossip, SharedStorage"),
    "tools": ("tools", "ask a running member"),
    "runtime": ("runtime", "the agent, its place, its sockets"),
    "simulation": ("simulation", "the protocol in virtual time"),
    "storage": ("storage", "records and leases in a shared store"),
    "wire": ("wire", "bytes, seals, proofs"),
    "protocol": ("protocol", "who is in: no socket, clock or thread"),
    "messages": ("messages", "what members and stores are told"),
    "values": ("values", "what all of it speaks of"),
}
TOGETHER = {
    "ftlib": {
        "ftlib.ftlib": "ftlib",
        "ftlib.training": "ftlib",
        "ftlib.consensus": "ftlib",
        "ftlib.accelerate": "integrations",
        "ftlib.lightning": "integrations",
        "ftlib.transformers": "integrations",
    },
    "consensus": {
        "consensus.backends": "membership",
        "consensus.store_requests": "messages",
        **{
            f"consensus.{name}": "values"
            for name in ("border", "config", "errors", "interface", "logs", "member", "progress", "transitions", "view")
        },
    },
}
"""Single modules that are drawn with others."""
TOP, GAP, SIDE = 118, 24, 20
COLUMNS = {"ftlib": (20.0, 510.0), "consensus": (590.0, 490.0)}
"""Left edge and width."""
COLOURS = {"ftlib": BLUE, "consensus": AMBER}
LINE = 16
"""Pixels of a line of text."""


@dataclass(frozen=True)
class Room:
    """``uses``: rooms of the same package that it imports; ``floors``: folders in it, each importing those behind it only."""

    name: str
    title: str
    purpose: str
    uses: frozenset[str]
    floors: Sequence[str]


def picture() -> str:
    """The SVG."""
    graph = grimp.build_graph("consensus", "ftlib", cache_dir=None)
    houses = {package: _layers(graph, package, told) for package, told in (("ftlib", FTLIB), ("consensus", CONSENSUS))}
    heights = {package: _tall(package, layers) for package, layers in houses.items()}
    bottom = max(TOP + sum(tall) + GAP * (len(tall) - 1) for tall in heights.values())
    c = Canvas(
        1100,
        round(bottom + 64),
        "The house: its rooms, and who imports whom",
        "drawn from the imports of the code; every arrow leads down, and a test refuses any other",
    )
    tops = {package: bottom - sum(tall) - GAP * (len(tall) - 1) for package, tall in heights.items()}
    for package, layers in houses.items():
        _house(c, package, layers, heights[package], tops[package])
    _between(c, graph, tops)
    c.text(24, bottom + 40, "An arrow: imports of the layer below. Rooms further down are named in the box; the lowest layer is used by all.", colour=QUIET, anchor="start")  # fmt: skip
    return c.svg()


def _room(module: str) -> tuple[str, str]:
    """(package, room) of a module."""
    package, _, rest = module.partition(".")
    first = rest.partition(".")[0]
    return package, TOGETHER[package].get(f"{package}.{first}", first or package)


def _layers(graph: grimp.ImportGraph, package: str, told: Mapping[str, tuple[str, str]]) -> list[list[Room]]:
    """The rooms of a package, the highest layer first."""
    uses: dict[str, set[str]] = {}
    floors: dict[str, dict[str, set[str]]] = {}
    for module in sorted(graph.modules):
        home, room = _room(module)
        if home != package:
            continue
        uses.setdefault(room, set())
        floor = _floor(module)
        if floor:
            floors.setdefault(room, {}).setdefault(floor, set())
        for other in () if module == "ftlib" else graph.find_modules_directly_imported_by(module):  # its door has all names
            if _room(other) == (home, room):
                if floor and _floor(other) not in ("", floor):
                    floors[room][floor].add(_floor(other))
            elif _room(other)[0] == package:
                uses[room].add(_room(other)[1])
    if uses.keys() != told.keys():
        raise ValueError(f"rooms of {package} that are drawn or there, and not both: {sorted(uses.keys() ^ told.keys())}")
    height = _heights(uses)
    order = list(told)
    found: list[list[Room]] = [[] for _ in range(max(height.values()) + 1)]
    for room in sorted(uses, key=order.index):
        title, purpose = told[room]
        found[-1 - height[room]].append(Room(room, title, purpose, frozenset(uses[room]), _down(floors.get(room, {}))))
    return found


def _floor(module: str) -> str:
    """The folder within a room that a module is in, where there are such."""
    parts = module.split(".")
    return parts[2] if len(parts) > 2 and (ROOT / Path(*parts[:3])).is_dir() else ""


def _down(floors: Mapping[str, set[str]]) -> list[str]:
    """The folders, those that import others first, else in the order of the alphabet."""
    height = _heights(floors)
    return sorted(floors, key=lambda name: (-height[name], name))


def _heights(uses: Mapping[str, set[str]]) -> dict[str, int]:
    """One more than the highest that each imports; 0 where it imports nothing of these."""
    height: dict[str, int] = {}
    for name in TopologicalSorter(uses).static_order():  # CycleError names those of a circle
        height[name] = 1 + max((height[other] for other in uses[name]), default=-1)
    return height


def _tall(package: str, layers: Sequence[Sequence[Room]]) -> list[float]:
    """Pixels that each layer takes."""
    most = []
    for number, layer in enumerate(layers):
        wide = _wide(package, layer) - 12
        lines = max(len(_lines(room, wide, layers, number)) for room in layer)
        most.append(28.0 + LINE * lines)
    return most


def _wide(package: str, layer: Sequence[Room]) -> float:
    return (COLUMNS[package][1] - 12 * (len(layer) - 1)) / len(layer)


def _lines(room: Room, wide: float, layers: Sequence[Sequence[Room]], number: int) -> list[tuple[str, str]]:
    """(words, colour) below the title."""
    lines = [(words, QUIET) for words in _wrapped(room.purpose.split(" "), " ", wide)]
    if len(room.floors) > 1:
        lines += [(words, INK) for words in _wrapped(room.floors, " · ", wide)]
    near = {other.name for layer in (*layers[number + 1 : number + 2], layers[-1]) for other in layer}
    far = [other.title for layer in layers for other in layer if other.name in room.uses - near]
    if far:
        lines += [(words, QUIET) for words in _wrapped(["also", *(", ".join(far).split(" "))], " ", wide)]
    return lines


def _wrapped(words: Iterable[str], between: str, wide: float) -> list[str]:
    lines = [""]
    for word in words:
        longer = f"{lines[-1]}{between}{word}" if lines[-1] else word
        if lines[-1] and width_of(longer, 12) > wide:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def _list(names: Iterable[str]) -> list[str]:
    """With commas between them."""
    return ", ".join(names).split(" ")


def _house(c: Canvas, package: str, layers: Sequence[Sequence[Room]], tall: Sequence[float], top: float) -> None:
    left, colour = COLUMNS[package][0], COLOURS[package]
    c.text(left, top - 12, f"{package}/", size=14, bold=True, anchor="start", mono=True)
    boxes: dict[str, tuple[float, float, float, float]] = {}
    for number, layer in enumerate(layers):
        wide = _wide(package, layer)
        for place, room in enumerate(layer):
            x = left + place * (wide + 12)
            boxes[room.name] = (x, top, x + wide, top + tall[number])
            c.rect(x, top, wide, tall[number], fill=PALE[colour], stroke=colour)
            lines = _lines(room, wide - 12, layers, number)
            middle, at = x + wide / 2, top + (tall[number] - LINE * len(lines) - 18) / 2 + 14
            c.text(middle, at, room.title, size=14, bold=True, room=wide - 12)
            for line, (words, ink) in enumerate(lines, start=1):
                c.text(middle, at + LINE * line, words, size=12, colour=ink, room=wide - 12)
        top += tall[number] + GAP
    for upper, lower in pairwise(layers):
        for room in upper:
            for other in lower:
                if other.name in room.uses:
                    _arrow(c, boxes[room.name], boxes[other.name])


def _arrow(c: Canvas, upper: tuple[float, float, float, float], lower: tuple[float, float, float, float]) -> None:
    """From box to box: straight down where one is above the other."""
    left, right = max(upper[0], lower[0]), min(upper[2], lower[2])
    if left < right:
        ends = ((left + right) / 2,) * 2
    else:
        ends = (upper[2] - SIDE, lower[0] + SIDE) if upper[2] <= lower[0] else (upper[0] + SIDE, lower[2] - SIDE)
    c.arrow([(ends[0], upper[3]), (ends[1], lower[1] - 1)], head=7)


def _between(c: Canvas, graph: grimp.ImportGraph, tops: Mapping[str, float]) -> None:
    """What of ``consensus`` the rooms of ``ftlib`` use, and how."""
    door: set[str] = set()
    besides: dict[str, set[str]] = {}
    for module in graph.modules:
        home, room = _room(module)
        for other in graph.find_modules_directly_imported_by(module):
            package, _, rest = other.partition(".")
            if home == "consensus" and package == "ftlib":
                raise ValueError(f"{module} imports {other}: consensus knows nothing of ftlib")
            if home == "ftlib" and package == "consensus":
                if rest:
                    besides.setdefault(room, set()).add(rest.partition(".")[0])
                else:
                    door.add(room)
    order = list(FTLIB)
    left, width = COLUMNS["consensus"]
    rows = [["used", "through", "its", "door", "by", *_list(FTLIB[room][0] for room in sorted(door, key=order.index))]]
    rows += [[FTLIB[room][0], "uses", *_list(sorted(besides[room])), "as", "well"] for room in sorted(besides, key=order.index)]
    y = TOP - 12.0
    for row in rows:
        for words in _wrapped(row, " ", width):
            c.text(left, y, words, size=12, anchor="start", colour=QUIET)
            y += LINE
    if y > tops["consensus"] - 24:
        raise ValueError("what ftlib uses of consensus takes more lines than there are above it")
    edge = COLUMNS["ftlib"][0] + COLUMNS["ftlib"][1]
    level = tops["consensus"] + 20
    c.arrow([(edge, level), (left - 1, level)], colour=AMBER, line=2.6, head=11)


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(picture(), encoding="utf-8")
