"""An object store for a test: moto's server, which answers as S3 does, in a process of its own."""

from __future__ import annotations

import importlib.util
import itertools
import os
import subprocess
import sys
import time
import urllib.request
from typing import Self

import pytest

from tests.harness.basics import TIMEOUT

_SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
"""It binds a free port by itself, and ends with the test."""


class ObjectStore:
    """A context manager."""

    def __init__(self) -> None:
        """Skips the test where moto or s3fs is not installed."""
        for name in ("moto", "s3fs", "flask", "flask_cors"):
            if importlib.util.find_spec(name) is None:
                pytest.skip(f"{name} is not installed: pip install 'moto[server,s3]' s3fs")
        self._process: subprocess.Popen[str] | None = None
        self.port = 0
        self._count = itertools.count()

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """What clients find it by."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def bucket(self) -> str:
        """A new one, empty."""
        name = f"bucket-{next(self._count)}"
        request = urllib.request.Request(f"{self.endpoint}/{name}", method="PUT")
        with urllib.request.urlopen(request, timeout=TIMEOUT):
            return name

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                with urllib.request.urlopen(f"{self.endpoint}/moto-api/", timeout=TIMEOUT):
                    return self
            except OSError:
                assert time.monotonic() < deadline, "moto's server does not answer"
                time.sleep(0.05)

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.kill()
        self._process.wait(TIMEOUT)
