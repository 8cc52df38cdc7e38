"""The errors of ``ftlib``: one small tree under ``FTLibError``.

``ConfigError`` means that the caller erred. ``GroupError`` (a process group failed) stays inside, since the library recovers
from it, and so does ``JobEnded`` (the process ends with 0). The other errors end this worker's part; their text is one line
with the reason.
"""

from __future__ import annotations

from typing import Any


class FTLibError(Exception):
    """Root of all errors raised by ``ftlib``."""


class ConfigError(FTLibError, ValueError):
    """A setting or an argument is wrong; the text names it and the remedy."""


class JoinError(FTLibError):
    """No cluster could be joined or founded in time, or it refused this worker."""


class QuorumLost(FTLibError):
    """Too few members of the view answer to agree on the next one."""


class Excluded(FTLibError):
    """The other members went on without this worker: stop, or start again as a joiner."""


class ReplicaLost(Excluded):
    """Another process of this replica is lost, so the others go on without it: end, to be started again as a whole."""


class RebuildTimeout(FTLibError):
    """No working process group came up within the deadline; the text names the members that were missing."""


class StepMismatch(FTLibError):
    """Workers entered the same call with different tensors or operations."""


class StateLost(FTLibError):
    """No member of the view holds the trained state any more."""


class JobEnded(FTLibError):
    """The programs of the job's last members have ended, and this worker was no member: there is nothing to do."""


class InjectedFault(FTLibError):
    """A fault that the program itself has ordered (``FaultInjector``)."""


class GroupError(FTLibError):
    """An operation of a process group failed. ``peers``: ranks it blames (empty: unknown; the own one: nobody else's fault)."""

    def __init__(self, text: str, peers: tuple[int, ...] = ()) -> None:
        super().__init__(text)
        self.peers = peers

    def afresh(self) -> GroupError:
        """Copy this error without its frames, which keep operations and lifetimes alive, and with them sockets."""
        return GroupError(str(self), self.peers)


class WorkerFailedError(FTLibError):
    """A worker of a launch ended otherwise than by returning: by a signal, an exit code, or an exception that cannot travel.

    ``rank`` is None in an elastic launch. ``signal`` is the number of the signal that ended it, ``code`` its exit code: one of
    them is None, both are for an exception.
    """

    def __init__(
        self, text: str, *, rank: int | None, local_rank: int, host: str, signal: int | None = None, code: int | None = None
    ) -> None:
        super().__init__(text)
        self.rank = rank
        self.local_rank = local_rank
        self.host = host
        self.signal = signal
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        return _failed, (str(self), self.rank, self.local_rank, self.host, self.signal, self.code)


def _failed(text: str, rank: int | None, local_rank: int, host: str, signal: int | None, code: int | None) -> WorkerFailedError:
    return WorkerFailedError(text, rank=rank, local_rank=local_rank, host=host, signal=signal, code=code)


class AgentFailedError(FTLibError):
    """A host of a launch cannot be used, or is lost: login refused, agent not started, killed or silent."""

    def __init__(self, text: str, host: str = "") -> None:
        super().__init__(text)
        self.host = host


class RemoteTraceback(FTLibError):
    """The traceback of a worker's exception, as text: the ``__cause__`` of the exception that the caller gets."""

    def __str__(self) -> str:
        return "\n" + str(self.args[0]) if self.args else ""
