"""An agent's session with the shared store: opens it, has requests carried out there, and watches for changes.

No other part of the agent ever waits for the store. Requests run concurrently, so that a lease is renewed while a record hangs.
The core gets every result, and decides whether to ask again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from ...config import Config, Policy
from ...errors import ConfigError, JoinError, StoreAwayError, StoreRefusedError
from ...logs import CarefulLogger
from ...member import Member
from ...protocol.state.inputs import Answered, StoreChanged
from ...storage.locate import store_at
from ...storage.store import redacted
from ...storage.store_executor import StoreExecutor
from ...storage.view_log import PREFIX
from ...store_requests import Away, Beat, ReadLeases, StoreOp, StoreReply, Withdraw
from ...wire.keys import KeyRing
from .driver import Driver
from .store_gauge import StoreGauge

_LOG = CarefulLogger()

_FIRST_PAUSE = 0.1
_LAST_PAUSE = 5.0
"""Seconds between two tries to open a store that is away, growing."""

_GOODBYE = 1.0
"""Seconds for the removal of the own lease at the end, and for closing the store."""


def session_for(
    config: Config, member: Member, ring: KeyRing | None, driver: Driver, spawn: Callable[[Coroutine[Any, Any, None]], None]
) -> StoreSession | None:
    """A session for an agent whose policy needs a store, else None."""
    return StoreSession(config, member, ring, driver, spawn) if config.policy is Policy.STORAGE else None


class StoreSession:
    """One agent's session. OPENING -> OPEN (``attend``) -> CLOSED (``close``). Runs on the agent's loop."""

    def __init__(
        self,
        config: Config,
        member: Member,
        ring: KeyRing | None,
        driver: Driver,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """Nothing is opened before ``attend``. ``spawn`` runs a coroutine on the loop until the agent ends."""
        self._config = config
        self._member = member
        self._ring = ring
        self._driver = driver
        self._spawn = spawn
        self._url = redacted(config.storage)
        self._store: StoreGauge | None = None
        self._executor: StoreExecutor | None = None
        self._tried = asyncio.Event()
        """Requests during the first try to open the store wait for its end: that takes a moment, or has a deadline."""
        self._away = ""
        self._requests: Counter[str] = Counter()
        self._unanswered: Counter[str] = Counter()
        self._under_way: set[object] = set()
        """Repeated requests that are not answered yet, and are not begun again before; see ``_repeated``."""
        self._leased = False

    def ask(self, request: StoreOp) -> None:
        """Carry out ``request``; the core gets the result."""
        name, repeated = type(request).__name__, _repeated(request)
        self._requests[name] += 1
        if self._executor is None and self._tried.is_set():
            self._answer(request, Away(self._away))
        elif repeated in self._under_way:
            # Do not replace the earlier one: a store slower than the interval between two would answer none.
            self._answer(request, Away(f"the store {self._url} has not answered the {name} before this yet"))
        else:
            if repeated is not None:
                self._under_way.add(repeated)
            self._leased = self._leased or isinstance(request, Beat)
            self._spawn(self._carry_out(request))

    async def attend(self) -> None:
        """Open the store, however long it is away, and report changes to the core. A store that refuses ends this lifetime."""
        try:
            store = self._store = StoreGauge(self._locate())
            await self._open(store)
        except (ConfigError, StoreRefusedError) as error:
            self._away = str(error)
            self._tried.set()
            self._driver.end(JoinError(str(error)))
            return
        self._executor = StoreExecutor(store, self._config, self._member, self._ring, self._warn)
        self._tried.set()
        self._driver.note(logging.INFO, "store", f"uses the store {store.url}")
        self._store_changed()
        async for _ in store.watch(PREFIX):
            self._store_changed()

    async def close(self) -> None:
        """Remove the own lease, if the store does that within about a second, and close. No request is under way by then."""
        executor, self._executor = self._executor, None
        self._away = "this member has ended"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE):
                if executor is not None and self._leased:
                    await executor.carry_out(Withdraw((self._member.id,)))
        if self._store is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GOODBYE):
                    await self._store.close()

    def status(self) -> dict[str, Any]:
        """Plain values; the URL without its password."""
        told = {"url": self._url} if self._store is None else self._store.status()
        requests = {kind: {"asked": count, "away": self._unanswered[kind]} for kind, count in sorted(self._requests.items())}
        return {**told, "open": self._executor is not None, "errands": requests}

    def _locate(self) -> Any:
        config = self._config
        return store_at(config.storage, config.job, timeout=config.storage_timeout, **config.storage_options)

    async def _open(self, store: StoreGauge) -> None:
        pause = _FIRST_PAUSE
        kinds: set[type[Exception]] = set()
        while True:
            try:
                return await store.open()
            except StoreAwayError as error:
                self._away = str(error)
            except (ConfigError, StoreRefusedError):
                raise
            except Exception as error:  # noqa: BLE001 - requests wait for the end of this try
                kind = type(error).__name__
                self._away = f"the store {self._url} cannot be opened, for a reason that no store should have: {kind}: {error}"
                if type(error) not in kinds:
                    kinds.add(type(error))
                    _LOG.exception("the store %s cannot be opened for now, for a reason that no store should have", self._url)
            self._tried.set()
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE)

    async def _carry_out(self, request: StoreOp) -> None:
        answer: StoreReply = Away(f"this {type(request).__name__} failed")
        try:
            await self._tried.wait()
            answer = Away(self._away) if self._executor is None else await self._executor.carry_out(request)
        except Exception as error:  # noqa: BLE001 - the core waits for an answer
            _LOG.exception("a request failed in a way that no store should")
            answer = Away(f"{type(error).__name__}: {error}", ambiguous=True)
        finally:
            self._under_way.discard(_repeated(request))
        self._answer(request, answer)

    def _answer(self, request: StoreOp, answer: StoreReply) -> None:
        if isinstance(answer, Away):
            self._unanswered[type(request).__name__] += 1
        self._driver.handle(Answered(request, answer))

    def _warn(self, text: str) -> None:
        self._driver.note(logging.WARNING, "store", text)

    def _store_changed(self) -> None:
        self._driver.handle(StoreChanged())


def _repeated(request: StoreOp) -> object:
    """A key that is equal for repetitions of a periodic request; None for other requests."""
    match request:
        case Beat():
            return Beat
        case ReadLeases():
            return request
        case _:
            return None
