"""How a plan of faults is carried out, on a job that is made up: what goes wrong between a look and an order."""

from __future__ import annotations

import dataclasses
import json
import resource
from pathlib import Path

import pytest

from ftlib.cli.chaos import campaign
from ftlib.cli.chaos import main as command
from ftlib.cli.chaos.campaign import Campaign
from ftlib.cli.chaos.job import Seen, Sight, UnansweredError
from ftlib.cli.chaos.plan import Planned
from ftlib.cli.main import main
from ftlib.errors import FTLibError

KILL = Planned(1, 0.0, "kill", "worker-1", 1.0)
LEAVE = Planned(1, 0.0, "leave", "worker-1", 1.0)
AFTER = Planned(2, 0.0, "kill", "worker-2", 1.0)


class MadeUp:
    """Three workers; each look finds a step more. ``orders``: what becomes of each, one after another."""

    def __init__(self, *orders: FTLibError | None) -> None:
        self.orders = list(orders)
        self.told: list[tuple[str, str]] = []
        self.sight = Sight(
            {f"worker-{number}": Seen(f"first-{number}", f"here:{number}", 1, level=True) for number in range(3)}, 1
        )
        self.also: tuple[str, ...] = ()

    def look(self) -> Sight:
        members = {name: dataclasses.replace(seen, step=(seen.step or 0) + 1) for name, seen in self.sight.members.items()}
        self.sight = dataclasses.replace(self.sight, members=members)
        return self.sight

    def inject(self, seen: Seen, kind: str, seconds: float) -> None:
        del seconds
        self.told.append((seen.member, kind))
        if self.orders and (error := self.orders.pop(0)) is not None:
            if isinstance(error, UnansweredError):
                self.replace("worker-1")
            raise error
        for name in ("worker-1", *self.also):
            self.replace(name)

    def replace(self, name: str) -> None:
        seen = self.sight.members[name]
        members = {**self.sight.members, name: dataclasses.replace(seen, member=f"{seen.member}-again")}
        self.sight = Sight(members, self.sight.epoch + 2)


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "_EVERY", 0.001)


def test_who_was_given_up_a_moment_before_is_hit_once_it_is_back() -> None:
    job = MadeUp(UnansweredError("nobody there"))
    [row] = Campaign(job, [KILL], patience=5.0, beyond=False).run()
    assert job.told == [("first-1", "kill"), ("first-1-again", "kill")]
    assert row.back.startswith("back after")
    assert (row.epochs, row.others, row.steps_lost) == ((3, 5), (), 0)


def test_a_refusal_ends_it() -> None:
    job = MadeUp(FTLibError("takes no faults"))
    with pytest.raises(FTLibError, match="takes no faults"):
        list(Campaign(job, [KILL], patience=5.0, beyond=False).run())
    assert len(job.told) == 1


def test_who_never_answers_ends_it() -> None:
    job = MadeUp(*[UnansweredError("nobody there")] * 1000)
    with pytest.raises(UnansweredError):
        list(Campaign(job, [KILL], patience=0.1, beyond=False).run())


class Offering(MadeUp):
    """Its workers take faults."""

    def offers(self, seen: Seen) -> tuple[str, ...]:
        del seen
        return ("kill",)


def test_a_full_disk_costs_lines_of_the_log_and_not_the_campaign(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "Job", lambda *_: Offering())
    plan = tmp_path / "plan.jsonl"
    plan.write_text("".join(json.dumps(dataclasses.replace(KILL, number=number).as_dict()) + "\n" for number in (1, 2)))
    with pytest.raises(SystemExit) as ended:
        main(["chaos", "here:1", "--replay", str(plan), "--log", "/dev/full", "--json"])
    out, err = capsys.readouterr()
    assert [json.loads(line)["number"] for line in out.splitlines()] == [1, 2]
    assert ended.value.code == 1
    assert err.startswith("ftlib: error: --log: /dev/full cannot be written (No space left on device)")
    assert err.count("\n") == 1


