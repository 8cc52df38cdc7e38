"""Actors as processes of a test: start, signal, watch, clean up. Like ``cluster``, with a part a worker instead of one task.

One nursery serves all tests; each test has a job of its own and leaves no process behind.
"""

from __future__ import annotations

import secrets
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.harness.cluster import LIMIT, Process, Watched, bind
from tests.harness.nursery import Nursery


class Player(Process):
    """One process and what it wrote."""

    ENDING = (signal.SIGKILL,)

    def __init__(self, name: str, log: Path, pid: int) -> None:
        super().__init__(name, str(log), pid)
        self.lines: list[dict[str, Any]] = []

    def __repr__(self) -> str:
        return f"<{self.name} pid {self.pid} code {self.code} last {self.calls[-1] if self.calls else self.lines[-1:]}>"

    def take(self, line: dict[str, Any]) -> None:
        """Whatever it is."""
        self.lines.append(line)

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


class Stage(Watched[Player]):
    """The players of the test in progress."""

    POLL = 0.005

    def __init__(self, directory: Path, nursery: Nursery) -> None:
        super().__init__(directory, nursery)
        self.players: list[Player] = []
        self._settings: dict[str, Any] = {}
        self._count = 0

    @property
    def everybody(self) -> list[Player]:
        """All players."""
        return self.players

    def clear(self, **settings: Any) -> None:
        """End all players; ``settings`` hold for the next ones, with a new job."""
        self._end_all()
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
        log = self.directory / f"{self._count:03}-{part}.jsonl"
        task = {
            "part": part,
            "log": str(log),
            "given": given or {},
            "settings": {**self._settings, **settings},
        }
        pid = self._nursery.start(task, pair, module="tests.processes.stage.actors")
        player = Player(f"{part}{self._count}", log, pid)
        for item in pair:
            item.close()
        self.players.append(player)
        return player

    # Watching

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


def one_line(error: str) -> str:
    assert error
    assert "\n" not in error, error
    assert len(error) < 400, error
    return error


def healthy(*players: Player) -> None:
    """Nothing happened to these that they would tell their user about."""
    for player in players:
        assert player.code in (None, 0), (player, player.error)
        assert "Traceback" not in player.output(), player.output()
