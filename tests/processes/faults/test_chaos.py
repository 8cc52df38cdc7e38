"""``ftlib chaos`` on a real job under ``ftlib run``: each kind once, a replay of the log, and refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ftlib.cli.main import main
from tests.harness.cluster import Cluster
from tests.harness.nursery import Nursery
from tests.harness.worker import PAUSE
from tests.processes.jobs.launched import LaunchedRun
from tests.processes.jobs.replicas import Replicas

pytestmark = pytest.mark.process


@pytest.fixture
def job(nursery: Nursery, tmp_path: Path) -> Iterator[LaunchedRun]:
    settings = {"bucket_mb": 0.08, "chaos": True, "exclude_after": 6.0}
    run = LaunchedRun(tmp_path / "job", 3, nursery=nursery, sizes=[20_000, 300], pause=PAUSE, settings=settings)
    try:
        run.training(3)
        yield run
    finally:
        run.close()


def chaos(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["chaos", *map(str, arguments)])
    assert isinstance(ended.value.code, int)
    return ended.value.code, *capsys.readouterr()


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def planned(path: Path, *faults: tuple[str, str, float]) -> Path:
    """A log of faults: kind, worker, seconds."""
    lines = [
        {"number": number, "after": 0.1, "kind": kind, "worker": worker, "seconds": seconds}
        for number, (kind, worker, seconds) in enumerate(faults, 1)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_each_kind_and_again(job: LaunchedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Written down by hand, so that each kind is there once; then the log of that is the plan of the next run."""
    kinds = [
        ("kill", "worker-0", 1.0),
        ("stop", "worker-1", 0.5),
        ("wedge", "worker-2", 0.5),
        ("slow", "worker-0", 0.5),
        ("cut", "worker-1", 0.3),
        ("agent", "worker-2", 1.0),
        ("leave", "worker-0", 1.0),
        ("kill", "worker-1", 1.0),
    ]
    plan = planned(tmp_path / "plan.jsonl", *kinds)
    lines = rows(plan.read_text())
    log = tmp_path / "log.jsonl"
    address = job.alive()[0].address
    code, out, err = chaos(capsys, address, "--replay", plan, "--log", log, "--json")
    assert code == 0, (out, err)
    found = rows(out)
    assert [(row["kind"], row["worker"]) for row in found] == [(line["kind"], line["worker"]) for line in lines]
    assert [row["back"].split()[0] for row in found] == ["back", "stayed", "stayed", "stayed", "stayed", "back", "back", "back"]
    assert all(row["steps_lost"] == 0 for row in found)
    assert found[0]["pause"] > 0, "somebody stood still"
    assert found[0]["epochs"][1] >= found[0]["epochs"][0] + 2, "one view without it, one with it"
    code, out, err = chaos(capsys, address, "--replay", log, "--dry-run", "--json")
    if code:  # that member was killed meanwhile
        code, out, err = chaos(capsys, job.alive()[0].address, "--replay", log, "--dry-run", "--json")
    assert (code, rows(out)) == (0, lines)


