"""No name server is asked where groups meet, as one that drops the question would hold up a recovery for seconds."""

from __future__ import annotations

import socket
import threading

import pytest

from ftlib.frameworks import name_lookups
from ftlib.frameworks.name_lookups import no_name_server

UNKNOWN = ("192.0.2.77", 80)
"""An address for documentation (RFC 5737): no hosts file knows it."""


def servers() -> int:
    assert name_lookups._FOUND is not None
    begin, state = name_lookups._FOUND
    begin()
    return int(state().contents.nscount)


@pytest.mark.skipif(name_lookups._FOUND is None, reason="needs glibc")
def test_nobody_is_asked_by_this_thread() -> None:
    before = servers()
    seen: list[int] = []
    with no_name_server():
        assert name_lookups._FOUND is not None
        assert name_lookups._FOUND[1]().contents.nscount == 0
        with pytest.raises(socket.gaierror):
            socket.getnameinfo(UNKNOWN, socket.NI_NAMEREQD)
        other = threading.Thread(target=lambda: seen.append(servers()))
        other.start()
        other.join()
        assert socket.getnameinfo(("127.0.0.1", 80), socket.NI_NUMERICSERV)[0], "what the hosts file knows has a name"
    assert servers() == before == seen[0]


def test_without_glibc_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_lookups, "_FOUND", None)
    with no_name_server():
        pass
