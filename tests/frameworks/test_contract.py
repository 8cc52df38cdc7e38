"""What every framework promises, among real processes: operations, aborts after real kills, rebuilds that are given up.

Also for one that is not part of ftlib: see docs/frameworks.md.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
import torch

from ftlib.errors import ConfigError, GroupError
from ftlib.frameworks import GroupSpec, sockets
from tests.frameworks.crew import Crew, made
from tests.frameworks.orders import (
    FORGOTTEN,
    TIMEOUT,
    abort_from_another_thread,
    abort_old_while_rebuilding,
    exchange,
    futures,
    keep_child,
    know_peers,
    loop,
    loop_in_parts,
    operate,
    operate_in_parts,
    patterns,
    reduce_one,
    try_rebuild,
)
from tests.harness.gpu import PLACE, on_gpu

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.process, pytest.mark.skipif(not sockets.supported(), reason="needs /proc")]

SOON = TIMEOUT / 2
"""Seconds that are long, and yet short of any deadline in these tests."""
FRAMEWORKS = os.environ.get("CONTRACT_FRAMEWORK", "gloo isolated:gloo rehearsal").split()
AT_LENGTH = (
    []
    if "CONTRACT_FRAMEWORK" in os.environ
    else [
        pytest.param("tests.frameworks.nccl.fake:FakeNcclFramework", marks=pytest.mark.soak),
        pytest.param("isolated:rehearsal", marks=pytest.mark.soak),
    ]
)
"""One with a library that stands for NCCL; one whose groups are those of another one, and which takes seconds to start."""
NAMES = pytest.mark.parametrize("name", [*FRAMEWORKS, *AT_LENGTH])
ON_GPU = [on_gpu(f"{name}@{PLACE}") for name in FRAMEWORKS if name in ("gloo", "isolated:gloo")]
"""Once more with tensors on a GPU, where there is one."""


@pytest.fixture(scope="module", params=[*FRAMEWORKS, *AT_LENGTH, *ON_GPU])
def crew(request: pytest.FixtureRequest) -> Iterator[Crew]:
    crew = Crew(request.param)
    yield crew
    crew.close()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_operations(crew: Crew, size: int) -> None:
    hands = crew.hire(3)[:size]
    crew.build(hands)
    answers = crew.run(hands, operate)
    assert all(answer == answers[0] for answer in answers)
    total, product = size * (size + 1) / 2, float(torch.arange(1, size + 1).prod())
    assert answers[0]["SUM"] == [total] * 5
    assert answers[0]["MIN"] == [1.0] * 5
    assert answers[0]["MAX"] == [float(size)] * 5
    assert answers[0]["PRODUCT"] == [product] * 5
    assert answers[0]["torch.bfloat16"] == [total] * 3
    assert answers[0]["broadcast torch.int16"] == [[size - 1] * 2] * 3
    assert answers[0]["scalar"] == size * (size - 1) / 2


@pytest.mark.parametrize("size", [1, 2, 3])
def test_operations_on_parts(crew: Crew, size: int) -> None:
    hands = crew.hire(3)[:size]
    crew.build(hands)
    for rank, answer in enumerate(crew.run(hands, operate_in_parts)):
        for dtype in (torch.uint8, torch.int16, torch.float32):
            assert answer[f"all_to_all {dtype}"] == [10 * source + rank for source in range(size) for _ in range(3)]
            assert answer[f"all_gather {dtype}"] == [[source] * 2 for source in range(size)]


def test_kill_is_felt_in_operations_on_parts(crew: Crew) -> None:
    hands = crew.hire(4)
    crew.build(hands)
    for hand in hands:
        hand.tell(loop_in_parts, 500_000)
    time.sleep(0.2)
    killed = hands[2].kill()
    survivors = [hand for hand in hands if hand is not hands[2]]
    answers = [hand.answer() for hand in survivors]
    print("\nerrors after", [f"{1e3 * (answer[0] - killed):.1f} ms" for answer in answers], [a[2] for a in answers])
    assert max(answer[0] for answer in answers) - killed < SOON
    crew.build(survivors)
    assert crew.run(survivors, reduce_one, 1000) == [3.0] * 3


def test_transfers_beside_collectives(crew: Crew) -> None:
    hands = crew.hire(3)
    crew.build(hands)
    assert crew.run(hands, exchange, 100_000) == [2.0, 0.0, 1.0]


def test_repeated_patterns(crew: Crew) -> None:
    hands = crew.hire(3)
    crew.build(hands)
    expected = [3.0 * 6 + (12.0 if step % 5 == 4 else 0.0) for step in range(12)]
    assert crew.run(hands, patterns) == [expected] * 3


@pytest.mark.parametrize("victim", [0, 3, pytest.param(1, marks=pytest.mark.soak), pytest.param(2, marks=pytest.mark.soak)])
def test_kill_is_felt_at_once_and_survivors_go_on(crew: Crew, victim: int) -> None:
    hands = crew.hire(4)
    crew.build(hands, host=(victim + 1) % 4)
    crew.run(hands, know_peers)
    for hand in hands:
        hand.tell(loop, 1_000_000)
    time.sleep(0.2)
    killed = hands[victim].kill()
    survivors = [hand for hand in hands if hand is not hands[victim]]
    answers = [hand.answer() for hand in survivors]
    print("\nerrors after", [f"{1e3 * (answer[0] - killed):.1f} ms" for answer in answers], [a[3] for a in answers])
    assert max(answer[0] for answer in answers) - killed < SOON  # milliseconds in fact; the machine may be busy
    assert max(answer[1] for answer in answers) - min(answer[1] for answer in answers) <= 1
    assert any(victim in answer[3] or answer[2] == FORGOTTEN for answer in answers)
    took = crew.build(survivors)
    print("rebuilt in", [f"{1e3 * seconds:.1f} ms" for seconds in took])
    assert crew.run(survivors, reduce_one, 1_000_000) == [3.0] * 3


def test_stopped_worker_is_left_behind(crew: Crew) -> None:
    """SIGSTOP: nobody's connection breaks until one of the others aborts."""
    hands = crew.hire(3)
    crew.build(hands)
    for hand in hands:
        hand.tell(loop, 100_000)
    time.sleep(0.1)
    os.kill(hands[2].process.pid, signal.SIGSTOP)
    try:
        time.sleep(0.1)
        assert not any(hand._pipe.poll(0.3) for hand in hands[:2])
    finally:
        os.kill(hands[2].process.pid, signal.SIGCONT)
    hands[2].kill()
    for hand in hands[:2]:
        hand.answer()


