"""The launcher's decisions, without a process."""

from __future__ import annotations

from ftlib.launch.ledger import Ledger, Manner, Next, Phase
from ftlib.launch.plan import Plan


def begun(workers: int, *, restarts: int = 3, minimum: int = 1, founded: bool = True) -> Ledger:
    ledger = Ledger(Plan(("x",), workers, max_restarts=restarts, min_workers=minimum))
    for index in range(workers):
        ledger.started(index, 100 + index, f"127.0.0.1:{9000 + index}", founder=True)
    if founded:
        assert ledger.announced(100, "m0", "127.0.0.1:9000", 1)
    return ledger


def phases(ledger: Ledger) -> list[Phase]:
    return [entry.phase for entry in ledger.entries]


def test_a_worker_that_finishes_is_done() -> None:
    ledger = begun(2)
    assert ledger.exited(0, 0) is Next.GO_ON
    assert ledger.exited(1, 0) is Next.GO_ON
    assert ledger.over
    assert ledger.result == 0


def test_a_death_that_others_outlive_does_not_fail_the_run() -> None:
    ledger = begun(2, restarts=0)
    ledger.exited(0, -9)
    assert phases(ledger) == [Phase.FAILED, Phase.RUNNING]
    ledger.exited(1, 0)
    assert ledger.over
    assert ledger.result == 0


def test_the_failure_that_nobody_outlives_is_the_result() -> None:
    ledger = begun(2, restarts=0)
    ledger.exited(0, 0)
    ledger.exited(1, -11)
    assert ledger.over
    assert (ledger.result, ledger.last_failed) == (-11, 1)


def test_after_the_founding_a_worker_joins_the_members_of_the_view() -> None:
    ledger = begun(3)
    ledger.exited(0, -9)
    assert ledger.manner() is Manner.JOIN
    assert ledger.introducers() == ["127.0.0.1:9001", "127.0.0.1:9002"]
    ledger.started(0, 200, "", founder=False)
    assert ledger.introducers() == ["127.0.0.1:9001", "127.0.0.1:9002"]
    ledger.announced(200, "m9", "127.0.0.1:7777", 0)
    assert "127.0.0.1:7777" not in ledger.introducers()
    ledger.announced(200, "m9", "127.0.0.1:7777", 4)
    assert "127.0.0.1:7777" in ledger.introducers()


def test_before_the_founding_it_returns_to_its_address() -> None:
    ledger = begun(3, founded=False)
    ledger.exited(0, -9)
    assert ledger.manner() is Manner.FOUND


def test_with_nobody_left_a_new_founding_begins() -> None:
    ledger = begun(2)
    ledger.exited(0, -9)
    ledger.started(0, 200, "", founder=False)
    ledger.exited(1, -9)
    assert ledger.manner() is Manner.HOLD  # the joiner may hold a view that it has not told yet
    ledger.exited(0, 1)
    assert ledger.manner() is Manner.REFOUND
    ledger.refound()
    assert ledger.manner() is Manner.FOUND


def test_restarts_are_counted_over_all_workers() -> None:
    ledger = begun(3, restarts=1)
    ledger.exited(0, -9)
    ledger.exited(1, -9)
    assert phases(ledger) == [Phase.WAITING, Phase.FAILED, Phase.RUNNING]


def test_a_script_that_fails_everywhere_before_a_view_is_not_restarted() -> None:
    ledger = begun(2, founded=False)
    assert ledger.exited(0, 1) is Next.GO_ON
    assert ledger.exited(1, 2) is Next.END
    assert ledger.over
    assert shell(ledger) == 2
    assert "script" in ledger.ending


def test_but_workers_that_were_killed_are() -> None:
    ledger = begun(2, founded=False)
    ledger.exited(0, -9)
    assert ledger.exited(1, -9) is Next.GO_ON
    assert phases(ledger) == [Phase.WAITING, Phase.WAITING]


def test_below_the_minimum_the_run_ends() -> None:
    ledger = begun(3, restarts=0, minimum=2)
    assert ledger.exited(0, -9) is Next.GO_ON
    assert ledger.exited(1, -9) is Next.END
    assert "--min is 2" in ledger.ending
    assert ledger.exited(2, 0) is Next.GO_ON  # drained
    assert ledger.result == -9


def test_the_minimum_does_not_matter_once_someone_finished() -> None:
    ledger = begun(3, restarts=0, minimum=2)
    ledger.exited(0, 0)
    assert ledger.exited(1, -9) is Next.GO_ON


def test_when_all_members_finished_a_joiner_is_not_needed() -> None:
    ledger = begun(2)
    ledger.exited(0, -9)
    ledger.started(0, 200, "", founder=False)
    assert ledger.exited(1, 0) is Next.RETIRE
    ledger.exited(0, -15, sent_away=True)
    assert ledger.over
    assert ledger.result == 0


def test_when_all_others_finished_nobody_is_restarted() -> None:
    ledger = begun(2)
    ledger.exited(0, -9)
    assert ledger.exited(1, 0) is Next.RETIRE
    ledger.retire_waiting()
    assert ledger.over
    assert ledger.result == 0


def test_exits_after_the_end_change_nothing() -> None:
    ledger = begun(2)
    ledger.end("SIGINT")
    ledger.exited(0, -9)
    ledger.exited(1, 1)
    assert ledger.result == 0
    assert ledger.over


def test_announcements_of_strangers_are_refused() -> None:
    ledger = begun(1)
    assert not ledger.announced(4242, "m", "127.0.0.1:1", 1)


def test_a_worker_that_joins_again_in_its_process_is_another_member() -> None:
    """In no view until it says so; and what it said before is not heard any more, whenever it arrives."""
    ledger = begun(2)
    assert ledger.announced(101, "m1", "127.0.0.1:9001", 2)
    assert ledger.announced(101, "again", "127.0.0.1:9005", 0)
    assert ledger.past == {"m1"}
    assert ledger.introducers() == ["127.0.0.1:9000"]
    assert ledger.announced(101, "m1", "127.0.0.1:9001", 3)
    assert ledger.entries[1].member == "again"
    assert ledger.announced(101, "again", "127.0.0.1:9005", 4)
    assert ledger.introducers() == ["127.0.0.1:9000", "127.0.0.1:9005"]
    ledger.exited(1, -9)
    ledger.started(1, 102, "", founder=False)
    assert ledger.past == {"m1", "again"}


def shell(ledger: Ledger) -> int:
    return ledger.result
