"""A Gloo group with an accelerator, among real processes: in good health, and what hangs, what lies, what never starts.

The accelerator is the rehearsal's, or NCCL's with a library that has its faults (``tests/frameworks/nccl/fake.py``).
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from ftlib.frameworks import sockets
from ftlib.frameworks.accelerators.managed import Deadlines
from ftlib.frameworks.accelerators.rehearsal import Faults
from ftlib.frameworks.accelerators.rehearsal.communicator import GARBAGE
from ftlib.frameworks.accelerators.rehearsal.faults import VARIABLE, Way
from tests.frameworks.accelerators import orders
from tests.frameworks.accelerators.orders import TIMEOUT, hire
from tests.frameworks.crew import Crew, Hand
from tests.frameworks.orders import know_peers, reduce_one

pytestmark = [pytest.mark.process, pytest.mark.skipif(not sockets.supported(), reason="needs /proc")]

SOON = TIMEOUT / 2
"""Seconds that are long, and yet short of any deadline in these tests."""


NCCL = "tests.frameworks.nccl.fake:FakeNcclFramework"
EARLY = {"rehearsal": "an event recorded before the launch", NCCL: "an event recorded before NCCL's launch"}


SAME_PROCESS = ["rehearsal", pytest.param(NCCL, marks=pytest.mark.soak)]
ANYWHERE = [*SAME_PROCESS, pytest.param("isolated:rehearsal", marks=pytest.mark.soak)]


@pytest.fixture(scope="module")
def known() -> Iterator[dict[str, Crew]]:
    """The crews so far, by their framework."""
    crews: dict[str, Crew] = {}
    yield crews
    for each in crews.values():
        each.close()


@pytest.fixture(scope="module", params=SAME_PROCESS)
def crew(request: pytest.FixtureRequest, known: dict[str, Crew]) -> Crew:
    """For a test of what holds where communicators live in the training process."""
    return known.get(request.param) or known.setdefault(request.param, Crew(request.param))


@pytest.fixture(scope="module", params=ANYWHERE)
def crews(request: pytest.FixtureRequest, known: dict[str, Crew]) -> Crew:
    """For a test of what holds wherever communicators live."""
    return known.get(request.param) or known.setdefault(request.param, Crew(request.param))


def ready(crew: Crew, hands: list[Hand], timeout: float = TIMEOUT) -> None:
    """Build a group of them, and wait for everybody's accelerator."""
    crew.build(hands, timeout)
    crew.run(hands, orders.accelerated)


# --- in good health ----------------------------------------------------------------------------------------------------


def test_results_are_gloos_and_bit_identical(crews: Crew) -> None:
    hands = hire(crews, 3)
    ready(crews, hands)
    answers = crews.run(hands, orders.reduce_both_ways, 10)
    assert answers[0] == answers[1] == answers[2]
    for figures in crews.run(hands, orders.figures):
        assert (figures["accelerator_starts"], figures["accelerator_stops"], figures["accelerator_troubles"]) == (1, 0, 0)
        assert figures["accelerator_start_seconds"]["count"] == 1
    assert crews.run(hands, orders.future_of_bulk) == [3.0] * 3


def test_nothing_is_waited_for_by_a_launch(crews: Crew) -> None:
    hands = hire(crews, 2, Faults(kernel_seconds=8.0))
    ready(crews, hands)
    for took, done, wrong in crews.run(hands, orders.reduce_later):
        assert took < 7.0
        assert not done
        assert not wrong


def test_a_slow_start_delays_nobody(crews: Crew) -> None:
    hands = hire(crews, 2, Faults(start_seconds=5.0, rank=1))
    crews.build(hands)
    assert crews.run(hands, reduce_one, 1000) == [2.0] * 2
    assert min(crews.run(hands, orders.accelerated)) > 0.5, "it was there too early to show anything"
    assert crews.run(hands, reduce_one, 1000) == [2.0] * 2
    for figures in crews.run(hands, orders.figures):
        assert figures["accelerator_start_seconds"]["last"] >= 1.0
    assert crews.run(hands, orders.logged) == [[], []]


