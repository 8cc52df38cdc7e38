"""Averages that are compressed while workers come, go, wait as spares, and are late: all have the same bits after each step."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from ftlib import Compression, PowerSGD
from ftlib.core.backup.pattern import WINDOW
from ftlib.core.tensors.compression.reduction import Reduction
from ftlib.frameworks.base import Operation
from tests.ftlib.crews.latecomers import Latecomer, late, steps
from tests.ftlib.recovery.pupils import Pupil, assert_equal
from tests.ftlib.recovery.test_following import SLOW, followed, join, school
from tests.ftlib.recovery.test_spares import Spare
from tests.ftlib.recovery.test_spares import school as with_spares

KINDS = ["bf16", "int8", PowerSGD(2)]
NAMED = pytest.mark.parametrize(
    "compression", [kind if kind == "int8" else pytest.param(kind, marks=pytest.mark.soak) for kind in KINDS], ids=str
)
"""Each takes seconds."""


class Rounded(Compression):
    """A program's own."""

    name = "rounded"
    stages = 1

    def reduce(self, reduction: Reduction) -> Iterator[Operation]:
        yield reduction.allreduce(reduction.data)
        reduction.data.mul_(64.0).round_().div_(64.0)


def thrifty(kind: type[Any], compression: Any) -> type[Any]:
    """Pupils of that kind that compress."""
    return type("Thrifty", (kind,), {"compression": compression})


@pytest.mark.parametrize("compression", [*(pytest.param(kind, marks=pytest.mark.soak) for kind in KINDS), Rounded()], ids=str)
def test_a_joiner_follows_and_replays(compression: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with school(3, thrifty(Pupil, compression), **SLOW) as made:
        joiner = join(made)
    assert followed(caplog)
    assert assert_equal(*made.pupils) >= 4
    assert joiner.statuses[0]


@pytest.mark.soak
@NAMED
def test_members_die_and_others_come(compression: Any) -> None:
    with school(4, thrifty(Pupil, compression)) as made:
        for victim in (0, 2):
            pupil = made.pupils[victim]
            steps(pupil, 3)
            pupil.crash()
            steps(made.pupils[3], 3)
            steps(made.enrol(seed=40 + victim), 3)
        made.end()
        assert assert_equal(*(pupil for pupil in made.pupils if not pupil.crashed)) >= 3
        assert assert_equal(*made.pupils[:4]) >= 3


@NAMED
def test_a_spare_is_level(compression: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pupil, "compression", compression)
    with with_spares(3) as made:
        spare = made.spare()
        assert isinstance(spare, Spare)
        made.level(spare)
        made.crash(made.pupils[1])
        made.counts(spare, 3)
        assert assert_equal(*made.pupils, spare) > 2


@NAMED
def test_a_backup_worker_stands_in(compression: Any) -> None:
    with late(make=functools.partial(thrifty(Latecomer, compression))) as made:
        first, _, last = made.pupils
        last.stay_away()
        steps(first, 5)
        last.come()
        assert last.ft.metrics()["stood_in"] > 3
        made.end()
    assert assert_equal(*made.pupils) > WINDOW // 4
