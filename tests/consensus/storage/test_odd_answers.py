"""Something answers at a server's address, and not as the server would: a load balancer, another service, a broken one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from consensus.errors import AmbiguousWriteError, StoreAwayError
from consensus.storage.locate import store_at
from consensus.storage.store import Store
from tests.harness.basics import TIMEOUT

from .patience import Heard

VERSION, TOKEN = "version", "v3/auth/authenticate"
GOOD = {VERSION: b'{"etcdserver":"3.4.23"}', TOKEN: b'{"token":"t"}'}
DEEP = b"[" * 100_000


@asynccontextmanager
async def etcd(answers: dict[str, bytes]) -> AsyncIterator[Store]:
    """A store at a server that answers so to each path, else with an empty object. ``answers`` may change."""

    async def answer(request: web.Request) -> web.Response:
        body = {**GOOD, **answers}.get(request.path[1:], b"{}")
        return web.Response(body=body, content_type="application/json")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    server = TestServer(app)
    await server.start_server()
    store = store_at(f"etcd://me:sesame@127.0.0.1:{server.port}", "job", timeout=TIMEOUT)
    try:
        yield store
    finally:
        await store.close()
        await server.close()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        *((VERSION, body) for body in (b'{"version":"1.0"}', b"[]", b"5", b'{"etcdserver":"new"}', DEEP)),
        *((TOKEN, body) for body in (b"{}", b'{"result":5}', b"[]", DEEP)),
        *(("v3/kv/put", body) for body in (b'{"result":5}', b"[]", b'{"code":1e999}', DEEP)),
    ],
)
async def test_an_etcd_that_answers_oddly_is_away_until_it_does_not(path: str, body: bytes) -> None:
    answers = {path: body}
    async with etcd(answers) as store:
        with pytest.raises(StoreAwayError, match="this is no answer of etcd") as caught:
            await store.open()
        assert "\n" not in str(caught.value) and "sesame" not in str(caught.value)
        answers.clear()
        await store.open()


async def test_a_write_that_etcd_answers_oddly_may_have_been_done() -> None:
    async with etcd({"v3/kv/put": b'{"result":5}'}) as store:
        with pytest.raises(AmbiguousWriteError):
            await store.write("views/1", b"")


async def test_an_odd_answer_does_not_end_a_watch(caplog: pytest.LogCaptureFixture) -> None:
    answers = {"v3/watch": b'{"result":{"events":[5]}}\n'}
    async with etcd(answers) as store:
        heard = Heard(store, "views/")
        async with asyncio.timeout(TIMEOUT):
            while "is not watched for now" not in caplog.text:
                await asyncio.sleep(0.01)
        answers["v3/watch"] = b'{"result":{"created":true}}\n'
        await heard.once()
    await heard.ended()


@asynccontextmanager
async def redis(answer: bytes) -> AsyncIterator[Any]:
    """The wire to a server that answers so to every command but the first of a connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while command := await reader.read(1 << 16):
            writer.write(b"+OK\r\n" * command.count(b"SETINFO") or answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1")
    store: Any = store_at(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}", "job", timeout=TIMEOUT)
    try:
        yield store._wire
    finally:
        await store.close()
        server.close()


@pytest.mark.parametrize("answer", [b":abc\r\n", b"*" + b"1\r\n*" * 10_000 + b"1\r\n"])
async def test_a_redis_that_answers_oddly_is_away(answer: bytes) -> None:
    async with redis(answer) as wire:
        with pytest.raises(StoreAwayError, match="this is no answer of Redis") as caught:
            await wire.ask("GET", "a", write=False)
        assert "\n" not in str(caught.value)
        with pytest.raises(AmbiguousWriteError, match="this is no answer of Redis"):
            await wire.ask("SET", "a", "", write=True)


@pytest.mark.parametrize("answer", [b":5\r\n:5\r\n", b"*0\r\n*0\r\n", b":abc\r\n"])
async def test_odd_news_of_redis_are_an_error_of_the_store(answer: bytes) -> None:
    async with redis(answer) as wire:
        with pytest.raises(StoreAwayError, match="this is no answer of Redis"):
            await wire.listen("news", lambda _: None)
