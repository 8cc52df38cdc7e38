"""The errors of ``ftlib``: one small tree under ``FTLibError``.

``ConfigError`` means that the caller erred. ``GroupError`` (a process group failed) stays inside, since the library recovers
from it, and so does ``JobEnded`` (the process ends with 0). The other errors end this worker's part; their text is one line
with the reason.
"""

from __future__ import annotations


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
