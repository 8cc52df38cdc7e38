"""The errors of the package ``consensus``: one small tree.

``ConsensusError`` is the root. ``ConfigError`` is a mistake of the *caller*; all others are something that happened to this
member or its cluster. Nonsense from the network never becomes an exception for the caller: it is counted and dropped.
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
        """``job``: of the sender."""
        super().__init__(f"the sender belongs to job {job!r}")
        self.job = job


class ForeignVersionError(CodecError):
    """A message of another protocol version: its sender runs another release."""

    def __init__(self, version: int) -> None:
        """``version``: of the sender."""
        super().__init__(f"the sender speaks protocol version {version}")
        self.version = version


class SealError(CodecError):
    """A packet or answer that no holder of the secret made for this receiver, or that was seen before."""

    def __init__(self, kind: str, text: str) -> None:
        """``kind``: the word under which it is counted."""
        super().__init__(text)
        self.kind = kind


class UnreadableError(CodecError):
    """A value in a shared store that cannot be opened. The text names the key and the reason."""


class SecretError(ConsensusError):
    """The other side asks for a secret, has none, or has another one. The text names the remedy."""


class DialError(ConsensusError):
    """No stream to a member came about. ``gone``: it is proven that this lifetime of it is over.

    ``ended``: it lives, but its program has ended its acceptance of that path.
    """

    def __init__(self, text: str, *, gone: bool = False, ended: bool = False) -> None:
        super().__init__(text)
        self.gone = gone
        self.ended = ended


class RefusalError(ConsensusError, LookupError):
    """A source (see ``interface.Source``) refuses a request: the answer's HTTP status and text."""

    def __init__(self, text: str, status: int) -> None:
        """``status``: of the answer; the server and its clients agree on the meaning."""
        super().__init__(text)
        self.status = status


class StoppedError(ConsensusError):
    """This member's lifetime in the cluster is over; the subclass says why."""


class JoinError(StoppedError):
    """No cluster could be joined or founded in time, or the cluster refused."""


class JobEndedError(StoppedError):
    """The member that this one was about to join left because its program has ended: there is nothing to join any more."""


class ExcludedError(StoppedError):
    """The other members agreed on a view without this member."""

    def __init__(self, text: str, view: View | None = None) -> None:
        """``view``: the view without this member, if known; join again through its members."""
        super().__init__(text)
        self.view = view


class OvertakenError(ExcludedError):
    """Under policy ``any`` two sides of a job went on separately and have met; the other side goes on, this one stops.

    What this side did since they separated is lost: states are never merged.
    """


class FoundedApartError(StoppedError):
    """Two clusters of one job, founded without knowing of each other, have met; the other one goes on."""

    def __init__(self, text: str, view: View | None = None) -> None:
        """``view``: of the other cluster."""
        super().__init__(text)
        self.view = view


class LeftError(StoppedError):
    """This member left of its own accord."""


class QuorumLostError(StoppedError):
    """No quorum of the view answered within ``quorum_timeout``."""


class StoreError(ConsensusError):
    """The shared store could not do what was asked. The text names the store, never its password."""


class StoreAwayError(StoreError):
    """The store was not reached, or not in time; nothing was written."""


class AmbiguousWriteError(StoreError):
    """The answer to a write was lost: the write may have been done, or may still be. Only a read can tell."""


class StoreRefusedError(StoreError):
    """The store is unusable: wrong password, no such directory, a file system without hard links. The text names the remedy."""


class StoreWipedError(StoppedError):
    """This cluster's decisions are gone from the store: no member can tell any more who acts in the job."""