@pytest.mark.soak
def test_a_log_of_drawn_faults_gives_them_again(job: LaunchedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    drawn: tuple[object, ...] = ("--count", 2, "--mtbf", 0.3, "--kinds", "slow,kill", "--seed", 7)
    for number, plan in enumerate([drawn, ("--replay", tmp_path / "log-0.jsonl")]):
        log = tmp_path / f"log-{number}.jsonl"
        address = next(worker.address for worker in job.alive() if worker.calls)
        code, out, err = chaos(capsys, address, *plan, "--log", log, "--json")
        assert code == 0, (out, err)
        assert rows(out) == rows(log.read_text())
        found.append(rows(out))
        job.training(3)
    told = [[{key: row[key] for key in ("number", "after", "kind", "worker", "seconds")} for row in each] for each in found]
    assert told[0] == told[1]
    assert len(told[0]) == 2 and {row["kind"] for row in told[0]} <= {"slow", "kill"}
    assert all(row["steps_lost"] == 0 for each in found for row in each)


def test_who_leaves_without_a_launcher_stays_away(
    nursery: Nursery, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"bucket_mb": 0.08, "chaos": True}
    with Cluster(tmp_path, nursery, sizes=[20_000, 300], pause=PAUSE, settings=settings) as cluster:
        monkeypatch.setenv("FTLIB_SECRET", cluster.secret)
        workers = cluster.found(3)
        cluster.training(3)
        code, out, err = chaos(capsys, workers[0].address, "--kinds", "leave", "--count", 1, "--mtbf", 0.1)
        assert code == 0, (out, err)
        table = out.splitlines()[-2:]
        assert table[0].split()[:2] == ["fault", "worker"]
        assert table[1].split()[0] == "leave"
        assert table[1].endswith("left")
        cluster.until("one has ended", lambda: len(cluster.alive()) == 2)


@pytest.mark.soak
def test_replicas_of_several_processes(nursery: Nursery, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever is hit for good takes its mate along, and both come back: the mate is not taken for another one's loss."""
    faults = [
        ("kill", "worker-0", 1.0),
        ("stop", "worker-3", 0.5),
        ("leave", "worker-2", 1.0),
        ("wedge", "worker-2", 0.5),
        ("agent", "worker-1", 1.0),
    ]
    task: dict[str, Any] = {"program": "tests.processes.programs.sharded:train", "pause": 0.01, "settings": {"chaos": True}}
    run = LaunchedRun(tmp_path / "job", 2, "--shards", "2", nursery=nursery, restarts=3, **task)
    try:
        run.until("all four train", lambda: sum(worker.last.get("who") == 0b11 for worker in run.alive()) == 4)
        address = run.alive()[0].address
        code, out, err = chaos(capsys, address, "--replay", planned(tmp_path / "plan.jsonl", *faults), "--json")
        assert code == 0, (out, err)
        found = rows(out)
        assert [(row["kind"], row["worker"]) for row in found] == [fault[:2] for fault in faults]
        assert [row["back"].split()[0] for row in found] == [
            "stayed" if kind in ("stop", "wedge") else "back" for kind, _, _ in faults
        ]
        mates = {"worker-0": "worker-1", "worker-1": "worker-0", "worker-2": "worker-3", "worker-3": "worker-2"}
        assert [row["mates"] for row in found] == [[mates[worker]] for _, worker, _ in faults]
        # The name that the launcher gave: the replica's place, and which life of it that was.
        assert [row["replica"] for row in found] == ["0-1", "1-1", "1-1", "1-2", "0-2"]
        assert all(not row["others"] and not row["steps_lost"] for row in found), found
        assert "(0 restarts left)" in run.said, "each replica that came back used up one"
    finally:
        run.close()


def test_the_last_one_with_the_state_is_not_hit(nursery: Nursery, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """While the one that has come back loads it, the next fault waits, though both are in the view."""
    task: dict[str, Any] = {"program": "tests.processes.programs.slow_loader:train", "pause": 0.02, "given": {"seconds": 3.0}}
    run = LaunchedRun(tmp_path / "job", 2, nursery=nursery, settings={"chaos": True}, **task)
    try:
        run.until("both train", lambda: sum(worker.last.get("size") == 2 for worker in run.alive()) == 2)
        faults = planned(tmp_path / "plan.jsonl", ("kill", "worker-1", 1.0), ("kill", "worker-0", 1.0))
        code, out, err = chaos(capsys, run.alive()[0].address, "--replay", faults, "--json")
        assert code == 0, (out, err, run.said)
        assert [row["back"].split()[0] for row in rows(out)] == ["back", "back"]
        assert "nobody is left to join" not in run.said, "the job was not founded anew"
        assert all(call["trained"] == call["step"] for worker in run.workers for call in worker.calls)
    finally:
        run.close()


def test_the_only_replica_is_not_hit(nursery: Nursery, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor are two of which one would leave, for good; of three one is, with its mate, which ends, too."""
    settings = {"chaos": True}
    with Replicas(tmp_path, nursery, settings=settings) as cluster, pytest.MonkeyPatch.context() as patch:
        patch.setenv("FTLIB_SECRET", cluster.secret)
        [one] = cluster.begin(1)
        cluster.together(one)
        code, out, err = chaos(capsys, one[0].address, "--kinds", "kill", "--count", 1, "--mtbf", 0.1)
        assert (code, out) == (2, "")
        assert "the job has one replica" in err
        two, three = cluster.replica(), cluster.replica()
        cluster.together(one, two, three)
        arguments = ("--kinds", "leave", "--mtbf", 0.1, "--json")
        code, out, err = chaos(capsys, one[0].address, *arguments, "--count", 2)
        assert (code, out) == (2, "")
        assert "only 1 faults" in err
        code, out, err = chaos(capsys, one[0].address, *arguments, "--count", 1)
        assert code == 0, (out, err)
        [row] = rows(out)
        assert row["back"] == "left"
        gone = [
            worker for replica in (one, two, three) for worker in replica if worker.address in (row["worker"], *row["mates"])
        ]
        assert len(gone) == 2
        cluster.until("both have ended", lambda: all(worker.code is not None for worker in gone))
        left = [replica for replica in (one, two, three) if replica[0] not in gone]
        cluster.together(*left)
        code, out, err = chaos(capsys, left[0][0].address, *arguments, "--count", 1)
        assert (code, out) == (2, "")
        assert "only 0 faults" in err
        assert cluster.judge() > 5


@pytest.mark.soak
def test_who_is_cut_off_for_long_is_given_up(job: LaunchedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The others find it silent, and have it killed; its launcher starts it again."""
    plan = planned(tmp_path / "plan.jsonl", ("cut", "worker-2", 20.0))
    code, out, err = chaos(capsys, job.alive()[0].address, "--replay", plan, "--json")
    assert code == 0, (out, err)
    (row,) = rows(out)
    assert row["back"].startswith("back after")
    assert row["steps_lost"] == 0
    assert row["pause"] < 18.0, "the others do not wait for the cut to end"


def test_off_unless_the_workers_allow_it(nursery: Nursery, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = LaunchedRun(tmp_path, 2, nursery=nursery, sizes=[2_000], pause=PAUSE)
    try:
        run.training(2)
        code, _, err = chaos(capsys, run.alive()[0].address, "--mtbf", 0.1)
        assert code == 1
        assert "takes no faults: start all with chaos = true (FTLIB_CHAOS=1)" in err
        run.advanced()
        assert len(run.alive()) == 2
    finally:
        run.close()


def test_refused_without_the_secret(
    job: LaunchedRun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FTLIB_SECRET", "another secret than the job's")
    code, out, err = chaos(capsys, job.alive()[0].address, "--mtbf", 0.1)
    assert (code, out) == (1, "")
    assert "secret" in err
