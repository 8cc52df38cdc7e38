"""What members write for each other into a shared store: never sent, but encoded by the same codec."""

from __future__ import annotations

from dataclasses import dataclass

from ..member import Member
from ..view import Proposal, View


@dataclass(frozen=True, slots=True)
class ViewRecord:
    """The decision about ``view.epoch``: the member that creates it (exclusively) has decided, and installs the view.

    ``driver``: id of that member. ``proposal``: the difference from the parent view, None for a founding view. ``after_call``:
    the call after which the members freeze, None for at once. ``trail``: the ids of the views before it, newest first.
    """

    view: View
    driver: str
    proposal: Proposal | None = None
    after_call: int | None = None
    trail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Lease:
    """``member`` was alive when it wrote this. Observers time on their own clocks how long ``counter`` stays the same.

    ``epoch``: of the newest view that ``member`` followed (0: it looks for one). ``progress``: of its data plane
    (see ``Progress``).
    """

    member: Member
    counter: int
    epoch: int = 0
    progress: bytes = b""
