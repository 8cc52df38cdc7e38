"""What the page shows, from statuses: tables in, tables out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ftlib.dashboard.model import ROWS, Job, changes_of, difference, page_of, waterfall

from .statuses import member_id, status


def test_a_row_a_member_in_order_of_seniority() -> None:
    page = page_of(Job(status(0), {member_id(1): status(1, step=12)}))
    assert [(row["place"], row["name"], row["rank"], row["step"]) for row in page["rows"].values()] == [
        (0, "worker 0", 0, 10),
        (1, "worker 1", 1, 12),
        (2, "worker 2", 2, 10),  # it has not told: as the member that was asked, with which it is in every call
    ]
    assert [row["coordinator"] for row in page["rows"].values()] == [True, False, False]
    assert (page["epoch"], page["view"], page["size"], page["step"]) == (4, 4, 3, 12)
    json.dumps(page)


def test_orders_name_the_view_whose_members_are_shown() -> None:
    page = page_of(Job({**status(0), "active_epoch": 3}, {}))  # not active yet
    assert (page["epoch"], page["view"]) == (3, 4)


@pytest.mark.parametrize(
    ("change", "trouble"),
    [
        ({}, False),
        ({"status": "suspect", "evidence": "silence"}, True),
        ({"late": True}, True),
        ({"following": True}, True),
        ({"straggler": True}, True),
    ],
)
def test_trouble(change: dict[str, Any], trouble: bool) -> None:
    entry = status(0)
    entry["members"][1] |= {key: value for key, value in change.items() if key in ("status", "evidence")}
    entry["ftlib"]["peers"][member_id(1)] |= {key: value for key, value in change.items() if key in ("late", "following")}
    entry["ftlib"]["step_times"][member_id(1)] |= {key: value for key, value in change.items() if key == "straggler"}
    assert page_of(Job(entry))["rows"][member_id(1)]["trouble"] is trouble


def test_many_members_are_shown_in_part_and_those_in_trouble_always() -> None:
    entry = status(0, size=200)
    for number in (150, 199):
        entry["members"][number]["status"] = "suspect"
    page = page_of(Job(entry))
    assert len(page["rows"]) == ROWS + 2
    assert page["hidden"] == 200 - ROWS - 2
    assert {member_id(150), member_id(199), member_id(0)} <= set(page["rows"])
    assert [row["place"] for row in page["rows"].values()] == sorted(row["place"] for row in page["rows"].values())


@pytest.mark.parametrize(("wanted", "first", "last"), [(0, 0, 63), (63, 0, 63), (64, 64, 127), (10**9, 192, 199)])
def test_a_viewer_chooses_where_its_rows_begin(wanted: int, first: int, last: int) -> None:
    page = page_of(Job(status(0, size=200)), wanted)
    assert page["first"] == first
    assert [row["place"] for row in page["rows"].values()] == list(range(first, last + 1))


def test_of_many_in_trouble_some_are_shown() -> None:
    entry = status(0, size=500)
    for member in entry["members"]:
        member["status"] = "suspect"
    assert len(page_of(Job(entry))["rows"]) == 2 * ROWS


def test_who_gets_the_state_and_how_far() -> None:
    entry = status(0)
    entry["ftlib"]["peers"][member_id(1)]["following"] = True
    joiner = status(1)
    joiner["ftlib"] |= {"recovery": {"total": 400, "got": 100, "left": 2.04, "pending": 3}, "step": None}
    row = page_of(Job(entry, {member_id(1): joiner}))["rows"][member_id(1)]
    assert row["recovery"] == {"total": 400, "got": 100, "left": 2.0, "pending": 3}
    assert (row["step"], row["following"]) == (None, True)


@pytest.mark.parametrize(
    ("policy", "size", "quorum", "after"), [("majority", 4, 3, 2), ("majority", 1, 1, None), ("storage", 4, None, None)]
)
def test_the_quorum(policy: str, size: int, quorum: int | None, after: int | None) -> None:
    page = page_of(Job(status(0, size=size, policy=policy)))
    assert (page["quorum"], page["quorum_after"]) == (quorum, after)


def test_the_store_and_the_least_size() -> None:
    store = {"url": "redis://host", "away_since": None, "errands": {"Read": {"asked": 9, "away": 2}}}
    entry = status(0, store=store)
    entry["ftlib"] |= {"min_size": 2, "checkpoint_step": 400, "goodput": 0.98}
    page = page_of(Job(entry))
    assert page["store"] == {"url": "redis://host", "away": False, "unanswered": 2}
    assert (page["min_size"], page["checkpoint"]) == (2, 400)
    assert page_of(Job(status(0)))["store"] is None


def test_missing_parts_are_left_out() -> None:
    page = page_of(Job({"members": [{"id": "a"}]}))
    assert page["rows"]["a"]["name"] == "a"
    assert page["step"] is None
    assert page_of(Job({}))["rows"] == {}


def test_patches_lead_from_one_page_to_the_next() -> None:
    old = page_of(Job(status(0)))
    changed = status(0, step=11)
    changed["members"] = changed["members"][:2]
    new = page_of(Job(changed))
    patch = difference(old, new)
    assert patch["gone"] == [member_id(2)]
    assert patch["facts"] == {"size": 2, "step": 11, "quorum_after": 1}
    assert patch["rows"][member_id(1)] == {"calls": 11, "step": 11}, "only what differs in a row"
    rows = {each: {**row, **patch["rows"].get(each, {})} for each, row in old["rows"].items() if each not in patch["gone"]}
    assert {**old, **patch["facts"], "rows": rows} == new
    assert difference(new, new) == {}


def test_changes_in_words_and_bars() -> None:
    [change] = changes_of(status(0)["history"]).values()
    assert change["text"].startswith("without <img")
    assert change["text"].endswith("(proof)")
    assert [bar["name"] for bar in change["bars"]] == ["settle", "freeze", "build", "activate"]
    assert change["bars"][1] == {"name": "freeze", "from": 0.014, "to": 0.018}


def test_a_change_under_way_has_the_bars_that_it_has() -> None:
    assert [bar["name"] for bar in waterfall({"proposed": 0.01, "sent": 0.02})] == ["settle", "freeze"]
    assert waterfall({}) == []
