"""The facts about this worker's data plane as plain values, shown by ``FTLib.metrics``, ``/status`` and ``/metrics``."""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from ...common.counters import Counters, State
from ...common.releases import release_of
from ...frameworks import Framework
from ..tensors.trailer import Flag
from .phase import Phase
from .plane import Plane


def facts(plane: Plane, framework: Framework, more: Mapping[str, Callable[[], Any]] | None = None) -> dict[str, Any]:
    """Counts since the start, and this worker's place. Any thread; waits only for the plane's lock. Times in seconds.

    ``more``: what layers above add, by its name; where that raises, the error.
    """
    counters = plane.counters
    now = plane.threads.now()
    with plane.changed:
        session, call = plane.session, plane.current
        in_call = None if call is None else {"number": call.number, "seconds": now - call.began, "text": call.layout.text}
        slots = () if plane.trailer is None else plane.trailer.slots
        ranks = [rank for rank, slot in enumerate(slots) if slot.lacks_state]
        learners = () if session is None else session.members_of(ranks)
        absent = [rank for rank, slot in enumerate(slots) if slot.flags & Flag.LATE]
        late = () if session is None else session.members_of(absent)
        others = () if session is None else [member_id for member_id in session.view.ids if member_id != plane.member_id]
        peers = {}
        for member_id in others:
            # A new member is in the view before its first ping reports its place.
            finished, current = plane.peers.places.get(member_id, (None, None))
            peers[member_id] = {
                "finished": finished,
                "current": current,
                "seconds": now - plane.peers.changes[member_id] if finished is not None else None,
                "inner_steps": plane.peers.inner.get(member_id, (0, now))[0],
                "following": member_id in learners,
                "late": member_id in late,
            }
        phase, recovery, missed = plane.phase, plane.recovery, plane.lag.calls
        came_in = not plane.blank and not plane.newcomer
        level = came_in and (plane.level or not plane.has_state)  # where nothing is registered there is nothing to get
        number = 0 if call is None else call.number
        behind = any(max(plane.peers.places.get(each, (0, 0))) < number for each in others)
        spent = plane.counters.time_use.shown(now, _guess(plane, behind=behind))
    return {
        **framework.metrics(),
        **{name: _got(get) for name, get in dict(more or {}).items()},
        "build": _build(),
        "phase": phase.value,
        "rank": -1 if session is None else session.rank,
        "size": 0 if session is None else session.size,
        "epoch": 0 if session is None else session.view.epoch,
        "step": plane.step,
        "level": level,
        "finished_calls": plane.finished,
        "inner_steps": plane.borders.inner,
        "in_call": in_call,
        "peers": peers,
        "step_times": plane.step_times.facts(),
        "calls": counters.calls,
        "calls_by_transport": _by_transport(counters, framework.transports),
        "redone": counters.redone,
        "adopted": counters.adopted,
        "donated": counters.donated,
        "rolled_back": counters.rolled_back,
        "vetoed": counters.vetoed,
        "bytes_averaged": counters.bytes_averaged,
        "call_seconds": counters.call_seconds.as_dict(),
        "view_changes": counters.views,
        "rebuild_failures": counters.rebuild_failures,
        "children_replaced": framework.replaced,
        "seconds": spent,
        "goodput": (spent["computing"] + spent["averaging"]) / (sum(spent.values()) or 1.0),
        "last_pause": counters.last_pause,
        "pauses": counters.pauses.as_dict(),
        "rejoins": counters.rejoins,
        "state_loads": counters.state_loads,
        "state_bytes": counters.state_bytes,
        "recovery": None if recovery is None else asdict(recovery()),
        "recoveries": counters.recoveries,
        "recovery_fallbacks": counters.recovery_fallbacks,
        "averages_replayed": counters.averages_replayed,
        "stood_in": counters.stood_in,
        "missed": missed,
        "checkpoints": counters.checkpoints,
        "checkpoint_failures": counters.checkpoint_failures,
        "checkpoints_skipped": counters.checkpoints_skipped,
        "checkpoint_step": counters.checkpoint_step,
    }


def _got(get: Callable[[], Any]) -> Any:
    """What a layer above adds. Its fault costs no other fact."""
    try:
        return get()
    except Exception as error:  # noqa: BLE001 - it may be the program's
        return {"error": f"{type(error).__name__}: {error}"}


@functools.cache
def _build() -> dict[str, str]:
    """What runs here."""
    return {"version": release_of("ftlib", "unknown"), "torch": str(torch.__version__), "python": platform.python_version()}


def _guess(plane: Plane, *, behind: bool) -> State:
    """What the time since a call was entered is, as far as this is known before its end. Under the lock."""
    if plane.phase is Phase.FROZEN:
        return State.CHANGING
    if plane.recovery is not None or (plane.session is not None and plane.has_state and not plane.level):
        return State.RECOVERING
    return State.WAITING if behind or plane.phase is Phase.WAITING else State.AVERAGING


def _by_transport(counters: Counters, names: Sequence[str]) -> dict[str, int]:
    """Calls that were carried by anything, by its name; ``names`` as ``Framework.transports``."""
    accelerated = counters.accelerated
    counts = (counters.calls - counters.alone - accelerated, accelerated)
    return dict(zip(names, counts, strict=False))
