"""What is told of a program that hangs."""

from __future__ import annotations

import threading

import pytest

from ftlib.core.plane.hang import stack
from ftlib.core.plane.plane import Plane
from tests.ftlib.plane.sessions import average


def test_the_stack_shows_where_the_program_is() -> None:
    assert "test_the_stack_shows_where_the_program_is" in stack(Plane("a" * 16))


@pytest.mark.parametrize("entered", [False, True])
def test_where_the_last_call_was_entered_by_a_thread_without_code_the_main_thread_is_shown(entered: bool) -> None:
    """On a GPU a thread of torch's enters the calls of a backward: it is in no code while the program hangs elsewhere."""
    plane = Plane("a" * 16)
    if entered:
        thread = threading.Thread(target=lambda: plane.enter(average()))
        thread.start()
        thread.join()
    where = stack(plane)
    assert ("the main thread is at" in where) is entered
    assert "test_where_the_last_call_was_entered" in where
