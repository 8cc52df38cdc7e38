"""When a program is told of a view: after the same call at all members, wherever the change found them."""

from __future__ import annotations

import functools
from typing import cast

import torch

from consensus import View
from ftlib import FTLib
from ftlib.core.plane.news import News
from tests.ftlib.crews.trainees import exclude
from tests.harness.basics import eventually
from tests.harness.company import company, in_thread


def note(ft: FTLib, said: list[tuple[int, int]], view: View) -> None:
    said.append((ft.step, len(view)))


def test_all_are_told_after_the_same_call() -> None:
    with company(3) as crew:
        waits, late, goes = crew.members
        told: dict[FTLib, list[tuple[int, int]]] = {waits: [], late: []}
        for ft, said in told.items():
            ft.on_view_change(functools.partial(note, ft, said))
        thread = in_thread(lambda: waits.allreduce_average(torch.ones(1)))
        eventually(lambda: waits._plane.running is not None, "it waits in the call")
        exclude(goes)
        eventually(lambda: late.epoch == waits.epoch == 2, "they go on without it, one inside of a call and one outside")
        assert told[waits] == told[late] == []
        assert late.allreduce_average(torch.ones(1))
        thread.join()
        assert told[waits] == told[late] == [(1, 2)]
        at_once = in_thread(lambda: waits.allreduce_average(torch.ones(1)))
        assert late.allreduce_average(torch.ones(1))
        at_once.join()
        assert told[waits] == told[late] == [(1, 2)], "once"


def test_a_rate_that_is_set_there_counts_from_that_step_on() -> None:
    with company(1) as crew:
        [ft] = crew.members
        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([weight], lr=0.0)

        def rescale(view: object) -> None:
            optimizer.param_groups[0]["lr"] = 1.0

        ft._plane.news.changes.append(ft.view)  # type: ignore[arg-type]
        ft.on_view_change(rescale)
        weight.grad = torch.ones(1)
        assert ft.allreduce_average(weight)
        optimizer.step()
        assert weight.item() == -1.0


def test_an_adopter_is_told_of_the_views_before_with_the_call_that_it_adopts() -> None:
    """The others were told of them with that call, and of the view in which it adopts with the next."""
    first, second, third = (cast("View", object()) for _ in range(3))
    news = News()
    news.activated(first, adopts=False)
    news.activated(second, adopts=True)
    news.activated(third, adopts=True)  # the second failed before it had adopted
    news.adopted()
    assert news.due == [first]
    news.finished()
    assert news.due == [first, second, third]
    news.activated(first, adopts=True)
    news.activated(second, adopts=True)
    news.adopted()
    assert news.changes == [first, second], "the call before was finished in a view of which it had been told"
