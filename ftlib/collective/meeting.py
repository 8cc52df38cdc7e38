"""How two members find into one stream. Either side may ask for it first, or both at once: then that of the smaller id holds.

A side that waits for a stream dials until it has one. The other side takes the stream, keeps it until its group is made, or
says that its group was closed (see ``pairing``): so nobody waits for a group that is over. A stream for a channel goes to
``services``.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from consensus import Consensus, DialError, Member, Stream

from ..links.errors import CollectiveError, GroupClosed, PeerLost, Refused, called
from ..links.link import Link
from ..links.loop import LinkLoop
from .greeting import Caller, Greeter, GreetingReply, Key, Opening, Word, hear, no_room, read
from .lane import Lane, Terms
from .pairing import Fate, Place
from .services import Services, channel_of
from .works import CALLBACKS

PATH = "/collective"
_DIAL = 10.0
"""Seconds that the peer's program has to accept streams at all, in one try: it may not have come that far."""
_PAUSES = (0.05, 0.2, 1.0, 5.0)
"""Seconds from a try that failed to the next one. A peer that lives fails a try only where its port cannot be reached, or a
connection broke: so the pauses grow, and end with the lane, whose peer is over one day.
"""
_PLACES = 1 << 14
"""Groups whose numbers are remembered once they are closed."""


@dataclass(slots=True)
class _Seat:
    """A group's place, and the newest lane of it here."""

    place: Place
    lane: Lane | None = None

    @property
    def open(self) -> bool:
        """Whether that lane is not over."""
        return self.lane is not None and self.lane.over is None

    @property
    def free(self) -> bool:
        """Whether it has no stream yet."""
        return self.open and self.lane is not None and self.lane.link is None


