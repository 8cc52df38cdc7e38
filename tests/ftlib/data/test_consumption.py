"""Calls and view changes use up every sample of the elastic sampler once: with deaths, leaves and joins at any moment."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ftlib import ConfigError, ElasticSampler, FTLib, Status, StepMismatch
from ftlib.data.sampling import Share, packed_shares, unpacked_shares
from tests.ftlib.crews.scholars import Scholar, judge, play, together
from tests.ftlib.crews.workers import Job, Worker
from tests.harness.basics import TIMEOUT, eventually

SEEDS = int(os.environ.get("SEEDS", "12"))
"""More of them find more."""


def lone(body: Callable[[FTLib], Any]) -> Any:
    """A worker by itself."""
    with Job(1) as job:
        return job.start("a", lambda worker: body(worker.ft)).join()


def sampler(**given: Any) -> ElasticSampler:
    return ElasticSampler(range(20), **{"batch_size": 2, "seed": 3, **given})


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


def let_in(job: Job, step: int, now: threading.Event) -> Callable[[], None]:
    """A hook of worker a: after that step it has j start (``now``), and goes on once that one waits to be admitted.

    By themselves jobs as small as these are over before anybody has come, and has got the state.
    """

    def call() -> None:
        if job.workers["a"].ft.step == step and not now.is_set():
            now.set()
            eventually(lambda: bool(job.cluster.waiting), "the joiner has asked to join")
        elif now.is_set() and not job.workers["j"].ft.metrics()["state_loads"]:
            time.sleep(0.1)  # a forward pass of some length: the state comes beside it

    return call


def joined(job: Job, depth: int) -> dict[str, Scholar]:
    """Two that go through three epochs, and a joiner after their third step: they have all come to the end."""
    scholars = {name: Scholar(120, 3, 3, depth) for name in "abj"}
    now = threading.Event()
    scholars["a"].hook = let_in(job, 3, now)
    together(job, scholars, {"j": now})
    judge(list(scholars.values()), epochs=3, size=120)
    return scholars


@pytest.mark.parametrize("recovery", ["live", "wait"])
@pytest.mark.parametrize("depth", [0, 3])
def test_a_joiner_draws_once_it_has_the_state(depth: int, recovery: str) -> None:
    with Job(2, recovery=recovery) as job:
        scholars = joined(job, depth)
        assert {member for _, member, _, _ in scholars["a"].books[2]} == {"a", "b", "j"}


def test_a_joiner_that_would_be_left_behind_goes_on_as_a_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times: jobs with a call or two an epoch let it in all the same."""
    asked: list[int] = []

    def always(_: ElasticSampler, shares: Any, step: int, batches: int) -> bool:
        assert shares and batches == 1
        asked.append(step)
        return True

    monkeypatch.setattr(ElasticSampler, "left_behind", always)
    with Job(2) as job:
        scholars = joined(job, 3)
        assert scholars["j"].ending == "done"
        assert len(asked) == 3, "and not when it is level again"
        assert job.workers["j"].ft.metrics()["recoveries"] == 1


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


@pytest.mark.parametrize("depth", [0, 3])
def test_units_use_up_what_their_averages_do(depth: int) -> None:
    with Job(3) as job:
        scholars = {name: Scholar(60, 3, 2, depth) for name in "abcj"}
        now = threading.Event()

        def die() -> None:
            if job.workers["c"].ft.step == 3:
                job.kill("c")

        scholars["c"].hook, scholars["a"].hook = die, let_in(job, 4, now)
        for scholar in scholars.values():
            scholar.unit = True
        together(job, scholars, {"j": now})
        judge([scholars[name] for name in "abj"], epochs=2, size=60)


@pytest.mark.parametrize("depth", [0, 3])
def test_what_a_late_worker_had_drawn_goes_back(depth: int) -> None:
    with Job(3, straggler_deadline=0.05) as job:
        scholars = {name: Scholar(330, 3, 1, depth) for name in "abc"}
        there = threading.Event()

        def dawdle() -> None:
            if job.workers["c"].ft.step == 30:  # its backup worker knows by now what a step is
                there.wait(TIMEOUT)  # until the others have gone on without it

        def notice() -> None:
            if job.workers["a"].ft.step >= 33:
                there.set()

        scholars["c"].hook, scholars["a"].hook = dawdle, notice
        together(job, scholars, {})
        assert there.is_set()
        assert job.workers["c"].ft.metrics()["stood_in"] > 0
        judge(list(scholars.values()), epochs=1, size=330)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_any_history(seed: int) -> None:
    """Members die, leave and join at random moments, several at once; what is left goes through every sample once an epoch."""
    play(seed)


# --- what is told to the program --------------------------------------------------------------------------------------------


