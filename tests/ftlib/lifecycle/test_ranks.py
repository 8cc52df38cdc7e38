"""Ranks from a scheme of the program's own: what it does wrong is said to whom it concerns, and stops nobody else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from consensus import Member
from ftlib import ConfigError, FTLib, RankAssignScheme
from tests.harness.basics import TIMEOUT, eventually
from tests.harness.company import Company, at_once, call_until, company


class Reversed(RankAssignScheme):
    """The newest member is the first. It has an error in lists that are too long for it."""

    def __init__(self, most: int) -> None:
        self.most = most

    def get_rank_and_size(self, member_list: Sequence[Member], self_id: str) -> tuple[int, int]:
        size = len(member_list)
        place = [member.id for member in member_list].index(self_id)
        return range(size - 1, -1, -1)[: self.most][place], size


class Constant(RankAssignScheme):
    """The same rank for all."""

    def __init__(self, rank: Any) -> None:
        self.rank = rank

    def get_rank_and_size(self, member_list: Sequence[Member], self_id: str) -> Any:
        return self.rank, len(member_list)


def test_ranks_are_those_of_the_scheme() -> None:
    with company(3, rank_assign=Reversed(3)) as crew:
        assert [ft.rank for ft in crew.members] == [0, 1, 2]
        oldest_first = [ft._consensus.id for ft in reversed(crew.members)]
        assert oldest_first == [member.id for member in crew.members[0]._consensus.get_member_list()]


@pytest.mark.parametrize(
    ("scheme", "text"),
    [
        (Reversed(1), r"Reversed\.get_rank_and_size failed for a view of 2 members: IndexError\("),
        (Constant(0), r"Constant\.get_rank_and_size gave the ranks \[0, 0\] to 2 members: give each another one"),
        (Constant("0"), r"Constant\.get_rank_and_size failed .*TypeError\("),
    ],
)
def test_who_cannot_begin_is_told_of_the_scheme(scheme: RankAssignScheme, text: str) -> None:
    with pytest.raises(ConfigError, match=f"^rank_assign: {text}"):
        Company(2, rank_assign=scheme)


@pytest.mark.parametrize("scheme", [5, "", {}, RankAssignScheme])
def test_what_is_no_scheme_is_refused_before_anything_starts(scheme: Any) -> None:
    with pytest.raises(ConfigError, match=r"rank_assign=.* has no get_rank_and_size"):
        FTLib.init(framework="memory", rank_assign=scheme)


def test_those_that_work_together_go_on_without_one_that_there_is_no_rank_for() -> None:
    with company(2, rank_assign=Reversed(2)) as crew:
        staying = crew.members[:]
        over: list[bool] = []

        def join() -> None:
            newcomer = crew.init()
            with pytest.raises(ConfigError, match="rank_assign: Reversed"):
                newcomer.barrier()
            newcomer.close()
            eventually(lambda: all(ft.size == 2 and ft.initialized() for ft in staying), "they go on", TIMEOUT)
            over.append(True)

        at_once(join, *[lambda ft=ft: call_until(ft, lambda: bool(over)) for ft in staying])
        assert all(ft.size == 2 and ft.epoch > 1 for ft in staying)
