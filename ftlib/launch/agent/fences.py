"""The fence endpoint of an agent: it listens from the founding on, and costs nothing until a worker or a peer comes.

The code that answers takes a fifth of a second to import, so it is imported when the first connection waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..processes.process import Fate
from ..processes.sockets import address_of, listen

if TYPE_CHECKING:
    from consensus import KeyRing


class Fences:
    """Listens at ``address``, and answers as ``endpoint`` says."""

    def __init__(
        self,
        job: str,
        keys: tuple[Sequence[str], Path | None],
        host: str,
        fence: Callable[[int, str], Awaitable[tuple[Fate, float]]],
        announced: Callable[[int, str, str, int], bool],
        again: Callable[[int], bool],
        condemned: Callable[[int], bool],
    ) -> None:
        """``keys``: the secrets, and the file that has them. ``fence``: kill the worker with this pid, for this reason.

        ``announced``: pid, member, address, epoch. ``again``: the worker with this pid is to be started again. ``condemned``:
        whether the worker with this pid was fenced itself, or has ended.
        """
        self._loop = asyncio.get_running_loop()
        self._job = job
        self._keys = keys
        self._fence, self._announced, self._again = fence, announced, again
        self._condemned = condemned
        self._members: dict[int, str] = {}  # by pid: the newest member id
        self._past: set[str] = set()
        self._ring: KeyRing | None = None
        self._listener = listen(0, host)
        self.address = address_of(host, self._listener.getsockname()[1])
        """``FTLIB_SUPERVISOR`` of the workers here."""
        self._loop.add_reader(self._listener.fileno(), self._wanted)
        self._serving: asyncio.Task[Any] | None = None

    @property
    def job(self) -> str:
        """The name that callers must know."""
        return self._job

    @property
    def ring(self) -> KeyRing:
        """The keys, as they are now; a caller must have one of them."""
        if self._ring is None:
            from consensus import KeyRing  # noqa: PLC0415 - brings cryptography

            self._ring = KeyRing(*self._keys)
        self._ring.follow()
        return self._ring

    async def fence(self, pid: int, member: str, reason: str, by: str) -> tuple[Fate, float]:
        """Kill an accused worker and wait until it is reaped; also for how many seconds it has been gone.

        Of two that find each other silent one dies: the word of a worker of this host that was fenced itself does not count.
        """
        if member in self._past:
            return Fate.GONE, 0.0  # the process lives on as another member
        if any(self._condemned(each) for each, name in self._members.items() if name == by and each != pid):
            return Fate.SPARED, 0.0
        return await self._fence(pid, reason)

    def announced(self, pid: int, member: str, address: str, epoch: int) -> bool:
        """Pass on what a worker announces; False for a pid that is no worker here."""
        if self._announced(pid, member, address, epoch):
            before = self._members.get(pid, member)
            if before != member:
                self._past.add(before)
            self._members[pid] = member
            return True
        return False

    def wanted_again(self, pid: int) -> bool:
        """Have a worker started again once it has ended well; False for a pid that is no worker here, or a fixed launch."""
        return self._again(pid)

    def awaited(self, pid: int) -> bool | None:
        """None: an agent does not know of the workers of other hosts."""
        del pid
        return None

    def report(self) -> dict[str, Any]:
        """Return the body of ``GET /workers``."""
        return {"workers": [{"pid": pid, "member": member} for pid, member in self._members.items()]}

    def _wanted(self) -> None:
        self._loop.remove_reader(self._listener.fileno())
        from ..processes.endpoint import serve  # noqa: PLC0415 - brings aiohttp

        self._serving = self._loop.create_task(serve(self, self._listener))
