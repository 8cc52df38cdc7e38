"""A process that ends while threads of it are in Gloo: it ends well, and without a word about them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.harness.program import ROOT, clean


@pytest.mark.parametrize("mode", ["stuck", "spin"])
def test_it_ends_well(mode: str) -> None:
    # A new interpreter, as it is about its end.
    command = [sys.executable, "-m", "tests.torchft.left_open", mode]
    done = subprocess.run(command, env=clean(), cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "terminate called" not in done.stderr and "Traceback" not in done.stderr, done.stderr
