"""What ``ftlib chaos`` plans: the same for the same seed, and nothing that it does not offer."""

from __future__ import annotations

import json

import pytest

from ftlib.cli.chaos.plan import NAMES as ALL
from ftlib.cli.chaos.plan import draw, in_order, kinds_of, replayed
from ftlib.errors import ConfigError
from ftlib.lifecycle.chaos import KINDS

NAMES = ["worker-10", "worker-2", "worker-0", "worker-1"]
PAIRS = [("worker-0", "worker-1"), ("worker-2", "worker-3"), ("worker-4", "worker-5")]
PAIRED = [name for pair in PAIRS for name in pair]


def alone(names: list[str]) -> list[tuple[str]]:
    """Each is a replica by itself."""
    return [(name,) for name in names]


def test_a_seed_decides_everything() -> None:
    plans = [
        draw(seed, 30.0, ALL[:5], alone(names), 50, 5.0, targets=names)
        for seed, names in ((7, NAMES), (7, NAMES[::-1]), (8, NAMES))
    ]
    assert plans[0] == plans[1]
    assert plans[0] != plans[2]
    assert {planned.kind for planned in plans[0]} == set(ALL[:5])
    assert {planned.worker for planned in plans[0]} == set(NAMES)


def test_intervals_are_exponential() -> None:
    plan = draw(1, 30.0, ["kill"], alone(NAMES), 4000, 5.0, targets=NAMES)
    mean = sum(planned.after for planned in plan) / len(plan)
    assert mean == pytest.approx(30.0, rel=0.06)
    assert sum(planned.after > 30.0 for planned in plan) / len(plan) == pytest.approx(0.3679, abs=0.03)


def test_a_log_is_a_plan() -> None:
    plan = draw(7, 30.0, ALL, alone(NAMES), 20, 5.0, targets=NAMES)
    lines = [json.dumps({**planned.as_dict(), "back": "stayed", "pause": 0.1}) for planned in plan]
    assert replayed([*lines, "", json.dumps({"end": True})]) == plan


@pytest.mark.parametrize("seed", range(20))
def test_who_has_left_is_hit_no_more_and_two_stay(seed: int) -> None:
    gone: set[str] = set()
    for planned in draw(seed, 1.0, ["leave", "kill"], alone(NAMES), 40, 5.0, targets=NAMES):
        assert planned.worker not in gone
        if planned.kind == "leave":
            gone.add(planned.worker)
    assert len(gone) == 2


def test_who_comes_back_may_leave_for_ever() -> None:
    plan = draw(1, 1.0, ALL, alone(NAMES), 200, 5.0, targets=NAMES, returning=NAMES)
    assert len(plan) == 200
    assert sum(planned.kind == "leave" for planned in plan) > len(NAMES)
    plan = draw(1, 1.0, ["leave"], alone(NAMES), 40, 5.0, targets=NAMES, returning=["worker-1"])
    others = [planned.worker for planned in plan if planned.worker != "worker-1"]
    assert len(others) == len(set(others)) == 2, "two stay, beside those that come back"


def test_more_leaves_than_workers() -> None:
    with pytest.raises(ConfigError, match=r"only 2 faults of these kinds are possible.*--count 2"):
        draw(1, 1.0, ["leave"], alone(NAMES), 3, 5.0, targets=NAMES)


def test_nobody_may_leave() -> None:
    with pytest.raises(ConfigError, match=r"only 0 faults .*: give more --kinds, or start more"):
        draw(1, 1.0, ["leave"], alone(NAMES[:2]), 1, 5.0, targets=NAMES[:2])


@pytest.mark.parametrize("seed", range(20))
def test_who_leaves_takes_its_replica_along_and_two_replicas_stay(seed: int) -> None:
    gone: set[str] = set()
    for planned in draw(seed, 1.0, ["leave", "kill"], PAIRS, 40, 5.0, targets=PAIRED):
        assert planned.worker not in gone
        if planned.kind == "leave":
            gone.update(next(pair for pair in PAIRS if planned.worker in pair))
    assert len(gone) == 2


def test_two_replicas_of_two_are_two_and_not_four() -> None:
    with pytest.raises(ConfigError, match="only 0 faults"):
        draw(1, 1.0, ["leave"], PAIRS[:2], 1, 5.0, targets=PAIRED[:4])
    plan = draw(1, 1.0, ["leave", "kill"], PAIRS[:2], 40, 5.0, targets=PAIRED[:4])
    assert {planned.kind for planned in plan} == {"kill"}
    assert {planned.worker for planned in plan} == set(PAIRED[:4])


def test_a_replica_comes_back_if_all_of_it_do() -> None:
    plan = draw(1, 1.0, ["leave"], PAIRS[:2], 40, 5.0, targets=PAIRED[:4], returning=["worker-0", "worker-2", "worker-3"])
    assert {planned.worker for planned in plan} == {"worker-2", "worker-3"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kill,burn", "no fault 'burn'"),
        (" ,", "at least one"),
    ],
)
def test_kinds_that_are_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        kinds_of(text)


@pytest.mark.parametrize(
    "text", ["nonsense", '{"kind": "kill"}', "", '{"number":1,"after":1,"kind":"burn","worker":"w","seconds":1}']
)
def test_what_is_no_log(text: str) -> None:
    with pytest.raises(ConfigError):
        replayed([text])


def test_workers_do_what_is_offered() -> None:
    assert KINDS == ALL


def test_names_are_sorted_as_people_count() -> None:
    assert in_order(NAMES) == ["worker-0", "worker-1", "worker-2", "worker-10"]
