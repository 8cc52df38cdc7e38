"""Agents that say what cannot be, and a launcher that fails itself: the launch ends with an error, and nobody waits."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

from ftlib import AgentFailedError, WorkerFailedError
from ftlib.launch.director.decisions.launch_state import LaunchState
from tests.harness.basics import TIMEOUT
from tests.harness.program import ROOT
from tests.launch.launching import launcher, no_child_is_left
from tests.launch.test_launcher import sleep_long

pytestmark = pytest.mark.process

FOE = f"""
import os, sys, time
sys.path.insert(0, {str(ROOT)!r})
host, *agent = sys.argv[1:]
if host != "foe":
    os.execv(agent[0], agent)
from ftlib.launch.stream.messages import *
here = Here("foe", 1, "3.11", "3", "", 1, 0, "127.0.0.1", [])
bound = Bound(1, ["127.0.0.1:7"], "127.0.0.1:8", 0)
{{after}}
os.write(1, {{greeting}} + encode({{first}}))
heard = Decoder()
def wait_for(kind):
    while True:
        for message, _ in heard.feed(os.read(0, 1 << 16) or encode(Bye())):
            if isinstance(message, Bye):
                sys.exit()
            if isinstance(message, kind):
                return
wait_for(Bind)
os.write(1, encode({{second}}) + b"".join(map(encode, after)))
wait_for(Bye)
"""


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"first": "here._replace(python='3.9.1')"}, rf"Python 3\.9\.1 runs there, and {platform.python_version()} here"),
        ({"first": "here._replace(cloudpickle='')"}, "cloudpickle is not installed there: pip install cloudpickle"),
        ({"greeting": "greeting().replace(release().encode(), b'0.0.7')"}, r"ftlib 0\.0\.7 is installed there, and .* here"),
        ({"after": "after = [Ended(0, 1, 5, 0, '', False, False, 0, [])]"}, "a message of worker 0, which is none of its own"),
        ({"after": "after = [Lines(99, False, [])]"}, "a message of worker 99"),
        ({"after": "after = [Lines(-1, False, [7])]"}, "a Lines whose lines is"),
        ({"after": "after = [Started('1', 1, 5)]"}, "a Started whose worker is '1'"),
        ({"after": "after = [Bye()]"}, "it sent a Bye"),
        ({"second": "bound._replace(addresses=[])"}, "0 addresses for 1 founders"),
        ({"second": "bound._replace(addresses=['127.0.0.1:x'])"}, "addresses that are none"),
        ({"first": "here._replace(cpus=10**9)"}, "that it has 1000000000 CPUs"),
    ],
)
def test_an_agent_that_says_what_cannot_be_is_named(tmp_path: Path, said: dict[str, str], words: str) -> None:
    foe = FOE.format(**{"greeting": "greeting()", "after": "after = []", "first": "here", "second": "bound", **said})
    with no_child_is_left():
        way = [sys.executable, "-c", foe, "{host}"]
        launch = launcher("localhost", "foe", workers=1, transport=way).start(sleep_long, tmp_path)
        with pytest.raises(AgentFailedError, match=words) as caught:
            launch.wait(TIMEOUT)
    assert caught.value.host == "foe"


def test_the_python_of_a_host_is_of_no_matter_to_a_program(tmp_path: Path) -> None:
    said = {
        "greeting": "greeting()",
        "after": "after = [Ended(0, 1, 5, 9, '', False, False, 0, []), Drained(0, 1)]",
        "second": "bound",
    }
    foe = FOE.format(**said, first="here._replace(python='3.9.1', cloudpickle='')")
    launch = launcher("foe", workers=1, transport=[sys.executable, "-c", foe, "{host}"]).start_program(["true"])
    with no_child_is_left(), pytest.raises(WorkerFailedError, match="exit code 9"):
        launch.wait(TIMEOUT)


def test_a_launcher_that_fails_itself_ends_the_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("in the launcher")

    monkeypatch.setattr(LaunchState, "started", fail)
    with no_child_is_left(), pytest.raises(ZeroDivisionError) as caught:
        launcher(workers=1).start(sleep_long, tmp_path).wait(TIMEOUT)
    assert "the launcher itself has failed" in caught.value.__notes__[0]
