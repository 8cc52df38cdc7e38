"""A program that is forked ends, speaks and starts others as one does that the interpreter was started for."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.harness.nursery import Nursery
from tests.harness.program import Program

pytestmark = pytest.mark.process

LIMIT = 60.0


@pytest.mark.parametrize(
    ("code", "ended", "error"),
    [
        ("print('said')", 0, ""),
        ("import sys; print('said'); sys.exit(7)", 7, ""),
        ("import sys; print('said'); sys.exit('why')", 1, "why\n"),
        ("print('said'); raise KeyError('x')", 1, "KeyError: 'x'\n"),
        ("print('said'); raise KeyboardInterrupt", -signal.SIGINT, "KeyboardInterrupt\n"),
        ("import atexit; atexit.register(print, 'said')", 0, ""),
        ("import threading; threading.Timer(0.1, print, ['said']).start()", 0, ""),
    ],
)
def test_its_end_is_the_interpreters(nursery: Nursery, tmp_path: Path, code: str, ended: int, error: str) -> None:
    with Program(nursery, tmp_path, "-c", code) as program:
        assert program.wait(LIMIT) == ended, program.stderr
        assert program.stdout == "said\n"
        assert program.stderr.endswith(error) and bool(program.stderr) == bool(error)


CHILD = """
import os, signal, sys
assert sys.argv[1:] == ["argument"] and os.environ["GIVEN"] == "yes" and "HOME" not in os.environ
os.write(int(os.environ["KEPT"]), b"kept ")
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN
files = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
assert not [name for name in files if "secret" in name], files
print("child", __name__)
"""

PARENT = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, lambda *_: None)
file = open("secret", "w")
out, kept = os.pipe()
command = [sys.executable, "child.py", "argument"]
environment = {"GIVEN": "yes", "KEPT": str(kept)}
child = subprocess.Popen(command, env=environment, pass_fds=[kept], stdout=subprocess.PIPE, text=True, start_new_session=True)
assert os.getsid(child.pid) == child.pid and os.getsid(0) != child.pid
print(os.read(out, 9).decode() + child.communicate()[0], end="")
sys.exit(child.returncode)
"""


def test_its_own_children_have_what_they_were_given_and_nothing_else(nursery: Nursery, tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(CHILD)
    with Program(nursery, tmp_path, "-c", PARENT) as program:
        assert program.wait(LIMIT) == 0, program.stderr
        assert program.stdout == "kept child __main__\n"