def test_abort_wakes_a_waiting_operation(crew: Crew) -> None:
    hands = crew.hire(3)
    crew.build(hands)
    for hand, waiting in zip(hands, (True, False, False), strict=True):
        hand.tell(abort_from_another_thread, waiting)
    took = [hand.answer() for hand in hands]
    print(f"\nabort to error {1e3 * took[0]:.2f} ms")
    assert took[0] < SOON


def test_rebuild_names_who_is_missing(crew: Crew) -> None:
    hands = crew.hire(3)
    specs = crew.specs(hands, timeout=3.0)
    for hand, spec in zip(hands[:2], specs, strict=False):
        hand.tell(try_rebuild, spec, None)
    for took, text in [hand.answer() for hand in hands[:2]]:
        assert "no sign of ranks [2]" in text
        assert "(2,)" in text
        assert 2.5 < took < SOON


def test_cancel_ends_a_rebuild(crew: Crew) -> None:
    hands = crew.hire(2)
    hands[0].tell(try_rebuild, crew.specs(hands)[0], 0.2)
    took, text = hands[0].answer()
    assert "cancelled" in text
    assert took < SOON
    crew.build(hands)
    assert crew.run(hands, reduce_one, 10) == [2.0] * 2


def test_rebuild_with_a_dead_store_fails_at_once(crew: Crew) -> None:
    hands = crew.hire(3)
    specs = crew.specs(hands, host=2)
    hands[2].kill()
    hands[0].tell(try_rebuild, specs[0], None)
    took, text = hands[0].answer()
    assert "does not answer" in text
    assert took < SOON


def test_abort_during_rebuild(crew: Crew) -> None:
    hands = crew.hire(3)
    crew.build(hands)
    for _ in range(3):
        for hand, spec in zip(hands, crew.specs(hands), strict=True):
            hand.tell(abort_old_while_rebuilding, spec)
        assert all("open" in hand.answer() for hand in hands)
    assert crew.run(hands, reduce_one, 10) == [3.0] * 3


