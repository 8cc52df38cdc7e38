"""The errors of the package ``consensus``: one small tree.

``ConsensusError`` is the root. What the *caller* did wrong is a ``ConfigError``; what happened to this member or its
cluster is everything else. Nonsense from the network never becomes an exception for the caller: it is counted and
dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .view import View


class ConsensusError(Exception):
    """Root of all errors raised by ``consensus``."""


class ConfigError(ConsensusError, ValueError):
    """A setting is unknown, malformed or out of range. The text names the setting and the remedy."""


class CodecError(ConsensusError):
    """Bytes that are no message of this protocol: wrong version, schema, size, or trailing bytes."""


class ForeignJobError(CodecError):
    """A well-formed message of another job: its sender found the wrong address."""

    def __init__(self, job: str) -> None:
        """``job``: the sender's."""
        super().__init__(f"the sender belongs to job {job!r}")
        self.job = job


class ForeignVersionError(CodecError):
    """A message of another protocol version: its sender runs another release."""

    def __init__(self, version: int) -> None:
        """``version``: the sender's."""
        super().__init__(f"the sender speaks protocol version {version}")
        self.version = version


class SealError(CodecError):
    """A packet or answer that no holder of the secret made for this receiver, or that was seen before."""

    def __init__(self, kind: str, text: str) -> None:
        """``kind``: the word under which it is counted."""
        super().__init__(text)
        self.kind = kind


class UnreadableError(CodecError):
    """What stands in a shared store in a value's place and cannot be opened. The text names the key, and why."""


class SecretError(ConsensusError):
    """The other side asks for a secret, has none, or has another one. The text names the remedy."""


class RefusalError(ConsensusError, LookupError):
    """What a source (see ``interface.Source``) has nothing to give for: the HTTP status of the answer, and its text."""

    def __init__(self, text: str, status: int) -> None:
        """``status``: of the answer; what it means is between those who serve and those who ask."""
        super().__init__(text)
        self.status = status


class StoppedError(ConsensusError):
    """This member's lifetime in the cluster is over; the subclass says why."""


class JoinError(StoppedError):
    """No cluster could be joined or founded in time, or the cluster refused."""


class JobEndedError(StoppedError):
    """Whom this member was about to join has left, since its program has come to its end: there is nothing to join any more."""


class ExcludedError(StoppedError):
    """The other members agreed on a view without this member."""

    def __init__(self, text: str, view: View | None = None) -> None:
        """``view``: the one without this member, where it learned that: its members are the ones to join again."""
        super().__init__(text)
        self.view = view


class OvertakenError(ExcludedError):
    """Under policy ``any`` two sides went on without each other; they met, and the other one goes on.

    What this side did since they parted is lost: states are never merged.
    """


class FoundedApartError(StoppedError):
    """Two clusters of one job met that were founded without knowing of each other; the other one goes on."""

    def __init__(self, text: str, view: View | None = None) -> None:
        """``view``: the other cluster's."""
        super().__init__(text)
        self.view = view


class LeftError(StoppedError):
    """This member left on its own wish."""


class QuorumLostError(StoppedError):
    """No quorum of the view answered within ``quorum_timeout``."""


class StoreError(ConsensusError):
    """The shared store could not do what was asked. The text names the store, never its password."""


class StoreAwayError(StoreError):
    """The store was not reached, or not in time; nothing was written."""


class AmbiguousWriteError(StoreError):
    """The answer to a write got lost: it may have been done, or may still be. Only reading tells."""


class StoreRefusedError(StoreError):
    """The store will not do: wrong password, no such directory, a file system without hard links. The text names the remedy."""


class StoreWipedError(StoppedError):
    """What this cluster had decided is gone from the store: nobody can tell any more who acts in the job."""
