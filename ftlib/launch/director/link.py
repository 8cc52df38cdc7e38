"""One agent as its caller has it: the command that leads to it, the stream, and in the end the reason for its end."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Sequence

from ...common.processes import describe_exit
from ..processes.output import LineSplitter
from ..stream.channel import Channel
from ..stream.deadline import Deadline, Hearing
from ..stream.messages import PROTOCOL, Bye, Greeted, Message, StreamError

_PIPE = 512 << 10
"""Bytes of the pipe from the command: large results take half as many turns as with 64 KiB."""
_WORDS = 0.3
"""Seconds that a command may take for its exit and its last words, once its output has ended."""
_HELD = 1000
"""Lines that are held back until the agent speaks, about."""
_PARTING = 5.0
"""Seconds that an agent may take to end after it was told to."""
_LOGIN = {"SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY"}
"""Variables of the login to this machine. An agent that inherited them would take its host to be reached where this one was."""


class Link:
    """Starts the command and owns it. Use on its loop only."""

    def __init__(
        self,
        host: str,
        command: Sequence[str],
        *,
        timeout: float,
        opening: float,
        received: Callable[[Message, int], None],
        over: Callable[[str], None],
        said: Callable[[list[bytes]], None],
    ) -> None:
        """``over``: called once, with the reason in words, when the agent has ended or is lost. ``said``: what the command
        writes to stderr. Raises OSError if there is no such command.
        """
        self.host = host
        self._loop = asyncio.get_running_loop()
        self._over, self._said = over, said
        self._process = subprocess.Popen(  # noqa: S603 - running the transport is the purpose
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env={name: value for name, value in os.environ.items() if name not in _LOGIN},
            start_new_session=True,  # the terminal's signals are the caller's: the stream's end is the agent's
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        with contextlib.suppress(OSError):  # a user may have only so much memory in pipes
            fcntl.fcntl(self._process.stdout, fcntl.F_SETPIPE_SZ, _PIPE)
        self._greeted = Greeted()
        self._words: deque[str] = deque(maxlen=4)
        self._held: list[bytes] | None = []
        """What stood on stderr before the agent spoke: lines if it speaks, else told with the reason, and only there."""
        self._splitter = LineSplitter()
        self._stderr = self._process.stderr.fileno()
        os.set_blocking(self._stderr, False)
        self._loop.add_reader(self._stderr, self._readable)
        self._reading = True
        self._done = False
        self._last: asyncio.Task[None] | None = None
        """Once it has ended by itself: what finds out why, and then ends the command."""
        self.channel = Channel(
            self._loop,
            self._process.stdout.fileno(),
            self._process.stdin.fileno(),
            Deadline(time.monotonic(), timeout=timeout, opening=opening),
            received=received,
            over=self._ended,
            first=self._greet,
        )

    @property
    def pid(self) -> int:
        """The command's process id."""
        return self._process.pid

    def blame(self, text: str) -> None:
        """The agent said why it ends."""
        self._words.clear()
        self._words.append(text)

    async def close(self) -> None:
        """Have the agent end, within a deadline; then end the command. One that has ended by itself: wait for the latter."""
        if self._last is not None:
            await self._last
            return
        self._done = True
        self.channel.send(Bye())
        await self._wait(_PARTING if not self.channel.deadline.state.over else 0.0)
        await self._bury()

    async def _bury(self) -> None:
        self.channel.close()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        await self._wait(0.2)
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._wait(_PARTING)
        self._hush()

    async def _wait(self, seconds: float) -> None:
        """Wait for the command's end."""
        deadline = time.monotonic() + seconds
        pause = 0.001
        while self._process.poll() is None and time.monotonic() < deadline:
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 0.05)

    def _greet(self, chunk: bytes) -> bytes | None:
        rest = self._greeted.feed(chunk)
        if rest is not None and self._greeted.protocol != PROTOCOL:
            theirs = self._greeted.release
            raise StreamError(f"ftlib {theirs} is installed there, which speaks another way: install the same release at both")
        if rest is not None and self._held is not None:
            held, self._held = self._held, None
            self._say(held)
        return rest

    @property
    def release(self) -> str:
        """The release that the agent greeted with."""
        return self._greeted.release

    def _readable(self) -> None:
        try:
            chunk = os.read(self._stderr, 1 << 16)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        lines = self._splitter.feed(chunk) if chunk else self._splitter.finish()
        if not chunk:
            self._hush()
        self._words += [text for line in lines if (text := line.decode("utf-8", "replace").strip())]
        if self._held is not None and len(self._held) < _HELD:
            self._held += lines
        else:
            self._say(lines)

    def _say(self, lines: list[bytes]) -> None:
        if lines:
            self._said(lines)

    def _hush(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._stderr)
            if self._process.stderr is not None:
                self._process.stderr.close()

    def _ended(self, why: str) -> None:
        if not self._done:
            self._done = True
            self._last = self._loop.create_task(self._conclude(why))

    async def _conclude(self, why: str) -> None:
        """Put the reason together: the command's own words and its exit say more than the stream."""
        lost = self.channel.deadline.state is Hearing.LOST
        deadline = time.monotonic() + _WORDS
        while not lost and time.monotonic() < deadline and (self._process.poll() is None or self._reading):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        code = self._process.poll()
        greeted = self._greeted.protocol > 0
        parts = [why if lost or greeted else "no agent has answered"]
        if code is not None and (code or not greeted):
            parts.append(describe_exit(code))
        if self._words:
            parts.append(" / ".join(self._words))
        elif not greeted and (noise := self._greeted.noise.decode("utf-8", "replace").strip()):
            parts.append(noise[-300:])
        self._over(": ".join(parts))
        await self._bury()
