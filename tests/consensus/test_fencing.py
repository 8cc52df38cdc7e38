"""The command that fences: real commands, real processes."""

from __future__ import annotations

import asyncio
import shlex
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from consensus import Config, ConfigError, Gossip, Member
from consensus.runtime.agent import fencing
from consensus.runtime.agent.fencing import Fencing
from tests.harness.basics import TIMEOUT, eventually, lives

from .group import address, agree, begin, ids, peers

VICTIM = Member("v" * 16, "10.1.2.3", 7007, (("name", "worker 7"), ("pid", "4711")))


class Seen:
    """What came of it."""

    def __init__(self, **settings: Any) -> None:
        self.proofs: list[tuple[str, str]] = []
        self.notes: list[str] = []
        config = Config(job="lab", **settings)
        self.fencing = Fencing(config, self.ask, lambda *proof: self.proofs.append(proof), self.note)

    def note(self, _level: int, kind: str, text: str) -> None:
        assert kind == "fence"
        self.notes.append(text)

    async def ask(self, supervisor: str, _request: Mapping[str, Any]) -> Mapping[str, Any]:
        raise OSError(f"{supervisor} is no supervisor")

    def order(self, victim: Member = VICTIM) -> float:
        """Run the command to its end; seconds that took."""
        began = time.monotonic()
        asyncio.run(self.fencing.order(victim, "silent for 1.5 s"))
        return time.monotonic() - began


def shell(script: str) -> str:
    return f"sh -c {shlex.quote(script)}"


def test_exit_code_0_is_proof_and_the_member_is_in_the_environment(tmp_path: Path) -> None:
    out = tmp_path / "facts"
    seen = Seen(fence_command=shell(f"env | grep ^FTLIB_FENCE_ | sort > {out}"))
    seen.order()
    assert seen.proofs == [(VICTIM.id, "fence_command says that it is gone", 0.0)]
    assert not seen.notes
    assert out.read_text().splitlines() == [
        "FTLIB_FENCE_ADDRESS=10.1.2.3:7007",
        "FTLIB_FENCE_HOST=10.1.2.3",
        f"FTLIB_FENCE_ID={VICTIM.id}",
        "FTLIB_FENCE_JOB=lab",
        "FTLIB_FENCE_NAME=worker 7",
        "FTLIB_FENCE_PID=4711",
        "FTLIB_FENCE_PORT=7007",
        "FTLIB_FENCE_REASON=silent for 1.5 s",
    ]


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (shell("exit 3"), "ended with 3"),
        (shell("kill -9 $$"), "ended with -9"),
        ("/no/such/program", "could not be started"),
    ],
)
def test_anything_else_proves_nothing_and_is_said_once(command: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fencing, "_PAUSE", 0.0)
    seen = Seen(fence_command=command)
    for _ in range(3):
        seen.order()
    assert seen.proofs == []
    [note] = seen.notes
    assert text in note and str(VICTIM) in note


def test_a_command_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    child = tmp_path / "child"
    seen = Seen(fence_command=shell(f"sleep 60 & echo $! > {child}; sleep 60"), fence_timeout=3.0)  # in which it has said so
    assert seen.order() < 30
    assert seen.proofs == [] and "fence_timeout=3 s" in seen.notes[0]
    eventually(lambda: not lives(int(child.read_text())), "its child is gone, too")


def test_not_again_before_a_pause(tmp_path: Path) -> None:
    count = tmp_path / "count"
    seen = Seen(fence_command=shell(f"echo x >> {count}; exit 1"))

    async def twice() -> None:
        await asyncio.gather(*(seen.fencing.order(VICTIM, "") for _ in range(3)))
        await seen.fencing.order(VICTIM, "")

    asyncio.run(twice())
    assert count.read_text() == "x\n"


def test_what_is_remembered_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a job of months, in which many come and go; whoever is still accused is not told of again."""
    monkeypatch.setattr(fencing, "_PAUSE", 0.0)
    seen = Seen(fence_command="false", max_members=3)
    victims = [Member(f"{number:016}", "10.1.2.3", 7007) for number in range(8)]
    for victim in victims:
        seen.order(VICTIM)
        seen.order(victim)
    assert [str(VICTIM) in note for note in seen.notes].count(True) == 1
    assert len(seen.notes) == 1 + len(victims)
    assert len(seen.fencing._told) == 3
    assert len(seen.fencing._ordered) == 1


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"fence_command": "sh -c 'exit"}, "is no command line"),
        ({"fence_command": "true", "fence_timeout": 0.0}, "fence_timeout=0.0"),
        ({"fence_command": "  "}, "names no program"),
    ],
)
def test_settings_that_cannot_work(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Config(**settings)


def test_a_program_that_is_not_there_is_found_at_the_start() -> None:
    with pytest.raises(ConfigError, match="no program 'no-such-program'"):
        Gossip(Config(fence_command="no-such-program --now")).bind()


KILL = f"""{sys.executable} -c '
import os, signal, time
pid = int(os.environ["FTLIB_FENCE_PID"])
os.kill(pid, signal.SIGKILL)
while open(f"/proc/{{pid}}/stat").read().rpartition(")")[2].split()[0] != "Z":
    time.sleep(0.001)
'"""


@pytest.mark.process
def test_a_hung_senior_is_killed_and_the_junior_goes_on_alone() -> None:
    """Silence alone would block it for ever: one of two, and not the senior one."""
    settings: dict[str, Any] = {"job": "test", "initial_size": 2, "exclude_after": 20.0, "fence_after": 0.2}
    with peers(1, **settings) as [senior]:
        junior = begin(introducers=(senior.address,), fence_command=KILL, **settings)
        try:
            agree([junior], 2)
            time.sleep(1.0)
            senior.pause()
            eventually(lambda: ids(junior.view) == (junior.member.id,), "the junior goes on")
            assert senior.process.wait(TIMEOUT) == -signal.SIGKILL
            reason = str(junior.why(senior.member.id))
            assert "fence_command" in reason or "its training process ended" in reason, "its agent's last word may come first"
        finally:
            junior.stop()


@pytest.mark.process
def test_a_command_that_fails_leaves_it_at_silence() -> None:
    settings: dict[str, Any] = {"job": "test", "initial_size": 2, "exclude_after": 4.0}
    senior = begin(fence_command="false", **settings)
    try:
        with peers(1, introducers=(address(senior),), **settings) as [junior]:
            agree([senior], 2)
            time.sleep(0.5)
            junior.pause()
            eventually(lambda: ids(senior.view) == (senior.member.id,), "the senior goes on")
            reason = senior.why(junior.member.id)
            assert reason is not None and reason.cause.value == "silence"

            def notes() -> list[str]:
                return [note["text"] for note in senior.status()["notes"] if note["kind"] == "fence"]

            eventually(notes, "the command has ended, if only after the view change")
            assert len(notes()) == 1 and "ended with 1" in notes()[0]
    finally:
        senior.stop()