def test_a_first_call_waits_for_a_start_that_is_quick_enough(crews: Crew) -> None:
    """As long as it is given, unless the last start took longer."""
    hands = hire(crews, 2, Faults(start_seconds=8.0))
    crews.build(hands)
    for _, took, works in crews.run(hands, orders.await_start, 0.1):
        assert took < 7.0
        assert not works
    for waits, _, works in crews.run(hands, orders.await_start, TIMEOUT):
        assert waits
        assert works
    assert [waits for waits, _, _ in crews.run(hands, orders.await_start, TIMEOUT)] == [False] * 2
    crews.build(hands)
    assert [waits for waits, _, _ in crews.run(hands, orders.await_start, 0.1)] == [False] * 2
    assert max(crews.run(hands, orders.await_start_through_an_abort)) < 4.0, "not as long as the start takes"


def test_the_device_looks_for_inf_and_nan_before_the_one_wait_ends(crews: Crew) -> None:
    hands = hire(crews, 2, Faults(launch_seconds=0.05, kernel_seconds=0.05))
    ready(crews, hands)
    waits = int(crews.framework.startswith("isolated"))  # a communicator elsewhere is told once the buffers are filled
    assert crews.run(hands, orders.look_after_bulk, -2.0) == [(waits, 4.0)] * 2
    assert crews.run(hands, orders.look_after_bulk, float("inf")) == [(waits, float("inf"))] * 2


# --- deaths ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("silent", [False, True])
def test_a_death_ends_the_wait_although_the_device_hangs(crews: Crew, silent: bool) -> None:
    """And the accelerator comes back in the next view, where the resources of the old one are freed."""
    hands = hire(crews, 3, Faults(silent=silent))
    ready(crews, hands)
    crews.run(hands, know_peers)
    for hand in hands:
        hand.tell(orders.reduce_until_it_breaks, 100_000)
    time.sleep(0.2)
    killed = hands[2].kill()
    survivors = hands[:2]
    for rank, (at, error, peers, done, wrong) in enumerate([hand.answer() for hand in survivors]):
        assert not wrong
        assert at - killed < SOON
        # The library may tell of the death long before a connection breaks: on a busy machine the dead one still ends then.
        assert rank not in peers or (peers == (rank,) and not silent and "remote process exited" in error)
        assert "broke" in error or (not silent and "remote process exited" in error)
        assert peers or "broke" not in error, "it names a rank: the dead one, or the survivor that was faster to abort"
        assert done
    ready(crews, survivors)
    assert all(figures["accelerator_frees"] == 0 for figures in crews.run(survivors, orders.figures))
    for figures in crews.run(survivors, orders.settle, 1 << 30):
        assert (figures["accelerator_stops"], figures["accelerator_frees"], figures["accelerator_leaks"]) == (1, 1, 0)
    answers = crews.run(survivors, orders.reduce_both_ways, 2)
    assert answers[0] == answers[1]


def test_a_stopped_peer_is_only_silence(crews: Crew) -> None:
    hands = hire(crews, 3)
    ready(crews, hands)
    os.kill(hands[2].process.pid, signal.SIGSTOP)
    try:
        for hand in hands[:2]:
            hand.tell(orders.enter)
            hand.answer()
        for hand in hands[:2]:
            hand.tell(orders.outcome)
        assert [hand.answer() for hand in hands[:2]] == [("False", "")] * 2
        for hand in hands[:2]:
            hand.tell(orders.abort)
        assert max(hand.answer() for hand in hands[:2]) < SOON
    finally:
        os.kill(hands[2].process.pid, signal.SIGCONT)
        hands[2].kill()
    ready(crews, hands[:2])


def test_a_second_death_during_the_start(crews: Crew) -> None:
    hands = hire(crews, 3, Faults(start_seconds=0.5))
    crews.build(hands)
    hands[2].kill()
    crews.run(hands[:2], orders.abort)
    began = time.monotonic()
    ready(crews, hands[:2])
    assert time.monotonic() - began < SOON
    assert crews.run(hands[:2], orders.logged) == [[], []], "a start that is ended by a stop is no trouble"


@pytest.mark.parametrize(("views", "first"), [(10, 3), pytest.param(1000, 100, marks=pytest.mark.soak)])
def test_many_views_leave_nothing_behind(crews: Crew, views: int, first: int) -> None:
    hands = hire(crews, 2)
    ready(crews, hands)
    before = None
    for count in range(1, views + 1):
        crews.run(hands, orders.reduce_both_ways, 1)
        ready(crews, hands)
        crews.run(hands, orders.settle, 1 << 30)
        if count == first:
            before = crews.run(hands, orders.held)
    assert before is not None
    more = 6 if crews.framework.startswith("isolated") else 2  # a spare child, which may not have been there then
    for hand, then in zip(hands, before, strict=True):
        hand.tell(orders.fall_to, then[0] + more, then[1] + more)
        hand.answer()


