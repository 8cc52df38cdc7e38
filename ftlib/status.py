"""The result of a call that averages, for the training loop."""

from enum import Enum


class Status(Enum):
    """Truthy statuses mean that the step may be applied; falsy ones that no member applies it.

    SUCCESS: averaged over all members. NO_NEED: this worker is alone, its own gradients are the average.
    FAIL: no member applies the step, gradients are untouched, call again. ABORT: this worker's lifetime in the job is over.
    """

    SUCCESS = "success"
    NO_NEED = "no_need"
    FAIL = "fail"
    ABORT = "abort"

    def __bool__(self) -> bool:
        """Whether the step may be applied."""
        return self in (Status.SUCCESS, Status.NO_NEED)
