"""Each rule of the flush and of salvage is broken on purpose; the promises must notice within so many torn histories."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from consensus import View
from consensus.border import Installed
from consensus.messages import Install
from consensus.messages.reports import Reports
from consensus.protocol.agreement.installation import Installation
from consensus.protocol.agreement.view_change import ViewChange
from consensus.simulation.invariants import Flush
from ftlib.core.calls.call import Call, Results
from ftlib.core.calls.salvage import Report, SalvagePlan, plan
from ftlib.core.calls.session import Session
from ftlib.core.plane import plane as planes
from ftlib.core.plane import rebuild
from ftlib.core.plane.orders import Finish, Order
from ftlib.core.plane.plane import Plane
from ftlib.core.tensors.staging import Staging
from ftlib.core.tensors.trailer import Trailer
from ftlib.recovery.whole_state import Transfer
from ftlib.state.codec import encode
from tests.harness.basics import around
from tests.simulation.data_plane.process import Process
from tests.simulation.training import Job, first_violation, late, torn

Patch = pytest.MonkeyPatch


def redoes_what_was_finished(patch: Patch) -> None:
    """All redo the call, though somebody has finished it."""

    def redo(view: View, reports: Mapping[str, bytes]) -> SalvagePlan:
        honest = plan(view, reports)
        return replace(honest, call=honest.call - 1, adoptions=()) if honest.adoptions else honest

    patch.setattr(rebuild, "plan", redo)


def forgets_who_is_late(patch: Patch) -> None:
    """Who has not finished the newest call is taken for one who has."""
    patch.setattr(rebuild, "plan", lambda view, reports: replace(plan(view, reports), adoptions=()))


def donors_that_lack_it(patch: Patch) -> None:
    """Somebody is to give a result who has only that of the call before."""

    def donors(view: View, reports: Mapping[str, bytes]) -> SalvagePlan:
        honest = plan(view, reports)
        late = [adopter for adopter, _ in honest.adoptions]
        return replace(honest, adoptions=tuple(zip(late, [*late[1:], late[0]], strict=True))) if len(late) > 1 else honest

    patch.setattr(rebuild, "plan", donors)


def finishes_after_the_freeze(patch: Patch) -> None:
    """An operation that completes after the report was given still finishes the call."""
    honest = Plane._acting_in

    def finish(self: Plane, session: Session, call: Call, trailer: Trailer, results: Results) -> Finish | None:
        with self.changed:
            self.running = None
            order, self._order = self._order, None
            self._finished(call, results)
            if honest(self, session) and (trailer.freeze or order is not None):
                self._freeze()
            return Finish(order)

    patch.setattr(Plane, "finish", finish)


def reports_before_the_freeze(patch: Patch) -> None:
    """The report is made while operations may still complete."""

    @around(patch, Plane, "freeze")
    def freeze(honest: Any, self: Plane, order: Order) -> tuple[bytes, Session | None] | None:
        phase, running = self.phase, self.running
        answer = honest(self, order)
        if answer is not None and phase is planes.Phase.ACTIVE and running is not None:
            self.phase = phase
            return answer[0], None
        return answer


def one_slot_a_bucket(patch: Patch) -> None:
    """What the next call stages overwrites the results that a survivor may need."""

    @around(patch, Staging, "__init__")
    def init(honest: Any, self: Staging, *args: object) -> None:
        honest(self, *args)  # type: ignore[arg-type]
        self._turns = [1 for _ in self._turns]


def joiners_count_at_once(patch: Patch) -> None:
    """A joiner's gradients count though they were computed before it had the state."""
    patch.setattr(Call, "reloaded", lambda _call: None)


def joiners_are_veterans(patch: Patch) -> None:
    """A joiner is believed to have the result of the call that it was told is finished."""

    @around(patch, Plane, "activate")
    def activate(honest: Any, self: Plane, session: Session) -> bool:
        acting = honest(self, session)
        self.blank = False
        return acting


def state_of_any_moment(patch: Patch) -> None:
    """A donor goes on sending its state when the call has ended, and changes it."""

    def guarded(self: Transfer, call: int, entry: Callable[[], object], fence: object) -> Iterator[bytes]:
        return encode(entry())

    patch.setattr(Transfer, "guarded", guarded)
    patch.setattr(Transfer, "entry", lambda self, _call: self._now)


