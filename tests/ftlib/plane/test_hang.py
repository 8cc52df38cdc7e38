"""What is told of a program that hangs."""

from __future__ import annotations

import threading

from ftlib.core.plane.hang import stack
from ftlib.core.plane.plane import Plane


def test_the_stack_shows_where_the_program_is() -> None:
    assert "test_the_stack_shows_where_the_program_is" in stack(Plane("a" * 16))


def test_a_thread_that_has_ended_is_nowhere() -> None:
    made: list[Plane] = []
    thread = threading.Thread(target=lambda: made.append(Plane("a" * 16)))
    thread.start()
    thread.join()
    assert "has ended" in stack(made[0])
