"""What a backup worker goes by, piece by piece: the program's call pattern, the lent turn, what others learn of its calls."""

from __future__ import annotations

import threading

import pytest
import torch

from consensus import Member, View
from ftlib.core.backup.backup_call import BackupCall
from ftlib.core.backup.pattern import LONGEST, WINDOW, CallPattern, Made, why_not
from ftlib.core.calls.salvage import Report, SalvagePlan, plan
from ftlib.core.calls.session import Session
from ftlib.core.engine.call_lock import CallLock
from ftlib.core.engine.waiting import WARN_AFTER
from ftlib.core.plane.phase import Phase
from ftlib.core.plane.plane import Plane
from ftlib.core.tensors.layout import Layout, lay_out
from tests.harness.basics import TIMEOUT, eventually
from tests.harness.company import in_thread

FLOAT = [(torch.float32, (3,))]
CALLS = {
    "A": lay_out("average", FLOAT, "SUM", 1 << 20),
    "M": lay_out("average of model 2", FLOAT, "SUM", 1 << 20),
    "X": lay_out("average", [(torch.float32, (4,))], "SUM", 1 << 20),
    "L": lay_out("allreduce MAX", FLOAT, "MAX", 1 << 20),
    "B": lay_out("barrier", [], "SUM", 1 << 20),
    "R": lay_out("broadcast from 0", [(torch.uint8, (3,))], "SUM", 1 << 20),
}
NAMES = {layout.signature: name for name, layout in CALLS.items()}


def pattern(calls: str) -> str:
    """What is found to come next, after these calls."""
    found = CallPattern()
    for call in calls:
        found.note(CALLS[call])
    return "".join(NAMES[made.layout.signature] for made in found.step())


@pytest.mark.parametrize(
    ("calls", "step"),
    [
        ("", ""),
        ("A" * (WINDOW - 1), ""),
        ("A" * WINDOW, "A"),
        ("BX" + "A" * WINDOW, "A"),
        ("AL" * 20, "AL"),
        ("AL" * 20 + "A", "LA"),
        ("ALBL" * 10, "ALBL"),
        ("AAL" * 20, "AAL"),
        ("A" * 40 + "B", ""),
        ("A" * 20 + "B" + "A" * (WINDOW - 1), ""),
        ("A" * 20 + "B" + "A" * WINDOW, "A"),
        (("A" * (LONGEST - 1) + "B") * 5, "A" * (LONGEST - 1) + "B"),
        (("A" * LONGEST + "B") * 5, ""),
    ],
)
def test_patterns(calls: str, step: str) -> None:
    assert pattern(calls) == step


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ("", "do not repeat"),
        ("A", ""),
        ("AL", ""),
        ("LA", "does not begin with an average"),
        ("B", "does not begin with an average"),
        ("AR", "needs this worker itself"),
        ("AX", "averages of different tensors"),
        ("AM", "averages of different tensors"),
        ("AABL", ""),
    ],
)
def test_steps_that_can_be_missed(step: str, reason: str) -> None:
    found = why_not([Made(CALLS[call]) for call in step])
    assert reason in found
    assert bool(found) is bool(reason)


