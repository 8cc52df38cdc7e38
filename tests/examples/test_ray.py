"""The example for Ray, on a Ray of this machine's own: one actor is killed, started again by Ray, and joins the others."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.basics import free_ports
from tests.harness.program import ROOT, clean


@pytest.mark.soak
@pytest.mark.process
@pytest.mark.timeout(600)
def test_digits(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    [port] = free_ports(1)
    environment = clean(PORT=str(port), RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0", FTLIB_EXCLUDE_AFTER="30")
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "ray" / "digits.py"],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    line = r"^worker (\d): (came back, and )?was there at step (\d+), test accuracy ([\d.]+)%"
    told = re.findall(line, done.stdout, re.MULTILINE)
    assert [worker for worker, *_ in told] == ["0", "1", "2"], done.stdout + done.stderr
    assert [bool(back) for _, back, *_ in told] == [False, True, False]
    assert len({step for *_, step, _ in told}) == 1, "all ended after the same step"
    assert len({accuracy for *_, accuracy in told}) == 1, "with the same parameters"
    assert float(told[0][-1]) > 80
