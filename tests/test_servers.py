"""The servers that other tests start: none outlives its test."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest


def test_a_server_dies_with_its_test(tmp_path: Path) -> None:
    """Even if that is killed."""
    text = (
        "import sys, time, pathlib; from tests.harness.servers import RedisServer; "
        "server = RedisServer(pathlib.Path(sys.argv[1])); server.start(); "
        "print(server._process.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", text, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.strip().isdecimal():
            pytest.skip("redis-server is not installed: apt-get install redis-server")
        watched = os.pidfd_open(int(line))
        process.send_signal(signal.SIGKILL)
    assert select.select([watched], [], [], 10)[0]
    os.close(watched)
