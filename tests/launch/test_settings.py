"""What nobody can start: each wrong setting is one line that names it, what was given, and what to give instead."""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ftlib import ConfigError, Launcher
from ftlib.cli.main import main
from ftlib.launch.checks import KINDS

from .launching import launcher


class Odd:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


NO_SECONDS = ["x", None, -1, 0, math.nan, math.inf, True, [1.0], Odd()]
NO_COUNT = ["2", 1.5, -1, True, [1], math.nan]
NO_PATH = [3, "", b"bytes", "a\0b", ["a"]]
WRONG: dict[str, list[Any]] = {
    "hostnames": [3, None, "node1", "", {"a": 1}, [3], [None], [""], [], ["a b"], ["a:0"], b"a"],
    "workers_per_host": [0, -2, 1.5, None, "many", "3", [0], [1, -1], ["2"], [1.5], True, {"a": 1}],
    "ssh_config_file": [*NO_PATH, "/no/such/file", "/tmp"],
    "backend": ["mpi", 3, ["gloo"], "", True],
    "worker_timeout": NO_SECONDS,
    "agent_timeout": NO_SECONDS,
    "copy_env_vars": ["HF_*", None, 3, [3], [""], b"PATH"],
    "extra_env_vars": [
        "A=1", 3, [("A", "1")], {3: "1"}, {"": "1"}, {"A=B": "1"}, {"A": None}, {"A": b"1"}, {"A": "a\0b"}, {"A": ["1"]},
    ],
    "env_file": [*NO_PATH, "/no/such/file", "/tmp"],
    "python": NO_PATH,
    "setup": [3, None, ["module load cuda"], "a\0b"],
    "transport": ["telnet", 3, None, [], [3], ["kubectl", "exec"], ""],
    "min_workers": [*NO_COUNT, 0],
    "max_workers": [*NO_COUNT, 0],
    "max_restarts": [*NO_COUNT, None],
    "restart_delay": ["x", None, -1, math.nan, math.inf, True],
    "hosts_file": NO_PATH,
    "discover": [3, "", "  ", ["a", "b"], b"a"],
    "log_dir": NO_PATH,
    "events": NO_PATH,
    "grace": ["x", None, -1, math.nan, math.inf, True],
    "results": ["json", None, 3, ["data"]],
    "preload": ["torch", None, 3, [3], [""], ["a b"], ["+torch"], ["-c"]],
    "quiet": ["no", None, 1],
}  # fmt: skip


