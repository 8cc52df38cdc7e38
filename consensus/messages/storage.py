"""What members leave for each other in a shared store: never sent, but written by the same codec."""

from __future__ import annotations

from dataclasses import dataclass

from ..member import Member
from ..view import Proposal, View


@dataclass(frozen=True, slots=True)
class ViewRecord:
    """The decision about ``view.epoch``: whoever creates it exclusively has decided, and installs the view.

    ``driver``: id of that member. ``proposal``: how the view comes from its parent, None for a founding one. ``after_call``:
    the call after which the members freeze, None for at once. ``trail``: the ids of the views before it, newest first.
    """

    view: View
    driver: str
    proposal: Proposal | None = None
    after_call: int | None = None
    trail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Lease:
    """``member`` lived when it wrote this. Observers time how long ``counter`` stays the same, on their own clocks.

    ``epoch``: of the newest view that it followed (0: it looks for one). ``progress``: of its data plane (see ``Progress``).
    """

    member: Member
    counter: int
    epoch: int = 0
    progress: bytes = b""
