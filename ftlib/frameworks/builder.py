"""Which groups a framework is building: the one that was asked for, the one that is prepared, and what was given up.

Frameworks differ in what a build is (``Build``); the rules are the same for all. One build of a view: where a build was dropped
whose address others may know, no second one for that view can meet them.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable

from ftlib.errors import GroupError
from ftlib.frameworks.base import Group, GroupSpec

_REMEMBERED = 64
"""Views whose group was dropped that are remembered."""


class Build(ABC):
    """One attempt to build a group, beside everything else, that can be given up whatever it waits for."""

    spec: GroupSpec
    told: bool
    """Whether others may know its address: then no other can be built for that view."""

    @property
    @abstractmethod
    def failed(self) -> bool:
        """Whether it has ended without a group."""

    @abstractmethod
    def start(self) -> None:
        """Begin to build, and return at once. Once."""

    @abstractmethod
    def wait(self) -> Group:
        """Wait for the group. GroupError if there will be none."""

    @abstractmethod
    def give_up(self, why: str) -> None:
        """End ``wait`` with a GroupError now, unless there is a group already. Idempotent."""

    @abstractmethod
    def drop(self) -> None:
        """After ``give_up``: close the group, if it was built before that."""


class GroupBuilder:
    """The builds of one framework. Any thread."""

    def __init__(self, make: Callable[[GroupSpec], Build], prepares: Callable[[GroupSpec], bool]) -> None:
        """``make``: a build, not started yet. ``prepares``: whether there is room for a group that nobody uses yet."""
        self._make = make
        self._prepares = prepares
        self._turn = threading.Lock()
        # Guarded by it:
        self._build: Build | None = None
        """The one that ``rebuild`` waits for."""
        self._ahead: Build | None = None
        """What ``prepare`` has begun and ``rebuild`` has not asked for."""
        self._spoilt: deque[str] = deque(maxlen=_REMEMBERED)
        """Views for which a group was prepared and dropped: no other can be built for them."""
        self._void_before = 0
        """Epochs below it were cancelled."""

    def reset(self) -> None:
        """A new lifetime begins: no epoch is cancelled any more."""
        with self._turn:
            self._void_before = 0

    def rebuild(self, spec: GroupSpec) -> Group:
        """See ``Framework.rebuild``."""
        unwanted = None
        try:
            with self._turn:
                if spec.epoch < self._void_before:
                    raise GroupError(f"building the group of epoch {spec.epoch} was given up: cancelled")
                unwanted = self._part_with_all_but(spec, "another view came")
                build, self._ahead = self._ahead, None
                if build is None and spec.view_id not in self._spoilt:
                    build = self._make(spec)
                    build.start()
                self._build = build
        finally:
            if unwanted is not None:
                unwanted.drop()
        if build is None:  # the others may hold the address of what was dropped
            raise GroupError(f"the group of epoch {spec.epoch} was built ahead and dropped: it takes another view")
        try:
            return build.wait()
        finally:
            self._build = None

    def prepare(self, spec: GroupSpec) -> None:
        """See ``Framework.prepare``."""
        unwanted = None
        try:
            with self._turn:
                if spec.epoch < self._void_before or spec.view_id in self._spoilt or not self._prepares(spec):
                    return
                unwanted = self._part_with_all_but(spec, "another view is expected")
                if self._ahead is None:
                    build = self._make(spec)
                    build.start()
                    self._ahead = build
        finally:
            if unwanted is not None:
                unwanted.drop()

    def cancel(self, before: int = 0) -> None:
        """See ``Framework.cancel``."""
        unwanted = None
        with self._turn:
            self._void_before = max(self._void_before, before)
            build = self._build
            if self._ahead is not None and (not before or self._ahead.spec.epoch < before):
                unwanted = self._part_with_all_but(None, "cancelled")
        if build is not None and (not before or build.spec.epoch < before):
            build.give_up("cancelled")
        if unwanted is not None:
            unwanted.drop()

    def _part_with_all_but(self, spec: GroupSpec | None, why: str) -> Build | None:
        """What was prepared for another group, or has failed before anybody could notice: given up, and to be dropped.

        Under ``_turn``; what is dropped closes after that.
        """
        ahead = self._ahead
        if ahead is None or (ahead.spec == spec and (ahead.told or not ahead.failed)):
            return None
        self._ahead = None
        ahead.give_up(why)
        if ahead.told:
            self._spoilt.append(ahead.spec.view_id)
        return ahead
