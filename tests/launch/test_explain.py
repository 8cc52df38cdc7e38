"""``ftlib explain``: what it says of a change, and whose record it takes."""

from __future__ import annotations

import json
import time
from datetime import datetime
from typing import Any

import pytest

from ftlib.cli.explain import Story, explain, fetch_story
from ftlib.errors import FTLibError

NOON = datetime(2026, 3, 4, 12, 3, 11, 482_000).astimezone()
NAMES = {
    "a" * 16: {"name": "worker 0", "address": "10.0.0.1:7000"},
    "b" * 16: {"name": "worker 1", "address": "10.0.0.1:7001"},
    "c" * 16: {"name": "worker 2", "address": "10.0.0.1:7002"},
    "d" * 16: {"name": "worker 3", "address": "10.0.0.1:7003"},
}
A, B, C, D = NAMES


def change(**more: Any) -> dict[str, Any]:
    """The driver's record of a crash, as in the documentation."""
    return {
        "epoch": 7,
        "view_id": "v7",
        "parent_id": "v6",
        "at": 1000.0,
        "time": NOON.timestamp(),
        "cause": "proof",
        "size_before": 4,
        "size": 3,
        "removed": [{"id": C, "cause": "proof", "detail": "connection refused at 10.0.0.1:7002", "source": B}],
        "joined": [],
        "driver": A,
        "ballot": [0, A],
        "attempts": 1,
        "quorum": [A, B, D],
        "discounted": [],
        "findings": [{"kind": "proof", "accused": C, "detail": "connection refused", "source": B, "after": 0.0}],
        "moments": {
            "proposed": 0.0051,
            "asked": 0.0051,
            "flushed": 0.006,
            "sent": 0.0082,
            "installed": 0.0083,
            "ready": 0.02,
            "complete": 0.0301,
            "activated": 0.031,
        },
        "phases": {"settle": 0.0051, "freeze": 0.0031, "build": 0.0219, "activate": 0.0009, "total": 0.031},
        "reports": {A: 0.006, B: 0.0065, D: 0.0079},
        "readies": {A: 0.02, D: 0.021, B: 0.0299},
        "names": NAMES,
        **more,
    }


def lesser(**more: Any) -> dict[str, Any]:
    """The same as another member saw it."""
    moments = {"asked": 0.006, "flushed": 0.007, "installed": 0.0085, "ready": 0.029, "activated": 0.0312}
    return change(quorum=[], reports={}, readies={}, attempts=0, moments=moments, **more)


class Members:
    """Answers for addresses; what is missing does not answer."""

    def __init__(self, **answers: dict[str, Any]) -> None:
        self.answers = {NAMES[key * 16]["address"]: answer for key, answer in answers.items()}
        self.asked: list[str] = []

    def fetch(self, address: str, timeout: float) -> dict[str, Any]:
        self.asked.append(address)
        if address not in self.answers:
            raise FTLibError(f"no member answers at {address} (Connection refused): check the address in the log of a worker")
        return json.loads(json.dumps(self.answers[address]))


def status(key: str, *changes: dict[str, Any]) -> dict[str, Any]:
    return {"member": key * 16, "address": NAMES[key * 16]["address"], "meta": {}, "history": list(changes)}


def text(members: Members, address: str = "10.0.0.1:7000", **options: Any) -> list[str]:
    return explain(fetch_story(address, fetch=members.fetch, **options), NOON).splitlines()


def test_a_crash() -> None:
    assert text(Members(a=status("a", change()))) == [
        (
            "epoch 7  12:03:11.482  4 -> 3 members, 31 ms   without worker 2 (cccccc): "
            "connection refused at 10.0.0.1:7002 (proof, from worker 1)"
        ),
        (
            "    evidence 0.0 ms worker 1 · settled 5.1 ms · frozen 8.2 ms (last: worker 3, 7.9 ms) · installed 8.3 ms · "
            "built 30.1 ms (last: worker 1, 29.9 ms) · activated 31.0 ms"
        ),
        "    led by worker 0; quorum worker 0, worker 1, worker 3",
    ]


def test_the_drivers_own_record_is_told_where_it_answers() -> None:
    members = Members(a=status("a", change()), b=status("b", lesser()))
    assert text(members, "10.0.0.1:7001") == text(members, "10.0.0.1:7000")
    assert members.asked == ["10.0.0.1:7001", "10.0.0.1:7000", "10.0.0.1:7000"]


def test_a_driver_is_asked_once() -> None:
    members = Members(a=status("a", change()), b=status("b", lesser(), lesser(epoch=8, view_id="v8")))
    lines = text(members, "10.0.0.1:7001")
    assert members.asked == ["10.0.0.1:7001", "10.0.0.1:7000"]
    assert lines[-1] == "    led by worker 0; told by worker 1, as it no longer keeps this change"


@pytest.mark.parametrize(
    ("others", "missing"),
    [
        ({}, "no member answers at 10.0.0.1:7000 (Connection refused)"),
        ({"a": {**status("a", change()), "member": "e" * 16}}, "another lifetime answers at 10.0.0.1:7000"),
    ],
)
def test_without_the_driver_what_the_member_saw_is_told(others: dict[str, Any], missing: str) -> None:
    lines = text(Members(b=status("b", lesser()), **others), "10.0.0.1:7001")
    assert lines[1] == (
        "    evidence 0.0 ms worker 1 · asked to freeze 6.0 ms · frozen 7.0 ms · installed 8.5 ms · built 29.0 ms · "
        "activated 31.2 ms"
    )
    assert lines[2] == f"    led by worker 0; told by worker 1, as {missing}"


