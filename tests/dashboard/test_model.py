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
        (2, "worker 2", None, None),
    ]
    assert [row["coordinator"] for row in page["rows"].values()] == [True, False, False]
    assert (page["epoch"], page["size"], page["step"]) == (4, 3, 12)
    json.dumps(page)


@pytest.mark.parametrize(
    ("change", "trouble"),
    [
        ({}, False),
        ({"status": "suspect", "evidence": "silence"}, True),
        ({"late": True}, True),
        ({"straggler": True}, True),
    ],
)
def test_trouble(change: dict[str, Any], trouble: bool) -> None:
    entry = status(0)
    entry["members"][1] |= {key: value for key, value in change.items() if key in ("status", "evidence")}
    entry["ftlib"]["peers"][member_id(1)] |= {key: value for key, value in change.items() if key == "late"}
    entry["ftlib"]["step_times"][member_id(1)] |= {key: value for key, value in change.items() if key == "straggler"}
    assert page_of(Job(entry))["rows"][member_id(1)]["trouble"] is trouble


def test_many_members_are_shown_in_part_and_those_in_trouble_always() -> None:
    entry = status(0, size=200)
    for number in (150, 199):
        entry["members"][number]["status"] = "suspect"
    page = page_of(Job(entry))
    assert len(page["rows"]) == ROWS
    assert page["hidden"] == 200 - ROWS
    assert {member_id(150), member_id(199), member_id(0)} <= set(page["rows"])
    assert [row["place"] for row in page["rows"].values()] == sorted(row["place"] for row in page["rows"].values())


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
    assert patch["facts"] == {"size": 2, "step": 11}
    rows = {each: row for each, row in (old["rows"] | patch["rows"]).items() if each not in patch["gone"]}
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
