"""Invariant 8: once nothing is wrong any more, the quorum side acts in the right view."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import StoppedError
from ...messages import LeaveRequest, Message
from ...view import View
from ..judgement import living, reason_to_block, settled
from .invariant import Invariant
from .witness import Sees

if TYPE_CHECKING:
    from ..host import Host
    from .jury import Jury

__all__ = ["Liveness"]


class Liveness(Invariant):
    """``patience`` after the last trouble all who live act in one view of exactly themselves; or they are no quorum of the
    newest view.

    Trouble is whatever ``Ground`` sees (a lost or late message, a death, a pause, a start), a leave, and a new view. That
    without quorum nothing activates is ``Activation``'s to see, by the votes.
    """

    number = 8
    title = "the quorum side goes on"

    def __init__(self, jury: Jury) -> None:
        super().__init__(jury)
        self._changed = 0.0
        self._asked = False

    @property
    def patience(self) -> float:
        """T: silence and the lease, twice, for who died while it was waited for; members that are not ready, twice; joins."""
        config = self.world.config
        return 4 * config.exclude_after + 2 * config.ready_timeout + 2 * config.boundary_wait

    def sees(self) -> Sees:
        """See ``Witness``."""
        return {LeaveRequest: self._leave}

    def started(self, host: Host) -> None:  # noqa: ARG002
        """See ``Witness``."""
        self._ask()

    def killed(self, host: Host) -> None:  # noqa: ARG002
        """See ``Witness``."""
        self._ask()

    def resumed(self, host: Host) -> None:  # noqa: ARG002
        """See ``Witness``."""
        self._ask()

    def lost(self, host: Host, target: Host, message: Message) -> None:  # noqa: ARG002
        """See ``Witness``."""
        self._ask()

    def stopped(self, host: Host, error: StoppedError) -> None:  # noqa: ARG002
        """See ``Witness``."""
        self._ask()

    def adopted(self, host: Host, view: View) -> None:  # noqa: ARG002
        """See ``Witness``."""
        self._changed = self.now
        self._ask()

    def _leave(self, host: Host, target: Host | None, message: LeaveRequest) -> None:  # noqa: ARG002
        self._changed = self.now

    def _ask(self) -> None:
        if not self._asked:
            self._asked = True
            self.jury.at(self.now + self.patience, self._look)

    def _look(self) -> None:
        self._asked = False
        world = self.world
        last = max(self._changed, self.jury.ground.calm_since)
        hosts = living(world)
        if any(not host.running for host in hosts) or settled(world):
            return  # whoever is paused asks again when it goes on
        if self.now < last + self.patience:
            self._asked = True
            self.jury.at(last + self.patience, self._look)
        elif not reason_to_block(world):
            story = self.jury.story
            acting = [f"{story.name(h.id)} in {story.show(h.activated[-1] if h.activated else None)}" for h in hosts[:8]]
            self.fail(f"nothing has been wrong for {self.now - last:.1f} s, and yet: {'; '.join(acting)}")
