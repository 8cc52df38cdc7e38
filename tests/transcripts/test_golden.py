"""The golden transcripts are what happens. After a change that is meant: ``make transcripts``, and read the diff."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from difflib import unified_diff
from pathlib import Path

import pytest

from . import fork_stories, stories
from .tale import Tale

GOLDEN = Path(__file__).parent / "golden"

STORIES: dict[str, Callable[[Tale], None]] = {
    "crash": stories.crash,
    "coordinator_crash": stories.coordinator_crash,
    "another_crash": stories.another_crash,
    "partition": stories.partition,
    "join": stories.join,
    "ten_crashes": stories.ten_crashes,
    "majority_lost": stories.majority_lost,
    "shrink_to_one": stories.shrink_to_one,
    "fork_chain_of_four": fork_stories.fork_chain_of_four,
    "fork_seven": fork_stories.fork_seven,
    "fork_leavers": fork_stories.fork_leavers,
    "fork_goodbye": fork_stories.fork_goodbye,
    "fork_newer_ack": fork_stories.fork_newer_ack,
    "fork_stale_votes": fork_stories.fork_stale_votes,
    "fork_late_news": fork_stories.fork_late_news,
}


@pytest.mark.parametrize("name", STORIES)
def test_a_story_is_as_it_was_written_down(name: str) -> None:
    tale = Tale()
    STORIES[name](tale)
    file = GOLDEN / f"{name}.txt"
    told = str(tale)
    if os.environ.get("REWRITE_TRANSCRIPTS"):
        file.write_text(told, encoding="utf-8")
    known = file.read_text(encoding="utf-8") if file.exists() else ""
    if told != known:
        lines = unified_diff(known.splitlines(), told.splitlines(), f"golden/{name}.txt", "what happens now", lineterm="")
        pytest.fail("\n".join([*lines, "", "If this is meant: make transcripts"]), pytrace=False)


def test_every_story_is_in_the_list_to_read_and_every_file_is_a_story() -> None:
    listed = re.findall(r"\]\((\w+)\.txt\)", (GOLDEN / "README.md").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(STORIES) == sorted(path.stem for path in GOLDEN.glob("*.txt"))


@pytest.mark.parametrize("name", STORIES)
def test_a_story_can_be_read(name: str) -> None:
    """No ids, no addresses, no noise; lines of a width that fits a screen; a head that says which rules it is about."""
    text = (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")
    assert not re.search(r"\b(?=\w*\d)[0-9a-f]{6,}\b|\d+\.\d+\.\d+\.\d+|\d\.\d{4}", text)
    assert all(len(line) <= 100 for line in text.splitlines())
    assert re.search(r"^# Rules \(docs/protocol.md\): \d", text, re.MULTILINE)
