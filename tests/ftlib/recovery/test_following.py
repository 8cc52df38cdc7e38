"""A joiner follows the others, and ends up with what they have."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.ftlib.real import Company, at_once, company, eventually, in_thread
from tests.ftlib.recovery.pupils import Pupil, assert_equal


@contextmanager
def school(founders: int, backend: str = "gloo", **settings: Any) -> Iterator[tuple[Company, list[Pupil], threading.Event]]:
    """Founders that train in threads of their own until the event is set."""
    with company(founders, backend, **settings) as crew:
        pupils = at_once(*[functools.partial(Pupil, ft, seed) for seed, ft in enumerate(crew.members)])
        over = threading.Event()
        threads = [in_thread(functools.partial(pupil.train, over)) for pupil in pupils]
        eventually(lambda: pupils[0].ft.step > 3, "they train")
        try:
            yield crew, pupils, over
        finally:
            over.set()
            at_once(*[ft.close for ft in crew.members])
            for thread in threads:
                thread.join(15)


def test_a_joiner_ends_up_with_what_the_others_have() -> None:
    with school(3) as (crew, pupils, over):
        joiner = Pupil(crew.init(), 99)
        thread = in_thread(functools.partial(joiner.train, over))
        eventually(lambda: len(joiner.hashes) > 10, "the joiner trains")
        over.set()
        thread.join(15)
        assert assert_equal(*pupils, joiner) > 5
        assert joiner.ft.metrics()["state_loads"] == 1
        assert all(pupil.ft.metrics()["redone"] <= 1 for pupil in pupils)
