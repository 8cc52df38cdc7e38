"""Which call the members of a session expect next: a function of the calls that they have finished in it, nothing else."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from ftlib.core.calls.attempt import Attempt
from ftlib.core.calls.salvage import SalvagePlan
from ftlib.core.calls.session import Session
from ftlib.core.tensors.layout import Layout, lay_out
from tests.ftlib.calls.test_divisors import VIEW
from tests.ftlib.crews.workers import Job, Worker
from tests.harness.basics import around, eventually


def kind(name: str) -> Layout:
    return lay_out(name, [(torch.float32, (4,))], "SUM", 1 << 20)


KINDS = {name: kind(name) for name in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}


def session(rank: int = 0, first: Layout | None = None) -> Session:
    return Session(VIEW, SalvagePlan(7, 7), "ab"[rank], {"a": 0, "b": 1}, None, expected=first)


def expected(calls: str) -> str:
    """By their letters: what was expected before each of ``calls``, and after the last one."""
    there, found = session(), ""
    for name in calls:
        found += "-" if there.expected is None else there.expected.kind
        there.ended(KINDS[name])
    return found + there.expected.kind if there.expected else found


@pytest.mark.parametrize(
    ("calls", "before"),
    [
        ("", ""),
        ("AAAA", "-AAAA"),
        ("ABABAB", "-ABAABA"),  # an average, and the loss
        ("ABCABCABC", "-ABCACABCA"),
        ("AABAABAABAAB", "-AABABAABAABA"),
        ("AAAZAAAZAA", "-AAAZAZAAAZ"),  # an evaluation now and then costs the call before which it is expected in vain
    ],
)
def test_what_came_after_such_a_call_the_last_time_comes_again(calls: str, before: str) -> None:
    assert expected(calls) == before


def test_members_expect_the_same_whoever_made_the_layouts() -> None:
    rng = random.Random(4)
    here, there = session(), session(1)
    for _ in range(500):
        name = rng.choice("ABCDEF")
        here.ended(KINDS[name])
        there.ended(kind(name))
        assert here.expected is not None
        assert there.expected is not None
        assert here.expected.signature == there.expected.signature


@pytest.mark.parametrize("calls", ["AAAB", "ABABAB", "BABA", "AAABAAAB"])
def test_a_session_that_expects_a_call_begins_as_after_three_of_them(calls: str) -> None:
    """So the first of them changes nothing, and whoever leaves that note out expects what the others do."""
    here, there = session(first=kind("A")), session(1, kind("A"))
    assert there.repeated is there.expected
    for _ in range(3):
        there.ended(KINDS["A"], 2.0)
    for name in calls:
        assert here.expected is not None
        assert there.expected is not None
        assert here.expected.signature == there.expected.signature
        here.ended(KINDS[name])
        there.ended(KINDS[name])


def test_a_loop_that_repeats_itself_is_known_from_its_third_turn_on() -> None:
    for turn in ("AB", "ABC", "ABCDEFGH", "".join(KINDS)):
        calls = turn * 4
        assert expected(calls)[2 * len(turn) : -1] == calls[2 * len(turn) :]


def test_calls_that_never_repeat_are_forgotten() -> None:
    there = session()
    for number in range(300):
        there.ended(kind(str(number)))
        assert there.expected is not None
        assert there.expected.kind == str(number)
    assert len(there._after) == 64


def test_a_unit_begins_with_its_first_call() -> None:
    there, commit = session(), kind("commit")
    for number in range(3):
        there.ended(KINDS["A"])
        there.expect(commit)
        there.ended(commit, script=(KINDS["B"], KINDS["C"], commit))
        assert there.expected is (KINDS["A"] if number else KINDS["B"]), "as the first call of the next unit, if one follows"
        assert there.script == (KINDS["B"], KINDS["C"], commit)
    there.ended(KINDS["A"])
    assert there.expected is KINDS["B"]


def test_only_an_average_that_has_a_weight_sets_the_divisor() -> None:
    there = session()
    there.ended(KINDS["A"], 3.0)
    there.ended(KINDS["B"])
    assert there.divisor == 3.0


@pytest.mark.parametrize("inside", [True, False], ids=["all are in it", "one is in none"])
def test_the_call_that_all_were_in_begins_again_without_a_prelude(monkeypatch: pytest.MonkeyPatch, inside: bool) -> None:
    """Else there is one, and as many members take part in it as there are: the one outside cannot know which call it is."""
    preludes: list[tuple[int, str]] = []

    @around(monkeypatch, Attempt, "_say")
    def say(honest: Any, self: Attempt, *given: Any) -> Any:
        preludes.append((self._session.view.epoch, self._session.member_id))
        return honest(self, *given)

    def in_the_second(worker: Worker) -> bool:
        call = worker.ft._plane.current
        return call is not None and call.number == 2

    def body(worker: Worker) -> float:
        worker.ft.barrier()
        workers = worker.job.workers
        if worker.name == "w2":
            eventually(lambda: all(in_the_second(workers[name]) for name in ("w0", "w1")[: 1 + inside]), "they are in the call")
            worker.job.kill("w2")
            return 0.0
        if worker.name == "w1" and not inside:
            eventually(lambda: worker.ft.epoch == 2, "it is in the next view")
        tensor = torch.full((3,), 4.0 if worker.name == "w0" else 2.0)
        assert worker.ft.allreduce_average(tensor)
        return float(tensor[0])

    with Job(3) as job:
        found = job.run({f"w{i}": body for i in range(3)})
    assert found == {"w0": 3.0, "w1": 3.0, "w2": 0.0}
    assert sorted(member for epoch, member in preludes if epoch == 2) == ([] if inside else ["w0", "w1"])
