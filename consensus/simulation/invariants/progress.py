"""Invariants 8 and 9: once nothing is wrong any more, the quorum side acts in the right view, and laggards catch up.

There is no permanently stale view (a bug that Rapid had).
"""

from __future__ import annotations

from ...errors import StoppedError
from ...messages import LeaveRequest, Message
from ...view import View
from ..world.host import Host
from ..world.observer import Sees
from .invariant import Facts, Invariant
from .judgement import living, reason_to_block, settled


class Liveness(Invariant):
    """``patience`` after the last trouble all who live act in one view of exactly themselves; or they are no quorum of the
    newest view.

    Trouble is whatever ``Health`` sees (a lost or late message, a death, a pause, a start), a leave, and a new view. That
    without quorum nothing activates is ``Activation``'s to see, by the votes.
    """

    number = 8
    title = "the quorum side goes on"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._changed = 0.0
        self._asked = False

    @property
    def patience(self) -> float:
        """T: silence and the lease, twice, for who died while it was waited for; members that are not ready, twice; joins."""
        config = self.world.config
        return 4 * config.exclude_after + 2 * config.ready_timeout + 2 * config.boundary_wait

    def sees(self) -> Sees:
        """See ``Observer``."""
        return {LeaveRequest: self._leave}

    def started(self, host: Host) -> None:  # noqa: ARG002
        """See ``Observer``."""
        self._ask()

    def killed(self, host: Host) -> None:  # noqa: ARG002
        """See ``Observer``."""
        self._ask()

    def resumed(self, host: Host) -> None:  # noqa: ARG002
        """See ``Observer``."""
        self._ask()

    def lost(self, host: Host, target: Host, message: Message) -> None:  # noqa: ARG002
        """See ``Observer``."""
        self._ask()

    def stopped(self, host: Host, error: StoppedError) -> None:  # noqa: ARG002
        """See ``Observer``."""
        self._ask()

    def adopted(self, host: Host, view: View) -> None:  # noqa: ARG002
        """See ``Observer``."""
        self._changed = self.now
        self._ask()

    def _leave(self, host: Host, target: Host | None, message: LeaveRequest) -> None:  # noqa: ARG002
        self._changed = self.now

    def _ask(self) -> None:
        if not self._asked:
            self._asked = True
            self.agenda.at(self.now + self.patience, self._look)

    def _look(self) -> None:
        self._asked = False
        world = self.world
        last = max(self._changed, self.health.calm_since)
        hosts = living(world)
        if any(not host.running for host in hosts) or settled(world):
            return  # whoever is paused asks again when it goes on
        if self.now < last + self.patience:
            self._asked = True
            self.agenda.at(last + self.patience, self._look)
        elif not reason_to_block(world):
            log = self.log
            acting = [f"{log.name(h.id)} in {log.show(h.activated[-1] if h.activated else None)}" for h in hosts[:8]]
            self.fail(f"nothing has been wrong for {self.now - last:.1f} s, and yet: {'; '.join(acting)}")


class Laggards(Invariant):
    """Whoever is concerned by a chosen view (in it, or removed by it) follows it or a later one, or stops, within ``patience``.

    Counted from when it and one *teacher* have both been well without a break: a process that follows the view or a later one,
    and that can be expected to meet the laggard, being in the view that the laggard knows. Where all who knew the view are dead
    nobody can be told, and nothing is expected.
    """

    number = 9
    title = "laggards catch up"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._follows: dict[str, View] = {}
        self._met: set[str] = set()

    @property
    def patience(self) -> float:
        """Ten rounds of probes, each stretched to the utmost by its sender's own bad health."""
        config = self.world.config
        return 10 * config.probe_interval * (config.awareness_max + 1) / 2

    def adopted(self, host: Host, view: View) -> None:
        """See ``Observer``."""
        self._follows[host.id] = view
        if view.view_id not in self._met:
            self._met.add(view.view_id)
            self.agenda.at(self.now + self.patience, lambda: self._look(view))

    def _look(self, view: View) -> None:
        parent = self.record.parent(view)
        ids = [*view.ids, *(member.id for member in parent.members if member.id not in view)] if parent else view.ids
        behind = [key for key in ids if self._behind(key, view)]
        if not behind:
            return
        health, again = self.health, False
        for key in behind:
            for teacher in self._teachers(key, view):
                again = True
                if health.well_for(key, teacher) > self.patience:
                    self._stale(key, teacher, view)
        if again:
            self.agenda.at(self.now + self.patience / 2, lambda: self._look(view))

    def _behind(self, member_id: str, view: View) -> bool:
        host = self.world.hosts.get(member_id)
        if host is None or not host.alive or host.stopped is not None:
            return False
        follows = self._follows.get(member_id)
        return follows is None or follows.epoch < view.epoch

    def _teachers(self, member_id: str, view: View) -> list[str]:
        follows = self._follows.get(member_id)
        if follows is None:
            return []  # still a joiner: its own search asks
        found = []
        for key in follows.ids:
            host, known = self.world.hosts[key], self._follows.get(key)
            if host.running and known is not None and known.epoch >= view.epoch:
                found.append(key)
        return found

    def _stale(self, member_id: str, teacher: str, view: View) -> None:
        log = self.log
        well = self.health.well_for(member_id, teacher)
        self.fail(
            f"{log.name(member_id)} still follows {log.show(self._follows.get(member_id))}, though "
            f"{log.name(teacher)} knows {log.show(view)} and both have been well for {well:.2f} s"
        )