# --- what is no success ------------------------------------------------------------------------------------------------


def check_that_an_abort_is_no_success(crew: Crew, bug: str = "") -> None:
    hands = hire(crew, 2, bug=bug)
    ready(crew, hands)
    outcome, took, value, done = crew.run(hands, orders.wait_through_an_abort)[0]
    assert value == GARBAGE, "the device has ended the operation as if it had succeeded"
    assert done
    assert took < SOON
    assert "aborted" in outcome


def test_what_ends_by_an_abort_is_no_success(crew: Crew) -> None:
    check_that_an_abort_is_no_success(crew)


def test_planted_an_event_alone_counts_as_success(crew: Crew) -> None:
    with pytest.raises(AssertionError, match="'aborted' in 'True'"):
        check_that_an_abort_is_no_success(crew, "an event alone counts as success")


def test_aborts_at_random_moments(crews: Crew) -> None:
    """Whatever a wait calls a result is one. Operations have ended after the abort, which takes its time on a busy machine."""
    hands = hire(crews, 2, Faults(silent=True), Deadlines(stop=5.0))
    chance = random.Random(15)
    for _ in range(25):
        ready(crews, hands)
        delay, elements = chance.uniform(0.0, 0.01), chance.choice((10, 10_000, 300_000))
        assert crews.run(hands, orders.reduce_until_aborted, elements, delay) == [(True, "")] * 2
        crews.run(hands, orders.settle, 1 << 30)


def check_a_late_launch(crew: Crew, bug: str = "") -> None:
    hands = hire(crew, 2, Faults(launch_seconds=0.2, kernel_seconds=0.2), bug=bug)
    ready(crew, hands)
    for _, done, wrong in crew.run(hands, orders.reduce_later):
        assert not wrong
        assert not done


def test_a_late_launch_is_waited_for(crew: Crew) -> None:
    check_a_late_launch(crew)


def test_planted_an_event_recorded_before_the_launch(crew: Crew) -> None:
    with pytest.raises(AssertionError, match=r"1\.0 is not the sum"):
        check_a_late_launch(crew, EARLY[crew.framework])


def check_that_memory_is_kept(crew: Crew, bug: str = "") -> None:
    """Rank 0 aborts while an operation of rank 1 is under way, which never hears of it from its device."""
    hands = hire(crew, 3, Faults(silent=True), bug=bug)
    ready(crew, hands)
    for hand in hands[:2]:
        hand.tell(orders.enter)
        hand.answer()
    hands[0].tell(orders.abort)
    hands[0].answer()
    hands[1].tell(orders.outcome)
    ended, trouble = hands[1].answer()
    assert ended != "True"
    assert not trouble
    hands[0].tell(orders.figures)
    assert hands[0].answer()["accelerator_frees"] == 0
    crew.run(hands, orders.abort)
    assert [figures["accelerator_frees"] for figures in crew.run(hands, orders.settle, 1 << 30)] == [1, 1, 1]


def test_nothing_is_freed_at_an_abort(crew: Crew) -> None:
    check_that_memory_is_kept(crew)


def test_planted_freed_at_the_abort(crew: Crew) -> None:
    with pytest.raises(AssertionError, match="illegal memory access"):
        check_that_memory_is_kept(crew, "freed at the abort")


@pytest.mark.parametrize(("launch", "blamed"), [(2, (1,)), (1, ())])
def test_an_asynchronous_error_at_one_member(crews: Crew, launch: int, blamed: tuple[int, ...]) -> None:
    """The others notice by that member's abort alone: until then their devices hang, and say nothing.

    It blames itself, so that the next view waits for no proof of a death; not if the accelerator has never worked.
    """
    hands = hire(crews, 3, Faults(error_at=launch, rank=1))
    ready(crews, hands)
    for hand in hands:
        hand.tell(orders.reduce_until_it_breaks, 1000)
    answers = [hand.answer() for hand in hands]
    assert "unhandled device error" in answers[1][1]
    assert answers[1][2] == blamed
    assert all("broke" in text or "remote process exited" in text for _, text, *_ in (answers[0], answers[2]))
    assert all(done and not wrong for *_, done, wrong in answers), answers
    ready(crews, hands)
    for figures in crews.run(hands, orders.figures):
        assert figures["accelerator_starts"] == 2


# --- what never starts -------------------------------------------------------------------------------------------------


