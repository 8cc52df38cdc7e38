"""The golden transcripts are what happens. After a change that is meant: ``make transcripts``, and read the diff."""

from __future__ import annotations

import os
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
