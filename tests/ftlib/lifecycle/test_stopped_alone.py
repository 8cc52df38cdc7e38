"""A worker that has stopped by itself, by an error of its own: the others go on without it, whatever it does from then on."""

from __future__ import annotations

import functools

import pytest
import torch

import ftlib.ftlib
from consensus import Cause
from ftlib import Excluded, FTLib, Status
from ftlib.errors import ConfigError
from tests.ftlib.lifecycle.test_ranks import Constant
from tests.harness.basics import TIMEOUT, eventually
from tests.harness.company import Company, at_once, company


def stop(ft: FTLib) -> None:
    """As an accelerator does that has broken down."""
    ft._engine.fail(Excluded("broken"))


@pytest.mark.parametrize("which", [0, 1], ids=["the most senior", "the other"])
@pytest.mark.parametrize("size", [2, 3])
def test_the_others_go_on_while_its_program_does_something_else(size: int, which: int) -> None:
    """It neither calls nor closes. Where it is the most senior of two, there is no view without it unless it votes for that."""
    with company(size) as crew:
        stopped = crew.members[which]
        others = [ft for ft in crew.members if ft is not stopped]
        stop(stopped)
        found = at_once(*[functools.partial(ft.allreduce_average, torch.ones(1)) for ft in others])
        assert found == [Status.SUCCESS if size == 3 else Status.NO_NEED] * len(others)
        assert [ft.size for ft in others] == [size - 1] * (size - 1)
        with pytest.raises(Excluded, match="broken"):
            stopped.barrier()


def test_it_goes_only_once_they_have_agreed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was decided without it may be known to it alone: it leads the change, and they wait."""
    monkeypatch.setattr(ftlib.ftlib, "CLOSE_TIMEOUT", TIMEOUT)
    with company(2) as crew:
        senior, junior = crew.members
        stop(senior)
        senior.close()
        assert senior._plane.released
        assert junior.barrier() is Status.NO_NEED
        reason = junior._consensus.why(senior._consensus.id)
        assert reason is not None and reason.cause is Cause.LEFT


def test_so_it_is_if_it_had_no_place_in_the_first_view() -> None:
    """Two that have never met before know little of each other: neither may go on without the other's word."""

    wrong = Constant(0)
    alone: list[FTLib] = []

    class Mixed(Company):
        def init(self, **settings: object) -> FTLib:
            wrong_here = settings["bind"] == self._first
            ft = super().init(**settings, **({"rank_assign": wrong} if wrong_here else {}))
            eventually(lambda: ft.size == 1, "the other is alone", TIMEOUT)
            alone.append(ft)
            return ft

    with pytest.raises(ConfigError, match="gave the ranks"):
        Mixed(2)
    assert len(alone) == 1