def told(error: BaseException) -> str:
    """The message: one line, and of a length that a terminal holds."""
    text = str(error)
    assert "\n" not in text and len(text) < 300
    return text


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_wrong_setting_is_refused_as_it_is_made(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        Launcher(**{name: value})
    text = told(caught.value)
    assert re.match(rf"{name}(=|\[|:)|'a(:0| b)' ", text), text
    assert re.search(r": (give|name|write)|there is no such file", text), text
    if isinstance(value, (str, int, float, list)) and "such file" not in text:
        shown = value[0] if value in (["a b"], ["a:0"]) and name == "hostnames" else value
        assert repr(shown) in text, text


@pytest.mark.parametrize("name", ["worker_timeout", "agent_timeout", "restart_delay", "grace"])
def test_seconds_that_no_float_can_hold_are_refused(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Launcher(**{name: 10**400})  # type: ignore[arg-type]
    assert told(caught.value).startswith(f"{name}=1000")


def test_every_setting_has_its_row() -> None:
    names = [each.name for each in fields(Launcher)]
    assert names == list(KINDS) == list(WRONG)


def test_what_is_right_is_taken(tmp_path: Path) -> None:
    (tmp_path / "variables").write_text("A=1\n")
    numbers = [np.int64(2), np.int32(1)]
    right = Launcher(
        hostnames=("a", "b:3"), workers_per_host=numbers, worker_timeout=np.float32(2), env_file=tmp_path / "variables",
        extra_env_vars={"N": 3, "P": tmp_path, "F": 0.5}, python=Path("/usr/bin/python3"), preload=["torch.nn"], grace=0,
    )  # fmt: skip
    assert right.elastic is False
    assert Launcher(min_workers=np.int64(1), max_workers=2).elastic


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"hostnames": ["a", "b"], "workers_per_host": [1, 2, 3]}, "workers_per_host has 3 numbers for 2 hosts: give one"),
        ({"hostnames": ["a", "b", "a"]}, "the host a is named twice: name it once, and give it more workers: a:2"),
        ({"min_workers": 3, "max_workers": 2}, "max_workers=2: give a number of at least min_workers (3), or None"),
        ({"min_workers": 1, "backend": "gloo"}, "backend: an elastic launch has no fixed group: leave it out"),
        ({"hosts_file": "x", "discover": "y"}, "hosts_file and discover both say which hosts there are: give one of them"),
        ({"hosts_file": "x", "hostnames": ["a"]}, "hostnames and hosts_file both say which hosts there are: give one of them"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_together(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Launcher(**settings)
    assert told(caught.value).startswith(said)


def test_what_is_found_out_at_the_start_is_told_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"A=\xff\xfe")
    (tmp_path / "file").touch()
    for settings, said in (
        ({"env_file": tmp_path / "binary"}, "it is no text: give a file of NAME=value lines"),
        ({"hosts_file": tmp_path / "none"}, "No such file or directory: give one that can be read"),
        ({"discover": "/no/such/command"}, "the discovery command '/no/such/command' cannot be run"),
        ({"log_dir": tmp_path / "file"}, "File exists: give a directory that can be written"),
        ({"events": tmp_path / "no" / "events"}, "No such file or directory: give a path that can be written"),
    ):
        with pytest.raises(ConfigError, match=said) as caught:
            launcher(**settings).start(print)
        told(caught.value)
    with pytest.raises(ConfigError, match="function=3: give a function, and its arguments behind it"):
        launcher().start(3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"command='python train\.py': give a list of words"):
        launcher().start_program("python train.py")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("-n 2 --min 0", "'--min': 0 is not in the range"),
        ("-n 2 --min 3", "--min 3: give a number from 1 to -n (2)"),
        ("-n 2 --min 2 --max 1", "--max 1: give a number of at least --min (2)"),
        ("-n 2 --hosts a --min 2 --max 1", "--max 1: give a number of at least --min (2), or None"),
        ("-n 2 --max-restarts -1", "'--max-restarts': -1 is not in the range"),
        ("-n 2 --restart-delay nan", "'--restart-delay': nan is no number of seconds"),
        ("-n 2 --restart-delay soon", "'--restart-delay': 'soon' is not a valid"),
        ("-n 2 --grace -1", "'--grace': -1.0 is not in the range"),
        ("-n 2 --hosts ,", "--hosts ',': it names no host: give names"),
        ("-n 2 --hosts ''", "'--hosts': it is empty: give A,B:4|slurm"),
        ("-n 2 --hosts a,a", "the host a is named twice"),
        ("-n 2 --hosts a:0", "'a:0' has no slot: write a number of at least 1"),
        (
            "-n 2 --hosts a --transport telnet",
            "--transport ['telnet']: give one of auto, local, ssh, slurm, or a command with a word that has {host}",
        ),
        ("-n 2 --hosts a --ssh-config /no/such/file", "'--ssh-config': File '/no/such/file' does not exist"),
        ("-n 2 --hosts-file /no/such/file", "'--hosts-file': File '/no/such/file' does not exist"),
        ("-n 2 --hosts a --hosts-file train.py", "--hosts and --hosts-file both say which hosts there are"),
        ("-n 2 --discover /no/such/command", "the discovery command '/no/such/command' cannot be run"),
        ("-n 2 --python /usr/bin/python3", "--python is for workers of other hosts: give --hosts too"),
        ("-n 2 -q", "--quiet is for workers of other hosts: give --hosts too"),
        ("-n 2 --hosts a --job 'a b'", "--job 'a b': use 1 to 64 letters"),
        ("-n 2 --hosts a --log-dir train.py", "--log-dir train.py: File exists: give a directory"),
        ("-n 2 --log-dir train.py", "--log-dir train.py: File exists: give a directory"),
        ("-n 2 --hosts a --events /no/such/events", "--events /no/such/events: No such file or directory: give a path"),
        ("-n 2 --meet here", "--meet: 'here' is not an address: expected host:port"),
        ("-n 2 --size 0 --meet a:1", "'--size': 0 is not in the range"),
    ],
)
def test_a_wrong_option_is_one_line(
    line: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    with pytest.raises(SystemExit) as ended:
        main(["run", *shlex.split(line), "train.py"])
    assert ended.value.code == 2
    [text] = capfd.readouterr().err.splitlines()
    assert text.startswith("ftlib: error: ") and said in text
