"""The data plane of a simulated process: what is behind the machine's effects ``Freeze``, ``Installed``, ``Activated``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from ..errors import StoppedError
from ..view import View

if TYPE_CHECKING:
    from .host import Host

__all__ = ["MakePlane", "SimulatedPlane", "StubPlane"]

BUILD_TIME = 0.002
"""Seconds that building a group takes."""


class SimulatedPlane(Protocol):
    """``DataPlane`` in virtual time: answers through ``host.machine``, later ones through ``host.after``."""

    seeks: bool
    """Whether it seeks admission by itself, once it is ready to take part."""

    def freeze(self, epoch: int, after_call: int | None) -> None:
        """Answer with ``machine.flushed``."""

    def expect(self, view: View) -> None:
        """``view`` may be installed soon."""

    def install(self, view: View, reports: Mapping[str, bytes]) -> None:
        """Answer with ``machine.ready``."""

    def activate(self, view: View) -> None:
        """Act in ``view``."""

    def wish(self, wanted: bool) -> None:
        """Joins or leaves wait for a call boundary."""

    def stopped(self, error: StoppedError) -> None:
        """This lifetime is over."""


MakePlane = Callable[["Host"], SimulatedPlane]


class StubPlane:
    """Reports at once, builds in ``BUILD_TIME``, and never calls. Its report says who wrote it for which epoch."""

    seeks = False

    def __init__(self, host: Host) -> None:
        self._host = host

    def freeze(self, epoch: int, after_call: int | None) -> None:  # noqa: ARG002 - there are no calls to wait for
        """See ``SimulatedPlane``."""
        host = self._host
        host.machine.flushed(epoch, f"{host.id}:{epoch}".encode(), host.now)

    def expect(self, view: View) -> None:
        """See ``SimulatedPlane``."""

    def install(self, view: View, reports: Mapping[str, bytes]) -> None:
        """See ``SimulatedPlane``."""
        host, mine = self._host, f"{self._host.id}:{view.epoch}".encode()
        assert reports.get(host.id, mine) == mine, f"a report of another epoch in {view}: {reports[host.id]!r}"
        host.after(BUILD_TIME, lambda: host.machine.ready(view.view_id, host.now))

    def activate(self, view: View) -> None:
        """See ``SimulatedPlane``."""

    def wish(self, wanted: bool) -> None:
        """See ``SimulatedPlane``."""

    def stopped(self, error: StoppedError) -> None:
        """See ``SimulatedPlane``."""
