"""The other end of links, in a process of its own, to be killed: ``python -m tests.collective.partner '{"bind": ...}'``.

A member of a job that takes every stream at ``/link``. The header of a message says what becomes of it: ``keep`` nothing,
``echo`` comes back, ``flood N`` is answered by N messages of as many bytes, ``sleep`` ends the reading, ``exit N`` sends N
messages and ends the program with a close of each link.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from consensus import Config, Gossip, Home, Member, Stream, format_address
from ftlib.links.link import Link
from ftlib.links.loop import LinkLoop
from tests.consensus.peer import Peer

ROOT = Path(__file__).resolve().parents[2]
PATH = "/link"


@contextlib.contextmanager
def partner(
    first: Gossip, *, prefix: Sequence[str] = (), loop: dict[str, Any] | None = None, **settings: Any
) -> Iterator[Peer]:
    """One more member of the job of ``first``."""
    own = {"introducers": [format_address(first.member.address)], "exclude_after": first.config.exclude_after}
    settings = {"job": "test", "initial_size": 1, **own, **settings}
    process = subprocess.Popen(
        [*prefix, sys.executable, "-m", "tests.collective.partner", json.dumps({"loop": loop or {}, **settings})],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    found = json.loads(process.stdout.readline())
    peer = Peer(process, Member(found["id"], found["host"], found["port"]))
    try:
        yield peer
    finally:
        peer.close()


class End:
    """Answers what comes on one link."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.memory = bytearray()
        self.listen()

    def listen(self) -> None:
        self.link.receive(self.place, self.done)

    def place(self, header: bytes) -> list[memoryview]:
        self.memory = bytearray(int(header.split()[0]))
        return [memoryview(self.memory)]

    def done(self, header: bytes | None, error: BaseException | None) -> None:
        if header is None or error is not None:
            return
        _, order, *rest = header.split()
        memory = memoryview(self.memory)
        match order:
            case b"echo":
                self.send(memory)
            case b"flood" | b"exit":
                for _ in range(int(rest[0])):
                    self.send(memory)
        if order == b"exit":
            threading.Thread(target=self.leave).start()
        elif order != b"sleep":
            self.listen()

    def send(self, memory: memoryview) -> None:
        self.link.send(b"%d" % len(memory), [memory], lambda error: None)

    def leave(self) -> None:
        self.link.close(30.0)
        os._exit(0)


def main() -> None:
    """The child's side."""
    settings = json.loads(sys.argv[1])
    loop = LinkLoop(**settings.pop("loop"))
    if "agent" in settings:
        settings["agent"] = Home(settings["agent"])
    settings["introducers"] = tuple(settings["introducers"])
    gossip = Gossip(Config(**settings))
    ends: list[End] = []

    def take(stream: Stream) -> None:
        ends.append(End(loop.connect(stream)))

    gossip.accept(PATH, take)
    gossip.start()
    gossip.seek_admission()
    member = gossip.member
    print(json.dumps({"id": member.id, "host": member.host, "port": member.port}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
