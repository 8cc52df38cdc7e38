"""A call that everybody freezes after: what the consensus is told of it, and in which order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest

from ftlib.core.plane.boundary import halted
from ftlib.core.plane.orders import Order


def told(*, foreign: bool, answer: tuple[bytes, None] | None = (b"report", None)) -> tuple[list[Any], Mock]:
    """What the consensus hears at the end of call 7 in epoch 3, and the plane."""
    plane, consensus = Mock(), Mock()
    plane.freeze.return_value = answer
    session: Any = SimpleNamespace(view=SimpleNamespace(epoch=3), members_of=lambda ranks: tuple(f"m{rank}" for rank in ranks))
    finished: Any = SimpleNamespace(number=7, foreign=foreign)
    halted(plane, consensus, finished, session, Mock(leaving=(1,)))
    return consensus.mock_calls, plane


def test_the_report_for_the_next_view_goes_along_unasked_after_the_word_of_the_stop() -> None:
    heard, plane = told(foreign=False)
    assert heard == [call.boundary(7, ("m1",)), call.flushed(4, b"report")]
    plane.freeze.assert_called_once_with(Order(4, 7))


@pytest.mark.parametrize(("foreign", "answer"), [(True, (b"report", None)), (False, None)])
def test_who_follows_and_who_was_frozen_otherwise_is_asked(foreign: bool, answer: tuple[bytes, None] | None) -> None:
    heard, _ = told(foreign=foreign, answer=answer)
    assert heard == [call.boundary(7, ("m1",))]
