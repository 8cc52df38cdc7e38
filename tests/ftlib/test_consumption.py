"""Calls and view changes use up every sample of the elastic sampler once: with deaths, leaves and joins at any moment."""

from __future__ import annotations

import os
import threading

import pytest

from tests.ftlib.scholars import Scholar, judge, play, together
from tests.ftlib.workers import Job

SEEDS = int(os.environ.get("SEEDS", "12"))


@pytest.mark.parametrize("depth", [0, 3])
def test_three_share_every_epoch(depth: int) -> None:
    with Job(3) as job:
        scholars = {name: Scholar(50, 4, 3, depth) for name in "abc"}
        together(job, scholars, {})
        judge(list(scholars.values()), epochs=3, size=50)


def test_one_alone() -> None:
    with Job(1) as job:
        scholars = {"a": Scholar(23, 4, 2, 2)}
        together(job, scholars, {})
        judge(list(scholars.values()), epochs=2, size=23)


@pytest.mark.parametrize("at", [0, 1, 4])
@pytest.mark.parametrize("depth", [0, 2])
def test_what_a_dead_member_had_drawn_goes_back(depth: int, at: int) -> None:
    with Job(3) as job:
        scholars = {name: Scholar(60, 3, 2, depth) for name in "abc"}

        def die() -> None:
            if job.workers["c"].ft.step == at:
                job.kill("c")

        scholars["c"].hook = die
        together(job, scholars, {})
        assert scholars["c"].ending.startswith("Excluded")
        judge([scholars["a"], scholars["b"]], epochs=2, size=60)


@pytest.mark.parametrize("recovery", ["live", "wait"])
@pytest.mark.parametrize("depth", [0, 3])
def test_a_joiner_draws_once_it_has_the_state(depth: int, recovery: str) -> None:
    with Job(2, recovery=recovery) as job:
        scholars = {name: Scholar(120, 3, 3, depth) for name in "abj"}
        now = threading.Event()

        def call() -> None:
            if job.workers["a"].ft.step == 3:
                now.set()

        scholars["a"].hook = call
        together(job, scholars, {"j": now})
        judge(list(scholars.values()), epochs=3, size=120)
        assert {member for _, member, _, _ in scholars["a"].books[2]} == {"a", "b", "j"}


def test_a_leaver_gives_back_what_it_has_drawn() -> None:
    with Job(3) as job:
        scholars = {name: Scholar(60, 3, 2, 3) for name in "abc"}

        def leave() -> None:
            if job.workers["b"].ft.step == 3:
                job.workers["b"].ft.leave()

        scholars["b"].hook = leave
        together(job, scholars, {})
        assert scholars["b"].ending == "left"
        judge([scholars["a"], scholars["c"]], epochs=2, size=60)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_any_history(seed: int) -> None:
    """Members die, leave and join at random moments, several at once; what is left goes through every sample once an epoch."""
    play(seed)