class Meeting:
    """All streams of a collective, from the first word to the lane that uses them. Any thread."""

    def __init__(self, consensus: Callable[[], Consensus], loop: LinkLoop, greeter: Greeter, services: Services) -> None:
        """``consensus``: the current one."""
        self._current = consensus
        self._loop = loop
        self._greeter = greeter
        self._services = services
        self._lock = threading.Lock()
        self._seats: dict[tuple[Key, str], _Seat] = {}
        self._met: dict[str, str] = {}
        """The collective of each peer with which words were exchanged: what is made from then on is counted alike at both."""
        self._unclaimed: deque[Caller] = deque()
        """Streams whose group was not made here yet, or not made again, in the order in which they came."""
        self._dialling: set[Lane] = set()
        """Lanes for which this side dials. None of them is in ``_promised``, but where the peer dials as well."""
        self._held: dict[Lane, Caller] = {}
        """Streams that came while this side, with the smaller id, was dialling."""
        self._promised: set[Lane] = set()
        """Lanes whose peer has the word: it has dialled, and was told that its stream is taken."""

    # Ends

    def closed(self, key: Key, lane: Lane) -> None:
        """A group has ended here, and this lane with it: a peer that has dialled for it hears so."""
        unused = list[Caller]()
        with self._lock:
            seat = self._seats.get((key, lane.peer.id))
            if seat is not None and seat.lane is lane:
                seat.lane = None
                unused = self._take_until(seat.place.number, key, lane.peer.id)
            held = self._held.pop(lane, None)
        if held is not None:
            self._decline(held, Word.CLOSED)
        self._bid_goodbye(unused)

    def lost(self, member_id: str, error: CollectiveError) -> None:
        """That member is over."""
        with self._lock:
            self._unclaimed = deque(each for each in self._unclaimed if each.link.peer.id != member_id)
            self._seats = {key: seat for key, seat in self._seats.items() if key[1] != member_id}
            self._met.pop(member_id, None)
        self._services.lost(member_id, self._loop.later, error)
        self._greeter.lost(member_id, error)

    def end(self, error: CollectiveError, deadline: float) -> None:
        """End everything with the members so far. Peers whose streams wait here for a group are told, before ``deadline``."""
        with self._lock:
            self._unclaimed.clear()
            self._held.clear()
            self._seats.clear()
            self._met.clear()
        self._services.end(error)
        self._greeter.end(error, deadline)

    # This side wants a stream

    def made(self, key: Key, lane: Lane) -> None:
        """A group is made (again), and ``lane`` is its part towards a peer. Nothing is dialled yet."""
        with self._lock:
            seat = self._seats.pop((key, lane.peer.id), None) or self._seat(lane.peer.id)
            self._seats[key, lane.peer.id] = seat  # the last one used is the last one
            seat.place.made()
            seat.lane = lane
            past = self._take_until(seat.place.number - 1, key, lane.peer.id)
            while len(self._seats) > _PLACES and (old := next((k for k, each in self._seats.items() if not each.open), None)):
                del self._seats[old]
        self._bid_goodbye(past)

    def connect(self, key: Key, lane: Lane, tries: int = 0) -> None:
        """Find the stream of ``lane``, if it needs one: one that waits here, or a new one. ``tries``: that have failed."""
        with self._lock:
            if not _wanted(lane) or lane in self._promised or lane in self._dialling:
                return
            seat = self._seats.get((key, lane.peer.id))
            number = seat.place.number if seat is not None and seat.lane is lane else None
            kept = (each for each in self._waiting(key, lane.peer.id) if each.opening.number == number)
            waiting = next(kept, None)
            if waiting is None:
                self._dialling.add(lane)
            else:
                self._unclaimed.remove(waiting)
                self._promised.add(lane)
        if waiting is not None:
            self._await_last_word(key, lane, waiting)
        else:
            CALLBACKS.submit(lambda: self._find_stream(key, lane, tries))

    def _seat(self, peer_id: str) -> _Seat:
        return _Seat(Place(known=self._met.get(peer_id, "")))

    def _waiting(self, key: Key, peer_id: str) -> list[Caller]:
        return [each for each in self._unclaimed if each.opening.key == key and each.link.peer.id == peer_id]

    def _bid_goodbye(self, unused: list[Caller]) -> None:
        """On threads of their own: who calls this may hold locks, for which the thread waits that writes."""
        for come in unused:
            CALLBACKS.submit(functools.partial(self._greeter.bid_goodbye, come.link))

    def _take_until(self, number: int, key: Key, peer_id: str) -> list[Caller]:
        """The streams that wait for a making up to that one, which is over here: nobody will claim them. Under the lock."""
        over = [each for each in self._waiting(key, peer_id) if each.opening.number <= number]
        for each in over:
            self._unclaimed.remove(each)
        return over

    def _find_stream(self, key: Key, lane: Lane, tries: int) -> None:
        """On a thread of its own. A stream that comes once this collective is closed is dropped: nobody waits for it."""
        link = None
        try:
            link = self._dial(lane)
            if link is not None:
                self._open(key, lane, link, tries)
        except Exception as error:  # noqa: BLE001 - who waits for the stream must hear of it, whatever it was
            other = CollectiveError(f"no stream to {called(lane.peer)}: {error}", peer=lane.peer)
            lane.end(error if isinstance(error, CollectiveError) else other)
            self._dialled(key, lane)
            if link is not None:
                self._greeter.drop(link)
        else:
            if link is None:
                self._dial_again(key, lane, tries)

    def _dial(self, lane: Lane) -> Link | None:
        """A new link; None if that may be possible later."""
        try:
            return self._greeter.begin(self._current().dial(lane.peer, PATH, timeout=_DIAL))
        except DialError as error:
            if error.gone:
                raise PeerLost(f"{called(lane.peer)} is gone: {error}", peer=lane.peer) from None
            if error.ended:
                raise GroupClosed(f"{called(lane.peer)} has closed its Collective", peer=lane.peer) from None
            return None

    def _open(self, key: Key, lane: Lane, link: Link, tries: int) -> None:
        """The first word."""
        with self._lock:
            seat = self._seats.get((key, lane.peer.id))
            number = seat.place.number if seat is not None and seat.lane is lane and _wanted(lane) else None
        if number is None:
            self._greeter.drop(link)  # nobody needs it any more, and the peer has not heard what it is for
            self._dialled(key, lane)
        else:
            self._greeter.open(link, key, number)
            hear(link, lambda fields: self._answered(key, lane, link, fields, tries))

    def _dial_again(self, key: Key, lane: Lane, tries: int) -> None:
        """In a while, unless the peer's stream is there until then."""
        if not self._dialled(key, lane) and _wanted(lane):
            self._loop.later(_PAUSES[min(tries, len(_PAUSES) - 1)], lambda: self.connect(key, lane, tries + 1))

    def _answered(self, key: Key, lane: Lane, link: Link, fields: list[Any] | None, tries: int) -> None:
        """The second word: what the peer does with our stream. None: it did not come."""
        answer = read(GreetingReply.of, fields)
        if answer is None or answer.word is Word.OTHER:
            self._greeter.drop(link)
            self._dial_again(key, lane, tries)
            return
        with self._lock:
            self._met[lane.peer.id] = answer.whose
            other = lane in self._promised or lane.link is not None
            seat = self._seats.get((key, lane.peer.id))
            if seat is not None and seat.lane is lane and answer.word is Word.TAKEN:
                seat.place.agreed(answer.number, answer.whose)
            elif seat is not None and seat.lane is lane and answer.word is Word.CLOSED:
                seat.place.closed(answer.number, answer.whose)
        if answer.word is Word.TAKEN:
            self._use(lane, link, answer.terms)
        elif answer.word is Word.CLOSED and other:
            self._greeter.drop(
                link
            )  # the peer has closed what it had dialled itself: that stream tells the end, and what came before
        else:
            self._greeter.drop(link)
            lane.end(
                _closed_by(lane.peer)
                if answer.word is Word.CLOSED
                else Refused(f"{called(lane.peer)} refuses the stream: {answer.why}", peer=lane.peer)
            )
        self._dialled(key, lane)

    def _use(self, lane: Lane, link: Link, theirs: Terms) -> None:
        """The last word on a stream that the peer has taken."""
        with self._lock:
            wanted = _wanted(lane)
            if wanted:
                self._promised.add(lane)
        if wanted:
            self._greeter.answer(link, Word.TAKEN, 0)
            self._greeter.met(link)
            attached = lane.attach(link, theirs)
            with self._lock:
                self._promised.discard(lane)
            if attached:
                return
        elif lane.over is not None:
            self._greeter.answer(link, Word.CLOSED, 0)
        self._greeter.drop(link)

    def _dialled(self, key: Key, lane: Lane) -> bool:
        """This side dials no more; what the peer has dialled meanwhile is taken, if it is needed. Returns whether it is."""
        with self._lock:
            self._dialling.discard(lane)
            held = self._held.pop(lane, None)
            take = held is not None and _wanted(lane)
            if take:
                self._promised.add(lane)
        if held is not None and take:
            self._promise(key, lane, held)
        elif held is not None:
            self._decline(held, Word.CLOSED if lane.over is not None else Word.OTHER)
        return take

    # A peer wants a stream

    def incoming(self, stream: Stream) -> None:
        """A member has dialled: on the connection thread of the consensus, so what it says is heard elsewhere."""
        try:
            link = self._greeter.begin(stream)
        except GroupClosed:
            return  # this collective was closed meanwhile; the peer hears the end of the stream
        hear(link, lambda fields: self._opened(link, fields))

    def _opened(self, link: Link, fields: list[Any] | None) -> None:
        """The first word: somebody says which group its stream is for."""
        here, peer = self._current().member, link.peer
        opening = read(Opening.of, fields)
        if opening is None:
            self._greeter.drop(link)
            return
        come = Caller(link, opening)
        if not {peer.id, here.id} <= opening.key[0]:
            self._decline(come, Word.REFUSED, "it is for other members")
            return
        if channel_of(opening.key[1]):
            self._services.come(come)
        else:
            self._for_group(come)

    def _for_group(self, come: Caller) -> None:
        link, opening, here, peer = come.link, come.opening, self._current().member, come.link.peer
        behind, over, full = None, list[Caller](), ""
        with self._lock:
            seat = self._seats.get((opening.key, peer.id)) or self._seats.setdefault(
                (opening.key, peer.id), self._seat(peer.id)
            )
            self._met[peer.id] = opening.whose
            lane = seat.lane
            fate = seat.place.judge(opening.number, opening.whose, is_open=seat.open, free=seat.free)
            if fate is Fate.KEEP and no_room(self._unclaimed, come):
                # Whoever makes the groups of these finds them closed by their numbers. What has messages is still read.
                over = [each for each in self._unclaimed if each.over and each.empty]
                self._unclaimed = deque(each for each in self._unclaimed if each not in over)
                full = no_room(self._unclaimed, come)
            holds = fate is Fate.TAKE and lane in self._dialling and here.id < peer.id
            if fate is Fate.KEEP and not full:
                self._unclaimed.append(come)
                # What the peer has the last word about, it has used before it closed it: that word is on its way.
                behind = lane if seat.free and lane not in self._promised else None
            elif lane is not None and holds:
                self._held[lane] = come
            elif lane is not None and fate is Fate.TAKE:
                self._promised.add(lane)
        for each in over:
            self._greeter.drop(each.link)
        if full:
            self._decline(come, Word.REFUSED, full)
        elif fate is Fate.KEEP:
            self._greeter.answer(link, Word.TAKEN, opening.number)
        elif fate is Fate.CLOSED:
            self._decline(come, Word.CLOSED)
        elif fate is Fate.DROP:
            self._greeter.drop(link)
        elif lane is not None and not holds:
            self._promise(opening.key, lane, come)
        if behind is not None:
            behind.end(_closed_by(peer))

    def _promise(self, key: Key, lane: Lane, come: Caller) -> None:
        with self._lock:
            seat = self._seats.get((key, lane.peer.id))
            number = 0 if seat is None else seat.place.number
        self._greeter.answer(come.link, Word.TAKEN, number)
        self._await_last_word(key, lane, come)

    def _await_last_word(self, key: Key, lane: Lane, come: Caller) -> None:
        """The peer says whether it uses its stream; if it ends before, this side looks for another one, where one is needed."""

        def last(fields: list[Any] | None) -> None:
            answer = read(GreetingReply.of, fields)
            with self._lock:
                self._promised.discard(lane)
            if answer is not None and answer.word is Word.TAKEN:
                self._greeter.met(come.link)
                if lane.attach(come.link, come.opening.terms):
                    return
            elif answer is not None:
                lane.end(_closed_by(lane.peer))
            self._greeter.drop(come.link)
            if lane.needed:
                self.connect(key, lane)

        hear(come.link, last)

    def _decline(self, come: Caller, word: Word, why: str = "") -> None:
        key = (come.opening.key, come.link.peer.id)
        with self._lock:
            seat = self._seats.get(key)
            number = 0 if seat is None else seat.place.next(is_open=seat.open)
        self._greeter.decline(come.link, word, number, why)


def _wanted(lane: Lane) -> bool:
    """Whether it still needs a stream."""
    return lane.over is None and lane.link is None


def _closed_by(peer: Member) -> GroupClosed:
    return GroupClosed(f"{called(peer)} has closed the group", peer=peer)
