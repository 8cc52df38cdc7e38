"""An agent on a thread of the training process: light, and silent whenever something there keeps the interpreter's lock."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..errors import ConsensusError, StoppedError
from ..interface import Source
from ..progress import Progress
from .agent import Agent, Outside
from .assembly import make_agent, perform, question
from .background import Background
from .fork import release_in_children
from .host import Ears, Setup
from .progress_cell import ProgressCell
from .sockets import SocketPair
from .sources import Sources

__all__ = ["ThreadHost"]


class ThreadHost:
    """See ``Host``."""

    def __init__(self) -> None:
        """Starts nothing."""
        self._sources = Sources()
        self._cell = ProgressCell()
        self._background: Background | None = None
        self._agent: Agent | None = None
        self._ears: Ears | None = None
        self._stopping = False

    @property
    def running(self) -> bool:
        """See ``Host``."""
        return self._background is not None and self._background.running and not self._stopping

    def here(self) -> bool:
        """See ``Host``."""
        return self._background is not None and self._background.here()

    def begin(self, member_id: str) -> None:
        """See ``Host``."""

    def start(self, setup: Setup, sockets: SocketPair, ears: Ears, timeout: float) -> None:
        """See ``Host``."""
        background = Background(f"ftlib-agent-{setup.member.id[:6]}", self._failed)
        self._background, self._ears = background, ears
        release_in_children(background, _descriptors_of(sockets, background))
        background.start()
        try:
            background.call(self._open(setup, sockets, ears), timeout)
        except BaseException as error:
            self._stopping = True
            background.stop()
            sockets.close()
            if isinstance(error, TimeoutError):
                raise ConsensusError(f"the agent did not start within {timeout:g} s") from None
            raise

    async def _open(self, setup: Setup, sockets: SocketPair, ears: Ears) -> None:
        async def facts() -> Mapping[str, Any]:
            return ears.plane.facts()

        outside = Outside(
            plane=ears.plane,
            publish=ears.publish,
            progress=self._cell.read,
            facts=facts,
            served=lambda: self._sources.paths,
            hand_over=self._sources.answer,
        )
        self._agent = make_agent(setup, sockets, outside)
        await self._agent.start()

    def perform(self, action: str, *arguments: Any) -> None:
        """See ``Host``."""
        background, agent = self._background, self._agent
        if background is None or agent is None or self._stopping:
            return
        if background.here():
            perform(agent, action, arguments)
        else:
            background.post(perform, agent, action, arguments)

    def ask(self, question_: str, *arguments: Any, timeout: float) -> Any:
        """See ``Host``."""
        background, agent = self._background, self._agent
        if background is None or agent is None:
            raise ConsensusError("the agent does not run: call start first")
        if question_ == "status" and (background.here() or not background.running):
            return agent.status()  # nobody else changes it now
        return background.call(question(agent, question_, arguments), timeout)

    def progress(self, progress: Progress) -> None:
        """See ``Host``."""
        self._cell.write(progress)

    def commit_to_leave(self) -> None:
        """See ``Host``."""
        self._cell.commit_to_leave()

    def serve(self, path: str, source: Source) -> None:
        """See ``Host``."""
        self._sources.serve(path, source)

    def stop(self, timeout: float) -> None:
        """See ``Host``."""
        first, self._stopping = not self._stopping, True
        background, agent = self._background, self._agent
        if background is None:
            return
        if background.here():  # from a callback: it cannot be waited for
            if first and agent is not None:
                closing = background.loop.create_task(agent.close())
                closing.add_done_callback(lambda _task: background.stop())
            return
        if not first:  # whoever came first ends it
            background.join()
            return
        if agent is not None and background.running:
            with contextlib.suppress(TimeoutError):  # then the sockets go with the loop
                background.call(agent.close(), timeout)
        background.stop()

    def _failed(self, error: BaseException) -> None:
        if self._ears is not None and not self._stopping:
            self._ears.failed(StoppedError(f"the agent's loop failed: {type(error).__name__}: {error}"))


def _descriptors_of(pair: SocketPair, background: Background) -> Callable[[], Iterable[int]]:
    """What a forked child must let go of, without keeping the agent alive; nothing after its end."""
    reference = weakref.ref(background)

    def descriptors() -> Iterable[int]:
        loop = reference()
        watched = () if loop is None else loop.descriptors()
        return [pair.tcp.fileno(), pair.udp.fileno(), *watched]

    return descriptors
