"""What this worker's data plane can say of itself as plain values: ``FTLib.metrics``, ``/status`` and ``/metrics`` show it."""

from __future__ import annotations

from typing import Any

from .plane import Plane

__all__ = ["facts"]


def facts(plane: Plane) -> dict[str, Any]:
    """Counts since the start, and where this worker is. Any thread; waits only for the plane's lock. Times in seconds."""
    counters = plane.counters
    now = plane.threads.now()
    with plane.changed:
        session, call = plane.session, plane.current
        in_call = None if call is None else {"number": call.number, "seconds": now - call.began, "text": call.layout.text}
        peers = {
            member_id: {"finished": finished, "current": current, "seconds": now - plane.peer_changes.get(member_id, now)}
            for member_id, (finished, current) in plane.peers.items()
        }
        phase = plane.phase
    return {
        "phase": phase.value,
        "rank": -1 if session is None else session.rank,
        "size": 0 if session is None else session.size,
        "epoch": 0 if session is None else session.view.epoch,
        "step": plane.step,
        "finished_calls": plane.finished,
        "in_call": in_call,
        "peers": peers,
        "calls": counters.calls,
        "redone": counters.redone,
        "adopted": counters.adopted,
        "donated": counters.donated,
        "vetoed": counters.vetoed,
        "bytes_averaged": counters.bytes_averaged,
        "call_seconds": counters.call_seconds.as_dict(),
        "view_changes": counters.views,
        "rebuild_failures": counters.rebuild_failures,
        "last_pause": counters.last_pause,
        "pauses": counters.pauses.as_dict(),
        "rejoins": counters.rejoins,
        "state_loads": counters.state_loads,
        "state_bytes": counters.state_bytes,
        "checkpoints": counters.checkpoints,
        "checkpoint_failures": counters.checkpoint_failures,
        "checkpoints_skipped": counters.checkpoints_skipped,
        "checkpoint_step": counters.checkpoint_step,
    }