def expects_what_it_was_in(patch: Patch) -> None:
    """A member that was in a call expects that one in the next session, though others were in none."""
    patch.setattr(Plane, "expected_in", lambda self, _plan: None if self._reported is None else self._reported.opening)


def expects_what_some_were_in(patch: Patch) -> None:
    """The same is read in the reports, where those who were in no call do not know it."""

    def hasty(view: View, reports: Mapping[str, bytes]) -> SalvagePlan:
        said = {key: Report.decode(data) for key, data in reports.items()}
        named = [report.current_signature for key, report in sorted(said.items()) if report.current_signature]
        return replace(plan(view, reports), entered=named[0] if named else b"")

    patch.setattr(rebuild, "plan", hasty)


def reports_of_a_quorum(patch: Patch) -> None:
    """INSTALL does not wait for every continuing member's report, and who finds its own missing does not mind."""

    def message(self: Installation, *, whole: bool) -> Install:
        reports = Reports.of([self.reports.get(key, b"") for key in self.continuing])
        return Install(self.view, None, self.ballot, reports) if whole else Install(None, self.delta, self.ballot, reports)

    def handle(self: Process, order: Order) -> None:
        if isinstance(order, Installed):
            order = Installed(order.view, {key: report for key, report in order.reports.items() if report})
        honest(self, order)

    honest = Process.handle
    patch.setattr(Process, "handle", handle)
    patch.setattr(Installation, "complete", property(lambda _: True))
    patch.setattr(Installation, "message", message)
    patch.setattr(ViewChange, "_installable", lambda *_: True)
    patch.setattr(Flush, "installed", lambda *_: None)  # which would speak at once; what matters here is what comes of it


BUGS: list[tuple[Callable[[Patch], None], Callable[[int], Job], int, int]] = [
    (redoes_what_was_finished, torn, 60, 2),
    (forgets_who_is_late, torn, 60, 2),
    (donors_that_lack_it, torn, 60, 2),
    (finishes_after_the_freeze, late, 60, 13),
    (reports_before_the_freeze, late, 60, 11),
    (one_slot_a_bucket, torn, 60, 2),
    (joiners_count_at_once, torn, 60, 0),
    (joiners_are_veterans, torn, 60, 2),
    (state_of_any_moment, torn, 120, 7),
    (reports_of_a_quorum, torn, 60, 0),
    (expects_what_it_was_in, torn, 60, 0),
    (expects_what_some_were_in, torn, 60, 0),
]
"""What is broken, in which histories, in how many, and in which it was found first: that one is tried first."""


@pytest.mark.parametrize(("bug", "tell", "seeds", "known"), BUGS, ids=[bug.__name__ for bug, *_ in BUGS])
def test_a_planted_bug_is_found(
    bug: Callable[[Patch], None], tell: Callable[[int], Job], seeds: int, known: int, monkeypatch: Patch
) -> None:
    bug(monkeypatch)
    found = first_violation(tell, (known, *range(seeds)))
    print(bug.__name__, found and (found[0], found[1].split("\n")[0]))
    assert found is not None, f"{bug.__doc__} Nobody noticed within {seeds} histories."
    monkeypatch.undo()
    tell(found[0])


def test_the_same_histories_are_clean_without_bugs() -> None:
    assert first_violation(torn, range(8)) is None
    assert first_violation(late, range(8)) is None


def test_a_freeze_that_ignores_the_call_interrupts_it(monkeypatch: Patch) -> None:
    """No promise is broken, since salvage mends it; but joins and leaves shall interrupt nothing."""
    monkeypatch.setattr(Plane, "_ends_with", lambda _plane, _call: False)
    redone = 0
    for seed in range(8):
        with Job(seed, 3, compute=0.03, long_steps=0.0) as job:
            job.join("j")
            job.world.run(1.0)
            job.trainers.drain(job.hosts[0])
            job.world.run(1.0)
            redone += job.total("redone") + job.total("adopted")
    assert redone
