"""torch's ``DistributedDataParallel`` as oracle: the same programs get the same gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ftlib import DistributedDataParallel
from ftlib.ftlib import FTLib
from tests.ftlib.crews.crew import Crew
from tests.harness.nursery import Nursery
from tests.harness.program import Program
from tests.train.cases import CASES, Gradients, near

SIZE = 2
LIMIT = 100.0


def consulted(nursery: Nursery, where: Path, device: str) -> list[dict[str, Gradients]]:
    """What torch's wrapper gives, by rank."""
    places = [where / str(rank) for rank in range(SIZE)]
    for place in places:
        place.mkdir()
    programs = [
        Program(nursery, place, "-m", "tests.train.cases", rank, SIZE, where / "meeting", place / "found", device)
        for rank, place in enumerate(places)
    ]
    for program in programs:
        with program:
            assert program.wait(LIMIT) == 0, program.stderr
    return [torch.load(place / "found", map_location="cpu") for place in places]


@pytest.fixture(scope="module")
def wanted(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Gradients]]:
    return consulted(nursery, tmp_path_factory.mktemp("oracle"), "cpu")


@pytest.fixture(scope="module", params=["copies", "views"])
def crew(request: pytest.FixtureRequest) -> Iterator[Crew]:
    """Two workers: without registered state gradients are copies of the averages, in buckets of the first order for ever."""
    with Crew(SIZE) as crew:
        if request.param == "views":
            crew.all(lambda ft, _: ft.register_state(state_dict=dict, load_state_dict=lambda _: None))
        yield crew


def wrapping(ft: FTLib) -> Callable[..., Any]:
    return lambda module, **arguments: DistributedDataParallel(ft, module, **arguments)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_torch(name: str, crew: Crew, wanted: list[dict[str, Gradients]]) -> None:
    found = crew.all(lambda ft, _: (ft.rank, CASES[name](wrapping(ft), ft.rank)))
    for rank, gradients in found:
        near(gradients, wanted[rank][name])
