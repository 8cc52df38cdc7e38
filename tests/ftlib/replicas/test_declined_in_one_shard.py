"""A call that one process of a replica declines has ended in the same way in all shards."""

from __future__ import annotations

import functools
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from ftlib import DistributedDataParallel, Status
from ftlib.core.calls.call import Call, CallOutcome, Kind, Results
from ftlib.core.calls.salvage import SalvagePlan
from ftlib.core.engine.shard_agreement import word_of_the_finished
from ftlib.core.plane.plane import Plane
from ftlib.core.replicas.words import WordFlag
from ftlib.core.tensors.layout import lay_out
from ftlib.core.tensors.trailer import Trailer
from tests.ftlib.plane.sessions import AFTER_SEVEN, LAYOUT, average, session
from tests.harness.company import Company, at_once

STEPS = 4


@pytest.mark.parametrize(("replicas", "declining"), [("a", ["a0"]), ("ab", ["a0"]), ("ab", ["a0", "b0"])])
def test_a_call_that_a_wrapper_makes_before_an_average_is_declined_in_all_shards(
    replicas: str, declining: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """In the shard of who declines it all go on to the average. In the others it was made again, and the shards were in
    different steps from then on. Nobody of a shard may have been in it, or this process may be alone in its group.
    """
    made = Company(0, initial_size=len(replicas), shards=2, recovery="wait")
    [first] = made.settings["introducers"]

    def live(name: str, shard: int) -> list[tuple[Status | None, int]]:
        with made.init(replica=name, shard=shard, bind=("127.0.0.1:0", first)[f"{name}{shard}" == "a0"]) as ft:
            module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1)).eval()
            model = DistributedDataParallel(ft, module, broadcast_buffers=True)
            ft.register_state(model=module)
            found = []
            for step in range(STEPS):
                if step == 1 and f"{name}{shard}" in declining:
                    found.append((ft.decline(), ft._plane.finished))
                    continue
                model(torch.full((1, 2), float(step))).sum().backward()
                found.append((model.status, ft._plane.finished))
            return found

    found = at_once(*[functools.partial(live, name, shard) for name in replicas for shard in range(2)])
    assert all(each == found[0] for each in found)
    assert [bool(status) for status, _ in found[0]] == [True, False, True, True]
    assert "nobody" not in caplog.text, "nothing held inf or nan"


def test_who_has_finished_a_call_says_in_the_next_view_how_it_ended() -> None:
    """A mate that still holds its result goes by that: it leaves out the same checkpoint, and does not take a call that was
    declined for one that held inf or nan.
    """
    plane, here = Plane("a"), session(3, AFTER_SEVEN, "a")
    assert plane.activate(here)
    layout = lay_out("broadcast before a call", [(torch.uint8, (2,))], "SUM", 1 << 20)
    plane.enter(call := Call(Kind.BROADCAST, layout, [torch.zeros(2, dtype=torch.uint8)]))
    results = Results(8, layout, (), 1.0)
    assert plane.begin(here) and plane.hold(here, results, Trailer.of(()))
    results.preface = True
    results.refuse(declined=True)
    plane.saves.agree(writing=True)
    assert plane.finish(here, call, Trailer.of(()), results) is not None

    def said(epoch: int, number: int) -> WordFlag:
        word = word_of_the_finished(plane, session(epoch, SalvagePlan(number, 7), "a"))
        assert word is not None and (word.epoch, word.call) == (epoch, number)
        return word.said

    assert said(4, 8) == WordFlag.VOID | WordFlag.DECLINED | WordFlag.PREFACE | WordFlag.SAVING
    plane.enter(call := average())
    assert plane.begin(here)
    plane.saves.agree(writing=False)
    assert plane.finish(here, call, Trailer.of(()), Results(9, LAYOUT, (Mock(),), 3.0)) is not None
    assert said(5, 9) == WordFlag(0)


@pytest.mark.parametrize(
    ("intact", "declined", "after_void", "after_declined"),
    [
        pytest.param(True, False, CallOutcome.VOID_ELSEWHERE, CallOutcome.DECLINED_ELSEWHERE, id="intact"),
        pytest.param(False, False, CallOutcome.NOT_FINITE, CallOutcome.DECLINED_ELSEWHERE, id="inf or nan"),
        pytest.param(True, True, CallOutcome.DECLINED_HERE, CallOutcome.DECLINED_HERE, id="declined"),
        pytest.param(False, True, CallOutcome.DECLINED_HERE, CallOutcome.DECLINED_HERE, id="declined, with inf or nan"),
    ],
)
def test_what_is_known_in_this_shard_outweighs_that_another_one_has_no_result(
    intact: bool, declined: bool, after_void: CallOutcome, after_declined: CallOutcome
) -> None:
    """Only where nothing is wrong with the sums here, others explain it. In the next view a mate may have heard more."""

    def results() -> Results:
        return Results(8, LAYOUT, (), 3.0, intact, declined=declined)

    once, twice, both = results(), results(), results()
    once.refuse()
    twice.refuse(declined=True)
    both.refuse()
    both.refuse(declined=True)
    both.refuse()
    assert (once.outcome, twice.outcome, both.outcome) == (after_void, after_declined, after_declined)
    assert twice.outcome.declined
    assert once.outcome.declined is declined
    assert once.signature == twice.signature == (b"" if declined else LAYOUT.signature)
