"""The answers of NCCL's functions, and of a communicator that is asked how it is."""

from __future__ import annotations

from enum import IntEnum


class Result(IntEnum):
    """``ncclResult_t`` of nccl.h, up to NCCL 2.30."""

    SUCCESS = 0
    UNHANDLED_CUDA_ERROR = 1
    SYSTEM_ERROR = 2
    INTERNAL_ERROR = 3
    INVALID_ARGUMENT = 4
    INVALID_USAGE = 5
    REMOTE_ERROR = 6
    """A peer has ended, or cannot be reached."""
    IN_PROGRESS = 7
    """The call has returned, and what was asked for is still to be done. No error."""
    TIMEOUT = 8
    """Since 2.30."""
    UNKNOWN = -1
    """None of these: of a newer NCCL."""

    @classmethod
    def of(cls, code: int) -> Result:
        """The result with that number."""
        return cls(code) if code in cls._value2member_map_ else cls.UNKNOWN

    @property
    def bad(self) -> bool:
        """True for an error."""
        return self not in (Result.SUCCESS, Result.IN_PROGRESS)
