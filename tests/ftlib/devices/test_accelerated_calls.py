"""Nothing goes by accelerators before all members have said that theirs works, in a call that all of them have entered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch

from ftlib.core.calls.device_attempt import DeviceAttempt
from ftlib.core.tensors.staging import Slot
from ftlib.core.tensors.trailer import RankRecord
from ftlib.errors import GroupError, StepMismatch
from ftlib.frameworks import gloo, sockets
from ftlib.frameworks.accelerators.group import HybridGroup
from ftlib.frameworks.accelerators.rehearsal import Faults, RehearsalFramework
from ftlib.frameworks.base import Group, Operation, Work
from ftlib.frameworks.gloo_work import FailedWork
from ftlib.ftlib import FTLib
from tests.ftlib.crews.crew import Crew

pytestmark = pytest.mark.skipif(not sockets.supported(), reason="needs /proc")

SIZE = 3
LAST = SIZE - 1
TRIES = 500
"""Calls until accelerators must work, which takes some ten."""


class Bulk:
    """The launches of all groups in this process."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.launched: list[HybridGroup] = []
        self.refused: set[HybridGroup] = set()
        """Groups whose launches are noted and not carried out: Gloo ends a process whose buffer is smaller than a peer's."""
        submit = HybridGroup.submit_bulk

        def submit_bulk(group: HybridGroup, operations: Sequence[Operation], after: Callable[[], None] | None = None) -> Work:
            self.launched.append(group)
            return FailedWork(GroupError("refused")) if group in self.refused else submit(group, operations, after)

        patch.setattr(HybridGroup, "submit_bulk", submit_bulk)

    def of(self, groups: set[HybridGroup]) -> int:
        return sum(group in groups for group in self.launched)


@pytest.fixture
def crew(monkeypatch: pytest.MonkeyPatch) -> Iterator[Crew]:
    monkeypatch.setattr(gloo, "_FINISH", 0.1)  # each of them would wait for what the others have under way
    with Crew(SIZE, lambda _: RehearsalFramework(Faults())) as crew:
        yield crew


def until_accelerated(crew: Crew, bulk: Bulk) -> set[HybridGroup]:
    """Everybody's group, once they reduce by accelerators."""
    for _ in range(TRIES):
        crew.all(lambda ft, _: ft.allreduce(torch.ones(1000), "SUM"))
        if len(set(bulk.launched)) == SIZE:
            return set(bulk.launched)
    raise AssertionError("no accelerators")


OTHERS = {
    "another size": lambda: torch.ones(3000),
    "another dtype": lambda: torch.ones(1000, dtype=torch.float16),
    "a tensor that is not on a device": lambda: torch.ones(1000, dtype=torch.int32),
}


def check_that_no_bulk_is_sent(
    crew: Crew,
    patch: pytest.MonkeyPatch,
    name: str,
    plant: Callable[[pytest.MonkeyPatch, set[HybridGroup]], None] | None = None,
) -> None:
    """One member enters with another tensor: it is told, and until then nobody has sent a bulk of any layout."""
    bulk, other = Bulk(patch), OTHERS[name]
    groups = until_accelerated(crew, bulk)
    before, bulk.refused = bulk.of(groups), groups
    if plant is not None:
        plant(patch, groups)

    def body(ft: FTLib, i: int) -> str:
        try:
            ft.allreduce(other() if i == LAST else torch.ones(1000), "SUM")
        except StepMismatch as error:
            return str(error)
        return ""

    told = crew.all(body)
    assert [bool(text) for text in told] == [False, False, True]
    assert bulk.of(groups) == before, "bulk was begun before the check of a new layout"


@pytest.mark.parametrize("name", OTHERS)
def test_members_disagree(crew: Crew, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_that_no_bulk_is_sent(crew, monkeypatch, name)


def begins_bulk_and_head(patch: pytest.MonkeyPatch, groups: set[HybridGroup]) -> None:
    """In these groups the accelerator gets its buckets before the head has shown that all members are in the same call."""
    begin, launch = DeviceAttempt._begin_head, DeviceAttempt._launch
    early: dict[DeviceAttempt, dict[int, Slot]] = {}

    def begin_bulk_and_head(self: DeviceAttempt, group: Group, record: RankRecord) -> Slot:
        if group in groups:
            early[self] = launch(self, group, accelerated=True)
        return begin(self, group, record)

    def begun(self: DeviceAttempt, group: Group, *, accelerated: bool) -> dict[int, Slot]:
        return early.pop(self) if self in early else launch(self, group, accelerated=accelerated)

    patch.setattr(DeviceAttempt, "_begin_head", begin_bulk_and_head)
    patch.setattr(DeviceAttempt, "_launch", begun)


def test_planted_bulk_begun_before_the_check_of_a_new_layout(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="bulk was begun before the check"):
        check_that_no_bulk_is_sent(crew, monkeypatch, "another size", begins_bulk_and_head)


def test_a_member_without_its_accelerator(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so in its trailer: that call and those after it go by Gloo at all members."""
    bulk = Bulk(monkeypatch)
    groups = until_accelerated(crew, bulk)
    without = next(group for group in groups if group.rank == LAST)
    there = HybridGroup.accelerated.fget
    assert there is not None
    monkeypatch.setattr(HybridGroup, "accelerated", property(lambda group: group is not without and there(group)))
    before = bulk.of(groups)
    for _ in range(5):
        tensors = [torch.full((1000,), float(i)) for i in range(SIZE)]
        crew.all(lambda ft, i, own=tensors: ft.allreduce(own[i], "SUM"))
        assert all(torch.equal(tensor, torch.full((1000,), 3.0)) for tensor in tensors)
    assert bulk.of(groups) == before
