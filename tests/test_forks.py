"""Tests in several forked processes: what is reported, what they share and what not, and what if a test ends one of them."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen, run
from xml.etree import ElementTree as ET

import pytest

from tests.forks import _LENGTH, _Line

ROOT = Path(__file__).resolve().parents[1]

TIMEOUT = 100.0

Play = Callable[..., tuple[int, str]]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Runs the tests of some modules in so many processes; the exit code and what is said."""

    def play(forks: int, *modules: str, options: tuple[str, ...] = ()) -> tuple[int, str]:
        for number, text in enumerate(modules):
            (tmp_path / f"test_module{number}.py").write_text(text)
        pytest = [sys.executable, "-m", "pytest", "-p", "tests.forks", f"--forks={forks}", "-p", "no:cacheprovider"]
        places = [f"--rootdir={tmp_path}", f"--junitxml={tmp_path}/report.xml", f"--basetemp={tmp_path}/files"]
        command = [*pytest, *places, *options, str(tmp_path)]
        with (tmp_path / "said").open("w") as said:  # not a pipe: what a test left behind might keep that open
            done = run(command, cwd=ROOT, stdout=said, stderr=STDOUT, check=False, timeout=TIMEOUT + 10)
        return done.returncode, (tmp_path / "said").read_text()

    return play


def soon(directory: Path, option: str) -> None:
    """Let ``option`` be a moment soon after the tests there have been collected, however long that takes."""
    (directory / "conftest.py").write_text(f"""
import time
def pytest_collection_finish(session):
    session.config.option.{option} = time.time() + 8
""")


def names(report: Path) -> dict[str, list[str]]:
    """Tests that came to nothing good, each with what it came to."""
    return {
        case.get("name", ""): [each.tag for each in case if each.tag != "system-out"]
        for case in ET.parse(report).iter("testcase")
    }


def test_everything_is_reported_as_usual(play: Play, tmp_path: Path) -> None:
    """One that passes, one that fails and says something, one that skips, one whose fixture fails at its end."""
    code, said = play(
        2,
        """
import pytest

@pytest.fixture
def ends_badly():
    yield
    assert not "at its end"

def test_good(tmp_path):
    print("of no interest")
    (tmp_path / "file").write_text("")

def test_bad():
    print("of interest")
    assert 1 == 2

def test_skipped():
    pytest.skip("for a reason")

def test_error(ends_badly):
    pass
""",
    )
    assert code == 1
    assert names(tmp_path / "report.xml") == {
        "test_good": [],
        "test_bad": ["failure"],
        "test_skipped": ["skipped"],
        "test_error": ["error"],
    }
    assert "of interest" in said and "of no interest" not in said
    assert "assert 1 == 2" in said and "1 failed, 2 passed, 1 skipped, 1 error" in said


def test_a_module_is_imported_once_and_runs_in_several_processes(play: Play, tmp_path: Path) -> None:
    code, said = play(
        3,
        f"""
import os, time
from pathlib import Path
import pytest

HERE = Path({str(tmp_path)!r})
(HERE / f"import-{{os.getpid()}}").write_text("")

@pytest.mark.parametrize("turn", range(3))
def test_it(turn, tmp_path):
    (HERE / f"test-{{os.getpid()}}").write_text(str(tmp_path))
    end = time.monotonic() + 20
    while len(list(HERE.glob("test-*"))) < 3:
        assert time.monotonic() < end, "the others wait for this one"
        time.sleep(0.01)
""",
    )
    assert code == 0, said
    assert len(list(tmp_path.glob("import-*"))) == 1
    assert len({each.read_text() for each in tmp_path.glob("test-*")}) == 3, "each has its own temporary files"


def test_who_shares_a_fixture_of_its_module_shares_the_process(play: Play, tmp_path: Path) -> None:
    """Another process takes from a module only when nothing else is left: here, at most the last of either."""
    program = f"""
import os
from pathlib import Path
import pytest

@pytest.fixture(scope="module")
def server():
    with open({str(tmp_path / "log")!r}, "a", buffering=1) as log:
        log.write(f"{{__name__}}-begins\\n")
        yield os.getpid()
        log.write(f"{{__name__}}-ends\\n")

@pytest.mark.parametrize("turn", range(40))
def test_it(turn, server):
    assert server == os.getpid()
"""
    code, said = play(2, program, program)
    assert code == 0, said
    log = Counter((tmp_path / "log").read_text().split())
    for module in ("test_module0", "test_module1"):
        assert 1 <= log[f"{module}-begins"] == log[f"{module}-ends"] <= 2


def test_a_test_that_ends_its_process_fails_and_the_others_run(play: Play, tmp_path: Path) -> None:
    code, said = play(
        1,
        """
import os, signal
def test_before(): pass
def test_exit(): os._exit(7)
def test_between(): pass
def test_kill(): os.kill(os.getpid(), signal.SIGKILL)
def test_after(): pass
""",
    )
    assert code == 1
    assert {name for name, outcome in names(tmp_path / "report.xml").items() if outcome} == {"test_exit", "test_kill"}
    assert "2 failed, 3 passed" in said
    assert "the process that ran this test ended: exit code 7" in said
    assert "the process that ran this test ended: killed by SIGKILL" in said


def test_the_first_failure_may_end_it(play: Play) -> None:
    """With ``-x`` nobody goes on, not even in the middle of a test."""
    code, said = play(2, "import time\ndef test_bad(): assert False\ndef test_long(): time.sleep(100)\n", options=("-x",))
    assert code == 1 and "1 failed" in said and "stopping after 1 failures" in said


