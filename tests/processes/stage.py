"""Actors as processes of a test: start, signal, watch, clean up. Like ``cluster``, with a part a worker instead of one task.

One nursery serves all tests; each test has a job of its own and leaves no process behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .cluster import bind
from .nursery import Nursery, Stuck

__all__ = ["Player", "Stage"]

LIMIT = 30.0
"""Seconds that anything may take."""


class Player:
    """One process and what it wrote."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self.pid = 0
        self.code: int | None = None
        self.killed = False
        self.lines: list[dict[str, Any]] = []
        self._log = log
        self._size = 0

    def __repr__(self) -> str:
        return f"<{self.name} pid {self.pid} code {self.code} last {self.calls[-1] if self.calls else self.lines[-1:]}>"

    def read(self) -> None:
        """Take in what is new; half a line waits."""
        with contextlib.suppress(FileNotFoundError), self._log.open("rb") as file:
            file.seek(self._size)
            data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._size += len(whole)
            self.lines += [json.loads(line) for line in whole.splitlines()]

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Lines of finished calls."""
        return [line for line in self.lines if "call" in line]

    @property
    def size(self) -> int:
        """Group size in the newest finished call."""
        return int(self.calls[-1]["size"]) if self.calls else 0

    def event(self, name: str) -> dict[str, Any] | None:
        """The newest such line."""
        return next((line for line in reversed(self.lines) if line.get("event") == name), None)

    def events(self, name: str) -> list[dict[str, Any]]:
        """All such lines."""
        return [line for line in self.lines if line.get("event") == name]

    @property
    def address(self) -> str:
        """Where it listens."""
        started = self.event("init")
        return str(started["address"]) if started else ""

    @property
    def error(self) -> str:
        """``Kind: text`` of what ended it."""
        error = self.event("error")
        return f"{error['kind']}: {error['text']}" if error else ""

    def output(self) -> str:
        """What it printed and logged."""
        path = Path(f"{self._log}.out")
        return path.read_text(errors="replace") if path.exists() else ""

    def signal(self, number: int) -> None:
        """Send a signal."""
        self.killed |= number == signal.SIGKILL
        os.kill(self.pid, number)


class Stage:
    """The players of the test in progress."""

    def __init__(self, directory: Path, nursery: Nursery) -> None:
        self.directory = directory
        self.players: list[Player] = []
        self._settings: dict[str, Any] = {}
        self._count = 0
        self._nursery = nursery

    def clear(self, **settings: Any) -> None:
        """End all players; ``settings`` hold for the next ones, with a new job."""
        self._nursery.kill(player.pid for player in self.players if player.code is None)
        self.players = []
        # Agents as threads are quicker to start; those in processes are for the tests that are about them.
        self._settings = {"job": f"test-{secrets.token_hex(6)}", "agent": "thread", **settings}

    # Starting

    def found(self, *parts: str, given: Sequence[dict[str, Any]] = (), **settings: Any) -> list[Player]:
        """Start founders that meet, one a part; ``given``: their orders, alike for all if there is one."""
        pairs = [bind() for _ in parts]
        addresses = [f"127.0.0.1:{tcp.getsockname()[1]}" for _, tcp in pairs]
        orders = list(given) if len(given) == len(parts) else list(given or [{}]) * len(parts)
        players = []
        for part, order, address, pair in zip(parts, orders, addresses, pairs, strict=True):
            more = {"introducers": addresses, "initial_size": len(parts), "bind": address, **settings}
            players.append(self.start(part, order, pair, **more))
        return players

    def join(self, part: str, given: dict[str, Any] | None = None, **settings: Any) -> Player:
        """Start a player that joins through the others."""
        addresses = [player.address for player in self.alive() if player.address]
        return self.start(part, given, **{"introducers": addresses[-3:], **settings})

    def start(
        self, part: str, given: dict[str, Any] | None = None, pair: tuple[socket.socket, ...] = (), **settings: Any
    ) -> Player:
        """Start one."""
        self._count += 1
        player = Player(f"{part}{self._count}", self.directory / f"{self._count:03}-{part}.jsonl")
        task = {
            "part": part,
            "log": str(player._log),
            "given": given or {},
            "settings": {**self._settings, **settings},
        }
        player.pid = self._nursery.start(task, pair, module="tests.processes.actors")
        for item in pair:
            item.close()
        self.players.append(player)
        return player

    # Watching

    def alive(self) -> list[Player]:
        """Players that run."""
        self.read()
        return [player for player in self.players if player.code is None and not player.killed]

    def read(self) -> None:
        """Take in all news."""
        for player in self.players:
            if player.code is None and (end := self._nursery.end(player.pid)):
                player.code = end.code
            player.read()

    def until(self, what: str, condition: Callable[[], Any], limit: float = LIMIT) -> Any:
        """Wait until ``condition()`` is true and return it; ``Stuck`` with everybody's stacks if it takes too long."""
        deadline = time.monotonic() + limit
        while True:
            self.read()
            found = condition()
            if found:
                return found
            if time.monotonic() > deadline:
                state = "\n  ".join(map(repr, self.players))
                for player in self.players:
                    if player.code is None:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(player.pid, signal.SIGUSR1)
                time.sleep(0.3)
                raise Stuck(f"not within {limit:g} s: {what}\n  {state}\n{self.directory}")
            time.sleep(0.005)

    def event(self, player: Player, name: str, limit: float = LIMIT) -> dict[str, Any]:
        """Wait for a line of ``player``."""
        return dict(self.until(f"{name} of {player}", lambda: player.event(name), limit))

    def ended(self, *players: Player, limit: float = LIMIT) -> list[int]:
        """Wait until these have ended; their exit codes."""
        self.until(f"the end of {players}", lambda: all(player.code is not None for player in players), limit)
        return [player.code for player in players if player.code is not None]

    def going(self, *players: Player, size: int | None = None, calls: int = 3, limit: float = LIMIT) -> None:
        """Wait until these train on together, in a group of their number or ``size``."""
        wanted = len(players) if size is None else size
        before = {player.pid: len(player.calls) for player in players}

        def on() -> bool:
            return all(
                len(player.calls) >= before[player.pid] + calls
                and all(call["size"] == wanted and call["status"] in ("SUCCESS", "NO_NEED") for call in player.calls[-calls:])
                for player in players
            )

        self.until(f"{players} go on in a group of {wanted}", on, limit)
