"""Names that change: a dnsmasq on one host of a ``Network``, which all others ask.

``with Names(directory, hosts[0], hosts) as names`` is asked by processes that ``Host.prefix`` or ``namespace.settle`` started
from then on. ``names.set("workers", "10.77.0.2", "10.77.0.3")`` holds from the moment at which it returns.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.harness.basics import eventually
from tests.harness.network import Host

_missing = "" if shutil.which("dnsmasq") else "dnsmasq is not installed: apt-get install dnsmasq"
needs_names = pytest.mark.skipif(bool(_missing), reason=_missing or "none")


class Names:
    """A context manager: the server runs inside."""

    def __init__(self, directory: Path, host: Host, clients: Iterable[Host], *, domain: str = "workers") -> None:
        """``domain``: the name that is answered for, and whatever ends in it; nothing else is."""
        self._directory, self._host, self._clients, self._domain = directory, host, list(clients), domain
        self._known: dict[str, tuple[str, ...]] = {}
        self._file = directory / "names"
        self._log = directory / "names.log"

    def __enter__(self) -> Self:
        self._file.write_text("")
        for client in self._clients:
            client.resolver(self._host.v4)
        command = ["dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts", "--user=root"]
        command += [f"--addn-hosts={self._file}", f"--local=/{self._domain}/", "--pid-file", "--log-facility=-"]
        command += [f"--listen-address={self._host.v4}", "--bind-interfaces"]
        with self._log.open("wb") as log:
            self._server = subprocess.Popen([*self._host.prefix, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            eventually(lambda: self._reads() > 0, self._log.read_text)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.kill()
        self._server.wait()

    def set(self, name: str, *addresses: str) -> None:
        """``name`` stands for these addresses from now on; without any it is unknown."""
        self._known[name] = addresses
        self._file.write_text("".join(f"{each} {name}\n" for name, found in self._known.items() for each in found))
        before = self._reads()
        os.kill(self._server.pid, signal.SIGHUP)
        eventually(lambda: self._reads() > before, self._log.read_text)

    def _reads(self) -> int:
        """How often it has read its file."""
        return self._log.read_text(errors="replace").count(f"read {self._file}")
