"""``ft.decline()``: the others' call, whatever it is, returns FAIL at all members."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from ftlib import ConfigError, Status
from ftlib.ftlib import FTLib
from tests.ftlib.crews.crew import Crew

SIZE = 3
CALLS: dict[str, Callable[[FTLib], Any]] = {
    "average": lambda ft: ft.allreduce_average([torch.ones(1000), torch.ones(3)]),
    "compressed average": lambda ft: ft.allreduce_average([torch.ones(1000)], compression="bf16"),
    "sum": lambda ft: ft.allreduce(torch.ones(5, dtype=torch.int64), "SUM"),
    "broadcast": lambda ft: ft.broadcast(torch.ones(2), 1),
    "barrier": lambda ft: ft.barrier(),
    "vote": lambda ft: ft.vote(1, against=False)[0],
}


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    with Crew(SIZE) as made:
        yield made


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("known", [False, True], ids=["unexpected", "expected"])
def test_a_call_of_any_kind_fails_at_all(crew: Crew, name: str, *, known: bool) -> None:
    call = CALLS[name]
    for _ in range(3 * known):
        assert all(crew.all(lambda ft, _: call(ft)))
    for decliners in ((0,), (1, 2), (2,), (0, 1, 2)):
        assert crew.all(lambda ft, i, those=decliners: ft.decline() if i in those else call(ft)) == [Status.FAIL] * SIZE
    assert all(crew.all(lambda ft, _: call(ft)))


def test_an_average_that_was_declined_grants_no_step_and_changes_no_tensor(crew: Crew) -> None:
    steps = crew.all(lambda ft, _: ft.step)
    tensors = [torch.full((4,), float(i)) for i in range(SIZE)]
    for _ in range(2):
        crew.all(lambda ft, i: ft.decline() if not i else ft.allreduce_average([tensors[i]]))
    assert [tensor.tolist() for tensor in tensors] == [[float(i)] * 4 for i in range(SIZE)]
    assert crew.all(lambda ft, _: ft.step) == steps
    assert all(crew.all(lambda ft, i: ft.allreduce_average([tensors[i]])))
    assert [tensor.tolist() for tensor in tensors] == [[1.0] * 4] * SIZE
    assert crew.all(lambda ft, _: ft.step) == [step + 1 for step in steps]


def test_alone_it_fails_as_well() -> None:
    with Crew(1) as alone:
        assert alone.all(lambda ft, _: ft.decline()) == [Status.FAIL]
        assert all(alone.all(lambda ft, _: ft.barrier()))


def test_it_is_no_part_of_a_unit() -> None:
    with Crew(1) as alone:
        alone.all(lambda ft, _: ft.register_state(state_dict=dict, load_state_dict=lambda _state: None))
        with pytest.raises(ConfigError, match="decline was called within execute"):
            alone.all(lambda ft, _: ft.execute(ft.decline))
