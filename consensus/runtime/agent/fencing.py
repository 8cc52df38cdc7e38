"""Has a silent member killed, so that its death is proven: by its supervisor, or by a command of the user.

``ftlib run`` supervises its workers, and says so in their facts; the agent asks its endpoint over HTTP. For members that
something else started there is ``fence_command``. It runs beside the agent, without a shell, and finds the member in its
environment: ``FTLIB_FENCE_ID``, ``_ADDRESS`` (host:port), ``_HOST``, ``_PORT``, ``_PID``, ``_NAME``, ``_JOB`` and ``_REASON``.
Exit code 0 asserts that the process is gone: if that is false, two views may be active at a time. Any other end proves nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shlex
import signal
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ...config import Config
from ...member import Member, format_address

_PAUSE = 5.0
"""Seconds from the end of a command that proved nothing to the next try."""

AskSupervisor = Callable[[str, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Asks a supervisor; raises OSError if it does not answer."""


class Fencing:
    """One agent's fence requests; for each member one of each kind at a time.

    Calls ``proven(member_id, detail, age)`` if the member is certainly gone, and was so ``age`` seconds ago.
    """

    def __init__(
        self,
        config: Config,
        ask: AskSupervisor,
        proven: Callable[[str, str, float], None],
        note: Callable[[int, str, str], None],
    ) -> None:
        self._config = config
        self._ask = ask
        self._proven = proven
        self._note = note
        self._asked: set[str] = set()
        self._ordered: dict[str, float] = {}
        """By member, while its command runs or has just ended: the earliest time of the next try."""
        self._told: dict[str, None] = {}
        """Members whose failing command was logged, the latest failure last. At most as many as a view may have."""

    async def ask(self, member: Member, reason: str) -> None:
        """Ask the supervisor of ``member``, if it has one, to kill it."""
        supervisor = member.fact("supervisor")
        if supervisor is None or member.id in self._asked:
            return
        self._asked.add(member.id)
        request = {"job": self._config.job, "member": member.id, "pid": member.fact("pid"), "reason": reason}
        try:
            answer = await self._ask(supervisor, request)
        except OSError as error:
            self._note(logging.WARNING, "fence", f"the supervisor {supervisor} of {member} did not answer: {error}")
            return
        finally:
            self._asked.discard(member.id)
        if answer.get("reaped") is True:
            self._proven(member.id, "killed and reaped by its supervisor", _age(answer))
        else:
            self._note(logging.WARNING, "fence", f"the supervisor {supervisor} did not reap {member}: {answer}")

    async def order(self, member: Member, reason: str) -> None:
        """Run ``fence_command`` for ``member``; while it proves nothing, at most every ``_PAUSE`` seconds."""
        now = asyncio.get_running_loop().time()
        if not self._config.fence_command or now < self._ordered.get(member.id, 0.0):
            return
        self._ordered = {each: until for each, until in self._ordered.items() if now < until}
        self._ordered[member.id] = float("inf")
        try:
            failure = await self._run(member, reason)
        finally:
            self._ordered[member.id] = asyncio.get_running_loop().time() + _PAUSE
        if failure is None:
            self._proven(member.id, "fence_command says that it is gone", 0.0)
        elif self._first(member.id):
            text = f"fence_command {failure} for {member}: not taken for dead; further tries are not mentioned"
            self._note(logging.WARNING, "fence", text)

    def _first(self, member_id: str) -> bool:
        """Whether to log this failure: the first one for the member, as far as is remembered."""
        first = member_id not in self._told
        self._told.pop(member_id, None)
        self._told[member_id] = None
        while len(self._told) > self._config.max_members:
            del self._told[next(iter(self._told))]
        return first

    async def _run(self, member: Member, reason: str) -> str | None:
        """What went wrong; None for exit code 0 in time."""
        try:
            process = await asyncio.create_subprocess_exec(
                *shlex.split(self._config.fence_command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,  # its messages go to stderr, which is this process's
                env={**os.environ, **self._facts(member, reason)},
                start_new_session=True,
            )
        except OSError as error:
            return f"could not be started ({error})"
        try:
            async with asyncio.timeout(self._config.fence_timeout):
                code = await process.wait()
        except (TimeoutError, asyncio.CancelledError) as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with all processes that it started
            await process.wait()
            if isinstance(error, TimeoutError):
                return f"did not end within fence_timeout={self._config.fence_timeout:g} s and was killed"
            raise
        return None if code == 0 else f"ended with {code}"

    def _facts(self, member: Member, reason: str) -> dict[str, str]:
        facts = {
            "ID": member.id,
            "ADDRESS": format_address(member.address),
            "HOST": member.host,
            "PORT": str(member.port),
            "PID": member.fact("pid") or "",
            "NAME": member.fact("name") or "",
            "JOB": self._config.job,
            "REASON": reason,
        }
        return {f"FTLIB_FENCE_{key}": value.replace("\0", "") for key, value in facts.items()}


def _age(answer: Mapping[str, Any]) -> float:
    """Seconds for which the process was gone when its supervisor answered; 0 if the answer does not say so."""
    found = answer.get("gone_ms")
    return found / 1000.0 if type(found) is int and found > 0 else 0.0
