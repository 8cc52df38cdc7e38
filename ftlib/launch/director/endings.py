"""What the caller gets in the end: results, or the error that says what failed, where, and what failed besides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from typing import Any

from ...common.processes import describe_exit
from ...errors import AgentFailedError, RemoteTraceback, WorkerFailedError
from ..parcel import Raised, read_outcome
from ..result import LaunchResult
from ..run.restarts import WorkerPhase
from .decisions.actions import Failure, FailureKind
from .decisions.launch_state import LaunchState
from .plan import Plan


@dataclass(frozen=True, slots=True)
class Ending:
    """How one start of a worker ended."""

    start: int
    """Which of its starts."""
    code: int
    cause: str
    pid: int
    tail: Sequence[bytes]
    pieces: Sequence[bytes] = ()
    """What it left, as it came."""
    outcome: Any = None
    """What it returned, or ``Raised``; of a program None."""
    unreadable: str = ""
    """Why what it returned cannot be read."""

    def read(self, results: str) -> Ending:
        """The same with what it left read. Takes as long as that is large: never while agents wait for a heartbeat."""
        if not self.pieces:
            return self
        try:
            return replace(self, pieces=(), outcome=read_outcome(b"".join(self.pieces), results))
        except ValueError as error:
            return replace(self, pieces=(), unreadable=str(error))


def result_of(ledger: LaunchState, endings: Mapping[int, Ending], plan: Plan) -> LaunchResult:
    """What those that finished returned. Raises WorkerFailedError for a result that cannot be read here."""
    results: dict[str, list[Any]] = {}
    ranks: dict[str, list[int]] = {}
    failures = []
    for index, (place, record) in enumerate(zip(ledger.places, ledger.policy.records, strict=True)):
        ending = endings.get(index)
        if ending is None or record.phase is not WorkerPhase.DONE:
            if record.code:
                failures.append(_headline(index, ledger, ending))
            continue
        if ending.unreadable:
            raise _worker_error(index, ledger, ending)
        results.setdefault(place.host, []).append(ending.outcome)
        ranks.setdefault(place.host, []).append(place.local_rank)
    places = [] if plan.rules.elastic else [(place.host, place.local_rank) for place in ledger.places]
    return LaunchResult(results, ranks, places, failures)


def failure_of(failure: Failure, ledger: LaunchState, endings: Mapping[int, Ending]) -> BaseException:
    """The error of a launch that failed, with later failures of others as notes."""
    match failure.kind:
        case FailureKind.CANCELLED:
            return CancelledError(failure.why)
        case FailureKind.HOST:
            error: BaseException = AgentFailedError(f"{failure.host}: {failure.why}", failure.host)
        case FailureKind.TOO_FEW:
            error = AgentFailedError(failure.why, failure.host)
        case _:
            ending = endings.get(failure.index)
            error = _worker_error(failure.index, ledger, ending)
    for later in ledger.failures[1:]:
        if later.kind is FailureKind.WORKER:
            error.add_note(f"also: {_headline(later.index, ledger, endings.get(later.index))}")
        elif later.kind is FailureKind.HOST:
            error.add_note(f"also: {later.host}: {later.why}")
    return error


def _worker_error(index: int, ledger: LaunchState, ending: Ending | None) -> BaseException:
    place = ledger.places[index]
    headline = _headline(index, ledger, ending)
    raised = ending.outcome if ending is not None else None
    if isinstance(raised, Raised):
        cause = RemoteTraceback(raised.trace)
        if raised.error is not None:
            error = raised.error
            error.__cause__ = cause
            error.add_note(f"raised by {_who(index, ledger, ending)}")
            return error
        text = f"{_who(index, ledger, ending)} raised {raised.kind}: {raised.text}"
        failed = WorkerFailedError(text, rank=place.rank, local_rank=place.local_rank, host=place.host)
        failed.__cause__ = cause
        return failed
    code = ending.code if ending is not None else ledger.policy.records[index].code
    failed = WorkerFailedError(
        headline,
        rank=place.rank,
        local_rank=place.local_rank,
        host=place.host,
        signal=-code if code < 0 else None,
        code=code if code > 0 else None,
    )
    if ending is not None and (tail := b"\n".join(ending.tail[-20:]).decode("utf-8", "replace").strip()):
        failed.add_note(f"its last lines on stderr:\n{tail}")
    return failed


def _who(index: int, ledger: LaunchState, ending: Ending | None) -> str:
    place = ledger.places[index]
    rank = f"rank {place.rank}" if place.rank is not None else f"worker {place.local_rank}"
    return f"{rank} on {place.host}" + (f" (pid {ending.pid})" if ending is not None and ending.pid else "")


def _headline(index: int, ledger: LaunchState, ending: Ending | None) -> str:
    who = _who(index, ledger, ending)
    if ending is None:
        record = ledger.policy.records[index]
        return f"{who} ended: {describe_exit(record.code)}" + (f" ({record.cause})" if record.cause else "")
    if isinstance(ending.outcome, Raised):
        return f"{who} raised {ending.outcome.kind}: {ending.outcome.text}"
    if ending.unreadable:
        return f"{who}: {ending.unreadable}"
    cause = f" ({ending.cause})" if ending.cause else ""
    return f"{who} ended: {describe_exit(ending.code)}{cause}"
