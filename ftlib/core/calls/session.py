"""A session: one activated view with its process group and plan. Immutable except for the training thread's notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from consensus import View

from ...frameworks.base import Group
from ..replicas.whole import drawers_in
from ..tensors.layout import Layout
from ..tensors.trailer import TrailerCodec
from .salvage import SalvagePlan

_REMEMBERED = 64
"""Pairs of calls of which a session remembers what came after them: enough for a step, and a bound for a program whose calls
never repeat."""


class Session:
    """What a member needs to act in a view. ``group`` is None if the member is alone."""

    def __init__(
        self,
        view: View,
        plan: SalvagePlan,
        member_id: str,
        ranks: Mapping[str, int],
        group: Group | None,
        program_group: Group | None = None,
        *,
        whole: View | None = None,
        keeps: bool = False,
        expected: Layout | None = None,
    ) -> None:
        """``program_group``: the group as programs may use it; by default the same.

        ``whole``: the agreed view, where ``view`` has only those of its members that are in the group, one a replica.
        ``keeps``: see the attribute. ``expected``: the layout with which all members expect the first call to begin.
        """
        self.view = view
        self.whole = view if whole is None else whole
        self.keeps = keeps
        """True if this member holds the result of the plan's call and has not finished it, as its replica had not agreed."""
        self.plan = plan
        self.member_id = member_id
        self.group = group
        self.program_group = group if program_group is None else program_group
        self.rank = ranks[member_id]
        self.size = len(ranks)
        self.ranks = dict(ranks)
        self.by_rank = tuple(sorted(ranks, key=ranks.__getitem__))
        self.drawers = drawers_in([view.member(key) for key in self.by_rank])
        """By rank: the name under which that member draws samples."""
        self.codec = TrailerCodec(self.rank, self.size)
        self.donor = plan.donor_of(member_id)
        """The member that gives this one the result of the newest finished call; None if this member needs none."""
        self.expected = expected
        """The layout with which all members expect the next call to begin (training thread only). Before a session's first call
        it is that of the call which all members were in as they froze, else None. Then it is that of the call that came after
        two like the newest two the last time, or else the newest's own. All members carry out every call of a session, so they
        expect the same."""
        self.repeated = expected
        """The layout of the newest three calls, if they had the same one: another such call changes nothing here, unless the
        weights change (training thread only). A session that expects a call begins as if three such calls had been finished."""
        self._newest = (b"", b"") if expected is None else (expected.signature, expected.signature)
        """Signatures of the newest two calls that were finished in this session."""
        self._after: dict[tuple[bytes, bytes], Layout] = {} if expected is None else {self._newest: expected}
        """By the signatures of two calls: the layout of the call that came after them the last time in this session."""
        self.script: tuple[Layout, ...] = ()
        """Layouts of the calls of the newest unit finished in this session, its commit last (training thread only)."""

        self.blamed: tuple[str, ...] = ()
        """Members that have to stop, as the trailer of an attempt shows (under the plane's lock); ``dispute`` says why."""
        self.dispute = ""
        self.divisor = float(self.size)
        """The sum of the weights in the newest average that was finished in this session; before one, the number of members, as
        if each weighed one (training thread only). Equal at all members when they are in the same call."""
        self.accelerated = False
        """True if, in the newest call with tensors on devices that was finished in this session, all members said that their
        accelerators work (training thread only). Equal at all members when they are in the same call."""

    def __str__(self) -> str:
        return f"{self.view}, rank {self.rank} of {self.size}"

    def gives(self, number: int) -> bool:
        """True if a donor has the result of call ``number``, or it is held here, so that the call takes no step of this view's
        members, however few they are.
        """
        return number == self.plan.call and (self.donor is not None or self.keeps)

    def ended(self, layout: Layout, weight: float = 0.0, script: tuple[Layout, ...] = ()) -> None:
        """All members have ended a call with that layout. Training thread only.

        ``weight``: the sum of the weights, if it was an average. ``script``: the layouts of a unit's calls, its commit last.
        """
        if weight:
            self.divisor = weight
        self.script = script or self.script
        first = script[0] if script else layout
        self._after[self._newest] = first
        if len(self._after) > _REMEMBERED:
            del self._after[next(iter(self._after))]
        before, self._newest = self._newest, (self._newest[1], layout.signature)
        self.expected = self._after.get(self._newest, first)
        self.repeated = layout if first is layout and self._newest == before else None

    def expect(self, layout: Layout | None) -> None:
        """The commit of a unit comes next: the members expect it to begin like that. Training thread only."""
        self.expected = layout

    def blame(self, blamed: tuple[str, ...], dispute: str) -> None:
        """The trailer of an attempt shows that these members have to stop (see ``Report``). Under the plane's lock."""
        self.blamed, self.dispute = blamed, dispute

    def received(self, *, accelerated: bool) -> None:
        """A call with tensors on devices has ended: what its trailer says of accelerators. Training thread only."""
        self.accelerated = accelerated

    def members_of(self, ranks: Sequence[int]) -> tuple[str, ...]:
        """Member ids at these ranks; invalid ranks are dropped."""
        return tuple(self.by_rank[rank] for rank in ranks if 0 <= rank < self.size)

    def name(self, member_id: str) -> str:
        """A member's name for people: its worker label with a short id, or the member as text without a label."""
        if member_id not in self.view:
            return member_id[:6]
        member = self.view.member(member_id)
        label = member.fact("name")
        return f"{label} ({member_id[:6]})" if label else str(member)

    def short(self, member_id: str) -> str:
        """A member's worker label if it has one, else a short id."""
        label = self.view.member(member_id).fact("name") if member_id in self.view else None
        return label or member_id[:6]

    def names(self, member_ids: Sequence[str]) -> str:
        """The names of several members, for a sentence."""
        return ", ".join(self.name(member_id) for member_id in member_ids)
