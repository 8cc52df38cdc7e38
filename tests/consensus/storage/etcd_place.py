"""Stores in an etcd server of the test's own, and what its operator asks of it."""

from __future__ import annotations

import base64
import json
import urllib.request
from contextlib import AbstractContextManager
from typing import Any

from consensus.storage.etcd.etcd_store import EtcdStore
from consensus.storage.store import Store
from tests.consensus.storage.place import Place
from tests.relay import Relay
from tests.servers import EtcdServer

__all__ = ["EtcdPlace", "ask", "coded", "opened"]


def ask(server: EtcdServer, path: str, token: str = "", **body: Any) -> dict[str, Any]:
    """What its gateway answers to the operator."""
    headers = {"Authorization": token} if token else {}
    request = urllib.request.Request(f"http://localhost:{server.port}/v3/{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=20) as response:
        answer: dict[str, Any] = json.load(response)
        return answer


def coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


class EtcdPlace(Place):
    def __init__(self, server: EtcdServer, relay: Relay) -> None:
        self.url = f"etcd://localhost:{relay.port}"
        self._server = server
        self._relay = relay

    def wipe(self) -> None:
        ask(self._server, "kv/deleterange", key=coded("\0"), range_end=coded("\0"))

    def losing_answers(self, store: Store) -> AbstractContextManager[None]:
        return self._relay.losing_answers()


async def opened(url: str, job: str = "job", **options: Any) -> EtcdStore:
    store = EtcdStore(url, job, **{"timeout": 5.0, **options})
    try:
        await store.open()
    except BaseException:
        await store.close()
        raise
    return store
