"""Planted bugs on the way from a chosen view to an active one: reports, INSTALL, READY, and who follows what."""

from __future__ import annotations

from typing import Any

import pytest

from consensus.member import Address
from consensus.messages import Ballot, Chosen, Install, Message
from consensus.protocol.agreement.contact import Contact
from consensus.protocol.agreement.flush import FlushReports, MakeReply
from consensus.protocol.agreement.installation import Installation
from consensus.protocol.agreement.view_change import ViewChange
from consensus.protocol.state.core import Core
from consensus.simulation.invariants import Activation, Flush, Laggards, Liveness, Replays, Succession
from consensus.view import View
from tests.harness.basics import around

from .bug import Bug, Patch
from .contests import counts, duels, echoes
from .losses import absences, late_news, strays


def reports_of_a_quorum(patch: Patch) -> None:
    """INSTALL does not wait for every continuing member's report: who is late is taken for one that has finished nothing."""

    @around(patch, Installation, "__init__")
    def init(
        honest: Any,
        self: Installation,
        view: View,
        parent: View | None,
        ballot: Ballot,
        reports: dict[str, bytes],
        *more: Any,
        **rest: Any,
    ) -> None:
        for key in () if parent is None else parent.ids:
            reports.setdefault(key, b"")
        honest(self, view, parent, ballot, reports, *more, **rest)


def new_report_each_time(patch: Patch) -> None:
    """A voter asks its data plane again for each ballot, and does not keep the first report."""

    @around(patch, FlushReports, "request")
    def request(
        honest: Any, self: FlushReports, epoch: int, after_call: int | None, sender: str, address: Address, answer: MakeReply
    ) -> Message | None:
        self._reports.pop(epoch, None)
        self._asked.pop(epoch, None)
        return honest(self, epoch, after_call, sender, address, answer)


def ready_of_a_majority(patch: Patch) -> None:
    """ACTIVATE goes out when more than half have built their groups."""
    patch.setattr(Installation, "all_ready", property(lambda self: 2 * len(self.missing_ready()) < len(self.view)))


def follows_after_its_own_exclusion(patch: Patch) -> None:
    """Who voted itself out follows another view of that epoch."""
    patch.setattr(ViewChange, "_voted_out", lambda *_: False)


def follows_any_newer_view(patch: Patch) -> None:
    """Who acts in a view follows every newer one of its cluster, whether that comes from it or not."""
    patch.setattr(Core, "descends", lambda *_: True)


def old_views_are_followed(patch: Patch) -> None:
    """CHOSEN and INSTALL of an older epoch are taken for news."""
    chosen, install = ViewChange.on_chosen, ViewChange.on_install

    def goes_back(self: ViewChange, view: View | None, driver: str, now: float) -> bool:
        core = self._core
        if view is None or core.view is None or view.epoch >= core.epoch or core.member.id not in view:
            return False
        self.adopt(view, driver, now)
        return True

    def on_chosen(self: ViewChange, sender: str, address: Address, message: Chosen, now: float) -> None:
        if not goes_back(self, message.view, message.driver, now):
            chosen(self, sender, address, message, now)

    def on_install(self: ViewChange, sender: str, address: Address, message: Install, now: float) -> None:
        if not goes_back(self, message.view, sender, now):
            install(self, sender, address, message, now)

    patch.setattr(ViewChange, "on_chosen", on_chosen)
    patch.setattr(ViewChange, "on_install", on_install)


def views_are_not_compared(patch: Patch) -> None:
    """A laggard asks nobody, and nobody tells it, though every ping and ack carries the sender's view."""
    patch.setattr(Contact, "compare", lambda *_, **__: None)


BUGS = [
    Bug(reports_of_a_quorum, duels, 10, Flush, "comes with a report .* that it never gave"),
    Bug(new_report_each_time, counts, 10, Flush, "reports .* after"),
    Bug(ready_of_a_majority, duels, 10, Activation, "is active at .* before"),
    Bug(follows_after_its_own_exclusion, late_news, 1, Succession, "is no ancestor"),
    Bug(follows_any_newer_view, strays, 1, Succession, "is no ancestor"),
    Bug(old_views_are_followed, echoes, 10, Replays, "from an earlier view change, and it had an effect"),
    Bug(old_views_are_followed, echoes, 10, Succession, "follows .* after", alone=True),
    Bug(views_are_not_compared, absences, 10, Liveness, "nothing has been wrong"),
    Bug(views_are_not_compared, absences, 10, Laggards, "still follows", alone=True),
]


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_bug_in_installing_is_found(bug: Bug, monkeypatch: Patch) -> None:
    bug.expect(monkeypatch)