def test_what_cannot_be_collected_is_said(play: Play) -> None:
    code, said = play(2, "def test_good(): pass", "import nothing_of_this_name")
    assert code == 2 and "nothing_of_this_name" in said and "passed" not in said


def test_warnings_are_told(play: Play) -> None:
    program = "import warnings\ndef test_it(): warnings.warn('take care', DeprecationWarning)"
    code, said = play(1, program, options=("-W", "always"))
    assert code == 0 and "DeprecationWarning: take care" in said


def test_what_is_late_is_left_out_and_counted(play: Play, tmp_path: Path) -> None:
    """In turns: the first one of this turn is not the first one of the file."""
    soon(tmp_path, "until")
    waits = "    while time.time() <= pytestconfig.option.until: time.sleep(0.1)\n"
    text = "import time\n" + "".join(f"def test_{name}(pytestconfig):\n{waits}" for name in "abc")
    code, said = play(1, text, options=("--turn=1", "-rs"))
    assert code == 0
    assert "the time that was given to all tests was over" in said
    assert names(tmp_path / "report.xml") == {"test_b": [], "test_a": ["skipped"], "test_c": ["skipped"]}


HANGS = """
import os, threading
def test_before(): pass
def test_hangs():
    threading.Thread(target=threading.Event().wait, name="held").start()
    os.read(os.pipe()[0], 1)
def test_left(): pass
"""


@pytest.mark.parametrize("starved", [False, True])
def test_what_hangs_is_ended(play: Play, tmp_path: Path, starved: bool) -> None:
    """And told with the stacks of all its threads. One that had no processor has not failed."""
    soon(tmp_path, "end")
    code, said = play(1, HANGS, options=("-rfs", "-o", "timeout=0", *(["--starved"] if starved else [])))
    assert code == (0 if starved else 1), said
    outcome = "skipped" if starved else "failure"
    assert names(tmp_path / "report.xml") == {"test_before": [], "test_hangs": [outcome], "test_left": ["skipped"]}
    if starved:
        assert "not ended: the time that was given to all tests was over" in said
    else:
        assert "it hangs" in said and "in test_hangs" in said and said.count("(most recent call first)") >= 2


def test_only_what_hangs_is_blamed(play: Play, tmp_path: Path) -> None:
    """Not a test that ends while the others tell where they are, nor one that its process would have begun next."""
    soon(tmp_path, "end")
    program = """
import os, time
import pytest
@pytest.fixture
def hangs():
    yield
    os.read(os.pipe()[0], 1)
def test_ends_after_that(pytestconfig):
    while time.time() < pytestconfig.option.end + 0.5: time.sleep(0.1)
def test_hangs_at_its_end(hangs): pass
def test_next(): pass
"""
    code, said = play(2, program, options=("-o", "timeout=0"))
    assert code == 1, said
    assert names(tmp_path / "report.xml") == {
        "test_ends_after_that": [],
        "test_hangs_at_its_end": ["error"],
        "test_next": ["skipped"],
    }


def test_half_a_value_is_not_waited_for() -> None:
    """Whoever sends it may be killed in the middle of that."""
    ours, theirs = _Line.pair()
    theirs.send("whole")
    theirs._sock.sendall(_LENGTH.pack(100) + b"half")
    assert ours.take() == ["whole"]
    assert ours.take() == [] and not ours.ended
    theirs.close()
    assert ours.take() == [] and ours.ended
    ours.close()


def test_a_process_that_ends_between_two_tests_is_the_fault_of_the_one_before(play: Play, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("""
import os, pytest
PARENT = os.getpid()
@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish(nodeid):
    if os.getpid() != PARENT and nodeid.endswith("test_it"):
        os._exit(5)
""")
    code, said = play(1, "def test_before(): pass\ndef test_it(): pass\ndef test_after(): pass")
    assert code == 1 and "exit code 5" in said, said
    assert names(tmp_path / "report.xml") == {"test_before": [], "test_it": ["error"], "test_after": []}


def test_a_process_that_outlives_its_parent_is_not_waited_for(play: Play) -> None:
    """It has the connection of the process that forked it."""
    program = f"""
import os, time
def test_leaves_one():
    if not os.fork():
        time.sleep({TIMEOUT})
        os._exit(0)
    os._exit(3)
def test_after(): pass
"""
    began = time.monotonic()
    code, said = play(1, program)
    assert code == 1 and "1 failed, 1 passed" in said and "exit code 3" in said
    assert time.monotonic() - began < TIMEOUT


def test_who_ends_it_is_told_what_was_under_way(tmp_path: Path) -> None:
    path = tmp_path / "test_module.py"
    path.write_text("import time\ndef test_it(): time.sleep(100)\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.forks", "--forks=1", f"--rootdir={tmp_path}", "-v", str(path)]
    with Popen([*command, "-p", "no:cacheprovider"], cwd=ROOT, stdout=PIPE, stderr=STDOUT, text=True) as process:
        assert process.stdout is not None
        said = ""
        while "test_it" not in said:
            said += process.stdout.read(1) or pytest.fail(said)
        process.terminate()
        rest = process.stdout.read()
    assert process.returncode == -signal.SIGTERM
    assert re.search(r"SIGTERM after \d+ s; under way:\n  test_module.py::test_it for \d+ s\n", rest)
