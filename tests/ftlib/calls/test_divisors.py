"""Contributions are divided by the last average's sum of weights as they are staged: results are right whatever that was."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from consensus import Member, View
from ftlib import FTLib, Status
from ftlib.core.calls.adoption import Adoption, donate
from ftlib.core.calls.attempt import Attempt
from ftlib.core.calls.call import Call, CallOutcome, Kind, Results
from ftlib.core.calls.follow import Followed, FollowedAttempt
from ftlib.core.calls.salvage import SalvagePlan
from ftlib.core.calls.session import Session
from ftlib.core.tensors.layout import lay_out
from ftlib.core.tensors.staging import Staging, StagingPool
from ftlib.core.tensors.trailer import Flag, RankRecord
from ftlib.frameworks.base import Operation
from tests.ftlib.crews.crew import Crew

SIZE = 3
WEIGHTS = st.sampled_from([0.0, 1.0, 2.0, 3.0, 0.3, 1e12, 1e-12])
LAYOUT = lay_out("average", [(torch.float32, (4,))], "SUM", 1 << 20)
VIEW = View(3, "parent", (Member("a", "127.0.0.1", 1), Member("b", "127.0.0.1", 2)))


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    with Crew(SIZE) as crew:
        yield crew


def test_weights_may_change_from_call_to_call(crew: Crew) -> None:
    """One session for all examples: each begins with the divisor that the one before has left."""

    @settings(max_examples=30)
    @given(st.lists(st.tuples(*[WEIGHTS] * SIZE), min_size=1, max_size=4))
    def property_(steps: list[tuple[float, ...]]) -> None:
        def train(ft: FTLib, i: int) -> list[tuple[Status, bytes, float]]:
            found = []
            for weights in steps:
                tensor = torch.full((5,), i + 1.0)
                status = ft.allreduce_average(tensor, weight=weights[i])
                found.append((status, tensor.numpy().tobytes(), tensor[0].item()))
            return found

        results = crew.all(train)
        for number, weights in enumerate(steps):
            each = [result[number] for result in results]
            if not sum(weights):
                assert [status for status, *_ in each] == [Status.FAIL] * SIZE
                assert [value for *_, value in each] == [1.0, 2.0, 3.0]
                continue
            wanted = sum(weight * (i + 1) for i, weight in enumerate(weights)) / sum(weights)
            assert [status for status, *_ in each] == [Status.SUCCESS] * SIZE
            assert len({data for _, data, _ in each}) == 1
            assert each[0][2] == pytest.approx(wanted, rel=1e-5)

    property_()


def call(weight: float) -> Call:
    made = Call(Kind.AVERAGE, LAYOUT, [torch.full((4,), 6.0)], weight=weight, divide=True)
    made.enter(8, 0.0)
    return made


class Echo:
    """A group in which another member contributes the same values as this one, with a weight of its own."""

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.session = Session(VIEW, SalvagePlan(7, 7), "a", {"a": 0, "b": 1}, self)  # type: ignore[arg-type]
        self.other = RankRecord(weight, 0, Flag(0), LAYOUT.check)

    def submit(self, operation: Operation) -> Any:
        flat, count = operation[1], LAYOUT.head.count
        if flat.numel() > count:
            there = Session(VIEW, SalvagePlan(7, 7), "b", {"a": 0, "b": 1}, None).codec
            said = torch.zeros(there.elements, dtype=flat.dtype)
            there.write(said.numpy(), self.other, "SUM")
            flat[-there.elements :] += said
            if flat.numel() == count + there.elements:
                flat[:count] += 6.0 * self.weight / self.session.divisor
        return SimpleNamespace(done=lambda: True, wait=lambda _timeout: True)


WAITS: Any = SimpleNamespace(now=lambda: 0.0)


def attempt(echo: Echo, own: Call) -> Results:
    record = RankRecord(own.weight, 0, Flag(0), LAYOUT.check)
    _, results = Attempt(own, echo.session, Staging(LAYOUT, 2), WAITS).run(record, 2)
    return results


def delivered(own: Call, results: Results) -> list[float]:
    own.deliver(results)
    (source,) = own.sources
    assert source is not None
    return source.tolist()


def test_a_redo_assumes_what_its_own_session_had() -> None:
    former, newer = Echo(3.0), Echo(3.0)
    former.session.ended(LAYOUT, 16.0)
    own = call(1.0)
    assert attempt(former, own).assumed == 16.0
    results = attempt(newer, own)
    assert (results.assumed, results.weight, results.divisor) == (2.0, 4.0, 2.0)  # as if both weighed one
    assert delivered(own, results) == [6.0] * 4
    assert newer.session.divisor == 4.0


def test_where_the_weights_are_as_before_the_sums_are_the_averages() -> None:
    echo = Echo(3.0)
    for number in range(3):
        own = call(1.0)
        results = attempt(echo, own)
        assert results.divisor == (1.0 if number else 2.0)
        assert results.slots[0].data.tolist() == [6.0 if number else 12.0] * 4
        assert delivered(own, results) == [6.0] * 4


def test_where_each_weighs_one_the_first_sums_of_a_view_are_the_averages() -> None:
    echo = Echo(1.0)
    results = attempt(echo, call(1.0))
    assert (results.assumed, results.weight, results.divisor) == (2.0, 2.0, 1.0)
    assert results.slots[0].data.tolist() == [6.0] * 4


def test_a_learner_keeps_count_and_says_what_was_assumed() -> None:
    echo = Echo(3.0)
    echo.session.ended(LAYOUT, 16.0)
    followed = Followed(0.0, veto=True)
    followed.enter(8, 0.0)
    layouts: Any = lambda _session, _start: LAYOUT  # noqa: E731 - in place of a method
    record = RankRecord(0.0, 0, Flag.FOLLOWING, LAYOUT.check)
    _, results = FollowedAttempt(followed, echo.session, StagingPool(2), WAITS, layouts).run(record, 2)
    assert (results.assumed, results.weight) == (16.0, 3.0)
    assert results.slots[0].data.tolist() == [18.0 / 16.0] * 4
    assert echo.session.divisor == 3.0


class Post:
    """What one sends the other receives."""

    def __init__(self) -> None:
        self.letters: dict[int, torch.Tensor] = {}

    def send(self, tensor: torch.Tensor, _rank: int, tag: int) -> Any:
        self.letters[tag] = tensor.clone()

    def recv(self, tensor: torch.Tensor, _rank: int, tag: int) -> Any:
        tensor.copy_(self.letters[tag])


@pytest.mark.parametrize("divisor", [1.0, 16.0, 4.0])
def test_who_adopts_gets_the_bits_and_what_was_assumed(divisor: float) -> None:
    echo = Echo(3.0)
    echo.session.ended(LAYOUT, divisor)
    own, others = call(1.0), call(1.0)
    results = attempt(echo, own)
    post: Any = Post()
    donate(post, 1, results)
    adopted = Adoption(others, post, 0, Staging(LAYOUT, 2)).receive(lambda _work, _slot: None)
    assert (adopted.assumed, adopted.weight) == (results.assumed, results.weight) == (divisor, 4.0)
    assert delivered(others, adopted) == delivered(own, results) == [6.0] * 4


def test_who_adopts_what_another_shard_has_no_result_of_has_none() -> None:
    """Nothing in the sums shows it, so the log does not blame their inf or nan either."""
    own, others = call(1.0), call(1.0)
    results = attempt(Echo(3.0), own)
    results.refuse()
    post: Any = Post()
    donate(post, 1, results)
    adopted = Adoption(others, post, 0, Staging(LAYOUT, 2)).receive(lambda _work, _slot: None)
    assert own.void(results)
    assert others.void(adopted)
    assert adopted.outcome is results.outcome is CallOutcome.VOID_ELSEWHERE
