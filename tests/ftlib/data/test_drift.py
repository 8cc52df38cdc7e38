"""Programs whose calls do not use up what their loaders deliver are told so, and no others."""

from __future__ import annotations

import itertools
import logging

import pytest

from ftlib import ElasticSampler
from ftlib.data.drift import DRIFT

from .test_elastic_sampler import _call


@pytest.mark.parametrize(
    ("taken", "batches", "text"),
    [
        ([4], 1, "+48 batches"),
        ([1, 1, 2], 1, "+16 batches"),  # one in three calls is left out
        ([1, 0], 1, "-16 batches"),  # two averages for one batch
        ([1], 1, None),
        ([4], 4, None),
        ([2, 0], 1, None),
        ([9, *[1] * 40, *[0] * 8], 1, None),  # a queue of the program's own fills up, and is emptied
    ],
)
def test_batches_that_no_call_uses_up_are_told_of_once(
    taken: list[int], batches: int, text: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """``taken``: batches before a call, over and over."""
    sampler = ElasticSampler(range(10_000), batch_size=1)
    sampler.bind("a")
    sampler.found(["a"])
    loop, pattern = iter(sampler), itertools.cycle(taken)
    with caplog.at_level(logging.WARNING, "ftlib"):
        for step in range(400):
            for _ in range(next(pattern)):
                next(loop)
            _call(("a", sampler), step=step, batches=batches)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == (text is not None)
    assert text is None or text in told[0]


@pytest.mark.parametrize(("every", "told"), [(24, 0), (1000, 1)])
def test_calls_for_something_else_are_no_drift(every: int, told: int, caplog: pytest.LogCaptureFixture) -> None:
    """As the mean of the loss after each of the batches that an average is made of; but something has to use them up."""
    sampler = ElasticSampler(range(10_000), batch_size=1)
    sampler.bind("a")
    sampler.found(["a"])
    loop = iter(sampler)
    for step in range(1, 5 * 24):
        next(loop)
        _call(("a", sampler), step=step, batches=0)
        if step % every == 0:
            _call(("a", sampler), step=step, batches=every)
    assert len(caplog.records) == told


def test_batches_of_calls_that_came_to_nothing_are_not_adrift(caplog: pytest.LogCaptureFixture) -> None:
    """As those of a worker that was late many times: they went back."""
    sampler = ElasticSampler(range(10_000), batch_size=1)
    sampler.bind("a")
    sampler.found(["a"])
    loop = iter(sampler)
    for step in range(8 * DRIFT):
        next(loop)
        sampler.begin(1)
        sampler.unfinished()
        next(loop)
        _call(("a", sampler), step=step)
    assert not caplog.records