def test_one_sampler_a_job() -> None:
    def body(ft: FTLib) -> None:
        with pytest.raises(ConfigError, match="ConcatDataset"):
            ft.register_state(sampler=[sampler(), sampler()])
        with pytest.raises(ConfigError, match="give it as sampler="):
            ft.register_state(extra=sampler())
        mine = sampler()
        ft.register_state(sampler=mine)
        ft.register_state(sampler=mine, extra=torch.nn.Linear(1, 1))
        with pytest.raises(ConfigError, match="another ElasticSampler is registered already"):
            ft.register_state(sampler=sampler())

    lone(body)


def test_not_after_the_first_average() -> None:
    def body(ft: FTLib) -> None:
        ft.barrier()
        ft.allreduce_average(torch.ones(2))
        with pytest.raises(ConfigError, match="before the first average"):
            ft.register_state(sampler=sampler())

    lone(body)


@pytest.mark.parametrize("batches", [-1, 1.5, "x", None, True, 65536])
def test_batches_that_are_none(batches: Any) -> None:
    def body(ft: FTLib) -> None:
        with pytest.raises(ConfigError, match="batches="):
            ft.allreduce_average(torch.ones(2), batches=batches)

    lone(body)


def test_a_minority_that_deals_otherwise_stops() -> None:
    def body(worker: Worker) -> str:
        mine = sampler(seed=3)
        worker.ft.register_state(sampler=mine)
        for _ in mine:
            if worker.name == "c" and worker.ft.step == 2:
                mine._drawer._now = mine._drawer._now.begin(0)  # type: ignore[union-attr]
            try:
                worker.ft.allreduce_average(torch.ones(2))
            except StepMismatch as error:
                return str(error)
        worker.ft.barrier()
        worker.ft.leave()
        return f"done {sorted(index for row in mine.ledger() for index in row.indices) == list(range(20))}"

    with Job(3) as job:
        ends = job.run(dict.fromkeys("abc", body))
    assert ends["a"] == ends["b"] == "done True"
    assert "who draws which samples; it disagrees at c@" in ends["c"]


# --- weights ----------------------------------------------------------------------------------------------------------------


def averaged(ft: FTLib, value: float, **given: Any) -> tuple[Status, float]:
    tensor = torch.full((2,), value)
    return ft.allreduce_average(tensor, **given), tensor[0].item()


def test_uneven_batches_weigh_as_many_samples_as_they_have() -> None:
    def body(worker: Worker) -> list[tuple[Status, float]]:
        mine = ElasticSampler(range(7), batch_size=4, shuffle=False)
        worker.ft.register_state(sampler=mine)
        found = [averaged(worker.ft, float(len(batch))) for batch in mine]
        worker.ft.barrier()
        worker.ft.leave()
        return found

    with Job(2) as job:
        ends = job.run(dict.fromkeys("ab", body))
    assert ends["a"] == ends["b"] == [(Status.SUCCESS, pytest.approx((4 * 4 + 3 * 3) / 7))]


def test_several_batches_a_call_and_several_calls_a_batch() -> None:
    def body(worker: Worker) -> list[float]:
        mine = sampler()
        worker.ft.register_state(sampler=mine)
        own, batches, weights = 1.0 + (worker.name == "b"), iter(mine), []
        while (first := next(batches, None)) is not None:
            second = next(batches, None)
            used = 1 + (second is not None)
            worker.ft.barrier()
            _, value = averaged(worker.ft, own, weight=own if not weights else None, batches=used)
            _, again = averaged(worker.ft, own, batches=0)
            weights += [value, again]
            assert first
        assert sorted(index for row in mine.ledger() for index in row.indices) == list(range(20))
        worker.ft.barrier()
        worker.ft.leave()
        return weights

    with Job(2) as job:
        ends = job.run(dict.fromkeys("ab", body))
    assert ends["a"] == ends["b"]
    assert ends["a"][0] == pytest.approx((1 + 2 * 2) / 3), "as it was told"
    assert ends["a"][1] == pytest.approx(1.5), "both have as many samples"


def test_inf_and_nan_use_samples_up() -> None:
    def body(worker: Worker) -> tuple[list[Status], list[bool]]:
        mine = sampler()
        worker.ft.register_state(sampler=mine)
        told = [
            averaged(worker.ft, float("nan") if number == 1 and worker.name == "b" else 1.0)[0] for number, _ in enumerate(mine)
        ]
        rows = list(mine.ledger())
        assert sorted(index for row in rows for index in row.indices) == list(range(20))
        worker.ft.barrier()
        worker.ft.leave()
        return told, [row.granted for row in rows]

    with Job(2) as job:
        ends = job.run(dict.fromkeys("ab", body))
    assert ends["a"] == ends["b"]
    assert ends["a"][0] == [Status.SUCCESS, Status.FAIL, *[Status.SUCCESS] * 3]
    assert ends["a"][1].count(False) == 2


def test_shares_travel() -> None:
    shares = {"a": Share(4, 2, 1, 3, 65535, end=7 << 40), "b": Share()}
    assert unpacked_shares(packed_shares(shares)) == shares
    for data in (b"", b"x", packed_shares({"a": Share(-1)}), b"\x93\x01\x02\x03"):
        with pytest.raises(ValueError, match="shares"):
            unpacked_shares(data)
