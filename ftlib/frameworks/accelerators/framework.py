"""Gloo with an accelerator: a communicator is built beside each group, stopped with it, and freed one view later.

A communicator that cannot be had costs speed, never the job: its group goes on by Gloo alone, and the reason is logged once.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from consensus import CarefulLogger
from ftlib.errors import ConfigError
from ftlib.frameworks.background import start_task
from ftlib.frameworks.base import Framework, Group, GroupSpec
from ftlib.frameworks.gloo import GlooFramework
from ftlib.frameworks.gloo_group import GlooGroup

from .backoff import Backoff
from .base import Accelerator, Communicator, NotYetError
from .figures import Figures
from .group import HybridGroup
from .managed import Deadlines, ManagedCommunicator
from .unavailable import UnavailableCommunicator

_log = CarefulLogger(__name__)

_LATE = 60.0
"""Seconds to wait for an accelerator that was not there in time for a view."""
_NAME, _ABSENT = "accelerator", "absent"
"""Keys among a rank's facts: which accelerator it has; why it has none. The others are the accelerator's own."""


class HybridFramework(Framework):
    """Builds ``HybridGroup`` objects."""

    def __init__(self, accelerator: Accelerator, deadlines: Deadlines | None = None, name: str = "") -> None:
        """``name``: by default the accelerator's, which is that of the family as well."""
        self.name = name or accelerator.name
        self.group: Group | None = None
        self._accelerator = accelerator
        self._deadlines = Deadlines() if deadlines is None else deadlines
        self._gloo = GlooFramework(self._facts)
        self._figures = Figures()
        self._backoff = Backoff()
        self._newest: ManagedCommunicator | None = None
        """Both are used by whoever builds groups alone."""
        self._absent = "it was not started"
        """Why this process has no accelerator; empty if it has one."""
        self._process = os.getpid()
        self._lock = threading.Lock()
        # Guarded by it:
        self._communicators: list[ManagedCommunicator] = []
        """Those not freed yet, in the order of their views."""
        self._warned: set[str] = set()
        """Reasons for having no accelerator that were logged."""
        self._report: Callable[[str], None] | None = None
        self._fatal = ""
        self._closed = False
        self._closing = threading.Event()
        self._lateness = Backoff()
        self._renewed = -math.inf
        """When another view was last asked for because of an accelerator that had come late."""
        self._late = 0
        """The newest epoch whose group was built without this member's accelerator, though there is one now; 0 if none was."""
        self._built: tuple[HybridGroup | None, int] = (None, -1)
        """The newest group, and its epoch."""

    @property
    def family(self) -> str:
        """See ``Framework``: wherever an accelerator is, it connects to its like."""
        return self._accelerator.name

    @property
    def transports(self) -> tuple[str, ...]:
        """Gloo, and the accelerator."""
        return (self._gloo.name, self._accelerator.name)

    def start(self, host: str) -> Mapping[str, str]:
        """Start Gloo's part and the accelerator. ConfigError if ``host`` is no address of this machine.

        An accelerator that cannot be used is done without, but for a mistake in its configuration.
        """
        facts = self._gloo.start(host)
        try:
            self._accelerator.start(host)
            self._absent = ""
        except ConfigError:
            self._gloo.close()
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is: the job goes on without
            self._absent = f"it could not be started: {error}"
        self._process, self._closed = os.getpid(), False
        self._closing = threading.Event()
        atexit.unregister(self.close)
        atexit.register(self.close)  # after Gloo's, hence called before it
        return facts

    def rebuild(self, spec: GroupSpec) -> Group:
        """Build the Gloo group, and begin to build a communicator beside it."""
        gloo = self._gloo.rebuild(spec)
        assert isinstance(gloo, GlooGroup)
        communicator = None if spec.size == 1 else self._communicator(spec, gloo.facts)
        self.group = group = HybridGroup(gloo, communicator, self._accelerator)
        with self._lock:
            self._built = group, spec.epoch
        self._renew()
        return group

    def prepare(self, spec: GroupSpec) -> None:
        """Build the Gloo group ahead. No communicator: to build one may disturb operations on the device."""
        self._gloo.prepare(spec)

    def cancel(self, before: int = 0) -> None:
        """See ``Framework``."""
        self._gloo.cancel(before)

    def check(self, tensor: torch.Tensor) -> None:
        """As Gloo, which must be able to carry out every call."""
        self._gloo.check(tensor)

    def place(self, tensor: torch.Tensor) -> str:
        """See ``Framework``."""
        return self._accelerator.place(tensor)

    def settled(self, epoch: int) -> None:
        """See ``Framework``."""
        with self._lock:
            self._communicators = [each for each in self._communicators if not each.freed]
            old = [each for each in self._communicators if each.stopped and each.epoch < epoch]
        for communicator in old:
            communicator.free()

    def on_fatal(self, report: Callable[[str], None]) -> None:
        """See ``Framework``."""
        with self._lock:
            self._report, reason = report, self._fatal
        if reason:
            report(reason)

    def metrics(self) -> Mapping[str, object]:
        """``accelerator_ready``: whether this member's works now; and see ``Figures.as_dict``."""
        group = self.group
        return {"accelerator_ready": group is not None and group.accelerated, **self._figures.as_dict()}

    def close(self) -> None:
        """Stop all communicators, then as Gloo. Idempotent. Nothing happens in a forked child.

        What no next view has settled is not freed: the peers of a member that leaves may still use it. The process ends soon.
        """
        atexit.unregister(self.close)
        if os.getpid() != self._process:
            return
        with self._lock:
            closed, self._closed = self._closed, True
            communicators = list(self._communicators)
        if closed:
            return
        self._closing.set()
        self.cancel()
        if self.group is not None:
            self.group.close()
            self.group = None
        for communicator in communicators:
            communicator.stop()
        self._accelerator.close()
        self._absent = "it was closed"
        self._gloo.close()

    # --- inside --------------------------------------------------------------------------------------------------------

    def _facts(self, spec: GroupSpec) -> Mapping[str, str]:
        if not self._absent:
            try:
                return {_NAME: self._accelerator.name, **self._accelerator.facts(spec)}
            except NotYetError as error:
                self._await_facts_later(spec)
                return {_ABSENT: str(error)}
            except Exception as error:  # noqa: BLE001 - as above
                return {_ABSENT: str(error) or repr(error)}
        return {_ABSENT: self._absent}

    def _await_facts_later(self, spec: GroupSpec) -> None:
        with contextlib.suppress(RuntimeError):  # no thread can be had: the next view looks for the accelerator again
            start_task("accelerator-late", functools.partial(self._await_facts, spec.epoch))

    def _await_facts(self, epoch: int) -> None:
        """In the background: a new view is wanted once there is an accelerator for it. Not again and again, should it fail."""
        if not self._accelerator.await_facts(_LATE):
            return
        with self._lock:
            now = time.monotonic()
            self._lateness.failed(now - self._renewed)
            self._renewed, rest = now, self._lateness.left
        if self._closing.wait(rest):
            return
        with self._lock:
            self._late = epoch
        self._renew()

    def _renew(self) -> None:
        """Have the newest group be built anew if this member's accelerator came too late for it."""
        with self._lock:
            group, epoch = self._built
            late = epoch == self._late
        if late and group is not None:
            group.renew(f"its {self._accelerator.name} accelerator can be used now")

    def _communicator(self, spec: GroupSpec, facts: Sequence[Mapping[str, str]]) -> ManagedCommunicator:
        begin = functools.partial(self._begin, spec, facts)
        unavailable = functools.partial(self._go_without, spec)
        rest = self._rest_before(spec)
        communicator = ManagedCommunicator(spec, begin, self._figures, self._deadlines, self._wedged, unavailable, rest)
        self._newest = communicator
        with self._lock:
            self._communicators.append(communicator)
        return communicator

    def _rest_before(self, spec: GroupSpec) -> float:
        """Seconds in which the next communicator is not used, as those before it have failed."""
        last = self._newest
        # Where a member has died, that is why: then there are fewer. The accelerator is as good as before.
        if last is None or last.failed_after is None or spec.size < last.size:
            return self._backoff.left
        self._backoff.failed(last.failed_after)
        rest = self._backoff.left
        if rest:
            text = "the %s accelerator of rank %d of %d (epoch %d) has failed again: everything goes by Gloo for %.0f s"
            _log.warning(text, self._accelerator.name, spec.rank, spec.size, spec.epoch, rest)
        return rest

    def _begin(self, spec: GroupSpec, facts: Sequence[Mapping[str, str]], decided: Callable[[], None]) -> Communicator:
        for rank, told in enumerate(facts):
            if told.get(_NAME) != self._accelerator.name:
                decided()
                why = told.get(_ABSENT, f"it has {told.get(_NAME, 'none')}")
                return UnavailableCommunicator(f"rank {rank} has no {self._accelerator.name} accelerator: {why}")
        try:
            return self._accelerator.begin(spec, facts, decided)
        except NotYetError as error:
            decided()
            self._await_facts_later(spec)
            return UnavailableCommunicator(str(error))
        except Exception as error:  # noqa: BLE001 - as above
            decided()
            return UnavailableCommunicator(str(error) or repr(error))

    def _go_without(self, spec: GroupSpec, reason: str, passing: bool) -> None:
        """Say that everything goes by Gloo: until the next view, which is asked for where that may help."""
        self._warn(spec, reason)
        if passing:
            self._await_facts_later(spec)

    def _warn(self, spec: GroupSpec, reason: str) -> None:
        with self._lock:
            known = reason in self._warned
            self._warned.add(reason)
        if not known:
            text = "rank %d of %d (epoch %d) has no %s accelerator: %s; everything goes by Gloo"
            _log.warning(text, spec.rank, spec.size, spec.epoch, self._accelerator.name, reason)

    def _wedged(self, reason: str) -> None:
        with self._lock:
            self._fatal, report = reason, self._report
        _log.error("this process cannot go on: %s", reason)
        if report is not None:
            report(reason)
