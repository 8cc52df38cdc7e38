"""One member's shell: sockets, codec, detector and driver around a protocol core. Runs wholly on one event loop.

The HTTP side starts separately, when it is needed (see ``web``).

A packet's way: ``udp | http -> envelope -> codec -> driver -> core -> effects -> driver -> agent -> udp | http``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...border import Order
from ...config import PROTOCOL_VERSION, Config
from ...errors import CodecError, ForeignJobError, ForeignVersionError, JoinError, SealError, StoppedError
from ...member import Address, Member, format_address
from ...messages import Envelope, EvidenceKind, Message, Piece
from ...progress import Progress
from ...protocol.state.inputs import Accusation, Answered, Checked
from ...storage.thread_pool import on_daemon
from ...store_requests import Away, StoreOp
from ...wire.codec import MAX_DATAGRAM, Codec
from ...wire.envelope import Open, Sealed, Sealer
from ...wire.keys import KeyRing
from ...wire.orders import OrderReply
from ...wire.pieces import LARGEST, Pieces, cut
from ..net.liveness_connection import CHECK_TIMEOUT, LivenessConnections
from ..net.names import Endpoint, Introducers, numeric, resolve
from ..net.sockets import SocketPair
from ..net.sources import HandOver
from ..net.udp import Udp, fits
from ..net.web import Web, load
from .discovery import Discovery
from .driver import Driver
from .fencing import Fencing
from .orders import Orders
from .outage import Outage
from .ports import DrivenMachine
from .snapshot import Snapshot
from .store_session import session_for
from .traffic import Direction, Traffic
from .waiting import Waiting

if TYPE_CHECKING:
    from ..net.http import HttpServer
    from ..net.pages import MountedPages

_FOREIGNERS = 64
"""The most foreign senders that the log names, each once."""

_LOOK = 0.1
"""Seconds from the start in which a joiner usually finds its job; if it has not by then, its HTTP side starts."""

_CUT = "cut off on purpose"

_HELLO, _COOKIE = "Knock", "Ticket"
"""What status and metrics call the packets of an introduction (see ``envelope``); the names are older, and users read them."""

_RENEW_KEYS = 1.0
"""Seconds between two checks of the file with the secrets."""


@dataclass(frozen=True, slots=True)
class TrainingProcess:
    """What an agent needs of the training process, which may be another process or its own."""

    tell: Callable[[list[Snapshot | Order]], None]
    """Takes orders for the data plane, and snapshots for the callers of the consensus."""
    progress: Callable[[], Progress]
    facts: Callable[[], Awaitable[Mapping[str, Any]]]
    """``DataPlane.facts``."""
    served: Callable[[], frozenset[str]]
    """The paths that ``hand_over`` answers."""
    hand_over: HandOver
    signal: Callable[[int], None]
    """Sends a signal to the training process."""
    held: Callable[[], bool] = lambda: False
    """Whether the training process is stopped."""
    load_http: Callable[[], None] = load
    """Imports what the HTTP side needs; called on a thread."""


class Agent:
    """Carries out a core's effects (as the driver's ``Carrier``) and hands arriving messages to the core."""

    def __init__(
        self,
        config: Config,
        member: Member,
        sockets: SocketPair,
        core: DrivenMachine,
        training: TrainingProcess,
        introducers: Introducers,
        *,
        sealer: Sealer | None = None,
    ) -> None:
        """Call on the loop's thread."""
        self._config = config
        self._member = member
        self._sockets = sockets
        self._met = introducers.met
        self._resolving: set[Address] = set()
        self._ring = KeyRing.of(config)
        self._sealer: Sealer = sealer or self._sealer_of(self._ring)
        self._waiting = Waiting(config.max_members)
        self._codec = Codec(config.job, max_members=config.max_members)
        self._tasks: set[asyncio.Task[object]] = set()
        self._foreigners: set[tuple[str, str]] = set()
        self._latest: tuple[Message, tuple[bytes, ...]] | None = None
        self._pieces = Pieces()
        self._long: set[tuple[Address, tuple[bytes, ...]]] = set()
        """The packets being sent in pieces, with their address: a repetition meanwhile is not sent."""
        self._closed = False
        self._gone = asyncio.Event()
        self._started = False
        self._planned = False
        """Whether the start of the HTTP side has been planned."""
        self.traffic = Traffic()
        self._training = training
        self._outage = Outage()
        labels = {"job": config.job, "member": member.id}
        self.driver = Driver(core, self, self._tell, training.progress, training.held, labels)
        self.discovery = Discovery(config, member, introducers, self.driver, self._ring, self._silent)
        self._orders = Orders(member.id, self._shown_epoch, training.signal, self.driver.note)
        self._fencing = Fencing(config, self._ask_supervisor, self._fenced, self.driver.note)
        self._store = session_for(config, member, self._ring, self.driver, self._spawn)
        self._liveness = LivenessConnections(self._checked, self._ring, trust_refused=config.trust_refused)
        self._udp = Udp(self._datagram, self._send_failed)
        self._web = Web(training.load_http, self._make_server)
        self._pages: MountedPages | None = None

    async def start(self) -> None:
        """Listen, and start the core, which looks for its cluster."""
        self._udp.open(self._sockets.udp)
        self.driver.note(logging.INFO, "start", f"{self._member} of job {self._config.job!r} listens")
        self._started = True
        self._spawn(self._open_http())
        if self._ring is not None:
            self._spawn(self._follow_keys(self._ring))
        if self._store is not None:
            self._spawn(self._store.attend())
        self.driver.start()
        if self._met:
            self.discovery.add(self._met)
        self._spawn(self.discovery.attend())
        self._spawn(self.discovery.follow_names())
        self._spawn(self.discovery.warn())

    async def close(self) -> None:
        """End without a goodbye. New connections are refused from here on. A second caller waits for the first one."""
        self.driver.close()
        if self._closed:
            await self._gone.wait()
            return
        self._closed = True
        try:
            self._udp.close()
            await self._web.close()
            await self._liveness.close()
            others = [task for task in self._tasks if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            if self._store is not None:
                await self._store.close()
            await self._web.close_client()
            self._sockets.close()
            await asyncio.sleep(0)  # transports close their sockets one turn of the loop later
        finally:
            self._gone.set()  # cancelled or not: no second caller waits for a close that has ended

    def status(self) -> dict[str, Any]:
        """What this member believes and has sent, as plain values."""
        store = {} if self._store is None else {"store": self._store.status()}
        return {
            "job": self._config.job,
            "member": self._member.id,
            "address": format_address(self._member.address),
            "meta": self._member.shown(),
            "protocol_version": PROTOCOL_VERSION,
            "messages": self.traffic.as_dict(),
            "orders": self._orders.counts(),
            "dashboard": {} if self._pages is None else dict(self._pages.counts()),
            **store,
            **self.driver.status(),
        }

    async def report(self) -> dict[str, Any]:
        """``status`` with the facts of the layer above."""
        return {**self.status(), "ftlib": dict(await self._training.facts())}

    # Carrier: the effects that leave this process

    def send(self, address: Address, message: Message) -> None:
        """``Send``: by datagram if the packet fits one, else by HTTP; in pieces if it is too long for one message."""
        try:
            packets = self._packets(message)
        except CodecError as error:
            self.driver.note(logging.ERROR, "codec", str(error))
            self.traffic.count(Direction.DROPPED, "unencodable", 0)
            return
        if (hello := self._sealer.hello(address)) is not None:
            self._put(address, _HELLO, hello)
        kind, sealed = type(message).__name__, self._sealer.seal(packets[0], address)
        if sealed is None:
            self._waiting.add(address, message, asyncio.get_running_loop().time())
        elif len(packets) == 1:
            self._put(address, kind, sealed)
        elif (address, packets) not in self._long:
            self._long.add((address, packets))
            self._spawn(self._send_pieces(address, kind, packets))

    def ask(self, request: StoreOp) -> None:
        """``Ask``."""
        assert self._store is not None, "a policy without a store asked for one"
        if self._outage.on:
            self.driver.handle(Answered(request, Away(_CUT)))
        else:
            self._store.ask(request)

    def check(self, member: Member) -> None:
        """``Check``."""
        if self._outage.on:
            asyncio.get_running_loop().call_later(CHECK_TIMEOUT, self._checked, member.id, None, _CUT, False)
        else:
            self._liveness.check(member)

    def keep(self, members: tuple[Member, ...]) -> None:
        """``KeepConnections``."""
        self._liveness.keep(members)

    def fence(self, member: Member, reason: str, *, command: bool) -> None:
        """``Fence``."""
        self._spawn(self._fencing.ask(member, reason))
        if command and not self._outage.on:
            self._spawn(self._fencing.order(member, reason))

    def explain_join(self, error: JoinError) -> None:
        """Stop with the error and what answers at each introducer."""
        self._spawn(self._explain_join(error))

    def let_go(self) -> None:
        """Close everything: the others see a dead process."""
        self._spawn(self.close())

    # Faults on purpose

    def cut_off(self, seconds: float) -> None:
        """For so long this agent neither hears nor is heard (see ``outage``)."""
        self.driver.note(logging.WARNING, "cut", f"cut off for {seconds:g} s, on purpose")
        self._outage.begin(seconds)

    def _silent(self) -> bool:
        """Whether nobody is to be answered."""
        return self._outage.on or self._training.held()

    # What arrives

    def _datagram(self, data: bytes, source: tuple[Any, ...]) -> None:
        _, reply = self._arrived(data, format_address((source[0], source[1])), source[0], MAX_DATAGRAM)
        if reply is not None:
            self.traffic.count(Direction.SENT, _COOKIE, len(reply))
            self._udp.reply(reply, source)

    def _posted(self, data: bytes, source: str) -> bool:
        return self._arrived(data, source, source, LARGEST)[0]

    def _arrived(self, data: bytes, source: str, host: str, limit: int) -> tuple[bool, bytes | None]:
        """Handle a packet. Returns whether a member sent it, and the bytes to answer to its source.

        ``host``: the throttle counts by host, since a sender can change its port at will.
        """
        if self._closed or not self._started or self._silent():
            return False, None
        try:
            opened = self._sealer.unseal(data, host)
            if opened.packet is None:
                self.traffic.count(Direction.RECEIVED, _HELLO if opened.reply else _COOKIE, len(data))
                if opened.introduced is not None:
                    self._release(opened.introduced)
                return False, opened.reply  # it may be a replay
            envelope = self._codec.decode(opened.packet, limit=limit)
            self.traffic.count(Direction.RECEIVED, type(envelope.message).__name__, len(data))
            whole = self._put_together(envelope)
        except CodecError as error:
            self._refused(error, source, len(data))
            return False, None
        if whole is not None and whole.sender != self._member.id:
            self.driver.receive(whole)
        return True, None

    def _put_together(self, envelope: Envelope) -> Envelope | None:
        """The envelope itself, or the one that a piece completes; None while pieces are missing."""
        if not isinstance(envelope.message, Piece):
            return envelope
        packet = self._pieces.add(envelope.sender, envelope.message, asyncio.get_running_loop().time())
        if packet is None:
            return None
        whole = self._codec.decode(packet)
        if isinstance(whole.message, Piece) or whole.sender != envelope.sender:
            raise CodecError("pieces of another sender's packet, or of a piece")
        self.traffic.count(Direction.RECEIVED, type(whole.message).__name__, 0)
        return whole

    def _release(self, address: Address) -> None:
        """Send the messages that have waited for an introduction to ``address``."""
        for message in self._waiting.take(address, asyncio.get_running_loop().time()):
            self.send(address, message)

    def _refused(self, error: CodecError, source: str, size: int) -> None:
        """Nonsense from the network is counted and dropped; a foreign job or version is also named, once a sender."""
        if not isinstance(error, (ForeignJobError, ForeignVersionError)):
            self.traffic.count(Direction.DROPPED, error.kind if isinstance(error, SealError) else "malformed", size)
            return
        self.traffic.count(Direction.DROPPED, "foreign", size)
        key = (source, str(error))
        if key not in self._foreigners and len(self._foreigners) < _FOREIGNERS:
            self._foreigners.add(key)
            mine = f"job {self._config.job!r}, protocol version {PROTOCOL_VERSION}"
            self.driver.note(logging.WARNING, "foreign", f"ignored messages from {source}: {error}; this is {mine}")

    def _checked(self, member_id: str, alive: bool | None, detail: str, listens: bool) -> None:
        if self._closed:
            return
        if self._outage.on:  # asked before, or by a connection that is no packet of this agent's
            alive, detail, listens = None, _CUT, False
        self.driver.handle(Checked(member_id, alive, detail, listens))

    def _send_failed(self, _error: OSError | None) -> None:
        self.traffic.count(Direction.DROPPED, "unsendable", 0)

    # The long ways

    async def _open_http(self) -> None:
        asyncio.get_running_loop().call_later(_LOOK, self._plan_http)
        try:
            await self._web.open(self._sockets.tcp)
        except Exception as error:  # noqa: BLE001 - half an agent is useless
            self.driver.end(StoppedError(f"the agent cannot answer HTTP: {type(error).__name__}: {error}"))

    def _tell(self, orders: list[Snapshot | Order]) -> None:
        self._training.tell(orders)
        if not self._planned and self.driver.core.known_view is not None:
            self._plan_http()

    def _plan_http(self) -> None:
        """Decide once when the HTTP side starts: a joiner first needs only datagrams and its own requests."""
        if not self._planned:
            self._planned = True
            known = self.driver.core.known_view
            if known is None or self._member.id in known:
                self._web.hurry()
            else:
                self._web.spare()

    def _make_server(self) -> HttpServer:
        from ..net.authenticator import Authenticator  # noqa: PLC0415 - see ``web``
        from ..net.http import HttpServer  # noqa: PLC0415

        training, limit = self._training, LARGEST
        self._pages = self._make_pages()
        return HttpServer(
            Authenticator(self._ring, self._member, self._config.job),
            self._posted,
            self._sealer,
            self.report,
            training.served,
            training.hand_over,
            self._take_order,
            pages=self._pages,
            held=self._silent,
            limit=limit,
        )

    def _make_pages(self) -> MountedPages | None:
        """None without a secret: nobody could show then that it may enter."""
        from ..net.pages import Mount, MountedPages  # noqa: PLC0415 - see ``web``

        config, ring = self._config, self._ring
        if not config.pages or ring is None:
            return None
        mount = Mount(self._member.address, config.job, ring, config.remote_orders, self.report, self._place)
        return MountedPages(config.pages, mount)

    def _place(self) -> tuple[int, int]:
        """The epochs of the view that acts, and of the newest one that is known."""
        known = self.driver.core.known_view
        return self._active_epoch(), 0 if known is None else known.epoch

    def _active_epoch(self) -> int:
        active = self.driver.core.active_view
        return 0 if active is None else active.epoch

    def _shown_epoch(self) -> int:
        """The epoch of the view whose members ``status`` shows: whoever orders has seen that one, active or not yet."""
        shown = self.driver.core.view
        return 0 if shown is None else shown.epoch

    @property
    def ordered(self) -> str:
        """What was ordered last from outside, and from where; empty until then."""
        return self._orders.latest

    def _take_order(self, query: Mapping[str, str], source: str, signed: bool) -> OrderReply:
        return self._orders.take(query, source, signed=signed)

    def _sealer_of(self, ring: KeyRing | None) -> Sealer:
        config = self._config
        if ring is None:
            return Open()
        peers = 2 * max(2048, config.max_members)

        def introduces(address: Address) -> bool:
            return address in self.discovery.introducers

        return Sealed(ring, config.job, self._member.address, known_as=introduces, peers=peers)

    async def _follow_keys(self, ring: KeyRing) -> None:
        """Follow the file with the secrets, one check at a time and on a thread: its file system may hang."""
        while not self._closed:
            with contextlib.suppress(OSError):  # no thread for it now: the next check may have one
                if (line := await on_daemon(ring.renew)) is not None:
                    self.driver.note(logging.WARNING, "keys", line)
            await asyncio.sleep(_RENEW_KEYS)

    def _packets(self, message: Message) -> tuple[bytes, ...]:
        """The packet for ``message``, or the packets of its pieces; the same object sent to many members is encoded once."""
        if self._latest is None or self._latest[0] is not message:
            packet = self._encode(message)
            self._latest = message, tuple(map(self._encode, cut(packet))) or (packet,)
        return self._latest[1]

    def _encode(self, message: Message) -> bytes:
        return self._codec.encode(Envelope(self._config.job, self._member.id, self._member.address, message))

    def _put(self, address: Address, kind: str, sealed: bytes) -> None:
        if self._outage.on:
            self.traffic.count(Direction.DROPPED, "cut", len(sealed))
            return
        endpoint = numeric(address)
        if endpoint is not None and fits(len(sealed), endpoint):
            self._send_datagram(endpoint, kind, sealed)
        elif address in self._resolving:  # one look-up of a name at a time: without a name server each takes long
            self.traffic.count(Direction.DROPPED, "unresolved", len(sealed))
        else:
            if endpoint is None:
                self._resolving.add(address)
            self._spawn(self._send_slowly(address, kind, sealed))

    def _send_datagram(self, endpoint: Endpoint, kind: str, sealed: bytes) -> None:
        self.traffic.count(Direction.SENT, kind, len(sealed))
        self._udp.send(sealed, endpoint)

    async def _send_pieces(self, address: Address, kind: str, packets: tuple[bytes, ...]) -> None:
        """Send pieces one after another, each sealed when its turn comes; after a lost piece the rest is useless."""
        self.traffic.count(Direction.SENT, kind, 0)
        try:
            for packet in packets:
                sealed = self._sealer.seal(packet, address)
                if sealed is None or not await self._send_slowly(address, Piece.__name__, sealed):
                    return
        finally:
            self._long.discard((address, packets))

    async def _send_slowly(self, address: Address, kind: str, sealed: bytes) -> bool:
        """Send to a name, or a packet too large for a datagram. Returns whether it was sent, as far as is known."""
        try:
            endpoint = await resolve(address)
        except OSError:
            self.traffic.count(Direction.DROPPED, "unresolved", len(sealed))
            return False
        finally:
            self._resolving.discard(address)
        if fits(len(sealed), endpoint):
            self._send_datagram(endpoint, kind, sealed)
            return True
        self.traffic.count(Direction.SENT, kind, len(sealed))
        if await self._web.post((endpoint.sockaddr[0], endpoint.sockaddr[1]), sealed):  # not to look the name up again
            return True
        self.traffic.count(Direction.DROPPED, "undelivered", len(sealed))
        return False

    async def _ask_supervisor(self, supervisor: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._outage.on:
            raise OSError(_CUT)
        request = {**request, "by": self._member.id}
        return await self._web.fence(supervisor, request, None if self._ring is None else self._ring.first)

    def _fenced(self, member_id: str, detail: str, age: float) -> None:
        self.driver.handle(Accusation(member_id, EvidenceKind.PROOF, detail, age))

    async def _explain_join(self, error: JoinError) -> None:
        explained = error
        try:
            explained = await self.discovery.explain(error)
        finally:  # in any case: nothing else ends this lifetime
            self.driver.stop(explained)

    def _spawn(self, coroutine: Coroutine[Any, Any, object]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.driver.note(logging.ERROR, "agent", f"{task.get_name()} failed: {type(error).__name__}: {error}")
