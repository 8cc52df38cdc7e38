"""A result that a process of a replica holds since the view before, and the call that its program makes after an exception."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from ftlib import FTLib
from ftlib.core.calls.call import Call, Kind, Results
from ftlib.core.calls.follow import Declined, Followed
from ftlib.core.calls.salvage import SalvagePlan
from ftlib.core.engine.call_lock import CallLock
from ftlib.core.engine.catching_up import CatchUp
from ftlib.core.engine.engine import Engine
from ftlib.core.engine.shard_agreement import word_of_the_finished
from ftlib.core.engine.waiting import Limits
from ftlib.core.plane.orders import Order
from ftlib.core.plane.plane import Plane
from ftlib.core.replicas.words import Word, WordFlag
from ftlib.core.tensors.layout import lay_out
from ftlib.core.tensors.staging import StagingPool
from ftlib.core.tensors.trailer import Trailer
from ftlib.errors import StepMismatch
from ftlib.status import Status
from tests.ftlib.plane.sessions import AFTER_SEVEN, LAYOUT, average, session
from tests.harness.basics import eventually
from tests.harness.company import Company, at_once

SHORT = lay_out("average", [(torch.float32, (2,))], "SUM", 1 << 20)


class Interrupted(Exception):
    """Ctrl-C, say."""


class Kept:
    """A member that has held the sum of an average, 3 x 6, in call 8, which the program left by an exception meanwhile; the
    others have finished that call.
    """

    def __init__(self, *, accompanied: bool = False, limits: Limits | None = None) -> None:
        """``accompanied``: it is a newcomer, and had nothing of its own in that call."""
        self.plane = plane = Plane("a")
        ends = Mock(side_effect=Interrupted)
        calls = {"load": Mock(), "obtain": ends, "inquiry": Mock(ask=ends)}
        self.engine = Engine(plane, Mock(), Mock(), CallLock(1.0), limits or Limits(), 2, **calls)
        here = session(3, replace(AFTER_SEVEN, blank=("a",) * accompanied), "a", group=Mock())
        assert plane.activate(here)
        plane.state_id = "" if accompanied else "a"
        plane.enter(Followed(0.0, veto=True) if accompanied else average())
        slots = [StagingPool(2).staging(LAYOUT).slot(0, 0)]
        slots[0].claim()
        slots[0].data.fill_(6.0)
        assert plane.begin(here) and plane.hold(here, Results(8, LAYOUT, slots, 3.0), Trailer.of(()))
        plane.abandon()
        plan = SalvagePlan(8, 8, current_state_id="b" if accompanied else "a", holders=("b" if accompanied else "a",))
        assert plane.activate(session(4, plan, "a", group=Mock(), keeps=True))


def test_the_call_made_again_has_it() -> None:
    kept, call = Kept(), average()
    assert kept.engine.run(call) is Status.SUCCESS
    assert torch.equal(call.sources[0], torch.full((3,), 2.0))
    assert kept.plane.step == 8


def test_it_is_no_step_of_the_few_who_are_left() -> None:
    """Else it would fail where too few are left, though the others have applied it."""
    kept = Kept(limits=Limits(step_timeout=0.1, min_size=4))
    assert kept.engine.run(average()) is Status.SUCCESS


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(Call(Kind.BARRIER, lay_out("barrier", [], "SUM", 1 << 20), []), id="barrier"),
        pytest.param(Call(Kind.AVERAGE, SHORT, [torch.ones(2)], divide=True), id="other tensors"),
    ],
)
def test_another_call_has_not(call: Call) -> None:
    """It would end as if all were well, and this member would never apply what the others have."""
    kept = Kept()
    with pytest.raises(StepMismatch, match=r"call 8, .* was finished by the others with other tensors or another operation"):
        kept.engine.run(call)
    assert kept.plane.finished == 7


def test_who_declines_it_counts_it_as_the_others_do() -> None:
    kept, call = Kept(), Declined(veto=True)
    assert kept.engine.run(call) is Status.SUCCESS
    assert call.lacks is not None and call.kind is Kind.AVERAGE
    assert (kept.plane.finished, kept.plane.step) == (8, 8)


@pytest.mark.parametrize(("writing", "void", "newcomer"), [(True, False, False), (False, True, False), (False, False, True)])
def test_who_has_finished_it_says_again_what_they_had_agreed_on(writing: bool, void: bool, newcomer: bool) -> None:
    """Those that had not heard it come to the same in the next view: whether it has a result, who comes in with it, and whether
    they leave out a checkpoint, as a step that some of them write is none.
    """
    plane, blank = Plane("b"), ("b",) if newcomer else ()
    here = session(3, SalvagePlan(7, 7, blank=blank, current_state_id="a", holders=("a",)), "b")
    assert plane.activate(here)
    plane.enter(call := average())
    results = Results(8, LAYOUT, (), 3.0)
    results.agreed_on(out=newcomer, preface=False)
    if void:
        results.refuse()
    plane.saves.agree(writing=writing)
    assert plane.begin(here) and plane.finish(here, call, Trailer.of(()), results)
    plane.freeze(Order(4, None))
    following = session(4, SalvagePlan(8, 8, current_state_id="a", holders=("a",)), "b")
    assert plane.activate(following)
    word = word_of_the_finished(plane, following)
    said = WordFlag.SAVING * writing | WordFlag.VOID * void | WordFlag.OUT * newcomer
    assert word == Word(4, 8, said)


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(SalvagePlan(0, 0), id="there was none"),
        pytest.param(SalvagePlan(8, 8, adoptions=(("a", "b"),)), id="it gets the result"),
        pytest.param(SalvagePlan(8, 8, blank=("a",)), id="it gets the state"),
        pytest.param(SalvagePlan(8, 8, healed=("a",)), id="it was behind"),
    ],
)
def test_who_has_not_finished_it_says_nothing_yet(plan: SalvagePlan) -> None:
    assert word_of_the_finished(Plane("a"), session(4, plan, "a")) is None
    assert word_of_the_finished(Plane("a"), session(4, SalvagePlan(8, 8), "a", keeps=True)) is None


@pytest.mark.parametrize("call", [average, CatchUp])
def test_a_newcomer_has_not_made_the_others_call_whose_result_it_holds(call: Callable[[], Call]) -> None:
    """It takes part in that to its end, and asks for the next one; or it would apply an average that was computed without it,
    or wait for the state before a call that the others have finished.
    """
    kept = Kept(accompanied=True)
    with pytest.raises(Interrupted):
        kept.engine.run(call())
    assert (kept.plane.finished, kept.plane.newcomer) == (8, True)


@pytest.mark.parametrize("again", ["average", "decline"])
def test_the_only_replica_ends_a_call_in_all_of_its_processes(again: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is alone in its group. The mate of one that leaves the wait by an exception has ended the call by its word."""
    made = Company(0, initial_size=1, replica="blue", shards=2, recovery="wait")
    [first] = made.settings["introducers"]
    members: list[FTLib] = [None, None]  # type: ignore[list-item]

    def live(shard: int) -> tuple[Any, ...]:
        with made.init(shard=shard, bind=("127.0.0.1:0", first)[not shard]) as ft:
            members[shard] = ft
            ft.barrier()
            own = torch.full((2,), 3.0 + shard)
            if shard:
                status = ft.allreduce_average(own)
            else:
                mates = ft._lives.life.mates
                assert mates is not None

                def verdict(_seconds: float) -> None:
                    eventually(lambda: members[1]._plane.finished == 2, "the mate has ended it")
                    raise Interrupted

                with monkeypatch.context() as patch:
                    patch.setattr(mates, "verdict", verdict)
                    with pytest.raises(Interrupted):
                        ft.allreduce_average(own)
                status = ft.decline() if again == "decline" else ft.allreduce_average(torch.zeros(2))
            ft.barrier()
            return bool(status), ft.step, ft._plane.finished

    assert at_once(*[functools.partial(live, shard) for shard in range(2)]) == [(True, 1, 3)] * 2
