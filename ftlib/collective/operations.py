"""One operation on a stream: a send or a receive that somebody waits for, and a message that arrives for one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from consensus import Member

from ..common.devices import HOST, Event, device_at, place_of
from ..links.errors import CollectiveError, CollectiveTimeout, Mismatch
from ..links.wire import Cursor
from .devices.carriers import await_event
from .frames import NAMES, Incoming, Sort, header_of
from .values import CARRIED, Classes, Leaf, Message, Shape, decode, marks, memories, place_for, placed, shape_of
from .works import Outcome, Patience

Handle = Callable[[list[Any], Message], object]
"""Takes a message, of which it gets the fields as well."""


class Stream(Protocol):
    """What an operation asks of its lane."""

    group: str
    peer: Member

    @property
    def limit(self) -> int:
        """Bytes of the largest message that is accepted."""
        ...

    @property
    def place(self) -> str:
        """The device on which tensors arrive that were on one; ``HOST`` if they come through host memory."""
        ...

    def waits_for(self) -> str:
        """Whom an operation waits for, and since when that one was last heard of."""
        ...

    def help(self, ready: Callable[[], bool], deadline: float) -> None:
        """Read in this thread."""

    def withdraw(self, receive: Receive) -> None:
        """Take a receive back."""

    def begins(self, arrival: Arrival) -> Receive | None:
        """A message begins to arrive."""
        ...

    def ends(self) -> Receive | None:
        """It is complete."""
        ...

    def fails(self, error: BaseException) -> None:
        """The link has ended."""

    def end(self, error: CollectiveError) -> None:
        """End it: what comes over it cannot be used."""

    def ask(self, arrival: Standing) -> None:
        """Give it the next message."""

    def fetch(self, cargo: list[Leaf], after: list[Event], done: Callable[[CollectiveError | None], None]) -> None:
        """Fill the tensors that come beside the link."""


class Sent(Patience):
    """Of a send: it waits for the peer to take the bytes."""

    def __init__(self, lane: Stream, operation: str, outcome: Outcome) -> None:
        self._lane, self._operation, self.outcome = lane, operation, outcome
        self._began = time.monotonic()

    def give_up(self) -> None:
        """See ``Patience``. What is queued stays so: half a message would end the stream."""
        self.outcome.settle(error=self.late())

    def late(self) -> CollectiveTimeout:
        """See ``Patience``."""
        text = f"not ended in {time.monotonic() - self._began:.3g} s: {self._lane.waits_for()}"
        return CollectiveTimeout(text, peer=self._lane.peer).about(self._lane.group, self._operation)


class Receive(Sent):
    """One receive: what it accepts, and where to."""

    def __init__(self, lane: Stream, operation: str, sort: Sort, classes: Classes | None, into: Leaf = None) -> None:
        super().__init__(lane, operation, Outcome())
        self.operation = operation
        self._sort = sort
        self._classes = classes
        self._here = False
        self._into = into
        self._shape: Shape = shape_of(into) if sort is Sort.TENSOR else []
        self.after = marks([into]) if self._shape and self._shape[2] else []
        """What was enqueued before this call on the device of ``into``."""
        self.expected = b""
        """The header of a message that goes to ``views`` as it is: whoever finds it need not read it. Empty if none does."""
        self.views: list[memoryview] = []
        if self._shape and not self._shape[2]:
            self.expected = header_of(sort, [], [self._shape], b"")
            self.views = place_for(into, self._shape)

    def help(self, ready: Callable[[], bool], deadline: float) -> None:
        """See ``Patience``. What comes beside the link is not for this thread to wait for."""
        self._lane.help(lambda: self._here or ready(), deadline)

    def arrived(self) -> None:
        """Its message is complete, as far as it comes over the link."""
        self._here = True

    def give_up(self) -> None:
        """See ``Patience``."""
        self._lane.withdraw(self)

    def memory(self, frame: Incoming) -> Leaf:
        """The program's own memory, if the message goes there as it is. Mismatch if it is not what was asked for."""
        self._check(frame)
        if self._into is None or not frame.shapes:
            return None
        there = self._lane.place if frame.shapes[0][2] == CARRIED else HOST
        here = place_of(self._into) if self._shape[2] else HOST
        return self._into if here == there else None

    def finish(self, arrival: Arrival) -> Any:
        """What the program gets: a value, or the tensor that was given."""
        if arrival.expected:
            return self._into
        try:
            frame, message = arrival.complete()
            self._check(frame)
            if frame.sort is Sort.BROADCAST and not message.tree:
                raise Mismatch("its value could not be sent here, as the source was told; others may have it")
            if self._into is None:
                leaves = [placed(leaf, shape) for leaf, shape in zip(message.leaves, message.shapes, strict=True)]
                return decode(message.tree, leaves, self._classes) if self._classes else leaves[0]
            if message.leaves[0] is not self._into:
                _copy(self._into, message.leaves[0])
        except CollectiveError as error:
            raise type(error)(str(error), peer=self._lane.peer).about(self._lane.group, self.operation) from None
        return self._into

    def _check(self, frame: Incoming) -> None:
        if frame.sort is not self._sort:
            sent = NAMES.get(frame.sort, frame.sort.name)
            raise Mismatch(f"the peer called {sent}: the operations of both sides must pair up, in the same order")
        if self._shape and [_bare(shape) for shape in frame.shapes] != [_bare(self._shape)]:
            sent = ", ".join(map(_told, frame.shapes))
            raise Mismatch(f"{_told(self._shape)} was given, and the peer sent {sent}: use equal dtypes and shapes")


