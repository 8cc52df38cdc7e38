"""An agent and its store: requests beside each other, a store that is away, hangs, or refuses, and the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from consensus.border import Stopped
from consensus.config import Policy
from consensus.errors import AmbiguousWriteError, JoinError, StoreAwayError, StoreRefusedError
from consensus.messages import Lease
from consensus.protocol.state.effects import Ask
from consensus.protocol.state.inputs import Answered, Died, StoreChanged
from consensus.runtime.agent import store_session
from consensus.storage.files.file_store import FileStore
from consensus.storage.store import Created
from consensus.store_requests import (
    Away,
    Beat,
    CreateView,
    Done,
    LeaseList,
    ReadLeases,
    ReadViews,
    Recorded,
    StoreOp,
    StoreReply,
)

from .fake_core import Rig, rig, until
from .storage.records import founding, lease, member


@asynccontextmanager
async def agent(path: Path, member_id: str = "a" * 16, **settings: Any) -> AsyncIterator[Rig]:
    async with rig(member_id, policy=Policy.STORAGE, storage=f"file://{path}", **settings) as found:
        yield found


async def opened(rig_: Rig) -> None:
    await until(lambda: rig_.agent.status()["store"]["open"])


def answers(rig_: Rig, kind: type[StoreOp]) -> list[StoreReply]:
    return [each.answer for each in rig_.core.told(Answered) if isinstance(each.request, kind)]


async def answer(rig_: Rig, request: StoreOp) -> StoreReply:
    before = len(answers(rig_, type(request)))
    rig_.ask(Ask(request))
    await until(lambda: len(answers(rig_, type(request))) > before)
    return answers(rig_, type(request))[-1]


class Hanging(FileStore):
    """Its creations hang until they are let go, and so do its listings."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.free = asyncio.Event()

    async def create(self, *args: Any, **settings: Any) -> Created:
        await self.free.wait()
        return await super().create(*args, **settings)

    async def list(self, prefix: str) -> Any:
        await self.free.wait()
        return await super().list(prefix)


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> list[Hanging]:
    made: list[Hanging] = []

    def make(url: str, job: str, *, timeout: float) -> Hanging:
        made.append(Hanging(url, job, timeout=timeout))
        return made[-1]

    monkeypatch.setattr(store_session, "store_at", make)
    return made


async def test_requests_are_carried_out_and_answered(tmp_path: Path) -> None:
    async with agent(tmp_path) as a:
        await opened(a)
        assert a.core.told(StoreChanged), "the core is told to look"
        assert await answer(a, ReadViews()) == Recorded(None)
        assert await answer(a, CreateView(founding())) == Recorded(founding())
        assert await answer(a, Beat(lease(3))) == Done()
        assert await answer(a, ReadLeases()) == LeaseList((lease(3),))
        status = a.agent.status()["store"]
        assert status["url"] == f"file://{tmp_path}" and status["away_since"] is None and status["failures"] == 0
        assert status["requests"] == {"create": 1, "floor": 2, "list": 3, "open": 1, "write": 1}
        assert status["operations"] == 8
        assert status["errands"]["Beat"] == {"asked": 1, "away": 0}


async def test_before_the_store_is_open_it_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(FileStore):
        tries = 0

        async def open(self) -> None:
            Late.tries += 1
            if Late.tries < 3:
                raise StoreAwayError("the store is not up yet")
            await super().open()

    monkeypatch.setattr(store_session, "store_at", Late)

    async with agent(tmp_path) as a:
        assert isinstance(await answer(a, ReadViews()), Away)
        await until(lambda: Late.tries >= 2)
        assert await answer(a, ReadViews()) == Away("the store is not up yet")
        assert a.agent.status()["store"]["away_since"] == pytest.approx(time.time(), abs=5)
        assert not a.core.told(StoreChanged)
        await opened(a)
        assert a.core.told(StoreChanged)
        assert await answer(a, ReadViews()) == Recorded(None)
        assert a.agent.status()["store"]["away_since"] is None


async def test_an_odd_error_of_opening_is_away_and_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Odd(FileStore):
        tries = 0
        free = False

        async def open(self) -> None:
            Odd.tries += 1
            if not Odd.free:
                raise KeyError("etcdserver")
            await super().open()

    monkeypatch.setattr(store_session, "store_at", Odd)

    async with agent(tmp_path) as a:
        away = await answer(a, ReadViews())
        assert isinstance(away, Away) and "KeyError: 'etcdserver'" in away.detail
        await until(lambda: Odd.tries >= 3)
        assert [record.getMessage() for record in caplog.records if "no store should" in record.getMessage()] == [
            f"the store file://{tmp_path} cannot be opened for now, for a reason that no store should have"
        ]
        Odd.free = True
        await opened(a)
        assert await answer(a, ReadViews()) == Recorded(None)


