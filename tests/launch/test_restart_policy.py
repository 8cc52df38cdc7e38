"""The launcher's decisions, without a process."""

from __future__ import annotations

import pytest

from ftlib.launch.run.plan import StartPlan
from ftlib.launch.run.restarts import RestartPolicy, RunAction, StartMode, WorkerPhase


def begun(workers: int, *, restarts: int = 3, minimum: int = 1, founded: bool = True) -> RestartPolicy:
    policy = RestartPolicy(StartPlan(("x",), workers, max_restarts=restarts, min_workers=minimum))
    for index in range(workers):
        policy.started(index, 100 + index, f"127.0.0.1:{9000 + index}", founder=True)
    if founded:
        assert policy.announced(100, "m0", "127.0.0.1:9000", 1)
    return policy


def phases(policy: RestartPolicy) -> list[WorkerPhase]:
    return [record.phase for record in policy.records]


def test_a_worker_that_finishes_is_done() -> None:
    policy = begun(2)
    assert policy.exited(0, 0) is RunAction.GO_ON
    assert policy.exited(1, 0) is RunAction.GO_ON
    assert policy.over
    assert policy.result == 0


def test_a_death_that_others_outlive_does_not_fail_the_run() -> None:
    policy = begun(2, restarts=0)
    policy.exited(0, -9)
    assert phases(policy) == [WorkerPhase.FAILED, WorkerPhase.RUNNING]
    policy.exited(1, 0)
    assert policy.over
    assert policy.result == 0


def test_the_failure_that_nobody_outlives_is_the_result() -> None:
    policy = begun(2, restarts=0)
    policy.exited(0, 0)
    policy.exited(1, -11)
    assert policy.over
    assert (policy.result, policy.last_failed) == (-11, 1)


def test_after_the_founding_a_worker_joins_the_members_of_the_view() -> None:
    policy = begun(3)
    policy.exited(0, -9)
    assert policy.start_mode() is StartMode.JOIN
    assert policy.introducers() == ["127.0.0.1:9001", "127.0.0.1:9002"]
    policy.started(0, 200, "", founder=False)
    assert policy.introducers() == ["127.0.0.1:9001", "127.0.0.1:9002"]
    policy.announced(200, "m9", "127.0.0.1:7777", 0)
    assert "127.0.0.1:7777" not in policy.introducers()
    policy.announced(200, "m9", "127.0.0.1:7777", 4)
    assert "127.0.0.1:7777" in policy.introducers()


def test_before_the_founding_it_returns_to_its_address() -> None:
    policy = begun(3, founded=False)
    policy.exited(0, -9)
    assert policy.start_mode() is StartMode.FOUND


def test_with_nobody_left_a_new_founding_begins() -> None:
    policy = begun(2)
    policy.exited(0, -9)
    policy.started(0, 200, "", founder=False)
    policy.exited(1, -9)
    assert policy.start_mode() is StartMode.HOLD  # the joiner may hold a view that it has not told yet
    policy.exited(0, 1)
    assert policy.start_mode() is StartMode.REFOUND
    policy.refound()
    assert policy.start_mode() is StartMode.FOUND


def test_restarts_are_counted_over_all_workers() -> None:
    policy = begun(3, restarts=1)
    policy.exited(0, -9)
    policy.exited(1, -9)
    assert phases(policy) == [WorkerPhase.WAITING, WorkerPhase.FAILED, WorkerPhase.RUNNING]


def test_who_asked_for_it_comes_back_after_a_good_end() -> None:
    policy = begun(3, restarts=1)
    assert policy.wanted_again(101)
    assert not policy.wanted_again(999), "no such worker"
    assert policy.exited(1, 0) is RunAction.GO_ON
    assert phases(policy) == [WorkerPhase.RUNNING, WorkerPhase.WAITING, WorkerPhase.RUNNING]
    assert policy.start_mode() is StartMode.JOIN
    policy.started(1, 201, "", founder=False)
    policy.exited(1, 0)
    assert phases(policy)[1] is WorkerPhase.DONE, "it had asked once"
    assert policy.wanted_again(102)
    policy.exited(2, 0)
    assert phases(policy)[2] is WorkerPhase.DONE, "no restart is left"


def test_a_script_that_fails_everywhere_before_a_view_is_not_restarted() -> None:
    policy = begun(2, founded=False)
    assert policy.exited(0, 1) is RunAction.GO_ON
    assert policy.exited(1, 2) is RunAction.END
    assert policy.over
    assert shell(policy) == 2
    assert "script" in policy.ending


def test_but_workers_that_were_killed_are() -> None:
    policy = begun(2, founded=False)
    policy.exited(0, -9)
    assert policy.exited(1, -9) is RunAction.GO_ON
    assert phases(policy) == [WorkerPhase.WAITING, WorkerPhase.WAITING]


def test_below_the_minimum_the_run_ends() -> None:
    policy = begun(3, restarts=0, minimum=2)
    assert policy.exited(0, -9) is RunAction.GO_ON
    assert policy.exited(1, -9) is RunAction.END
    assert "--min is 2" in policy.ending
    assert policy.exited(2, 0) is RunAction.GO_ON  # drained
    assert policy.result == -9


def test_the_minimum_does_not_matter_once_someone_finished() -> None:
    policy = begun(3, restarts=0, minimum=2)
    policy.exited(0, 0)
    assert policy.exited(1, -9) is RunAction.GO_ON