class Arrival:
    """One message that the link was asked for: its callbacks, and what came."""

    def __init__(self, lane: Stream) -> None:
        self._lane = lane
        self._frame: Incoming | None = None
        self.expected = False
        """True if this is just what its receive expects, whose memory is filled."""
        self._whose: Receive | None = None
        """The receive whose own memory is filled, until all is here. It holds this then, and tensors are many: no circle."""
        self._error: CollectiveError | None = None
        self._after: list[Event] = []
        self._beside: Outcome | None = None
        """Ends when the tensors are here that do not come over the link; None if there are none."""

    def place(self, header: bytes) -> list[memoryview] | None:
        """The memory for a message with this header; None: it is thrown away."""
        receive = self._lane.begins(self)
        if receive is not None and header == receive.expected:
            self._whose, self.expected = receive, True
            return receive.views
        try:
            frame = self._frame = Incoming.of(header)
            self._after = [] if receive is None else receive.after
            try:
                into = None if receive is None else receive.memory(frame)
                self._whose = None if into is None else receive
                return frame.room(self._lane.limit, into, self._lane.place)
            except Mismatch as error:
                self._error = error
                if frame.carried:  # it comes all the same
                    frame.room(self._lane.limit, None, self._lane.place)
        except Mismatch as error:
            self._error = error
        except Exception as error:  # noqa: BLE001 - a hostile header may raise anything
            self._error = Mismatch(f"a header that cannot be read: {error!r:.200}")
        return None

    def done(self, header: bytes | None, error: BaseException | None) -> None:  # noqa: ARG002 - as links call it
        """All is there, or the link has ended."""
        if error is not None and self._error is None:
            self._lane.fails(error)
            return
        receive = self._lane.ends()
        if self._whose is not None and self._whose is not receive:
            self._leave()
        self._whose = None
        cargo = [] if self._frame is None else self._frame.cargo()
        if cargo:
            self._beside = Outcome()
            self._lane.fetch(cargo, self._after, self._fetched)
        if receive is not None:
            self.give(receive)

    def moved(self) -> tuple[Sequence[memoryview], Sequence[memoryview]] | None:
        """The receive was taken back before all is here: its memory, and what is filled instead. On the thread that reads."""
        whose, self._whose = self._whose, None
        if whose is None:  # it has memory of its own already
            return None
        expected, self.expected = self.expected, False
        frame = self._frame = Incoming.of(whose.expected) if expected or self._frame is None else self._frame
        before = whose.views if expected else memories(frame.leaves, frame.shapes)
        try:
            return before, frame.room(self._lane.limit, None, self._lane.place)
        except Exception as error:  # noqa: BLE001 - no memory, say
            self._error = Mismatch(f"there is no room for a message whose receive was taken back: {error}")
            return None

    def _leave(self) -> None:
        """The receive was taken back as all was there."""
        if (places := self.moved()) is not None:
            there = Cursor(places[1])
            for view in places[0]:
                there.put(view.cast("B"))

    def give(self, receive: Receive) -> None:
        """It is for ``receive``, which ends with it, as soon as all of it is here."""
        receive.arrived()
        if self._beside is None:
            receive.outcome.settle(self)
        else:
            self._beside.on_end(lambda: receive.outcome.settle(self))

    def _fetched(self, error: CollectiveError | None) -> None:
        self._error = self._error or error
        assert self._beside is not None  # who fetches has made it
        self._beside.settle()

    def complete(self) -> tuple[Incoming, Message]:
        """What came, which is given away. Mismatch if it was thrown away."""
        if self._error is not None or self._frame is None:
            raise self._error or Mismatch("the message was thrown away")
        return self._frame, self._frame.message()


class Standing:
    """Gives every message of a channel to ``handle``, one after the other, in the thread that reads: nobody waits for one."""

    def __init__(self, lane: Stream, handle: Handle, ended: Callable[[CollectiveError], None]) -> None:
        """``ended`` is called once, at the lane's end."""
        self._lane = lane
        self._handle = handle
        self.ended = ended
        self._frame: Incoming | Mismatch | None = None

    def place(self, header: bytes) -> list[memoryview] | None:
        """See ``Arrival``."""
        try:
            frame = self._frame = Incoming.of(header)
            return frame.room(self._lane.limit)
        except Mismatch as error:
            self._frame = error
        return None

    def done(self, header: bytes | None, error: BaseException | None) -> None:  # noqa: ARG002 - as links call it
        """See ``Arrival``."""
        frame, self._frame = self._frame, None
        if error is not None:
            self._lane.fails(error)
            return
        try:
            if not isinstance(frame, Incoming):
                raise frame or Mismatch("the message was thrown away")
            if frame.sort is Sort.CHANNEL:
                self._handle(frame.fields, frame.message())
        except Exception as why:  # noqa: BLE001 - a hostile message may raise anything, and the stream must not hang
            self._lane.end(Mismatch(f"a message that no channel sends: {why}", peer=self._lane.peer))
        else:
            self._lane.ask(self)


def _bare(shape: Shape) -> Shape:
    """Without the device: a tensor may go from a GPU to a host."""
    return [*shape[:2], *shape[3:]]


def _told(shape: Shape) -> str:
    return f"{'an array' if shape[0] else 'a tensor'} of {shape[1]} {list(shape[3:])}"


def _copy(into: Leaf, leaf: Leaf) -> None:
    """On a device it is there for every stream when this returns."""
    if not hasattr(into, "copy_"):
        into[...] = leaf
    elif (place := place_of(into)) == HOST:
        into.detach().copy_(leaf)
    else:
        device = device_at(place)
        device.enqueue(lambda: into.detach().copy_(leaf), into)
        await_event(device.waited(), "the copy to the tensor that was given")
