"""A worker that ``ftlib run`` starts again is a new peer under the old name; what it sends before its exit arrives."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.program import ROOT
from tests.launch.helpers import cli

pytestmark = pytest.mark.process


def test_a_worker_that_is_started_again_is_a_new_peer_and_what_it_sends_at_last_comes(tmp_path: Path) -> None:
    program = ROOT / "tests" / "collective" / "restarted.py"
    result = cli("run", "-n", 2, "--max-restarts", 1, "--restart-delay", 0.1, program, tmp_path, cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    for said in ("counted: 1 True", "lost: True", "whole: True"):
        assert said in result.stdout + result.stderr, result.stdout + result.stderr
