"""How a plan of faults is carried out, on a job that is made up: what goes wrong between a look and an order."""

from __future__ import annotations

import dataclasses

import pytest

from ftlib.cli.chaos import campaign
from ftlib.cli.chaos.campaign import Campaign
from ftlib.cli.chaos.job import Seen, Sight, UnansweredError
from ftlib.cli.chaos.plan import Planned
from ftlib.errors import FTLibError

KILL = Planned(1, 0.0, "kill", "worker-1", 1.0)


class MadeUp:
    """Three workers; each look finds a step more. ``orders``: what becomes of each, one after another."""

    def __init__(self, *orders: FTLibError | None) -> None:
        self.orders = list(orders)
        self.told: list[tuple[str, str]] = []
        self.sight = Sight({f"worker-{number}": Seen(f"first-{number}", f"here:{number}", 1) for number in range(3)}, 1)
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
