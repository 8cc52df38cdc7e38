"""``ftlib simulate``: its runs, their summary, picture and JSON, and how it ends."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from consensus.protocol.agreement import attempt
from consensus.simulation.transcript.recorder import Activity, Cover, Mark, ProcessSpan, Span
from ftlib.cli import main as cli
from ftlib.cli.simulate.account import account, disturbed
from ftlib.cli.simulate.order import FAULTS, GROUPS, Order, profile_of, seeds_of
from ftlib.cli.simulate.picture import refuse_path
from ftlib.cli.simulate.rows import SINGLE, rows_of
from ftlib.cli.simulate.run import play
from ftlib.errors import ConfigError
from ftlib.launch.command import code_of

ROOT = Path(__file__).resolve().parents[2]
SHORT = ["simulate", "--members", "4", "--seed", "5", "--seconds", "6", "--faults", "crash,pause,join"]


def invoke(*arguments: str) -> tuple[int, str]:
    """Exit code and stdout."""
    result = CliRunner().invoke(cli.commands, list(arguments), standalone_mode=False, catch_exceptions=False)
    return int(result.return_value), result.stdout


def nothing_but_votes_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: whoever answers first decides."""
    monkeypatch.setattr(attempt, "is_quorum", lambda _view, responders, _: bool(responders))


def test_a_summary_says_what_happened() -> None:
    code, out = invoke(*SHORT)
    assert code == 0
    assert "4 members, seed 5, faults crash,pause,join" in out
    assert re.search(r"^ +\d+\.\d\d +1 +4 +\d+\.\d ms  founded$", out, re.MULTILINE)
    assert "violations  none" in out


def test_json_is_all_of_stdout_and_says_the_same() -> None:
    code, out = invoke(*SHORT, "--json")
    told = json.loads(out)
    assert code == 0
    assert told["ok"] is True
    assert told["outcome"] == "agreed"
    assert shlex.split(told["replay"]) == ["ftlib", *SHORT[:5], "--faults", "crash,pause,join", "--seconds", "6"]
    assert [view["epoch"] for view in told["views"]] == sorted(view["epoch"] for view in told["views"])
    assert told["views"][0]["cause"] == "founded"
    assert told["views"][0]["size"] == told["views"][0]["active_at"] == 4
    removed = {name for view in told["views"] for name in view["removed"]}
    assert told["processes"]["killed"] + told["processes"]["excluded"] >= len(removed) > 0
    assert sum(told["messages_by_type"].values()) == told["messages"]
    assert told["history"][0].startswith("seed=5 size=4")
    assert told["false_exclusions"] == []
    assert set(told) == {
        "ok", "outcome", "detail", "replay", "seed", "members", "faults", "policy", "simulated_seconds", "healed_at", "events",
        "messages", "messages_by_type", "bytes", "bytes_per_member_and_second", "processes", "views", "living_excluded",
        "false_exclusions", "history", "digest",
    }  # fmt: skip


def test_a_calm_job_changes_nothing() -> None:
    told = account(play(Order(3, 1, "none", 4.0, "majority")))
    assert [(view["epoch"], view["size"]) for view in told["views"]] == [(1, 3)]
    assert told["processes"]["started"] == 3
    assert told["history"] == [told["history"][0]]


def test_a_violation_is_told_with_the_command_that_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing_but_votes_count(monkeypatch)
    told: dict[str, Any] = {}
    for seed in range(1, 20):
        code, out = invoke("simulate", "--members", "4", "--seed", str(seed), "--faults", "partition,crash", "--json")
        told = json.loads(out)
        assert code == (0 if told["ok"] else 1)
        if not told["ok"]:
            break
    assert told["outcome"] == "violated"
    again, text = invoke(*shlex.split(told["replay"])[1:])
    assert again == 1
    assert f"violated: {told['detail']}" in text
    assert f"repeat it with: {told['replay']}" in text


@pytest.mark.parametrize("seed", [14, 83])
def test_under_policy_any_sides_that_go_on_apart_break_no_promise(seed: int) -> None:
    """14: two leave at once, and the value names one of them. 83: a joiner is voted in after it met the other side."""
    order = Order(5, seed, "all", 20.0, "any")
    run = play(order)
    assert run.good, run.detail
    assert order.command.endswith(" --policy any")


