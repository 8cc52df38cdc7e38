"""Looks at the introducers: which process listens there, of which job, with which protocol version and secret.

The core founds and joins by the messages that arrive; silence alone tells it too little. So until there is a view, a member
that would found also looks at the introducers; and a member whose introducers are names looks them up again, since they may
soon resolve to other addresses.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from ...config import PROTOCOL_VERSION, Config
from ...errors import JoinError
from ...member import Address, Member, format_address
from ...protocol.state.inputs import Introduced, Listening, Resolved
from ...storage.thread_pool import on_daemon
from ...wire.keys import KeyRing
from ..net.liveness_connection import Doubt, Identity, ask
from ..net.names import Introducers, lookup
from .driver import Driver

_LOOK_TIMEOUT = 1.0
"""Seconds that a process at an address has to say who it is."""

_NOBODY = "nobody listens there"

_LOOKUP_EVERY = 0.5
"""Seconds between two look-ups of introducers that are names, until there is a view: other members come up meanwhile."""

_WARN_AFTER = 3.0
"""Seconds after which a member that is not admitted logs what keeps it out."""

_DOUBTS = {
    Doubt.ASKS: "the members there have a secret, this one has none: give it the same secret or secret_file",
    Doubt.DIFFERS: "the members there use another secret: give all of them the same secret or secret_file",
    Doubt.LACKS: "the member there has no secret, this one has: give all of them the same secret or secret_file",
    Doubt.FORGED: "something listens there that does not know the secret",
}
"""What a refusal means for a joiner."""

_BARRING = frozenset({Doubt.ASKS, Doubt.DIFFERS, Doubt.LACKS})
"""If another member with other secrets answers, this one may have restarted with an old secret: it must not found."""

_UNSURE = "this member, though first, founds nothing while an introducer with other secrets may know the cluster"


class Discovery:
    """Looks, and reports to the driver's core. Runs on the agent's loop; ``attend`` and ``follow_names`` run as its tasks."""

    def __init__(
        self,
        config: Config,
        member: Member,
        introducers: Introducers,
        driver: Driver,
        ring: KeyRing | None,
        held: Callable[[], bool],
    ) -> None:
        """``introducers``: including this member's own address."""
        self._config = config
        self._member = member
        self._driver = driver
        self._ring = ring
        self._held = held
        self.introducers = list(introducers.addresses)
        """Addresses where other members may be found, even if they advertise others."""
        self._listed = introducers
        self._found: list[Address] = []
        self._attended: set[Address] = set()
        self._doubted: set[Address] = set()

    async def find(self, addresses: Iterable[Address]) -> tuple[Address, ...]:
        """The ``addresses`` where another member of this job and version answers within about a second."""
        wanted = list(addresses)
        answers = await asyncio.gather(*(self._look(address) for address in wanted))
        found = tuple(
            address
            for address, answer in zip(wanted, answers, strict=True)
            if isinstance(answer, Identity)
            and not answer.doubt
            and answer.job == self._config.job
            and answer.version == PROTOCOL_VERSION
            and answer.member_id != self._member.id
        )
        if found:
            self.add(found)
        return found

    def add(self, addresses: tuple[Address, ...]) -> None:
        """Make the core ask at ``addresses``, too."""
        self._found += [address for address in addresses if address not in self._found]
        self.introducers += [address for address in addresses if address not in self.introducers]
        self._driver.handle(Introduced(addresses))

    async def attend(self) -> None:
        """If this member is the first introducer: report to the core which others listen, until it knows a cluster."""
        named = Introducers(self._config.introducers).named  # then another may soon be first
        while self._driver.core.known_view is None:
            others = [address for address in self.introducers if address != self._member.address]
            if self.introducers[:1] == [self._member.address] and others:
                await asyncio.gather(*(self._attend_to(address) for address in others))
            elif not named:
                return
            await asyncio.sleep(_LOOKUP_EVERY)

    async def _attend_to(self, address: Address) -> None:
        if address not in self._attended:  # until the first answer assume that a process listens
            self._attended.add(address)
            self._listens(address, True)
        accepted = asyncio.Event()

        def connected() -> None:
            accepted.set()
            self._listens(address, True)  # before it answers: perhaps it never does

        answer = await self._look(address, connected)
        if isinstance(answer, str):
            if not accepted.is_set():  # nobody listens, or the host is away
                self._listens(address, False)
                if answer == _NOBODY:
                    self._doubt(address, False)
            return
        silent = answer is not None and answer.doubt not in (None, Doubt.LACKS)  # about its job: the secrets differ
        if answer is None or (not silent and answer.job != self._config.job):
            self._listens(address, False)
            self._doubt(address, False)
        else:
            self._doubt(address, answer.doubt in _BARRING)

    def _listens(self, address: Address, listening: bool) -> None:
        self._driver.handle(Listening(address, listening))

    def _doubt(self, address: Address, doubted: bool) -> None:
        """Note whether different secrets hide from us a cluster that the member at ``address`` may know."""
        before = bool(self._doubted)
        (self._doubted.add if doubted else self._doubted.discard)(address)
        if bool(self._doubted) != before:
            self._report_introducers()

    def _report_introducers(self) -> None:
        """Report to the core the list of introducers, and whether this member may found."""
        listed, size = self._listed, self._config.initial_size
        founder, refused = listed.founder(self._member.address, size), listed.refused(size)
        if founder and self._doubted:
            founder, refused = False, _UNSURE
        self._driver.handle(Resolved(listed.addresses, founder, refused))

    async def follow_names(self) -> None:
        """Report to the core the addresses of the introducers' names, until it has a view."""
        if not Introducers(self._config.introducers).named:
            return
        config, driver = self._config, self._driver
        while driver.core.active_view is None:
            await asyncio.sleep(_LOOKUP_EVERY)
            try:
                found = replace(await on_daemon(lookup, config.introducers), met=self._listed.met)
            except OSError:  # no thread for it now: the next look-up may have one
                continue
            if found == self._listed or driver.core.active_view is not None or self._held():
                continue
            self._listed = found
            self.introducers = list(dict.fromkeys((*found.addresses, *self._found)))
            self._doubted.intersection_update(self.introducers)
            founder = found.founder(self._member.address, config.initial_size)
            addresses = ", ".join(map(format_address, found.addresses))
            driver.note(logging.INFO, "names", f"introducers are now {addresses}{'; this is the first' if founder else ''}")
            self._report_introducers()

    async def explain(self, error: JoinError) -> JoinError:
        """``error`` with a description of what answers at each introducer."""
        found = await self._look_around()
        remedy = ""
        first = next(iter(found), None)
        if first is not None and first == self.introducers[0] and found[first] == _NOBODY:
            remedy = f"; start the worker that founds the job with bind={format_address(first)}, the first introducer"
        return JoinError(f"{error} ({self._describe_all(found)}){remedy}") if found else error

    async def warn(self) -> None:
        """Log once, long before ``join_timeout``, a problem that waiting does not solve. It does not end the search: an answer
        without proof may come from anybody.
        """
        await asyncio.sleep(min(_WARN_AFTER, self._config.join_timeout / 2))
        if self._driver.core.known_view is not None:
            return
        found = {address: answer for address, answer in (await self._look_around()).items() if self._differs(answer)}
        if found:
            self._driver.note(logging.WARNING, "join", f"not let in so far ({self._describe_all(found)})")

    async def _look_around(self) -> dict[Address, Identity | str | None]:
        """The answers at the first introducers (see ``_look``)."""
        wanted = [address for address in self.introducers if address != self._member.address][:8]
        return dict(zip(wanted, await asyncio.gather(*map(self._look, wanted)), strict=True))

    async def _look(self, address: Address, connected: Callable[[], None] = lambda: None) -> Identity | str | None:
        """The agent that listens at ``address``; None: no agent; a text: why nobody answers. ``connected``: see ``ask``."""
        try:
            async with asyncio.timeout(_LOOK_TIMEOUT):
                answer, sock = await ask(address, ring=self._ring, connected=connected)
        except TimeoutError:
            return f"no answer within {_LOOK_TIMEOUT:g} s"
        except ConnectionRefusedError:
            return _NOBODY
        except OSError as error:
            return error.strerror or str(error)
        sock.close()
        return answer

    def _differs(self, answer: Identity | str | None) -> bool:
        """Whether the answer is from a member of another job, version or secret."""
        if not isinstance(answer, Identity):
            return False
        return bool(answer.doubt) or (answer.version, answer.job) != (PROTOCOL_VERSION, self._config.job)

    def _describe_all(self, found: Mapping[Address, Identity | str | None]) -> str:
        """The descriptions of all answers; addresses with the same description together."""
        alike: dict[str, list[str]] = {}
        for address, answer in found.items():
            alike.setdefault(self._describe(answer), []).append(format_address(address))
        return "; ".join(f"{', '.join(addresses)}: {text}" for text, addresses in alike.items())

    def _describe(self, answer: Identity | str | None) -> str:
        if isinstance(answer, str):
            return answer
        if answer is None:
            return "something else listens there"
        if answer.doubt:
            return _DOUBTS[answer.doubt]
        if answer.version != PROTOCOL_VERSION:
            return f"speaks protocol version {answer.version}, this is {PROTOCOL_VERSION}"
        if answer.job != self._config.job:
            return f"a member of job {answer.job!r}, this is {self._config.job!r}"
        return "a member of this job"