def test_when_all_members_finished_a_joiner_is_not_needed() -> None:
    policy = begun(2)
    policy.exited(0, -9)
    policy.started(0, 200, "", founder=False)
    assert policy.exited(1, 0) is RunAction.RETIRE
    policy.exited(0, -15, sent_away=True)
    assert policy.over
    assert policy.result == 0


def test_when_all_others_finished_nobody_is_restarted() -> None:
    policy = begun(2)
    policy.exited(0, -9)
    assert policy.exited(1, 0) is RunAction.RETIRE
    policy.retire_waiting()
    assert policy.over
    assert policy.result == 0


def test_exits_after_the_end_change_nothing() -> None:
    policy = begun(2)
    policy.end("SIGINT")
    policy.exited(0, -9)
    policy.exited(1, 1)
    assert policy.result == 0
    assert policy.over


def test_announcements_of_strangers_are_refused() -> None:
    policy = begun(1)
    assert not policy.announced(4242, "m", "127.0.0.1:1", 1)


def test_a_worker_that_joins_again_in_its_process_is_another_member() -> None:
    """In no view until it says so; and what it said before is not heard any more, whenever it arrives."""
    policy = begun(2)
    assert policy.announced(101, "m1", "127.0.0.1:9001", 2)
    assert policy.announced(101, "again", "127.0.0.1:9005", 0)
    assert policy.past == {"m1"}
    assert policy.introducers() == ["127.0.0.1:9000"]
    assert policy.announced(101, "m1", "127.0.0.1:9001", 3)
    assert policy.records[1].member == "again"
    assert policy.announced(101, "again", "127.0.0.1:9005", 4)
    assert policy.introducers() == ["127.0.0.1:9000", "127.0.0.1:9005"]
    policy.exited(1, -9)
    policy.started(1, 102, "", founder=False)
    assert policy.past == {"m1", "again"}


def shell(policy: RestartPolicy) -> int:
    return policy.result


def replicas(restarts: int = 3) -> RestartPolicy:
    """Two of two processes each."""
    policy = RestartPolicy(StartPlan(("x",), 4, shards=2, max_restarts=restarts))
    for index in range(4):
        policy.started(index, 100 + index, f"127.0.0.1:{9000 + index}", founder=True)
    assert policy.announced(100, "m0", "127.0.0.1:9000", 1)
    return policy


def test_a_replica_is_restarted_as_a_whole_and_that_counts_once() -> None:
    policy = replicas(restarts=1)
    policy.exited(2, -9)
    assert not policy.ready(2), "the rest of its replica still runs"
    policy.exited(3, 1)
    assert policy.ready(2)
    assert policy.ready(3)
    assert policy.restarts_left == 0
    assert phases(policy) == [WorkerPhase.RUNNING, WorkerPhase.RUNNING, WorkerPhase.WAITING, WorkerPhase.WAITING]
    policy.exited(0, -9)
    policy.exited(1, -9)
    assert phases(policy)[:2] == [WorkerPhase.FAILED, WorkerPhase.FAILED]


@pytest.mark.parametrize("first", [2, 3])
def test_a_replica_of_which_one_process_asked_for_it_comes_back_and_that_counts_once(first: int) -> None:
    """Its mate ends with an error, as it is left; whichever ends first."""
    policy = replicas(restarts=1)
    assert policy.wanted_again(102)
    codes = {2: 0, 3: 3}
    policy.exited(first, codes[first])
    policy.exited(5 - first, codes[5 - first])
    assert policy.ready(2)
    assert policy.ready(3)
    assert policy.restarts_left == 0


def test_who_asked_for_it_does_not_wait_for_a_replica_that_is_done() -> None:
    policy = replicas()
    assert policy.wanted_again(102)
    policy.exited(3, 0)
    policy.exited(2, 0)
    assert phases(policy)[2:] == [WorkerPhase.DONE, WorkerPhase.DONE]


def test_a_replica_of_which_one_process_has_finished_is_not_started_again() -> None:
    policy = replicas()
    policy.exited(2, 0)
    policy.exited(3, 1)
    assert phases(policy)[2:] == [WorkerPhase.DONE, WorkerPhase.FAILED]


def test_nobody_takes_the_place_of_a_worker_that_is_stuck() -> None:
    policy = begun(2, restarts=3)
    assert policy.exited(0, -9, stuck=True) is RunAction.GO_ON
    assert phases(policy) == [WorkerPhase.FAILED, WorkerPhase.RUNNING]
    assert policy.restarts_left == 3
    policy.exited(1, 0)
    assert policy.over and policy.result == 0, "the other one outlived it"


def test_who_is_stuck_and_not_needed_does_not_come_back() -> None:
    policy = begun(2)
    policy.exited(0, -9, sent_away=True, stuck=True)
    policy.revive(0)
    assert phases(policy) == [WorkerPhase.RETIRED, WorkerPhase.RUNNING]


def test_a_replica_with_a_process_that_is_stuck_is_not_started_again() -> None:
    policy = RestartPolicy(StartPlan(("x",), 4, shards=2, max_restarts=3))
    for index in range(4):
        policy.started(index, 100 + index, "", founder=True)
    policy.exited(0, -9)
    assert phases(policy)[0] is WorkerPhase.WAITING
    policy.exited(1, -9, stuck=True)
    assert phases(policy)[:2] == [WorkerPhase.FAILED, WorkerPhase.FAILED], "it would wait for its mate for ever"
    assert not policy.ready(0)
