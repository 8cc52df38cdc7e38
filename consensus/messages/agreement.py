"""Agreement on the next view: one Paxos instance an epoch, then reports, INSTALL, READY and ACTIVATE."""

from __future__ import annotations

from dataclasses import dataclass

from ..view import Delta, Proposal, Reason, View
from .reports import Reports

Ballot = tuple[int, str]
"""(round, member id), compared as a pair. Round 0 belongs to the parent view's most senior member alone."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """Paxos phase 1a for ``epoch``, whose acceptors are the members of ``parent_id``."""

    epoch: int
    parent_id: str
    ballot: Ballot


@dataclass(frozen=True, slots=True)
class Promise:
    """Phase 1b: the sender accepts no ballot below ``ballot`` any more; ``accepted``: what it has accepted so far."""

    epoch: int
    parent_id: str
    ballot: Ballot
    accepted_ballot: Ballot | None = None
    accepted: Proposal | None = None


@dataclass(frozen=True, slots=True)
class Accept:
    """Phase 2a: freeze (after ``after_call`` if given) and accept ``proposal``."""

    epoch: int
    parent_id: str
    ballot: Ballot
    proposal: Proposal
    after_call: int | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """Phase 2b, with the flush report of the frozen data plane."""

    epoch: int
    parent_id: str
    ballot: Ballot
    report: bytes


@dataclass(frozen=True, slots=True)
class Promised:
    """``ballot`` is too low: the sender has promised the higher one ``promised``."""

    epoch: int
    parent_id: str
    ballot: Ballot
    promised: Ballot


@dataclass(frozen=True, slots=True)
class FlushRequest:
    """The view that ``delta`` leads to is chosen; its installer still needs the receiver's flush report."""

    delta: Delta
    after_call: int | None = None

    @property
    def epoch(self) -> int:
        """The epoch of that view."""
        return self.delta.epoch


@dataclass(frozen=True, slots=True)
class FlushReply:
    """The report that FlushRequest asked for. Not a vote: the sender may never have seen the ballot that chose ``view_id``."""

    epoch: int
    view_id: str
    report: bytes


@dataclass(frozen=True, slots=True)
class Install:
    """A view is chosen and every continuing member has reported. Answered by Ready once the group is built.

    ``view`` for joiners; all others hold its parent and get ``delta`` (a member that does not hold the parent pulls).
    """

    view: View | None
    delta: Delta | None
    ballot: Ballot
    reports: Reports
    removed: tuple[Reason, ...] = ()
    """The removed members of the parent view, and why: for the log only."""
    trail: tuple[str, ...] = ()
    """With ``view``: the ids of the views before it, newest first, as far as they are remembered."""

    @property
    def epoch(self) -> int:
        """The epoch of that view; 0 if the message holds neither view nor delta."""
        return _epoch(self.view, self.delta)


@dataclass(frozen=True, slots=True)
class Forecast:
    """A view that the coordinator is about to propose at the next call boundary. A hint: groups may be built ahead for it.

    ``view`` for the joiners; all others hold its parent and get ``delta``. It is no vote, and decides nothing.
    """

    view: View | None
    delta: Delta | None

    @property
    def epoch(self) -> int:
        """The epoch of that view; 0 if the message holds neither view nor delta."""
        return _epoch(self.view, self.delta)


@dataclass(frozen=True, slots=True)
class Ready:
    """The sender's data plane has built the group of ``view_id``."""

    epoch: int
    view_id: str


@dataclass(frozen=True, slots=True)
class Activate:
    """Every member of ``view_id`` said Ready."""

    epoch: int
    view_id: str


@dataclass(frozen=True, slots=True)
class Pull:
    """The sender knows views up to ``epoch`` (``view_id``) only, and asks what was chosen since."""

    epoch: int
    view_id: str = ""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A view was chosen (not: activated). A receiver that is in an older view, but not in this one, is excluded.

    ``driver``: id of the member that installs it ("" if the installation is over, or the driver unknown). Holders of the parent
    get ``delta``, others ``view``.
    """

    view: View | None
    driver: str = ""
    delta: Delta | None = None
    trail: tuple[str, ...] = ()
    """With ``view``: the ids of the views before it, newest first, as far as they are remembered."""

    @property
    def epoch(self) -> int:
        """The epoch of that view; 0 if the message holds neither view nor delta."""
        return _epoch(self.view, self.delta)


def _epoch(view: View | None, delta: Delta | None) -> int:
    told = delta if view is None else view
    return 0 if told is None else told.epoch
