"""The errors of ``ftlib``: one small tree under ``FTLibError``.

``ConfigError`` means that the caller erred; ``GroupError`` stays inside (a process group failed: that is what the library
recovers from), and so does ``JobEnded`` (the process ends with 0); the others end this worker's part and say why in one line.
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
    """The other members went on without this worker: stop, or start anew as a joiner."""


class RebuildTimeout(FTLibError):
    """No working process group came up within the deadline; the text names who was waited for."""


class StepMismatch(FTLibError):
    """Workers entered the same call with different tensors or operations."""


class StateLost(FTLibError):
    """No member of the view holds the trained state any more."""


class JobEnded(FTLibError):
    """The job's last members have come to the ends of their programs, and this worker was not in it: there is nothing to do."""


class GroupError(FTLibError):
    """An operation of a process group failed. ``peers``: ranks it blames (empty: unknown)."""

    def __init__(self, text: str, peers: tuple[int, ...] = ()) -> None:
        super().__init__(text)
        self.peers = peers

    def afresh(self) -> GroupError:
        """Copy it, without the frames it went through: these hold operations and lifetimes, and they hold sockets."""
        return GroupError(str(self), self.peers)