def test_kill_is_felt_although_a_child_lives_on(crew: Crew) -> None:
    hands = crew.hire(3)
    crew.build(hands)
    hands[1].tell(keep_child, 30.0)
    child = hands[1].answer()
    for hand in hands:
        hand.tell(loop, 1000)
    time.sleep(0.1)
    killed = hands[1].kill()
    for hand in (hands[0], hands[2]):
        assert hand.answer()[0] - killed < SOON
    os.kill(child, signal.SIGKILL)


@NAMES
def test_start_needs_an_address_of_this_machine(name: str) -> None:
    with pytest.raises(ConfigError, match=r"203\.0\.113\.7"):
        made(name).start("203.0.113.7")
    with pytest.raises(ConfigError, match="start the framework"):
        made(name).rebuild(GroupSpec("v", 1, 0, 1, {"store": "127.0.0.1:1"}, 1.0))


@NAMES
def test_alone_in_this_process(name: str) -> None:
    framework = made(name)
    facts = framework.start("127.0.0.1")
    assert framework.start("127.0.0.1") == facts
    assert framework.start("127.0.0.2")["store"].startswith("127.0.0.2:"), "a later lifetime may have another address"
    facts = framework.start("127.0.0.1")
    group = framework.rebuild(GroupSpec("v", 1, 0, 1, facts, TIMEOUT))
    with pytest.raises(ConfigError, match="MEDIAN"):
        group.allreduce(torch.ones(1), "MEDIAN")
    tensor = torch.ones(3)
    assert group.allreduce(tensor).wait(TIMEOUT)
    assert tensor.tolist() == [1.0] * 3
    element = torch.full((3, 4), 7.0)[1:2, 0]  # contiguous, as there is one, though its stride is 4
    assert group.broadcast(element, 0).wait(TIMEOUT)
    assert group.allreduce(element).wait(TIMEOUT)
    assert element.tolist() == [7.0]
    framework.abort_communicator()
    with pytest.raises(GroupError):
        group.barrier().wait(TIMEOUT)
    framework.close()
    framework.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", int(facts["store"].rpartition(":")[2])))


@pytest.mark.parametrize("ending", ["group.close()", "framework.close()", "None"])
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.soak] * (each in ("isolated:gloo", "rehearsal"))) for each in FRAMEWORKS]
)
def test_process_ends_well_with_operations_under_way(name: str, ending: str) -> None:
    """Threads inside C++ while the interpreter finalizes would end it with SIGABRT."""
    script = f"""if True:
        import sys, threading, torch
        from ftlib.frameworks import GroupSpec
        from tests.frameworks.crew import made
        frameworks = [made({name!r}) for _ in range(2)]
        facts = [framework.start("127.0.0.1") for framework in frameworks]
        def build(rank):
            group = frameworks[rank].rebuild(GroupSpec("v", 1, rank, 2, facts[0], 20.0))
            for _ in range(3):
                group.allreduce(torch.ones(5)).wait(20.0)
        other = threading.Thread(target=build, args=(1,))
        other.start()
        build(0)
        other.join()
        framework, group = frameworks[0], frameworks[0].group
        work = group.allreduce(torch.ones(5))
        received = group.recv(torch.ones(5), 1, 3)
        {ending}
        sys.exit(7)
    """
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=180, check=False)
    assert ended.returncode == 7, ended.stderr


@NAMES
def test_check_names_the_remedy(name: str) -> None:
    framework = made(name)
    framework.check(torch.ones(3))
    with pytest.raises(ConfigError, match="convert to one of"):
        framework.check(torch.ones(3, dtype=torch.int16))
    with pytest.raises(ConfigError, match="to_dense"):
        framework.check(torch.ones(3).to_sparse())
    with pytest.raises(ConfigError, match="meta"):
        framework.check(torch.ones(3, device="meta"))


def test_a_future_completes_when_the_operation_has_ended(crew: Crew) -> None:
    """With nothing, or with its error; and not before."""
    hands = crew.hire(2)
    crew.build(hands)
    assert crew.run(hands, futures) == [("pending", None, "GroupError", True), ("", None, "GroupError", True)]
