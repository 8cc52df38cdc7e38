"""Workers that the kernel does not let die: nobody waits for them, and nobody takes their place."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from ftlib.launch.processes import gpus
from ftlib.launch.processes.worker import REAP_TIMEOUT

from .fake_driver import fake_smi
from .freezer import freezer, needs_freezer
from .helpers import running, script, wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(600), needs_freezer]

BODY = """
announce(1)
write(f"up-{INDEX}", os.getpid())
wait(f"finish-{INDEX}")
"""


@pytest.mark.parametrize("hosts", [(), ("--hosts", "localhost")], ids=["one host", "several"])
def test_the_ends_of_others_are_told(tmp_path: Path, hosts: tuple[str, ...]) -> None:
    with freezer() as cold, running(tmp_path, *hosts, "-n", 2, "--grace", 100, script=script(BODY)) as run:
        pid = [int(run.wait_file(f"up-{index}")) for index in range(2)][1]
        cold.freeze(pid)
        os.kill(pid, signal.SIGKILL)
        (tmp_path / "finish-0").touch()
        _, err = run.finish(0)
        assert Path(f"/proc/{pid}").exists(), "it was there to the end"
    assert [event["code"] for event in run.events("ended")] == [-signal.SIGKILL, 0], "the first one was outlived"
    assert f"process {pid} is stuck in the kernel" in err
    assert len(run.events("started")) == 2, "its place stays empty"
    assert "1 of 2 workers finished" in err


def test_the_run_ends_without_it(tmp_path: Path) -> None:
    with freezer() as cold, running(tmp_path, "-n", 2, "--grace", 1, script=script(BODY)) as run:
        pid = [int(run.wait_file(f"up-{index}")) for index in range(2)][1]
        cold.freeze(pid)
        (tmp_path / "finish-0").touch()
        run.wait_events("ended", 1)
        run.process.send_signal(signal.SIGTERM)
        _, err = run.finish(128 + signal.SIGTERM)
    [over] = run.events("over")
    assert [event["code"] for event in run.events("ended")] == [0, -signal.SIGKILL]
    assert over["seconds"] < 60.0
    assert f"did not end within 1 s; process {pid} is stuck in the kernel" in err
    assert "1 of 2 workers finished" in err


def test_its_late_end_changes_nothing(tmp_path: Path) -> None:
    with freezer() as cold, running(tmp_path, "-n", 3, script=script(BODY)) as run:
        pid = [int(run.wait_file(f"up-{index}")) for index in range(3)][1]
        cold.freeze(pid)
        os.kill(pid, signal.SIGKILL)
        (tmp_path / "finish-0").touch()
        run.wait_events("ended", 2)
        cold.thaw()
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), "its end")
        (tmp_path / "finish-2").touch()
        _, err = run.finish(0)
    assert [event["worker"] for event in run.events("ended")] == [1, 0, 2]
    assert len(run.events("started")) == 3
    assert "2 of 3 workers finished" in err


def test_a_driver_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_PATIENCE", 1.0)
    with freezer() as cold:
        path = fake_smi(tmp_path / "bin")
        program = f"#!/bin/sh\necho $$ > {cold.path}/cgroup.procs\necho FROZEN > {cold.path}/freezer.state\nsleep 300\n"
        (tmp_path / "bin" / "nvidia-smi").write_text(program)
        began = time.monotonic()
        found = gpus.GpuFinder({"PATH": path}, Path("/nonexistent")).find()
        assert time.monotonic() < began + REAP_TIMEOUT + 25.0
    assert found.missing == "no GPU was found: nvidia-smi -L did not end within 1 s: the driver or a GPU hangs"