def test_a_start_that_fails_at_one_member(crew: Crew) -> None:
    hands = hire(crew, 2, Faults(start=Way.FAILS, rank=1, communicators=1))
    crew.build(hands, timeout=2.0)
    assert min(crew.run(hands, orders.go_on, 0.3)) > 10
    (other, others_log), (own, own_log) = crew.run(hands, orders.troubled)
    assert "failed on purpose" in own
    assert ("still in progress after 2 s" if crew.framework == NCCL else "[1]") in other, "or it names who is missing"
    assert len(own_log) == len(others_log) == 1
    assert own_log[0].startswith("WARNING rank 1 of 2") and "everything goes by Gloo" in own_log[0]
    for figures in crew.run(hands, orders.figures):
        assert figures["accelerator_troubles"] == 1
    crew.run(hands, orders.abort)
    ready(crew, hands)


def test_a_start_that_hangs_is_given_up(crew: Crew) -> None:
    hands = hire(crew, 2, Faults(start=Way.HANGS), Deadlines(start=0.4))
    crew.build(hands)
    for trouble, log in crew.run(hands, orders.troubled):
        assert "not ready within 0.4 s" in trouble
        assert len(log) == 1
    assert crew.run(hands, reduce_one, 10) == [2.0] * 2


def test_a_member_without_an_accelerator(crew: Crew) -> None:
    """Which has another framework, in fact: the rank is named."""
    plain = Crew("gloo")
    try:
        hands = [*hire(crew, 1), *plain.hire(1)]
        crew.build(hands)
        hands[0].tell(orders.troubled)
        assert re.fullmatch("rank 1 has no (rehearsal|nccl) accelerator: it has none", hands[0].answer()[0])
        assert crew.run(hands, reduce_one, 10) == [2.0] * 2
    finally:
        plain.close()


# --- what never ends ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("faults", "step"),
    [(Faults(stop=Way.HANGS), "stopping"), (Faults(free=Way.HANGS), "freeing"), (Faults(free=Way.FAILS), "freeing")],
)
def test_what_hangs_at_the_end_is_leaked_and_counted(crew: Crew, faults: Faults, step: str) -> None:
    hands = hire(crew, 2, faults, Deadlines(free=0.3))
    ready(crew, hands)
    assert max(crew.run(hands, orders.abort)) < SOON, "it does not wait for what hangs for ever"
    for figures in crew.run(hands, orders.settle, 1 << 30):
        assert (figures["accelerator_stops"], figures["accelerator_frees"], figures["accelerator_leaks"]) == (1, 0, 1)
    assert all(f"leaked: {step} it did not end within 0.3 s" in log[-1] for log in crew.run(hands, orders.logged))
    ready(crew, hands)  # the next one is another
    for hand in hands:
        hand.kill()  # its threads hang for ever


@pytest.mark.parametrize("when", ["before", "after"])
def test_operations_that_do_not_end_are_fatal(crew: Crew, when: str) -> None:
    """Whoever registers, before or after it happened, is told why, within about a second."""
    hands = hire(crew, 2, Faults(stuck=True, rank=0))
    ready(crew, hands)
    hands[0].tell(orders.hear_of_the_worst, when)
    reason, after, took = hands[0].answer()
    assert "do not end on the device" in reason
    assert 0.9 < after < SOON
    assert 0.09 < took < SOON
    hands[0].kill()


def test_a_process_ends_well_with_operations_on_the_device() -> None:
    script = """if True:
        import sys, threading, time, torch
        from ftlib.frameworks import GroupSpec, framework_by_name
        from ftlib.frameworks.base import Operation, OperationKind
        frameworks = [framework_by_name("rehearsal") for _ in range(2)]
        facts = [framework.start("127.0.0.1") for framework in frameworks]
        other = threading.Thread(target=frameworks[1].rebuild, args=(GroupSpec("v", 1, 1, 2, facts[0], 20.0),))
        other.start()
        group = frameworks[0].rebuild(GroupSpec("v", 1, 0, 2, facts[0], 20.0))
        other.join()
        deadline = time.monotonic() + 20.0
        while not group.accelerated and time.monotonic() < deadline:
            time.sleep(0.01)
        work = group.submit_bulk([Operation(OperationKind.ALLREDUCE, torch.ones(5), "SUM")])
        assert work.wait(0.1) is False
        sys.exit(7)
    """
    environment = {**os.environ, VARIABLE: "launch_seconds=0.01"}
    began = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=180, check=False, env=environment
    )
    assert ended.returncode == 7, ended.stderr
    assert time.monotonic() - began < 180.0