async def test_a_lease_is_renewed_while_a_record_is_stuck(tmp_path: Path, hanging: list[Hanging]) -> None:
    async with agent(tmp_path) as a:
        await opened(a)
        a.ask(Ask(CreateView(founding())), Ask(ReadViews()))
        assert await answer(a, Beat(lease(0, 1))) == Done()
        assert await answer(a, Beat(lease(0, 2))) == Done()
        assert not answers(a, CreateView) and not answers(a, ReadViews)
        hanging[0].free.set()
        await until(lambda: answers(a, CreateView) and answers(a, ReadViews))
        assert answers(a, CreateView) == [Recorded(founding())]


async def test_one_reading_of_leases_at_a_time(tmp_path: Path, hanging: list[Hanging]) -> None:
    async with agent(tmp_path) as a:
        await opened(a)
        for _ in range(3):
            a.ask(Ask(ReadLeases()))
        await until(lambda: len(answers(a, ReadLeases)) == 2)
        assert await answer(a, ReadLeases((member(0).id,))) == LeaseList(()), "of others"
        assert answers(a, ReadLeases)[0] == Away(f"the store file://{tmp_path} has not answered the ReadLeases before this yet")
        hanging[0].free.set()
        await until(lambda: len(answers(a, ReadLeases)) == 4)
        assert answers(a, ReadLeases)[3] == LeaseList(())
        assert await answer(a, ReadLeases()) == LeaseList(())


async def test_a_store_that_refuses_ends_this_lifetime_with_its_text(tmp_path: Path) -> None:
    async with agent(tmp_path / "nothing") as a:
        await until(lambda: a.core.told(Died))
        [died] = a.core.told(Died)
        detail, error = died.detail, died.error
        assert isinstance(error, JoinError) and "there is no such directory" in str(error) and detail == str(error)
        assert a.plane.orders == [Stopped(error)] and a.snapshots[-1].stopped is error
        assert await answer(a, ReadViews()) == Away(detail)


async def test_the_own_lease_is_removed_at_the_end_and_no_other(tmp_path: Path) -> None:
    async with agent(tmp_path) as other:
        await opened(other)
        async with agent(tmp_path, member(1).id) as a:
            await opened(a)
            assert await answer(a, Beat(Lease(a.member, 1))) == Done()
            assert await answer(a, Beat(lease(2))) == Done()
            assert await answer(other, ReadLeases()) == LeaseList((Lease(a.member, 1), lease(2)))
        assert await answer(other, ReadLeases()) == LeaseList((lease(2),))


async def test_an_end_does_not_wait_for_a_store_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck(FileStore):
        async def delete(self, *keys: str) -> None:
            await asyncio.Event().wait()

        async def close(self) -> None:
            await super().close()
            await asyncio.Event().wait()

    monkeypatch.setattr(store_session, "store_at", Stuck)

    async with agent(tmp_path) as a:
        await opened(a)
        await answer(a, Beat(Lease(a.member, 1)))
        began = time.monotonic()
        await a.agent.close()
        assert 0.5 < time.monotonic() - began < 20


@pytest.mark.parametrize("error", [StoreAwayError, AmbiguousWriteError, StoreRefusedError, RuntimeError])
async def test_what_fails_is_answered_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    class Failing(FileStore):
        fails = True

        async def write(self, key: str, value: bytes, *, expires: float | None = None) -> None:
            if Failing.fails:
                raise error("no")
            await super().write(key, value, expires=expires)

    monkeypatch.setattr(store_session, "store_at", Failing)

    async with agent(tmp_path) as a:
        await opened(a)
        for _ in range(2):
            assert isinstance(await answer(a, Beat(lease(0))), Away)
        status = a.agent.status()["store"]
        assert status["errands"]["Beat"] == {"asked": 2, "away": 2}
        if error is not RuntimeError:
            assert status["failures"] == 2 and status["away_since"] == pytest.approx(time.time(), abs=5)
        Failing.fails = False
        assert await answer(a, Beat(lease(0))) == Done()
        assert a.agent.status()["store"]["away_since"] is None


async def test_what_began_before_a_failure_does_not_end_it(tmp_path: Path, hanging: list[Hanging]) -> None:
    async with agent(tmp_path) as a:
        await opened(a)
        a.ask(Ask(ReadViews()))
        (tmp_path / "default").rename(tmp_path / "elsewhere")
        assert isinstance(await answer(a, Beat(lease(0))), Away)
        (tmp_path / "elsewhere").rename(tmp_path / "default")
        since = a.agent.status()["store"]["away_since"]
        assert since is not None
        hanging[0].free.set()
        await until(lambda: answers(a, ReadViews))
        assert await answer(a, Beat(lease(0))) == Done()
        assert a.agent.status()["store"]["away_since"] is None