def test_many_seeds_tell_which_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    many = ["simulate", "--members", "4", "--faults", "halves,crash", "--seconds", "6", "--seeds", "1-6"]
    assert invoke(*many) == (0, "6 of 6 runs: 5 agreed, 1 nobody; no violations\n")
    nothing_but_votes_count(monkeypatch)
    code, out = invoke(*many, "--json")
    told = json.loads(out)
    assert (code, told["runs"], told["ok"]) == (1, 6, False)
    assert told["failed"], "no seed of six noticed"
    assert all(invoke(*shlex.split(each["replay"])[1:])[0] == 1 for each in told["failed"][:1])
    assert sum(told["outcomes"].values()) == 6


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--faults", "crash,fire"], "no fault is called 'fire': choose from all, none, partition, churn, clock, crash"),
        (["--faults", "crash=lots"], "'crash=lots' is no weight: write crash=2"),
        (["--seeds", "9-3"], "--seeds '9-3' are 0 runs: from 1 to 1000000 are possible"),
        (["--seeds", "few"], "--seeds 'few': write FROM-TO, or how many"),
        (["--picture", "out.gif"], "--picture out.gif: the name must end with .svg or .png"),
        (["--picture", "/nowhere/out.svg"], "there is no directory /nowhere; make it first"),
        (["--transcript", "/nowhere/out.txt"], "--transcript /nowhere/out.txt: there is no directory /nowhere; make it first"),
        (["--transcript", "/proc/out.txt"], "--transcript /proc/out.txt: it cannot be written"),
        (["--picture", "/proc/out.svg"], "--picture /proc/out.svg: it cannot be written"),
        (["--seconds", "nan"], "Invalid value for '--seconds'"),
        (["--seeds", "3", "--transcript", "x.txt"], "--transcript is for one run, --seeds for many: give one of them"),
        (["--members", "0"], "Invalid value for '--members'"),
        (["--seeds", "3", "--picture", "x.svg"], "--picture is for one run, --seeds for many: give one of them"),
    ],
)
def test_what_makes_no_sense_is_one_line(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(cli.commands, ["simulate", "--seconds", "1", *arguments], "ftlib") == 2
    out, err = capsys.readouterr()
    assert not out
    assert text in err
    assert err.count("\n") == 1


def test_a_disk_that_is_full_after_the_run_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(cli.commands, [*SHORT, "--transcript", "/dev/full"], "ftlib") == 1
    out, err = capsys.readouterr()
    assert "4 members, seed 5" in out
    assert err == "ftlib: error: --transcript /dev/full: it cannot be written (No space left on device); give another file\n"


def test_groups_stand_for_several_faults() -> None:
    weights = profile_of("partition,crash=9,-halves").weights
    assert {name for name, weight in weights.items() if weight} == {
        *GROUPS["partition"], "crash", "heal",
    } - {"halves"}  # fmt: skip
    assert weights["crash"] == 9
    assert not profile_of("crash,pause").weights["heal"]
    assert not profile_of("halves,-heal").weights["heal"]
    assert set(FAULTS) > {name for names in GROUPS.values() for name in names}


def test_the_help_names_every_fault() -> None:
    result = CliRunner().invoke(cli.commands, ["simulate", "--help"])
    for name in (*FAULTS, *GROUPS):
        assert re.search(rf"\b{name}\b", result.output), name


def test_seeds() -> None:
    assert seeds_of("3-5", 1) == range(3, 6)
    assert seeds_of("10", 7) == range(7, 17)


def test_whom_a_fault_touched() -> None:
    scenario = Order(5, 1, "none", 1.0, "majority").scenario()
    parse = type(scenario).parse
    told = parse(f"{scenario.header}\n0.1 pause m1\n0.2 split m2,m3 m4\n0.3 kill m0\n")
    assert disturbed(told) == {"m1", "m2", "m3", "m4"}
    assert disturbed(parse(f"{scenario.header}\n0.1 loss 0.3\n")) is None


# The picture


def life(name: str, number: int, *, killed: float | None = None) -> ProcessSpan:
    one = ProcessSpan(name, f"{number:016x}", 0.0)
    one.phases = [(Activity.SEARCHING, Span(0.0, 0.5)), (Activity.ACTIVE, Span(0.5, killed, "v1"))]
    if killed is not None:
        one.marks.append((Mark.KILLED, killed))
        one.over = killed
    return one


def test_a_few_processes_have_a_row_each_and_a_restarted_one_keeps_its_own() -> None:
    lives = [life("m0", 0), life("m1", 1, killed=2.0), life("m1", 2)]
    rows = rows_of(lives, 9.0)
    assert [row.label for row in rows] == ["m0", "m1"]
    assert [phase for phase, *_ in rows[1].phases] == [Activity.SEARCHING, Activity.ACTIVE] * 2
    assert rows[0].phases[-1] == (Activity.ACTIVE, 0.5, 9.0, "v1")


def test_many_that_lived_through_the_same_share_a_row() -> None:
    lives = [life(f"m{n}", n) for n in range(SINGLE + 36)] + [life("x", 900, killed=3.0), life("y", 901, killed=4.0)]
    lives[7].covers.append((Cover.PAUSED, Span(1.0, 2.0)))
    rows = rows_of(lives, 9.0)
    assert [(row.label, row.count) for row in rows] == [("99 like m0", 99), ("m7", 1), ("2 like x", 2)]
    assert rows[2].marks == ((Mark.KILLED, 3.5),), "the mean of both"


def test_too_many_stories_are_told_by_their_ends() -> None:
    lives = [life(f"m{n}", n) for n in range(3 * SINGLE)]
    for number, one in enumerate(lives):
        one.phases[-1][1].view = f"v{number}"
    rows = rows_of(lives, 9.0)
    assert [(row.label, row.count) for row in rows] == [(f"{3 * SINGLE} like m0", 3 * SINGLE)]


def test_the_picture_shows_every_member_and_what_became_of_it(tmp_path: Path) -> None:
    code, out = invoke(*SHORT, "--json", "--picture", str(tmp_path / "run.svg"))
    told = json.loads(out)
    root = ET.fromstring((tmp_path / "run.svg").read_text())
    texts = {"".join(element.itertext()).strip() for element in root.iter() if element.tag.endswith("text")}
    ids = [element.get("id", "") for element in root.iter()]
    assert code == 0
    assert {"m0", "m1", "m2", "m3", "healed", "simulated seconds", "cut off", "paused", "killed", "excluded"} <= texts
    assert "4 members, seed 5, faults crash,pause,join: agreed" in texts
    for mark in ("killed", "excluded", "joined"):
        assert sum(each.startswith(f"{mark}-") for each in ids) == told["processes"][mark], mark


def test_the_transcript_tells_the_same_run_message_by_message(tmp_path: Path) -> None:
    page = tmp_path / "run.txt"
    code, out = invoke(*SHORT, "--json", "--transcript", str(page))
    told, text = json.loads(out), page.read_text(encoding="utf-8")
    assert code == 0
    assert text.startswith("seed=5 size=4"), "the script of the run comes first"
    for view in told["views"]:
        assert re.search(rf"ACTS? in epoch {view['epoch']} ", text), view
    dead = [names.split() for names in re.findall(r"^[ \d]{6}  (\S.*?) +(?:is|are) killed$", text, re.MULTILINE)]
    assert sum(map(len, dead)) == told["processes"]["killed"]
    assert json.loads(invoke(*SHORT, "--json")[1])["digest"] == told["digest"], "looking on changes nothing"


def test_a_png_is_drawn_too(tmp_path: Path) -> None:
    assert invoke(*SHORT, "--picture", str(tmp_path / "run.PNG"))[0] == 0
    assert (tmp_path / "run.PNG").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("ftlib.cli.simulate.picture.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install 'ftlib\[demo\]'"):
        refuse_path(tmp_path / "x.svg")


# Real processes


CODE = """
import sys
from ftlib.cli import main as cli
from ftlib.cli.simulate.progress import Line
from ftlib.launch.command import code_of

honest = Line.look

def look(self, world):
    Line.look = honest
    print("running", file=sys.stderr, flush=True)
    honest(self, world)

Line.look = look
code = code_of(cli.commands, sys.argv[1:], "ftlib")
assert "torch" not in sys.modules
sys.exit(code)
"""


def start(*arguments: str, hash_seed: str = "0") -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": hash_seed}
    return subprocess.Popen(
        [sys.executable, "-c", CODE, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.process
def test_the_same_seed_gives_the_same_output_and_imports_no_torch(tmp_path: Path) -> None:
    processes = []
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        words = ["--members", "5", "--seed", "11", "--json", "--picture", str(tmp_path / str(number) / "x.svg")]
        processes.append(start("simulate", *words, hash_seed=str(number)))
    told = [process.communicate(timeout=250) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], told
    assert told[0][0] == told[1][0]
    assert json.loads(told[0][0])["outcome"] == "agreed"
    assert (tmp_path / "1" / "x.svg").read_bytes() == (tmp_path / "2" / "x.svg").read_bytes()


@pytest.mark.process
def test_ctrl_c_ends_with_the_summary_so_far(tmp_path: Path) -> None:
    process = start("simulate", "--members", "16", "--seconds", "3000", "--faults", "pause", "--json")
    assert process.stderr is not None
    assert process.stderr.readline() == "running\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    told = json.loads(out)
    assert told["outcome"] == "interrupted"
    assert told["ok"] is True
    assert told["simulated_seconds"] > 0
    assert told["messages"] > 0