@pytest.mark.parametrize("layouts", [("A", "A"), ("A", "M")])
def test_averages_of_two_models_of_equal_shapes_are_told_apart(layouts: tuple[str, str]) -> None:
    """By their parameters; a wrapper also by what it says of a model."""
    found = CallPattern()
    for _ in range(WINDOW // 2):
        for layout, first in zip(layouts, (1, 2), strict=True):
            found.note(CALLS[layout], first)
    assert [made.owners for made in found.step()] == [1, 2]
    assert "averages of different tensors" in why_not(found.step())


def test_a_call_that_was_declined_belongs_to_the_step_like_the_ones_before() -> None:
    found = CallPattern()
    for first in [1] * WINDOW + [None]:
        found.note(CALLS["A"], first)
    assert len(found.step()) == 1
    assert not why_not(found.step())


def test_a_unit_needs_the_worker_itself() -> None:
    unit = Layout(b"u" * 16, "execute", "execute", CALLS["B"].buckets)
    assert "needs this worker itself" in why_not([Made(CALLS["A"]), Made(unit)])


def test_a_turn_is_lent_only_while_nobody_wants_it() -> None:
    call_lock = CallLock(TIMEOUT)
    inside, go_on = threading.Event(), threading.Event()

    def lent() -> str:
        inside.set()
        assert go_on.wait(TIMEOUT)
        return "done"

    told: list[str | None] = []
    thread = in_thread(lambda: told.append(call_lock.lend(lent)))
    assert inside.wait(TIMEOUT)
    assert call_lock.lend(lambda: "both") is None
    assert not call_lock.inside()
    waiting = in_thread(lambda: call_lock.take("call", lambda: None, lambda: told.append("mine")))
    eventually(lambda: call_lock.awaited, "the program waits")
    go_on.set()
    for each in (thread, waiting):
        each.join(TIMEOUT)
    assert told == ["done", "mine"]
    assert not call_lock.awaited
    assert call_lock.lend(call_lock.inside) is True


class Told:
    """A plane that is active, and what it tells."""

    def __init__(self) -> None:
        self.places: list[tuple[int, int, bool]] = []
        self.plane = Plane("a", lambda finished, current, *, busy, **_: self.places.append((finished, current, busy)))
        view = View(3, "parent", (Member("a", "127.0.0.1", 1), Member("b", "127.0.0.1", 2)))
        chosen = SalvagePlan(10, 10, current_state_id="a", holders=("a", "b"))
        self.session = Session(view, chosen, "a", {"a": 0, "b": 1}, None)
        assert self.plane.activate(self.session)


@pytest.fixture
def told() -> Told:
    return Told()


def backup_call(told: Told, awaited: bool = False) -> BackupCall:
    return BackupCall(0.0, veto=True, awaited=lambda: awaited, present=told.plane.present)


def test_nobody_is_told_of_a_call_that_may_not_have_begun(told: Told) -> None:
    """It would be held against those who are not in it; and a joiner is not made to wait for its end."""
    plane = told.plane
    call = backup_call(told)
    plane.enter(call)
    assert plane.begin(told.session)
    assert told.places[-1] == (10, 0, False)
    plane.entered()
    assert told.places[-1] == (10, 11, True)


def test_a_donor_takes_no_backup_worker_for_its_program(told: Told) -> None:
    told.plane.enter(backup_call(told))
    assert told.plane.current is not None and told.plane.current.number == 11
    assert not told.plane.in_call(11)
    assert told.plane.training_thread == threading.get_ident()


def test_its_patience_begins_when_the_program_waits(told: Told) -> None:
    clock = [0.0]
    waits = [False]
    call = BackupCall(0.0, veto=True, awaited=lambda: waits[0], present=told.plane.present)
    told.plane.enter(call)
    patience = call.patience(600.0, lambda: clock[0])
    clock[0] = 10_000.0
    assert patience.due() is None and patience.deadline > 1e9
    waits[0] = True
    assert patience.due() is None
    assert told.places[-1] == (10, 11, False), "now it waits for the others, and they may know"
    assert patience.deadline == 10_600.0
    clock[0] += WARN_AFTER
    assert patience.due() == WARN_AFTER


def report(state_id: str, *, late: bool, finished: int = 7) -> bytes:
    return Report(finished, 0, finished, b"x", b"", state_id, founder=True, blank=False, has_state=True, late=late).encode()


@pytest.mark.parametrize(
    ("late", "holders"),
    [("", "abc"), ("a", "bc"), ("ab", "c"), ("abc", "abc")],
)
def test_who_is_late_is_asked_last(late: str, holders: str) -> None:
    members = tuple(Member(name, "127.0.0.1", 1000 + number) for number, name in enumerate("abcj"))
    view = View(4, "parent", members)
    chosen = plan(view, {name: report("a", late=name in late) for name in "abc"})
    assert chosen.fault is None
    assert chosen.current_state_id == "a"
    assert "".join(chosen.holders) == holders
    assert (chosen.call, chosen.step) == (7, 7)


def test_what_it_is_behind_is_told_and_forgotten_when_it_is_healed(told: Told) -> None:
    plane = told.plane
    plane.lag.grow(1)
    plane.lag.grow(0)
    assert Report.decode(plane._report(None).encode()).late
    plane.phase = Phase.FROZEN
    healed = SalvagePlan(20, 18, blank=("a",), healed=("a",), current_state_id="b", holders=("b",))
    assert plane.activate(Session(View(4, "p", told.session.view.members), healed, "a", {"a": 0, "b": 1}, None))
    assert (plane.lag.calls, plane.lag.steps) == (0, 0)
    assert not plane.state_id
