"""What the options of ``ftlib chaos`` choose, on a job that is made up: whom it may hit, and when it refuses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import ftlib.cli.chaos.job as asking
import ftlib.cli.chaos.main as command
from ftlib.cli.chaos.job import Job, Seen, Sight
from ftlib.cli.main import main

Chaos = Any
"""Called with the command's arguments: exit code, output, errors."""


def seen(number: int, shards: int) -> Seen:
    replica = "" if shards == 1 else f"{number // shards}-1"
    return Seen(f"m{number}", f"127.0.0.1:{7000 + number}", 1, supervised=True, replica=replica, shards=shards)


def job_of(count: int, shards: int = 1) -> Sight:
    return Sight({f"worker-{number}": seen(number, shards) for number in range(count)}, 1)


@pytest.fixture
def chaos(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Chaos:
    def run(sight: Sight, *arguments: object) -> tuple[int, list[dict[str, Any]], str]:
        monkeypatch.setattr(Job, "look", lambda _: sight)
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["chaos", "127.0.0.1:7000", "--dry-run", "--json", *map(str, arguments)])
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, [json.loads(line) for line in out.splitlines()], " ".join(err.split())

    return run


def hit(rows: list[dict[str, Any]]) -> set[str]:
    return {row["worker"] for row in rows}


def test_everybody_may_be_hit(chaos: Chaos) -> None:
    code, rows, _ = chaos(job_of(3), "--count", 40)
    assert (code, hit(rows)) == (0, {"worker-0", "worker-1", "worker-2"})


@pytest.mark.parametrize("shards", [1, 2])
def test_only_one_is_hit(chaos: Chaos, shards: int) -> None:
    code, rows, _ = chaos(job_of(4, shards), "--count", 20, "--only", "worker-2")
    assert (code, hit(rows)) == (0, {"worker-2"})


def test_only_one_that_is_not_there(chaos: Chaos) -> None:
    code, rows, err = chaos(job_of(2), "--only", "worker-7")
    assert (code, rows) == (2, [])
    assert "--only worker-7: choose one of worker-0, worker-1" in err


def test_the_last_one_is_spared(chaos: Chaos) -> None:
    code, rows, _ = chaos(job_of(12), "--count", 300, "--spare-last")
    assert (code, hit(rows)) == (0, {f"worker-{number}" for number in range(11)})


def test_the_replica_of_the_last_one_is_spared(chaos: Chaos) -> None:
    """Its mate is not hit either: that would take it along."""
    code, rows, _ = chaos(job_of(6, 2), "--count", 60, "--spare-last")
    assert (code, hit(rows)) == (0, {f"worker-{number}" for number in range(4)})


@pytest.mark.parametrize(("count", "shards", "name"), [(2, 1, "worker-1"), (4, 2, "worker-2")])
def test_only_one_that_is_spared(chaos: Chaos, count: int, shards: int, name: str) -> None:
    code, rows, err = chaos(job_of(count, shards), "--spare-last", "--only", name)
    assert (code, rows) == (2, [])
    free = ", ".join(f"worker-{number}" for number in range(count - shards))
    assert f"--only {name}: choose one of {free}" in err


@pytest.mark.parametrize(("shards", "what"), [(1, "member"), (2, r"replica (worker-0, worker-1)")])
def test_the_only_replica_is_hit_if_it_is_asked_for(chaos: Chaos, shards: int, what: str) -> None:
    code, rows, err = chaos(job_of(shards, shards))
    assert (code, rows) == (2, [])
    assert f"the job has one {what}, which it may not lose: start more, or give --beyond" in err
    code, rows, _ = chaos(job_of(shards, shards), "--beyond", "--count", 20)
    assert (code, hit(rows)) == (0, {f"worker-{number}" for number in range(shards)})
    code, rows, err = chaos(job_of(shards, shards), "--beyond", "--spare-last")
    assert (code, rows) == (2, [])
    assert "start more, or leave --spare-last out" in err


def test_a_replay_does_not_hit_the_only_replica_either(chaos: Chaos, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    row = {"number": 1, "after": 0.1, "kind": "kill", "worker": "worker-0", "seconds": 1.0}
    log.write_text(json.dumps(row) + "\n")
    code, rows, err = chaos(job_of(2, 2), "--replay", log)
    assert (code, rows) == (2, [])
    assert "the job has one replica (worker-0, worker-1), which it may not lose" in err
    assert chaos(job_of(2, 2), "--replay", log, "--beyond")[:2] == (0, [row])
    assert chaos(job_of(4, 2), "--replay", log)[:2] == (0, [row])


def test_a_replica_that_is_not_whole_is_none(chaos: Chaos) -> None:
    whole = job_of(4, 2).members
    code, rows, err = chaos(Sight({name: whole[name] for name in ("worker-0", "worker-1", "worker-3")}, 1))
    assert (code, rows) == (2, [])
    assert "the job has one replica (worker-0, worker-1)" in err
    code, rows, err = chaos(Sight({name: whole[name] for name in ("worker-0", "worker-3")}, 1), "--beyond")
    assert (code, rows) == (1, [])
    assert "no replica of the job is whole now" in err


def status_of(address: str, *_: object) -> Mapping[str, Any]:
    number = int(address.rpartition(":")[2]) - 7000
    members = [
        {
            "id": f"m{each}",
            "address": f"127.0.0.1:{7000 + each}",
            "meta": {"name": f"worker {each}"},
            "cohort": None if each == 4 else {"name": f"{each // 2}-1", "size": 2},
        }
        for each in range(5)
    ]
    return {
        "member": f"m{number}",
        "members": members,
        "active_epoch": 3,
        "changing": False,
        "ftlib": {"step": 10 + number, "level": True},
    }


def test_a_status_tells_who_is_a_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "fetch_status", status_of)
    sight = Job("127.0.0.1:7001", 1.0).look()
    assert sight.whole() == [{"worker-0", "worker-1"}, {"worker-2", "worker-3"}, {"worker-4"}]
    assert sight.members["worker-3"] == Seen("m3", "127.0.0.1:7003", 13, replica="1-1", shards=2, level=True)
    assert sight.replica_of("worker-4") == {"worker-4"}


def test_the_table_names_the_replica() -> None:
    planned = command.Planned(1, 0.1, "kill", "worker-2", 1.0)
    row = command.Row(planned, 1.0, 0.2, 0, (1, 3), "back after 2.0 s", (), "1-1", ("worker-3",))
    head, line = command._table([row]).splitlines()
    assert head.split("  ")[:2] == ["fault", "worker"]
    assert "of replica" in head
    assert "1-1, with worker-3" in line
    alone = command._table([command.Row(planned, 1.0, 0.2, 0, (1, 3), "back after 2.0 s")])
    assert "replica" not in alone
