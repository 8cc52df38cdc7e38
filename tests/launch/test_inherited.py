"""What a launcher inherits from whoever starts it: signals that are ignored, and an output that nobody reads."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from ftlib.launch.processes.process import descendants
from tests.harness.basics import lives
from tests.launch.helpers import LIMIT, running, script, wait_gone, wait_until

HOSTS: dict[str, tuple[object, ...]] = {"one host": (), "several": ("--hosts", "localhost")}
LOUD = script("for _ in range(20000): print('z' * 100)\nsys.stdout.flush()\nwrite('done')")
"""More than pipes hold."""


@pytest.mark.parametrize("hosts", HOSTS)
def test_nohup_outlives_a_hangup(tmp_path: Path, hosts: str) -> None:
    body = "write('up')\nwait('go')"
    with running(tmp_path, *HOSTS[hosts], "-n", 1, script=script(body), ignoring=signal.SIGHUP) as run:
        run.wait_file("up")
        run.process.send_signal(signal.SIGHUP)
        (tmp_path / "go").touch()
        _, said = run.finish(0)
        assert "SIGHUP" not in said


@pytest.mark.parametrize("hosts", HOSTS)
def test_it_ends_where_the_ends_of_children_are_ignored(tmp_path: Path, hosts: str) -> None:
    """As in programs that want no zombies: the kernel then tells no end."""
    with running(tmp_path, *HOSTS[hosts], "-n", 1, script=script("wait('go')"), ignoring=signal.SIGCHLD) as run:
        wait_until(lambda: len(descendants(run.process.pid)) >= 2, "keeper and supervisor are there")
        below = descendants(run.process.pid)
        (tmp_path / "go").touch()
        run.finish(0)
        for pid in below:
            wait_gone(pid)


def test_a_run_that_waits_for_its_reader_ends_at_a_signal(tmp_path: Path) -> None:
    with running(tmp_path, "-n", 1, script=LOUD) as run:
        run.wait_events("over", 1)
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(LIMIT) == 0  # as the workers have


def test_nothing_waits_for_a_reader_once_the_launcher_is_killed(tmp_path: Path) -> None:
    with running(tmp_path, "-n", 1, script=LOUD) as run:
        run.wait_events("over", 1)
        below = descendants(run.process.pid)
        assert any(map(lives, below))
        run.process.kill()
        for pid in below:
            wait_gone(pid)