def test_several_causes_take_a_line_each() -> None:
    removed = [
        {"id": B, "cause": "silence", "detail": "no answer for 2.00 s, suspected by 2", "source": A},
        {"id": C, "cause": None, "detail": "", "source": ""},
        {"id": A, "cause": "proof", "detail": "its training process ended", "source": A},
        {"id": D, "cause": "left", "detail": "leaves after call 12", "source": D},
    ]
    assert text(Members(a=status("a", change(removed=removed, joined=["e" * 16]))))[:6] == [
        "epoch 7  12:03:11.482  4 -> 3 members, 31 ms   5 causes",
        "    without worker 1 (bbbbbb): no answer for 2.00 s, suspected by 2 (silence, from worker 0)",
        "    without worker 2 (cccccc): (nothing known here)",
        "    without worker 0 (aaaaaa): its training process ended (proof, from itself)",
        "    without worker 3 (dddddd): left on its own wish",
        "    with eeeeee",
    ]


def test_what_came_before() -> None:
    findings = [
        {"kind": "suspect", "accused": C, "detail": "does not answer", "source": B, "after": -1.25},
        {"kind": "fence", "accused": C, "detail": "silent for 1.2 s", "source": A, "after": -0.012},
        *change()["findings"],
    ]
    moments = {**change()["moments"], "wished": -0.2}
    assert text(Members(a=status("a", change(findings=findings, moments=moments))))[1] == (
        "    before: worker 2 suspected by worker 1 1.25 s earlier; supervisor of worker 2 asked to kill it 12.0 ms earlier; "
        "the end of a call asked for 200.0 ms earlier"
    )


def test_the_same_members() -> None:
    findings = [{"kind": "frozen", "accused": B, "detail": "frozen without a view change", "source": B, "after": 0.0}]
    [line, *_] = text(Members(a=status("a", change(removed=[], findings=findings, cause="rebuilt", size_before=3))))
    assert line.endswith("3 -> 3 members, 31 ms   the same members; worker 1: frozen without a view change")


def test_nothing_steers_the_terminal() -> None:
    removed = [{**change()["removed"][0], "detail": "\x1b]0;owned\x07\x1b[2J"}]
    assert "?]0;owned??[2J (proof" in text(Members(a=status("a", change(removed=removed))))[0]


def test_not_active_yet_and_another_day() -> None:
    moments = {"asked": 0.0, "chosen": 0.003}
    yesterday = change(moments=moments, time=NOON.timestamp() - 86400, phases={"settle": 0.0, "total": 2.5})
    assert text(Members(a=status("a", yesterday)))[0].startswith(
        "epoch 7  2026-03-03 12:03:11.482  4 -> 3 members, not active after 2.50 s   without"
    )


def test_what_is_under_way() -> None:
    waiting = {
        "epoch": 8,
        "at": 1000.0,
        "time": NOON.timestamp() - 12.5,
        "findings": [{"kind": "silence", "accused": D, "detail": "no answer for 2.00 s", "source": A, "after": 0.0}],
        "names": NAMES,
        "waits_for": [D],
        "text": "the next view waits for worker 3; restart or kill them",
    }
    members = Members(a={**status("a", change()), "under_way": waiting})
    assert text(members)[-3:] == [
        "epoch 8  under way for 12.50 s",
        "    worker 3 (dddddd): no answer for 2.00 s (silence, from worker 0)",
        "    the next view waits for worker 3; restart or kill them",
    ]
    story = fetch_story("10.0.0.1:7000", fetch=members.fetch).as_list()
    assert [record.get("under_way", False) for record in story] == [False, True]
    assert story[1]["waits_for"] == [D]
    assert text(members, epoch=7) == text(Members(a=status("a", change())))


def test_which_changes() -> None:
    members = Members(a=status("a", change(), change(epoch=8), change(epoch=9)))
    assert [account.change["epoch"] for account in fetch_story("10.0.0.1:7000", last=2, fetch=members.fetch).accounts] == [8, 9]
    assert [account.change["epoch"] for account in fetch_story("10.0.0.1:7000", epoch=8, fetch=members.fetch).accounts] == [8]
    with pytest.raises(FTLibError, match="knows nothing of epoch 3; it knows 7 to 9"):
        fetch_story("10.0.0.1:7000", epoch=3, fetch=members.fetch)
    assert explain(Story(())) == "no view has been agreed on yet"


@pytest.mark.parametrize("history", [None, 7, ["x"], [{"epoch": 1}], [{**change(), "names": []}], [change(moments=5)]])
def test_what_cannot_be_read_is_one_line(history: Any) -> None:
    members = Members(a={**status("a"), "history": history})
    with pytest.raises(FTLibError, match="version") as error:
        explain(fetch_story("10.0.0.1:7000", fetch=members.fetch))
    assert "\n" not in str(error.value)


def test_a_mute_driver_takes_its_own_time_only() -> None:
    def fetch(address: str, timeout: float) -> dict[str, Any]:
        if address != "10.0.0.1:7001":
            assert timeout == 2.0
            raise FTLibError(f"{address} did not answer within {timeout:g} s: is the member stopped, or a firewall between?")
        return status("b", lesser())

    began = time.monotonic()
    [account] = fetch_story("10.0.0.1:7001", 30.0, fetch=fetch).accounts
    assert account.missing == "10.0.0.1:7000 did not answer within 2 s"
    assert time.monotonic() - began < 15.0
