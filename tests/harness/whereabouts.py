"""Which part of a call a worker is in, noted in a file that it has mapped into memory: to be read when it has been killed."""

from __future__ import annotations

import enum
import functools
import mmap
import os
from pathlib import Path
from typing import Any, NamedTuple

from ftlib import FTLib
from ftlib.core.calls.call import Call
from ftlib.core.calls.device_attempt import DeviceAttempt
from ftlib.core.plane.failures import Failures
from ftlib.core.plane.plane import Plane
from ftlib.frameworks.accelerators.group import HybridGroup
from ftlib.frameworks.gloo_group import GlooGroup
from ftlib.frameworks.isolated.group import IsolatedGroup

from .moments import wrapped
from .worker import Lines


class Part(enum.IntEnum):
    """Of a worker's step."""

    STARTING = 0
    """Not yet in a call."""
    OUTSIDE = 1
    """In the program's own code."""
    BEFORE = 2
    """In a call whose bulk has not begun here."""
    BULK = 3
    ACCELERATED = 4
    """The bulk, by an accelerator."""
    AFTER = 5
    """The bulk has ended here, the call has not returned."""
    RECOVERING = 6
    """An operation has failed here, and the call is not done again yet."""


class Whereabouts:
    """A worker's habit (see ``Task.habit``). With an accelerator the head, a Gloo operation without data, is not the bulk."""

    def __init__(self, _ft: FTLib, _lines: Lines, directory: str, framework: str) -> None:
        with (Path(directory) / f"{os.getpid()}.part").open("w+b") as file:
            file.truncate(2)
            self._map = mmap.mmap(file.fileno(), 2)
        points: list[tuple[Any, str, Part, bool]] = [
            (Plane, "enter", Part.BEFORE, True),
            (Plane, "begin", Part.BEFORE, True),
            (DeviceAttempt, "_launch", Part.BULK, True),
            (HybridGroup, "submit_bulk", Part.ACCELERATED, True),
            (Plane, "finish", Part.AFTER, True),
            (Call, "deliver", Part.OUTSIDE, False),
            (Failures, "report", Part.RECOVERING, True),
        ]
        if not framework.endswith("rehearsal"):
            points += [(GlooGroup, "submit", Part.BULK, True), (IsolatedGroup, "submit", Part.BULK, True)]
        for owner, name, part, before in points:
            note = functools.partial(self._note, part)
            setattr(owner, name, wrapped(getattr(owner, name), note, before=before))

    def __call__(self) -> None:
        """Before a call: nothing."""

    def _note(self, part: Part, *_: Any, **__: Any) -> None:
        self._map[0] = part
        if part in (Part.BULK, Part.ACCELERATED):
            self._map[1] = part is Part.ACCELERATED


class Place(NamedTuple):
    """What is known of a worker."""

    part: Part
    accelerated: bool
    """An accelerator has carried, or carries, the bulk of its newest call."""


def whereabouts(directory: Path, pid: int) -> Place:
    """Of a worker, also of one that has been killed."""
    try:
        part, accelerated = (directory / f"{pid}.part").read_bytes()
    except (FileNotFoundError, ValueError):
        return Place(Part.STARTING, accelerated=False)
    return Place(Part(part), bool(accelerated))
