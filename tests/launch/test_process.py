"""Facts about processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from ftlib.common.processes import describe_exit
from ftlib.launch.processes.process import descendants, shell_code


@pytest.mark.parametrize(
    ("code", "words", "shell"),
    [
        (0, "finished", 0),
        (3, "exit code 3", 3),
        (-signal.SIGKILL, "killed by SIGKILL", 137),
        (-signal.SIGSEGV, "killed by SIGSEGV", 139),
        (-62, "killed by signal 62", 190),
    ],
)
def test_exits_in_words_and_as_a_shell_sees_them(code: int, words: str, shell: int) -> None:
    assert describe_exit(code) == words
    assert shell_code(code) == shell


@pytest.mark.process
def test_descendants_are_found_at_any_depth() -> None:
    source = "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        assert {child.pid, grandchild} <= descendants(os.getpid())
        assert descendants(child.pid) == {grandchild}
        os.kill(grandchild, signal.SIGKILL)