def test_a_log_whose_last_line_is_cut_off_is_told_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "Job", lambda *_: Offering())
    plan, log = tmp_path / "plan.jsonl", tmp_path / "log.jsonl"
    plan.write_text(json.dumps(KILL.as_dict()) + "\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, hard))  # as a disk that is full in the middle of the line
    try:
        with pytest.raises(SystemExit) as ended:
            main(["chaos", "here:1", "--replay", str(plan), "--log", str(log)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert log.stat().st_size == 20
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith(f"ftlib: error: --log: {log} cannot be written (File too large)")


class Silent(MadeUp):
    """After the fault everybody answers a few times, though nobody trains, and from then on nobody does."""

    answers = 5

    def look(self) -> Sight:
        if not self.told:
            return super().look()
        self.answers -= 1
        if self.answers < 0:
            raise FTLibError("no answer")
        members = {name: dataclasses.replace(seen, paused=seen.paused + 0.5) for name, seen in self.sight.members.items()}
        self.sight = dataclasses.replace(self.sight, members=members, changing=True)
        return self.sight


def test_what_was_seen_last_counts_where_nobody_answers_in_the_end() -> None:
    [row] = Campaign(Silent(), [KILL], patience=0.1, beyond=False).run()
    assert row.others == (), "nobody else was replaced"
    assert row.pause == 2.5


def test_the_row_names_others_that_were_replaced() -> None:
    job = MadeUp()
    job.also = ("worker-2", "worker-0")
    [row] = Campaign(job, [KILL], patience=5.0, beyond=False).run()
    assert row.others == ("worker-0", "worker-2")
    assert row.as_dict()["others"] == ["worker-0", "worker-2"]


class Loading(MadeUp):
    """Whoever comes back lacks the state until it was looked at ten times."""

    looks = 0

    def look(self) -> Sight:
        self.looks += 1
        if self.looks == self.due:
            members = {name: dataclasses.replace(seen, level=True) for name, seen in self.sight.members.items()}
            self.sight = dataclasses.replace(self.sight, members=members)
        return super().look()

    due = 0

    def inject(self, seen: Seen, kind: str, seconds: float) -> None:
        assert all(each.level for each in self.sight.members.values()), "who is hit may be the last with the state"
        super().inject(seen, kind, seconds)
        members = {**self.sight.members, "worker-1": dataclasses.replace(self.sight.members["worker-1"], level=False)}
        self.sight, self.due = dataclasses.replace(self.sight, members=members), self.looks + 10


def test_who_comes_back_has_the_state_before_the_next_fault() -> None:
    job = Loading()
    assert all(row.back.startswith("back") for row in Campaign(job, [KILL, KILL], patience=5.0, beyond=False).run())
    assert job.told == [("first-1", "kill"), ("first-1-again", "kill")]


class Sharded(MadeUp):
    """Replicas of two workers each, "0-1" and so on: who is hit goes with its mate. They come back under another name, as long
    as a launcher starts them (``supervised``).
    """

    def __init__(self, count: int, *, supervised: bool = True) -> None:
        super().__init__()
        members = {
            f"worker-{number}": Seen(
                f"first-{number}", f"here:{number}", 1, supervised=supervised, replica=f"{number // 2}-1", shards=2, level=True
            )
            for number in range(2 * count)
        }
        self.sight = Sight(members, 1)
        self.supervised = supervised

    def inject(self, seen: Seen, kind: str, seconds: float) -> None:
        del seconds
        [name] = [each for each, other in self.sight.members.items() if other.member == seen.member]
        self.told.append((name, kind))
        lost = [each for each, other in self.sight.members.items() if other.replica == seen.replica]
        for each in (*lost, *self.also):
            self.replace(each)
        if not self.supervised:
            left = {each: other for each, other in self.sight.members.items() if each not in lost}
            self.sight = Sight(left, self.sight.epoch)

    def replace(self, name: str) -> None:
        super().replace(name)
        seen = self.sight.members[name]
        members = {**self.sight.members, name: dataclasses.replace(seen, replica=f"{seen.replica}-again")}
        self.sight = dataclasses.replace(self.sight, members=members)


def test_the_only_replica_is_spared_though_it_has_two_processes() -> None:
    job = Sharded(1)
    with pytest.raises(FTLibError, match=r"fault 1 \(kill worker-1\) was not injected: a second replica is not back"):
        list(Campaign(job, [KILL], patience=0.05, beyond=False).run())
    assert not job.told
    [row] = Campaign(job, [KILL], patience=5.0, beyond=True).run()
    assert job.told == [("worker-1", "kill")]
    assert row.back.startswith("back after")


@pytest.mark.parametrize("kind", ["kill", "leave"])
def test_mates_that_a_fault_took_along_are_not_replaced_besides(kind: str) -> None:
    job = Sharded(2)
    job.also = ("worker-2",)
    [row] = Campaign(job, [dataclasses.replace(KILL, kind=kind)], patience=5.0, beyond=False).run()
    assert row.back.startswith("back after")
    assert (row.replica, row.mates, row.others) == ("0-1", ("worker-0",), ("worker-2",))
    assert {"replica": "0-1", "mates": ["worker-0"], "others": ["worker-2"]}.items() <= row.as_dict().items()


def test_who_leaves_for_good_takes_its_replica_along() -> None:
    job = Sharded(3, supervised=False)
    rows = Campaign(job, [LEAVE, dataclasses.replace(AFTER, kind="leave"), AFTER], patience=0.3, beyond=False).run()
    first, second = next(rows), next(rows)
    assert (first.back, first.mates, first.others) == ("left", ("worker-0",), ())
    assert (second.back, second.mates, second.others) == ("left", ("worker-3",), ())
    with pytest.raises(FTLibError, match=r"fault 2 .*: worker-2 is not back"):  # a log may say so, no plan that is drawn does
        next(rows)
    assert job.told == [("worker-1", "leave"), ("worker-2", "leave")]


def test_the_last_replica_is_spared_after_a_leave() -> None:
    job = Sharded(2, supervised=False)
    rows = Campaign(job, [LEAVE, AFTER], patience=0.3, beyond=False).run()
    assert next(rows).back == "left"
    with pytest.raises(FTLibError, match="a second replica is not back"):
        next(rows)
    assert job.told == [("worker-1", "leave")]


def test_beyond_goes_on_while_workers_are_missing() -> None:
    job = Sharded(3, supervised=False)
    rows = Campaign(job, [KILL, AFTER], patience=0.05, beyond=True).run()
    assert [row.back for row in rows] == ["not back within 0.05 s"] * 2
    assert [name for name, _ in job.told] == ["worker-1", "worker-2"]
    job = Sharded(3, supervised=False)
    rows = Campaign(job, [KILL, AFTER], patience=0.05, beyond=False).run()
    assert next(rows).back == "not back within 0.05 s"
    with pytest.raises(FTLibError, match=r"worker-0, worker-1 is not back within .* or give --patience, or --beyond"):
        next(rows)
    assert [name for name, _ in job.told] == ["worker-1"]
